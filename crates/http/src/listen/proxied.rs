//! The PROXY protocol, versions 1 and 2: who connected to the proxy in front, as the first bytes of
//! a connection say. Source: <https://www.haproxy.org/download/3.2/doc/proxy-protocol.txt>.
//!
//! Only trusted proxies are believed. Others are served as if the listener did not know of the
//! protocol, so they can't choose their address.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use proxy_header::{Error, ParseConfig, ProxyHeader};
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;

use super::error::ConnectionError;
use super::handshake::unless_aborted;
use super::state::ConnectionState;
use crate::clock;

/// Maximum size of a header. Version 2 could declare 64 KiB.
const HEADER_BYTES_MAX: usize = 4 << 10;
/// Bytes that are looked at in one go.
const PIECE_BYTES: usize = 512;
/// Why a header is refused.
const NO_HEADER: &str = "the first bytes are no header of the PROXY protocol";
const TOO_LARGE: &str = "its header of the PROXY protocol is too large";

/// What a proxy says of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Proxied {
    /// The client's end, and the one that it connected to. `None` if the proxy connects for itself,
    /// to see whether anybody is there.
    pub(super) ends: Option<(SocketAddr, SocketAddr)>,
    /// Whether the client speaks TLS to the proxy.
    pub(super) tls: bool,
}

/// Reads the header of a connection, and nothing behind it. Until its first byte has come, the
/// connection counts as idle.
///
/// # Errors
/// There is none, or it does not come within this time.
pub(super) async fn read(
    socket: &mut TcpStream,
    within: Duration,
    state: &Arc<ConnectionState>,
) -> Result<Proxied, ConnectionError> {
    let reading = tokio::time::timeout(within, unless_aborted(state, header(socket, state)));
    match reading.await {
        Ok(Err(ConnectionError::Tls(_, aborted))) => Err(ConnectionError::Socket(aborted)),
        Ok(read) => read,
        Err(_) => Err(ConnectionError::HeadTimeout),
    }
}

async fn header(
    socket: &mut TcpStream,
    state: &Arc<ConnectionState>,
) -> Result<Proxied, ConnectionError> {
    let mut head = Vec::new();
    let mut piece = [0; PIECE_BYTES];
    state.mark_idle(clock::monotonic());
    loop {
        // What follows the header is left where it is: a TLS handshake needs it on the socket.
        let came = socket.peek(&mut piece).await;
        state.mark_busy();
        let came = came?;
        if came == 0 {
            return Err(ConnectionError::Socket(io::ErrorKind::UnexpectedEof.into()));
        }
        let had = head.len();
        head.extend_from_slice(piece.get(..came).unwrap_or_default());
        let (proxied, length) = match parse(&head)? {
            Some(whole) => whole,
            None if head.len() >= HEADER_BYTES_MAX => {
                return Err(ConnectionError::ProxyHeader(TOO_LARGE));
            }
            None => {
                consume(socket, &mut piece, came).await?;
                continue;
            }
        };
        consume(socket, &mut piece, length.saturating_sub(had)).await?;
        return Ok(proxied);
    }
}

/// Reads bytes that were looked at.
async fn consume(socket: &mut TcpStream, piece: &mut [u8], count: usize) -> io::Result<()> {
    if let Some(piece) = piece.get_mut(..count) {
        socket.read_exact(piece).await?;
    }
    Ok(())
}

/// What a header says, and its length. `None` if more of it has to come.
fn parse(head: &[u8]) -> Result<Option<(Proxied, usize)>, ConnectionError> {
    match ProxyHeader::parse(head, ParseConfig::default()) {
        Ok((header, length)) => {
            let ends =
                header.proxied_address().map(|address| (address.source, address.destination));
            let tls = header.ssl().is_some_and(|ssl| ssl.client_ssl());
            Ok(Some((Proxied { ends, tls }, length)))
        }
        // No method is longer. The bytes of a header are told from those of a request early.
        Err(Error::BufferTooShort) if is_start(head) => Ok(None),
        Err(_) => Err(ConnectionError::ProxyHeader(NO_HEADER)),
    }
}

/// Whether these may be the first bytes of a header.
fn is_start(head: &[u8]) -> bool {
    let starts = |start: &[u8]| head.iter().zip(start).all(|(byte, expected)| byte == expected);
    starts(b"PROXY ") || starts(b"\r\n\r\n\0\r\nQUIT\n")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proxy_header::{ProxiedAddress, SslInfo, Tlv};

    use super::*;

    fn ends(source: &str, destination: &str) -> (SocketAddr, SocketAddr) {
        (source.parse().unwrap(), destination.parse().unwrap())
    }

    fn whole(head: &[u8]) -> (Proxied, usize) {
        parse(head).unwrap().unwrap()
    }

    #[test]
    fn both_versions_are_read_and_nothing_behind_them() {
        let one = b"PROXY TCP4 192.0.2.1 198.51.100.9 51234 443\r\nGET / HTTP/1.1\r\n";
        let (proxied, length) = whole(one);
        assert_eq!(proxied.ends, Some(ends("192.0.2.1:51234", "198.51.100.9:443")));
        assert_eq!(&one[length..], b"GET / HTTP/1.1\r\n");
        let six = ends("[2001:db8::1]:9", "[2001:db8::2]:443");
        let mut header = ProxyHeader::with_address(ProxiedAddress::stream(six.0, six.1));
        header.append_tlv(Tlv::Ssl(SslInfo::new(true, false, false, 0)));
        let mut two = Vec::new();
        header.encode_v2(&mut two).unwrap();
        let size = two.len();
        two.extend_from_slice(b"\x16\x03\x01");
        assert_eq!(whole(&two), (Proxied { ends: Some(six), tls: true }, size));
        for cut in 0..size {
            assert!(parse(&two[..cut]).unwrap().is_none(), "{cut}");
        }
    }

    #[test]
    fn a_proxy_that_connects_for_itself_names_nobody() {
        assert_eq!(whole(b"PROXY UNKNOWN\r\n").0, Proxied { ends: None, tls: false });
        let local = b"\r\n\r\n\0\r\nQUIT\n\x20\x00\x00\x00";
        assert_eq!(whole(local), (Proxied { ends: None, tls: false }, 16));
    }

    #[test]
    fn what_is_no_header_is_refused_as_soon_as_that_is_clear() {
        let wrong: [&[u8]; 7] = [
            b"GET / HTTP/1.1\r\n",
            b"G",
            b"POST",
            b"\x16\x03\x01",
            b"PROXX",
            b"PROXY TCP4 192.0.2.1 nobody 1 2\r\n",
            b"PROXY TCP4 192.0.2.1 192.0.2.2 1 99999\r\n",
        ];
        for head in wrong {
            let refused = parse(head);
            assert!(
                matches!(refused, Err(ConnectionError::ProxyHeader(NO_HEADER))),
                "{head:?}: {refused:?}"
            );
        }
        for head in [&b"P"[..], b"PROXY", b"\r\n\r\n", b"PROXY TCP4 192.0.2.1 "] {
            assert!(parse(head).unwrap().is_none(), "{head:?}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_fail_in_another_way(
            start in prop::sample::select(vec![&b"PROXY TCP4 "[..], b"PROXY TCP6 ", b"\r\n\r\n\0\r\nQUIT\n", b""]),
            rest in prop::collection::vec(any::<u8>(), 0..300),
        ) {
            let head = [start, &rest].concat();
            if let Ok(Some((_, length))) = parse(&head) {
                prop_assert!(length <= head.len());
            }
        }
    }
}
