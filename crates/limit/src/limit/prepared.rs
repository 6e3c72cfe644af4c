//! The engine calls of a plan: the part that does not depend on the time of the take, computed once
//! and cached with the plan. Knows no store.
//!
//! A policy's decision is cached with its plan, so most takes find the digests of their keys, their
//! spaces and their numbers here. An entry is valid for one limiter and one scope name
//! ([`PreparedPlan::scope_id`]), because a reload may replace the limiter, and routes with scopes
//! of their own share a policy's plans.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use smallvec::SmallVec;
use weir_algorithms::Leased;

use super::calls::{Call, Calls, LimitSet, Order};
use super::holders::LeaseSpec;
use super::keys::{self, Identities, Identity, KeyDigest, PlanDigests};
use super::local::{self, ScopeCache};
use super::plenty::Plenty;
use super::round::Round;
use super::shared::Shared;
use super::{Scope, failure, refusals};
use crate::engine::{Cell, Key, NUMBERS_MAX, Part, new_member};
use crate::plan::{Algorithm, Enforcement, LeakyBucket, Limit, OnStoreError, Plan, Refund, Role};

/// Maximum number of entries for one plan. The oldest is replaced.
const ENTRIES_MAX: usize = 4;

/// A plan's limits, prepared for one limiter and scope.
#[derive(Clone, Debug)]
pub(super) struct PreparedPlan {
    /// The [`Scope::id`] that it is valid for.
    scope_id: u64,
    /// An enforced limit never passes, so there are no calls.
    pub(super) always_refuses: bool,
    /// One for each tag, in the order in which they are made. Limits that never pass are left out.
    pub(super) calls: Calls,
    /// What each limit counts under, in the plan's order.
    pub(super) identities: Identities,
    /// Whether an algorithm keeps members by name: a log's units or concurrency permits.
    pub(super) keeps_members: bool,
    /// Whether a refusal may be remembered.
    pub(super) may_hold_refusal: bool,
    /// The limits that are leased, by their indices in the plan.
    pub(super) leased: SmallVec<[(u8, Arc<LeaseSpec>); 1]>,
    /// The children whose parents are leased, and so asked before.
    pub(super) apart: SmallVec<[Apart; 1]>,
    /// What its limits had a moment ago, if they have several tags.
    pub(super) plenty: Option<Plenty>,
    /// Whether a limit counts in calendar periods.
    is_dated: bool,
    /// Whether a request may have to wait for a leaky bucket.
    may_wait: bool,
}

/// A child that is not in one call with its parent, by the indices of the other two limits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Apart {
    pub(super) assured: u8,
    pub(super) parent: u8,
}

/// What a take depends on besides its plan.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TakeContext {
    /// The member's name; 0 if no algorithm keeps members.
    pub(super) member: u128,
    /// The time that picks calendar periods, in microseconds since 1970.
    pub(super) now_us: i64,
    /// A limit may delay the request, and no wait permit is free.
    pub(super) must_not_wait: bool,
    /// Assured limits that refuse a request which they don't fit.
    pub(super) must_fit: LimitSet,
}

/// A request to one counter outside a round.
#[derive(Clone, Copy, Debug)]
pub(super) struct CellRequest {
    /// Units to take, or to give back.
    pub(super) cost: u64,
    /// The member's name.
    pub(super) member: u128,
    /// The time that picks calendar periods, in microseconds since 1970.
    pub(super) now_us: i64,
}

/// Calls `work` with `plan` prepared for `shared` and `scope`, from the cache if it is there.
pub(super) fn with<T>(
    shared: &Arc<Shared>,
    scope: &Arc<Scope>,
    plan: &Plan,
    work: impl FnOnce(&PreparedPlan) -> T,
) -> T {
    let scope_id = scope.id(shared);
    plan.slot().with(SmallVec::<[PreparedPlan; 1]>::new, |entries| {
        let at = entries.iter().position(|entry| entry.scope_id == scope_id).unwrap_or_else(|| {
            if entries.len() >= ENTRIES_MAX {
                entries.remove(0);
            }
            entries.push(PreparedPlan::new(scope_id, shared, scope, plan));
            entries.len() - 1
        });
        match entries.get(at) {
            Some(prepared) => work(prepared),
            // Can't happen: it was found or pushed there.
            None => work(&PreparedPlan::new(scope_id, shared, scope, plan)),
        }
    })
}

