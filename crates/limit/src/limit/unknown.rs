//! Permits of a `concurrency` that a call with an unknown outcome may have taken: no request holds
//! them. They were named before the call, so they are given back by name, again and again until the
//! store has answered or they would have ended anyway.

use std::sync::Arc;
use std::time::Duration;

use super::queue::Worker;
use super::shared::Shared;
use crate::clock::monotonic;
use crate::engine::{Cells, Kind};

/// Time between two attempts to give them back.
const UNKNOWN_EVERY: Duration = Duration::from_millis(100);

/// Gives back the permits among `cells`, of which a call may have taken some.
pub(super) fn give_back(shared: &Arc<Shared>, worker: &Arc<Worker>, cells: &Cells) {
    let permits: Cells =
        cells.iter().filter(|cell| cell.program.kind == Kind::Leases).cloned().collect();
    let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
    if worker.leases.add_unknown(permits, monotonic() + shared.lease) {
        let task = UnknownTask(Some(Arc::clone(worker)));
        runtime.spawn(give_back_all(Arc::clone(shared), task));
    }
}

/// Marks the task that gives permits back as ended when dropped, even if the runtime drops it.
struct UnknownTask(Option<Arc<Worker>>);

impl Drop for UnknownTask {
    fn drop(&mut self) {
        if let Some(worker) = &self.0 {
            worker.leases.end_unknown_task();
        }
    }
}

async fn give_back_all(shared: Arc<Shared>, mut task: UnknownTask) {
    while let Some(worker) = task.0.clone() {
        let due = worker.leases.take_unknown();
        if due.is_empty() {
            // Another task may have started already: don't mark that one as ended.
            task.0 = None;
            return;
        }
        let mut away: Vec<usize> = Vec::new();
        for (cells, until) in due {
            let shard = cells.first().map_or(0, |cell| shared.engine.shard_of(&cell.key));
            let given = !away.contains(&shard) && shared.engine.give_back(&cells, 0).await.is_ok();
            if !given && monotonic() < until {
                away.push(shard);
                worker.leases.put_back_unknown(cells, until);
            }
        }
        if !away.is_empty() {
            tokio::time::sleep(UNKNOWN_EVERY).await;
        }
    }
}
