//! How long to wait for the upstream, which depends on the phase of the request. Knows nothing of
//! connections.

use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use super::Inner;
use super::outgoing::{Turn, UploadProgress};
use crate::clock;
use crate::wire::Alarm;

/// The wait for one reply's head.
pub(super) struct ReplyTimeout<'a> {
    pub(super) alarm: &'a mut Alarm,
    pub(super) upstream: &'a Inner,
    pub(super) watch: Option<&'a UploadProgress>,
    /// When the phase was last checked, or the upstream was last to act.
    pub(super) checked: Instant,
}

impl ReplyTimeout<'_> {
    /// Ready when the upstream has used up its time.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            let turn = self.watch.map_or(Turn::Answering(self.checked), UploadProgress::turn);
            let deadline = match turn {
                Turn::Answering(since) => since + self.upstream.response_header,
                Turn::Taking(since) => since + self.upstream.idle,
                // Nothing wakes us when the phase changes, so check again in time.
                Turn::Client => self.checked + self.shorter(),
            };
            self.alarm.arm(deadline);
            ready!(self.alarm.poll(cx));
            if turn != Turn::Client && self.watch.is_none_or(|watch| watch.turn() == turn) {
                return Poll::Ready(());
            }
            self.checked = clock::monotonic();
        }
    }

    fn shorter(&self) -> Duration {
        self.upstream.response_header.min(self.upstream.idle)
    }
}
