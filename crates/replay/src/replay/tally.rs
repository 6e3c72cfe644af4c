//! What became of the requests of a log, counted: by route, policy, limit, key, client and time.
//! Bounded, whatever the log contains. Knows no engine.

use std::collections::HashMap;
use std::fmt;
use std::hash::BuildHasher as _;

use foldhash::fast::RandomState;

use super::record::{FactNeed, Record};
use crate::plan::{Algorithm, Enforcement, Limit, LimitOutcome, Refund, Role};

/// Maximum number of routes and policies that are counted separately.
const ROWS_MAX: usize = 4_096;
/// Maximum number of limits that are counted separately.
const LIMITS_MAX: usize = 256;
/// Maximum number of keys of a limit: requests with others are counted for the limit alone.
const KEYS_MAX: usize = 4_000_000;
/// Maximum number of demands that are kept to suggest quotas, over all limits.
const DEMANDS_MAX: usize = 50_000_000;
/// Maximum number of refusals that are shown.
const SHOWN_MAX: usize = 20;
/// Maximum number of spans of time that are counted separately.
const SPANS_MAX: usize = 240;
/// Maximum number of facts of a policy that are counted.
const FACTS_MAX: usize = 256;

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// All limits fitted, or the route has no policy.
    Admitted,
    /// The policy lets it through and counts nothing.
    Bypassed,
    /// A limit refused.
    Refused,
    /// The policy refused without asking a limit.
    Denied,
    /// The policy failed.
    Failed,
    /// Refused before the policy was asked: no route, an invalid path.
    Rejected,
}

/// All verdicts, with what they are called.
pub(super) const VERDICTS: [(Verdict, &str); 6] = [
    (Verdict::Admitted, "admitted"),
    (Verdict::Bypassed, "bypassed"),
    (Verdict::Refused, "refused"),
    (Verdict::Denied, "denied"),
    (Verdict::Failed, "failed"),
    (Verdict::Rejected, "rejected"),
];

impl Verdict {
    /// Whether the request reaches its upstream.
    #[must_use]
    pub fn passes(self) -> bool {
        matches!(self, Self::Admitted | Self::Bypassed)
    }

    /// The verdict in one word.
    #[must_use]
    pub fn word(self) -> &'static str {
        VERDICTS.iter().find(|(verdict, _)| *verdict == self).map_or("", |(_, word)| word)
    }

    fn index(self) -> usize {
        VERDICTS.iter().position(|(verdict, _)| *verdict == self).unwrap_or(0)
    }
}

/// How a request was decided.
#[derive(Clone, Copy, Debug)]
pub struct DecidedRequest<'a> {
    /// What became of it.
    pub verdict: Verdict,
    /// Its route's name.
    pub route: Option<&'a str>,
    /// The policy that decided.
    pub policy: Option<Decider<'a>>,
    /// The limits that were asked.
    pub limits: &'a [Limit],
    /// What each of them answered.
    pub outcomes: &'a [LimitOutcome],
    /// The policy's `settle` is called at the request's end.
    pub settles: bool,
    /// When it would pass, in microseconds, where waiting helps.
    pub passes_in_us: Option<u64>,
    /// Why it was refused, in a word.
    pub cause: Option<&'static str>,
    /// Why the request itself was rejected.
    pub rejection: Option<Rejection<&'a str>>,
}

/// Why a request was rejected, whatever a policy answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rejection<Text> {
    /// What of it was looked at: its head, method, target, host, path, route or body.
    pub check: &'static str,
    /// What was found.
    pub found: Text,
    /// What was expected.
    pub expected: &'static str,
}

impl<Text: fmt::Display> fmt::Display for Rejection<Text> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { check, found, expected } = self;
        write!(out, "by the check of its {check}: {found}; expected {expected}")
    }
}

/// The policy of a route.
#[derive(Clone, Copy, Debug)]
pub struct Decider<'a> {
    /// Its name.
    pub name: &'a str,
    /// The namespace of its limits.
    pub scope: &'a str,
    /// The facts that it reads of requests, and of replies.
    pub facts: (&'a [String], &'a [String]),
}

