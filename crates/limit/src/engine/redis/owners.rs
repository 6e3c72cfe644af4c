//! Reads from the store which node owns each slot: after a redirection, and while calls fail. Must
//! not know which of two views is right (`watch`), nor what is sent to the owners (`send`).
//!
//! One task reads, for all workers, and only while there is something to learn. It asks the nodes
//! in turn.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ::redis::{Cmd, Value};
use tokio::time::{sleep, timeout_at};

use super::link::Link;
use super::outage::NO_MASTER;
use super::topology::Topology;
use super::watch::READ_EVERY;
use super::{failure, text};
use crate::clock;
use crate::engine::{Cause, EngineError, Execution};

/// Time limit for one node's answer.
const ANSWER_WAIT: Duration = Duration::from_millis(250);

/// The topology. Waits for it at most until `until`, and not at all while no node can be asked.
pub(super) async fn known(link: &Arc<Link>, until: Instant) -> Result<Arc<Topology>, EngineError> {
    let not_run = |cause| EngineError { cause, ran: Execution::No };
    let watch = &link.watch;
    let mut changed = watch.changes();
    loop {
        if let Some(topology) = watch.topology() {
            return Ok(topology);
        }
        failed(link);
        if let Some(cause) = watch.refused() {
            return Err(not_run(cause));
        }
        let until = tokio::time::Instant::from_std(until);
        match timeout_at(until, changed.changed()).await {
            Ok(Ok(())) if !watch.is_closed() => {}
            Ok(_) => return Err(not_run(Cause::Connection)),
            Err(_) => return Err(not_run(Cause::Timeout)),
        }
    }
}

/// A node has redirected: `slot` is owned by the node at `address`.
pub(super) fn moved(link: &Arc<Link>, slot: u16, address: &str) {
    if link.watch.moved(slot, address) {
        start(link);
    }
}

/// A call failed: the owners are read again and again until no call has failed for a while.
pub(super) fn failed(link: &Arc<Link>) {
    if link.watch.failed() {
        start(link);
    }
}

fn start(link: &Arc<Link>) {
    tokio::spawn(run(ReadTask(Arc::clone(link))));
}

/// The task that reads. When it ends, in whatever way, the next failure starts another.
struct ReadTask(Arc<Link>);

impl Drop for ReadTask {
    fn drop(&mut self) {
        self.0.watch.end_task();
    }
}

async fn run(running: ReadTask) {
    let link = &running.0;
    loop {
        link.watch.begin_reading();
        match read(link).await {
            Ok(seen) => link.watch.accept(seen),
            Err(cause) => link.watch.refuse(cause),
        }
        if let Some(topology) = link.watch.topology() {
            let is_master = |node: &str| match node {
                NO_MASTER => topology.lacks_owners(),
                node => topology.masters().iter().any(|master| &*master.address == node),
            };
            link.connector.outages.keep(is_master, clock::monotonic());
        }
        let Some(pause) = link.watch.pause() else { return };
        // A call that fails meanwhile ends a long pause.
        let woken = link.watch.woken();
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
        let Some(node) = nodes.get(link.watch.next_turn() % count) else { continue };
        match ask(link, node).await {
            Ok(seen) => return Ok(seen),
            Err(error) => failed = error.cause,
        }
    }
    Err(failed)
}

async fn ask(link: &Arc<Link>, node: &Arc<str>) -> Result<Topology, EngineError> {
    let until = clock::monotonic() + ANSWER_WAIT.max(link.connector.deadline());
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
        let state = query(["SENTINEL", "MASTER", master]).await?.extract_error();
        let address = query(["SENTINEL", "GET-MASTER-ADDR-BY-NAME", master]).await?;
        let seen =
            state.and_then(|state| Ok(Topology::from_sentinel(&state, &address.extract_error()?)));
        let why = match seen {
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
