//! The streams of Envoy's rate limit quota service. A proxy reports how many requests of each of
//! its buckets it has let through, and is told how many more may pass: units that are taken from
//! the limits of the bucket's policy, several at once, for a few seconds. That is a lease whose
//! holder is not in this process, and [`Remote`](weir_lease::Remote) says what it needs.
//!
//! `bucket` takes the units of one bucket and gives back those that were not used; here is the
//! stream with all of its buckets.

mod bucket;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::{FutureExt as _, join_all};
use http::Version;
use tokio::sync::Notify;
use tokio::sync::mpsc::Sender;

use self::bucket::{Bucket, Stop, Told};
use super::pieces::{self, Piece};
use super::state::CallState;
use crate::clock::{self, LogThrottle};
use crate::listen::Peer;
use crate::proxy::context::RequestContext;
use crate::proxy::live::Live;
use crate::proxy::receive::call::api::Operation;
use crate::proxy::receive::call::quota::{BUCKETS_MAX, Reports, UsageReports};
use crate::proxy::receive::call::quota_messages::{BucketAction, Usage};
use crate::proxy::refusal::Refusal;
use crate::proxy::reply::{self, grpc};
use crate::telemetry::{Metrics, names};
use crate::wire::{self, Request, Response};

/// Buckets that are asked about at the same time, and told about in one message.
const AT_ONCE: usize = 64;
/// The most requests of a bucket that one report says to have been let through: a second's of a
/// million proxies, and less than what no limit has.
const REPORTED_MAX: u64 = 1 << 32;
/// How long the end of a stream may wait to be sent.
const END_MAX: Duration = Duration::from_secs(1);
/// Maximum number of buckets that wait to be told that they are to be forgotten. The others are
/// when they are reported again.
const REFUSED_MAX: usize = 1_024;
/// Maximum length of a bucket in the log, in characters.
const LOGGED_CHARS_MAX: usize = 256;

/// What all buckets of a stream have in common.
pub(super) struct StreamScope {
    live: Arc<Live>,
    /// The head of the call. Locked for as long as it is copied.
    request: Mutex<Request>,
    peer: Arc<Peer>,
    metrics: Metrics,
    /// The name of the caller's token; empty for none.
    owner: String,
    /// What is wrong with what it asks about is logged once a second.
    log: LogThrottle,
}

/// A stream with its buckets.
struct Stream {
    scope: StreamScope,
    state: CallState,
    /// Known from the first message.
    domain: Option<String>,
    /// By their entries. Those that are asked about are not in it.
    buckets: HashMap<String, Bucket>,
    /// When each bucket needs something, in microseconds, with its text.
    due: BTreeSet<(u64, String)>,
    /// Buckets that the caller is to forget at once, by their entries.
    refused: BTreeMap<String, BucketAction>,
    /// When nothing was there to be read, in microseconds: what is read now arrived later.
    listened_us: u64,
    pieces: Sender<Piece>,
}

/// Why a stream ends.
enum End {
    /// The caller has nothing more to say.
    Finished,
    /// Its connection is gone.
    Gone,
    /// This process or its worker stops. The caller comes back to another.
    Stopping,
    Stop(Stop),
    Wrong(Refusal),
}

/// Begins a stream.
pub(super) fn answer(
    live: &Arc<Live>,
    state: &CallState,
    mut request: Request,
    peer: &Arc<Peer>,
    context: Box<RequestContext>,
) -> Response {
    let local = live.load();
    let settings = &local.snapshot().settings;
    // Which domain it asks about is in its first message.
    let owner = match settings.callers.admit(&request.fields, Operation::Decide) {
        Ok(caller) => caller.map_or_else(String::new, |caller| caller.name.clone()),
        Err(refusal) => return context.refuse(&refusal),
    };
    if request.version != Version::HTTP_2 {
        return context.refuse(&Refusal::NotFound);
    }
    let reports = Reports::of(std::mem::take(&mut request.body), settings.buffered_bytes_max);
    let (pieces, reply) = pieces::reply();
    let stream = Stream {
        scope: StreamScope {
            live: Arc::clone(live),
            request: Mutex::new(request),
            peer: Arc::clone(peer),
            metrics: local.no_route().tally.metrics().clone(),
            owner,
            log: LogThrottle::default(),
        },
        state: state.clone(),
        domain: None,
        buckets: HashMap::new(),
        due: BTreeSet::new(),
        refused: BTreeMap::new(),
        listened_us: clock::boottime_us(),
        pieces,
    };
    let stopping = state.streams.begin();
    // It ends when the reply's body is dropped, as nobody receives its pieces then.
    drop(tokio::spawn(stream.run(reports, stopping)));
    context.answer_call(None, reply)
}