impl<'a> DecidedRequest<'a> {
    /// The enforced limits that refused.
    pub fn refusing(&self) -> impl Iterator<Item = (&'a Limit, &'a LimitOutcome)> {
        let refused = self.verdict == Verdict::Refused;
        let all = self.limits.iter().zip(self.outcomes);
        all.filter(move |(limit, outcome)| refused && limit.is_enforced() && !outcome.fits)
    }
}

/// Requests by what became of them, in the order of [`Verdict`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts([u64; 6]);

impl Counts {
    fn add(&mut self, verdict: Verdict) {
        self.0.iter_mut().skip(verdict.index()).take(1).for_each(|count| *count += 1);
    }

    /// Those with this verdict.
    #[must_use]
    pub fn of(&self, verdict: Verdict) -> u64 {
        self.0.get(verdict.index()).copied().unwrap_or(0)
    }

    /// All.
    #[must_use]
    pub fn all(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Those that reach their upstreams.
    #[must_use]
    pub fn passed(&self) -> u64 {
        self.of(Verdict::Admitted) + self.of(Verdict::Bypassed)
    }
}

/// Requests of one route or policy.
#[derive(Clone, Debug, Default)]
pub struct Row {
    /// Its name; none for requests without a route.
    pub name: Option<String>,
    /// What became of them.
    pub counts: Counts,
}

/// Requests of a policy, and what of them the log does not record.
#[derive(Clone, Debug, Default)]
pub struct PolicyTally {
    /// Its name.
    pub name: String,
    /// What became of them.
    pub counts: Counts,
    /// Each fact that the policy reads.
    pub facts: Vec<FactTally>,
}

/// A fact that a policy reads, and for how many requests the log records it.
#[derive(Clone, Debug)]
pub struct FactTally {
    /// Its name.
    pub name: String,
    /// Whether it is a fact of replies.
    pub of_reply: bool,
    /// Requests for which the log does not record it.
    pub missing: u64,
    /// Requests for which the log has a digest of it.
    pub digests: u64,
    asked: FactNeed,
}

/// What was asked of one counter, at one moment. There may be millions, so it is small.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demand {
    /// Microseconds since 1970.
    pub at_us: i64,
    /// The number of its key.
    pub key: u32,
    /// Units.
    pub cost: u32,
    /// Twice the microseconds that the request took, and 1 if its upstream failed.
    took_and_failed: u64,
}

impl Demand {
    /// How long the request took, in microseconds.
    #[must_use]
    pub fn took_us(&self) -> u64 {
        self.took_and_failed >> 1
    }

    /// Whether its upstream failed.
    #[must_use]
    pub fn failed(&self) -> bool {
        self.took_and_failed & 1 == 1
    }
}

/// One key of a limit.
#[derive(Clone, Copy, Debug, Default)]
pub struct KeyTally {
    /// Requests.
    pub asked: u64,
    /// Requests that the limit refused, or would have.
    pub refused: u64,
    /// Units.
    pub units: u64,
    /// The most units that it used at once, as its limit reported; `u64::MAX` once it was refused.
    pub most_used: u64,
    hash: u64,
}

/// One limit.
#[derive(Debug)]
pub struct LimitTally {
    /// The namespace of its counters.
    pub scope: String,
    /// Its name.
    pub name: String,
    /// The algorithm and its settings.
    pub algorithm: Algorithm,
    /// It refuses nothing.
    pub shadow: bool,
    /// When it gives back what was taken.
    pub refund: Refund,
    /// A request cost nothing: its policy charges it later. No quota is suggested for it.
    pub free: bool,
    /// Its policy's `settle` was called, and may have charged or given back: a suggested quota does
    /// not take that into account.
    pub settled: bool,
    /// Requests.
    pub asked: u64,
    /// Requests that it refused, or would have.
    pub refused: u64,
    /// When it refused first.
    pub first_refused_us: Option<i64>,
    /// The longest wait that it reported.
    pub longest_wait_us: u64,
    /// Its keys.
    pub keys: Vec<KeyTally>,
    /// What was asked, in the order of time.
    pub demands: Vec<Demand>,
    /// Whether not all of it could be kept.
    pub demands_cut: bool,
    numbers: HashMap<Box<str>, u32, RandomState>,
}

