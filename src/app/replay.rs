//! `weir replay`: the requests of logs through real routes, policies and limits, in the order and
//! at the times of the log.
//!
//! One thread reads the logs, another decides. Each request is decided with everything before it
//! settled that had ended by then, so how the threads run changes nothing.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::sync::atomic;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;
use std::time::Duration;

use super::counting::LimitRecount;
use super::simulation::in_virtual_time;
use crate::clock::Clock;
use crate::config::{Config, ConfigErrors};
use crate::policy;
use crate::proxy::account;
use crate::proxy::trial::many::{
    DecidedReplay, PendingReplay, ReplayDecision, ReplayReply, ReplayRequest, TrialClient,
};
use crate::proxy::trial::{InvalidRequest, Trial};
use crate::replay::report::ReplayReport;
use crate::replay::{
    Batch, Client, DecidedRequest, Decider, Difference, LogError, Logs, Progress, Record,
    Rejection, Summary, Tally, Verdict, quotas,
};
use crate::telemetry;

/// Batches of requests that are read ahead.
const READ_AHEAD: usize = 8;
/// Bytes of decisions that the deciding thread keeps for requests with the same facts.
const CACHED_DECISIONS_BYTES_MAX: usize = 256 << 20;
/// Requests between two looks for expired counters.
const SWEEP_EVERY: u32 = 4_096;
/// nginx's statuses for a client that went away, and for one that is answered nothing.
const CLIENT_GONE: [u16; 3] = [499, 444, 0];

/// What to replay.
#[derive(Debug)]
pub struct ReplayRun {
    /// The logs, open.
    pub logs: Logs,
    /// What the requests go through.
    pub candidate: Config,
    /// What they go through as well, for comparison.
    pub against: Option<Config>,
    /// The host of requests whose log does not record it; empty for `localhost`.
    pub host: String,
    /// The share of keys that are never to be refused, in percent, for suggested quotas.
    pub percent: f64,
    /// Whether to count what other quotas would do, which takes about as long again.
    pub curves: bool,
}

