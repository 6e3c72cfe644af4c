//! Clients that speak TLS, and clients that speak HTTP/2. Knows no test.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2::{self, SendRequest};
use hyper::ext::Protocol;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::TIMEOUT;
use super::client::{Failure, Reply};

/// The host in all requests, and the name in a server's certificate.
pub const HOST: &str = "api.example";

/// Trusts `ca` (PEM) and offers `alpn`.
pub fn config(ca: &str, alpn: &[&[u8]]) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(ca.as_bytes()) {
        roots.add(certificate.expect("a certificate")).expect("an authority");
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions");
    let mut config = builder.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
    Arc::new(config)
}

/// Does the TLS handshake, with [`HOST`] as server name.
pub async fn connect(
    address: SocketAddr,
    config: &Arc<ClientConfig>,
) -> Result<TlsStream<TcpStream>, Failure> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let name = ServerName::try_from(HOST).expect("a name");
    Ok(tokio::time::timeout(TIMEOUT, TlsConnector::from(Arc::clone(config)).connect(name, stream))
        .await??)
}

/// The certificate that a server presents now.
pub async fn shown(address: SocketAddr, ca: &str) -> Result<Vec<u8>, Failure> {
    let stream = connect(address, &config(ca, &[])).await?;
    Ok(stream
        .get_ref()
        .1
        .peer_certificates()
        .and_then(|chain| chain.first())
        .map(|leaf| leaf.to_vec())
        .unwrap_or_default())
}

#[derive(Clone)]
struct Spawn;

impl<F: Future<Output: Send> + Send + 'static> hyper::rt::Executor<F> for Spawn {
    fn execute(&self, work: F) {
        tokio::spawn(work);
    }
}

type Outgoing = UnsyncBoxBody<Bytes, std::convert::Infallible>;

/// A body that begins and then stalls.
struct Stalled(Option<Bytes>);

impl http_body::Body for Stalled {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, Self::Error>>> {
        self.0
            .take()
            .map_or(Poll::Pending, |piece| Poll::Ready(Some(Ok(http_body::Frame::data(piece)))))
    }
}

/// An HTTP/2 connection; clones share it.
#[derive(Clone)]
pub struct Http2 {
    sender: SendRequest<Outgoing>,
    scheme: &'static str,
}

impl Http2 {
    /// Connects by prior knowledge.
    pub async fn plain(address: SocketAddr) -> Result<Self, Failure> {
        Self::on(TcpStream::connect(address).await?, "http").await
    }

    /// Connects with ALPN.
    pub async fn secured(address: SocketAddr, ca: &str) -> Result<Self, Failure> {
        Self::on(connect(address, &config(ca, &[b"h2"])).await?, "https").await
    }

    async fn on<S>(stream: S, scheme: &'static str) -> Result<Self, Failure>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (sender, connection) = http2::handshake(Spawn, TokioIo::new(stream)).await?;
        // When it ends, the next request fails.
        tokio::spawn(connection);
        Ok(Self { sender, scheme })
    }

    pub async fn get(&mut self, target: &str, headers: &[(&str, &str)]) -> Result<Reply, Failure> {
        self.send("GET", target, headers, Bytes::new()).await
    }

    pub async fn send(
        &mut self,
        method: &str,
        target: &str,
        headers: &[(&str, &str)],
        body: Bytes,
    ) -> Result<Reply, Failure> {
        self.exchange(method, target, headers, Full::new(body).boxed_unsync()).await
    }

    /// A POST whose body stalls after its first piece.
    pub async fn send_stalled(&mut self, target: &str) -> Result<Reply, Failure> {
        self.exchange("POST", target, &[], Stalled(Some("begun".into())).boxed_unsync()).await
    }

    /// Asks for a tunnel (RFC 8441), once the server has said that it knows what that is.
    pub async fn tunnel(
        &mut self,
        target: &str,
        protocol: &'static str,
        headers: &[(&str, &str)],
    ) -> Result<(Reply, Option<TokioIo<Upgraded>>), Failure> {
        let mut request = http::Request::builder()
            .method("CONNECT")
            .uri(format!("{}://{HOST}{target}", self.scheme))
            .extension(Protocol::from_static(protocol));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(Bytes::new()).boxed_unsync())?;
        let exchange = async {
            let mut reply = self.sender.send_request(request).await?;
            let (status, headers) = (reply.status().as_u16(), reply.headers().clone());
            if reply.status().is_success() {
                let stream = TokioIo::new(hyper::upgrade::on(&mut reply).await?);
                return Ok((Reply { status, headers, body: Bytes::new() }, Some(stream)));
            }
            let body = reply.into_body().collect().await?.to_bytes();
            Ok::<_, Failure>((Reply { status, headers, body }, None))
        };
        tokio::time::timeout(TIMEOUT, exchange).await?
    }

    async fn exchange(
        &mut self,
        method: &str,
        target: &str,
        headers: &[(&str, &str)],
        body: Outgoing,
    ) -> Result<Reply, Failure> {
        let mut request = http::Request::builder()
            .method(method)
            .uri(format!("{}://{HOST}{target}", self.scheme));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(body)?;
        let exchange = async {
            let (head, body) = self.sender.send_request(request).await?.into_parts();
            let body = body.collect().await?.to_bytes();
            Ok::<_, Failure>(Reply { status: head.status.as_u16(), headers: head.headers, body })
        };
        tokio::time::timeout(TIMEOUT, exchange).await?
    }
}