/// One client.
#[derive(Clone, Copy, Debug, Default)]
pub struct ClientTally {
    /// Requests.
    pub requests: u64,
    /// Those that did not reach their upstreams.
    pub stopped: u64,
    /// When the first of them was.
    pub first_stopped_us: i64,
    /// The number of the key that its last request with a limit had for the first one.
    key: u32,
}

/// A refusal that is shown.
#[derive(Clone, Debug)]
pub struct Refusal {
    /// Microseconds since 1970.
    pub at_us: i64,
    /// The number of its client.
    pub client: u32,
    /// Method and target.
    pub request: String,
    /// What became of it.
    pub verdict: Verdict,
    /// Limit and key of those that refused.
    pub by: Vec<(String, String)>,
    /// When it would pass.
    pub passes_in_us: Option<u64>,
    /// Why it was refused, in a word.
    pub cause: Option<&'static str>,
    /// Why the request itself was rejected.
    pub rejection: Option<Rejection<String>>,
}

/// Requests over time: passed and stopped.
#[derive(Clone, Debug)]
pub struct Timeline {
    /// The length of a span.
    pub span_us: i64,
    /// When the first span begins.
    pub start_us: i64,
    /// Passed and stopped in each.
    pub spans: Vec<(u64, u64)>,
}

/// What became of all requests.
#[derive(Debug, Default)]
pub struct Tally {
    /// All.
    pub counts: Counts,
    /// Requests by route.
    pub routes: Vec<Row>,
    /// Requests by policy.
    pub policies: Vec<PolicyTally>,
    /// Requests by limit.
    pub limits: Vec<LimitTally>,
    /// Requests by client, at its number.
    pub clients: Vec<ClientTally>,
    /// Requests over time.
    pub timeline: Option<Timeline>,
    /// When the last request came.
    pub last_us: i64,
    /// The first refusals.
    pub refusals: Vec<Refusal>,
    /// Requests that a limiter had refused when they were logged.
    pub were_refused: u64,
    /// Requests without a status.
    pub without_status: u64,
    /// Requests without the host that they asked for.
    pub without_host: u64,
    /// Questions to limits beyond those that are counted.
    pub other_limits: u64,
    demands: usize,
    /// Neither limits nor clients nor refusals are counted.
    is_brief: bool,
}

impl Tally {
    /// A tally that does not count limits, clients and refusals.
    #[must_use]
    pub fn brief() -> Self {
        Self { is_brief: true, ..Self::default() }
    }

    /// Counts a request.
    pub fn add(&mut self, record: &Record, seen: &DecidedRequest<'_>) {
        let passes = seen.verdict.passes();
        self.counts.add(seen.verdict);
        self.last_us = record.at_us;
        self.were_refused += u64::from(record.was_refused);
        self.without_status += u64::from(record.status.is_none() && !record.was_refused);
        self.without_host += u64::from(record.host().is_empty());
        self.timeline.get_or_insert_with(|| Timeline::new(record.at_us)).add(record.at_us, passes);
        self.route(seen);
        if let Some(policy) = &seen.policy {
            self.policy(policy, record, seen.verdict);
        }
        if self.is_brief {
            return;
        }
        let mut first = None;
        if let Some(policy) = &seen.policy {
            let mut likely = self.clients.get(record.client as usize).map_or(0, |it| it.key);
            for limit in seen.limits.iter().zip(seen.outcomes) {
                likely = self.limit(policy.scope, limit, record, (seen.settles, likely));
                first.get_or_insert(likely);
            }
        }
        self.client(record, passes, first);
        if !passes && self.refusals.len() < SHOWN_MAX {
            self.refusals.push(Refusal::of(record, seen));
        }
    }

    fn route(&mut self, seen: &DecidedRequest<'_>) {
        let found = self.routes.iter_mut().find(|row| row.name.as_deref() == seen.route);
        if let Some(row) = found {
            row.counts.add(seen.verdict);
        } else if self.routes.len() < ROWS_MAX {
            let mut row = Row { name: seen.route.map(str::to_owned), ..Row::default() };
            row.counts.add(seen.verdict);
            self.routes.push(row);
        }
    }

