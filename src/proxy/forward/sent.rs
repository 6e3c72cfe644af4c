//! What is known of a request from the moment at which its upstream may have got it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use http::StatusCode;

use super::tunnel::UpgradeRequest;
use crate::clock;
use crate::limit::Ending;
use crate::proxy::receive::Received;
use crate::proxy::refusal::Refusal;
use crate::telemetry::Label as _;
use crate::upstream::{SendRecord, Upstream, UpstreamError};
use crate::wire::{Body, BodyEnd, BodyError, BodyOutcome, Response};

/// Not all of the request's body has come.
pub(in crate::proxy) const BYTES_UNKNOWN: u64 = u64::MAX;

/// The fact that says how long a request's body was. Counted only where it is asked for.
pub(in crate::proxy) const REQUEST_BYTES: &str = "request.bytes";

/// The failure of a request whose client went away before the reply was whole.
pub(in crate::proxy) const CLIENT_GONE: &str = "client-gone";

/// The failure of a request whose time was over before its reply was whole.
pub(in crate::proxy) const REQUEST_TIMEOUT: &str = "request-timeout";

/// What is known of a request from the moment at which its upstream may get it.
#[derive(Debug)]
pub(in crate::proxy) struct Sent {
    /// How the request would end if it ended now.
    pub(in crate::proxy) ending: Ending,
    /// Why the upstream gave no reply, for the log.
    pub(in crate::proxy) failure: Option<&'static str>,
    /// The protocol that the client asks to switch to, until the upstream agrees.
    pub(in crate::proxy) upgrade: Option<Box<UpgradeRequest>>,
    /// Bytes of the request's body once all of it has come. Only counted if something reads it.
    pub(in crate::proxy) request_bytes: Option<Arc<AtomicU64>>,
    /// Set if the route limits the time for the whole request.
    pub(in crate::proxy) timeout: Option<Box<RequestTimeout>>,
    /// Where it was sent, and when, if the access line or the trace shows that.
    pub(in crate::proxy) reached: Option<SendRecord>,
    /// The cookie that names the host that has answered, for a client that has to come back to it.
    pub(in crate::proxy) host_cookie: Option<Box<str>>,
    /// Whether the reply is an upstream's.
    pub(in crate::proxy) by_upstream: bool,
    /// Its time was over before there was one.
    is_overdue: bool,
}

/// The time limit on a whole request.
#[derive(Debug)]
pub(in crate::proxy) struct RequestTimeout {
    pub(in crate::proxy) deadline: Instant,
    /// The request's body has ended.
    sent: Arc<AtomicBool>,
}

impl RequestTimeout {
    /// Whether the client has not sent all of its request.
    pub(in crate::proxy) fn is_uploading(&self) -> bool {
        !self.sent.load(Ordering::Relaxed)
    }
}

impl Sent {
    /// A request that is about to be sent: from here on the upstream may have received it.
    pub(in crate::proxy) fn new(received: &Received, upgrade: Option<Box<UpgradeRequest>>) -> Self {
        Self {
            ending: Ending::ClientGone,
            failure: None,
            upgrade,
            request_bytes: None,
            timeout: None,
            reached: received.notes_sending().then(SendRecord::default),
            host_cookie: None,
            by_upstream: false,
            is_overdue: false,
        }
    }

    /// Counts the bytes of its body.
    pub(in crate::proxy) fn count(&mut self, body: Body) -> Body {
        // A hook would make an empty body one that can't be sent twice.
        let arrived = (!body.is_streaming()).then(|| body.length().unwrap_or_default());
        let bytes = Arc::new(AtomicU64::new(arrived.unwrap_or(BYTES_UNKNOWN)));
        self.request_bytes = Some(Arc::clone(&bytes));
        if arrived.is_some() {
            return body;
        }
        body.on_end(move |end: &BodyEnd| {
            if end.outcome == BodyOutcome::Complete {
                bytes.store(end.bytes, Ordering::Relaxed);
            }
        })
    }

    /// Limits the whole request to `timeout`, if there is one. The end of its body is then
    /// recorded.
    pub(super) fn with_timeout(
        &mut self,
        body: Body,
        started: Instant,
        timeout: Option<Duration>,
    ) -> Body {
        let Some(timeout) = timeout else { return body };
        let streams = body.is_streaming();
        let sent = Arc::new(AtomicBool::new(!streams));
        self.timeout =
            Some(Box::new(RequestTimeout { deadline: started + timeout, sent: Arc::clone(&sent) }));
        if streams {
            body.on_end(move |_: &BodyEnd| sent.store(true, Ordering::Relaxed))
        } else {
            body
        }
    }

    /// Records that the request's time is over. It began to be sent at `began`, if it was.
    pub(super) fn overdue(&mut self, began: Option<Instant>) {
        self.is_overdue = true;
        if let (Some(began), Some(reached)) = (began, &mut self.reached) {
            reached.took = Some(clock::monotonic().saturating_duration_since(began));
        }
    }

    /// Records what came of the sending.
    ///
    /// # Errors
    /// The upstream gave no reply that can be passed on.
    pub(in crate::proxy) fn replied(
        &mut self,
        upstream: &Upstream,
        reply: Result<Response, UpstreamError>,
    ) -> Result<Response, Refusal> {
        match reply {
            Ok(reply) if self.accepts(&reply) => {
                self.by_upstream = true;
                Ok(reply)
            }
            Ok(_) => Err(self.failed(&upstream.protocol_error())),
            Err(error) => Err(self.failed(&error)),
        }
    }

    /// Whether a reply's status is valid here. 600 and above have no meaning (RFC 9110, 15), and a
    /// 101 must agree to the protocol that was asked for.
    pub(in crate::proxy) fn accepts(&self, reply: &Response) -> bool {
        match reply.status {
            StatusCode::SWITCHING_PROTOCOLS => {
                self.upgrade.as_ref().is_some_and(|upgrade| upgrade.is_met(reply))
            }
            status => status.as_u16() < 600,
        }
    }

    /// There is no reply. A request whose own body failed is the client's fault and refunds
    /// nothing.
    pub(in crate::proxy) fn failed(&mut self, error: &UpstreamError) -> Refusal {
        self.failure = Some(match error.body {
            // Its client took all of the request's time to send it.
            Some(BodyError::Overdue) => REQUEST_TIMEOUT,
            Some(BodyError::Cut(_) | BodyError::Reset) => CLIENT_GONE,
            _ if self.is_overdue => REQUEST_TIMEOUT,
            _ => error.cause.label(),
        });
        if error.body.is_none() && self.ending != Ending::Withdrawn {
            let now = clock::monotonic();
            let overdue = self.timeout.as_ref().is_some_and(|timeout| now >= timeout.deadline);
            self.ending = match (error.sent, overdue) {
                (false, _) => Ending::Unsent,
                (true, false) => Ending::UpstreamFailed,
                // No refund, or a client could get one by uploading until its time is over.
                (true, true) => Ending::ClientGone,
            };
        }
        Refusal::from(error)
    }
}
