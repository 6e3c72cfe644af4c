//! How long to wait for the head of a reply over HTTP/2. Knows nothing of connections.

use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use super::outgoing::UploadProgress;
use super::phase::Phase;
use super::{Inner, Overrides, sender};
use crate::clock;
use crate::wire::Timer;

/// The time limit on one reply's head.
pub(super) struct ReplyTimeout<'a> {
    pub(super) timer: &'a mut Timer,
    pub(super) upstream: &'a Inner,
    pub(super) progress: Option<&'a UploadProgress>,
    pub(super) overrides: Option<&'a Arc<Overrides>>,
    /// When the phase was last checked. At first, when the request was begun.
    pub(super) checked: Instant,
}

impl ReplyTimeout<'_> {
    /// Ready when the upstream has used up its time.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            let phase =
                self.progress.map_or(Phase::AwaitingReply(self.checked), UploadProgress::phase);
            let own = phase.deadline(self.upstream, self.overrides);
            // Nothing wakes us when the phase changes, so check again in time for the next one.
            let check = self.checked + self.shorter();
            let until = match (own, self.progress) {
                (Some(own), None) => own,
                (Some(own), Some(_)) => own.min(check),
                (None, _) => check,
            };
            self.timer.arm(until);
            ready!(self.timer.poll(cx));
            let now = clock::monotonic();
            if own.is_some_and(|own| own <= now)
                && self.progress.is_none_or(|progress| progress.phase() == phase)
            {
                return Poll::Ready(());
            }
            self.checked = now;
        }
    }

    fn shorter(&self) -> Duration {
        let settings = &self.upstream.settings;
        sender::response_header(settings, self.overrides)
            .min(sender::idle(settings, self.overrides))
    }
}
