//! The end of a connection: the client reads the last reply before it is closed.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::AsyncWrite;

use super::super::Handler;
use super::super::error::ConnectionError;
use super::super::stream::{LINGER_MS, LINGER_TOTAL};
use super::{Connection, Http1End};
use crate::clock;
use crate::wire::PLAIN_BYTES;

/// How long to wait for more bytes while closing. They are discarded: see [`Connection::close`].
const LINGER: Duration = Duration::from_millis(LINGER_MS);

impl<H: Handler> Connection<'_, H> {
    /// Closes the connection so that the client can still read the last reply (nginx: lingering
    /// close). Closing a socket with unread bytes resets the connection, and the reset may overtake
    /// the reply: a 413 or 429 to an upload would be lost.
    pub(super) async fn close(&mut self) -> Result<Http1End, ConnectionError> {
        // Many clients read the reply only after they have sent their whole upload, however large
        // it is. So the time is limited, and not the number of bytes.
        let mut until = None;
        let expects_more = self.body_pending || self.scan.has_begun();
        let mut shut = false;
        self.timer.disarm();
        poll_fn(|cx| {
            if self.context.state.is_aborted() {
                return Poll::Ready(());
            }
            if !shut {
                // TLS sends a close_notify alert, which the client may not read.
                match Pin::new(&mut self.client).poll_shutdown(cx) {
                    Poll::Ready(Ok(())) => shut = true,
                    Poll::Ready(Err(_)) => return Poll::Ready(()),
                    Poll::Pending => return self.poll_delay(cx, self.settings.send_idle),
                }
                self.timer.disarm();
            }
            while !self.read_closed {
                self.input.consume(usize::MAX);
                match self.client.poll_fill(cx, &mut self.input, PLAIN_BYTES) {
                    Poll::Ready(Ok(0) | Err(_)) => return Poll::Ready(()),
                    Poll::Ready(Ok(_)) => {
                        let now = clock::monotonic();
                        if now >= *until.get_or_insert(now + LINGER_TOTAL) {
                            return Poll::Ready(());
                        }
                        self.timer.disarm();
                    }
                    Poll::Pending if until.is_none() && !expects_more => return Poll::Ready(()),
                    Poll::Pending => return self.poll_delay(cx, LINGER),
                }
            }
            Poll::Ready(())
        })
        .await;
        Ok(Http1End::Closed)
    }

    /// Ready `wait` after the first call. [`Timer::disarm`] restarts it.
    fn poll_delay(&mut self, cx: &mut Context<'_>, wait: Duration) -> Poll<()> {
        if !self.timer.is_armed() {
            self.timer.arm(clock::monotonic() + wait);
        }
        self.timer.poll(cx)
    }
}