    fn policy(&mut self, policy: &Decider<'_>, record: &Record, verdict: Verdict) {
        let index = self.policies.iter().position(|known| known.name == policy.name);
        let index = index.unwrap_or_else(|| {
            if self.policies.len() < ROWS_MAX {
                self.policies.push(PolicyTally::new(policy));
                return self.policies.len() - 1;
            }
            usize::MAX
        });
        let Some(tally) = self.policies.get_mut(index) else { return };
        tally.counts.add(verdict);
        for fact in &mut tally.facts {
            fact.missing += u64::from(!record.holds(&fact.asked));
            fact.digests += u64::from(record.is_digest(&fact.asked));
        }
    }

    /// Returns the number of the key, which often is that of the next limit's, and of the same
    /// client's next request.
    fn limit(
        &mut self,
        scope: &str,
        (limit, outcome): (&Limit, &LimitOutcome),
        record: &Record,
        (settles, likely): (bool, u32),
    ) -> u32 {
        let same = |known: &LimitTally| {
            known.name == limit.name && known.scope == scope && known.algorithm == limit.algorithm
        };
        let index = self.limits.iter().position(same).unwrap_or_else(|| {
            if self.limits.len() < LIMITS_MAX {
                self.limits.push(LimitTally::new(scope, limit));
                return self.limits.len() - 1;
            }
            usize::MAX
        });
        let Some(tally) = self.limits.get_mut(index) else {
            self.other_limits += 1;
            return likely;
        };
        let refused = !outcome.fits && outcome.unmeasured.is_none() && limit.role != Role::Assured;
        tally.asked += 1;
        tally.refused += u64::from(refused);
        if refused {
            tally.first_refused_us.get_or_insert(record.at_us);
            let wait_us = outcome.retry_after_us.unwrap_or(0);
            tally.longest_wait_us = tally.longest_wait_us.max(wait_us);
        }
        let Some(key) = tally.key(&limit.key, likely) else {
            tally.demands_cut = true;
            return likely;
        };
        let cost = limit.cost;
        tally.free |= cost == 0;
        tally.settled |= settles;
        if let Some(counts) = tally.keys.get_mut(key as usize) {
            counts.asked += 1;
            counts.refused += u64::from(refused);
            counts.units = counts.units.saturating_add(cost);
            let capacity = tally.algorithm.capacity().unwrap_or(0);
            let used = if refused { u64::MAX } else { capacity.saturating_sub(outcome.remaining) };
            counts.most_used = counts.most_used.max(used);
        }
        if self.demands >= DEMANDS_MAX {
            tally.demands_cut = true;
            return key;
        }
        if tally.free {
            return key;
        }
        self.demands += 1;
        tally.demands.push(Demand {
            at_us: record.at_us,
            key,
            cost: u32::try_from(cost).unwrap_or(u32::MAX),
            took_and_failed: record.took_us << 1
                | u64::from(record.status.is_some_and(|status| status >= 500)),
        });
        key
    }

    fn client(&mut self, record: &Record, passes: bool, key: Option<u32>) {
        let index = record.client as usize;
        if index >= self.clients.len() {
            self.clients.resize(index + 1, ClientTally::default());
        }
        let Some(client) = self.clients.get_mut(index) else { return };
        client.requests += 1;
        client.key = key.unwrap_or(client.key);
        if !passes {
            if client.stopped == 0 {
                client.first_stopped_us = record.at_us;
            }
            client.stopped += 1;
        }
    }
}

impl PolicyTally {
    fn new(policy: &Decider<'_>) -> Self {
        let (request, reply) = policy.facts;
        let facts =
            request.iter().map(|fact| (fact, false)).chain(reply.iter().map(|it| (it, true)));
        let fact = |(fact, of_reply): (&String, bool)| FactTally {
            name: fact.clone(),
            of_reply,
            missing: 0,
            digests: 0,
            asked: if of_reply { FactNeed::of_reply(fact) } else { FactNeed::of_request(fact) },
        };
        Self {
            name: policy.name.to_owned(),
            counts: Counts::default(),
            facts: facts.take(FACTS_MAX).map(fact).collect(),
        }
    }
}

