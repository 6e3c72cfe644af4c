//! TLS to an upstream: one handshake. Knows nothing of HTTP but its two ALPN names.

use std::io;
use std::sync::Arc;

use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::settings::Protocol;
use crate::telemetry::SettingError;
use weir_tls::{ClientTls, ClientTlsError};

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
    pub(super) fn build(setting: &str, settings: &ClientTls) -> Result<Self, Vec<SettingError>> {
        let mut config = settings.build().map_err(|errors| {
            let of = |it: ClientTlsError| {
                SettingError::new(it.part, it.found, it.expected).under(setting)
            };
            errors.into_iter().map(of).collect::<Vec<_>>()
        })?;
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
