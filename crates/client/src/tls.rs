//! TLS to Weir: the authorities that are trusted, and a handshake within the deadline.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

#[derive(Clone)]
pub(crate) struct Tls {
    connector: TlsConnector,
    /// A handshake that nobody waits for any more ends, too.
    deadline: Duration,
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Tls").field("deadline", &self.deadline).finish_non_exhaustive()
    }
}

impl Tls {
    /// Speaks HTTP/1.1, whatever the settings, which may be others' as well, negotiate.
    pub(crate) fn new(mut config: Arc<ClientConfig>, deadline: Duration) -> Self {
        if !config.alpn_protocols.is_empty() {
            Arc::make_mut(&mut config).alpn_protocols = vec![b"http/1.1".to_vec()];
        }
        Self { connector: config.into(), deadline }
    }

    /// A handshake with the server that was connected to by this name or address.
    pub(crate) async fn handshake(
        &self,
        host: &str,
        tcp: TcpStream,
    ) -> io::Result<TlsStream<TcpStream>> {
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let name = ServerName::try_from(host).map_err(io::Error::other)?;
        timeout(self.deadline, self.connector.connect(name, tcp)).await?
    }
}

/// Trusts the system's authorities, and has no certificate of its own. The error says why there
/// are none.
pub(crate) fn of_the_system() -> Result<Arc<ClientConfig>, String> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    // A system's store holds a few certificates too old to be parsed. They are not trusted.
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        let why = found.errors.first().map(|error| format!(" ({error})")).unwrap_or_default();
        return Err(format!("no certificate authority in the system{why}"));
    }
    let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    Ok(Arc::new(config.with_root_certificates(roots).with_no_client_auth()))
}
