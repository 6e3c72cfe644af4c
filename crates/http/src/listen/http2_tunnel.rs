//! Tunnels on streams of HTTP/2: an extended CONNECT (RFC 8441), as browsers ask for a WebSocket on
//! a connection that they have. To the handler it is the upgrade that it would be over HTTP/1.1, so
//! a policy sees the same request either way.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Method, StatusCode};
use hyper::body::Incoming;
use hyper::ext::Protocol;
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::Handler;
use super::context::ConnectionContext;
use super::state::ConnectionState;
use crate::wire::websocket::{ACCEPT, KEY, WEBSOCKET, accept_of, new_key};
use crate::wire::{Body, Known, Request, Response, Upgrade, delegate_write};

/// What the client asks for in place of HTTP, if it does.
pub(super) fn protocol(request: &http::Request<Incoming>) -> Option<Protocol> {
    if request.method() != Method::CONNECT {
        return None;
    }
    request.extensions().get::<Protocol>().cloned()
}

/// Has the handler answer a request for a tunnel, and begins the tunnel if it agrees.
pub(super) async fn serve<H: Handler>(
    mut request: http::Request<Incoming>,
    protocol: Protocol,
    context: &ConnectionContext<H>,
) -> Response {
    let on_upgrade = hyper::upgrade::on(&mut request);
    let (mut head, _) = request.into_parts();
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
    let reply = context.handler.call(asked, &context.peer).await;
    answer(reply, key.as_deref(), on_upgrade, &context.state)
}

/// The reply to a CONNECT, whose success alone means that there is a tunnel.
fn answer(
    mut reply: Response,
    key: Option<&str>,
    on_upgrade: OnUpgrade,
    state: &Arc<ConnectionState>,
) -> Response {
    let accepted = |reply: &Response| {
        key.is_none_or(|key| reply.fields.get(ACCEPT) == Some(accept_of(key.as_bytes()).as_bytes()))
    };
    match (reply.status, reply.upgrade.take()) {
        (StatusCode::SWITCHING_PROTOCOLS, Some(Upgrade::Callback(begin))) if accepted(&reply) => {
            reply.status = StatusCode::OK;
            reply.fields.remove(Known::Connection);
            reply.fields.remove(Known::Upgrade);
            reply.fields.remove(ACCEPT);
            let open = OpenTunnel::new(state);
            tokio::spawn(async move {
                // It fails if the client is gone before it has the reply.
                if let Ok(stream) = on_upgrade.await {
                    begin(Box::new(TunnelStream { stream: TokioIo::new(stream), _open: open }));
                }
            });
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
        _ => reply,
    }
}

/// Keeps the connection from being taken for one without streams.
struct OpenTunnel(Arc<ConnectionState>);

impl OpenTunnel {
    fn new(state: &Arc<ConnectionState>) -> Self {
        state.tunnel_opened();
        Self(Arc::clone(state))
    }
}

impl Drop for OpenTunnel {
    fn drop(&mut self) {
        self.0.tunnel_ended();
    }
}

/// The client's end of a tunnel.
struct TunnelStream {
    stream: TokioIo<Upgraded>,
    _open: OpenTunnel,
}

impl AsyncRead for TunnelStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for TunnelStream {
    delegate_write! { this => this.stream }
}
