//! What an exchange waits for, which decides how long it may wait. Knows nothing of connections.

use std::sync::Arc;
use std::time::Instant;

use super::{Inner, Overrides, sender};

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
    /// When the request was complete, if the reply is what is awaited.
    pub(super) fn awaited_since(self) -> Option<Instant> {
        match self {
            Self::AwaitingReply(since) => Some(since),
            Self::Sending(_) | Self::AwaitingClient => None,
        }
    }

    /// When the upstream has used up its time. `None` while the client is awaited.
    pub(super) fn deadline(
        self,
        upstream: &Inner,
        overrides: Option<&Arc<Overrides>>,
    ) -> Option<Instant> {
        let settings = &upstream.settings;
        match self {
            Self::Sending(since) => Some(since + sender::idle(settings, overrides)),
            Self::AwaitingClient => None,
            Self::AwaitingReply(since) => {
                Some(since + sender::response_header(settings, overrides))
            }
        }
    }
}
