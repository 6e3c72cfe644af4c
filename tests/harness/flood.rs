//! An upstream for large bodies: it sends as many zeros as requested, counts the bytes that it
//! receives, and keeps neither.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;

use super::pki::IssuedCertificate;
use super::server::Server;

const PIECE: &[u8] = &[0; 64 << 10];

/// A running upstream: `GET /BYTES` sends that many, anything else is answered with the number of
/// bytes received.
pub struct Flood {
    pub address: SocketAddr,
    scheme: &'static str,
    sent: Arc<AtomicU64>,
    _server: Server,
}

/// The protocol; with TLS if it is given a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Speaks {
    Http1,
    /// HTTP/2 by prior knowledge, or by ALPN.
    Http2,
}

impl Flood {
    pub fn start(speaks: Speaks) -> Self {
        Self::with(speaks, None)
    }

    pub(crate) fn with(speaks: Speaks, identity: Option<&IssuedCertificate>) -> Self {
        let tls = identity.map(|identity| acceptor(speaks, identity));
        let scheme = if tls.is_some() { "https" } else { "http" };
        let sent = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&sent);
        let server = Server::start(super::upstream::listener(), move |stream| {
            serve(stream, speaks, tls.clone(), Arc::clone(&counter))
        });
        Self { address: server.address, scheme, sent, _server: server }
    }

    pub fn url(&self) -> String {
        format!("{}://{}", self.scheme, self.address)
    }

    /// Bytes that its connections have accepted so far, for all bodies.
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }
}

pub(crate) fn acceptor(speaks: Speaks, identity: &IssuedCertificate) -> TlsAcceptor {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions");
    let chain = CertificateDer::pem_slice_iter(identity.certificate.as_bytes())
        .map(|der| der.expect("a certificate"))
        .collect();
    let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes()).expect("a key");
    let mut config = builder
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .expect("a certificate and its key");
    config.alpn_protocols =
        vec![if speaks == Speaks::Http2 { b"h2".to_vec() } else { b"http/1.1".to_vec() }];
    TlsAcceptor::from(Arc::new(config))
}

async fn serve(stream: TcpStream, speaks: Speaks, tls: Option<TlsAcceptor>, sent: Arc<AtomicU64>) {
    match tls {
        Some(tls) => {
            if let Ok(stream) = tls.accept(stream).await {
                talk(stream, speaks, sent).await;
            }
        }
        None => talk(stream, speaks, sent).await,
    }
}

async fn talk(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    speaks: Speaks,
    sent: Arc<AtomicU64>,
) {
    let service = service_fn(move |request| reply(request, Arc::clone(&sent)));
    let stream = TokioIo::new(stream);
    // A proxy that goes away in the middle is not an error here.
    match speaks {
        Speaks::Http1 => drop(http1::Builder::new().serve_connection(stream, service).await),
        Speaks::Http2 => {
            drop(http2::Builder::new(TokioExecutor::new()).serve_connection(stream, service).await)
        }
    }
}

type Reply = http::Response<http_body_util::combinators::BoxBody<Bytes, Infallible>>;

async fn reply(
    request: http::Request<Incoming>,
    sent: Arc<AtomicU64>,
) -> Result<Reply, hyper::Error> {
    if request.method() == http::Method::GET {
        let left = request.uri().path().trim_start_matches('/').parse().unwrap_or(0);
        return Ok(http::Response::new(Zeros { left, sent }.boxed()));
    }
    let (mut body, mut count) = (request.into_body(), 0);
    while let Some(frame) = body.frame().await {
        count += frame?.data_ref().map_or(0, |data| data.len());
    }
    Ok(http::Response::new(http_body_util::Full::new(Bytes::from(count.to_string())).boxed()))
}

struct Zeros {
    left: u64,
    sent: Arc<AtomicU64>,
}

impl Body for Zeros {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let piece = self.left.min(PIECE.len() as u64);
        self.left -= piece;
        self.sent.fetch_add(piece, Ordering::Relaxed);
        Poll::Ready(
            (piece > 0).then(|| Ok(Frame::data(Bytes::from_static(&PIECE[..piece as usize])))),
        )
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}
