//! A certificate authority for tests, generated each time. The integration tests include this file
//! too. Knows nothing about the proxy.

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, RevokedCertParams,
};

/// An authority. Whoever trusts [`ca`](Self::ca) accepts what it issued.
pub(crate) struct Pki {
    issuer: Issuer<'static, KeyPair>,
    /// Its certificate, in PEM.
    #[allow(dead_code, reason = "not every test that includes this file connects")]
    pub(crate) ca: String,
}

/// A certificate and its key, in PEM.
pub(crate) struct IssuedCertificate {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

impl Pki {
    pub(crate) fn new() -> Self {
        Self::named("Weir's tests")
    }

    pub(crate) fn named(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().unwrap();
        let ca = params.self_signed(&key).unwrap().pem();
        Self { issuer: Issuer::new(params, key), ca }
    }

    /// A certificate for a server with these names or addresses.
    pub(crate) fn server(&self, names: &[&str]) -> IssuedCertificate {
        self.issue(
            names,
            names.first().copied().unwrap_or("server"),
            ExtendedKeyUsagePurpose::ServerAuth,
        )
    }

    /// A certificate for a client with this common name.
    #[allow(
        dead_code,
        reason = "not every test that includes this file has clients with certificates"
    )]
    pub(crate) fn client(&self, name: &str) -> IssuedCertificate {
        self.issue(&[], name, ExtendedKeyUsagePurpose::ClientAuth)
    }

    /// A certificate for a server with these names, with an Ed25519 key.
    #[allow(dead_code, reason = "not every test that includes this file looks at keys")]
    pub(crate) fn server_ed25519(&self, names: &[&str]) -> IssuedCertificate {
        let key = KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
        self.sign(Self::params(names), "ed25519", ExtendedKeyUsagePurpose::ServerAuth, &key)
    }

    /// A certificate for a server with these names, which expired on 2 January 2001.
    #[allow(dead_code, reason = "not every test that includes this file looks at dates")]
    pub(crate) fn expired(&self, names: &[&str]) -> IssuedCertificate {
        let mut params = Self::params(names);
        (params.not_before, params.not_after) =
            (rcgen::date_time_ymd(2001, 1, 1), rcgen::date_time_ymd(2001, 1, 2));
        self.sign(
            params,
            "expired",
            ExtendedKeyUsagePurpose::ServerAuth,
            &KeyPair::generate().unwrap(),
        )
    }

    /// A certificate for a client, which expires at this time, in Unix seconds.
    #[allow(dead_code, reason = "not every test that includes this file looks at dates")]
    pub(crate) fn client_until(&self, name: &str, expires_s: u64) -> IssuedCertificate {
        let mut params = Self::params(&[]);
        let until = std::time::Duration::from_secs(expires_s);
        params.not_before = rcgen::date_time_ymd(2001, 1, 1);
        params.not_after = rcgen::date_time_ymd(1970, 1, 1) + until;
        self.sign(params, name, ExtendedKeyUsagePurpose::ClientAuth, &KeyPair::generate().unwrap())
    }

    /// A certificate for a client, with this serial number.
    #[allow(dead_code, reason = "not every test that includes this file revokes certificates")]
    pub(crate) fn client_numbered(&self, name: &str, serial: u64) -> IssuedCertificate {
        let mut params = Self::params(&[]);
        params.serial_number = Some(serial.into());
        self.sign(params, name, ExtendedKeyUsagePurpose::ClientAuth, &KeyPair::generate().unwrap())
    }

    /// A list of these serial numbers, in PEM, which is good until this year.
    #[allow(dead_code, reason = "not every test that includes this file revokes certificates")]
    pub(crate) fn revoked(&self, serials: &[u64], until: i32) -> String {
        self.revoked_in(serials, (2001, 1), until)
    }

    /// Such a list that was made in this year and has this number.
    #[allow(dead_code, reason = "not every test that includes this file revokes certificates")]
    pub(crate) fn revoked_in(
        &self,
        serials: &[u64],
        (made, number): (i32, u64),
        until: i32,
    ) -> String {
        let revoked = |serial: &u64| RevokedCertParams {
            serial_number: (*serial).into(),
            revocation_time: rcgen::date_time_ymd(2001, 1, 1),
            reason_code: None,
            invalidity_date: None,
        };
        let list = CertificateRevocationListParams {
            this_update: rcgen::date_time_ymd(made, 1, 1),
            next_update: rcgen::date_time_ymd(until, 1, 1),
            crl_number: number.into(),
            issuing_distribution_point: None,
            revoked_certs: serials.iter().map(revoked).collect(),
            key_identifier_method: rcgen::KeyIdMethod::Sha256,
        };
        list.signed_by(&self.issuer).unwrap().pem().unwrap()
    }

    fn issue(
        &self,
        names: &[&str],
        common: &str,
        usage: ExtendedKeyUsagePurpose,
    ) -> IssuedCertificate {
        self.sign(Self::params(names), common, usage, &KeyPair::generate().unwrap())
    }

    fn params(names: &[&str]) -> CertificateParams {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        CertificateParams::new(names).unwrap()
    }

    fn sign(
        &self,
        mut params: CertificateParams,
        common: &str,
        usage: ExtendedKeyUsagePurpose,
        key: &KeyPair,
    ) -> IssuedCertificate {
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, common);
        params.extended_key_usages = vec![usage];
        params.use_authority_key_identifier_extension = true;
        let certificate = params.signed_by(key, &self.issuer).unwrap().pem();
        IssuedCertificate { certificate, key: key.serialize_pem() }
    }
}
