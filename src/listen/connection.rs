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

use super::failure::Failure;
use super::http1::{self, End};
use super::places::Place;
use super::pulse::Pulse;
use super::stream::ClientStream;
use super::transport::Transport;
use super::{ConnectionSettings, Handler, Peer, handshake, http2, tls};
use crate::wire::Charge;

/// What all requests of a connection share: one count that only they move, where a clone of the
/// handler's own would be contended between workers.
pub(super) struct Served<H> {
    pub(super) handler: H,
    pub(super) peer: Arc<Peer>,
    pub(super) pulse: Arc<Pulse>,
}

/// A connection that was accepted.
pub(super) struct Connection<H> {
    pub(super) handler: H,
    pub(super) address: SocketAddr,
    pub(super) pulse: Arc<Pulse>,
    pub(super) place: Arc<Place>,
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
    ) -> Result<(), Failure> {
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
    ) -> Result<(), Failure> {
        let stream =
            handshake::shake(socket, config, self.settings.tls_handshake, &self.pulse, &mut peer)
                .await?;
        let http2 = stream.get_ref().1.alpn_protocol() == Some(tls::HTTP_2);
        let stream = Transport::Tls(stream, Charge::nothing());
        if http2 { self.http2(stream, peer).await } else { self.http1(stream, peer).await }
    }

    fn served(self, peer: Peer) -> (Arc<Served<H>>, Arc<Place>, Arc<ConnectionSettings>) {
        (
            Arc::new(Served { handler: self.handler, peer: Arc::new(peer), pulse: self.pulse }),
            self.place,
            self.settings,
        )
    }

    async fn http1(self, transport: Transport, peer: Peer) -> Result<(), Failure> {
        let (served, place, settings) = self.served(peer);
        match http1::serve(transport, &served, Arc::clone(&place), &settings).await? {
            End::Closed => Ok(()),
            End::Http2(transport, begun) => {
                Box::pin(serve_http2(transport, begun, served, place, &settings)).await
            }
        }
    }

    async fn http2(self, transport: Transport, peer: Peer) -> Result<(), Failure> {
        let (served, place, settings) = self.served(peer);
        serve_http2(transport, Bytes::new(), served, place, &settings).await
    }
}

async fn serve_http2<H: Handler>(
    transport: Transport,
    begun: Bytes,
    served: Arc<Served<H>>,
    place: Arc<Place>,
    settings: &ConnectionSettings,
) -> Result<(), Failure> {
    let stream = ClientStream::new(transport, Arc::clone(&served.pulse), settings.send_idle)
        .holding(Arc::clone(&place));
    http2::serve(stream, begun, served, place, settings).await
}
