//! One running guest and its bounds: CPU time, memory, stack, log lines, and bytes handed over. It
//! is configured before its first call.

use std::sync::Arc;
use std::time::Duration;

use wasmtime::component::{Instance as Running, InstancePre};
use wasmtime::{ResourceLimiter, Store, UpdateDeadline};

use super::abi::{Configure, Decide, HANDLER, Settle, host, types};
use super::error::{Cause, Failure, OverLimit, bounded};
use super::runtime::{CORE_INSTANCES_MAX, MEMORIES_MAX, TABLE_ELEMENTS_MAX, TABLES_MAX};
use super::ticker::Ticker;
use crate::clock::{Clock, Seldom, thread_cpu};

/// Bytes that a guest may hand over in one call, approximately. The largest plan of the contract
/// fits: 16 limits with 4 KiB of key and of tag each. Otherwise a client's long header could make a
/// good policy fail.
const HANDED_OVER_BYTES_MAX: usize = 256 << 10;
/// Resource handles that may exist at once in one instance. The contract has none, but the parts of
/// a component may use them among themselves.
const HANDLES_MAX: usize = 1_000;
/// CPU time to start an instance and configure it, at most.
const START_CPU: Duration = Duration::from_millis(250);
/// Lines that a guest may log in one call; the rest is only counted.
const LOG_LINES_MAX: u32 = 8;
/// Lines that all instances of a policy together may log in a second, as the process has only one
/// log.
pub(super) const LOG_LINES_PER_SECOND_MAX: u32 = 100;
/// Characters of a logged line, at most.
const LOG_CHARS_MAX: usize = 1_000;

/// The bounds of all instances of a policy.
#[derive(Clone, Debug)]
pub(super) struct Bounds {
    pub(super) policy: Arc<str>,
    pub(super) cpu_time: Duration,
    pub(super) memory_bytes: usize,
    pub(super) ticker: Arc<Ticker>,
    /// What all instances of the policy may log together.
    pub(super) log: Arc<Seldom>,
}

/// What the host keeps for one instance.
pub(super) struct State {
    bounds: Bounds,
    /// CPU time of the current call.
    budget: Duration,
    /// The thread's CPU time at the call's first tick. Reading it earlier would cost each call a
    /// system call.
    ticked: Option<Duration>,
    memory_bytes: usize,
    now_ms: Option<u64>,
    lines: u32,
    /// What the current call has logged so far.
    logged: Vec<(host::Level, String)>,
}

/// A configured guest.
pub(super) struct Instance {
    store: Store<State>,
    decide: Decide,
    settle: Settle,
}

/// Why there is no instance.
#[derive(Debug)]
pub(super) enum Unready {
    Failed(Failure),
    /// The guest refused its configuration.
    Refused(Vec<types::Mistake>),
}

impl<E: Into<Failure>> From<E> for Unready {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

impl Instance {
    /// Starts a guest and configures it.
    pub(super) fn start(
        pre: &InstancePre<State>,
        bounds: &Bounds,
        config: &str,
    ) -> Result<(Self, types::Manifest), Unready> {
        let state = State {
            bounds: bounds.clone(),
            budget: START_CPU,
            ticked: None,
            memory_bytes: 0,
            now_ms: None,
            lines: 0,
            logged: Vec::new(),
        };
        let mut store = Store::new(pre.engine(), state);
        store.limiter(|state| state);
        store.set_hostcall_fuel(HANDED_OVER_BYTES_MAX);
        store.set_max_component_handles(HANDLES_MAX);
        store.epoch_deadline_callback(|mut store| Ok(store.data_mut().tick()));
        // Before any code of the guest runs: a start function can loop, too.
        begin(&mut store, START_CPU);
        let running = pre.instantiate(&mut store)?;
        let configure: Configure = typed(&running, &mut store, "configure")?;
        let decide: Decide = typed(&running, &mut store, "decide")?;
        let settle: Settle = typed(&running, &mut store, "settle")?;
        let answer = call(&mut store, START_CPU, None, |store| configure.call(store, (config,)))?;
        let manifest = answer.0.map_err(Unready::Refused)?;
        Ok((Self { store, decide, settle }, manifest))
    }

    /// Calls `decide` for the request `id`. After an error other than [`Cause::Guest`] the instance
    /// must not be used again.
    pub(super) fn decide(
        &mut self,
        facts: &[(&str, &str)],
        id: Option<&[u8]>,
    ) -> Result<types::Decision, Failure> {
        let budget = self.store.data().bounds.cpu_time;
        let decide = &self.decide;
        let (answer,) = call(&mut self.store, budget, id, |store| decide.call(store, (facts,)))?;
        answer.map_err(|error| Failure::new(Cause::Guest, &error))
    }

