//! How a client reads its reply: whether it is being waited for, since when, and until when. Knows
//! nothing about the connection.

use std::time::Instant;

use super::ConnectionSettings;
use super::error::ConnectionError;
use crate::clock;
use crate::wire::Pace;

/// How much of its reply a client had read when it was last checked.
#[derive(Debug, Default)]
pub(super) struct Progress {
    client_is_awaited: bool,
    /// Bytes sent on the connection, and completed writes below TLS.
    taken: (u64, u64),
    /// Bytes sent on the connection before this reply.
    began: u64,
    /// Created when the client is first waited for.
    pace: Option<Pace>,
}

impl Progress {
    /// A reply begins after `began` bytes were sent on the connection.
    pub(super) fn new(began: u64) -> Self {
        Self { began, ..Self::default() }
    }

    /// The reply's body has nothing more for now, so the client is not waited for. Returns whether
    /// it was, or has read something since.
    pub(super) fn awaits_upstream(&mut self, taken: (u64, u64)) -> bool {
        if !self.client_is_awaited && self.taken == taken {
            return false;
        }
        self.client_is_awaited = false;
        self.taken = taken;
        if let Some(pace) = self.pace.as_mut().filter(|pace| pace.is_waiting()) {
            pace.end_wait(clock::monotonic());
        }
        true
    }

    /// The client is waited for. Returns the new time limit if it has changed: if the client was
    /// not waited for before, or has read something since.
    pub(super) fn awaits_client(
        &mut self,
        taken: (u64, u64),
        deadline: Option<Instant>,
        settings: &ConnectionSettings,
    ) -> Option<Instant> {
        if self.client_is_awaited && self.taken == taken {
            return None;
        }
        self.client_is_awaited = true;
        self.taken = taken;
        let (now, began) = (clock::monotonic(), self.began);
        let slow = settings.send_rate.map(|rate| {
            self.pace
                .get_or_insert_with(|| Pace::new(rate, settings.send_idle, began))
                .start_wait(now, taken.0)
        });
        Some([slow, deadline].into_iter().flatten().fold(now + settings.send_idle, Instant::min))
    }

    /// The time limit has passed. Returns the error, unless the client has read something since.
    pub(super) fn is_over(
        &mut self,
        taken: (u64, u64),
        deadline: Option<Instant>,
    ) -> Option<ConnectionError> {
        let now = clock::monotonic();
        if deadline.is_some_and(|deadline| deadline <= now) {
            return Some(ConnectionError::RequestTimeout);
        }
        if self.taken != taken {
            self.client_is_awaited = false;
            return None;
        }
        let slow = self.pace.as_mut().is_some_and(|pace| pace.start_wait(now, taken.0) <= now);
        Some(if slow { ConnectionError::SendSlow } else { ConnectionError::SendTimeout })
    }
}
