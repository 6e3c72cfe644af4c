//! What all policies of a process share: wasmtime's engine with its pool of instances, the thread
//! that lets a running guest be stopped, and the names of facts.

use std::fmt;
use std::sync::Arc;

use wasmtime::component::{HasSelf, Linker};
use wasmtime::{
    Cache, CacheConfig, Config, Engine, InstanceAllocationStrategy, PoolingAllocationConfig,
};

use super::abi;
use super::fact::KnownFacts;
use super::instance::State;
use super::ticker::Ticker;
use crate::telemetry::Mistake;

/// Instances of all policies and all workers together.
const INSTANCES_MAX: u32 = 1_000;
/// Core instances of one guest: a Python guest has 38.
pub(super) const CORE_INSTANCES_MAX: u32 = 50;
/// Tables of one guest.
pub(super) const TABLES_MAX: u32 = 20;
/// Linear memories of one guest.
pub(super) const MEMORIES_MAX: u32 = 4;
/// Elements of one table.
pub(super) const TABLE_ELEMENTS_MAX: usize = 20_000;
/// Linear memory of one instance, at most, whatever is configured.
pub(super) const MEMORY_BYTES_MAX: usize = 1 << 30;
/// Stack of a running guest. It is part of the calling thread's stack, which must be larger: 2 MiB
/// is enough.
const STACK_BYTES: usize = 1 << 20;
/// Bytes reserved behind a memory that grew, so that its next growth need not move it. Only where
/// there is no pool.
const GROWTH_BYTES: u64 = 1 << 20;

/// What all policies of a process share: the wasmtime engine and its epoch thread.
pub struct Runtime {
    engine: Engine,
    linker: Linker<State>,
    ticker: Arc<Ticker>,
    facts: KnownFacts,
}

impl fmt::Debug for Runtime {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Runtime").finish_non_exhaustive()
    }
}

impl Runtime {
    /// Starts the engine and its clock thread, which ends with the runtime. `facts` are those that
    /// policies may name.
    ///
    /// # Errors
    /// When this machine can't run wasmtime.
    pub fn new(facts: KnownFacts) -> Result<Arc<Self>, Mistake> {
        Self::of(&pooling(), facts.clone()).or_else(|error| {
            tracing::warn!("policies' instances are made one by one, for there is little address space: {error:#}");
            Self::of(&sparing(), facts).map_err(|error| {
                let expected = "a machine that can run WebAssembly, with 64-bit address space to reserve";
                Mistake::new("", format!("{error:#}"), expected)
            })
        })
    }

    fn of(config: &Config, facts: KnownFacts) -> wasmtime::Result<Arc<Self>> {
        let engine = Engine::new(config)?;
        let mut linker = Linker::new(&engine);
        abi::Policy::add_to_linker::<State, HasSelf<State>>(&mut linker, |state| state)?;
        let ticker = Ticker::start(engine.weak())?;
        Ok(Arc::new(Self { engine, linker, ticker, facts }))
    }

    pub(super) fn engine(&self) -> &Engine {
        &self.engine
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

/// Instances in a pool, where a fresh one is cheapest. It reserves terabytes of address space, and
/// no memory.
fn pooling() -> Config {
    let mut pool = PoolingAllocationConfig::default();
    pool.total_component_instances(INSTANCES_MAX)
        .total_core_instances(INSTANCES_MAX * 10)
        .total_memories(INSTANCES_MAX)
        .total_tables(INSTANCES_MAX * 4)
        .max_core_instances_per_component(CORE_INSTANCES_MAX)
        .max_tables_per_component(TABLES_MAX)
        .max_memories_per_component(MEMORIES_MAX)
        .table_elements(TABLE_ELEMENTS_MAX)
        .max_memory_size(MEMORY_BYTES_MAX);
    let mut config = common();
    config.allocation_strategy(InstanceAllocationStrategy::Pooling(pool));
    config
}

/// For a process with little address space (`ulimit -v`, valgrind): nothing is reserved, every
/// memory access of a guest is checked, and a fresh instance takes twice as long. Each worker keeps
/// a bounded number of instances either way.
fn sparing() -> Config {
    let mut config = common();
    config.allocation_strategy(InstanceAllocationStrategy::OnDemand);
    config.memory_reservation(0).memory_guard_size(0).memory_reservation_for_growth(GROWTH_BYTES);
    config
}

fn common() -> Config {
    let mut config = Config::new();
    config.wasm_component_model(true).epoch_interruption(true).max_wasm_stack(STACK_BYTES);
    // Compiled code is cached on disk if there is a folder for it. Without one, starting takes some
    // milliseconds longer.
    match Cache::new(CacheConfig::new()) {
        Ok(cache) => {
            config.cache(Some(cache));
        }
        Err(error) => tracing::debug!("compiled policies are not cached: {error:#}"),
    }
    config
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::{Module, Policy, Settings, Verdict};
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
        };
        let decide = |config: &Config| {
            let policy = Policy::build(
                &Runtime::of(config, crate::proxy::fact_names()).unwrap(),
                &settings,
                &Metrics::new(1),
            )
            .unwrap();
            policy.decide(&[("client-ip", "192.0.2.1")]).unwrap()
        };
        let decision = decide(&sparing());
        assert!(matches!(decision.verdict, Verdict::Check(_)), "{decision:?}");
        assert_eq!(decision, decide(&pooling()));
    }
}
