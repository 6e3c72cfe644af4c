//! A listener's TLS configuration: parses its certificates, selects the one to show, and verifies
//! client certificates. Knows nothing about files or connections.
//!
//! Supports TLS 1.2 and 1.3 only, and HTTP/2 and HTTP/1.1 by ALPN. Sessions are resumed by tickets,
//! whose keys are replaced with the configuration.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::mem;
use std::path::PathBuf;
use std::sync::Arc;

use rustls::server::{
    ClientHello, NoServerSessionStorage, ResolvesServerCert, VerifierBuilderError,
    WebPkiClientVerifier,
};
use rustls::sign::CertifiedKey;
use rustls::{InconsistentKeys, RootCertStore, ServerConfig};
use smallvec::SmallVec;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer;

use super::dates::{Dated, Kind};
use super::revocation::{self, LISTS, List};
use super::{Certificate, ClientCertificates, ListenConfig, Settings};
use crate::telemetry::SettingError;
use weir_tls::{Identity, Pem};

/// The protocols that ALPN offers, the preferred one first.
pub(super) const HTTP_2: &[u8] = b"h2";
pub(super) const HTTP_1: &[u8] = b"http/1.1";
/// The protocol by which an authority checks that a name is ours (RFC 8737, 6.2): the handshake is
/// all of it.
pub(super) const ACME_TLS: &[u8] = b"acme-tls/1";

/// A request of the certificate's holder that servers staple proof that it is not revoked (RFC
/// 7633): `status_request` is number 5 of TLS' extensions.
const MUST_STAPLE: &str = "1.3.6.1.5.5.7.1.24";
const STATUS_REQUEST: u8 = 5;

/// The TLS configuration of one listener.
#[derive(Debug)]
pub struct Tls {
    config: Arc<ServerConfig>,
    certificates: Vec<ServedCertificate>,
    /// What is valid for a time: certificates, and lists of those that were revoked.
    dated: Vec<Dated>,
}

/// A certificate that a listener shows to its clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServedCertificate {
    /// The host names that it is for. The first certificate of a listener may have none.
    pub names: Vec<String>,
    /// Its file.
    pub file: PathBuf,
    /// When it expires, in Unix seconds. None if it is ordered and not issued yet: clients that ask
    /// for its names can't connect.
    pub expires_s: Option<i64>,
}

/// What is shown in handshakes by which an authority checks that a name is ours (RFC 8737).
pub trait ChallengeCertificates: fmt::Debug + Send + Sync {
    /// The certificate for this name, while an authority is to see it.
    fn certificate(&self, name: &str) -> Option<Arc<CertifiedKey>>;
}

impl ListenConfig {
    /// Whether connections of trusted proxies to listener number `index` begin with a header.
    pub(super) fn is_proxied(&self, index: usize) -> bool {
        self.proxy_protocol.get(index).copied().unwrap_or_default()
    }

    /// The TLS of listener number `index`; none for a plain one.
    pub(super) fn tls_of(&self, index: usize) -> Option<Arc<ServerConfig>> {
        self.tls.get(index)?.as_ref().map(|tls| Arc::clone(&tls.config))
    }
}

