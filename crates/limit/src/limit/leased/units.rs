//! Units of a lease that a request has spent, and how they come back. Knows no plan.

use std::sync::Arc;

use super::keeper;
use crate::clock::boottime_us;
use crate::engine::Cell;
use crate::limit::holders::{LeaseSpec, ReturnedUnits, SpentUnits};
use crate::limit::queue::Worker;
use crate::limit::shared::Shared;
use crate::plan::LimitOutcome;

/// Units of a lease that a request has spent. Dropped, they return to the lease, unless the request
/// was admitted.
#[derive(Debug)]
pub(in crate::limit) struct LeasedUnits {
    worker: Arc<Worker>,
    spec: Arc<LeaseSpec>,
    units: SpentUnits,
    is_used: bool,
}

impl LeasedUnits {
    pub(super) fn new(worker: &Arc<Worker>, spec: &Arc<LeaseSpec>, units: SpentUnits) -> Self {
        let (worker, spec) = (Arc::clone(worker), Arc::clone(spec));
        Self { worker, spec, units, is_used: false }
    }

    /// Whether the request may still be admitted with them. A place is renewed from then on, for
    /// the first time after a third of what it counts for. That is six lives of its lease at least,
    /// so the renewal is in time for another life after the deadline, and the next one, too.
    pub(in crate::limit) fn are_valid(&self) -> bool {
        let more_us = if self.is_place() { self.spec.terms.life_us } else { 0 };
        boottime_us() < self.units.spent.deadline_us.saturating_add(more_us)
    }

    /// When the store took them, in microseconds since 1970.
    pub(in crate::limit) fn taken_at_us(&self) -> u64 {
        self.units.spent.taken_at
    }

    /// What the limit says to the request. More may be left than the lease has, but this much is
    /// certain, until the lease ends.
    pub(in crate::limit) fn outcome(&self) -> LimitOutcome {
        LimitOutcome {
            fits: true,
            remaining: self.units.left,
            // The next units are there as soon as they are asked for.
            retry_after_us: (self.units.left == 0 && !self.is_place()).then_some(0),
            // Places come back with their requests.
            reset_us: if self.is_place() {
                0
            } else {
                self.units.spent.deadline_us.saturating_sub(boottime_us())
            },
            is_leased: true,
            ..LimitOutcome::default()
        }
    }

    /// Whether it is a place, which the request holds until it ends.
    pub(in crate::limit) fn is_place(&self) -> bool {
        self.spec.has_places
    }

    /// What the store gets back, or renews.
    pub(in crate::limit) fn cell(&self) -> Cell {
        Cell { cost: self.units.spent.units(), member: self.units.member, ..self.spec.cell.clone() }
    }

    /// Whose they are.
    pub(in crate::limit) fn worker(&self) -> &Arc<Worker> {
        &self.worker
    }

    /// Returns them to their lease. Whether that goes on.
    pub(in crate::limit) fn put_back(&self) -> bool {
        self.worker.holders.undo(&self.spec, boottime_us(), self.units)
    }

    /// The request was admitted: from now on only [`LeasedUnits::give_back`] returns them.
    pub(in crate::limit) fn admit(&mut self) {
        self.is_used = true;
    }

    /// Returns so many of them to their lease, or to the store if that has ended.
    pub(in crate::limit) fn give_back(&self, units: u64) {
        let SpentUnits { spent, member, .. } = self.units;
        let spent = spent.part(units);
        let part = SpentUnits { spent, ..self.units };
        if spent.units() == 0 || self.worker.holders.undo(&self.spec, boottime_us(), part) {
            return;
        }
        let limiter = self.spec.limiter.upgrade();
        if let Some(Ok(shared)) = limiter.map(Arc::downcast::<Shared>) {
            let (units, taken_at_us) = (spent.units(), spent.taken_at);
            let units = ReturnedUnits { units, taken_at_us, member };
            keeper::give_back(&shared, &self.worker, &self.spec, [units]);
        }
    }
}

impl Drop for LeasedUnits {
    fn drop(&mut self) {
        if !self.is_used {
            self.give_back(u64::MAX);
        }
    }
}
