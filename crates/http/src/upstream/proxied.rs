//! The PROXY protocol towards an upstream: the first bytes of a connection say whose it is.
//! Source: <https://www.haproxy.org/download/3.2/doc/proxy-protocol.txt>.

use std::io;
use std::net::SocketAddr;

use proxy_header::{ProxiedAddress, ProxyHeader};
use tokio::io::{AsyncWrite, AsyncWriteExt as _};

use super::settings::ProxyVersion;

/// Sends the header of a connection for a client's, with its two ends; without them it is our own.
///
/// # Errors
/// The connection is lost.
pub(super) async fn announce<S: AsyncWrite + Unpin>(
    stream: &mut S,
    version: ProxyVersion,
    ends: Option<&(SocketAddr, SocketAddr)>,
) -> io::Result<()> {
    let header = match ends {
        Some((source, destination)) => {
            let (source, destination) = of_one_family(*source, *destination);
            ProxyHeader::with_address(ProxiedAddress::stream(source, destination))
        }
        None => ProxyHeader::with_local(),
    };
    let mut bytes = Vec::new();
    let encoded = match version {
        ProxyVersion::V1 => header.encode_v1(&mut bytes),
        ProxyVersion::V2 => header.encode_v2(&mut bytes),
    };
    encoded.map_err(|_| io::Error::other("addresses that no header can name"))?;
    stream.write_all(&bytes).await
}

/// Both as IPv6, unless both are IPv4: a header has one family.
fn of_one_family(source: SocketAddr, destination: SocketAddr) -> (SocketAddr, SocketAddr) {
    let mapped = |address: SocketAddr| match address {
        SocketAddr::V4(four) => SocketAddr::new(four.ip().to_ipv6_mapped().into(), four.port()),
        six => six,
    };
    match (source, destination) {
        (SocketAddr::V4(_), SocketAddr::V4(_)) => (source, destination),
        _ => (mapped(source), mapped(destination)),
    }
}
