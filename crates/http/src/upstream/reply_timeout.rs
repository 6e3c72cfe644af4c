//! How long to wait for the upstream, which depends on the phase of the exchange. Knows nothing of
//! connections.

use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use super::Inner;
use super::outgoing::UploadProgress;
use crate::clock;
use crate::wire::Timer;

/// What an exchange waits for, and since when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// The upstream, to take the next piece of the request's body.
    Sending(Instant),
    /// The client, to send the next piece. The body has an idle timeout of its own.
    AwaitingClient,
    /// The upstream, to reply.
    AwaitingReply(Instant),
}

impl Phase {
    /// When the upstream has used up its time. `None` while the client is awaited.
    pub(super) fn deadline(self, upstream: &Inner) -> Option<Instant> {
        match self {
            Self::Sending(since) => Some(since + upstream.settings.idle),
            Self::AwaitingClient => None,
            Self::AwaitingReply(since) => Some(since + upstream.settings.response_header),
        }
    }
}

/// The time limit on one reply's head.
pub(super) struct ReplyTimeout<'a> {
    pub(super) timer: &'a mut Timer,
    pub(super) upstream: &'a Inner,
    pub(super) progress: Option<&'a UploadProgress>,
    /// When the phase was last checked. At first, when the request was begun.
    pub(super) checked: Instant,
}

impl ReplyTimeout<'_> {
    /// Ready when the upstream has used up its time.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            let phase =
                self.progress.map_or(Phase::AwaitingReply(self.checked), UploadProgress::phase);
            // Nothing wakes us when the phase changes, so check again in time.
            let deadline =
                phase.deadline(self.upstream).unwrap_or_else(|| self.checked + self.shorter());
            self.timer.arm(deadline);
            ready!(self.timer.poll(cx));
            if phase != Phase::AwaitingClient
                && self.progress.is_none_or(|progress| progress.phase() == phase)
            {
                return Poll::Ready(());
            }
            self.checked = clock::monotonic();
        }
    }

    fn shorter(&self) -> Duration {
        self.upstream.settings.response_header.min(self.upstream.settings.idle)
    }
}
