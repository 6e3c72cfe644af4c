//! Tunnels on streams of HTTP/2: an extended CONNECT (RFC 8441), as browsers ask for a WebSocket on
//! a connection that they have. To the handler it is the upgrade that it would be over HTTP/1.1, so
//! a policy sees the same request either way.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use h2::ext::Protocol;
use h2::{Reason, RecvStream, SendStream};
use http::{Method, StatusCode};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::super::Handler;
use super::super::context::ConnectionContext;
use super::STREAM_WINDOW_BYTES;
use super::shared::Shared;
use super::unsent::{Piece, Pieces};
use crate::wire::websocket::{ACCEPT, KEY, WEBSOCKET, accept_of, new_key};
use crate::wire::{Body, Charge, Known, Request, Response, Upgrade, counted};

/// Maximum bytes that one write takes.
const WRITE_BYTES_MAX: usize = 64 << 10;

/// What the client asks for in place of HTTP, if it does.
pub(super) fn protocol(head: &http::request::Parts) -> Option<Protocol> {
    if head.method != Method::CONNECT {
        return None;
    }
    head.extensions.get::<Protocol>().cloned()
}

/// Has the handler answer a request for a tunnel. The reply has an upgrade if it agrees.
pub(super) async fn ask<H: Handler>(
    mut head: http::request::Parts,
    protocol: Protocol,
    context: &ConnectionContext<H>,
) -> Response {
    head.method = Method::GET;
    let mut asked = Request::from_parts(&head, Body::empty());
    drop(head);
    asked.upgrade = true;
    asked.fields.set(Known::Connection, "upgrade");
    asked.fields.set(Known::Upgrade, protocol.as_str());
    asked.fields.remove(KEY);
    let key = protocol.as_str().eq_ignore_ascii_case(WEBSOCKET).then(|| {
        let key = new_key();
        asked.fields.append(KEY, &key);
        key
    });
    answer(context.handler.call(asked, &context.peer).await, key.as_deref())
}

/// The reply to a CONNECT, whose success alone means that there is a tunnel.
fn answer(mut reply: Response, key: Option<&str>) -> Response {
    let accepted = |reply: &Response| {
        key.is_none_or(|key| reply.fields.get(ACCEPT) == Some(accept_of(key.as_bytes()).as_bytes()))
    };
    match (reply.status, &reply.upgrade) {
        (StatusCode::SWITCHING_PROTOCOLS, Some(Upgrade::Callback(_))) if accepted(&reply) => {
            reply.status = StatusCode::OK;
            reply.fields.remove(Known::Connection);
            reply.fields.remove(Known::Upgrade);
            reply.fields.remove(ACCEPT);
            reply.body = Body::empty();
            reply
        }
        // It claims to switch, and does not know the protocol.
        (StatusCode::SWITCHING_PROTOCOLS, _) => {
            Response::new(StatusCode::BAD_GATEWAY, Body::empty())
        }
        // An answer to the request as if it had asked for no other protocol.
        (status, _) if status.is_success() => {
            Response::new(StatusCode::NOT_IMPLEMENTED, Body::empty())
        }
        _ => {
            reply.upgrade = None;
            reply
        }
    }
}

/// Begins a tunnel on a stream whose reply's head was sent.
pub(super) fn begin(
    upgrade: Upgrade,
    send: SendStream<Piece>,
    receive: RecvStream,
    shared: &Arc<Shared>,
) {
    let Upgrade::Callback(begin) = upgrade else { return };
    shared.state.tunnel_opened();
    begin(Box::new(TunnelStream {
        send: Some(send),
        pieces: Arc::default(),
        incoming: Incoming::new(receive),
        shared: Arc::clone(shared),
    }));
}

/// The client's end of a tunnel. As long as it lives, the connection has a stream and its permit.
struct TunnelStream {
    /// Present until it is dropped.
    send: Option<SendStream<Piece>>,
    pieces: Arc<Pieces>,
    incoming: Incoming,
    shared: Arc<Shared>,
}

impl Drop for TunnelStream {
    /// What was written is still sent: of a stream whose sending side is open, h2 drops the data
    /// with its last handle. So a tunnel that Weir or the upstream has broken off ends for the
    /// client as its socket would over HTTP/1.1, with the end of what was sent.
    fn drop(&mut self) {
        if let Some(mut send) = self.send.take() {
            // It fails if the side was closed before, or the stream has been reset.
            let _ = send.send_data(Piece::new(Bytes::new(), &self.pieces), true);
            self.shared.ended(&self.pieces, send);
        }
        self.shared.state.tunnel_ended();
    }
}

/// What the client sends.
struct Incoming {
    receive: RecvStream,
    /// What has arrived and was not read yet.
    unread: Bytes,
    /// Charged with the window while nobody waits for what comes next, since it may have arrived.
    charge: Charge,
}

