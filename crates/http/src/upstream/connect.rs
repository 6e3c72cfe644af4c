//! From an address to a byte stream for HTTP: TCP or a Unix socket, then TLS if the endpoint uses
//! it, both within the upstream's time to connect. Knows nothing of HTTP.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpStream, UnixStream};
use tokio::time::{sleep, timeout};

use super::budget::ConnectionPermit;
use super::endpoint::{Endpoint, HostAddress};
use super::host::Host;
use super::hosts::Hosts;
use super::proxied::announce;
use super::stream::Stream;
use super::{Cause, Inner, Protocol};
use crate::telemetry::Label as _;
use crate::wire::is_out_of_descriptors;

/// How long to wait before the next attempt at a Unix socket whose queue is full.
const UNIX_AGAIN: Duration = Duration::from_millis(5);

/// The two ends of a client's connection: its own first.
type Ends = (SocketAddr, SocketAddr);

/// Connects to `host`, for the client's connection with these `ends`. `make_room` closes idle
/// connections to other hosts; it is called when no file descriptor is left. Failures are logged
/// with their reason, at most once a second: while an upstream is down, every request fails like
/// this.
pub(super) async fn connect(
    upstream: &Arc<Inner>,
    host: &Host,
    (protocol, ends): (Protocol, Option<&Ends>),
    make_room: fn(),
) -> Result<Stream, Cause> {
    let endpoint = upstream.endpoints.get(host.endpoint).ok_or(Cause::Connect)?;
    let permit = upstream.budget.open().or_else(|| {
        make_room();
        upstream.budget.open()
    });
    let Some(permit) = permit else {
        upstream.warn_exhausted(host);
        return Err(Cause::Descriptors);
    };
    let (cause, error) = match timeout(
        upstream.settings.connect,
        open(upstream, host, endpoint, (protocol, ends), permit),
    )
    .await
    {
        Ok(Ok(stream)) => return Ok(stream),
        Ok(Err((Cause::Descriptors, _))) => {
            // The next attempt may find a descriptor.
            make_room();
            upstream.warn_exhausted(host);
            return Err(Cause::Descriptors);
        }
        Ok(Err((cause, error))) => (cause, error),
        Err(elapsed) => (Cause::Timeout, elapsed.into()),
    };
    upstream.warn_unconnected(host, &error);
    Hosts::resolve_soon(upstream);
    Err(cause)
}

/// Connects to `host`, TLS included, and closes the connection again.
pub(super) async fn reach(upstream: &Inner, host: &Host) -> Result<(), String> {
    let (endpoint, permit) = (upstream.endpoints.get(host.endpoint), upstream.budget.open());
    let (Some(endpoint), Some(permit)) = (endpoint, permit) else {
        return Err("this process has no file descriptor left".to_owned());
    };
    let ours = (upstream.settings.protocol, None);
    match timeout(upstream.settings.connect, open(upstream, host, endpoint, ours, permit)).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err((cause, error))) => Err(format!("{}: {error}", cause.label())),
        Err(_) => Err(format!("no connection within {:?}", upstream.settings.connect)),
    }
}

async fn open(
    upstream: &Inner,
    host: &Host,
    endpoint: &Endpoint,
    (protocol, ends): (Protocol, Option<&Ends>),
    _permit: ConnectionPermit,
) -> Result<Stream, (Cause, io::Error)> {
    // A lack of descriptors on our side says nothing about the host.
    let unconnected = |error| {
        (if is_out_of_descriptors(&error) { Cause::Descriptors } else { Cause::Connect }, error)
    };
    let version = upstream.settings.proxy_protocol;
    let mut stream = match &host.address {
        HostAddress::Ip(address) => TcpStream::connect(address).await.map_err(unconnected)?,
        HostAddress::Unix(path) => loop {
            match UnixStream::connect(path).await {
                Ok(mut stream) => {
                    if let Some(version) = version {
                        announce(&mut stream, version, ends).await.map_err(unconnected)?;
                    }
                    return Ok(Stream::Unix { stream, _permit });
                }
                // Its queue of connections is full. TCP would wait in the kernel.
                Err(full) if full.kind() == io::ErrorKind::WouldBlock => sleep(UNIX_AGAIN).await,
                Err(error) => return Err(unconnected(error)),
            }
        },
    };
    stream.set_nodelay(true).map_err(unconnected)?;
    if let Some(version) = version {
        announce(&mut stream, version, ends).await.map_err(unconnected)?;
    }
    let Some((tls, name)) = upstream.tls.as_ref().zip(endpoint.server_name.clone()) else {
        return Ok(Stream::Plain { stream, _permit });
    };
    let stream =
        tls.handshake(name, stream, protocol).await.map_err(|error| (Cause::Tls, error))?;
    Ok(Stream::Tls { stream: Box::new(stream), _permit })
}
