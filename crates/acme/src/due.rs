//! When a certificate has to be renewed. Pure, but for the file that it reads.

use std::path::Path;

use instant_acme::{CertificateIdentifier, RenewalInfo};
use rustls::pki_types::CertificateDer;
use rustls::sign::CertifiedKey;
use weir_tls::Pem;
use x509_parser::asn1_rs::{Oid, oid};
use x509_parser::extensions::GeneralName;

/// A certificate with less life than this, in seconds, is renewed when half of it is left.
const SHORT_LIFE_S: i64 = 10 * 86_400;
/// id-pe-tlsfeature (RFC 7633).
const TLS_FEATURE: Oid<'static> = oid!(1.3.6.1.5.5.7.1.24);

/// What is known of the certificate in a file.
#[derive(Debug)]
pub(crate) struct Issued {
    /// The names that it is for.
    pub(crate) names: Vec<String>,
    /// When it expires, in Unix seconds.
    pub(crate) expires_s: i64,
    /// How long it is valid, in seconds.
    pub(crate) life_s: i64,
    /// When it is to be renewed unless the authority says otherwise, in Unix seconds.
    pub(crate) renew_s: i64,
    /// What the authority knows it by, if it says so.
    pub(crate) identifier: Option<CertificateIdentifier<'static>>,
}

/// When the authority would like a certificate to be renewed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Suggestion {
    /// A moment in its window, by chance, in Unix seconds.
    pub(crate) renew_s: i64,
}

impl Issued {
    /// The certificate in a file. `None` if there is none that can be used.
    pub(crate) fn read(file: &Path) -> Option<Self> {
        let bytes = std::fs::read(file).ok()?;
        let leaf = usable(Pem { path: file.to_owned(), bytes: bytes.into() }).ok()?;
        let identifier = CertificateIdentifier::try_from(&leaf).ok().map(|id| id.into_owned());
        let (_, leaf) = x509_parser::parse_x509_certificate(&leaf).ok()?;
        let (from, to) = (leaf.validity().not_before, leaf.validity().not_after);
        let (from_s, expires_s) = (from.timestamp(), to.timestamp());
        let life_s = expires_s.saturating_sub(from_s).max(0);
        let names = match leaf.subject_alternative_name() {
            Ok(Some(names)) => names.value.general_names.iter().filter_map(dns_name).collect(),
            _ => Vec::new(),
        };
        Some(Self { names, expires_s, life_s, renew_s: renew_s(from_s, expires_s), identifier })
    }

    /// The latest time to renew it, in Unix seconds, whatever is suggested.
    pub(crate) fn latest_s(&self) -> i64 {
        self.expires_s.saturating_sub(self.life_s / 10)
    }
}

/// The certificate of a file, if a server can show it: with its key, and to clients that ask for no
/// stapled proof that it is not revoked (RFC 7633).
pub(crate) fn usable(pem: Pem) -> Result<CertificateDer<'static>, String> {
    let (chain, key) = (pem.certificates()?, pem.key()?);
    let leaf = chain.first().cloned().ok_or("no certificate")?;
    let (_, parsed) = x509_parser::parse_x509_certificate(&leaf).map_err(|why| why.to_string())?;
    if parsed.extensions().iter().any(|extension| extension.oid == TLS_FEATURE) {
        return Err("it asks for OCSP stapling (must-staple)".to_owned());
    }
    CertifiedKey::from_der(chain, key, &weir_tls::provider()).map_err(|error| error.to_string())?;
    Ok(leaf)
}

fn dns_name(name: &GeneralName<'_>) -> Option<String> {
    match name {
        GeneralName::DNSName(name) => Some(name.to_ascii_lowercase()),
        _ => None,
    }
}

/// When a third of its life is left; with a short life, half of it.
fn renew_s(from_s: i64, expires_s: i64) -> i64 {
    let life_s = expires_s.saturating_sub(from_s).max(0);
    let part = if life_s < SHORT_LIFE_S { 2 } else { 3 };
    expires_s.saturating_sub(life_s / part)
}

impl Suggestion {
    /// A moment in the window, at once if that is over (RFC 9773, 4.2). `part` is a number from 0
    /// to 1 by chance.
    pub(crate) fn of(info: &RenewalInfo, part: f64) -> Self {
        let window = &info.suggested_window;
        let (start_s, end_s) = (window.start.unix_timestamp(), window.end.unix_timestamp());
        let within_s = (end_s.saturating_sub(start_s).max(0) as f64 * part) as i64;
        Self { renew_s: start_s.saturating_add(within_s) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_third_of_a_life_is_left_and_half_of_a_short_one() {
        const DAY: i64 = 86_400;
        assert_eq!(renew_s(0, 90 * DAY), 60 * DAY);
        assert_eq!(renew_s(0, 6 * DAY), 3 * DAY);
        assert_eq!(renew_s(5, 5), 5);
        assert_eq!(renew_s(9, 5), 5);
    }

    #[test]
    fn the_moment_is_in_the_window_that_the_authority_suggests() {
        let info = |start: &str, end: &str| {
            let window = format!(r#"{{"suggestedWindow":{{"start":"{start}","end":"{end}"}}}}"#);
            serde_json::from_str::<RenewalInfo>(&window).unwrap()
        };
        let hour = info("2026-01-02T00:00:00Z", "2026-01-02T01:00:00Z");
        let start_s = 1_767_312_000;
        for (part, within_s) in [(0.0, 0), (0.5, 1_800), (1.0, 3_600)] {
            assert_eq!(Suggestion::of(&hour, part).renew_s, start_s + within_s);
        }
        let turned = info("2026-01-02T00:00:00Z", "2026-01-01T00:00:00Z");
        assert_eq!(Suggestion::of(&turned, 1.0).renew_s, start_s);
    }

    #[test]
    fn a_file_without_a_certificate_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.pem");
        assert!(Issued::read(&file).is_none());
        std::fs::write(&file, "-----BEGIN CERTIFICATE-----\n").unwrap();
        assert!(Issued::read(&file).is_none());
        let made = rcgen::generate_simple_self_signed(vec!["a.example".to_owned()]).unwrap();
        std::fs::write(&file, made.cert.pem()).unwrap();
        assert!(Issued::read(&file).is_none(), "without its key");
        let other = rcgen::KeyPair::generate().unwrap().serialize_pem();
        std::fs::write(&file, other + &made.cert.pem()).unwrap();
        assert!(Issued::read(&file).is_none(), "with another key");
        std::fs::write(&file, made.signing_key.serialize_pem() + &made.cert.pem()).unwrap();
        let issued = Issued::read(&file).unwrap();
        assert!(issued.latest_s() > issued.renew_s && issued.latest_s() < issued.expires_s);
    }
}
