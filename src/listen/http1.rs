//! HTTP/1.1 and 1.0 on one connection. Knows neither how it was accepted nor what the handler does.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body as _, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};

use super::connection::Served;
use super::failure::Failure;
use super::head_timer::{HeadTimer, Pulse};
use super::stream::ClientStream;
use super::unreadable::Answering;
use super::{ConnectionSettings, Handler};
use crate::wire::Alarm;

/// What hyper reads ahead of a body, at most, and so what a slow upstream makes a connection hold. hyper takes no less than 8 KiB.
const READ_AHEAD_BYTES_MAX: usize = 64 << 10;
/// How a TLS hello begins: a handshake record of version 3.
const TLS_HELLO: [u8; 2] = [22, 3];

/// How a connection's HTTP/1 ended.
pub(super) enum End<S> {
    /// With the connection, or in an upgrade: the stream then belongs to whoever asked for it.
    Closed,
    /// The client speaks HTTP/2: its stream, and what was read of it.
    Http2(ClientStream<S>, Bytes),
}

/// Serves requests until the client or a timeout closes the connection, or the pulse says drain.
///
/// # Errors
/// What hyper says: mostly a client that went away or stood still.
pub(super) async fn serve<S, H>(stream: ClientStream<S>, served: &Arc<Served<H>>, settings: &ConnectionSettings) -> Result<End<S>, Failure>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    H: Handler,
{
    let pulse = &served.pulse;
    let late = pulse.is_draining();
    let mut builder = http1::Builder::new();
    builder
        .timer(HeadTimer { pulse: Arc::clone(pulse), request_header: settings.request_header, keep_alive: settings.keep_alive })
        .header_read_timeout(settings.request_header)
        .max_header_size(settings.header_bytes_max)
        .max_buf_size(settings.header_bytes_max.max(READ_AHEAD_BYTES_MAX))
        // One that came after the drain began is answered once and told to close.
        .keep_alive(!late);
    let serving = Arc::clone(served);
    let service = service_fn(move |request: http::Request<Incoming>| {
        let served = Arc::clone(&serving);
        served.pulse.request(!request.body().is_end_stream());
        async move { Ok::<_, Infallible>(served.handler.call(request, &served.peer).await) }
    });
    let mut connection = builder.serve_connection(TokioIo::new(Answering::new(stream, Arc::clone(served))), service).with_upgrades();
    let mut alarm = Alarm::default();
    let mut told = late;
    let ended = poll_fn(|cx| {
        pulse.wake_with(cx.waker());
        if pulse.is_abandoned() {
            return Poll::Ready(Ok(()));
        }
        if !told && pulse.is_draining() {
            told = true;
            Pin::new(&mut connection).graceful_shutdown();
        }
        drive(Pin::new(&mut connection), pulse, &mut alarm, cx)
    })
    .await;
    match (ended, connection.into_parts()) {
        (Ok(()), Some(_)) => Ok(End::Closed),
        (Ok(()), None) => {
            pulse.upgrade();
            Ok(End::Closed)
        }
        (Err(error), Some(parts)) if error.is_parse_version_h2() => Ok(End::Http2(parts.io.into_inner().stream, parts.read_buf)),
        (Err(error), Some(parts)) if error.is_parse() && parts.read_buf.starts_with(&TLS_HELLO) => Err(Failure::TlsHello),
        (Err(error), _) => Err(error.into()),
    }
}

/// Polls the connection, and again when its wait for a head has lasted too long.
fn drive<C>(mut connection: Pin<&mut C>, pulse: &Pulse, alarm: &mut Alarm, cx: &mut Context<'_>) -> Poll<C::Output>
where
    C: Future,
{
    loop {
        if let Poll::Ready(done) = connection.as_mut().poll(cx) {
            return Poll::Ready(done);
        }
        let Some(deadline) = pulse.deadline() else { return Poll::Pending };
        alarm.arm(deadline);
        if alarm.poll(cx).is_pending() {
            return Poll::Pending;
        }
        pulse.expire();
    }
}
