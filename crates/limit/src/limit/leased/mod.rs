//! Limits whose units a worker takes from Redis several at once, and spends by itself for a while.
//!
//! Each worker has a holder of its own for each counter (`weir_lease::Holder`), so that workers
//! share nothing: to Redis they are holders like those of other proxies. A request spends what is
//! at hand, or waits for the call in flight, or asks Redis for itself alone where no lease is worth
//! it. What a lease may be, and why it keeps the limit's bound, is in docs/leases.md.
//!
//! `super::holders` has the holders of a worker and the requests that wait, and decides what comes
//! next. `keeper` is the task that asks Redis for one holder, and gives back what was not used.
//! `units` are what one request has spent, and `part` is what became of all leased limits of a
//! plan, which `super::take` combines with the others.

mod keeper;
mod part;
mod units;

use std::sync::Arc;

use tokio::sync::oneshot;

pub(super) use part::LeasedPart;
pub(super) use units::LeasedUnits;

use super::holders::{Answer, LeaseSpec, Wanted};
use super::local;
use super::queue::Worker;
use super::shared::Shared;
use crate::clock::boottime_us;
use crate::engine::CellReply;

/// What became of a request for units of a leased limit.
#[derive(Debug)]
pub(super) enum Acquired {
    /// They are spent.
    Units(LeasedUnits),
    /// The store has too few: its answer, which holds as of a moment ago.
    Refused(CellReply),
    /// The store has to be asked for this request alone.
    Alone,
}

/// What a request does next.
#[derive(Debug)]
pub(super) enum Acquiring {
    Done(Acquired),
    /// The answer comes later.
    Waiting(WaitingRequest),
}

impl Acquiring {
    /// Waits for the answer.
    pub(super) async fn finish(self) -> Acquired {
        match self {
            Self::Done(acquired) => acquired,
            Self::Waiting(mut request) => match (&mut request.answer).await {
                Ok(answer) => request.acquired(answer),
                // Nobody asks for it any more.
                Err(_) => Acquired::Alone,
            },
        }
    }
}

/// A request that waits for units.
#[derive(Debug)]
pub(super) struct WaitingRequest {
    worker: Arc<Worker>,
    spec: Arc<LeaseSpec>,
    answer: oneshot::Receiver<Answer>,
}

impl WaitingRequest {
    fn acquired(&self, answer: Answer) -> Acquired {
        acquired(&self.worker, &self.spec, answer)
    }
}

impl Drop for WaitingRequest {
    /// Units that came for a request that is gone return to their lease.
    fn drop(&mut self) {
        self.answer.close();
        if let Ok(answer) = self.answer.try_recv() {
            drop(self.acquired(answer));
        }
    }
}

fn acquired(worker: &Arc<Worker>, spec: &Arc<LeaseSpec>, answer: Answer) -> Acquired {
    match answer {
        Answer::Spent(units) => Acquired::Units(LeasedUnits::new(worker, spec, units)),
        Answer::Refused(answer) => Acquired::Refused(answer),
        Answer::Alone => Acquired::Alone,
    }
}

/// The counter with this id was deleted by hand: what this process has leased of it is not used any
/// more.
pub(super) fn forget(shared: &Arc<Shared>, id: u128) {
    for worker in shared.workers() {
        if let Some((spec, places)) = worker.holders.forget(id) {
            keeper::give_back(shared, &worker, &spec, places);
        }
    }
}

/// Takes `cost` units of a leased limit for a request, from what is at hand if there are enough.
///
/// Must run inside a tokio runtime, because it may start a task.
pub(super) fn acquire(shared: &Arc<Shared>, spec: &Arc<LeaseSpec>, cost: u64) -> Acquiring {
    let worker = local::with(shared, |local| Arc::clone(local.worker()));
    let step = worker.holders.want(spec, boottime_us(), cost);
    if let Some((old, left)) = step.left {
        keeper::give_back(shared, &worker, &old, left);
    }
    match step.action {
        Wanted::Now(answer) => Acquiring::Done(acquired(&worker, spec, answer)),
        Wanted::Wait { answer, keep } => {
            if let Some(kept) = keep {
                keeper::start(shared, Arc::clone(&worker), kept);
            }
            Acquiring::Waiting(WaitingRequest { worker, spec: Arc::clone(spec), answer })
        }
    }
}
