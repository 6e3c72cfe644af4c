//! TLS material that both ends use: certificates and keys from PEM, and the cryptography provider.
//! Knows nothing about files or connections: it is given the bytes, and their path for error
//! messages.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};

/// Maximum size of a PEM file, in bytes. A bundle of all public roots has a quarter of a megabyte.
pub const PEM_BYTES_MAX: u64 = 4 << 20;

/// The contents of a PEM file. Two are equal if path and bytes are equal.
#[derive(Clone, PartialEq, Eq)]
pub struct Pem {
    /// The path it was read from, for error messages.
    pub path: PathBuf,
    /// The bytes. `Debug` does not show them, since they may be a private key.
    pub bytes: Arc<[u8]>,
}

/// A certificate chain and its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The certificate itself, followed by the intermediate ones.
    pub certificate: Pem,
    /// Its private key: PKCS#8, PKCS#1 or SEC1.
    pub key: Pem,
}

impl Pem {
    /// All certificates of the file, in order.
    ///
    /// # Errors
    /// A description for a [`SettingError`](str): no certificate, or broken PEM.
    pub fn certificates(&self) -> Result<Vec<CertificateDer<'static>>, String> {
        let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&self.bytes).collect();
        match read {
            Ok(found) if found.is_empty() => {
                Err(format!("no certificate in {}", self.path.display()))
            }
            Ok(found) => Ok(found),
            Err(error) => Err(self.broken(&error)),
        }
    }

    /// All certificate revocation lists of the file (RFC 5280, 5).
    ///
    /// # Errors
    /// A description as above: no list, or broken PEM.
    pub fn revocation_lists(&self) -> Result<Vec<CertificateRevocationListDer<'static>>, String> {
        let read: Result<Vec<_>, _> =
            CertificateRevocationListDer::pem_slice_iter(&self.bytes).collect();
        match read {
            Ok(found) if found.is_empty() => {
                Err(format!("no revocation list in {}", self.path.display()))
            }
            Ok(found) => Ok(found),
            Err(error) => Err(self.broken(&error)),
        }
    }

    /// The first private key of the file.
    ///
    /// # Errors
    /// A description as above: no key, or broken PEM.
    pub fn key(&self) -> Result<PrivateKeyDer<'static>, String> {
        PrivateKeyDer::from_pem_slice(&self.bytes).map_err(|error| match error {
            pem::Error::NoItemsFound => format!("no private key in {}", self.path.display()),
            error => self.broken(&error),
        })
    }

    /// What is wrong with its form. The lines of a section are not shown: they may be of a key.
    fn broken(&self, error: &pem::Error) -> String {
        let wrong = match error {
            pem::Error::MissingSectionEnd { end_marker } => {
                let label = String::from_utf8_lossy(end_marker);
                format!("the end of the section {label} is missing")
            }
            pem::Error::IllegalSectionStart { .. } => "a section begins wrongly".to_owned(),
            error => error.to_string(),
        };
        format!("broken PEM in {} ({wrong})", self.path.display())
    }
}

impl fmt::Debug for Pem {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Pem").field("path", &self.path).field("bytes", &self.bytes.len()).finish()
    }
}

/// The cryptography provider for every TLS configuration of the process. It is passed explicitly
/// and not installed as the process default, which is up to the embedding program.
#[must_use]
pub fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: OnceLock<Arc<CryptoProvider>> = OnceLock::new();
    Arc::clone(PROVIDER.get_or_init(|| Arc::new(rustls::crypto::aws_lc_rs::default_provider())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pki::Pki;

    fn pem(text: &str) -> Pem {
        Pem { path: "api.pem".into(), bytes: text.as_bytes().into() }
    }

    #[test]
    fn chains_and_keys_are_read_and_what_is_none_is_reported() {
        let issued = Pki::new().server(&["api.example"]);
        assert_eq!(pem(&issued.certificate).certificates().unwrap().len(), 1);
        assert_eq!(pem(&format!("{0}{0}", issued.certificate)).certificates().unwrap().len(), 2);
        assert!(pem(&issued.key).key().is_ok());
        assert_eq!(pem(&issued.key).certificates().unwrap_err(), "no certificate in api.pem");
        assert_eq!(pem(&issued.certificate).key().unwrap_err(), "no private key in api.pem");
        let broken = issued.certificate.replace("-----END", "----END");
        let missing = "broken PEM in api.pem (the end of the section CERTIFICATE is missing)";
        assert_eq!(pem(&broken).certificates().unwrap_err(), missing);
    }

    #[test]
    fn a_key_is_not_shown() {
        let issued = Pki::new().server(&["api.example"]);
        assert!(!format!("{:?}", pem(&issued.key)).contains("PRIVATE"));
    }
}
