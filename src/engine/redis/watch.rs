//! Which node owns each slot: known to all workers, corrected by redirections at once, and read
//! again from the cluster after a redirection and while calls fail.
//!
//! One task reads, for all workers, and only while there is something to learn. It asks the nodes
//! in turn. Of two different views, the one with the later epoch is right: a master that was cut
//! off still believes that it owns its slots.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ::redis::Cmd;
use arc_swap::ArcSwapOption;
use tokio::sync::watch as version;
use tokio::time::{sleep, timeout_at};

use super::connector::Connector;
use super::link::Link;
use super::topology::Topology;
use super::{failure, text};
use crate::clock;
use crate::engine::{Cause, EngineError, Ran, RedisMode};

/// Pause between two readings.
const READ_EVERY: Duration = Duration::from_millis(100);
/// Readings go on for this long after the last failed call.
const READ_FOR: Duration = Duration::from_secs(3);
/// Time limit for one node's answer.
const ANSWER_WAIT: Duration = Duration::from_millis(250);
/// A view with an earlier epoch is accepted when only such views were seen for this long: the
/// cluster was made anew.
const EPOCH_TRUSTED_FOR: Duration = Duration::from_secs(5);

/// What is known about the owners of slots.
pub(super) struct Watch {
    topology: ArcSwapOption<Topology>,
    /// Changes with the topology, and when no node could be asked.
    changed: version::Sender<u64>,
    state: Mutex<State>,
    /// A single server owns all slots, whatever happens.
    is_fixed: bool,
}

#[derive(Default)]
struct State {
    is_running: bool,
    /// Something was learned since the last reading began.
    is_wanted: bool,
    is_closed: bool,
    /// When a call last failed, or found that nothing is known.
    failed: Option<Instant>,
    /// Why no node could be asked the last time.
    refused: Option<Cause>,
    /// Since when only views with earlier epochs are seen.
    doubted: Option<Instant>,
    /// Counts the nodes asked, so that each time another one comes first.
    turn: usize,
}

