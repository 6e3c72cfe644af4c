//! What a client was answered, and what its answer is made of.

use http::StatusCode;

use crate::proxy::decide::Decided;
use crate::proxy::forward::Sent;
use crate::proxy::receive::Received;
use crate::proxy::refusal::Refusal;
use crate::proxy::route::Routed;
use crate::proxy::verdict::{Cause, Rejection};

/// nginx's code for a client that went away. Only seen in logs and metrics.
pub(in crate::proxy) const CLIENT_GONE: u16 = 499;

/// The status in logs and metrics of a request cut by a shutdown before it was answered.
pub(in crate::proxy) const SHUTDOWN: u16 = 503;

/// The request that a reply is for.
#[derive(Clone, Copy)]
pub(in crate::proxy) struct ReplyTo<'a> {
    pub(in crate::proxy) received: &'a Received,
    pub(in crate::proxy) routed: &'a Routed,
    /// None if it was refused before it was decided on.
    pub(in crate::proxy) decided: Option<&'a Decided>,
}

/// What the client was answered.
#[derive(Debug, Default)]
pub(in crate::proxy) struct Answer {
    /// 0 until it is answered.
    pub(in crate::proxy) status: u16,
    /// It was refused, denied or failed here, or the client left before it was answered.
    pub(in crate::proxy) refused: bool,
    /// Why it was refused.
    pub(in crate::proxy) cause: Option<Cause>,
    /// What is wrong with the request itself, if it was rejected for that.
    pub(in crate::proxy) rejection: Option<Box<Rejection>>,
    /// What failed here or after the upstream's reply had begun, for the log.
    pub(in crate::proxy) failure: Option<&'static str>,
}

impl Answer {
    /// Records the status that the client sees, and counts it.
    pub(in crate::proxy) fn answered(&mut self, status: u16, routed: &Routed) {
        self.status = status;
        routed.handle.tally.answered(status);
    }

    /// Records why a request is refused, and counts it.
    pub(in crate::proxy) fn refused(
        &mut self,
        refusal: &Refusal,
        routed: &Routed,
        decided: Option<&Decided>,
    ) {
        self.refused = !refusal.is_answer();
        self.cause = refusal.cause();
        self.failure = refusal.failure();
        let is_look = decided.is_some_and(|decided| decided.is_look);
        if let Some(cause) = self.cause.filter(|_| !is_look) {
            routed.handle.tally.refused(cause);
        }
        if routed.handle.insight.remembers() {
            self.rejection = refusal.rejection().map(Box::new);
        }
    }

    /// What failed, here or on the upstream's side.
    pub(in crate::proxy) fn failure(&self, sent: Option<&Sent>) -> Option<&'static str> {
        self.failure.or_else(|| sent?.failure)
    }
}

/// The status of a client that went away, as a type.
pub(in crate::proxy) fn client_gone() -> StatusCode {
    StatusCode::from_u16(CLIENT_GONE).unwrap_or(StatusCode::BAD_REQUEST)
}
