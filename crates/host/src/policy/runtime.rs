//! What all policies of a process share: wasmtime's engine with its pool of instances, the thread
//! that lets a running guest be stopped, the cache of compiled code, and the names of facts.

use std::fmt;
use std::io;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use wasmtime::component::Linker;
use wasmtime::{Config, Engine, InstanceAllocationStrategy, PoolingAllocationConfig};

use super::abi;
use super::bounds::InstanceCount;
use super::cache::Cache;
use super::caps::RuntimeSettings;
use super::fact::KnownFacts;
use super::instance::State;
use super::ticker::Ticker;
use crate::clock::Clock;
use crate::telemetry::SettingError;

/// Maximum linear memory of one instance, whatever is configured.
pub(super) const MEMORY_BYTES_MAX: usize = 1 << 30;
/// Core instances for each of the pool's instances: how many core instances and tables there are
/// per guest, on average. A guest made from one module has one of each.
const CORE_INSTANCES_EACH: u32 = 10;
const TABLES_EACH: u32 = 4;
/// Stack of a thread that builds policies, besides the guest's.
const OWN_STACK_BYTES: usize = 1 << 20;
/// Bytes reserved after a memory that grew, so that its next growth need not move it. Only where
/// there is no pool.
const GROWTH_BYTES: u64 = 1 << 20;
/// How much nicer than the rest of the process a thread is that builds policies while requests are
/// served: a core that is fully used by others gives it a tenth of its time. With the lowest
/// priority of all it would get a hundredth, and a reload might take minutes when it is needed
/// most.
const NICER: i32 = 10;

/// What all policies of a process share: the wasmtime engine and its epoch thread.
pub struct Runtime {
    settings: RuntimeSettings,
    instances: InstanceCount,
    engine: Engine,
    linker: Linker<State>,
    ticker: Arc<Ticker>,
    facts: KnownFacts,
    cache: Option<Cache>,
    /// Whether requests are being served: what is built must leave the processors to them.
    serving: AtomicBool,
    /// What guests are told when they ask for the time.
    clock: Clock,
}

impl fmt::Debug for Runtime {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Runtime").finish_non_exhaustive()
    }
}

impl Runtime {
    /// [`with`](Self::with) the default settings.
    ///
    /// # Errors
    /// When this machine can't run wasmtime.
    pub fn new(facts: KnownFacts) -> Result<Arc<Self>, SettingError> {
        Self::with(&RuntimeSettings::default(), facts)
    }

    /// Starts the engine and its clock thread, which ends with the runtime. `facts` are those that
    /// policies may name.
    ///
    /// # Errors
    /// When this machine can't run wasmtime.
    pub fn with(settings: &RuntimeSettings, facts: KnownFacts) -> Result<Arc<Self>, SettingError> {
        Self::timed(settings, facts, Clock::system())
    }

    /// Like [`with`](Self::with), where guests are told the time of `clock`.
    ///
    /// # Errors
    /// When this machine can't run wasmtime.
    pub fn timed(
        settings: &RuntimeSettings,
        facts: KnownFacts,
        clock: Clock,
    ) -> Result<Arc<Self>, SettingError> {
        Self::of(&pooling(settings), settings, facts.clone(), clock.clone()).or_else(|error| {
            tracing::warn!("instances of policies are allocated one by one, because there is little address space: {error:#}");
            Self::of(&sparing(settings), settings, facts, clock).map_err(|error| {
                let expected = "a machine that can run WebAssembly, with 64-bit address space to reserve";
                SettingError::new("", format!("{error:#}"), expected)
            })
        })
    }

    fn of(
        config: &Config,
        settings: &RuntimeSettings,
        facts: KnownFacts,
        clock: Clock,
    ) -> wasmtime::Result<Arc<Self>> {
        let engine = Engine::new(config)?;
        let mut linker = Linker::new(&engine);
        abi::add_to_linker(&mut linker)?;
        let ticker = Ticker::start(engine.weak())?;
        let cache = Cache::open(&settings.cache, settings.cache_bytes, &engine);
        Ok(Arc::new(Self {
            settings: settings.clone(),
            instances: InstanceCount::default(),
            engine,
            linker,
            ticker,
            facts,
            cache,
            serving: AtomicBool::new(false),
            clock,
        }))
    }

