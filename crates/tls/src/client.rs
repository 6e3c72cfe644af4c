//! TLS to a server: the authorities that we trust, and our own identity. Knows nothing of what is
//! spoken on the connection.

use std::sync::{Arc, OnceLock};

use rustls::client::WebPkiServerVerifier;
use rustls::{ClientConfig, RootCertStore};

use super::material::{Identity, Pem, provider};
use super::pins::{Pin, PinVerifier};

/// How a server is verified, and how we identify ourselves to it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientTls {
    /// Certificate authorities to trust instead of the system's.
    pub ca: Option<Pem>,
    /// Our client certificate, for servers that ask for one.
    pub identity: Option<Identity>,
    /// The name for SNI and verification. `None`: the server's own host.
    pub server_name: Option<String>,
    /// The public keys that the server may have. Without [`ca`](Self::ca), its authority and name
    /// are not verified then. Empty: any.
    pub pins: Vec<Pin>,
}

/// An error in [`ClientTls`].
#[derive(Debug, PartialEq, Eq)]
pub struct ClientTlsError {
    /// What is wrong: `ca`, `certificate`, `key` or `server_name`; empty if it is the whole
    /// section.
    pub part: &'static str,
    /// What was found.
    pub found: String,
    /// What was expected.
    pub expected: &'static str,
}

impl ClientTls {
    /// Whether no setting was given.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Reads certificates and keys. Names no application protocol.
    ///
    /// # Errors
    /// All errors.
    pub fn build(&self) -> Result<ClientConfig, Vec<ClientTlsError>> {
        let mut errors = Vec::new();
        let mut wrong = |part, found, expected| {
            errors.push(ClientTlsError { part, found, expected });
        };
        let roots = match &self.ca {
            // The key alone is trusted.
            None if !self.pins.is_empty() => Ok(Arc::new(RootCertStore::empty())),
            Some(ca) => {
                read_roots(ca).map_err(|found| wrong("ca", found, "a PEM file with certificates"))
            }
            None => system_roots().map_err(|found| {
                let expected = "the system's certificate authorities, or a PEM file of your own";
                wrong("ca", found, expected);
            }),
        };
        let identity = self.identity.as_ref().map(|identity| {
            let certificate = identity.certificate.certificates().map_err(|found| {
                let expected = "a PEM file with a certificate and the chain to its root";
                wrong("certificate", found, expected);
            });
            let key = identity.key.key();
            let key = key.map_err(|found| wrong("key", found, "a PEM file with a private key"));
            (certificate.unwrap_or_default(), key.ok())
        });
        let Some(roots) = roots.ok().filter(|_| errors.is_empty()) else { return Err(errors) };
        let unusable = |part, error: rustls::Error, expected| {
            vec![ClientTlsError { part, found: error.to_string(), expected }]
        };
        let config = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(|error| unusable("", error, "a provider of TLS 1.2 and 1.3"))?;
        let config = if self.pins.is_empty() {
            config.with_root_certificates(roots)
        } else {
            let chain = self.ca.as_ref().map(|_| {
                WebPkiServerVerifier::builder_with_provider(roots, provider()).build().map_err(
                    |error| {
                        let expected = "a PEM file with certificates";
                        vec![ClientTlsError { part: "ca", found: error.to_string(), expected }]
                    },
                )
            });
            let verifier = PinVerifier::new(self.pins.clone(), chain.transpose()?, provider());
            config.dangerous().with_custom_certificate_verifier(Arc::new(verifier))
        };
        match identity {
            Some((certificate, Some(key))) => config
                .with_client_auth_cert(certificate, key)
                .map_err(|error| unusable("key", error, "the key that belongs to the certificate")),
            _ => Ok(config.with_no_client_auth()),
        }
    }
}

fn read_roots(ca: &Pem) -> Result<Arc<RootCertStore>, String> {
    let mut roots = RootCertStore::empty();
    for certificate in ca.certificates()? {
        roots.add(certificate).map_err(|error| {
            format!("a certificate in {} that can't be read ({error})", ca.path.display())
        })?;
    }
    Ok(Arc::new(roots))
}

/// The system's authorities, read once per process, since reading takes milliseconds. Where there
/// are none they are looked for again the next time.
fn system_roots() -> Result<Arc<RootCertStore>, String> {
    static ROOTS: OnceLock<Arc<RootCertStore>> = OnceLock::new();
    once(&ROOTS, || {
        let found = rustls_native_certs::load_native_certs();
        let mut roots = RootCertStore::empty();
        // A system's store holds a few certificates too old to be parsed. They are not trusted.
        roots.add_parsable_certificates(found.certs);
        match found.errors.first() {
            _ if !roots.is_empty() => Ok(Arc::new(roots)),
            Some(error) => Err(format!("no certificate authority in the system ({error})")),
            None => Err("no certificate authority in the system".to_owned()),
        }
    })
}

/// What `known` holds, read if it is empty. An error is not kept.
fn once<T: Clone>(
    known: &OnceLock<T>,
    read: impl FnOnce() -> Result<T, String>,
) -> Result<T, String> {
    match known.get() {
        Some(known) => Ok(known.clone()),
        None => read().map(|read| known.get_or_init(|| read).clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_not_be_read_is_read_again_and_what_could_is_kept() {
        let known = OnceLock::new();
        assert_eq!(once(&known, || Err::<i32, _>("none".into())), Err("none".into()));
        assert_eq!(once(&known, || Ok(1)), Ok(1));
        assert_eq!(once(&known, || Ok(2)), Ok(1));
    }
}
