//! Serves one connection from its first byte to its close: TLS where the listener says so, then the
//! version of HTTP that the client speaks. Knows neither how it was accepted nor what the handler
//! does.
//!
//! Over TLS the version is agreed on (ALPN). Over plain TCP a client that knows beforehand just
//! begins with HTTP/2's preface (RFC 9113, 3.3).

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use rustls::ServerConfig;
use tokio::net::TcpStream;

use super::error::ConnectionError;
use super::http1::{self, Outcome};
use super::permits::Permit;
use super::state::ConnectionState;
use super::stream::ClientStream;
use super::transport::Transport;
use super::{ConnectionSettings, Handler, Peer, handshake, http2, tls};
use crate::wire::Charge;

/// What all requests of a connection share: one count that only they move, where a clone of the
/// handler's own would be contended between workers.
pub(super) struct ConnectionContext<H> {
    pub(super) handler: H,
    pub(super) peer: Arc<Peer>,
    pub(super) state: Arc<ConnectionState>,
}

/// A connection that was accepted.
pub(super) struct Connection<H> {
    pub(super) handler: H,
    pub(super) address: SocketAddr,
    pub(super) state: Arc<ConnectionState>,
    pub(super) permit: Arc<Permit>,
    pub(super) settings: Arc<ConnectionSettings>,
}

impl<H: Handler> Connection<H> {
    /// Serves requests until the client or a timeout closes the connection, or its pulse says
    /// drain.
    ///
    /// # Errors
    /// Mostly a client that went away or stood still.
    pub(super) async fn serve(
        self,
        socket: TcpStream,
        tls: Option<Arc<ServerConfig>>,
    ) -> Result<(), ConnectionError> {
        // Replies are written whole; waiting for more to send would only delay them.
        socket.set_nodelay(true)?;
        let peer = Peer::plain(self.address, socket.local_addr()?);
        match tls {
            None => self.http1(Transport::Plain(socket), peer).await,
            // Boxed, so that a plain connection does not pay for the room that the handshake takes.
            Some(config) => Box::pin(self.secured(socket, config, peer)).await,
        }
    }

    async fn secured(
        self,
        socket: TcpStream,
        config: Arc<ServerConfig>,
        mut peer: Peer,
    ) -> Result<(), ConnectionError> {
        let stream =
            handshake::perform(socket, config, self.settings.tls_handshake, &self.state, &mut peer)
                .await?;
        let http2 = stream.get_ref().1.alpn_protocol() == Some(tls::HTTP_2);
        let stream = Transport::Tls(stream, Charge::nothing());
        if http2 { self.http2(stream, peer).await } else { self.http1(stream, peer).await }
    }

    fn context(
        self,
        peer: Peer,
    ) -> (Arc<ConnectionContext<H>>, Arc<Permit>, Arc<ConnectionSettings>) {
        (
            Arc::new(ConnectionContext {
                handler: self.handler,
                peer: Arc::new(peer),
                state: self.state,
            }),
            self.permit,
            self.settings,
        )
    }

    async fn http1(self, transport: Transport, peer: Peer) -> Result<(), ConnectionError> {
        let (context, permit, settings) = self.context(peer);
        match http1::serve(transport, &context, Arc::clone(&permit), &settings).await? {
            Outcome::Closed => Ok(()),
            Outcome::Http2(transport, read_ahead) => {
                Box::pin(serve_http2(transport, read_ahead, context, permit, &settings)).await
            }
        }
    }

    async fn http2(self, transport: Transport, peer: Peer) -> Result<(), ConnectionError> {
        let (context, permit, settings) = self.context(peer);
        serve_http2(transport, Bytes::new(), context, permit, &settings).await
    }
}

async fn serve_http2<H: Handler>(
    transport: Transport,
    read_ahead: Bytes,
    context: Arc<ConnectionContext<H>>,
    permit: Arc<Permit>,
    settings: &ConnectionSettings,
) -> Result<(), ConnectionError> {
    let stream = ClientStream::new(transport, Arc::clone(&context.state), settings.send_idle)
        .with_permit(Arc::clone(&permit));
    http2::serve(stream, read_ahead, context, permit, settings).await
}
