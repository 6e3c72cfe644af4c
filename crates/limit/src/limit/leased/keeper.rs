//! The task that asks Redis for one holder's leases: for as long as requests wait or units are
//! held. One for each counter and worker, so that at most one call is in flight.

use std::sync::Arc;
use std::time::Duration;

use weir_lease::Call;

use crate::clock::boottime_us;
use crate::engine::{Cause, Cell, Cells, EngineError, Execution, LeaseCall, LeaseReply};
use crate::limit::hand_back;
use crate::limit::holders::{KeeperStep, Kept, LeaseSpec, Returned, ReturnedUnits};
use crate::limit::queue::{Job, Worker};
use crate::limit::settle;
use crate::limit::shared::Shared;
use crate::limit::unknown;

/// Starts the keeper of a holder.
pub(super) fn start(shared: &Arc<Shared>, worker: Arc<Worker>, kept: Kept) {
    let keeper = Keeper { shared: Arc::clone(shared), worker, kept, is_over: false };
    match tokio::runtime::Handle::try_current() {
        Ok(runtime) => drop(runtime.spawn(keeper.run())),
        // Without a runtime nothing can be asked: dropped, it has all requests ask alone.
        Err(_) => drop(keeper),
    }
}

/// Gives units back to the store.
pub(super) fn give_back(
    shared: &Arc<Shared>,
    worker: &Arc<Worker>,
    spec: &LeaseSpec,
    returned: impl IntoIterator<Item = ReturnedUnits>,
) {
    for ReturnedUnits { units, taken_at_us, member } in returned {
        let cell = cell_at(shared, spec, taken_at_us);
        let cells = Cells::from_iter([Cell { cost: units, member, ..cell }]);
        shared.counters.leased.given_back.add(units);
        settle::queue(shared, worker, Job::GiveBack { cells, taken_at_us });
    }
}

/// The cell with the numbers of this date.
fn cell_at(shared: &Shared, spec: &LeaseSpec, at_us: u64) -> Cell {
    let cell = spec.cell.clone();
    if !spec.algorithm.is_dated() {
        return cell;
    }
    Cell { numbers: shared.numbers(&spec.algorithm, at_us as i64), ..cell }
}

struct Keeper {
    shared: Arc<Shared>,
    worker: Arc<Worker>,
    kept: Kept,
    /// Whether it has ended as it was told to.
    is_over: bool,
}

impl Drop for Keeper {
    fn drop(&mut self) {
        if !self.is_over {
            self.worker.holders.abandon(&self.kept);
        }
        self.shared.done();
    }
}

impl Keeper {
    async fn run(mut self) {
        loop {
            let now_us = boottime_us();
            match self.worker.holders.next(&self.kept, now_us) {
                KeeperStep::Ask { call, member, give_back } => {
                    self.give_back(give_back);
                    let answer = self.ask(call, member).await;
                    self.count(&answer);
                    self.give_back_unknown(&answer, (call, member));
                    let now_us = boottime_us();
                    let holders = &self.worker.holders;
                    let back = holders.reply(&self.kept, now_us, (call, answer));
                    self.give_back(back);
                }
                KeeperStep::Return { give_back } => self.give_back(give_back),
                KeeperStep::Sleep { until_us } => {
                    tokio::time::sleep(Duration::from_micros(until_us.saturating_sub(now_us)))
                        .await;
                }
                KeeperStep::Idle { until_us, wake } => {
                    let span = Duration::from_micros(until_us.saturating_sub(now_us));
                    let _ = tokio::time::timeout(span, wake.notified()).await;
                }
                KeeperStep::End { give_back } => {
                    self.give_back(give_back);
                    if self.worker.holders.end(&self.kept) {
                        self.is_over = true;
                        return;
                    }
                }
            }
        }
    }

    fn give_back(&self, units: Returned) {
        give_back(&self.shared, &self.worker, &self.kept.spec, units);
    }

    /// Gives back places that a call may have taken without an answer. Other units are back soon
    /// enough by themselves.
    fn give_back_unknown(
        &self,
        answer: &Result<LeaseReply, EngineError>,
        (call, member): (Call, u128),
    ) {
        let spec = &self.kept.spec;
        if spec.has_places && answer.is_err_and(|error| error.ran == Execution::Unknown) {
            let cells = Cells::from_iter([Cell { cost: call.units, member, ..spec.cell.clone() }]);
            unknown::give_back(&self.shared, &self.worker, &cells);
        }
    }

    async fn ask(&self, call: Call, member: u128) -> Result<LeaseReply, EngineError> {
        let Self { shared, worker, .. } = self;
        let spec = &self.kept.spec;
        let lease = LeaseCall {
            needed: call.needed,
            units: call.units,
            life_ms: spec.lease.life_ms,
            holder: &worker.name,
        };
        let at_us = if spec.algorithm.is_dated() { shared.clock.wall_us() as u64 } else { 0 };
        let mut cell = Cell { cost: call.least, member, ..cell_at(shared, spec, at_us) };
        let answer = shared.engine.lease(&cell, lease).await?;
        if !answer.cell.outside {
            return Ok(answer);
        }
        // Nothing was decided. Once more, with the periods around the store's time.
        cell.numbers = shared.numbers(&spec.algorithm, answer.at_us as i64);
        let answer = shared.engine.lease(&cell, lease).await?;
        let outside = EngineError { cause: Cause::Script, ran: Execution::No };
        if answer.cell.outside { Err(outside) } else { Ok(answer) }
    }

    fn count(&self, answer: &Result<LeaseReply, EngineError>) {
        let counters = &self.shared.counters.leased;
        match answer {
            Ok(LeaseReply { units: 0, .. }) => counters.refused.inc(),
            Ok(LeaseReply { units, .. }) => {
                counters.granted.inc();
                counters.taken.add(*units);
                hand_back::start(&self.shared);
            }
            Err(_) => counters.failed.inc(),
        }
    }
}
