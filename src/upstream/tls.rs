//! TLS to an upstream: trusted authorities, our identity, one handshake. Knows nothing of HTTP but
//! its two ALPN names.

use std::io;
use std::sync::{Arc, OnceLock};

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::settings::{Protocol, TlsSettings};
use crate::telemetry::Mistake;
use crate::wire::{Pem, provider};

/// The protocols' ALPN names.
const H1: &[u8] = b"http/1.1";
const H2: &[u8] = b"h2";

/// The TLS configuration of one upstream. Its sessions are resumed by whichever worker connects
/// next.
#[derive(Debug)]
pub(super) struct Tls {
    /// One per protocol: upgrades need HTTP/1.1 whatever the upstream's protocol is.
    h1: Arc<ClientConfig>,
    h2: Arc<ClientConfig>,
}

impl Tls {
    /// Reads certificates and keys; `setting` is `upstreams.NAME.tls`.
    pub(super) fn build(setting: &str, settings: &TlsSettings) -> Result<Self, Vec<Mistake>> {
        let mut mistakes = Vec::new();
        let roots = match &settings.ca {
            Some(ca) => read_roots(ca).map_err(|found| {
                Mistake::new(format!("{setting}.ca"), found, "a PEM file of certificates")
            }),
            None => system_roots().map_err(|found| {
                Mistake::new(
                    format!("{setting}.ca"),
                    found,
                    "the system's certificate authorities, or a PEM file of your own",
                )
            }),
        };
        let roots = roots.map_err(|mistake| mistakes.push(mistake)).ok();
        let identity = settings.identity.as_ref().map(|identity| {
            let certificate = identity.certificate.certificates().map_err(|found| {
                mistakes.push(Mistake::new(
                    format!("{setting}.certificate"),
                    found,
                    "a PEM file of a certificate and what leads to its root",
                ));
            });
            let key = identity.key.key().map_err(|found| {
                mistakes.push(Mistake::new(
                    format!("{setting}.key"),
                    found,
                    "a PEM file of a private key",
                ));
            });
            (certificate.unwrap_or_default(), key.ok())
        });
        let Some(roots) = roots.filter(|_| mistakes.is_empty()) else { return Err(mistakes) };
        let unusable = |place: &str, error: rustls::Error, expected: &str| {
            vec![Mistake::new(format!("{setting}{place}"), error.to_string(), expected)]
        };
        let config = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(|error| unusable("", error, "a provider of TLS 1.2 and 1.3"))?
            .with_root_certificates(roots);
        let mut config = match identity {
            Some((certificate, Some(key))) => {
                config.with_client_auth_cert(certificate, key).map_err(|error| {
                    unusable(".key", error, "the key that belongs to the certificate")
                })?
            }
            _ => config.with_no_client_auth(),
        };
        config.alpn_protocols = vec![H1.to_vec()];
        let mut h2 = config.clone();
        h2.alpn_protocols = vec![H2.to_vec()];
        Ok(Self { h1: Arc::new(config), h2: Arc::new(h2) })
    }

    /// Performs one handshake. The caller bounds the time.
    ///
    /// # Errors
    /// The certificate was not accepted, or the protocol was not agreed.
    pub(super) async fn handshake<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        name: ServerName<'static>,
        stream: S,
        protocol: Protocol,
    ) -> io::Result<TlsStream<S>> {
        let config = match protocol {
            Protocol::H1 => &self.h1,
            Protocol::H2 => &self.h2,
        };
        let stream = TlsConnector::from(Arc::clone(config)).connect(name, stream).await?;
        // A server without ALPN speaks HTTP/1.1. It can't be assumed to speak HTTP/2.
        match stream.get_ref().1.alpn_protocol() {
            None if protocol == Protocol::H2 => {
                Err(io::Error::other("the endpoint did not agree to HTTP/2 (ALPN h2)"))
            }
            _ => Ok(stream),
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

/// The system's authorities, read once per process, since reading takes milliseconds.
fn system_roots() -> Result<Arc<RootCertStore>, String> {
    static ROOTS: OnceLock<Result<Arc<RootCertStore>, String>> = OnceLock::new();
    let read = || {
        let found = rustls_native_certs::load_native_certs();
        let mut roots = RootCertStore::empty();
        // A system's store holds a few certificates too old to be parsed. They are not trusted.
        roots.add_parsable_certificates(found.certs);
        match found.errors.first() {
            _ if !roots.is_empty() => Ok(Arc::new(roots)),
            Some(error) => Err(format!("no certificate authority in the system ({error})")),
            None => Err("no certificate authority in the system".to_owned()),
        }
    };
    ROOTS.get_or_init(read).clone()
}
