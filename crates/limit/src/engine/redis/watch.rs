//! Which node owns each slot: known to all workers, corrected by redirections at once, and read
//! again from the cluster after a redirection and while calls fail.
//!
//! One task reads, for all workers, and only while there is something to learn. It asks the nodes
//! in turn. Of two different views, the one with the later epoch is right: a master that was cut
//! off still believes that it owns its slots.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ::redis::{Cmd, Value};
use arc_swap::ArcSwapOption;
use tokio::sync::{Notify, watch as version};
use tokio::time::{sleep, timeout_at};

use super::connector::Connector;
use super::link::Link;
use super::topology::Topology;
use super::{failure, text};
use crate::clock;
use crate::engine::{Cause, EngineError, Execution, RedisMode};

/// Pause between two readings.
const READ_EVERY: Duration = Duration::from_millis(100);
/// Pause between two readings of the sentinels while no call fails.
const SENTINELS_EVERY: Duration = Duration::from_secs(1);
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
    /// A call failed while the task pauses.
    wake: Notify,
    /// Changes with the topology, and when no node could be asked.
    changed: version::Sender<u64>,
    state: Mutex<State>,
    /// A single server owns all slots, whatever happens.
    is_fixed: bool,
    /// Sentinels are asked all the time: a master that was replaced may still answer.
    is_always_read: bool,
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
    /// The time since which only views with earlier epochs have been seen.
    doubted: Option<Instant>,
    /// Counts the nodes asked, so that each time another one comes first.
    turn: usize,
}

impl Watch {
    pub(super) fn new(mode: RedisMode, connector: &Connector) -> Self {
        let fixed = (mode == RedisMode::Single).then(|| {
            let nodes: Vec<String> = connector.nodes().collect();
            Arc::new(Topology::single(nodes.join(", "), 0))
        });
        Self {
            is_fixed: fixed.is_some(),
            is_always_read: mode == RedisMode::Sentinel,
            topology: ArcSwapOption::new(fixed),
            wake: Notify::new(),
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
        let not_run = |cause| EngineError { cause, ran: Execution::No };
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
        if let Some(moved) = self.topology().and_then(|known| known.move_slot(slot, address)) {
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
        if state.is_running {
            drop(state);
            self.wake.notify_one();
        } else if !state.is_closed {
            state.is_running = true;
            drop(state);
            tokio::spawn(run(ReadTask(Arc::clone(link))));
        }
    }

    /// The pause before the next reading; `None` if the task is over.
    fn pause(&self) -> Option<Duration> {
        let mut state = self.lock();
        let now = clock::monotonic();
        let failing = state.failed.is_some_and(|at| now.duration_since(at) < READ_FOR);
        let pause = match failing || state.is_wanted {
            _ if state.is_closed => None,
            true => Some(READ_EVERY),
            false if self.is_always_read => Some(SENTINELS_EVERY),
            false => None,
        };
        state.is_running = pause.is_some();
        if pause != Some(READ_EVERY) {
            // The next call waits for an attempt of its own.
            state.refused = None;
        }
        pause
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
struct ReadTask(Arc<Link>);

impl Drop for ReadTask {
    fn drop(&mut self) {
        self.0.watch.lock().is_running = false;
    }
}

async fn run(running: ReadTask) {
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
        let Some(pause) = link.watch.pause() else { return };
        // A call that fails meanwhile ends a long pause.
        let woken = link.watch.wake.notified();
        let _ = timeout_at(tokio::time::Instant::now() + pause, async {
            sleep(READ_EVERY).await;
            woken.await;
        })
        .await;
    }
}

/// Reads the owners from the first node that answers, beginning with another one each time.
async fn read(link: &Arc<Link>) -> Result<Topology, Cause> {
    let known = link.watch.topology().filter(|_| link.connector.is_cluster());
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
    let query = async |words: [&str; 3]| {
        let mut command = Cmd::new();
        words.iter().filter(|word| !word.is_empty()).for_each(|word| _ = command.arg(*word));
        pipeline.call(until, false, |out| command.write_packed_command(out)).await
    };
    let answer =
        |reply: Value| reply.extract_error().map_err(|error| failure::engine_error(&error));
    let wrong = EngineError { cause: Cause::Cluster, ran: Execution::No };
    if let Some(master) = link.connector.sentinels_master() {
        let reply = query(["SENTINEL", "MASTER", master]).await?.extract_error();
        let why = match reply.as_ref().map(Topology::from_sentinel) {
            Ok(Some(topology)) => return Ok(topology),
            Ok(None) => "its answer can't be parsed".to_owned(),
            Err(error) => error.to_string(),
        };
        link.connector.outages.explain(node, format!("asked for the master {master:?}: {why}"));
        return Err(wrong);
    }
    let ranges = answer(query(["CLUSTER", "SLOTS", ""]).await?)?;
    let info = answer(query(["CLUSTER", "INFO", ""]).await?)?;
    // A node that has not joined a cluster knows no masters.
    Topology::parse(&ranges, &text(&info), node)
        .filter(|topology| !topology.masters().is_empty())
        .ok_or(wrong)
}