impl LimitTally {
    fn new(scope: &str, limit: &Limit) -> Self {
        Self {
            scope: scope.to_owned(),
            name: limit.name.clone(),
            algorithm: limit.algorithm.clone(),
            shadow: limit.enforcement == Enforcement::Shadow,
            refund: limit.refund,
            free: false,
            settled: false,
            asked: 0,
            refused: 0,
            first_refused_us: None,
            longest_wait_us: 0,
            keys: Vec::new(),
            demands: Vec::new(),
            demands_cut: false,
            numbers: HashMap::default(),
        }
    }

    /// The key's number. `likely` is looked at first, because the map is far larger than a cache:
    /// three of its lines had to be fetched for each request. Another key with the same hash as
    /// that very one is too unlikely to matter.
    fn key(&mut self, key: &str, likely: u32) -> Option<u32> {
        let hash = self.numbers.hasher().hash_one(key);
        if self.keys.get(likely as usize).is_some_and(|known| known.hash == hash) {
            return Some(likely);
        }
        if let Some(number) = self.numbers.get(key) {
            return Some(*number);
        }
        let number = u32::try_from(self.keys.len()).ok().filter(|_| self.keys.len() < KEYS_MAX)?;
        self.numbers.insert(key.into(), number);
        self.keys.push(KeyTally { hash, ..KeyTally::default() });
        Some(number)
    }

    /// The keys that were refused, the most often refused ones first, at most this many.
    #[must_use]
    pub fn refused_keys(&self, most: usize) -> Vec<(&str, KeyTally)> {
        let all = self.numbers.iter().filter_map(|(key, number)| {
            let tally = self.keys.get(*number as usize)?;
            (tally.refused > 0).then_some((&**key, *tally))
        });
        let mut all: Vec<(&str, KeyTally)> = all.collect();
        all.sort_unstable_by(|(one, a), (other, b)| b.refused.cmp(&a.refused).then(one.cmp(other)));
        all.truncate(most);
        all
    }

    /// How many keys were refused.
    #[must_use]
    pub fn keys_refused(&self) -> usize {
        self.keys.iter().filter(|key| key.refused > 0).count()
    }
}

impl Refusal {
    pub(super) fn of(record: &Record, seen: &DecidedRequest<'_>) -> Self {
        let by = seen.refusing().map(|(limit, _)| (limit.name.clone(), limit.key.clone()));
        Self {
            at_us: record.at_us,
            client: record.client,
            request: format!("{} {}", record.method(), record.target()),
            verdict: seen.verdict,
            by: by.collect(),
            passes_in_us: seen.passes_in_us,
            cause: seen.cause,
            rejection: seen.rejection.map(|it| Rejection {
                check: it.check,
                found: it.found.to_owned(),
                expected: it.expected,
            }),
        }
    }
}

impl Timeline {
    fn new(start_us: i64) -> Self {
        const SECOND_US: i64 = 1_000_000;
        let start_us = start_us - start_us.rem_euclid(SECOND_US);
        Self { span_us: SECOND_US, start_us, spans: Vec::new() }
    }

    fn add(&mut self, at_us: i64, passes: bool) {
        let span = |line: &Self| {
            usize::try_from((at_us - line.start_us).max(0) / line.span_us).unwrap_or(usize::MAX)
        };
        while span(self) >= SPANS_MAX {
            self.span_us = self.span_us.saturating_mul(2);
            let merged = self.spans.chunks(2).map(|pair| {
                pair.iter().fold((0, 0), |(a, b), (passed, stopped)| (a + passed, b + stopped))
            });
            self.spans = merged.collect();
        }
        let index = span(self);
        if index >= self.spans.len() {
            self.spans.resize(index + 1, (0, 0));
        }
        if let Some((passed, stopped)) = self.spans.get_mut(index) {
            *if passes { passed } else { stopped } += 1;
        }
    }
}

#[cfg(test)]
mod tests;
