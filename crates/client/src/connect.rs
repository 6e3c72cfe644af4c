//! Connections that know whether a call failed because they had been closed while they were idle.

use std::error::Error;
use std::fmt::Debug;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::Uri;
use hyper::http::Extensions;
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tower_service::Service;

#[cfg(feature = "tls")]
use crate::tls::Tls;

/// What has gone over a connection.
#[derive(Debug, Default)]
struct Traffic {
    /// A call before this one was answered.
    reused: AtomicBool,
    /// A byte has come since the last was sent.
    answering: AtomicBool,
}

/// Whether a reused connection failed before it brought a byte of an answer.
pub(crate) fn was_stale(error: &hyper_util::client::legacy::Error) -> bool {
    let mut extras = Extensions::new();
    error.connect_info().inspect(|info| info.get_extras(&mut extras));
    extras
        .get::<Arc<Traffic>>()
        .is_some_and(|traffic| traffic.reused.load(Relaxed) && !traffic.answering.load(Relaxed))
}

#[derive(Debug, Clone)]
pub(crate) struct Connector {
    tcp: HttpConnector,
    /// For addresses with `https`.
    #[cfg(feature = "tls")]
    tls: Option<Tls>,
}

impl Connector {
    /// For calls that end by this deadline. If a name has several addresses, one that is dead
    /// leaves some of the time for the others.
    pub(crate) fn new(deadline: Duration, #[cfg(feature = "tls")] tls: Option<Tls>) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_happy_eyeballs_timeout(Some(deadline / 5));
        // Shared by the addresses of a family.
        connector.set_connect_timeout(Some(deadline / 5 * 4));
        connector.enforce_http(false);
        Self {
            tcp: connector,
            #[cfg(feature = "tls")]
            tls,
        }
    }
}

impl Service<Uri> for Connector {
    type Response = TokioIo<Stream>;
    type Error = Box<dyn Error + Send + Sync>;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.tcp.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, to: Uri) -> Self::Future {
        #[cfg(feature = "tls")]
        let tls = self.tls.clone().zip(to.host().map(str::to_owned));
        let connecting = self.tcp.call(to);
        Box::pin(async {
            let tcp = connecting.await?.into_inner();
            #[cfg(feature = "tls")]
            let stream: Box<dyn Bytes> = match tls {
                Some((tls, host)) => Box::new(tls.handshake(&host, tcp).await?),
                None => Box::new(tcp),
            };
            #[cfg(not(feature = "tls"))]
            let stream: Box<dyn Bytes> = Box::new(tcp);
            Ok(TokioIo::new(Stream { stream, traffic: Arc::default() }))
        })
    }
}

/// The bytes of a connection, as they are before TLS.
trait Bytes: AsyncRead + AsyncWrite + Debug + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Debug + Send + Unpin> Bytes for T {}

#[derive(Debug)]
pub(crate) struct Stream {
    stream: Box<dyn Bytes>,
    traffic: Arc<Traffic>,
}

impl Stream {
    fn sending(&mut self) -> Pin<&mut dyn Bytes> {
        if self.traffic.answering.swap(false, Relaxed) {
            self.traffic.reused.store(true, Relaxed);
        }
        Pin::new(&mut *self.stream)
    }
}

impl Connection for Stream {
    fn connected(&self) -> Connected {
        Connected::new().extra(Arc::clone(&self.traffic))
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buf);
        if buf.filled().len() > before {
            self.traffic.answering.store(true, Relaxed);
        }
        polled
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.sending().poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.sending().poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