impl Tls {
    /// Builds the configuration of a listener; `None` if it has no certificates. `challenges` is
    /// for certificates that are ordered.
    ///
    /// # Errors
    /// Each unusable certificate, and each key that does not match its certificate.
    pub fn build(
        settings: &Settings,
        challenges: Option<Arc<dyn ChallengeCertificates>>,
    ) -> Result<Option<Arc<Self>>, Vec<SettingError>> {
        if settings.certificates.is_empty() {
            return Ok(None);
        }
        let (mut resolver, mut errors) = CertificateResolver::of(settings, challenges);
        let builder = ServerConfig::builder_with_provider(weir_tls::provider())
            .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])
            .map_err(|error| vec![unusable(settings, &error)])?;
        let verified = revoked(settings).and_then(|lists| {
            let clients = settings.clients.as_ref();
            let verifier =
                clients.map(|clients| verifier(clients, &lists, settings)).transpose()?;
            Ok((verifier, lists))
        });
        let (builder, lists) = match verified {
            Ok((None, lists)) => (builder.with_no_client_auth(), lists),
            Ok((Some(verifier), lists)) => (builder.with_client_cert_verifier(verifier), lists),
            Err(setting_error) => {
                errors.push(setting_error);
                return Err(errors);
            }
        };
        if !errors.is_empty() {
            return Err(errors);
        }
        let (certificates, mut dated) =
            (mem::take(&mut resolver.served), mem::take(&mut resolver.dated));
        let is_challenged = resolver.challenges.is_some();
        let mut config = builder.with_cert_resolver(Arc::new(resolver));
        config.alpn_protocols = vec![HTTP_2.to_vec(), HTTP_1.to_vec()];
        if is_challenged {
            config.alpn_protocols.push(ACME_TLS.to_vec());
        }
        // Tickets are stored by the client, so workers share no session cache and it needs no
        // bound.
        match settings.clients.as_ref().and_then(|clients| clients.crl.as_ref()) {
            None => {
                config.ticketer = rustls::crypto::aws_lc_rs::Ticketer::new()
                    .map_err(|error| vec![unusable(settings, &error)])?;
            }
            // A session that is resumed is not verified again, and a list may end meanwhile.
            Some(crl) => {
                config.send_tls13_tickets = 0;
                dated.extend(dates_of(crl, &lists, settings));
            }
        }
        config.session_storage = Arc::new(NoServerSessionStorage {});
        Ok(Some(Arc::new(Self { config: Arc::new(config), certificates, dated })))
    }

    /// When the first of the certificates that there are expires, in Unix seconds.
    #[must_use]
    pub fn expires_s(&self) -> Option<i64> {
        self.certificates.iter().filter_map(|served| served.expires_s).min()
    }

    /// The certificates, in the order of the configuration.
    #[must_use]
    pub fn certificates(&self) -> &[ServedCertificate] {
        &self.certificates
    }

    /// What is to be said of certificates and lists whose time is over at `now_s`, in Unix seconds,
    /// or soon will be, or is not yet come. They are used all the same.
    pub fn warnings(&self, now_s: i64) -> impl Iterator<Item = SettingError> {
        self.dated.iter().filter_map(move |dated| dated.warning(now_s))
    }
}

fn unusable(settings: &Settings, error: &rustls::Error) -> SettingError {
    SettingError::new(
        format!("{}.certificates", settings.setting),
        format!("TLS that can't be set up ({error})"),
        "a working TLS provider",
    )
}

fn verifier(
    clients: &ClientCertificates,
    lists: &[List],
    settings: &Settings,
) -> Result<Arc<dyn rustls::server::danger::ClientCertVerifier>, SettingError> {
    let wrong = |found: String| {
        SettingError::new(
            format!("{}.client_ca", settings.setting),
            found,
            "a PEM file with certificate authorities",
        )
    };
    let mut roots = RootCertStore::empty();
    for certificate in clients.ca.certificates().map_err(wrong)? {
        roots.add(certificate).map_err(|error| {
            wrong(format!(
                "a certificate in {} that is not valid ({error})",
                clients.ca.path.display()
            ))
        })?;
    }
    let builder =
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots), weir_tls::provider());
    let builder = if clients.required { builder } else { builder.allow_unauthenticated() };
    let builder = match &clients.crl {
        // A list that is too old says nothing of what was revoked since.
        Some(_) => {
            let lists = lists.iter().map(|list| list.der.clone());
            builder.with_crls(lists).enforce_revocation_expiration()
        }
        None => builder,
    };
    builder.build().map_err(|error| match (&error, &clients.crl) {
        (VerifierBuilderError::InvalidCrl(_), Some(crl)) => SettingError::new(
            format!("{}.client_crl", settings.setting),
            format!("{} ({error})", crl.path.display()),
            LISTS,
        ),
        _ => wrong(format!("{} ({error})", clients.ca.path.display())),
    })
}

/// The lists of certificates that were revoked. None without `client_crl`.
fn revoked(settings: &Settings) -> Result<Vec<List>, SettingError> {
    let crl = settings.clients.as_ref().and_then(|clients| clients.crl.as_ref());
    let lists = crl.map(revocation::newest).transpose().map_err(|found| {
        SettingError::new(format!("{}.client_crl", settings.setting), found, LISTS)
    })?;
    Ok(lists.unwrap_or_default())
}

