//! What a plan's limits are for the engine: the part that does not depend on the moment, worked out
//! once and kept with the plan. Knows no store.
//!
//! A policy's decision is remembered with its plan, so most takes find the digests of their keys,
//! their spaces and their numbers here. What is kept holds for one limiter and for scopes of one
//! name, and says so ([`Prepared::owner`]): a reload may bring another limiter, and routes with a
//! scope of their own share a policy's plans.

use std::sync::Arc;

use smallvec::SmallVec;

use super::keys::PlanDigests;
use super::local::{self, KnownScope};
use super::round::{Calls, Round};
use super::shared::Shared;
use super::{Scope, failure};
use crate::engine::{Cell, Key, NUMBERS_MAX};
use crate::plan::{Enforcement, LeakyBucket, Limit, OnStoreError, Plan};

/// Owners for which one plan is kept prepared, at most; the one that came first gives way.
const OWNERS_MAX: usize = 4;

/// A plan's limits for one limiter and scope.
#[derive(Clone, Debug)]
pub(super) struct Prepared {
    /// [`Scope::owner`] of whom it is for.
    owner: u64,
    /// An enforced limit never passes, so none is asked: there are no calls.
    pub(super) refuses: bool,
    /// One for each tag, in the order in which they are asked. A limit that never passes is in
    /// none.
    pub(super) calls: Calls,
    /// Whether something is kept by name: a log's units, or places in flight.
    pub(super) named: bool,
    /// Whether a limit counts in a calendar's periods.
    dated: bool,
    /// Whether a request may have to wait for a limit's turn.
    may_wait: bool,
}

/// What a take depends on beside its plan.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Moment {
    /// Names what is taken; 0 where nothing is kept by name.
    pub(super) member: u128,
    /// The instant around which a calendar's periods are named.
    pub(super) now_us: i64,
    /// A limit may have the request wait, and there is no place to wait.
    pub(super) must_not_wait: bool,
}

/// What is asked of one counter outside a round.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    /// Units to take, or to give back.
    pub(super) cost: u64,
    /// What they are called.
    pub(super) member: u128,
    /// Around which instant a calendar's periods are named.
    pub(super) now_us: i64,
}

/// Calls `work` with what `plan` is for `shared` and `scope`, which is worked out first where it is
/// not known.
pub(super) fn with<T>(
    shared: &Arc<Shared>,
    scope: &Arc<Scope>,
    plan: &Plan,
    work: impl FnOnce(&Prepared) -> T,
) -> T {
    let owner = scope.owner(shared);
    plan.slot().with(SmallVec::<[Prepared; 1]>::new, |kept| {
        let at = kept.iter().position(|prepared| prepared.owner == owner).unwrap_or_else(|| {
            if kept.len() >= OWNERS_MAX {
                kept.remove(0);
            }
            kept.push(Prepared::new(owner, shared, scope, plan));
            kept.len() - 1
        });
        match kept.get(at) {
            Some(prepared) => work(prepared),
            // It was found or pushed there.
            None => work(&Prepared::new(owner, shared, scope, plan)),
        }
    })
}

impl Prepared {
    fn new(owner: u64, shared: &Arc<Shared>, scope: &Arc<Scope>, plan: &Plan) -> Self {
        let limits = plan.limits();
        let never = |limit: &Limit| limit.algorithm.refuses_all();
        let mut prepared = Self {
            owner,
            refuses: limits
                .iter()
                .any(|limit| limit.enforcement == Enforcement::Enforce && never(limit)),
            calls: Calls::default(),
            named: limits.iter().any(|limit| limit.algorithm.keeps_members()),
            dated: limits.iter().any(|limit| limit.algorithm.is_dated()),
            may_wait: limits.iter().any(may_wait),
        };
        if prepared.refuses {
            return prepared;
        }
        let mut digests = PlanDigests::new(&shared.digests);
        local::with(shared, |local| {
            local.scope(scope, |known| {
                for (limit, place) in limits.iter().zip(0_u8..).filter(|(limit, _)| !never(limit)) {
                    let last = limit.algorithm.queues();
                    prepared.calls.add(
                        cell(&mut digests, shared, scope, known, limit),
                        place,
                        last,
                    );
                }
            });
        });
        prepared
    }

