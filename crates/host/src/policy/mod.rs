//! Runs policies: a policy is a WebAssembly guest that gets facts about a request and answers with
//! a plan.
//!
//! The only module that knows wasmtime. A bad guest can fail its own request, never the process:
//! CPU time, memory, stack and the size of answers are bounded, and an instance that failed is
//! thrown away. A policy that keeps failing is stopped (`breaker`). `build` makes a policy,
//! `instance` enforces the bounds, `answer` checks what comes back. Nothing here knows HTTP
//! framing, a store, or what becomes of a plan.

mod abi;
mod answer;
mod bounds;
mod breaker;
mod build;
mod cache;
mod caps;
mod component;
mod decision;
mod declared;
mod error;
mod examine;
mod fact;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod health;
mod instance;
mod lints;
mod listed;
mod remember;
mod runtime;
mod spare;
mod stopping;
mod ticker;
mod verify;
mod view;
mod workers;
mod written;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::telemetry::{Lint, LintKind, Metrics, SettingError};
pub use answer::{MessageExcess, RefusalReply};
use bounds::Bounds;
use breaker::{Breaker, Turn};
use error::{CallPhase, Failure};
use health::{CallKind, Health};
use instance::{Instance, StartError};
use remember::Expiry;
use spare::{Next, SpareInstances, Starter};
use workers::Token;
pub use workers::{set_cache_bytes_max, share_cache};

pub use build::shipped;
pub use caps::{BreakerSettings, CacheFolder, Caps, RuntimeSettings};
pub use decision::{
    Bodies, Decision, Denial, HardCut, Joining, LimitResult, Partial, ResponseOutcome,
    ResponseView, Settlement, Term, Verdict,
};
pub use declared::{DeclaredLimit, Warning};
pub use error::{Cause, PolicyError};
pub use examine::{FreshDecision, ModuleReport, examine, load};
pub use fact::{FactNames, KnownFacts, Member};
pub use health::PolicyStats;
pub use lints::PlacedLimit;
pub use listed::ListedLimit;
pub use runtime::Runtime;
pub use stopping::PolicyState;

/// A decision that is valid for some time is remembered for at most this long. Within that time a
/// step of the wall clock has no effect on it.
const REMEMBERED_MS_MAX: u64 = 60_000;

/// One `[policies.NAME]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The policy's name in the configuration.
    pub name: String,
    /// Where the guest comes from.
    pub module: Module,
    /// CPU time of one call.
    pub cpu_time: Duration,
    /// Linear memory of one instance, in bytes.
    pub memory_bytes: usize,
    /// Whether each request has a fresh instance.
    pub isolated: bool,
    /// `[policies.NAME.config]` as JSON.
    pub config_json: Arc<str>,
    /// The names of the operator's own algorithms, besides those of the contract. An answer with
    /// another name is an error.
    pub scripts: Arc<[String]>,
    /// What reaches the metrics.
    pub measured: MeasuredNames,
    /// What else its instances may use.
    pub caps: Caps,
}

/// What a policy says about requests that is shown in metrics, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MeasuredNames {
    /// Labels: requests are counted by their values.
    pub labels: Vec<String>,
    /// Amounts: added up.
    pub amounts: Vec<String>,
}

impl MeasuredNames {
    /// Whether nothing is measured.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.amounts.is_empty()
    }
}

impl Settings {
    /// What is allowed in the configuration but probably not intended, each at its setting. Finding
    /// it takes little time.
    #[must_use]
    pub fn lints(&self) -> Vec<Lint> {
        let methods = written::suspicious("config", &self.config_json);
        methods.iter().map(|method| Lint::of(LintKind::MethodCase, method)).collect()
    }

    /// The limits that the configuration lists, as far as they have the form that the SDK reads. A
    /// policy that is built knows more: [`Policy::limits`].
    #[must_use]
    pub fn written_limits(&self) -> Vec<DeclaredLimit> {
        listed::limits(&self.config_json)
    }
}

