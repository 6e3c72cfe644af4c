//! Takes a plan of which some limits are leased, or whose children are apart from their parent.
//!
//! What is leased is spent first, and with that the other limits are asked. A parent that is leased
//! is not in one call with its children, which so may have slots of their own:
//!
//! 1. A unit of the parent is taken: of a lease, or from the store for this request alone.
//! 2. With it, the child's other two limits are asked. If they refuse, it returns.
//! 3. If the parent has none, the request passes if it fits what the child is assured. The parent
//!    is then charged into debt, after the request.
//!
//! In memory nothing is leased, and the same is done without waiting.

use std::sync::Arc;
use std::time::Instant;

use smallvec::SmallVec;

use super::Scope;
use super::Take;
use super::calls::LimitSet;
use super::finish::{Decided, Parent, finish};
use super::leased::{self, Acquired, Acquiring, LeasedPart};
use super::prepared::{Apart, PreparedPlan, TakeContext};
use super::queue::{Job, Worker};
use super::round::{ChargeTimes, Round, RoundResult};
use super::run;
use super::settle;
use super::shared::Shared;
use crate::clock::monotonic;
use crate::engine::{Cell, Cells, Part};
use crate::plan::{Enforcement, Limit, LimitOutcome, Plan, Role};
use crate::telemetry::Label as _;

/// Parents that are asked by themselves have the decision's deadline divided by this.
const PARENTS_SHARE: u32 = 2;

/// A request, and all that does not change while it is decided.
pub(super) struct Request<'a> {
    pub(super) shared: &'a Arc<Shared>,
    pub(super) worker: &'a Arc<Worker>,
    pub(super) scope: &'a Arc<Scope>,
    pub(super) plan: &'a Arc<Plan>,
    pub(super) prepared: &'a PreparedPlan,
}

/// The round of a parent that is asked by itself, and its index in the plan.
type AskedParent<'p> = (usize, Round<'p>);

/// What was got of the limits that come before the others.
#[derive(Default)]
struct Before {
    leased: LeasedPart,
    /// Parents of which no lease has a unit.
    used_up: SmallVec<[(usize, LimitOutcome); 1]>,
}

/// Decides a request. `first` is what became of the first leased limit, if it was asked for before.
pub(super) async fn take(
    request: &Request<'_>,
    context: TakeContext,
    first: Option<Acquiring>,
) -> Take {
    let began = monotonic();
    let before = request.acquire(first, began).await;
    if let Some(take) = request.decide(before, context, began).await {
        return take;
    }
    // A lease has ended while the other limits were asked. Once more, all of them by the store.
    // Other members than those that are being given back.
    let context = TakeContext { member: request.prepared.new_member(), ..context };
    let again = request.decide(Before::default(), context, began).await;
    // Without leases there is always an answer.
    again.unwrap_or(Take::Unavailable(""))
}

