//! Ends a reply that uses more than can be taken for it: `hard-cut` of a policy's decision.
//!
//! A stream of events is passed on event by event. When it has used what was taken, a step more is
//! taken first, and where nothing is left, the stream ends with an event that says so. Other
//! replies, and compressed ones, are passed on as they are, since half a document is of no use;
//! `settle` charges them.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes};
use http::HeaderMap;

use crate::inspect::{EventEnds, Reading};
use crate::limit::{ExtraTakes, Grant, Take};
use crate::policy::{HardCut, Term};
use crate::wire::{Body, BodyEnd, BodyError, Source};

/// The last event of a stream that was ended, in the form that clients of OpenAI's and Anthropic's
/// interfaces understand as an error.
const LAST_EVENT: &str = "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"budget_exhausted\",\"code\":\"budget_exhausted\",\"message\":\"The allowance for this request is used up, so its reply ends here.\"}}\n\n";

/// What a reply has taken in addition, shared with the end of its request.
#[derive(Debug, Default)]
pub(in crate::proxy) struct Extension {
    pub(in crate::proxy) grants: Vec<Grant>,
    /// Units that were taken in addition.
    pub(in crate::proxy) units: u64,
    /// The reply was ended.
    pub(in crate::proxy) cut: bool,
}

/// Shared by the reply's body and the end of its request.
pub(in crate::proxy) type SharedExtension = Arc<Mutex<Extension>>;

/// A body that ends when nothing is left for it.
pub(in crate::proxy) struct CutBody {
    inner: Body,
    reading: Arc<Mutex<Reading>>,
    rule: HardCut,
    more: ExtraTakes,
    /// The take under way.
    taking: Option<Pin<Box<dyn Future<Output = Take> + Send>>>,
    extended: SharedExtension,
    ends: EventEnds,
    /// Bytes that may be passed on: to the end of an event, or all there are within one.
    open: usize,
    /// The last of them ends an event.
    at_end: bool,
    /// The last event, once the stream is ended.
    last: Option<Bytes>,
}

impl fmt::Debug for CutBody {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("CutBody").field("rule", &self.rule).finish_non_exhaustive()
    }
}

impl CutBody {
    /// Ends `inner` as `rule` says. `reading` is what its meters read when it is passed on.
    pub(in crate::proxy) fn of(
        inner: Body,
        reading: Arc<Mutex<Reading>>,
        rule: HardCut,
        more: ExtraTakes,
        extended: SharedExtension,
    ) -> Body {
        let (ends, deadline) = (EventEnds::default(), inner.deadline());
        let source = Self {
            inner,
            reading,
            rule,
            more,
            taking: None,
            extended,
            ends,
            open: 0,
            at_end: true,
            last: None,
        };
        match deadline {
            Some(deadline) => Body::source(Box::new(source)).with_deadline(deadline),
            None => Body::source(Box::new(source)),
        }
    }

    /// The units that the part of the reply that was passed on has used.
    fn used(&self) -> u64 {
        let reading = self.reading.lock().unwrap_or_else(PoisonError::into_inner);
        let units = |term: &Term| {
            let read = u128::from(reading.value(term.meter).unwrap_or(0));
            let units = (read * u128::from(term.units)).div_ceil(u128::from(term.per.max(1)));
            u64::try_from(units).unwrap_or(u64::MAX)
        };
        let of_group = |group: u32| {
            let terms = self.rule.terms.iter().filter(|term| term.group == group);
            terms.map(units).fold(0, u64::saturating_add)
        };
        let most = self.rule.terms.iter().map(|term| of_group(term.group)).max().unwrap_or(0);
        self.rule.base.saturating_add(most)
    }

    fn taken(&self) -> u64 {
        let extended = self.extended.lock().unwrap_or_else(PoisonError::into_inner);
        self.rule.taken.saturating_add(extended.units)
    }

    /// Ready when the next event may be passed on, or when the stream was ended.
    fn poll_allowance(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while self.used() >= self.taken() {
            let more = &self.more;
            let taking = self.taking.get_or_insert_with(|| Box::pin(more.take()));
            let take = ready!(taking.as_mut().poll(cx));
            self.taking = None;
            let mut extended = self.extended.lock().unwrap_or_else(PoisonError::into_inner);
            match take {
                Take::Granted(_, grant) => {
                    extended.grants.push(grant);
                    extended.units = extended.units.saturating_add(self.rule.step);
                }
                Take::Refused(_) | Take::Unavailable(_) => {
                    extended.cut = true;
                    self.last = Some(Bytes::from_static(LAST_EVENT.as_bytes()));
                    break;
                }
            }
        }
        Poll::Ready(())
    }
}

impl Source for CutBody {
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BodyError>> {
        if self.last.is_some() || self.open > 0 {
            return Poll::Ready(Ok(()));
        }
        if self.inner.data().is_empty() {
            match ready!(self.inner.poll_fill(cx)) {
                Some(Ok(())) => {}
                Some(Err(error)) => return Poll::Ready(Err(error)),
                None => return Poll::Ready(Ok(())),
            }
        }
        if self.at_end {
            ready!(self.poll_allowance(cx));
            if self.last.is_some() {
                // The upstream is told to stop: its connection is closed.
                self.inner = Body::empty();
                return Poll::Ready(Ok(()));
            }
        }
        let data = self.inner.data();
        let end = self.ends.next(data);
        self.at_end = end.is_some();
        self.open = end.unwrap_or(data.len());
        Poll::Ready(Ok(()))
    }

    fn data(&self) -> &[u8] {
        match &self.last {
            Some(last) => last,
            None => self.inner.data().get(..self.open).unwrap_or_default(),
        }
    }

    fn consume(&mut self, bytes: usize) {
        match &mut self.last {
            Some(last) => last.advance(bytes.min(last.len())),
            None => {
                let bytes = bytes.min(self.open);
                self.open -= bytes;
                self.inner.consume(bytes);
            }
        }
    }

    fn remaining(&self) -> Option<u64> {
        // It may end earlier than the upstream declared.
        None
    }

    fn is_end(&self) -> bool {
        match &self.last {
            Some(last) => last.is_empty(),
            None => self.open == 0 && http_body::Body::is_end_stream(&self.inner),
        }
    }

    fn take_trailers(&mut self) -> Option<HeaderMap> {
        self.inner.take_trailers()
    }

    fn poll_background(&mut self, cx: &mut Context<'_>) {
        self.inner.poll_background(cx);
    }

    fn finish(self: Box<Self>, _end: &BodyEnd) {}
}