/// Where a guest comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Module {
    /// One that ships inside the binary: `client-ip`.
    Shipped(String),
    /// A file's bytes, read by `config`, with its path for messages.
    File {
        /// The path, resolved against the configuration's folder.
        path: std::path::PathBuf,
        /// Its bytes.
        bytes: Arc<[u8]>,
    },
}

impl Module {
    /// The BLAKE3 digest of its bytes in hexadecimal; none of a name that no policy ships under.
    #[must_use]
    pub fn digest(&self) -> Option<String> {
        let digest = match self {
            Self::Shipped(name) => blake3::hash(&build::shipped_module(name)?),
            Self::File { bytes, .. } => blake3::hash(bytes),
        };
        Some(digest.to_hex().to_string())
    }
}

/// A compiled and configured guest. Shared by all workers; each keeps an instance of its own.
pub struct Policy {
    /// Keeps the thread alive that interrupts guests.
    runtime: Arc<Runtime>,
    token: Arc<Token>,
    starter: Starter,
    scripts: Arc<[String]>,
    measured: MeasuredNames,
    isolated: bool,
    remembers: bool,
    limits: Vec<DeclaredLimit>,
    declares_limits: bool,
    warnings: Vec<Warning>,
    request_facts: Vec<String>,
    response_facts: Vec<String>,
    health: Health,
    breaker: Breaker,
    spare: SpareInstances,
    /// Whether a decision has ever had a priority.
    sets_priorities: AtomicBool,
}

impl fmt::Debug for Policy {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Policy").field("name", &self.bounds().policy).finish_non_exhaustive()
    }
}

impl Policy {
    /// Compiles, instantiates and configures a guest; off the request path.
    ///
    /// # Errors
    /// All errors found: in the module (setting `wasm` or `use`), or in its configuration as the
    /// guest's `configure` reports them (setting `config.limits[0].quota`).
    pub fn build(
        runtime: &Arc<Runtime>,
        settings: &Settings,
        metrics: &Metrics,
    ) -> Result<Self, Vec<SettingError>> {
        build::policy(runtime, settings, metrics)
    }

    /// Starts an instance for each of `workers` threads and one more, if starting takes so long (a
    /// large configuration) that no request should wait for it. From then on instances are started
    /// in the background, and a request that finds none fails with [`Cause::Overload`]. Later calls
    /// do nothing.
    pub fn prepare(&self, workers: usize) {
        if !self.spare.prepare(workers) {
            return;
        }
        if let Err(error) = self.runtime.aside(|| self.spare.fill(&self.starter, || true)) {
            tracing::warn!(policy = &*self.bounds().policy, "{error}");
        }
    }

    fn bounds(&self) -> &Bounds {
        &self.starter.bounds
    }

    /// What it says about requests that is shown in metrics.
    #[must_use]
    pub fn measured(&self) -> &MeasuredNames {
        &self.measured
    }

    /// The limits that its decisions may have, as far as it says. If it declares none, those that
    /// its configuration lists in the form that the SDK reads.
    #[must_use]
    pub fn limits(&self) -> &[DeclaredLimit] {
        &self.limits
    }

    /// Whether the policy itself says which limits there are, and which are charged together.
    #[must_use]
    pub fn declares_limits(&self) -> bool {
        self.declares_limits
    }

    /// Those limits that have a setting.
    #[must_use]
    pub fn placed_limits(&self) -> Vec<PlacedLimit> {
        lints::placed(&self.limits, &self.starter.config_json)
    }

    /// What it finds in its configuration that is allowed and probably not meant.
    #[must_use]
    pub fn warnings(&self) -> &[Warning] {
        &self.warnings
    }

    /// Limits that contradict each other, and keys with many spellings, each at its setting.
    #[must_use]
    pub fn limit_lints(&self) -> Vec<Lint> {
        lints::of_limits(&self.limits, &self.starter.config_json)
    }

