//! Whether a request's client takes so long to send it that the request should use no place
//! meanwhile. Knows no places.

use std::task::{Context, Poll};
use std::time::Duration;

use crate::clock;
use crate::upstream::phase::Phase;
use crate::wire::Timer;

/// How long a client may take to send its request before the upload counts as slow. Most bodies
/// come at once, and a request whose body does must not get past the limit.
const SLOW_AFTER: Duration = Duration::from_millis(50);
/// How often one that is slow is looked at again by itself.
const CHECKED_EVERY: Duration = Duration::from_millis(250);

/// A request's body on its way to the upstream.
#[derive(Debug, Default)]
pub(super) struct Upload {
    /// When to look again. Nothing wakes a request over HTTP/2 when its body goes on or ends.
    check: Timer,
    is_slow: bool,
}

impl Upload {
    /// Whether it has taken long.
    #[cfg(test)]
    pub(super) fn is_slow(&self) -> bool {
        self.is_slow
    }

    /// Whether the client is awaited that has had its time. The caller polls it again when the
    /// phase may have changed, and is woken by it as well.
    pub(super) fn awaits_slow_client(&mut self, phase: Phase, cx: &mut Context<'_>) -> bool {
        if phase.awaited_since().is_some() {
            self.check.disarm();
            return false;
        }
        loop {
            if !self.check.is_armed() {
                let pause = if self.is_slow { CHECKED_EVERY } else { SLOW_AFTER };
                self.check.arm(clock::monotonic() + pause);
            }
            match self.check.poll(cx) {
                Poll::Ready(()) => self.is_slow = true,
                Poll::Pending => return self.is_slow && phase == Phase::AwaitingClient,
            }
        }
    }
}
