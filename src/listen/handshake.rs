//! One TLS handshake: bounded in time, and polite to clients that speak plain HTTP by mistake.
//! Knows no certificate.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use rustls::ServerConfig;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::failure::{Failure, TlsCause};
use super::pulse::Pulse;
use super::transport::Noting;
use super::{Peer, subject};
use crate::clock;

/// The first byte of a TLS record that holds a hello (RFC 8446, 5.1).
const HANDSHAKE: u8 = 22;

/// What a client that speaks plain HTTP is told, since it would not understand an alert.
const NOT_PLAIN: &[u8] =
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/problem+json\r\nconnection: close\r\ncontent-length: 95\r\n\r\n\
    {\"title\":\"Bad Request\",\"status\":400,\"detail\":\"plain HTTP was sent to a port that speaks HTTPS\"}";

/// Shakes hands, and notes in `peer` what it brought to light. Gives up after `within`, or when the
/// connection is abandoned, and makes room for others while nothing has come.
pub(super) async fn shake(
    socket: TcpStream,
    config: Arc<ServerConfig>,
    within: Duration,
    pulse: &Arc<Pulse>,
    peer: &mut Peer,
) -> Result<Box<TlsStream<Noting<TcpStream>>>, Failure> {
    let shaken =
        tokio::time::timeout(within, unless_abandoned(pulse, attempt(socket, config, pulse)));
    let late = |_| Failure::Tls(TlsCause::Timeout, io::ErrorKind::TimedOut.into());
    let stream = Box::new(shaken.await.map_err(late)??);
    let (_, session) = stream.get_ref();
    peer.tls = true;
    peer.sni = session.server_name().map(|name| name.to_ascii_lowercase().into_boxed_str());
    peer.client_subject = session
        .peer_certificates()
        .and_then(|chain| chain.first())
        .and_then(|leaf| subject::of(leaf));
    Ok(stream)
}

async fn attempt(
    socket: TcpStream,
    config: Arc<ServerConfig>,
    pulse: &Arc<Pulse>,
) -> Result<TlsStream<Noting<TcpStream>>, Failure> {
    let mut first = [0];
    pulse.idle(clock::monotonic());
    let peeked = socket.peek(&mut first).await;
    pulse.busy();
    match peeked {
        Ok(1) if first == [HANDSHAKE] => {}
        Ok(1) if first.iter().all(u8::is_ascii_uppercase) => return Err(refuse_plain(socket).await),
        // Nothing to speak to: rustls would say the same at greater length.
        Ok(0) => return Err(Failure::Tls(TlsCause::Closed, io::ErrorKind::UnexpectedEof.into())),
        Ok(_) => {
            return Err(Failure::Tls(
                TlsCause::Malformed,
                io::Error::new(io::ErrorKind::InvalidData, "the first byte is not TLS"),
            ));
        }
        Err(error) => return Err(Failure::Tls(TlsCause::Closed, error)),
    }
    let stream = Noting { stream: socket, pulse: Arc::clone(pulse) };
    TlsAcceptor::from(config)
        .accept(stream)
        .await
        .map_err(|error| Failure::Tls(TlsCause::of(&error), error))
}

async fn refuse_plain(mut socket: TcpStream) -> Failure {
    // Read first: closing a socket with unread bytes resets the connection, and the reset may
    // overtake the reply. What a client that is refused here sends beyond the first piece is its
    // loss.
    let mut piece = [0; 4096];
    let _ = socket.try_read(&mut piece);
    let written = async {
        socket.write_all(NOT_PLAIN).await?;
        socket.shutdown().await
    };
    let error = written.await.err().unwrap_or_else(|| io::ErrorKind::InvalidData.into());
    Failure::Tls(TlsCause::PlainText, error)
}

/// A drain lets handshakes finish, also those that have not begun: they end with the connection's
/// first requests, or with the deadline of the drain. Where places run out, a handshake that has
/// not begun is given up.
async fn unless_abandoned<T>(
    pulse: &Pulse,
    shaking: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    let mut shaking = pin!(shaking);
    poll_fn(|cx| {
        pulse.wake_with(cx.waker());
        if pulse.is_abandoned() {
            return Poll::Ready(Err(Failure::Tls(
                TlsCause::Closed,
                io::ErrorKind::ConnectionAborted.into(),
            )));
        }
        let polled = shaking.as_mut().poll(cx);
        if polled.is_pending() && pulse.is_reclaimed() && pulse.is_idle() {
            return Poll::Ready(Err(Failure::Tls(
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
