//! A worker's way to the store: a pipeline to each node, the scripts that it uses, and the rules by
//! which a command finds its node.
//!
//! A link belongs to one worker. Its locks exist because the engine closes links from another
//! thread. They are never contended, nor held across an await.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ::redis::Value;
use smallvec::SmallVec;
use tokio::time::sleep;

use super::connector::Connector;
use super::failure::{self, ErrorAction};
use super::pipeline::Pipeline;
use super::topology::{Topology, address_of};
use super::watch::Watch;
use crate::clock;
use crate::engine::driver::{Script, Verb};
use crate::engine::{Cause, Cells, EngineError, Execution};

/// MOVED and ASK that one call follows.
const REDIRECTS_MAX: usize = 5;
/// How often one call is sent again because the node can't serve it yet.
const RETRIES_MAX: usize = 2;
/// Pause before the first of these retries.
const NOT_YET_WAIT: Duration = Duration::from_millis(5);
/// Pause before a key is asked for again while its slot moves. It doubles each time, and only the
/// deadline ends it: one slot moves within milliseconds.
const MOVING_WAIT: Duration = Duration::from_millis(1);
/// A node that can't serve any of its slots is left alone for this long.
const REST: Duration = Duration::from_millis(100);
/// Scripts that a worker caches; when there are more, the cache is emptied.
const SCRIPTS_CACHED_MAX: usize = 512;

type Programs = SmallVec<[usize; 4]>;

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

    /// Sends a command to the owner of `slot`, and again after an answer that proves that nothing
    /// ran, at most until `until`. `command` writes it; it is told whether a script's text is
    /// needed.
    pub(super) async fn send(
        self: &Arc<Self>,
        slot: u16,
        until: Instant,
        command: impl Fn(bool, &mut Vec<u8>),
    ) -> Result<Value, EngineError> {
        let (mut with_text, mut asks, mut redirects) = (false, None, 0);
        let (mut retries, mut waits) = (0, 0);
        loop {
            let (pipeline, node, asking) = match asks.take() {
                Some(node) => (self.pipeline(&node)?, node, true),
                None => {
                    let node = self.owner(slot, until).await?;
                    (self.pipeline(&node)?, node, false)
                }
            };
            let reply = pipeline.call(until, asking, |out| command(with_text, out)).await?;
            let error = match reply.extract_error() {
                Ok(value) => return Ok(value),
                Err(error) => error,
            };
            let not_run = Err(EngineError { cause: Cause::Cluster, ran: Execution::No });
            match failure::next(&error) {
                ErrorAction::SendText if with_text => {
                    return Err(EngineError { cause: Cause::Script, ran: Execution::No });
                }
                ErrorAction::SendText => with_text = true,
                ErrorAction::Moved { host, port } | ErrorAction::Ask { host, port }
                    if redirects == REDIRECTS_MAX || !self.connector.is_cluster() =>
                {
                    tracing::debug!(slot, host, port, "redirected too often");
                    return not_run;
                }
                ErrorAction::Moved { host, port } => {
                    redirects += 1;
                    self.watch.moved(self, slot, &address_of(&host, &port, &node));
                }
                ErrorAction::Ask { host, port } => {
                    redirects += 1;
                    asks = Some(Arc::from(address_of(&host, &port, &node)));
                }
                ErrorAction::WaitForSlot => {
                    if !pause(MOVING_WAIT * 2_u32.saturating_pow(waits), until).await {
                        return not_run;
                    }
                    waits += 1;
                    // Asked again, the owner redirects again.
                    redirects = 0;
                }
                // Its address leads to another server by now, or will soon. The connection would
                // stay with this one.
                ErrorAction::Demoted if self.connector.is_single() => {
                    pipeline.leave(Cause::Cluster);
                    return not_run;
                }
                ErrorAction::WaitForNode | ErrorAction::Demoted if retries < RETRIES_MAX => {
                    retries += 1;
                    if !pause(NOT_YET_WAIT, until).await {
                        return not_run;
                    }
                }
                ErrorAction::WaitForNode | ErrorAction::Demoted => {
                    pipeline.rest(Cause::Cluster, REST);
                    return not_run;
                }
                ErrorAction::Fail(error) => return Err(error),
            }
        }
    }

    async fn owner(self: &Arc<Self>, slot: u16, until: Instant) -> Result<Arc<str>, EngineError> {
        let topology = match self.watch.topology() {
            Some(topology) => topology,
            None => self.watch.known(self, until).await?,
        };
        match topology.owner(slot) {
            Some(owner) => Ok(Arc::clone(&owner.address)),
            None => Err(EngineError { cause: Cause::Cluster, ran: Execution::No }),
        }
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
    /// owner is not known.
    pub(super) fn node_of(&self, slot: u16) -> Arc<str> {
        let topology = self.watch.topology();
        let owner = topology.as_ref().and_then(|topology| topology.owner(slot));
        owner.map_or_else(
            || self.connector.nodes().collect::<Vec<_>>().join(", ").into(),
            |owner| Arc::clone(&owner.address),
        )
    }

    /// The script for these cells' programs.
    pub(super) fn script(&self, verb: Verb, cells: &Cells) -> Arc<Script> {
        let programs: Programs =
            cells.iter().map(|cell| std::ptr::from_ref(cell.program).addr()).collect();
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

/// Waits for `span`. Returns false at once if that would be later than `until`.
async fn pause(span: Duration, until: Instant) -> bool {
    if clock::monotonic() + span >= until {
        return false;
    }
    sleep(span).await;
    true
}
