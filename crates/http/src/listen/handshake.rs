//! One TLS handshake, with a time limit and a readable answer for clients that speak plain HTTP.
//! Knows nothing about certificates.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use rustls::{ProtocolVersion, ServerConfig};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::error::{ConnectionError, TlsCause};
use super::state::ConnectionState;
use super::transport::WriteCounter;
use super::{Peer, subject, tls};
use crate::clock;

/// The content type of a TLS handshake record, its first byte (RFC 8446, 5.1).
const HANDSHAKE: u8 = 22;

/// The reply to a client that speaks plain HTTP, which would not understand a TLS alert.
const NOT_PLAIN: &[u8] =
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/problem+json\r\nconnection: close\r\ncontent-length: 95\r\n\r\n\
    {\"title\":\"Bad Request\",\"status\":400,\"detail\":\"plain HTTP was sent to a port that speaks HTTPS\"}";

/// Performs the handshake and stores what it revealed in `peer`. Fails after `within`, if the
/// connection is aborted, or if the client's certificate has expired at `now_s` (Unix seconds).
/// Until the client has sent its first byte, the connection counts as idle and may be reclaimed.
pub(super) async fn perform(
    socket: TcpStream,
    config: Arc<ServerConfig>,
    within: Duration,
    (state, now_s): (&Arc<ConnectionState>, i64),
    peer: &mut Peer,
) -> Result<Box<TlsStream<WriteCounter<TcpStream>>>, ConnectionError> {
    let done = tokio::time::timeout(within, unless_aborted(state, accept(socket, config, state)));
    let late = |_| ConnectionError::Tls(TlsCause::Timeout, io::ErrorKind::TimedOut.into());
    let stream = Box::new(done.await.map_err(late)??);
    let (_, session) = stream.get_ref();
    // The authority has seen what it wanted to see: there is nothing to serve (RFC 8737, 3).
    if session.alpn_protocol() == Some(tls::ACME_TLS) {
        return Err(ConnectionError::Tls(
            TlsCause::Challenge,
            io::ErrorKind::ConnectionAborted.into(),
        ));
    }
    peer.tls = true;
    peer.tls_version = match session.protocol_version() {
        Some(ProtocolVersion::TLSv1_2) => Some("TLSv1.2"),
        Some(ProtocolVersion::TLSv1_3) => Some("TLSv1.3"),
        _ => None,
    };
    peer.sni = session.server_name().map(|name| tls::host(name).into_boxed_str());
    if let Some(leaf) = session.peer_certificates().and_then(|chain| chain.first()) {
        // A resumed session has the certificate with which it began, which nobody has checked
        // since.
        if subject::expires_s(leaf).is_none_or(|expires_s| expires_s < now_s) {
            let expired = io::Error::new(io::ErrorKind::InvalidData, "the certificate has expired");
            return Err(ConnectionError::Tls(TlsCause::Certificate, expired));
        }
        peer.client_subject = subject::of(leaf);
    }
    Ok(stream)
}

async fn accept(
    socket: TcpStream,
    config: Arc<ServerConfig>,
    state: &Arc<ConnectionState>,
) -> Result<TlsStream<WriteCounter<TcpStream>>, ConnectionError> {
    let mut first = [0];
    state.mark_idle(clock::monotonic());
    let peeked = socket.peek(&mut first).await;
    state.mark_busy();
    match peeked {
        Ok(1) if first == [HANDSHAKE] => {}
        Ok(1) if first.iter().all(u8::is_ascii_uppercase) => return Err(refuse_plain(socket).await),
        // The client has closed. rustls would report the same with more words.
        Ok(0) => {
            return Err(ConnectionError::Tls(
                TlsCause::Closed,
                io::ErrorKind::UnexpectedEof.into(),
            ));
        }
        Ok(_) => {
            return Err(ConnectionError::Tls(
                TlsCause::Malformed,
                io::Error::new(io::ErrorKind::InvalidData, "the first byte is not TLS"),
            ));
        }
        Err(error) => return Err(ConnectionError::Tls(TlsCause::Closed, error)),
    }
    let stream = WriteCounter { stream: socket, state: Arc::clone(state) };
    TlsAcceptor::from(config)
        .accept(stream)
        .await
        .map_err(|error| ConnectionError::Tls(TlsCause::of(&error), error))
}

async fn refuse_plain(mut socket: TcpStream) -> ConnectionError {
    // Read first: closing a socket with unread bytes resets the connection, and the reset may
    // overtake the reply. A client that sends more than this first piece may lose the reply.
    let mut piece = [0; 4096];
    let _ = socket.try_read(&mut piece);
    let written = async {
        socket.write_all(NOT_PLAIN).await?;
        socket.shutdown().await
    };
    let error = written.await.err().unwrap_or_else(|| io::ErrorKind::InvalidData.into());
    ConnectionError::Tls(TlsCause::PlainText, error)
}

/// A drain lets handshakes finish, even those that have not begun: the connection then ends with
/// its first request, or at the drain's deadline. When connection permits run out, a handshake that
/// has not begun is given up.
pub(super) async fn unless_aborted<T>(
    state: &ConnectionState,
    handshake: impl Future<Output = Result<T, ConnectionError>>,
) -> Result<T, ConnectionError> {
    let mut handshake = pin!(handshake);
    poll_fn(|cx| {
        state.set_waker(cx.waker());
        if state.is_aborted() {
            return Poll::Ready(Err(ConnectionError::Tls(
                TlsCause::Closed,
                io::ErrorKind::ConnectionAborted.into(),
            )));
        }
        let polled = handshake.as_mut().poll(cx);
        if polled.is_pending() && state.is_reclaimed() && state.is_idle() {
            return Poll::Ready(Err(ConnectionError::Tls(
                TlsCause::Closed,
                io::ErrorKind::ConnectionAborted.into(),
            )));
        }
        polled
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reply_to_plain_http_declares_its_length() {
        let text = std::str::from_utf8(NOT_PLAIN).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(
            head.contains(&format!("content-length: {}", body.len())),
            "{head}: {}",
            body.len()
        );
    }
}