    /// Its [`warnings`](Self::warnings) for people, each at its setting.
    #[must_use]
    pub fn lints(&self) -> Vec<Lint> {
        self.warnings.iter().map(Warning::lint).collect()
    }

    /// The names of the request facts that the guest reads, each once. Only these are shown to it,
    /// where they exist.
    #[must_use]
    pub fn request_facts(&self) -> &[String] {
        &self.request_facts
    }

    /// The names of the response facts that `settle` reads.
    #[must_use]
    pub fn response_facts(&self) -> &[String] {
        &self.response_facts
    }

    /// Calls the guest. Runs on the calling thread, whose stack must be at least 2 MiB, for at most
    /// the policy's CPU time and two milliseconds.
    ///
    /// # Errors
    /// See [`Cause`].
    pub fn decide(&self, facts: &[(&str, &str)]) -> Result<Arc<Decision>, PolicyError> {
        self.decide_for(None, facts)
    }

    /// [`decide`](Self::decide) for the request with this id, which is logged with the guest's
    /// lines.
    ///
    /// # Errors
    /// See [`Cause`].
    pub fn decide_for(
        &self,
        request_id: Option<&[u8]>,
        facts: &[(&str, &str)],
    ) -> Result<Arc<Decision>, PolicyError> {
        if self.remembers
            && let Some(decision) = workers::recall(&self.token, facts, self.runtime.clock())
        {
            return Ok(decision);
        }
        let (decision, told_time) = self.ask(request_id, facts)?;
        if self.remembers
            && let Some(expiry) = self.expiry(&decision, told_time)
        {
            workers::remember(&self.token, facts, &decision, expiry);
        }
        Ok(decision)
    }

    /// The time until which a decision may be remembered; `None` if it may not be at all. One that
    /// depends on the time may be as long as the policy says.
    fn expiry(&self, decision: &Decision, told_time: bool) -> Option<Expiry> {
        let Some(until_ms) = decision.valid_until_ms else {
            return (!told_time).then_some(Expiry::NEVER);
        };
        let clock = self.runtime.clock();
        let now_ms = u64::try_from(clock.wall_us() / 1_000).unwrap_or(0);
        let ahead_ms = until_ms.checked_sub(now_ms)?.min(REMEMBERED_MS_MAX);
        let ahead_us = i64::try_from(ahead_ms * 1_000).unwrap_or(i64::MAX);
        (ahead_ms > 0).then(|| Expiry::at(clock.steady_us().saturating_add(ahead_us)))
    }

    /// Whether it has ever said how much a request matters. If not, that is the route's word.
    #[must_use]
    pub fn sets_priorities(&self) -> bool {
        self.sets_priorities.load(Ordering::Relaxed)
    }

    /// Calls the guest, whatever is remembered. Also returns whether it was told the time, so that
    /// the same facts may give another decision later.
    fn ask(
        &self,
        request_id: Option<&[u8]>,
        facts: &[(&str, &str)],
    ) -> Result<(Arc<Decision>, bool), PolicyError> {
        let decide = |instance: &mut Instance| {
            let answer = instance.decide(facts, request_id)?;
            let decision = answer::decision(answer, &self.scripts)
                .map_err(|message| Failure::new(Cause::Answer, &message))?;
            if decision.priority.is_some() && !self.sets_priorities() {
                self.sets_priorities.store(true, Ordering::Relaxed);
            }
            Ok((Arc::new(decision), instance.asked_time()))
        };
        let turn = self.breaker.turn();
        if turn == Turn::Stopped {
            let failure = Failure::new(Cause::Stopped, "it kept failing and is stopped");
            return Err(self.failed(failure, CallPhase::Call));
        }
        let decided = self.call(CallKind::Decide, decide);
        let decided = decided.inspect_err(|error| self.suspect(turn, error))?;
        if self.breaker.wants_success(turn) && self.breaker.succeeded(turn, facts) {
            self.resumed();
        }
        Ok(decided)
    }