    /// Calls `settle` for the request `id`. After an error other than [`Cause::Guest`] the instance
    /// must not be used again.
    pub(super) fn settle(
        &mut self,
        memo: &str,
        view: &types::ResponseView,
        id: Option<&[u8]>,
    ) -> Result<Vec<types::Adjustment>, Failure> {
        let budget = self.store.data().bounds.cpu_time;
        let settle = &self.settle;
        let (answer,) =
            call(&mut self.store, budget, id, |store| settle.call(store, (memo, view)))?;
        answer.map_err(|error| Failure::new(Cause::Guest, &error))
    }
}

fn typed<P, R>(
    running: &Running,
    store: &mut Store<State>,
    name: &str,
) -> Result<wasmtime::component::TypedFunc<P, R>, Failure>
where
    P: wasmtime::component::ComponentNamedList + wasmtime::component::Lower,
    R: wasmtime::component::ComponentNamedList + wasmtime::component::Lift,
{
    let missing = || Failure::new(Cause::Answer, &format!("no export `{HANDLER}` `{name}`"));
    let (_, handler) = running.get_export(&mut *store, None, HANDLER).ok_or_else(missing)?;
    let (_, function) =
        running.get_export(&mut *store, Some(&handler), name).ok_or_else(missing)?;
    Ok(running.get_typed_func(store, function)?)
}

fn begin(store: &mut Store<State>, budget: Duration) {
    let state = store.data_mut();
    state.budget = budget;
    state.ticked = None;
    state.now_ms = None;
    state.lines = 0;
    state.logged.clear();
    state.bounds.ticker.want();
    store.set_epoch_deadline(1);
}

/// One call, for the request `id` if there is one. What the guest logged is written at the end,
/// whether the call succeeds or not.
fn call<R>(
    store: &mut Store<State>,
    budget: Duration,
    id: Option<&[u8]>,
    run: impl FnOnce(&mut Store<State>) -> wasmtime::Result<R>,
) -> Result<R, Failure> {
    begin(store, budget);
    let answer = run(store);
    if store.data().lines > 0 {
        store.data_mut().write_log(id);
    }
    Ok(answer?)
}

impl State {
    /// Whether this policy may log one more line now. If it may again, first logs how many lines
    /// were suppressed.
    fn may_log(&self) -> bool {
        let held_back = self.bounds.log.due();
        if let Some(lines) = held_back.filter(|lines| *lines > 0) {
            tracing::warn!(
                policy = &*self.bounds.policy,
                "the policy logged {lines} lines more than {LOG_LINES_PER_SECOND_MAX} a second; they are not shown"
            );
        }
        held_back.is_some()
    }

    /// Called when the ticker's thread interrupts the running guest: continues while there is CPU
    /// time left. The time before the call's first tick, at most 1 ms, is not counted.
    fn tick(&mut self) -> UpdateDeadline {
        self.bounds.ticker.want();
        let now = thread_cpu();
        let since = *self.ticked.get_or_insert(now);
        if now.saturating_sub(since) >= self.budget {
            UpdateDeadline::Interrupt
        } else {
            UpdateDeadline::Continue(1)
        }
    }

    /// Writes what the guest logged.
    #[cold]
    fn write_log(&mut self, id: Option<&[u8]>) {
        let policy = &*self.bounds.policy;
        let request_id = id.and_then(|id| std::str::from_utf8(id).ok());
        for (level, message) in self.logged.drain(..) {
            match level {
                host::Level::Debug => tracing::debug!(policy, request_id, "{message}"),
                host::Level::Info => tracing::info!(policy, request_id, "{message}"),
                host::Level::Warn => tracing::warn!(policy, request_id, "{message}"),
                host::Level::Error => tracing::error!(policy, request_id, "{message}"),
            }
        }
        if self.lines > LOG_LINES_MAX && self.may_log() {
            let more = self.lines - LOG_LINES_MAX;
            tracing::warn!(
                policy,
                request_id,
                "the policy logged {more} more lines in one call; they are not shown"
            );
        }
    }
}

impl ResourceLimiter for State {
    // Errors instead of `false`: after `false`, a guest aborts with a trap that names no cause.
    fn memory_growing(
        &mut self,
        current: usize,
        desired: usize,
        _maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        // Counted over all memories: a component can have several.
        let all = self.memory_bytes.saturating_add(desired.saturating_sub(current));
        if all > self.bounds.memory_bytes {
            return Err(OverLimit { what: "memory" }.into());
        }
        self.memory_bytes = all;
        Ok(true)
    }

    fn table_growing(
        &mut self,
        _current: usize,
        desired: usize,
        _maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        if desired > TABLE_ELEMENTS_MAX {
            Err(OverLimit { what: "table elements" }.into())
        } else {
            Ok(true)
        }
    }

    fn instances(&self) -> usize {
        CORE_INSTANCES_MAX as usize
    }

    fn tables(&self) -> usize {
        TABLES_MAX as usize
    }

    fn memories(&self) -> usize {
        MEMORIES_MAX as usize
    }
}

impl types::Host for State {}

impl host::Host for State {
    fn log(&mut self, level: host::Level, message: String) {
        self.lines = self.lines.saturating_add(1);
        let shown = match level {
            host::Level::Debug => tracing::enabled!(tracing::Level::DEBUG),
            host::Level::Info => tracing::enabled!(tracing::Level::INFO),
            host::Level::Warn => tracing::enabled!(tracing::Level::WARN),
            host::Level::Error => tracing::enabled!(tracing::Level::ERROR),
        };
        if self.lines > LOG_LINES_MAX || !shown || !self.may_log() {
            return;
        }
        self.logged.push((level, bounded(&message, LOG_CHARS_MAX)));
    }

    fn now_ms(&mut self) -> u64 {
        *self
            .now_ms
            .get_or_insert_with(|| u64::try_from(Clock::system().wall_us() / 1_000).unwrap_or(0))
    }
}
