//! From an endpoint to a byte stream that HTTP can be spoken on: TCP, then TLS where the endpoint says so, both within the upstream's time to
//! connect. Knows nothing of HTTP.

use std::io;

use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::client::TlsStream;

use super::endpoint::Endpoint;
use super::{Cause, Inner};
use crate::wire::Gathering;

/// A connected stream.
pub(super) enum Stream {
    Plain(Gathering<TcpStream>),
    Tls(Box<TlsStream<Gathering<TcpStream>>>),
}

/// Connects to `endpoint`. What fails is logged with its reason.
pub(super) async fn connect(upstream: &Inner, endpoint: usize) -> Result<Stream, Cause> {
    let target = upstream.endpoints.get(endpoint).ok_or(Cause::Connect)?;
    match timeout(upstream.connect, open(upstream, target)).await {
        Ok(Ok(stream)) => Ok(stream),
        Ok(Err((cause, error))) => {
            target.warn(&upstream.name, &error);
            Err(cause)
        }
        Err(elapsed) => {
            target.warn(&upstream.name, &elapsed);
            Err(Cause::Timeout)
        }
    }
}

async fn open(upstream: &Inner, target: &Endpoint) -> Result<Stream, (Cause, io::Error)> {
    let stream = Gathering(target.connect().await.map_err(|error| (Cause::Connect, error))?);
    let Some((tls, name)) = upstream.tls.as_ref().zip(target.server_name.clone()) else { return Ok(Stream::Plain(stream)) };
    let stream = tls.handshake(name, stream).await.map_err(|error| (Cause::Tls, error))?;
    Ok(Stream::Tls(Box::new(stream)))
}