impl PreparedPlan {
    fn new(scope_id: u64, shared: &Arc<Shared>, scope: &Arc<Scope>, plan: &Plan) -> Self {
        let limits = plan.limits();
        let never = |limit: &Limit| limit.algorithm.refuses_all();
        let mut prepared = Self {
            scope_id,
            always_refuses: limits.iter().any(|limit| limit.is_enforced() && never(limit)),
            calls: Calls::default(),
            identities: Identities::new(),
            keeps_members: limits.iter().any(|limit| limit.algorithm.keeps_members()),
            may_hold_refusal: false,
            leased: SmallVec::new(),
            apart: limits.iter().filter_map(|limit| apart(limits, limit)).collect(),
            plenty: None,
            is_dated: limits.iter().any(|limit| limit.algorithm.is_dated()),
            may_wait: limits.iter().any(may_wait),
        };
        if prepared.always_refuses {
            prepared.identities = prepared.identify(shared, scope, limits);
            return prepared;
        }
        let mut digests = PlanDigests::new(&shared.digests);
        local::with(shared, |local| {
            local.scope(scope, |cache| {
                for (limit, index) in in_order(limits).filter(|(limit, _)| !never(limit)) {
                    let mut cell = cell(&mut digests, shared, scope, cache, limit);
                    if prepared.apart.iter().any(|family| family.assured == index) {
                        // Its parent is in another call: it refuses nothing, unless it has to fit.
                        (cell.part, cell.shadow) = (Part::Alone, true);
                    }
                    let by_workers = shared.lease_of(limit).filter(|lease| !lease.to_callers);
                    if let (Some(leased), Some(lease)) = (shared.leased(limit), by_workers) {
                        let limiter: Weak<Shared> = Arc::downgrade(shared);
                        let at_store = shared.counting(limit).into_owned();
                        let leased = Leased { at_store, ..leased };
                        prepared
                            .leased
                            .push((index, LeaseSpec::new(limiter, &cell, lease, leased)));
                    }
                    prepared.calls.add(cell, index, order(limit));
                }
            });
        });
        prepared.plenty = prepared.calls.are_several().then(Plenty::default);
        prepared.may_hold_refusal = prepared.calls.only().is_some() && refusals::may_hold(limits);
        prepared.identities = prepared.identify(shared, scope, limits);
        if prepared.calls.may_be_taken_back()
            || !prepared.leased.is_empty()
            || limits.iter().any(|it| it.refund != Refund::Never)
        {
            prepared.note_given_back(shared);
        }
        prepared
    }