    /// One that counts the Wasm instructions of each call: see [`super::instance::instructions`].
    #[cfg(test)]
    pub(super) fn counting(facts: KnownFacts) -> Arc<Self> {
        let settings = RuntimeSettings::default();
        let mut config = pooling(&settings);
        config.consume_fuel(true);
        Self::of(&config, &settings, facts, Clock::system()).unwrap()
    }

    /// Has policies built on one thread of low priority, for when requests are served here or by
    /// another process on this machine. Before this call, they are compiled on all cores.
    pub fn serve(&self) {
        self.serving.store(true, Ordering::Relaxed);
    }

    /// Does `work` on a thread of its own, which has the stack that guests need.
    ///
    /// # Errors
    /// The thread can't be started.
    pub(super) fn aside<R: Send>(
        &self,
        work: impl FnOnce() -> R + Send,
    ) -> Result<R, SettingError> {
        let low = self.serving.load(Ordering::Relaxed);
        std::thread::scope(|scope| {
            let thread = self.thread("weir-policy-build").spawn_scoped(scope, move || {
                if low {
                    lower_priority();
                }
                work()
            });
            let thread = thread.map_err(|error| {
                let expected = "a thread to build policies on";
                SettingError::new("", format!("no thread could be started: {error}"), expected)
            })?;
            Ok(thread.join().unwrap_or_else(|panic| resume_unwind(panic)))
        })
    }

    /// Does `work` on a thread of its own, as [`aside`](Self::aside) does, but waits for nothing.
    /// Requests need it soon, so the thread has their priority.
    ///
    /// # Errors
    /// The thread can't be started.
    pub(super) fn in_background(&self, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
        self.thread("weir-policy-start").spawn(work).map(drop)
    }

    /// A thread with the stack that guests need.
    fn thread(&self, name: &str) -> std::thread::Builder {
        let stack = OWN_STACK_BYTES + self.settings.stack_bytes;
        std::thread::Builder::new().name(name.into()).stack_size(stack)
    }

    /// Does `compile` with all cores, or with one thread that inherits the caller's priority while
    /// requests are served. The threads end with it.
    pub(super) fn with_compilers<R: Send>(&self, compile: impl FnOnce(&Engine) -> R + Send) -> R {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let threads = if self.serving.load(Ordering::Relaxed) { 1 } else { cores };
        let name = |index| format!("weir-compile-{index}");
        match rayon::ThreadPoolBuilder::new().num_threads(threads).thread_name(name).build() {
            Ok(pool) => pool.install(|| compile(&self.engine)),
            Err(error) => {
                tracing::warn!("policies are compiled without a thread pool: {error}");
                compile(&self.engine)
            }
        }
    }

    /// How many instances there are, of all policies.
    pub(super) fn instances(&self) -> &InstanceCount {
        &self.instances
    }

    pub(super) fn settings(&self) -> &RuntimeSettings {
        &self.settings
    }

    pub(super) fn cache(&self) -> Option<&Cache> {
        self.cache.as_ref()
    }

    pub(super) fn engine(&self) -> &Engine {
        &self.engine
    }

    pub(super) fn clock(&self) -> &Clock {
        &self.clock
    }

    pub(super) fn ticker(&self) -> &Arc<Ticker> {
        &self.ticker
    }

    pub(super) fn facts(&self) -> &KnownFacts {
        &self.facts
    }

    pub(super) fn linker(&self) -> &Linker<State> {
        &self.linker
    }
}

/// Lowers this thread's priority. On Linux a thread has a nice value of its own. Elsewhere it would
/// be that of the process.
fn lower_priority() {
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::process::getpriority_process(None)
        .and_then(|ours| rustix::process::setpriority_process(None, ours + NICER))
    {
        tracing::debug!("policies are built at normal priority: {error}");
    }
}

