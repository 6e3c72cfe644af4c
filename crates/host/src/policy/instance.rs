//! One running guest and its bounds: CPU time, memory, stack, log lines, and bytes handed over. It
//! is configured before its first call.

use std::sync::atomic::Ordering;
use std::time::Duration;

use wasmtime::component::InstancePre;
use wasmtime::{ResourceLimiter, Store, UpdateDeadline};

use super::abi::{Exports, Label, host, types, usage};
use super::bounds::{Bounds, CountedInstance};
use super::error::{Cap, Cause, Failure, LimiterRefusal, bounded};
use super::verify;
use crate::clock::thread_cpu;
use crate::plan::TimeZone;

/// Maximum number of signatures that a guest may have verified in one call, and maximum size of a
/// message, in bytes: in the contract.
const VERIFICATIONS_MAX: u32 = 16;
const VERIFIED_BYTES_MAX: usize = 64 << 10;
/// Maximum length of a logged line, in characters.
const LOG_CHARS_MAX: usize = 1_000;

/// What the host keeps for one instance.
pub(super) struct State {
    bounds: Bounds,
    /// CPU time of the current call.
    budget: Duration,
    /// The thread's CPU time at the call's first tick. Reading it earlier would cost each call a
    /// system call.
    ticked: Option<Duration>,
    memory_bytes: usize,
    /// What the last growth of a memory added.
    grown_bytes: usize,
    now_ms: Option<u64>,
    lines: u32,
    /// Signatures that the current call had verified.
    verifications: u32,
    /// What the current call has logged so far.
    logged: Vec<(host::Level, String)>,
}

/// A configured guest.
pub(super) struct Instance {
    store: Store<State>,
    exports: Exports,
    _counted: CountedInstance,
    /// Its memory when it had been configured.
    configured_bytes: usize,
    /// Whether it asked for the time when it was configured.
    configured_by_time: bool,
}

/// Why there is no instance.
#[derive(Debug)]
pub(super) enum StartError {
    Failed(Failure),
    /// The guest refused its configuration.
    Refused(Vec<types::Mistake>),
}

impl<E: Into<Failure>> From<E> for StartError {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

impl Instance {
    /// Starts a guest and configures it.
    pub(super) fn start(
        pre: &InstancePre<State>,
        label: &Label,
        bounds: &Bounds,
        config: &str,
    ) -> Result<(Self, types::Manifest), StartError> {
        let state = State {
            bounds: bounds.clone(),
            budget: bounds.caps.start_cpu_time,
            ticked: None,
            memory_bytes: 0,
            grown_bytes: 0,
            now_ms: None,
            lines: 0,
            verifications: 0,
            logged: Vec::new(),
        };
        let mut store = Store::new(pre.engine(), state);
        store.limiter(|state| state);
        store.set_hostcall_fuel(bounds.caps.answer_bytes);
        store.set_max_component_handles(bounds.pool.handles);
        store.epoch_deadline_callback(|mut store| Ok(store.data_mut().tick()));
        // Before any code of the guest runs: a start function can loop, too.
        let budget = bounds.caps.start_cpu_time;
        begin(&mut store, budget);
        let running = pre.instantiate(&mut store)?;
        // A start function, too, may have asked for it.
        let started_by_time = store.data().now_ms.is_some();
        let exports = Exports::of(label, &running, &mut store)?;
        let answer = call(&mut store, budget, None, |store| exports.configure(store, config))?;
        let manifest = answer.map_err(StartError::Refused)?;
        let configured_bytes = store.data().memory_bytes;
        let configured_by_time = started_by_time || store.data().now_ms.is_some();
        let _counted = bounds.instances.one_more();
        Ok((Self { store, exports, _counted, configured_bytes, configured_by_time }, manifest))
    }

    /// Whether its calls have used up most of the memory that its configuration had left. Some
    /// languages' runtimes leave a little behind in each call: such an instance is replaced before
    /// a request fails for it.
    pub(super) fn is_worn_out(&self) -> bool {
        let state = self.store.data();
        let left = state.bounds.memory_bytes.saturating_sub(self.configured_bytes);
        state.memory_bytes.saturating_sub(self.configured_bytes) > left / 4 * 3
    }

    /// Whether the guest was told the time, in its last call or when it was configured: then its
    /// answer may be another one later. All else that the host tells it depends on the call alone.
    pub(super) fn asked_time(&self) -> bool {
        self.configured_by_time || self.store.data().now_ms.is_some()
    }

    /// Bytes of linear memory that it has.
    pub(super) fn memory_bytes(&self) -> usize {
        self.store.data().memory_bytes
    }

    /// Calls `decide` for the request `id`. After an error other than [`Cause::Guest`] the instance
    /// must not be used again.
    pub(super) fn decide(
        &mut self,
        facts: &[(&str, &str)],
        id: Option<&[u8]>,
    ) -> Result<types::Decision, Failure> {
        let budget = self.store.data().bounds.cpu_time;
        let exports = &self.exports;
        let answer = call(&mut self.store, budget, id, |store| exports.decide(store, facts))?;
        answer.map_err(|error| Failure::new(Cause::Guest, &error))
    }

