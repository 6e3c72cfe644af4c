//! Copies of requests for another upstream, whose replies nobody sees. Nothing waits for them: a
//! copy is sent once the request's body is there, which is kept on its way, up to a limit. Knows no
//! limit and no policy.

use std::cell::Cell;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;

use crate::proxy::settings;
use crate::telemetry::{CounterSet, Metrics, labels, names};
use crate::upstream::{Sender, Upstream};
use crate::wire::{
    self, Body, BodyEnd, BodyError, BodyOutcome, Charge, Known, Request, Source, counted,
};

/// Copies of one worker that are under way, at most.
const COPIES_MAX: usize = 256;
/// How long a copy may take, the part of its reply that is read included.
const COPY_TIME_MAX: Duration = Duration::from_secs(60);
/// Bytes of a reply that are read, so that its connection can be used again.
const REPLY_BYTES_MAX: usize = 64 << 10;
/// What a share of everything is, in hundredths of a percent.
const ALL: u32 = 10_000;

labels! {
    /// What became of a request that was to be copied: a metric's label.
    pub(in crate::proxy) enum CopyResult {
        /// The other upstream has answered.
        Answered = "answered",
        /// It has not.
        Failed = "failed",
        /// The request's body is too long.
        TooLarge = "too_large",
        /// Too many copies are under way.
        Overload = "overload",
        /// The request itself was not sent to its end.
        Incomplete = "incomplete",
    }
}

/// Where a route's requests are copied to.
#[derive(Clone, Debug)]
pub(in crate::proxy) struct Mirror(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    upstream: Arc<Upstream>,
    /// Of the requests, in hundredths of a percent.
    share: u32,
    body_bytes_max: u64,
    /// While more is buffered than this, nothing is kept for copies.
    buffered_bytes_max: usize,
    results: CounterSet<CopyResult>,
}

thread_local! {
    static UNDER_WAY: Cell<usize> = const { Cell::new(0) };
}

/// One of the copies that may be under way. Given back on drop.
struct CopyPermit;

impl CopyPermit {
    fn take() -> Option<Self> {
        UNDER_WAY.with(|under_way| {
            let count = under_way.get();
            (count < COPIES_MAX).then(|| {
                under_way.set(count + 1);
                Self
            })
        })
    }
}

impl Drop for CopyPermit {
    fn drop(&mut self) {
        // While the thread ends, nothing is counted any more.
        let _ = UNDER_WAY.try_with(|under_way| under_way.set(under_way.get().saturating_sub(1)));
    }
}

impl Mirror {
    pub(in crate::proxy) fn new(
        written: &settings::Mirror,
        (route, buffered_bytes_max): (&str, usize),
        metrics: &Metrics,
    ) -> Self {
        Self(Arc::new(Inner {
            upstream: Arc::clone(&written.upstream),
            share: written.share.unwrap_or(ALL),
            body_bytes_max: written.body_bytes_max,
            // The rest is for what clients wait for.
            buffered_bytes_max: buffered_bytes_max / 2,
            results: metrics.counters(names::MIRRORED_REQUESTS, &[route]),
        }))
    }

    /// Has a request copied, if it is one of the share.
    pub(in crate::proxy) fn copy(&self, request: &mut Request) {
        // What follows an upgrade has no end.
        if fastrand::u32(..ALL) >= self.0.share || request.upgrade {
            return;
        }
        if request.body.length().is_some_and(|length| length > self.0.body_bytes_max) {
            return self.0.results.inc(CopyResult::TooLarge);
        }
        let Some(permit) = CopyPermit::take().filter(|_| !self.is_short_of_memory()) else {
            return self.0.results.inc(CopyResult::Overload);
        };
        let copy = Copy { mirror: self.clone(), request: request.head(), permit };
        if request.body.is_streaming() {
            let body = std::mem::take(&mut request.body);
            let (kept, charge) = (Vec::new(), Charge::nothing());
            request.body = Body::source(Box::new(Tee { body, kept, charge, copy: Some(copy) }));
        } else {
            // One that the policy has read is there as a whole.
            let whole = Bytes::copy_from_slice(request.body.data());
            copy.send(if whole.is_empty() { Body::empty() } else { Body::full(counted(whole)) });
        }
    }

