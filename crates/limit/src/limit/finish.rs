//! Turns what was decided into the answer to a request.

use std::sync::Arc;

use smallvec::SmallVec;

use super::calls::LimitSet;
use super::held::{self, Hold};
use super::leased::{LeasedPart, LeasedUnits};
use super::leases::LeaseGuard;
use super::local;
use super::prepared::{CellRequest, PreparedPlan};
use super::round::{ChargeTimes, Round, RoundResult};
use super::shared::Shared;
use super::{Grant, Scope, Take};
use crate::engine::Cause;
use crate::plan::{Enforcement, Limit, LimitOutcome, Plan, PlanOutcome, Role};
use crate::telemetry::Label as _;

/// What was decided of a plan.
pub(super) struct Decided<'a, 'p> {
    /// Of the limits that were asked together.
    pub(super) round: &'a Round<'p>,
    pub(super) leased: LeasedPart,
    /// Of parents that were asked before.
    pub(super) parents: Vec<Parent>,
    /// The name of its units.
    pub(super) member: u128,
}

/// What became of a parent that was asked before its children, and of which no lease had a unit.
#[derive(Default)]
pub(super) struct Parent {
    pub(super) index: usize,
    pub(super) outcome: LimitOutcome,
    /// When it was charged.
    pub(super) charged: Option<u64>,
    /// Whether it was counted in this process, and whether certainly not on Redis.
    pub(super) local: LimitSet,
    pub(super) owed: LimitSet,
    /// Why its call failed, if it did.
    pub(super) failure: Option<Cause>,
}

impl<'a, 'p> Decided<'a, 'p> {
    /// All limits were asked together.
    pub(super) fn of(round: &'a Round<'p>, member: u128) -> Self {
        Self { round, leased: LeasedPart::default(), parents: Vec::new(), member }
    }

    fn failure(&self) -> Option<Cause> {
        let of_parents = || self.parents.iter().find_map(|parent| parent.failure);
        self.round.failure().or_else(of_parents)
    }

    /// The limits that were counted in this process.
    fn local(&self) -> LimitSet {
        self.parents.iter().fold(self.round.local(), |all, parent| all.and(parent.local))
    }

    /// Those that were certainly not counted on Redis.
    fn owed(&self) -> LimitSet {
        self.parents.iter().fold(self.round.owed(), |all, parent| all.and(parent.owed))
    }
}

/// Turns what was decided into the answer.
pub(super) fn finish(
    shared: &Arc<Shared>,
    scope: &Arc<Scope>,
    plan: &Arc<Plan>,
    prepared: &PreparedPlan,
    decided: Decided<'_, '_>,
) -> Take {
    let (failure, local, owed) = (decided.failure(), decided.local(), decided.owed());
    let Decided { round, leased, parents, member } = decided;
    let limits = plan.limits();
    let result = round.result();
    if result == RoundResult::Unavailable && !leased.refuses(limits) {
        return Take::Unavailable(failure.map_or("", |cause| cause.label()));
    }
    // The round reports each limit that was called. The others never pass: nothing remains of them.
    let mut outcome = PlanOutcome {
        admitted: result == RoundResult::Admitted,
        limits: vec![LimitOutcome::default(); limits.len()],
        store_failure: failure.map(|cause| cause.label()),
    };
    let mut charged: ChargeTimes = SmallVec::from_elem(None, limits.len());
    round.report(limits, &mut outcome.limits, &mut charged);
    say_when(shared, limits, &mut outcome.limits);
    for parent in parents {
        let places = (outcome.limits.get_mut(parent.index), charged.get_mut(parent.index));
        if let (Some(place), Some(when)) = places {
            (*place, *when) = (parent.outcome, parent.charged);
        }
    }
    let leased = leased.report(limits, &mut outcome, &mut charged);
    if let Some(plenty) = &prepared.plenty {
        plenty.note(limits, &outcome);
    }
    outcome.join_children(limits);
    let key = |index: usize| prepared.calls.cell(index).map(|cell| &cell.key);
    if !outcome.admitted {
        held::report(&shared.held, plan, &mut outcome.limits, key);
    }
    count(shared, scope, plan, &outcome);
    if outcome.admitted {
        let (leases, leased) = if prepared.keeps_members {
            let (places, leased): (Vec<_>, Vec<_>) =
                leased.into_iter().partition(|(_, units)| units.is_place());
            (hold(shared, scope, plan, prepared, (&charged, member, places)), leased)
        } else {
            (Vec::new(), leased)
        };
        if !owed.is_empty() {
            owe(shared, limits, prepared, (&charged, owed));
        }
        let holding = Hold::new(&shared.held, plan, (&outcome.limits, &charged), key);
        let grant = Grant {
            shared: Arc::clone(shared),
            scope: Arc::clone(scope),
            plan: Arc::clone(plan),
            charged,
            local,
            owed,
            member,
            _leases: leases,
            _holding: holding,
            leased,
        };
        Take::Granted(outcome, grant)
    } else {
        Take::Refused(outcome)
    }
}