impl Incoming {
    fn new(receive: RecvStream) -> Self {
        Self { receive, unread: Bytes::new(), charge: Charge::nothing() }
    }
}

impl AsyncRead for TunnelStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.incoming).poll_read(cx, buf)
    }
}

impl AsyncRead for Incoming {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        while this.unread.is_empty() {
            let polled = this.receive.poll_data(cx);
            this.charge.set(if polled.is_pending() { 0 } else { STREAM_WINDOW_BYTES as usize });
            match ready!(polled) {
                Some(Ok(data)) => this.unread = data,
                Some(Err(error)) => {
                    this.charge.set(0);
                    // A reset is how a tunnel breaks off, whatever its reason (RFC 8441, 5).
                    return Poll::Ready(Err(io_error(error)));
                }
                None => {
                    this.charge.set(0);
                    return Poll::Ready(Ok(()));
                }
            }
        }
        let bytes = this.unread.len().min(buf.remaining());
        buf.put_slice(this.unread.get(..bytes).unwrap_or_default());
        this.unread.advance(bytes);
        // It fails if the stream has been reset, which is found by the next read.
        let _ = this.receive.flow_control().release_capacity(bytes);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for TunnelStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if bytes.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let this = &mut *self;
        let Some(stream) = &mut this.send else {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        };
        // As for a reply: the rest is asked for when it is given to h2.
        stream.reserve_capacity(1);
        while stream.capacity() == 0 {
            match ready!(stream.poll_capacity(cx)) {
                Some(Ok(_)) => {}
                Some(Err(error)) => return Poll::Ready(Err(io_error(error))),
                None => return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
            }
        }
        let taken = bytes.get(..bytes.len().min(WRITE_BYTES_MAX)).unwrap_or_default();
        let piece = counted(Bytes::copy_from_slice(taken));
        stream.send_data(Piece::new(piece, &this.pieces), false).map_err(io_error)?;
        Poll::Ready(Ok(taken.len()))
    }

    /// Everything that was written is h2's, which sends it when it can.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let Some(stream) = &mut this.send else { return Poll::Ready(Ok(())) };
        let end = Piece::new(Bytes::new(), &this.pieces);
        Poll::Ready(stream.send_data(end, true).map_err(io_error))
    }
}

fn io_error(error: h2::Error) -> io::Error {
    match error.is_io() {
        true => error.into_io().unwrap_or_else(|| io::ErrorKind::BrokenPipe.into()),
        false if error.reason() == Some(Reason::STREAM_CLOSED) => {
            io::Error::new(io::ErrorKind::BrokenPipe, error)
        }
        false => io::Error::other(error),
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;

    use super::*;
    use crate::wire::buffered_bytes;

    /// Enough for what other tests buffer meanwhile not to matter.
    const TUNNELS: usize = 64;
    const MOST: usize = TUNNELS * STREAM_WINDOW_BYTES as usize * 3 / 4;

    #[tokio::test]
    async fn a_tunnel_counts_as_its_window_while_nobody_waits_for_what_comes() {
        let (near, far) = tokio::io::duplex(64 << 10);
        let (mut client, driving) = h2::client::handshake(near).await.unwrap();
        tokio::spawn(driving);
        let (accepted, mut streams) = tokio::sync::mpsc::unbounded_channel();
        tokio::spawn(async move {
            let mut server = h2::server::handshake(far).await.unwrap();
            while let Some(stream) = server.accept().await {
                accepted.send(stream.unwrap()).unwrap();
            }
        });
        let (mut tunnels, mut uploads) = (Vec::new(), Vec::new());
        for _ in 0..TUNNELS {
            let request = http::Request::post("http://h/").body(()).unwrap();
            client = client.ready().await.unwrap();
            let (reply, mut upload) = client.send_request(request, false).unwrap();
            upload.send_data("ab".into(), false).unwrap();
            let (request, replier) = streams.recv().await.unwrap();
            uploads.push((reply, upload, replier));
            tunnels.push(Incoming::new(request.into_body()));
        }
        for tunnel in &mut tunnels {
            assert_eq!(tunnel.read_u8().await.unwrap(), b'a');
        }
        assert!(buffered_bytes() >= MOST, "{}", buffered_bytes());
        for tunnel in &mut tunnels {
            assert_eq!(tunnel.read_u8().await.unwrap(), b'b');
            let waits = tokio::time::timeout(std::time::Duration::ZERO, tunnel.read_u8()).await;
            assert!(waits.is_err());
        }
        assert!(buffered_bytes() < MOST, "{}", buffered_bytes());
        for (_, upload, _) in &mut uploads {
            upload.send_data("c".into(), true).unwrap();
        }
        for tunnel in &mut tunnels {
            let mut rest = Vec::new();
            tunnel.read_to_end(&mut rest).await.unwrap();
            assert_eq!(rest, b"c");
        }
        assert!(buffered_bytes() < MOST, "nothing follows: {}", buffered_bytes());
    }
}