    fn is_short_of_memory(&self) -> bool {
        wire::buffered_bytes() > self.0.buffered_bytes_max
    }
}

/// A copy of a request, without its body.
struct Copy {
    mirror: Mirror,
    request: Request,
    permit: CopyPermit,
}

impl Copy {
    /// Sends it in a task of its own.
    fn send(self, body: Body) {
        let Self { mirror, mut request, permit } = self;
        request.body = body;
        // A copy has no trailers.
        request.fields.remove(Known::Trailer);
        tokio::spawn(async move {
            // The least important of all, where requests have to wait.
            let sender = Sender { priority: 0, ..Sender::default() };
            let mut result = CopyResult::Failed;
            let exchange = async {
                if let Ok(reply) = mirror.0.upstream.send_from(request, &sender).await {
                    result = CopyResult::Answered;
                    read(reply.body).await;
                }
            };
            // An event stream would go on for ever. What it was until then is what counts.
            let _ = tokio::time::timeout(COPY_TIME_MAX, exchange).await;
            mirror.0.results.inc(result);
            drop(permit);
        });
    }

    fn give_up(self, why: CopyResult) {
        self.mirror.0.results.inc(why);
    }
}

/// Reads a reply, and drops what is read. The upstream's time for each piece of it holds.
async fn read(mut body: Body) {
    let mut bytes = 0;
    while bytes < REPLY_BYTES_MAX && matches!(poll_fn(|cx| body.poll_fill(cx)).await, Some(Ok(())))
    {
        let piece = body.data().len();
        body.consume(piece);
        body.end_if_read();
        bytes += piece;
    }
}

/// A body that is kept on its way.
struct Tee {
    body: Body,
    kept: Vec<u8>,
    /// For what is kept.
    charge: Charge,
    /// Present until it is sent or given up.
    copy: Option<Copy>,
}

impl Tee {
    fn give_up(&mut self, why: CopyResult) {
        if let Some(copy) = self.copy.take() {
            copy.give_up(why);
        }
        (self.kept, self.charge) = (Vec::new(), Charge::nothing());
    }
}

impl Source for Tee {
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BodyError>> {
        self.body.poll_fill(cx).map(|filled| filled.unwrap_or(Ok(())))
    }

    fn data(&self) -> &[u8] {
        self.body.data()
    }

    fn consume(&mut self, bytes: usize) {
        if let Some(copy) = &self.copy {
            let passed = self.body.data().get(..bytes).unwrap_or_default();
            let most = copy.mirror.0.body_bytes_max;
            if (self.kept.len() + passed.len()) as u64 > most {
                self.give_up(CopyResult::TooLarge);
            } else if copy.mirror.is_short_of_memory() {
                self.give_up(CopyResult::Overload);
            } else {
                self.kept.extend_from_slice(passed);
                self.charge.set(self.kept.capacity());
            }
        }
        self.body.consume(bytes);
        self.body.end_if_read();
    }

    fn remaining(&self) -> Option<u64> {
        self.body.length()
    }

    fn is_end(&self) -> bool {
        http_body::Body::is_end_stream(&self.body)
    }

    fn is_lent(&self) -> bool {
        self.body.is_lent()
    }

    fn take_trailers(&mut self) -> Option<HeaderMap> {
        self.body.take_trailers()
    }

    fn poll_background(&mut self, cx: &mut Context<'_>) {
        self.body.poll_background(cx);
    }

    fn finish(mut self: Box<Self>, end: &BodyEnd) {
        // Whoever sends a body of a known length may stop reading it at its last byte.
        let is_whole = end.outcome == BodyOutcome::Complete
            || (end.outcome == BodyOutcome::Dropped && self.body.length() == Some(0));
        if !is_whole {
            return self.give_up(CopyResult::Incomplete);
        }
        if let Some(copy) = self.copy.take() {
            copy.send(Body::full(counted(std::mem::take(&mut self.kept).into())));
        }
    }
}

impl Drop for Tee {
    fn drop(&mut self) {
        self.give_up(CopyResult::Incomplete);
    }
}
