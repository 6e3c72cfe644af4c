//! Serves one connection from its first byte to its close. Knows neither how it was accepted nor what the handler does.
//!
//! [`serve_connection`] takes any stream: TLS wraps the socket before it. HTTP/2, when it comes, is chosen in its first lines and shares the rest.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use hyper::body::{Body as _, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};

use super::head_timer::{HeadTimer, Pulse};
use super::stream::ClientStream;
use super::{ConnectionSettings, Handler, Peer};
use crate::wire::Alarm;

/// What hyper reads ahead of a body, at most, and so what a slow upstream makes a connection hold. hyper takes no less than 8 KiB.
const READ_AHEAD_BYTES_MAX: usize = 64 << 10;

struct Served<H> {
    handler: H,
    peer: Arc<Peer>,
    pulse: Arc<Pulse>,
}

/// Serves requests until the client or a timeout closes the connection, or `pulse` says drain.
///
/// # Errors
/// What hyper says: mostly a client that went away or stood still.
pub(super) async fn serve_connection<S, H>(
    stream: ClientStream<S>,
    peer: Arc<Peer>,
    pulse: Arc<Pulse>,
    handler: H,
    settings: &ConnectionSettings,
) -> Result<(), hyper::Error>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    H: Handler,
{
    let mut builder = http1::Builder::new();
    builder
        .timer(HeadTimer { pulse: Arc::clone(&pulse), request_header: settings.request_header, keep_alive: settings.keep_alive })
        .header_read_timeout(settings.request_header)
        .max_header_size(settings.header_bytes_max)
        .max_buf_size(settings.header_bytes_max.max(READ_AHEAD_BYTES_MAX))
        // One that came after the drain began is answered once and told to close.
        .keep_alive(!pulse.is_draining());
    let late = pulse.is_draining();
    // One count that only this connection's requests move; a clone of the handler's own would be contended between workers.
    let served = Arc::new(Served { handler, peer, pulse: Arc::clone(&pulse) });
    let service = service_fn(move |request: http::Request<Incoming>| {
        let served = Arc::clone(&served);
        served.pulse.request(!request.body().is_end_stream());
        async move { Ok::<_, Infallible>(served.handler.call(request, &served.peer).await) }
    });
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
    let mut alarm = Alarm::default();
    let mut told = late;
    poll_fn(|cx| {
        pulse.wake_with(cx.waker());
        if pulse.is_abandoned() {
            return Poll::Ready(Ok(()));
        }
        if !told && pulse.is_draining() {
            told = true;
            connection.as_mut().graceful_shutdown();
        }
        drive(connection.as_mut(), &pulse, &mut alarm, cx)
    })
    .await
}

/// Polls the connection, and again when its wait for a head has lasted too long.
fn drive<C>(mut connection: std::pin::Pin<&mut C>, pulse: &Pulse, alarm: &mut Alarm, cx: &mut Context<'_>) -> Poll<C::Output>
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
