//! How long the upstream may take to answer, which depends on whose turn it is. Knows nothing of
//! connections.

use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use super::Inner;
use super::outgoing::{Turn, Watch};
use crate::clock;
use crate::wire::Timer;

/// The wait for one reply's head.
pub(super) struct Patience<'a> {
    pub(super) alarm: &'a mut Timer,
    pub(super) upstream: &'a Inner,
    pub(super) watch: Option<&'a Watch>,
    /// When it was last the upstream's turn or somebody looked.
    pub(super) checked: Instant,
}

impl Patience<'_> {
    /// Ready when the upstream has used up its time.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            let turn = self.watch.map_or(Turn::Answering(self.checked), Watch::turn);
            let deadline = match turn {
                Turn::Answering(since) => since + self.upstream.response_header,
                Turn::Taking(since) => since + self.upstream.idle,
                // Nobody wakes us when the turn changes: look again in time.
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
