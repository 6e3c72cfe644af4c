//! What a connection of HTTP/2 and its streams share. Knows nothing about requests.

use std::sync::Arc;
use std::time::Duration;

use h2::SendStream;

use super::super::context::ConnectionContext;
use super::super::error::ErrorCounters;
use super::super::permits::Permit;
use super::super::state::ConnectionState;
use super::unsent::{Piece, Pieces, Unsent};
use crate::clock;

/// How many times `send_idle` the last pieces of a reply or a tunnel may wait to be read. They
/// share the connection with each other.
const LAST_PIECE_PATIENCE: u32 = 5;

/// What a connection and its streams share.
pub(super) struct Shared {
    pub(super) state: Arc<ConnectionState>,
    pub(super) unsent: Unsent,
    /// How long a client may take for a piece of a reply.
    pub(super) send_idle: Duration,
    pub(super) errors: Arc<ErrorCounters>,
    /// Keeps the connection counted as open.
    _permit: Arc<Permit>,
}

impl Shared {
    pub(super) fn new<H>(
        context: &ConnectionContext<H>,
        permit: Arc<Permit>,
        send_idle: Duration,
    ) -> Self {
        let (state, errors) = (Arc::clone(&context.state), Arc::clone(&context.errors));
        Self { state, unsent: Unsent::default(), send_idle, errors, _permit: permit }
    }

    /// Resets the streams whose rest should have been sent by now.
    pub(super) fn reset_late(&self) {
        for _ in 0..self.unsent.reset_late(clock::monotonic()) {
            self.errors.count_unread();
        }
    }

    /// h2 has all of a stream. What it has not sent yet is watched from now on.
    pub(super) fn ended(&self, pieces: &Arc<Pieces>, stream: SendStream<Piece>) {
        if Arc::strong_count(pieces) > 1 {
            let unread_max = self.send_idle.saturating_mul(LAST_PIECE_PATIENCE);
            self.unsent.send_by(clock::recent() + unread_max, pieces, stream);
        }
    }
}
