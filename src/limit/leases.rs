//! What requests under way hold of `concurrency` limits: given back when the request lets go of it, and renewed until then.
//!
//! On Redis one task a worker renews all that is held there, three times in a lease's length, so that two renewals may fail. What is not renewed - its
//! proxy died, its thread is gone - ends by itself. In memory a lease ends with its request or with the process, and is not renewed.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::queue::{Job, Worker};
use super::settle;
use super::shared::Shared;
use crate::engine::{Cell, Cells, Engine};

/// Renewals in a lease's length.
const RENEWALS: u32 = 3;
/// Renewing calls that one worker has under way at once, at most.
const RENEWING_MAX: usize = 16;

/// What one worker's requests hold.
#[derive(Debug, Default)]
pub(super) struct Leases {
    held: Mutex<HashMap<u64, Cells>>,
    next: AtomicU64,
    /// Whether there is a task that renews.
    renewing: AtomicBool,
}

impl Leases {
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Cells>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request's place in a limit. Dropping it gives it back.
#[derive(Debug)]
pub(super) struct Held {
    shared: Arc<Shared>,
    worker: Arc<Worker>,
    id: u64,
    taken_at_us: u64,
}

impl Held {
    /// Holds what `cell` took at `taken_at_us`.
    pub(super) fn new(shared: &Arc<Shared>, worker: &Arc<Worker>, cell: Cell, taken_at_us: u64) -> Self {
        let id = worker.leases.next.fetch_add(1, Ordering::Relaxed);
        worker.leases.lock().insert(id, Cells::from_iter([cell]));
        let held = Self { shared: Arc::clone(shared), worker: Arc::clone(worker), id, taken_at_us };
        if matches!(*shared.engine, Engine::Redis(_)) && !worker.leases.renewing.swap(true, Ordering::SeqCst) {
            match tokio::runtime::Handle::try_current() {
                Ok(runtime) => drop(runtime.spawn(renew(Arc::clone(shared), Renewing(Arc::clone(worker))))),
                Err(_) => worker.leases.renewing.store(false, Ordering::SeqCst),
            }
        }
        held
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let Some(cells) = self.worker.leases.lock().remove(&self.id) else { return };
        settle::run(&self.shared, &self.worker, Job::GiveBack { cells, taken_at_us: self.taken_at_us });
    }
}

/// The task that renews; when it ends, or is torn down with its runtime, another may begin.
struct Renewing(Arc<Worker>);

impl Drop for Renewing {
    fn drop(&mut self) {
        self.0.leases.renewing.store(false, Ordering::SeqCst);
    }
}

async fn renew(shared: Arc<Shared>, task: Renewing) {
    loop {
        tokio::time::sleep(shared.lease / RENEWALS).await;
        let held: Vec<Cells> = task.0.leases.lock().values().cloned().collect();
        if held.is_empty() {
            return;
        }
        let share = held.len().div_ceil(RENEWING_MAX);
        let calls: Vec<_> = held
            .chunks(share)
            .map(|share| {
                let (shared, share) = (Arc::clone(&shared), share.to_vec());
                tokio::spawn(async move {
                    for cells in share {
                        if shared.engine.renew(&cells).await.is_err() {
                            shared.counters.failed_renewals.inc();
                        }
                    }
                })
            })
            .collect();
        for call in calls {
            // Torn down with its runtime, and this task with it.
            drop(call.await);
        }
    }
}