/// Instances in a pool, where a fresh one is cheapest. It reserves terabytes of address space, and
/// no memory.
fn pooling(settings: &RuntimeSettings) -> Config {
    let RuntimeSettings { core_instances, memories, tables, .. } = *settings;
    let instances = settings.instances.saturating_add(settings.unkept_instances);
    let mut pool = PoolingAllocationConfig::default();
    pool.total_component_instances(instances)
        .total_core_instances(instances.saturating_mul(CORE_INSTANCES_EACH).max(core_instances))
        .total_memories(instances.max(memories))
        .total_tables(instances.saturating_mul(TABLES_EACH).max(tables))
        .max_core_instances_per_component(core_instances)
        .max_tables_per_component(tables)
        .max_memories_per_component(memories)
        .table_elements(settings.table_elements)
        .max_memory_size(MEMORY_BYTES_MAX);
    let mut config = common(settings);
    config.allocation_strategy(InstanceAllocationStrategy::Pooling(pool));
    config
}

/// The configuration for a process with little address space (`ulimit -v`, valgrind): nothing is
/// reserved, every memory access of a guest is checked, and a fresh instance takes twice as long.
/// Each worker keeps a bounded number of instances either way.
fn sparing(settings: &RuntimeSettings) -> Config {
    let mut config = common(settings);
    config.allocation_strategy(InstanceAllocationStrategy::OnDemand);
    config.memory_reservation(0).memory_guard_size(0).memory_reservation_for_growth(GROWTH_BYTES);
    config
}

fn common(settings: &RuntimeSettings) -> Config {
    let mut config = Config::new();
    config.wasm_component_model(true).epoch_interruption(true).max_wasm_stack(settings.stack_bytes);
    config
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::{Caps, MeasuredNames, Module, Policy, Settings, Verdict};
    use super::*;
    use crate::telemetry::Metrics;

    #[test]
    fn a_guest_decides_the_same_where_there_is_little_address_space() {
        let settings = Settings {
            name: "p".into(),
            module: Module::Shipped("client-ip".into()),
            cpu_time: Duration::from_secs(1),
            memory_bytes: 16 << 20,
            isolated: true,
            config_json:
                r#"{"limits": [{"name": "a", "algorithm": "gcra", "quota": 1, "period": "1s"}]}"#
                    .into(),
            scripts: Arc::default(),
            measured: MeasuredNames::default(),
            caps: Caps::default(),
        };
        let of_all = RuntimeSettings::default();
        let decide = |config: &Config| {
            let policy = Policy::build(
                &Runtime::of(
                    config,
                    &of_all,
                    crate::policy::fuzzing::known_facts(),
                    Clock::system(),
                )
                .unwrap(),
                &settings,
                &Metrics::new(1),
            )
            .unwrap();
            policy.decide(&[("client-ip", "192.0.2.1")]).unwrap()
        };
        let decision = decide(&sparing(&of_all));
        assert!(matches!(decision.verdict, Verdict::Check(_)), "{decision:?}");
        assert_eq!(decision, decide(&pooling(&of_all)));
    }

    #[test]
    fn while_requests_are_served_policies_are_built_at_low_priority() {
        let few = RuntimeSettings { instances: 1, ..RuntimeSettings::default() };
        let runtime = Runtime::with(&few, crate::policy::fuzzing::known_facts()).unwrap();
        let nice = || rustix::process::getpriority_process(None).unwrap();
        let threads = |runtime: &Runtime| {
            runtime.aside(|| {
                (nice(), runtime.with_compilers(|_| (nice(), rayon::current_num_threads())))
            })
        };
        let ours = nice();
        let cores = std::thread::available_parallelism().unwrap().get();
        assert_eq!(threads(&runtime).unwrap(), (ours, (ours, cores)));
        runtime.serve();
        if cfg!(target_os = "linux") {
            let lower = (ours + NICER).min(19);
            assert_eq!(threads(&runtime).unwrap(), (lower, (lower, 1)));
        }
        assert_eq!(nice(), ours, "the caller keeps its own");
    }
}