/// When these lists are good.
fn dates_of(crl: &Pem, lists: &[List], settings: &Settings) -> impl Iterator<Item = Dated> {
    lists.iter().filter_map(|list| {
        Some(Dated {
            setting: format!("{}.client_crl", settings.setting),
            file: crl.path.clone(),
            kind: Kind::List,
            from: list.made,
            to: list.ends?,
        })
    })
}

/// All certificates for one name, perhaps with keys of different types, in the configuration's
/// order.
type Candidates = SmallVec<[Arc<CertifiedKey>; 1]>;

/// Selects by the name that the client asks for (SNI): an exact name first, then a wildcard for one
/// label (RFC 9525, 6.3), then the first certificate.
#[derive(Debug, Default)]
struct CertificateResolver {
    exact: HashMap<String, Candidates>,
    /// Keyed by what follows `*.`.
    wildcard: HashMap<String, Candidates>,
    default: Candidates,
    /// What is shown for names that have none.
    none: Candidates,
    /// All of them, in the order of the configuration.
    served: Vec<ServedCertificate>,
    /// When they are valid.
    dated: Vec<Dated>,
    /// Names of certificates that are ordered. While none has such a name, another one would be for
    /// another host.
    pending: HashSet<String>,
    /// What authorities are shown, if certificates are ordered.
    challenges: Option<Arc<dyn ChallengeCertificates>>,
}

impl CertificateResolver {
    /// All certificates of a listener, and what is wrong with them.
    fn of(
        settings: &Settings,
        challenges: Option<Arc<dyn ChallengeCertificates>>,
    ) -> (Self, Vec<SettingError>) {
        let (mut all, mut errors) = (Self::default(), Vec::new());
        for (index, certificate) in settings.certificates.iter().enumerate() {
            let setting = format!("{}.certificates[{index}]", settings.setting);
            let identity = match certificate {
                Certificate::Files(identity) => Some(identity),
                Certificate::Ordered(ordered) => {
                    all.challenges.clone_from(&challenges);
                    all.pending.extend(ordered.names.iter().cloned());
                    if ordered.identity.is_none() {
                        all.served.push(ServedCertificate {
                            names: ordered.names.clone(),
                            file: ordered.file.clone(),
                            expires_s: None,
                        });
                    }
                    ordered.identity.as_ref()
                }
            };
            let added = identity.map(|identity| all.add(identity, index, &setting)).transpose();
            errors.extend(added.err());
        }
        (all, errors)
    }