/// Why a replay was not finished.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// A configuration has errors.
    #[error("{0}")]
    Mistakes(#[from] ConfigErrors),
    /// A log can't be read.
    #[error("{0}")]
    Log(#[from] LogError),
    /// No line of the logs is a request.
    #[error("no line is a request")]
    Nothing(Box<Summary>),
}

/// Watches a replay.
pub trait ReplayObserver {
    /// Called now and then, with the requests that were decided and the bytes that were read.
    fn progress(&mut self, requests: u64, bytes: u64);

    /// Called for each request that does not reach its upstream under the candidate.
    fn stopped(&mut self, record: &Record, client: &Client, seen: &DecidedRequest<'_>);
}

/// Replays logs.
///
/// # Errors
/// A configuration has errors, a log can't be read, or nothing in it is a request.
pub fn replay(
    asked: ReplayRun,
    read: &Progress,
    watch: &mut dyn ReplayObserver,
) -> Result<ReplayReport, ReplayError> {
    let ReplayRun { logs, candidate, against, host, percent, curves } = asked;
    let (send, batches) = sync_channel::<Batch>(READ_AHEAD);
    thread::scope(|scope| {
        let reader = scope.spawn(move || logs.read(|batch| send.send(batch).is_ok()));
        let decided = decide(&batches, (candidate, against), &host, read, watch);
        // A reader that is still at work ends at its next batch.
        drop(batches);
        let summary = match reader.join() {
            Ok(summary) => summary?,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        let mut replayed = match decided? {
            Some(replayed) => ReplayReport { summary, ..replayed },
            None => return Err(ReplayError::Nothing(Box::new(summary))),
        };
        let limits = &mut replayed.candidate.limits;
        replayed.quotas = quotas(limits, percent, curves, LimitRecount::maker);
        replayed.percent = percent;
        Ok(replayed)
    })
}

/// Decides all requests; none if there are none.
fn decide(
    batches: &Receiver<Batch>,
    (candidate, against): (Config, Option<Config>),
    host: &str,
    read: &Progress,
    watch: &mut dyn ReplayObserver,
) -> Result<Option<ReplayReport>, ConfigErrors> {
    let Some(first) = batches.iter().find(|batch| !batch.records.is_empty()) else {
        return Ok(None);
    };
    let has_hosts = candidate.routes.iter().any(|route| route.host.is_some());
    let start_us = first.records.first().map_or(0, |record| record.at_us);
    let mut lane = Lane::build(candidate, start_us)?;
    let mut other = match against {
        Some(config) => Some((Lane::build(config, start_us)?, Tally::brief())),
        None => None,
    };
    // Each lane has metrics of its own, and counts in them without atomic additions.
    telemetry::enter_worker(0);
    policy::set_cache_bytes_max(CACHED_DECISIONS_BYTES_MAX);
    let (mut tally, mut difference) = (Tally::default(), Difference::default());
    let mut clients: Vec<Client> = Vec::new();
    let mut requests = 0;
    for batch in std::iter::once(first).chain(batches.iter()) {
        let Batch { records, clients: new } = batch;
        lane.meet(&new);
        if let Some((other, _)) = &mut other {
            other.meet(&new);
        }
        clients.extend(new);
        for record in &records {
            let before = other.as_mut().map(|(lane, tally)| {
                lane.pass(record, host, |seen| {
                    tally.add(record, seen);
                    seen.verdict.passes()
                })
            });
            lane.pass(record, host, |seen| {
                tally.add(record, seen);
                if let Some(passed) = before {
                    difference.add(record, seen, passed);
                }
                if !seen.verdict.passes()
                    && let Some(client) = clients.get(record.client as usize)
                {
                    watch.stopped(record, client, seen);
                }
            });
        }
        requests += records.len() as u64;
        watch.progress(requests, read.load(atomic::Ordering::Relaxed));
    }
    let against = other.map(|(_, tally)| (tally, difference));
    Ok(Some(ReplayReport {
        clients,
        has_hosts,
        candidate: tally,
        against,
        ..ReplayReport::default()
    }))
}

/// One configuration on the way through a log.
struct Lane {
    trial: Trial,
    clock: Clock,
    clients: Vec<TrialClient>,
    under_way: BinaryHeap<WaitingRequest>,
    sent: u64,
    since_sweep: u32,
}

/// A request that waits for its upstream. The first to end is the greatest.
struct WaitingRequest {
    due_us: i64,
    number: u64,
    rest: PendingReplay,
    reply: ReplayReply,
    took: Duration,
}

impl Lane {
    fn build(mut config: Config, start_us: i64) -> Result<Self, ConfigErrors> {
        // A stopped policy runs again after some real time, in which hours of a log pass.
        config.policies.iter_mut().for_each(|policy| policy.caps.breaker.failures = 0);
        let (trial, clock, _) = in_virtual_time(config, start_us)?;
        Ok(Self {
            trial,
            clock,
            clients: Vec::new(),
            under_way: BinaryHeap::new(),
            sent: 0,
            since_sweep: 0,
        })
    }

    /// Adds the next clients.
    fn meet(&mut self, new: &[Client]) {
        self.clients.extend(new.iter().map(|client| self.trial.client(client.address)));
    }

    /// Takes a request to its decision, after all that had ended by then.
    fn pass<T>(
        &mut self,
        record: &Record,
        host: &str,
        see: impl FnOnce(&DecidedRequest<'_>) -> T,
    ) -> T {
        while let Some(next) = self.under_way.peek_mut()
            && next.due_us <= record.at_us
        {
            let WaitingRequest { due_us, rest, reply, took, .. } =
                std::collections::binary_heap::PeekMut::pop(next);
            self.clock.set(due_us);
            self.trial.pass_on(rest, reply, took);
        }
        self.clock.set(record.at_us);
        self.since_sweep += 1;
        if self.since_sweep == SWEEP_EVERY {
            self.since_sweep = 0;
            self.trial.sweep();
        }
        let passing = self.clients.get_mut(record.client as usize).map(|client| {
            let request = ReplayRequest {
                method: record.method(),
                target: record.target(),
                host: if record.host().is_empty() { host } else { record.host() },
                version: record.version.unwrap_or(11),
                https: record.https.unwrap_or(false),
                headers: record.headers(),
                body_bytes: record.request_bytes,
            };
            self.trial.pass(request, client)
        });
        let passing = match passing {
            Some(Ok(Some(passing))) => passing,
            Some(Err(unusable)) => return see(&unreadable(&unusable)),
            // Can't happen: each request is decided, and a batch has the clients of its requests.
            Some(Ok(None)) | None => return see(&unrouted(Verdict::Failed)),
        };
        let decider = decider(&passing.decided);
        let saw = see(&seen(&passing.decided, decider));
        self.send(passing, record);
        saw
    }

    /// Has its upstream reply as the log says.
    fn send(&mut self, mut passing: DecidedReplay, record: &Record) {
        let Some(rest) = passing.take_rest() else { return };
        let reply = match record.status {
            Some(status) if CLIENT_GONE.contains(&status) => ReplayReply::ClientGone,
            Some(status @ 200..=599) => ReplayReply::Answer(status, record.bytes),
            _ => ReplayReply::Answer(200, record.bytes),
        };
        let took = Duration::from_micros(record.took_us) + passing.decided.delay;
        if took.is_zero() {
            self.trial.pass_on(rest, reply, took);
            return;
        }
        self.sent += 1;
        let us = i64::try_from(took.as_micros()).unwrap_or(i64::MAX);
        let due_us = record.at_us.saturating_add(us);
        self.under_way.push(WaitingRequest { due_us, number: self.sent, rest, reply, took });
    }
}

/// What can't be read is answered 400 before it has a route.
fn unreadable(unusable: &InvalidRequest) -> DecidedRequest<'_> {
    let InvalidRequest { found, expected } = unusable;
    let rejection = Rejection { check: unusable.check(), found: found.as_str(), expected };
    let cause = Some(account::Cause::Request.word());
    DecidedRequest { cause, rejection: Some(rejection), ..unrouted(Verdict::Rejected) }
}

fn unrouted<'a>(verdict: Verdict) -> DecidedRequest<'a> {
    DecidedRequest {
        verdict,
        route: None,
        policy: None,
        limits: &[],
        outcomes: &[],
        settles: false,
        passes_in_us: None,
        cause: None,
        rejection: None,
    }
}

fn decider(decided: &ReplayDecision) -> Option<Decider<'_>> {
    let (policy, scope) = (decided.policy()?, decided.scope()?);
    // What a route without a policy's answer was refused for was not shown to a policy.
    decided.verdict?;
    Some(Decider {
        name: decided.policy_name()?,
        scope: &scope.name,
        facts: (policy.request_facts(), policy.response_facts()),
    })
}

fn seen<'a>(decided: &'a ReplayDecision, policy: Option<Decider<'a>>) -> DecidedRequest<'a> {
    let (limits, outcomes) = decided.limits();
    let passes_in = decided.retry_after();
    DecidedRequest {
        verdict: decided.verdict.map_or(Verdict::Rejected, verdict),
        route: decided.route(),
        policy,
        limits,
        outcomes,
        settles: decided.settles,
        passes_in_us: passes_in.and_then(|wait| u64::try_from(wait.as_micros()).ok()),
        cause: decided.cause.map(account::Cause::word),
        rejection: decided.rejection().map(|it| Rejection {
            check: it.check,
            found: it.found.as_ref(),
            expected: it.expected,
        }),
    }
}

/// A verdict, as the report counts it.
fn verdict(verdict: account::Verdict) -> Verdict {
    match verdict {
        account::Verdict::Admitted
        | account::Verdict::Uncounted
        | account::Verdict::Degraded
        | account::Verdict::Local => Verdict::Admitted,
        account::Verdict::Bypassed => Verdict::Bypassed,
        account::Verdict::Refused | account::Verdict::Unavailable => Verdict::Refused,
        account::Verdict::Denied => Verdict::Denied,
        account::Verdict::Failed => Verdict::Failed,
    }
}

impl Ord for WaitingRequest {
    fn cmp(&self, other: &Self) -> Ordering {
        (other.due_us, other.number).cmp(&(self.due_us, self.number))
    }
}

impl PartialOrd for WaitingRequest {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for WaitingRequest {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for WaitingRequest {}