impl Request<'_> {
    fn limits(&self) -> &[Limit] {
        self.plan.limits()
    }

    /// Takes units of all leases that the request needs.
    async fn acquire(&self, mut first: Option<Acquiring>, began: Instant) -> Before {
        let mut before = Before::default();
        for (index, spec) in &self.prepared.leased {
            let index = usize::from(*index);
            let Some(limit) = self.limits().get(index) else { continue };
            let first = first.take();
            let acquiring = first.unwrap_or_else(|| leased::acquire(self.shared, spec, limit.cost));
            // Nobody waits for longer than a whole decision may take.
            let passed = monotonic().saturating_duration_since(began);
            let left = self.shared.deadline.saturating_sub(passed);
            let acquired = tokio::time::timeout(left, acquiring.finish()).await;
            match acquired.unwrap_or(Acquired::Alone) {
                Acquired::Units(units) => before.leased.add(index, Ok(units)),
                Acquired::Refused(answer) if limit.role == Role::Parent => {
                    before.used_up.push((index, spec.refused(answer)));
                }
                Acquired::Refused(answer) => before.leased.add(index, Err(spec.refused(answer))),
                Acquired::Alone => {}
            }
        }
        before
    }

    /// Decides with what was got before. `None` if a lease has ended meanwhile: then nothing is
    /// taken.
    async fn decide(&self, before: Before, context: TakeContext, began: Instant) -> Option<Take> {
        let Self { shared, scope, plan, prepared, .. } = self;
        let Before { leased, used_up } = before;
        let limits = self.limits();
        let is_refused = leased.refuses(limits);
        // The parents of which a lease has no unit, each by itself.
        let parents = prepared.apart.iter().map(|family| usize::from(family.parent));
        let alone: SmallVec<[(usize, PreparedPlan); 1]> = parents
            .filter(|parent| !leased.limits().contains(*parent))
            .filter(|parent| used_up.iter().all(|(index, _)| index != parent))
            .map(|parent| (parent, prepared.only(parent)))
            .collect();
        // A shard that does not answer must leave time to ask those of the children.
        let parents_began = began.checked_sub(shared.deadline / PARENTS_SHARE).unwrap_or(began);
        let mut rounds: SmallVec<[AskedParent<'_>; 1]> = SmallVec::new();
        for (parent, prepared) in &alone {
            let mut round = prepared.round(shared, scope, limits, context);
            if is_refused {
                round.only_look();
            }
            self.run(&mut round, parents_began).await;
            rounds.push((*parent, round));
        }
        let unavailable = rounds.iter().find(|(_, it)| it.result() == RoundResult::Unavailable);
        if let Some(cause) = unavailable.map(|(_, round)| round.failure()).filter(|_| !is_refused) {
            self.roll_back(&mut rounds, began).await;
            return Some(Take::Unavailable(cause.map_or("", |cause| cause.label())));
        }
        let has_none = |parent: usize| {
            used_up.iter().any(|(index, _)| *index == parent)
                || rounds
                    .iter()
                    .any(|(index, round)| *index == parent && round.fits(parent) == Some(false))
        };
        let mut must_fit = LimitSet::default();
        for family in &prepared.apart {
            if has_none(usize::from(family.parent)) {
                must_fit.add(usize::from(family.assured));
            }
        }
        // Of which nothing is ever assured.
        let never = prepared.apart.iter().any(|family| {
            let assured = usize::from(family.assured);
            must_fit.contains(assured)
                && prepared.calls.cell(assured).is_none()
                && limits.get(assured).is_some_and(|it| it.enforcement == Enforcement::Enforce)
        });
        let others = prepared.without(leased.limits().and(prepared.parents_apart()));
        let context = TakeContext { must_fit, ..context };
        let mut round = others.round(shared, scope, limits, context);
        if is_refused || never {
            round.only_look();
        }
        self.run(&mut round, began).await;
        // A parent's refusal is final, whatever becomes of the child's calls.
        let is_final = |family: &Apart| {
            let (assured, parent) = (usize::from(family.assured), usize::from(family.parent));
            must_fit.contains(assured)
                && round.fits(assured).is_none()
                && limits.get(parent).is_some_and(Limit::is_enforced)
        };
        let is_final = prepared.apart.iter().any(is_final);
        if round.result() != RoundResult::Admitted {
            self.roll_back(&mut rounds, began).await;
        } else if is_final {
            round.roll_back();
            self.run(&mut round, began).await;
            self.roll_back(&mut rounds, began).await;
        } else if !leased.is_valid() {
            round.roll_back();
            self.run(&mut round, began).await;
            self.roll_back(&mut rounds, began).await;
            return None;
        }
        let parents = self.parents(&round, (&rounds, &used_up));
        let decided = Decided { round: &round, leased, parents, member: context.member };
        Some(finish(shared, scope, plan, prepared, decided))
    }

    async fn run(&self, round: &mut Round<'_>, began: Instant) {
        run::run(round, self.shared, self.worker, self.plan, began).await;
    }

    async fn roll_back(&self, rounds: &mut [AskedParent<'_>], began: Instant) {
        for (_, round) in rounds {
            if round.result() == RoundResult::Admitted {
                round.roll_back();
                self.run(round, began).await;
            }
        }
    }

    /// What became of the parents that no lease had a unit of. Those that have none, although the
    /// request is admitted with what is assured, are charged now.
    fn parents(
        &self,
        round: &Round<'_>,
        (rounds, used_up): (&[AskedParent<'_>], &[(usize, LimitOutcome)]),
    ) -> Vec<Parent> {
        let limits = self.limits();
        let mut parents = Vec::new();
        for family in &self.prepared.apart {
            let (assured, index) = (usize::from(family.assured), usize::from(family.parent));
            let asked = rounds.iter().find(|(at, _)| *at == index).map(|(_, round)| round);
            let refused = used_up.iter().find(|(at, _)| *at == index).map(|(_, outcome)| *outcome);
            let mut parent = Parent { index, ..Parent::default() };
            if let Some(asked) = asked {
                let mut outcomes = vec![LimitOutcome::default(); limits.len()];
                let mut charged = ChargeTimes::from_elem(None, limits.len());
                asked.report(limits, &mut outcomes, &mut charged);
                parent.outcome = outcomes.get(index).copied().unwrap_or_default();
                parent.charged = charged.get(index).copied().flatten();
                (parent.local, parent.owed) = (asked.local(), asked.owed());
                parent.failure = asked.failure();
            } else if let Some(refused) = refused {
                parent.outcome = refused;
            } else {
                continue;
            }
            if !parent.outcome.fits && round.result() == RoundResult::Admitted {
                // Where it does not fit, they are shadows.
                if round.fits(assured) == Some(true) {
                    parent.outcome.fits = true;
                    parent.outcome.remaining = 0;
                    self.owe(index, asked.filter(|_| !parent.local.is_empty()));
                }
            }
            parents.push(parent);
        }
        parents
    }

    /// Charges a parent, into debt if need be: on the store, or where `here` counted it. The
    /// request does not wait for it, and nothing of it is given back later.
    fn owe(&self, index: usize, here: Option<&Round<'_>>) {
        let Some(limit) = self.limits().get(index).filter(|limit| limit.cost > 0) else { return };
        let cell = match here {
            Some(round) => round.cell(index),
            None => self.prepared.calls.cell(index),
        };
        let Some(cell) = cell else { return };
        let cells = Cells::from_iter([Cell { part: Part::Alone, shadow: false, ..cell.clone() }]);
        if here.is_some() {
            if self.shared.standby().charge(&cells).is_err() {
                self.shared.counters.failed.charge.inc();
            }
            return;
        }
        let algorithm = self.shared.counting(limit).into_owned();
        settle::run(self.shared, self.worker, Job::Charge { cells, algorithm, owes: true });
    }
}
