//! Tunnels to an upstream on streams of HTTP/2: an extended CONNECT (RFC 8441) for a request that
//! asks to become a WebSocket. To its caller the reply is the 101 that it would be over HTTP/1.1.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::header::CONTENT_LENGTH;
use http::{Method, StatusCode};
use hyper::ext::Protocol;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::runtime::Handle;
use tokio::time::timeout;

use super::http2::StreamPermit;
use super::outgoing::Outgoing;
use super::requests::RequestPermit;
use crate::wire::websocket::{ACCEPT, KEY, WEBSOCKET, accept_of};
use crate::wire::{Body, Fields, Known, Request, Response, Upgrade};

/// How long the stream of a tunnel that was given up may take to end.
const END_TIMEOUT: Duration = Duration::from_secs(5);
/// Its two directions.
const READ: u8 = 1;
const WRITTEN: u8 = 2;

/// Whether HTTP/2 has a way to ask for what a request wants to become.
pub(super) fn has_tunnel(request: &Request) -> bool {
    let wanted = request.fields.get(Known::Upgrade);
    // The method is lost: a WebSocket is asked for by a GET (RFC 6455, section 4.1).
    request.upgrade
        && request.method == Method::GET
        && wanted.is_some_and(|it| it.eq_ignore_ascii_case(WEBSOCKET.as_bytes()))
}

/// Turns the request for an upgrade into the one for a tunnel.
pub(super) fn ask(request: &mut http::Request<Outgoing>) {
    *request.method_mut() = Method::CONNECT;
    request.headers_mut().remove(KEY);
    // What follows is a tunnel's, however long.
    request.headers_mut().remove(CONTENT_LENGTH);
    request.extensions_mut().insert(Protocol::from_static(WEBSOCKET));
}

/// The reply to the upgrade that `request` asks for, once its tunnel is there. The tunnel holds its
/// stream and its request's permit as long as it lives.
pub(super) fn reply(
    request: &Request,
    head: &http::Response<hyper::body::Incoming>,
    upgraded: Upgraded,
    held: (StreamPermit, RequestPermit),
) -> Response {
    let mut fields = Fields::from(head.headers());
    fields.set(Known::Connection, "upgrade");
    fields.set(Known::Upgrade, WEBSOCKET);
    if let Some(key) = request.fields.get(KEY) {
        let accept = accept_of(key);
        fields.remove(ACCEPT);
        fields.append(ACCEPT, &accept);
    }
    let stream = TunnelStream { stream: Some((TokioIo::new(upgraded), held)), closed: 0 };
    Response {
        fields,
        upgrade: Some(Upgrade::Stream(Box::new(stream))),
        ..Response::new(StatusCode::SWITCHING_PROTOCOLS, Body::empty())
    }
}

/// The upstream's end of a tunnel.
struct TunnelStream {
    /// Present until it is dropped, with what is held until its stream has ended.
    stream: Option<(TokioIo<Upgraded>, (StreamPermit, RequestPermit))>,
    /// How many of its two directions have ended.
    closed: u8,
}

impl AsyncRead for TunnelStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Some((stream, _)) = &mut self.stream else { return Poll::Ready(Ok(())) };
        let (free, before) = (buf.remaining(), buf.filled().len());
        let read = ready!(Pin::new(stream).poll_read(cx, buf));
        if free > 0 && read.is_ok() && buf.filled().len() == before {
            self.closed |= READ;
        }
        Poll::Ready(read)
    }
}

impl AsyncWrite for TunnelStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut self.stream {
            Some((stream, _)) => Pin::new(stream).poll_write(cx, bytes),
            None => Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            Some((stream, _)) => Pin::new(stream).poll_flush(cx),
            None => Poll::Ready(Ok(())),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some((stream, _)) = &mut self.stream else { return Poll::Ready(Ok(())) };
        ready!(Pin::new(stream).poll_shutdown(cx))?;
        self.closed |= WRITTEN;
        Poll::Ready(Ok(()))
    }
}

impl Drop for TunnelStream {
    /// hyper sends what it has buffered before it ends a stream, and the upstream may take it only
    /// while its own bytes are read. A stream that has not ended counts at the upstream, so its
    /// permits are held until then, and a connection with one that does not end is not used again.
    fn drop(&mut self) {
        let Some((mut stream, held)) = self.stream.take() else { return };
        let has_ended = self.closed == READ | WRITTEN;
        let Some(runtime) = Handle::try_current().ok().filter(|_| !has_ended) else { return };
        runtime.spawn(async move {
            let (mut read, mut write) = tokio::io::split(&mut stream);
            let mut rest = [0; 4 << 10];
            let ends = async {
                let reads = async { while matches!(read.read(&mut rest).await, Ok(1..)) {} };
                tokio::join!(reads, write.shutdown())
            };
            if timeout(END_TIMEOUT, ends).await.is_err() {
                held.0.retire();
            }
            drop((stream, held));
        });
    }
}
