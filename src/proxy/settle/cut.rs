//! Ends a reply that uses more than can be taken for it: `hard-cut` of a policy's decision.
//!
//! A stream of events is passed on event by event. When it has used what was taken, the steps that
//! are missing are taken first, and where they are not there, the stream ends with an event that
//! says so. Other replies, and compressed ones, are passed on as they are, since half a document is
//! of no use; `settle` charges them.
//!
//! What an upstream tells of usage may be more than its texts show, and come at the end: a cut
//! would then save nothing, and cost the client the end of a reply that is complete. So where only
//! that exceeds what was taken, the stream goes on until it uses more. And while the limits can't
//! be asked, it goes on for less than a step more.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes};
use http::HeaderMap;

use crate::inspect::{EventEnds, Gather, Reading};
use crate::limit::{ExtraTakes, Grant, Take};
use crate::policy::{HardCut, Term};
use crate::wire::{Body, BodyEnd, BodyError, Source};

/// The last event of a stream that was ended as nothing is left, in the form that clients of
/// OpenAI's and Anthropic's interfaces understand as an error.
const EXHAUSTED: &str = "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"budget_exhausted\",\"code\":\"budget_exhausted\",\"message\":\"The allowance for this request is used up, so its reply ends here.\"}}\n\n";
/// And of one that was ended as the limits can't be asked.
const UNCHECKED: &str = "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"code\":\"store_unavailable\",\"message\":\"The limits of this request can't be checked now, so its reply ends here.\"}}\n\n";

/// Takes that are made one after another before other requests of the worker have their turn.
const TAKES_AT_ONCE: usize = 16;

/// Maximum number of takes for one reply.
const GRANTS_MAX: usize = 65_536;

/// Why a reply was ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::proxy) enum Cut {
    /// Nothing is left for it.
    Exhausted,
    /// What is left can't be asked, for this cause.
    Store(&'static str),
}

impl Cut {
    /// What the access log calls it.
    pub(in crate::proxy) fn label(self) -> &'static str {
        match self {
            Self::Exhausted => "hard-cut",
            Self::Store(_) => "store-cut",
        }
    }

    /// The last event.
    fn event(self) -> Bytes {
        Bytes::from_static(match self {
            Self::Exhausted => EXHAUSTED.as_bytes(),
            Self::Store(_) => UNCHECKED.as_bytes(),
        })
    }
}

/// What a reply has taken in addition, shared with the end of its request.
#[derive(Debug, Default)]
pub(in crate::proxy) struct Extension {
    pub(in crate::proxy) grants: Vec<Grant>,
    /// Units that were taken in addition.
    pub(in crate::proxy) units: u64,
    /// Why the reply was ended, if it was.
    pub(in crate::proxy) cut: Option<Cut>,
}

/// The units that the part of a reply that was passed on has used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Used {
    all: u64,
    /// As far as its texts show.
    shown: u64,
}

/// A take under way, and its units.
type Taking = (u64, Pin<Box<dyn Future<Output = Take> + Send>>);

/// Shared by the reply's body and the end of its request.
pub(in crate::proxy) type SharedExtension = Arc<Mutex<Extension>>;

/// A body that ends when nothing is left for it.
pub(in crate::proxy) struct CutBody {
    inner: Body,
    reading: Arc<Mutex<Reading>>,
    rule: HardCut,
    more: ExtraTakes,
    taking: Option<Taking>,
    /// The most units that are asked for at once, after a refusal: what was left.
    left: Option<u64>,
    /// What was used when more was refused, and the stream went on all the same.
    denied_at: Option<Used>,
    /// The groups of the rule's terms that the texts of the reply make grow.
    of_texts: Vec<u32>,
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
        let of_texts = {
            let reading = reading.lock().unwrap_or_else(PoisonError::into_inner);
            let of_text = |term: &&Term| {
                let meter = reading.values().nth(term.meter);
                meter
                    .is_some_and(|(meter, _)| matches!(meter.gather, Gather::Bytes | Gather::Count))
            };
            rule.terms.iter().filter(of_text).map(|term| term.group).collect()
        };
        let source = Self {
            inner,
            reading,
            rule,
            more,
            taking: None,
            left: None,
            denied_at: None,
            of_texts,
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

    fn used(&self) -> Used {
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
        let most = |groups: &mut dyn Iterator<Item = u32>| {
            self.rule.base.saturating_add(groups.map(of_group).max().unwrap_or(0))
        };
        Used {
            all: most(&mut self.rule.terms.iter().map(|term| term.group)),
            shown: most(&mut self.of_texts.iter().copied()),
        }
    }

    fn taken(&self) -> u64 {
        let extended = self.extended.lock().unwrap_or_else(PoisonError::into_inner);
        self.rule.taken.saturating_add(extended.units)
    }

    /// Whether so much was taken in addition that the rest is left to the end of the request.
    fn has_taken_often(&self) -> bool {
        let extended = self.extended.lock().unwrap_or_else(PoisonError::into_inner);
        extended.grants.len() >= GRANTS_MAX
    }

    /// The units to take for `missing` ones and something more: whole steps.
    fn wanted(&self, missing: u64) -> u64 {
        let step = self.rule.step.max(1);
        let most = (self.more.most() / step).max(1).saturating_mul(step);
        let wanted = (missing / step).saturating_add(1).saturating_mul(step);
        wanted.min(most).min(self.left.unwrap_or(u64::MAX))
    }

    /// Ready when the next event may be passed on, or when the stream was ended.
    fn poll_allowance(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        for _ in 0..TAKES_AT_ONCE {
            let (used, taken) = (self.used(), self.taken());
            if used.all < taken || self.denied_at == Some(used) || self.has_taken_often() {
                return Poll::Ready(());
            }
            let (units, mut taking) = match self.taking.take() {
                Some(taking) => taking,
                None => {
                    let units = self.wanted(used.all - taken);
                    let Ok(take) = self.more.take_units(units) else {
                        self.deny(used, Cut::Exhausted);
                        return Poll::Ready(());
                    };
                    (units, Box::pin(take) as _)
                }
            };
            let Poll::Ready(take) = taking.as_mut().poll(cx) else {
                self.taking = Some((units, taking));
                return Poll::Pending;
            };
            match take {
                Take::Granted(_, grant) => {
                    self.left = None;
                    let mut extended = self.extended.lock().unwrap_or_else(PoisonError::into_inner);
                    extended.grants.push(grant);
                    extended.units = extended.units.saturating_add(units);
                }
                Take::Refused(outcome) => {
                    let step = self.rule.step.max(1);
                    let steps = self.more.left(&outcome).min(units - 1) / step;
                    if steps == 0 {
                        self.deny(used, Cut::Exhausted);
                        return Poll::Ready(());
                    }
                    // It is taken all the same: no limit says what it does not have.
                    self.left = Some(steps * step);
                }
                Take::Unavailable(cause) => {
                    self.deny(used, Cut::Store(cause));
                    return Poll::Ready(());
                }
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Ends the stream, unless it may go on without what it would take.
    fn deny(&mut self, used: Used, cut: Cut) {
        self.left = None;
        let taken = self.taken();
        if used.shown < taken && self.denied_at.is_none() {
            self.denied_at = Some(used);
            return;
        }
        if matches!(cut, Cut::Store(_)) && used.all.saturating_sub(taken) < self.rule.step {
            return;
        }
        self.extended.lock().unwrap_or_else(PoisonError::into_inner).cut = Some(cut);
        self.last = Some(cut.event());
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