    /// The moment of a take; `has_place` is asked for a place to wait where one may be needed.
    pub(super) fn moment(&self, shared: &Shared, has_place: impl FnOnce() -> bool) -> Moment {
        Moment {
            member: self.new_member(),
            now_us: self.now_us(shared),
            must_not_wait: self.may_wait && !has_place(),
        }
    }

    /// A name for what a plan takes, where that is kept by name.
    pub(super) fn new_member(&self) -> u128 {
        // As good as unique: 128 random bits, and only among the members of one key.
        if self.named { fastrand::u128(..) } else { 0 }
    }

    /// The proxy's idea of now, in microseconds since 1970, for those that name periods of a
    /// calendar; the store's time decides among them.
    pub(super) fn now_us(&self, shared: &Shared) -> i64 {
        if self.dated { shared.clock.wall_us() } else { 0 }
    }

    /// A take's round at `moment`.
    pub(super) fn round(
        &self,
        shared: &Shared,
        scope: &Scope,
        limits: &[Limit],
        moment: Moment,
    ) -> Round<'_> {
        let adjusted = self.named || self.dated || moment.must_not_wait;
        let adjust = |cell: &mut Cell, place: usize| {
            cell.member = moment.member;
            let Some(limit) = limits.get(place) else { return };
            if limit.algorithm.is_dated() {
                cell.numbers = shared.numbers(&limit.algorithm, moment.now_us);
            }
            if moment.must_not_wait && may_wait(limit) {
                cell.numbers[LeakyBucket::MAY_WAIT] = 0;
            }
        };
        let on_store_error = |place| {
            limits.get(place).map_or(OnStoreError::Allow, |limit| failure::of(scope, limit))
        };
        Round::new(&self.calls, |call| adjusted.then(|| call.adjusted(adjust)), on_store_error)
    }

    /// The counter of `limit`, which is at `place` in the plan, and what is asked of it.
    pub(super) fn cell(
        &self,
        shared: &Arc<Shared>,
        scope: &Arc<Scope>,
        (limit, place): (&Limit, usize),
        asked: Asked,
    ) -> Cell {
        // One that never passes is in no call.
        let anew = || {
            let mut digests = PlanDigests::new(&shared.digests);
            local::with(shared, |local| {
                local.scope(scope, |known| cell(&mut digests, shared, scope, known, limit))
            })
        };
        let cell = self.calls.cell(place).cloned().unwrap_or_else(anew);
        let Asked { cost, member, now_us } = asked;
        let numbers = if limit.algorithm.is_dated() {
            shared.numbers(&limit.algorithm, now_us)
        } else {
            cell.numbers
        };
        Cell { cost, member, numbers, ..cell }
    }
}

/// `limit`'s counter, and what every take asks of it.
fn cell<'a>(
    digests: &mut PlanDigests<'a>,
    shared: &Shared,
    scope: &Scope,
    known: &mut KnownScope,
    limit: &'a Limit,
) -> Cell {
    let tag = digests.of(limit.tag_or_key());
    let key = digests.of(&limit.key);
    Cell {
        program: shared.program(&limit.algorithm),
        key: Key { tag, key, space: known.space(scope, &limit.name, &limit.algorithm, shared) },
        // 1 or 1000.
        unit_us: limit.algorithm.unit_us() as u32,
        shadow: limit.enforcement == Enforcement::Shadow,
        cost: limit.cost,
        // A calendar's periods are named at the take.
        numbers: if limit.algorithm.is_dated() {
            [0; NUMBERS_MAX]
        } else {
            shared.numbers(&limit.algorithm, 0)
        },
        member: 0,
    }
}

/// Whether a request may have to wait for this limit's turn. A shadow has nobody wait.
fn may_wait(limit: &Limit) -> bool {
    limit.algorithm.queues() && limit.enforcement == Enforcement::Enforce
}
