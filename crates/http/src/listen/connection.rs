//! Serves one connection from its first byte to its close: the TLS handshake if the listener has
//! certificates, then HTTP/1 or HTTP/2. Knows neither how the connection was accepted nor what the
//! handler does.
//!
//! With TLS, ALPN selects the version of HTTP. Without TLS, a client with prior knowledge starts
//! with the HTTP/2 preface (RFC 9113, 3.3).

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use rustls::ServerConfig;
use tokio::net::TcpStream;

use super::context::ConnectionContext;
use super::error::{ConnectionError, ErrorCounters};
use super::http1::{self, Http1End};
use super::permits::Permit;
use super::state::ConnectionState;
use super::stream::ClientStream;
use super::transport::Transport;
use super::{ConnectionSettings, Handler, Peer, Serves, handshake, http2, proxied, spop, tls};
use crate::clock::Clock;

/// An accepted connection.
pub(super) struct Connection<H> {
    pub(super) handler: H,
    pub(super) address: SocketAddr,
    pub(super) state: Arc<ConnectionState>,
    pub(super) permit: Arc<Permit>,
    pub(super) settings: Arc<ConnectionSettings>,
    /// Which listener accepted it.
    pub(super) listener: usize,
    /// Whether it begins with a header of the PROXY protocol.
    pub(super) proxied: bool,
    pub(super) errors: Arc<ErrorCounters>,
}

impl<H: Handler> Connection<H> {
    /// Serves requests until the client, a timeout or a drain closes the connection.
    ///
    /// # Errors
    /// Mostly a client that went away or stalled.
    pub(super) async fn serve(
        self,
        mut socket: TcpStream,
        tls: Option<Arc<ServerConfig>>,
    ) -> Result<(), ConnectionError> {
        // Replies are written in large pieces; Nagle's algorithm would only delay them.
        socket.set_nodelay(true)?;
        let mut peer =
            Peer { listener: self.listener, ..Peer::plain(self.address, socket.local_addr()?) };
        if self.proxied {
            Box::pin(self.read_proxied(&mut socket, &mut peer)).await?;
        }
        match tls {
            None if self.speaks_spop(&peer) => {
                Box::pin(self.spop(Transport::Plain(socket), peer)).await
            }
            None => self.http1(Transport::Plain(socket), peer).await,
            // Boxed, so that a plain connection's future does not include the handshake's state.
            Some(config) => Box::pin(self.serve_tls(socket, config, peer)).await,
        }
    }

    /// Reads whom a trusted proxy connects for, and counts the connection as that client's for as
    /// long as it is open, whatever it becomes.
    async fn read_proxied(
        &self,
        socket: &mut TcpStream,
        peer: &mut Peer,
    ) -> Result<(), ConnectionError> {
        let within = self.settings.request_header;
        let proxied = proxied::read(socket, within, &self.state).await?;
        let Some((client, local)) = proxied.ends else {
            peer.is_unnamed = true;
            return Ok(());
        };
        *peer = Peer { listener: self.listener, tls: proxied.tls, ..Peer::plain(client, local) };
        self.permit
            .network(peer.address.ip(), &self.settings)
            .map_err(|_| ConnectionError::ClientConnections)
    }

    async fn serve_tls(
        self,
        socket: TcpStream,
        config: Arc<ServerConfig>,
        mut peer: Peer,
    ) -> Result<(), ConnectionError> {
        let now_s = Clock::system().wall_us() / 1_000_000;
        let within = self.settings.tls_handshake;
        let stream =
            handshake::perform(socket, config, within, (&self.state, now_s), &mut peer).await?;
        let http2 = stream.get_ref().1.alpn_protocol() == Some(tls::HTTP_2);
        let stream = Transport::tls(stream);
        if self.speaks_spop(&peer) {
            return self.spop(stream, peer).await;
        }
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
                errors: self.errors,
            }),
            self.permit,
            self.settings,
        )
    }

    async fn http1(self, transport: Transport, peer: Peer) -> Result<(), ConnectionError> {
        let (context, permit, settings) = self.context(peer);
        match http1::serve(transport, &context, Arc::clone(&permit), &settings).await? {
            Http1End::Closed => Ok(()),
            Http1End::Http2(transport, read_ahead) => {
                Box::pin(serve_http2(transport, read_ahead, context, permit, &settings)).await
            }
        }
    }

    /// Whether it speaks SPOP, and no HTTP.
    fn speaks_spop(&self, peer: &Peer) -> bool {
        self.handler.serves(peer.listener) == Serves::Spoe
    }

    async fn spop(self, transport: Transport, peer: Peer) -> Result<(), ConnectionError> {
        let (context, permit, settings) = self.context(peer);
        let stream = ClientStream::new(transport, Arc::clone(&context.state), settings.send_idle)
            .with_permit(permit);
        spop::serve(stream, context, &settings).await
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