/// Says when a unit is back of what is used up, where that does not follow from the limit: a share
/// of it, or what a lease leaves of its burst, was counted.
fn say_when(shared: &Shared, limits: &[Limit], outcomes: &mut [LimitOutcome]) {
    for (limit, outcome) in limits.iter().zip(outcomes) {
        let LimitOutcome { fits: true, remaining: 0, retry_after_us: None, reset_us, .. } =
            *outcome
        else {
            continue;
        };
        let algorithm = &limit.algorithm;
        if !algorithm.refills() || algorithm.holds() || algorithm.queues() {
            continue;
        }
        let counting = match outcome.is_local {
            true => shared.counting_here(limit),
            false => limit.lease.map(|_| shared.counting(limit).into_owned()),
        };
        if let Some(counting) = counting.filter(|_| outcome.unmeasured.is_none()) {
            outcome.retry_after_us = Some(counting.unit_back_us(reset_us));
        }
    }
}

/// Remembers what was charged in this process, to charge it on Redis later.
fn owe(
    shared: &Shared,
    limits: &[Limit],
    prepared: &PreparedPlan,
    (charged, owed): (&ChargeTimes, LimitSet),
) {
    for (index, (limit, charged)) in limits.iter().zip(charged).enumerate() {
        if charged.is_some()
            && owed.contains(index)
            && let Some(cell) = prepared.calls.cell(index)
        {
            shared.owe(&shared.counting(limit), cell);
        }
    }
}

/// The permits that an admitted plan holds in its concurrency limits.
fn hold(
    shared: &Arc<Shared>,
    scope: &Arc<Scope>,
    plan: &Plan,
    prepared: &PreparedPlan,
    (charged, member, mut places): (&ChargeTimes, u128, Vec<(usize, LeasedUnits)>),
) -> Vec<LeaseGuard> {
    let worker = local::with(shared, |local| Arc::clone(local.worker()));
    let limits = plan.limits().iter().enumerate().zip(charged);
    let leases = limits.filter_map(|((index, limit), charged)| {
        if !limit.algorithm.holds() {
            return None;
        }
        if let Some(at) = places.iter().position(|(place, _)| *place == index) {
            return Some(LeaseGuard::of_place(shared, places.swap_remove(at).1));
        }
        let request = CellRequest { cost: limit.cost, member, now_us: 0 };
        Some(LeaseGuard::new(
            shared,
            &worker,
            prepared.cell(shared, scope, (limit, index), request),
            (*charged)?,
        ))
    });
    leases.collect()
}

/// Refuses without a call. An enforced limit with an amount or a burst of 0 always refuses, so a
/// blocked client costs the store nothing. The plan's other limits are shown with their whole
/// allowance.
pub(super) fn refused_without_call(shared: &Arc<Shared>, scope: &Arc<Scope>, plan: &Plan) -> Take {
    let outcome = PlanOutcome {
        admitted: false,
        limits: plan.limits().iter().map(untouched).collect(),
        store_failure: None,
    };
    count(shared, scope, plan, &outcome);
    Take::Refused(outcome)
}

/// The outcome of a limit from which nothing was taken yet. With an amount or a burst of 0, this is
/// the only outcome it has.
fn untouched(limit: &Limit) -> LimitOutcome {
    if limit.algorithm.refuses_all() {
        return LimitOutcome::default();
    }
    let fits = limit.algorithm.cost_max().is_none_or(|most| limit.cost.max(1) <= most);
    LimitOutcome {
        fits,
        remaining: limit.algorithm.capacity().unwrap_or(0),
        ..LimitOutcome::default()
    }
}

/// Counts refusals, refusals by shadow limits, and a request that goes through uncounted.
pub(super) fn count(shared: &Arc<Shared>, scope: &Arc<Scope>, plan: &Plan, outcome: &PlanOutcome) {
    if plan.is_quiet() {
        return;
    }
    let limits = plan.limits();
    // An assured limit that is used up refuses nothing.
    let refuses =
        |(limit, outcome): &(&Limit, &LimitOutcome)| !outcome.fits && limit.role != Role::Assured;
    let mut all = limits.iter().zip(&outcome.limits);
    if all.all(|it| !refuses(&it) && it.1.unmeasured.is_none()) {
        return;
    }
    local::with(shared, |local| {
        local.scope(scope, |known| {
            for (limit, outcome) in limits.iter().zip(&outcome.limits).filter(refuses) {
                match limit.enforcement {
                    Enforcement::Shadow => {
                        known.count_would_refuse(scope, &limit.name, &shared.metrics);
                    }
                    Enforcement::Enforce => {
                        known.count_refused(scope, &limit.name, &shared.metrics);
                        if outcome.is_held(limit.cost) {
                            known.count_held(scope, &limit.name, &shared.metrics);
                        }
                    }
                }
            }
            if outcome.is_uncounted(limits) {
                known.count_degraded(scope, &shared.metrics);
            }
        });
    });
}
