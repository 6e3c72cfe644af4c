//! What all policies of a process share: wasmtime's engine with its pool of instances, and the thread that lets a running guest be stopped.

use std::fmt;
use std::sync::Arc;

use wasmtime::component::{HasSelf, Linker};
use wasmtime::{Cache, CacheConfig, Config, Engine, InstanceAllocationStrategy, PoolingAllocationConfig};

use super::abi;
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
/// Stack of a running guest. It lies on the calling thread's, which must be larger: 2 MiB is enough.
const STACK_BYTES: usize = 1 << 20;

/// What all policies of a process share: the wasmtime engine and its epoch thread.
pub struct Runtime {
    engine: Engine,
    linker: Linker<State>,
    ticker: Arc<Ticker>,
}

impl fmt::Debug for Runtime {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Runtime").finish_non_exhaustive()
    }
}

impl Runtime {
    /// Starts the engine and its clock thread, which ends with the runtime.
    ///
    /// # Errors
    /// When this machine can't run wasmtime.
    pub fn new() -> Result<Arc<Self>, Mistake> {
        let unable =
            |error: String| Mistake::new("policies", error, "a machine that can run WebAssembly, with 64-bit address space to reserve");
        let engine = Engine::new(&config()).map_err(|error| unable(format!("{error:#}")))?;
        let mut linker = Linker::new(&engine);
        abi::Policy::add_to_linker::<State, HasSelf<State>>(&mut linker, |state| state).map_err(|error| unable(format!("{error:#}")))?;
        let ticker = Ticker::start(engine.weak()).map_err(|error| unable(error.to_string()))?;
        Ok(Arc::new(Self { engine, linker, ticker }))
    }

    pub(super) fn engine(&self) -> &Engine {
        &self.engine
    }

    pub(super) fn ticker(&self) -> &Arc<Ticker> {
        &self.ticker
    }

    pub(super) fn linker(&self) -> &Linker<State> {
        &self.linker
    }
}

fn config() -> Config {
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
    let mut config = Config::new();
    config.wasm_component_model(true).epoch_interruption(true).max_wasm_stack(STACK_BYTES);
    config.allocation_strategy(InstanceAllocationStrategy::Pooling(pool));
    // Compiled code is kept for the next start where there is a folder for it; without one, starting takes some milliseconds longer.
    match Cache::new(CacheConfig::new()) {
        Ok(cache) => {
            config.cache(Some(cache));
        }
        Err(error) => tracing::debug!("compiled policies are not cached: {error:#}"),
    }
    config
}