impl Stream {
    async fn run(mut self, mut reports: Reports, stopping: Arc<Notify>) {
        let end = loop {
            let wait_us = self.due.first().map(|(due_us, _)| *due_us);
            let wait_us = if self.refused.is_empty() { wait_us } else { Some(0) };
            let wait_us = wait_us.map(|due_us| due_us.saturating_sub(clock::boottime_us()));
            let pieces = self.pieces.clone();
            // Its place in the queue comes first: what is taken lives on while it waits for that.
            let wake = async {
                match wait_us {
                    Some(us) => tokio::time::sleep(Duration::from_micros(us)).await,
                    None => std::future::pending().await,
                }
                pieces.reserve().await
            };
            let arrived = match reports.next().now_or_never() {
                Some(arrived) => arrived,
                None => {
                    self.listened_us = clock::boottime_us();
                    tokio::select! {
                        biased;
                        () = stopping.notified() => break End::Stopping,
                        () = self.pieces.closed() => break End::Gone,
                        arrived = reports.next() => {
                            self.listened_us = clock::boottime_us();
                            arrived
                        }
                        permit = wake => {
                            let Ok(permit) = permit else { break End::Gone };
                            match self.assign_due().await {
                                Ok(actions) if actions.is_empty() => {}
                                Ok(actions) => {
                                    permit.send(Piece::Message(reply::quota::message(actions)));
                                }
                                Err(stop) => break End::Stop(stop),
                            }
                            continue;
                        }
                    }
                }
            };
            match arrived {
                Ok(Some(reports)) => {
                    if let Err(refusal) = self.read(reports).await {
                        break End::Wrong(refusal);
                    }
                    tokio::task::yield_now().await;
                }
                Ok(None) => break End::Finished,
                Err(refusal) => break End::Wrong(refusal),
            }
        };
        // One that does not read is not waited for.
        let _ = tokio::time::timeout(END_MAX, self.end(end)).await;
    }

    /// Notes what is reported.
    async fn read(&mut self, reports: UsageReports) -> Result<(), Refusal> {
        let domain = match &self.domain {
            Some(domain) => domain.clone(),
            None => self.domain.insert(reports.domain()?).clone(),
        };
        let count = |result| self.scope.metrics.counter(names::QUOTA_REQUESTS, &[result]);
        let (allowed, denied) = (count("allowed"), count("denied"));
        for (nth, usage) in reports.usages().enumerate() {
            // Thousands of buckets are in one message, and other work goes on.
            if nth % AT_ONCE == AT_ONCE - 1 {
                tokio::task::yield_now().await;
            }
            let Some(usage) = usage? else {
                self.scope.count("failed");
                self.scope.warn(&domain, "", "a bucket that is too large");
                continue;
            };
            allowed.add(usage.allowed);
            denied.add(usage.denied);
            let allowed = usage.allowed.min(REPORTED_MAX);
            self.read_usage(&domain, Usage { allowed, ..usage });
        }
        Ok(())
    }

    fn read_usage(&mut self, domain: &str, usage: Usage) {
        let Usage { bucket: Some(id), allowed, denied } = usage else { return };
        let Ok(text) = serde_json::to_string(&id.bucket) else { return };
        let now_us = clock::boottime_us();
        if !self.buckets.contains_key(&text) {
            // A report that crossed the word to forget it.
            if allowed == 0 && denied == 0 {
                return;
            }
            match self.begin(domain, &id.bucket, &text, now_us) {
                Ok(bucket) => {
                    self.buckets.insert(text.clone(), bucket);
                }
                Err(why) => {
                    self.scope.count("failed");
                    self.scope.warn(domain, &text, why);
                    // Else it would be reported for ever.
                    if !id.bucket.is_empty() && self.refused.len() < REFUSED_MAX {
                        self.refused.insert(text, reply::quota::abandon(&id.bucket));
                    }
                    return;
                }
            }
        }
        if let Some(bucket) = self.buckets.get_mut(&text) {
            self.due.remove(&(bucket.due_us, text.clone()));
            bucket.report((now_us, self.listened_us), (allowed, denied));
            self.due.insert((bucket.due_us, text));
        }
    }