impl Watch {
    pub(super) fn new(mode: RedisMode, connector: &Connector) -> Self {
        let fixed = (mode == RedisMode::Single).then(|| {
            let nodes: Vec<String> = connector.nodes().collect();
            Arc::new(Topology::single(nodes.join(", ")))
        });
        Self {
            is_fixed: fixed.is_some(),
            topology: ArcSwapOption::new(fixed),
            changed: version::Sender::new(0),
            state: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The topology, if it is known.
    pub(super) fn topology(&self) -> Option<Arc<Topology>> {
        self.topology.load_full()
    }

    /// The topology. Waits for it at most until `until`, and not at all while no node can be asked.
    pub(super) async fn known(
        &self,
        link: &Arc<Link>,
        until: Instant,
    ) -> Result<Arc<Topology>, EngineError> {
        let not_run = |cause| EngineError { cause, ran: Ran::No };
        let mut changed = self.changed.subscribe();
        loop {
            if let Some(topology) = self.topology() {
                return Ok(topology);
            }
            self.failed(link);
            if let Some(cause) = self.lock().refused {
                return Err(not_run(cause));
            }
            let until = tokio::time::Instant::from_std(until);
            match timeout_at(until, changed.changed()).await {
                Ok(Ok(())) if !self.lock().is_closed => {}
                Ok(_) => return Err(not_run(Cause::Connection)),
                Err(_) => return Err(not_run(Cause::Timeout)),
            }
        }
    }

    /// A node has redirected: `slot` is owned by the node at `address`.
    pub(super) fn moved(&self, link: &Arc<Link>, slot: u16, address: &str) {
        if self.is_fixed {
            return;
        }
        // Another worker may change it in the same moment; the next redirection corrects that.
        if let Some(moved) = self.topology().and_then(|known| known.with_moved(slot, address)) {
            self.topology.store(Some(Arc::new(moved)));
            self.read_again(link, |state| state.is_wanted = true);
        }
    }

    /// A call failed: the owners are read again and again until no call has failed for a while.
    pub(super) fn failed(&self, link: &Arc<Link>) {
        if !self.is_fixed {
            let now = clock::monotonic();
            self.read_again(link, |state| state.failed = Some(now));
        }
    }

    fn read_again(&self, link: &Arc<Link>, why: impl FnOnce(&mut State)) {
        let mut state = self.lock();
        why(&mut state);
        if !state.is_running && !state.is_closed {
            state.is_running = true;
            drop(state);
            tokio::spawn(run(Running(Arc::clone(link))));
        }
    }

    /// Whether to read again. If not, the task is over.
    fn goes_on(&self) -> bool {
        let mut state = self.lock();
        let now = clock::monotonic();
        let failing = state.failed.is_some_and(|at| now.duration_since(at) < READ_FOR);
        state.is_running = !state.is_closed && (failing || state.is_wanted);
        if !state.is_running {
            // The next call waits for an attempt of its own.
            state.refused = None;
        }
        state.is_running
    }

    /// Replaces the known topology with a view, unless the view is older than what is known.
    fn accept(&self, seen: Topology) {
        let now = clock::monotonic();
        let mut state = self.lock();
        state.refused = None;
        if let Some(known) = self.topology() {
            let earlier = seen.epoch() < known.epoch();
            let since = *state.doubted.get_or_insert(now);
            if earlier && now.duration_since(since) < EPOCH_TRUSTED_FOR {
                return;
            }
        }
        state.doubted = None;
        drop(state);
        self.topology.store(Some(Arc::new(seen)));
        self.changed.send_modify(|version| *version += 1);
    }

    fn refuse(&self, cause: Cause) {
        self.lock().refused = Some(cause);
        self.changed.send_modify(|version| *version += 1);
    }

    /// Ends the task, and the waits for it, for good.
    pub(super) fn close(&self) {
        self.lock().is_closed = true;
        self.changed.send_modify(|version| *version += 1);
    }
}

/// The task that reads. When it ends, in whatever way, the next failure starts another.
struct Running(Arc<Link>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.watch.lock().is_running = false;
    }
}

async fn run(running: Running) {
    let link = &running.0;
    loop {
        link.watch.lock().is_wanted = false;
        match read(link).await {
            Ok(seen) => link.watch.accept(seen),
            Err(cause) => link.watch.refuse(cause),
        }
        if let Some(topology) = link.watch.topology() {
            let is_master =
                |node: &str| topology.masters().iter().any(|master| &*master.address == node);
            link.connector.outages.keep(is_master, clock::monotonic());
        }
        if !link.watch.goes_on() {
            return;
        }
        sleep(READ_EVERY).await;
    }
}

/// Reads the owners from the first node that answers, beginning with another one each time.
async fn read(link: &Arc<Link>) -> Result<Topology, Cause> {
    let known = link.watch.topology();
    let masters = known.iter().flat_map(|known| known.masters());
    let mut nodes: Vec<Arc<str>> = masters.map(|master| Arc::clone(&master.address)).collect();
    nodes.extend(link.connector.nodes().map(Arc::from));
    nodes.sort_unstable();
    nodes.dedup();
    let count = nodes.len().max(1);
    let mut failed = Cause::Connection;
    for _ in 0..count {
        let turn = {
            let mut state = link.watch.lock();
            state.turn = state.turn.wrapping_add(1);
            state.turn
        };
        let Some(node) = nodes.get(turn % count) else { continue };
        match ask(link, node).await {
            Ok(seen) => return Ok(seen),
            Err(error) => failed = error.cause,
        }
    }
    Err(failed)
}

async fn ask(link: &Arc<Link>, node: &Arc<str>) -> Result<Topology, EngineError> {
    let until = clock::monotonic() + ANSWER_WAIT;
    let pipeline = link.pipeline(node)?;
    let query = async |word: &str| {
        let mut command = Cmd::new();
        command.arg("CLUSTER").arg(word);
        let reply = pipeline.call(until, false, |out| command.write_packed_command(out)).await?;
        reply.extract_error().map_err(|error| failure::engine_error(&error))
    };
    let (ranges, info) = (query("SLOTS").await?, query("INFO").await?);
    let wrong = EngineError { cause: Cause::Cluster, ran: Ran::No };
    // A node that has not joined a cluster knows no masters.
    Topology::parse(&ranges, &text(&info), node)
        .filter(|topology| !topology.masters().is_empty())
        .ok_or(wrong)
}
