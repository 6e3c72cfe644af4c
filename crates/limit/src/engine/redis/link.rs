//! A worker's way to the store: a pipeline to each node, and the scripts that it uses. Must not
//! know by which rules a command finds its node (`send`).
//!
//! A link belongs to one worker. Its locks exist because the engine closes links from another
//! thread. They are never contended, nor held across an await.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use smallvec::SmallVec;

use super::connector::Connector;
use super::outage::{NO_MASTER, NODE_SEPARATOR, ONE_OF};
use super::pipeline::Pipeline;
use super::topology::Topology;
use super::watch::Watch;
use crate::engine::driver::{Script, Verb};
use crate::engine::{Cause, Cell, Cells, EngineError, Execution, Part};

/// Scripts that a worker caches; when there are more, the cache is emptied.
const SCRIPTS_CACHED_MAX: usize = 512;

/// Each cell's program, and what it is to the cells beside it.
type Programs = SmallVec<[(usize, Part); 4]>;

/// A worker's connections to Redis.
pub(super) struct Link {
    pub(super) connector: Arc<Connector>,
    pub(super) watch: Arc<Watch>,
    state: Mutex<State>,
    scripts: Mutex<HashMap<(Verb, Programs), Arc<Script>>>,
}

#[derive(Default)]
struct State {
    is_closed: bool,
    pipelines: HashMap<Arc<str>, Arc<Pipeline>>,
    /// The topology that unused pipelines were last compared with.
    compared: Option<Arc<Topology>>,
}

impl Link {
    pub(super) fn new(connector: Arc<Connector>, watch: Arc<Watch>) -> Self {
        Self { connector, watch, state: Mutex::default(), scripts: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The pipeline to the node at `address`.
    pub(super) fn pipeline(&self, address: &Arc<str>) -> Result<Arc<Pipeline>, EngineError> {
        let mut state = self.lock();
        if let Some(pipeline) = state.pipelines.get(address) {
            return Ok(Arc::clone(pipeline));
        }
        if state.is_closed {
            return Err(EngineError { cause: Cause::Connection, ran: Execution::No });
        }
        state.retire_unused(&self.watch);
        let pipeline = Arc::new(Pipeline::new(Arc::clone(&self.connector), Arc::clone(address)));
        state.pipelines.insert(Arc::clone(address), Arc::clone(&pipeline));
        Ok(pipeline)
    }

    /// The address of the node that owns `slot`, for the log; all that are configured, while the
    /// owner is not known; [`NO_MASTER`], if there is none.
    pub(super) fn node_of(&self, slot: u16) -> Arc<str> {
        let Some(topology) = self.watch.topology() else {
            let nodes: Vec<String> = self.connector.nodes().collect();
            return format!("{ONE_OF}{}", nodes.join(NODE_SEPARATOR)).into();
        };
        topology.owner(slot).map_or_else(|| NO_MASTER.into(), |owner| Arc::clone(&owner.address))
    }

    /// The script for these cells' programs.
    pub(super) fn script(&self, verb: Verb, cells: &Cells) -> Arc<Script> {
        let of_cell = |cell: &Cell| (std::ptr::from_ref(cell.program).addr(), cell.part);
        let programs: Programs = cells.iter().map(of_cell).collect();
        let mut scripts = self.scripts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(script) = scripts.get(&(verb, programs.clone())) {
            return Arc::clone(script);
        }
        if scripts.len() >= SCRIPTS_CACHED_MAX {
            scripts.clear();
        }
        let script = Arc::new(Script::new(verb, cells));
        scripts.insert((verb, programs), Arc::clone(&script));
        script
    }

    /// Closes the link for good, because its engine was dropped.
    pub(super) fn close(&self) {
        let mut state = self.lock();
        state.is_closed = true;
        let pipelines = std::mem::take(&mut state.pipelines);
        drop(state);
        pipelines.values().for_each(|pipeline| pipeline.close());
    }

    pub(super) fn is_closed(&self) -> bool {
        self.lock().is_closed
    }
}

impl State {
    /// Retires the pipelines to nodes that own no slot any more. It suffices to look when a new one
    /// is opened.
    fn retire_unused(&mut self, watch: &Watch) {
        let Some(topology) = watch.topology() else { return };
        let same = self.compared.as_ref().is_some_and(|known| known.has_masters_of(&topology));
        if same {
            return;
        }
        self.pipelines.retain(|address, pipeline| {
            let used = topology.masters().iter().any(|master| master.address == *address);
            if !used {
                pipeline.retire();
            }
            used
        });
        self.compared = Some(topology);
    }
}
