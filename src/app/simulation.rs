//! Requests against a configuration in virtual time: `weir policy test`. Routes, policies, limits
//! and the engine in memory are those that serve. There is no connection, and nobody waits.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use super::build::{Builder, ConfigBuild};
use crate::clock::Clock;
use crate::config::{Config, ConfigErrors, Warning};
use crate::engine::{self, EmbeddedSettings};
use crate::plan::LimitOutcome;
use crate::policy::Policy;
use crate::proxy::account::{Account, LimitAccount};
use crate::proxy::trial::{AdmittedRequest, InvalidRequest, Trial, TrialReply, TrialRequest};
use crate::telemetry::{Access, Metrics, SettingError};

/// Maximum number of counters.
const KEYS_MAX: usize = 10_000_000;
/// The least time that a request can take.
const MOMENT: Duration = Duration::from_micros(1);

/// A configuration in virtual time, with its own counters in memory.
#[derive(Debug)]
pub struct Simulation {
    trial: Trial,
    clock: Clock,
    start_us: i64,
    built: ConfigBuild,
    under_way: BinaryHeap<Reverse<(u64, u64)>>,
    /// Requests under way by their number, until they end.
    waiting: HashMap<u64, PendingReply>,
    sent: u64,
}

#[derive(Debug)]
struct PendingReply {
    request: AdmittedRequest,
    reply: TrialReply,
    took: Duration,
}

/// What became of a request.
#[derive(Debug)]
pub struct SimulatedReply {
    /// How it was decided, and how it ended if it did.
    pub account: Account,
    /// What each of its limits would answer now: after its end, if it ended at once.
    pub left: Vec<(String, LimitOutcome)>,
    /// The number under which [`Simulation::send`] and [`Simulation::wait_until`] report its end,
    /// if it is still under way.
    pub under_way: Option<u64>,
}

impl Simulation {
    /// Builds everything that `config` names, but counts in memory, whatever its store is. Time
    /// begins at `start_us`, in microseconds since 1970.
    ///
    /// # Errors
    /// All errors of all modules.
    pub fn build(config: Config, start_us: i64) -> Result<Self, ConfigErrors> {
        let (trial, clock, built) = in_virtual_time(config, start_us)?;
        Ok(Self {
            trial,
            clock,
            start_us,
            built,
            under_way: BinaryHeap::new(),
            waiting: HashMap::new(),
            sent: 0,
        })
    }

    /// What is allowed in the configuration but probably not intended.
    #[must_use]
    pub fn warnings(&self) -> &[Warning] {
        &self.built.warnings
    }

    /// The policy of this name.
    #[must_use]
    pub fn policy(&self, name: &str) -> Option<&Arc<Policy>> {
        self.built.policies.get(name).map(|(_, policy)| policy)
    }

    /// Moves time to `at` after the start. Requests that end until then are ended, in the order of
    /// their ends, and returned with their numbers.
    pub fn wait_until(&mut self, at: Duration) -> Vec<(u64, Account)> {
        let mut ended = Vec::new();
        let until = micros(at);
        while let Some(Reverse((due, number))) =
            self.under_way.peek().copied().filter(|Reverse((due, _))| *due <= until)
        {
            self.under_way.pop();
            self.set(due);
            let Some(PendingReply { request, reply, took }) = self.waiting.remove(&number) else {
                continue;
            };
            ended.push((number, self.trial.end(request, reply, took)));
        }
        self.set(until);
        ended
    }

    /// Ends all requests that are under way, each at its time.
    pub fn wait_for_all(&mut self) -> Vec<(u64, Account)> {
        let last = self.under_way.iter().map(|Reverse((due, _))| *due).max().unwrap_or(0);
        self.wait_until(Duration::from_micros(last))
    }

    /// Sends a request now. Its upstream replies this long `after` it got it.
    ///
    /// # Errors
    /// It is not a request that a client could send.
    pub fn send(
        &mut self,
        request: &TrialRequest,
        reply: TrialReply,
        after: Duration,
    ) -> Result<SimulatedReply, InvalidRequest> {
        let (account, under_way) = self.run(request, reply, after)?;
        let left = self.trial.look(&account);
        Ok(SimulatedReply { account, left, under_way })
    }

    /// [`send`](Self::send) for one of several requests that are sent at one moment: what it takes
    /// of a limit of requests in flight, it has until time goes on.
    ///
    /// # Errors
    /// It is not a request that a client could send.
    pub fn send_together(
        &mut self,
        request: &TrialRequest,
        reply: TrialReply,
    ) -> Result<SimulatedReply, InvalidRequest> {
        let begun = self.trial.begin(request)?;
        let holds = |of: &LimitAccount| of.took > 0 && of.limit.algorithm.holds();
        let holds = begun.account().limits.iter().any(holds);
        let after = if holds { MOMENT } else { Duration::ZERO };
        let (account, under_way) = self.go_on(begun, reply, after);
        let left = self.trial.look(&account);
        Ok(SimulatedReply { account, left, under_way })
    }

    /// [`send`](Self::send) for many requests: without asking what is left. Returns the number of
    /// the request, too, if it is still under way.
    ///
    /// # Errors
    /// It is not a request that a client could send.
    pub fn run(
        &mut self,
        request: &TrialRequest,
        reply: TrialReply,
        after: Duration,
    ) -> Result<(Account, Option<u64>), InvalidRequest> {
        let begun = self.trial.begin(request)?;
        Ok(self.go_on(begun, reply, after))
    }

    /// Has a request's upstream reply this long after it got it.
    fn go_on(
        &mut self,
        begun: AdmittedRequest,
        reply: TrialReply,
        after: Duration,
    ) -> (Account, Option<u64>) {
        let took = begun.account().delay + after;
        if !begun.is_sent() || took.is_zero() {
            return (self.trial.end(begun, reply, took), None);
        }
        let account = begun.account().clone();
        self.sent += 1;
        let number = self.sent;
        let now = u64::try_from(self.clock.wall_us() - self.start_us).unwrap_or(0);
        self.under_way.push(Reverse((now.saturating_add(micros(took)), number)));
        self.waiting.insert(number, PendingReply { request: begun, reply, took });
        (account, Some(number))
    }

    fn set(&self, since_start_us: u64) {
        self.clock.set(self.start_us.saturating_add_unsigned(since_start_us));
    }
}

/// Everything that `config` names around a clock that its owner moves, with counters in memory.
pub(super) fn in_virtual_time(
    mut config: Config,
    start_us: i64,
) -> Result<(Trial, Clock, ConfigBuild), ConfigErrors> {
    let source = Arc::clone(&config.source);
    let clock = Clock::simulated_at(start_us);
    let general = |setting_error: SettingError| source.locate(&[setting_error]);
    config.engine = engine::Settings::Embedded(EmbeddedSettings::new(KEYS_MAX));
    config.requests.access = Access::Off;
    let builder =
        Builder::new(Metrics::new(1), clock.clone(), &config.policy_runtime).map_err(general)?;
    let (built, snapshot) = builder.build(config, None)?;
    let trial = Trial::new(Arc::new(snapshot.for_trials())).map_err(|error| {
        general(SettingError::new("", error.to_string(), "a machine that can run a timer"))
    })?;
    Ok((trial, clock, built))
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