    /// Reports to the guest how a request ended. It may adjust what its limits took.
    ///
    /// # Errors
    /// See [`Cause`].
    pub fn settle(&self, memo: &str, view: &ResponseView) -> Result<Settlement, PolicyError> {
        self.settle_for(None, memo, view)
    }

    /// [`settle`](Self::settle) for the request with this id, which is logged with the guest's
    /// lines.
    ///
    /// # Errors
    /// See [`Cause`].
    pub fn settle_for(
        &self,
        request_id: Option<&[u8]>,
        memo: &str,
        view: &ResponseView,
    ) -> Result<Settlement, PolicyError> {
        let view = view::view_of(view);
        self.call(CallKind::Settle, |instance| {
            let settlement = instance.settle(memo, &view, request_id)?;
            answer::settlement(settlement).map_err(|message| Failure::new(Cause::Answer, &message))
        })
    }

    /// One call in this thread's instance, or in a fresh one.
    fn call<R>(
        &self,
        called: CallKind,
        call: impl FnOnce(&mut Instance) -> Result<R, Failure>,
    ) -> Result<R, PolicyError> {
        let begun = self.health.begin();
        let kept = if self.isolated { None } else { workers::take(&self.token) };
        let instance = match kept {
            Some(instance) => Ok(instance),
            None => self.start(called),
        };
        let mut instance = match instance {
            Ok(instance) => instance,
            Err(failure) => {
                self.health.end(called, &begun);
                return Err(self.failed(failure, CallPhase::Start));
            }
        };
        let answer = call(&mut instance);
        self.health.end(called, &begun);
        if begun.is_sampled() {
            self.breaker.want_sample();
        }
        // A guest that returned an error of its own may be used again. One that trapped or broke
        // the contract is thrown away: its memory may be in any state.
        let reusable = match &answer {
            Ok(_) => true,
            Err(failure) => failure.cause == Cause::Guest,
        };
        if !self.isolated {
            // One that is only worn out goes on until there is another.
            let is_done = instance.is_worn_out() && !self.spare.are_awaited();
            if reusable && !is_done && self.bounds().may_keep() {
                workers::put(&self.token, instance);
            } else {
                // First of all its memory goes back.
                drop(instance);
                self.spare.lost_one();
                self.refill();
            }
        }
        answer.map_err(|failure| self.failed(failure, CallPhase::Call))
    }

    fn start(&self, called: CallKind) -> Result<Instance, Failure> {
        // Not for isolated policies: each request starts an instance, and would contend for the
        // lock.
        if !self.isolated {
            match self.spare.next(&self.starter) {
                Next::Use(instance) => {
                    self.refill();
                    return Ok(*instance);
                }
                Next::Start => {}
                // What a request has used is charged, however long that takes.
                Next::Fail if called == CallKind::Settle => self.refill(),
                Next::Fail => {
                    self.refill();
                    let why = "it has no instance at hand, and starting one takes long";
                    return Err(Failure::new(Cause::Overload, why));
                }
            }
        }
        let started = match self.starter.start() {
            Err(StartError::Failed(failure)) if failure.cause == Cause::Overload => {
                workers::release();
                self.starter.start()
            }
            started => started,
        };
        started.map_err(|unready| match unready {
            StartError::Failed(failure) => failure,
            StartError::Refused(_) => Failure::new(
                Cause::Guest,
                "the guest refused the configuration that it accepted before",
            ),
        })
    }

    fn refill(&self) {
        self.spare.refill(&self.starter, &self.runtime, Arc::downgrade(&self.token));
    }

    #[cold]
    fn failed(&self, failure: Failure, during: CallPhase) -> PolicyError {
        let failure = failure.naming(self.bounds(), during);
        self.health.failed(failure.cause);
        PolicyError {
            policy: self.bounds().policy.to_string(),
            cause: failure.cause,
            message: failure.message,
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