    fn begin(
        &self,
        domain: &str,
        entries: &BTreeMap<String, String>,
        text: &str,
        now_us: u64,
    ) -> Result<Bucket, &'static str> {
        let local = self.scope.live.load();
        if self.buckets.len() >= BUCKETS_MAX
            || wire::buffered_bytes() > local.snapshot().settings.buffered_bytes_max
        {
            return Err("as many buckets are held as may be");
        }
        let owner = (&*self.scope.owner, local.snapshot().settings.callers.count());
        let part = self.state.streams.join(owner, domain, text);
        let part = part.ok_or("as many buckets are held as may be")?;
        Bucket::new(domain, entries.clone(), part, now_us)
            .ok_or("a bucket without entries, or one that is too large")
    }

    /// Asks the limits of buckets that need something. Returns what the caller is told.
    async fn assign_due(&mut self) -> Result<Vec<BucketAction>, Stop> {
        let refused = std::mem::take(&mut self.refused);
        let mut actions: Vec<BucketAction> = refused.into_values().collect();
        let now_us = clock::boottime_us();
        let mut asked = Vec::new();
        while asked.len() < AT_ONCE
            && let Some((due_us, _)) = self.due.first()
            && *due_us <= now_us
            && let Some((_, text)) = self.due.pop_first()
        {
            asked.extend(self.buckets.remove(&text).map(|bucket| (text, bucket)));
        }
        let scope = &self.scope;
        let answers = join_all(asked.iter_mut().map(|(_, bucket)| bucket.ask_limits(scope))).await;
        // All are told at the same time, whichever was taken first.
        let now_us = clock::boottime_us();
        let mut stop = None;
        for ((text, mut bucket), answer) in asked.into_iter().zip(answers) {
            match answer.map(|asked| bucket.tell(scope, asked, now_us)) {
                Ok(Told::Nothing) => {}
                Ok(Told::Actions(told)) => actions.extend(told),
                Ok(Told::Abandoned(action)) => {
                    actions.push(action);
                    continue;
                }
                Err(why) => stop = Some(why),
            }
            self.due.insert((bucket.due_us, text.clone()));
            self.buckets.insert(text, bucket);
        }
        stop.map_or(Ok(actions), Err)
    }

    async fn end(&self, end: End) {
        if matches!(end, End::Stop(Stop::NoDomain)) {
            let domain = self.domain.as_deref().unwrap_or_default();
            self.scope.warn(domain, "", "no route has this domain");
        }
        let (status, message) = match &end {
            End::Gone => return,
            End::Finished => (grpc::OK, ""),
            End::Stopping => (grpc::UNAVAILABLE, "this proxy stops"),
            End::Stop(Stop::NoDomain) => (grpc::NOT_FOUND, "no route has this domain"),
            End::Stop(Stop::NotAllowed) => {
                (grpc::PERMISSION_DENIED, "the token is not for this domain")
            }
            End::Wrong(
                Refusal::BadRequest(_) | Refusal::BodyTooLarge { .. } | Refusal::Call(_),
            ) => (grpc::INVALID_ARGUMENT, "a message that can't be read"),
            End::Wrong(_) => (grpc::UNAVAILABLE, "the stream broke off"),
        };
        // If this fails, nobody is there to be told.
        let _ = self.pieces.send(Piece::end(status, message)).await;
    }
}

impl StreamScope {
    fn count(&self, result: &'static str) {
        self.metrics.count(names::QUOTA_ASSIGNMENTS, &[result]);
    }

    fn warn(&self, domain: &str, bucket: &str, why: &str) {
        if let Some(held_back) = self.log.due() {
            let bucket: String = bucket.chars().take(LOGGED_CHARS_MAX).collect();
            tracing::warn!(domain, bucket, why, held_back, "a quota can't be assigned");
        }
    }
}