    /// Calls `settle` for the request `id`. After an error other than [`Cause::Guest`] the instance
    /// must not be used again.
    pub(super) fn settle(
        &mut self,
        memo: &str,
        view: &types::ResponseView,
        id: Option<&[u8]>,
    ) -> Result<types::Settlement, Failure> {
        let budget = self.store.data().bounds.cpu_time;
        let exports = &self.exports;
        let answer = call(&mut self.store, budget, id, |store| exports.settle(store, memo, view))?;
        answer.map_err(|error| Failure::new(Cause::Guest, &error))
    }
}

fn begin(store: &mut Store<State>, budget: Duration) {
    let state = store.data_mut();
    state.budget = budget;
    state.ticked = None;
    state.now_ms = None;
    state.lines = 0;
    state.verifications = 0;
    state.logged.clear();
    state.bounds.ticker.want();
    store.set_epoch_deadline(1);
    #[cfg(test)]
    instructions::start(store);
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
    #[cfg(test)]
    instructions::end(store);
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
                "the policy logged {lines} lines more than `log_lines_per_second` ({}); they are not shown",
                self.bounds.caps.log_lines_per_second
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
        let shown = self.bounds.caps.log_lines;
        if self.lines > shown && self.may_log() {
            let more = self.lines - shown;
            tracing::warn!(
                policy,
                request_id,
                "the policy logged {more} lines in one call beyond `log_lines` ({shown}); they are not shown"
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
            return Err(LimiterRefusal { what: "memory", cap: Some(Cap::Memory) }.into());
        }
        self.grown_bytes = all - self.memory_bytes;
        self.memory_bytes = all;
        self.bounds.largest.fetch_max(all, Ordering::Relaxed);
        Ok(true)
    }

    /// The memory's own maximum is less than was allowed here.
    fn memory_grow_failed(&mut self, _error: wasmtime::Error) -> wasmtime::Result<()> {
        self.memory_bytes = self.memory_bytes.saturating_sub(self.grown_bytes);
        self.grown_bytes = 0;
        Ok(())
    }

    fn table_growing(
        &mut self,
        _current: usize,
        desired: usize,
        _maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        if desired > self.bounds.pool.table_elements {
            Err(LimiterRefusal { what: "table elements", cap: Some(Cap::TableElements) }.into())
        } else {
            Ok(true)
        }
    }

    fn instances(&self) -> usize {
        self.bounds.pool.core_instances as usize
    }

    fn tables(&self) -> usize {
        self.bounds.pool.tables as usize
    }

    fn memories(&self) -> usize {
        self.bounds.pool.memories as usize
    }
}

impl types::Host for State {}

impl usage::Host for State {}

impl host::Host for State {
    fn log(&mut self, level: host::Level, message: String) {
        self.lines = self.lines.saturating_add(1);
        let shown = match level {
            host::Level::Debug => tracing::enabled!(tracing::Level::DEBUG),
            host::Level::Info => tracing::enabled!(tracing::Level::INFO),
            host::Level::Warn => tracing::enabled!(tracing::Level::WARN),
            host::Level::Error => tracing::enabled!(tracing::Level::ERROR),
        };
        if self.lines > self.bounds.caps.log_lines || !shown || !self.may_log() {
            return;
        }
        self.logged.push((level, bounded(&message, LOG_CHARS_MAX)));
    }

    fn verify(
        &mut self,
        key: host::VerifyingKey,
        message: Vec<u8>,
        signature: Vec<u8>,
    ) -> wasmtime::Result<bool> {
        self.verifications += 1;
        if self.verifications > VERIFICATIONS_MAX || message.len() > VERIFIED_BYTES_MAX {
            return Err(LimiterRefusal { what: "verified signatures", cap: None }.into());
        }
        Ok(verify::is_signature(&key, &message, &signature))
    }

    fn local_time(&mut self, zone: String) -> Option<host::DateTime> {
        let unix_ms = i64::try_from(self.now_ms()).ok()?;
        let at = TimeZone::named(&zone)?.local_time(unix_ms)?;
        Some(host::DateTime {
            year: at.year,
            month: at.month,
            day: at.day,
            weekday: at.weekday,
            hour: at.hour,
            minute: at.minute,
            second: at.second,
            offset_s: at.offset_s,
            offset_until_ms: at.offset_until_ms.and_then(|ms| u64::try_from(ms).ok()),
        })
    }

    fn now_ms(&mut self) -> u64 {
        let clock = &self.bounds.clock;
        *self.now_ms.get_or_insert_with(|| u64::try_from(clock.wall_us() / 1_000).unwrap_or(0))
    }
}

/// Wasm instructions that calls execute, where the runtime counts them. Unlike their time, they are
/// the same on any machine.
#[cfg(test)]
pub(super) mod instructions {
    use std::cell::Cell;

    use super::{State, Store};

    thread_local! {
        static LAST: Cell<u64> = const { Cell::new(0) };
    }

    pub(super) fn start(store: &mut Store<State>) {
        // Refused by all runtimes but the one that counts.
        let _counts = store.set_fuel(u64::MAX);
    }

    pub(super) fn end(store: &Store<State>) {
        LAST.set(store.get_fuel().map_or(0, |left| u64::MAX - left));
    }

    /// How many this thread's last call executed.
    pub(in super::super) fn last() -> u64 {
        LAST.get()
    }
}
