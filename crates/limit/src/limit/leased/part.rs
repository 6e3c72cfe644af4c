//! What became of the leased limits of one plan. Knows no store.

use smallvec::SmallVec;

use super::units::LeasedUnits;
use crate::limit::calls::LimitSet;
use crate::limit::round::ChargeTimes;
use crate::plan::{Enforcement, Limit, LimitOutcome, PlanOutcome};

/// What became of the leased limits of a plan that were not left to the round.
#[derive(Debug, Default)]
pub(in crate::limit) struct LeasedPart(SmallVec<[(usize, Result<LeasedUnits, LimitOutcome>); 1]>);

impl LeasedPart {
    pub(in crate::limit) fn of(index: usize, units: LeasedUnits) -> Self {
        let mut part = Self::default();
        part.add(index, Ok(units));
        part
    }

    pub(in crate::limit) fn add(
        &mut self,
        index: usize,
        acquired: Result<LeasedUnits, LimitOutcome>,
    ) {
        self.0.push((index, acquired));
    }

    pub(in crate::limit) fn limits(&self) -> LimitSet {
        let mut limits = LimitSet::default();
        self.0.iter().for_each(|(index, _)| limits.add(*index));
        limits
    }

    /// Whether one of them refuses the request.
    pub(in crate::limit) fn refuses(&self, limits: &[Limit]) -> bool {
        let enforced = |index: usize| {
            limits.get(index).is_some_and(|limit| limit.enforcement == Enforcement::Enforce)
        };
        self.0.iter().any(|(index, acquired)| acquired.is_err() && enforced(*index))
    }

    /// Whether the request may be admitted with their units.
    pub(in crate::limit) fn is_valid(&self) -> bool {
        self.0.iter().filter_map(|(_, acquired)| acquired.as_ref().ok()).all(LeasedUnits::are_valid)
    }

    /// Writes what became of them. Returns the units that may be given back, and places.
    pub(in crate::limit) fn report(
        self,
        limits: &[Limit],
        outcome: &mut PlanOutcome,
        charged: &mut ChargeTimes,
    ) -> Vec<(usize, LeasedUnits)> {
        let mut kept = Vec::new();
        for (index, acquired) in self.0 {
            let places = (outcome.limits.get_mut(index), charged.get_mut(index), limits.get(index));
            let (Some(place), Some(charged), Some(limit)) = places else { continue };
            match acquired {
                Err(refused) => *place = refused,
                Ok(mut units) => {
                    *place = units.outcome();
                    if !outcome.admitted {
                        // They return to the lease.
                        place.remaining = place.remaining.saturating_add(limit.cost);
                        continue;
                    }
                    *charged = (limit.cost > 0).then(|| units.taken_at_us());
                    units.admit();
                    if limit.algorithm.settles() || units.is_place() {
                        kept.push((index, units));
                    }
                }
            }
        }
        kept
    }
}