    /// Adds what is certificate number `index` of the configuration.
    fn add(
        &mut self,
        identity: &Identity,
        index: usize,
        setting: &str,
    ) -> Result<(), SettingError> {
        let (certificate_setting, key_setting) =
            (format!("{setting}.certificate"), format!("{setting}.key"));
        let expected = "a PEM file with the server's certificate and its intermediate ones";
        let wrong = |found: String| SettingError::new(certificate_setting.clone(), found, expected);
        let path = identity.certificate.path.display();
        let chain = identity.certificate.certificates().map_err(wrong)?;
        let leaf = chain.first().map(|leaf| leaf.as_ref().to_vec()).unwrap_or_default();
        let (_, leaf) = X509Certificate::from_der(&leaf)
            .map_err(|error| wrong(format!("a broken certificate in {path} ({error})")))?;
        let key = identity.key.key().map_err(|found| {
            SettingError::new(
                key_setting.clone(),
                found,
                "a PEM file with the certificate's private key",
            )
        })?;
        let certified = CertifiedKey::from_der(chain, key, &weir_tls::provider()).map_err(
            |error| match error {
                rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
                    let found = format!(
                        "a key that does not fit the certificate ({})",
                        identity.key.path.display()
                    );
                    SettingError::new(key_setting, found, format!("the private key of {path}"))
                }
                error => SettingError::new(
                    key_setting,
                    format!("{} ({error})", identity.key.path.display()),
                    "an RSA, ECDSA or Ed25519 key",
                ),
            },
        )?;
        if must_be_stapled(&leaf) {
            return Err(wrong(format!(
                "{path}, which asks for OCSP stapling (must-staple), and Weir staples none"
            )));
        }
        // Of its dates there are only warnings: the clients of this host alone are affected, and
        // their clocks decide. Rejecting the whole configuration would take down all other hosts.
        let validity = leaf.validity();
        self.dated.push(Dated {
            setting: certificate_setting.clone(),
            file: identity.certificate.path.clone(),
            kind: Kind::Certificate,
            from: validity.not_before,
            to: validity.not_after,
        });
        let names = dns_names(&leaf);
        // Not whether there is one before it: that may be ordered, and come later.
        if names.is_empty() && index > 0 {
            return Err(SettingError::new(
                certificate_setting,
                format!("{path}, without a DNS name in its subjectAltName"),
                "a certificate for a host: only the first, which is the default, may be without a name",
            ));
        }
        self.served.push(ServedCertificate {
            names: names.clone(),
            file: identity.certificate.path.clone(),
            expires_s: Some(validity.not_after.timestamp()),
        });
        self.take(certified, names);
        Ok(())
    }

    fn take(&mut self, certified: CertifiedKey, names: Vec<String>) {
        let certified = Arc::new(certified);
        // A certificate for the same names as the first, with another type of key, is a default
        // too.
        let also_default = self.default.first().is_none_or(|first| {
            names.iter().any(|name| self.candidates(name).any(|of| Arc::ptr_eq(of, first)))
        });
        if also_default {
            self.default.push(Arc::clone(&certified));
        }
        for name in names {
            match name.strip_prefix("*.") {
                Some(parent) => {
                    self.wildcard.entry(parent.to_owned()).or_default().push(Arc::clone(&certified))
                }
                None => self.exact.entry(name).or_default().push(Arc::clone(&certified)),
            }
        }
    }

    /// All certificates for a name as a certificate spells it.
    fn candidates(&self, name: &str) -> impl Iterator<Item = &Arc<CertifiedKey>> {
        let found = match name.strip_prefix("*.") {
            Some(parent) => self.wildcard.get(parent),
            None => self.exact.get(name),
        };
        found.into_iter().flatten()
    }

    fn choose(&self, sni: Option<&str>) -> &Candidates {
        let Some(name) = sni.map(host) else { return &self.default };
        let wildcard = || name.split_once('.').and_then(|(_, parent)| self.wildcard.get(parent));
        let found = self.exact.get(&name).or_else(wildcard);
        found.unwrap_or_else(
            || if self.pending.contains(&name) { &self.none } else { &self.default },
        )
    }
}

/// The host that a client names (SNI), in lower case and without the dot that it may end with.
pub(super) fn host(sni: &str) -> String {
    sni.strip_suffix('.').unwrap_or(sni).to_ascii_lowercase()
}

impl ResolvesServerCert for CertificateResolver {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        if let Some(challenges) = &self.challenges
            && hello.alpn().is_some_and(|mut offered| offered.any(|name| name == ACME_TLS))
        {
            return challenges.certificate(&host(hello.server_name()?));
        }
        let candidates = self.choose(hello.server_name());
        let understood = candidates
            .iter()
            .find(|certified| certified.key.choose_scheme(hello.signature_schemes()).is_some());
        understood.or(candidates.first()).cloned()
    }
}

/// Whether clients that know of it refuse the certificate without a stapled proof (RFC 7633).
fn must_be_stapled(leaf: &X509Certificate<'_>) -> bool {
    let feature =
        leaf.extensions().iter().find(|extension| extension.oid.to_id_string() == MUST_STAPLE);
    // A sequence of small integers: each is its type, its length and its value.
    let status_request = |number: &[u8]| number == [2, 1, STATUS_REQUEST];
    feature.is_some_and(|feature| feature.value.windows(3).any(status_request))
}

/// The DNS names, in lower case. The common name is ignored, as all current clients do.
fn dns_names(leaf: &X509Certificate<'_>) -> Vec<String> {
    let Ok(Some(names)) = leaf.subject_alternative_name() else { return Vec::new() };
    let dns = |name: &GeneralName<'_>| match name {
        GeneralName::DNSName(name) => Some(name.trim_end_matches('.').to_ascii_lowercase()),
        _ => None,
    };
    names.value.general_names.iter().filter_map(dns).collect()
}