    /// Stops remembering refusals of these limits, whichever plan they are of.
    pub(super) fn note_given_back(&self, shared: &Arc<Shared>) {
        local::with(shared, |local| {
            for identity in &self.identities {
                if local.is_first_given_back(identity.limit)
                    && shared.given_back.add(identity.limit)
                {
                    shared.resets.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
    }

    /// The same without some limits of the plan.
    pub(super) fn without(&self, limits: LimitSet) -> Self {
        Self { calls: self.calls.filtered(|index| !limits.contains(index)), ..self.clone() }
    }

    /// The same with the limit at `index` alone.
    pub(super) fn only(&self, index: usize) -> Self {
        Self { calls: self.calls.filtered(|other| other == index), ..self.clone() }
    }

    /// The parents that are asked before their children.
    pub(super) fn parents_apart(&self) -> LimitSet {
        let mut parents = LimitSet::default();
        self.apart.iter().for_each(|family| parents.add(usize::from(family.parent)));
        parents
    }

    fn identify(&self, shared: &Shared, scope: &Scope, limits: &[Limit]) -> Identities {
        let of = |(index, limit): (usize, &Limit)| match self.calls.cell(index) {
            Some(Cell { key: Key { tag, key, space }, .. }) => {
                Identity { limit: space.digest, key: KeyDigest::of_parts([*tag, *key]) }
            }
            // In no call: it never passes, or another limit of the plan never does.
            None => Identity {
                limit: keys::space(&scope.name, &limit.name, "").digest,
                key: shared.digests.of_key(&limit.key, limit.tag.as_deref()),
            },
        };
        limits.iter().enumerate().map(of).collect()
    }

    /// The context of a take. `get_wait_permit` is called only if the request may have to wait.
    pub(super) fn context(
        &self,
        shared: &Shared,
        get_wait_permit: impl FnOnce() -> bool,
    ) -> TakeContext {
        TakeContext {
            member: self.new_member(),
            now_us: self.now_us(shared),
            must_not_wait: self.may_wait && !get_wait_permit(),
            must_fit: LimitSet::default(),
        }
    }

    /// A new member's name, or 0 if no algorithm keeps members.
    pub(super) fn new_member(&self) -> u128 {
        if self.keeps_members { new_member() } else { 0 }
    }

    /// The limiter's clock, in microseconds since 1970, for limits in calendar periods; else 0. It
    /// picks the period to ask for first; the store's time decides.
    pub(super) fn now_us(&self, shared: &Shared) -> i64 {
        if self.is_dated { shared.clock.wall_us() } else { 0 }
    }

    /// The round of a take.
    pub(super) fn round(
        &self,
        shared: &Shared,
        scope: &Scope,
        limits: &[Limit],
        context: TakeContext,
    ) -> Round<'_> {
        let must_fit = context.must_fit;
        let adjusted =
            self.keeps_members || self.is_dated || context.must_not_wait || !must_fit.is_empty();
        let adjust = |cell: &mut Cell, index: usize| {
            cell.member = context.member;
            let Some(limit) = limits.get(index) else { return };
            if limit.algorithm.is_dated() {
                cell.numbers = shared.numbers(&shared.counting(limit), context.now_us);
            }
            if must_fit.contains(index) {
                cell.shadow = limit.enforcement == Enforcement::Shadow;
            }
            if context.must_not_wait && may_wait(limit) {
                cell.numbers[LeakyBucket::MAY_WAIT] = 0;
            }
        };
        let on_store_error = |index| {
            let limit = limits.get(index);
            match limit.map_or(OnStoreError::Allow, |limit| failure::on_store_error(scope, limit)) {
                OnStoreError::Local if !limit.is_some_and(|limit| shared.counts_here(limit)) => {
                    OnStoreError::Deny
                }
                resolved => resolved,
            }
        };
        let adjust = |call: &Call| adjusted.then(|| call.adjusted(adjust));
        let mut round = Round::new(&self.calls, adjust, on_store_error);
        if self.plenty.as_ref().is_some_and(Plenty::is_likely) {
            round.take_all_at_once();
        }
        round
    }

    /// The cell for a request to `limit`, which is at `index` in the plan.
    pub(super) fn cell(
        &self,
        shared: &Arc<Shared>,
        scope: &Arc<Scope>,
        (limit, index): (&Limit, usize),
        request: CellRequest,
    ) -> Cell {
        // A limit that never passes is in no call.
        let build = || {
            let mut digests = PlanDigests::new(&shared.digests);
            local::with(shared, |local| {
                local.scope(scope, |cache| cell(&mut digests, shared, scope, cache, limit))
            })
        };
        let cell = self.calls.cell(index).cloned().unwrap_or_else(build);
        let CellRequest { cost, member, now_us } = request;
        let numbers = if limit.algorithm.is_dated() {
            shared.numbers(&shared.counting(limit), now_us)
        } else {
            cell.numbers
        };
        Cell { cost, member, numbers, ..cell }
    }
}

/// Of a child whose parent is leased, its other two limits.
fn apart(limits: &[Limit], limit: &Limit) -> Option<Apart> {
    let Role::Child { assured, parent } = limit.role else { return None };
    limits.get(usize::from(parent))?.lease.map(|_| Apart { assured, parent })
}

/// The limits with their indices in the plan: last those of which children are assured, each with
/// its parent after it.
fn in_order(limits: &[Limit]) -> impl Iterator<Item = (&Limit, u8)> {
    let alone = |(limit, _): &(&Limit, u8)| !matches!(limit.role, Role::Assured | Role::Parent);
    let parts = limits.iter().flat_map(|limit| match limit.role {
        Role::Child { assured, parent } => [Some(assured), Some(parent)],
        Role::Alone | Role::Assured | Role::Parent => [None; 2],
    });
    let part = |index: u8| Some((limits.get(usize::from(index))?, index));
    limits.iter().zip(0..).filter(alone).chain(parts.flatten().filter_map(part))
}

/// When a limit is asked.
fn order(limit: &Limit) -> Order {
    let stands_alone = matches!(limit.role, Role::Alone | Role::Child { .. });
    match &limit.algorithm {
        Algorithm::Script(_) if stands_alone && !limit.is_enforced() => Order::Apart,
        algorithm if algorithm.queues() => Order::Last,
        _ => Order::Usual,
    }
}

/// The cell of `limit` that is the same for every take.
fn cell<'a>(
    digests: &mut PlanDigests<'a>,
    shared: &Shared,
    scope: &Scope,
    cache: &mut ScopeCache,
    limit: &'a Limit,
) -> Cell {
    let tag = digests.of(limit.tag_or_key());
    let key = digests.of(&limit.key);
    let algorithm = &*shared.counting(limit);
    Cell {
        program: shared.program(algorithm),
        key: Key { tag, key, space: cache.space(scope, &limit.name, algorithm, shared) },
        // 1 or 1000.
        unit_us: algorithm.unit_us() as u32,
        shadow: limit.enforcement == Enforcement::Shadow,
        part: match limit.role {
            Role::Alone | Role::Child { .. } => Part::Alone,
            Role::Assured => Part::Assured,
            Role::Parent => Part::Parent,
        },
        cost: limit.cost,
        // Calendar periods are picked at the take.
        numbers: if algorithm.is_dated() { [0; NUMBERS_MAX] } else { shared.numbers(algorithm, 0) },
        member: 0,
    }
}

/// Whether a request may have to wait for this limit. A shadow limit delays nothing.
fn may_wait(limit: &Limit) -> bool {
    limit.algorithm.queues() && limit.enforcement == Enforcement::Enforce
}
