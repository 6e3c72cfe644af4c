//! The holders of one worker: who holds units that were taken from Redis in advance, and which
//! requests wait for each. Told what time it is; sends nothing and starts nothing. See `leased`.
//!
//! `entry` is the holder of one counter, and `places` are the units of one that come back.

mod entry;
mod places;

use std::any::Any;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use foldhash::fast::RandomState;
use smallvec::SmallVec;
use tokio::sync::{Notify, oneshot};
use weir_algorithms::{Lease, Leased, Terms};
use weir_lease::{Action, Call, Reply, Spent};

use crate::engine::{Cell, CellReply, EngineError, LeaseReply};
use crate::plan::{Algorithm, LimitOutcome};
use entry::{Entry, Waiter, named};

/// Maximum number of counters that one worker has holders for. Requests for more ask alone.
const HOLDERS_MAX: usize = 16_384;
/// Time between two removals of idle holders from a full table, in microseconds.
const SWEPT_EVERY_US: u64 = 1_000_000;
/// Requests of one worker that wait for leases, at most. More ask alone.
const WAITING_MAX: usize = 16_384;
/// How late a timer may be, in microseconds: unused units go back at least so long before the
/// deadline, or in the middle of a shorter life.
const TIMER_US: u64 = 3_000;
/// Unused units go back this part of a life before the deadline: they are of use to others, and the
/// call takes a moment.
const RETURNED_BEFORE: u64 = 16;

/// How a limit of a plan is leased: all that a lease of its counter depends on.
#[derive(Debug)]
pub(super) struct LeaseSpec {
    /// Identifies the counter.
    id: u128,
    /// Later specifications have greater numbers.
    serial: u64,
    /// A request for one unit, with the numbers that the store runs with, unless they depend on the
    /// date.
    pub(super) cell: Cell,
    /// What the store runs with.
    pub(super) algorithm: Algorithm,
    /// Whether its units are places, which requests return.
    pub(super) has_places: bool,
    pub(super) lease: Lease,
    pub(super) terms: Terms,
    /// Whose counter it is, for units that have to go back to the store.
    pub(super) limiter: Weak<dyn Any + Send + Sync>,
}

/// The number of the next specification.
static NEXT_SERIAL: AtomicU64 = AtomicU64::new(1);

impl LeaseSpec {
    /// Whether units come back one after another, so that a grant that leaves some says when one of
    /// them is back, and not when several are.
    fn counts_apart(&self) -> bool {
        matches!(
            self.algorithm,
            Algorithm::SlidingWindowLog(_) | Algorithm::SlidingWindowBuckets(_)
        )
    }

    /// Leases of the counter that `cell` names, which runs with what `leased` says.
    pub(super) fn new(
        limiter: Weak<dyn Any + Send + Sync>,
        cell: &Cell,
        lease: Lease,
        leased: Leased,
    ) -> Arc<Self> {
        let Leased { at_store, terms } = leased;
        Arc::new(Self {
            id: cell.key.id(),
            serial: NEXT_SERIAL.fetch_add(1, Ordering::Relaxed),
            cell: Cell { cost: 1, ..cell.clone() },
            has_places: at_store.holds(),
            algorithm: at_store,
            lease,
            terms,
            limiter,
        })
    }

    /// The answer to a request that the store refused.
    pub(super) fn refused(&self, answer: CellReply) -> LimitOutcome {
        let us = |units: u64| units.saturating_mul(u64::from(self.cell.unit_us));
        LimitOutcome {
            fits: false,
            remaining: answer.remaining,
            retry_after_us: answer.retry_units.map(us),
            reset_us: us(answer.reset_units),
            ..LimitOutcome::default()
        }
    }

    /// Whether a lease for the one may be spent for the other.
    fn is_same(&self, other: &Self) -> bool {
        self.cell.key == other.cell.key
            && std::ptr::eq(self.cell.program, other.cell.program)
            && self.algorithm == other.algorithm
            && self.lease == other.lease
    }
}

/// The answer to a request for units of a leased limit.
#[derive(Clone, Copy, Debug)]
pub(super) enum Answer {
    /// They are spent.
    Spent(SpentUnits),
    /// The store has too few: its answer, which holds as of a moment ago.
    Refused(CellReply),
    /// The store has to be asked for this request alone.
    Alone,
}

/// Units of a lease that a request has spent.
#[derive(Clone, Copy, Debug)]
pub(super) struct SpentUnits {
    pub(super) spent: Spent,
    /// Their name.
    pub(super) member: u128,
    /// The units that the lease has left.
    pub(super) left: u64,
}

/// The holders of one worker. The lock is only contended where a runtime has several threads, and
/// at the end of the process.
#[derive(Debug, Default)]
pub(super) struct Holders(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    entries: HashMap<u128, Entry, RandomState>,
    waiting: usize,
    swept_us: u64,
    is_closed: bool,
}

/// The answer to a request.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) action: Wanted,
    /// Units of a specification that is no longer used, to be given back.
    pub(super) left: Option<(Arc<LeaseSpec>, Returned)>,
}

#[derive(Debug)]
pub(super) enum Wanted {
    Now(Answer),
    Wait {
        answer: oneshot::Receiver<Answer>,
        /// What is to be kept, if nobody does yet.
        keep: Option<Kept>,
    },
}

/// A holder that a task asks for.
#[derive(Clone, Debug)]
pub(super) struct Kept {
    pub(super) spec: Arc<LeaseSpec>,
    /// What the names of its units begin with, which no other holder has.
    member: u128,
}

/// What the store gets back. Places are several ranges.
pub(super) type Returned = SmallVec<[ReturnedUnits; 1]>;

/// Units that the store gets back.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReturnedUnits {
    pub(super) units: u64,
    pub(super) taken_at_us: u64,
    /// Their name.
    pub(super) member: u128,
}

/// What a keeper does next.
#[derive(Debug)]
pub(super) enum KeeperStep {
    /// Ask the store, and report the answer.
    Ask {
        call: Call,
        /// The name of the units.
        member: u128,
        give_back: Returned,
    },
    /// Give this back, and come back at once.
    Return { give_back: Returned },
    /// Come back then.
    Sleep { until_us: u64 },
    /// Come back then, or as soon as somebody waits.
    Idle { until_us: u64, wake: Arc<Notify> },
    /// Give this back, and end with [`Holders::end`].
    End { give_back: Returned },
}

impl Holders {
    fn lock(&self) -> MutexGuard<'_, Table> {
        // A panic leaves a holder with fewer units than it has, or a waiter without an answer,
        // which then asks alone.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Decides a request for `cost` units.
    pub(super) fn want(&self, spec: &Arc<LeaseSpec>, now_us: u64, cost: u64) -> Step {
        let alone = || Step { action: Wanted::Now(Answer::Alone), left: None };
        let table = &mut *self.lock();
        // A request has one place of a lease.
        if table.is_closed || spec.has_places && cost != 1 {
            return alone();
        }
        let left = table.replace(spec, now_us);
        let Table { entries, waiting, .. } = table;
        let Some(entry) = entries.get_mut(&spec.id) else { return Step { left, ..alone() } };
        if !Arc::ptr_eq(&entry.spec, spec) && !entry.spec.is_same(spec) {
            return Step { left, ..alone() };
        }
        entry.demand.add(now_us, cost.max(1));
        if entry.waiters.is_empty() {
            if let Some(spent) = entry.spend(now_us, cost) {
                return Step { action: Wanted::Now(Answer::Spent(spent)), left };
            }
            if entry.asks_alone(now_us, cost) {
                return Step { left, ..alone() };
            }
        }
        if *waiting >= WAITING_MAX {
            return Step { left, ..alone() };
        }
        *waiting += 1;
        let (sender, answer) = oneshot::channel();
        entry.waiters.push_back(Waiter { cost, answer: sender });
        let keep = (!std::mem::replace(&mut entry.is_kept, true))
            .then(|| Kept { spec: Arc::clone(&entry.spec), member: entry.member });
        entry.wake.notify_one();
        Step { action: Wanted::Wait { answer, keep }, left }
    }

    /// What the keeper of a holder does next.
    pub(super) fn next(&self, kept: &Kept, now_us: u64) -> KeeperStep {
        let table = &mut *self.lock();
        let Table { entries, waiting, is_closed, .. } = table;
        let entry = entries.get_mut(&kept.spec.id).filter(|entry| entry.member == kept.member);
        let Some(entry) = entry else {
            return KeeperStep::End { give_back: Returned::new() };
        };
        loop {
            entry.serve(now_us, waiting);
            if *is_closed || entry.places_are_in_use(now_us) {
                entry.send_away(waiting);
            }
            let Some(want) = entry.want(now_us) else { break };
            match entry.holder.want(now_us, want) {
                Action::Ask { call, give_back } => {
                    entry.covered = entry.waiters.len();
                    return KeeperStep::Ask {
                        call,
                        member: named(entry.member, call.number()),
                        give_back: entry.returned(give_back),
                    };
                }
                Action::Pause { until_us } => return KeeperStep::Sleep { until_us },
                Action::AskAlone => entry.send_away(waiting),
                // There is one keeper, and what could be spent was.
                Action::Wait | Action::Spend(_) => entry.send_away(waiting),
            }
        }
        let surplus = entry.surplus(now_us);
        if !surplus.is_empty() {
            return KeeperStep::Return { give_back: surplus };
        }
        let life_us = kept.spec.terms.life_us;
        let before_us = (life_us / RETURNED_BEFORE).max(TIMER_US).min(life_us / 2);
        match entry.holder.deadline_us() {
            Some(deadline_us)
                if (entry.holder.held(now_us) > 0 || entry.places_are_in_use(now_us))
                    && now_us.saturating_add(before_us) < deadline_us
                    && !*is_closed =>
            {
                let wake = Arc::clone(&entry.wake);
                let until_us = deadline_us.saturating_sub(before_us);
                let until_us = entry.trimmed_us().map_or(until_us, |trims| until_us.min(trims));
                KeeperStep::Idle { until_us, wake }
            }
            _ => KeeperStep::End { give_back: entry.leave() },
        }
    }

    /// Ends a keeper that has given back what was left, so that a drain never misses that. `false`
    /// if it goes on, because a request has come.
    pub(super) fn end(&self, kept: &Kept) -> bool {
        let table = &mut *self.lock();
        let entry = table.entries.get_mut(&kept.spec.id);
        let Some(entry) = entry.filter(|entry| entry.member == kept.member) else { return true };
        entry.is_kept = !entry.waiters.is_empty();
        !entry.is_kept
    }

    /// Records the answer to a call. Returns units that came for nobody.
    pub(super) fn reply(
        &self,
        kept: &Kept,
        now_us: u64,
        (call, answer): (Call, Result<LeaseReply, EngineError>),
    ) -> Returned {
        let table = &mut *self.lock();
        let Table { entries, waiting, .. } = table;
        let entry = entries.get_mut(&kept.spec.id).filter(|entry| entry.member == kept.member);
        let reply = match answer {
            Ok(LeaseReply { units: 0, .. }) => Reply::Refused,
            Ok(LeaseReply { units, at_us, cell, .. }) => {
                // Only what ends has a window that ends.
                let window_left = Some(cell.reset_units).filter(|left| *left > 0);
                let life_us = kept.spec.terms.life_of_grant_us(window_left);
                Reply::Granted { units, life_us, taken_at: at_us }
            }
            Err(_) => Reply::Unknown,
        };
        let Some(entry) = entry else {
            // Another specification has taken its place.
            return kept.unused(call, reply);
        };
        let unexpected = entry.holder.reply(now_us, call, reply);
        let are_last = answer.is_ok_and(|answer| answer.cell.remaining == 0);
        let mut returned = entry.begin(kept, now_us, (call, reply), are_last);
        if !kept.spec.has_places {
            returned = entry.returned(unexpected);
        }
        let covered = std::mem::take(&mut entry.covered);
        let before = entry.waiters.len();
        entry.serve(now_us, waiting);
        let unserved = covered.saturating_sub(before - entry.waiters.len());
        if let Ok(LeaseReply { cell, .. }) = answer
            && cell.remaining < call.least
            && (reply == Reply::Refused || entry.holder.deadline_us().is_some())
        {
            let says_when = reply == Reply::Refused || call.least == 1 || !kept.spec.counts_apart();
            if says_when {
                entry.refuse(unserved, call.least, cell, waiting);
            } else {
                entry.send_away(waiting);
            }
        }
        returned
    }

    /// Returns units that a request has not used, or a place that it does not use any more. Whether
    /// they are in their lease again: not if it has ended, nor if another holder has taken its
    /// place.
    pub(super) fn undo(&self, spec: &LeaseSpec, now_us: u64, units: SpentUnits) -> bool {
        let Table { entries, waiting, .. } = &mut *self.lock();
        let entry = entries.get_mut(&spec.id);
        let Some(entry) = entry.filter(|entry| entry.has_taken(units)) else { return false };
        if entry.goes_back(units) {
            return false;
        }
        let is_back = entry.undo(now_us, units);
        if is_back && spec.has_places {
            entry.serve(now_us, waiting);
        }
        is_back
    }

    /// The keeper of a holder has ended without being told to: whoever waits asks alone.
    pub(super) fn abandon(&self, kept: &Kept) {
        let table = &mut *self.lock();
        let entry = table.entries.get(&kept.spec.id).filter(|entry| entry.member == kept.member);
        if entry.is_some_and(|entry| entry.is_kept) {
            table.remove(kept.spec.id);
        }
    }

    /// The counter with this id was deleted: what was leased of it is not used any more. Units of
    /// what is gone can't go back. Places can, in case it was not deleted after all.
    pub(super) fn forget(&self, id: u128) -> Option<(Arc<LeaseSpec>, Returned)> {
        let mut entry = self.lock().remove(id)?;
        let places = entry.leave();
        entry.spec.has_places.then(|| (Arc::clone(&entry.spec), places))
    }

    /// Ends all leases, and begins no more.
    pub(super) fn close(&self) {
        let mut table = self.lock();
        table.is_closed = true;
        table.entries.values().for_each(|entry| entry.wake.notify_one());
    }

    /// The number of holders that have not ended yet, once all are to.
    pub(super) fn kept_at_end(&self) -> usize {
        let table = self.lock();
        if !table.is_closed {
            return 0;
        }
        table.entries.values().filter(|entry| entry.is_kept).count()
    }
}

impl Table {
    /// Makes room for a holder with this specification, if there is none, or only one that is out
    /// of date. Returns what that held.
    fn replace(
        &mut self,
        spec: &Arc<LeaseSpec>,
        now_us: u64,
    ) -> Option<(Arc<LeaseSpec>, Returned)> {
        let mut left = None;
        if let Some(entry) = self.entries.get(&spec.id) {
            // The latest one is that of the configuration in force.
            let is_replaced = !Arc::ptr_eq(&entry.spec, spec)
                && entry.spec.serial < spec.serial
                && !entry.spec.is_same(spec);
            if !is_replaced {
                return None;
            }
            left = self.remove(spec.id).map(|mut entry| {
                let units = entry.leave();
                (Arc::clone(&entry.spec), units)
            });
        }
        self.make_room(now_us);
        if self.entries.len() < HOLDERS_MAX {
            self.entries.insert(spec.id, Entry::new(Arc::clone(spec)));
        }
        left
    }

    /// Removes a holder. Requests that wait for it ask alone, and its keeper ends.
    fn remove(&mut self, id: u128) -> Option<Entry> {
        let mut entry = self.entries.remove(&id)?;
        entry.send_away(&mut self.waiting);
        entry.wake.notify_one();
        Some(entry)
    }

    fn make_room(&mut self, now_us: u64) {
        if self.entries.len() < HOLDERS_MAX || now_us.saturating_sub(self.swept_us) < SWEPT_EVERY_US
        {
            return;
        }
        self.swept_us = now_us;
        self.entries.retain(|_, entry| entry.is_kept || entry.demand.units(now_us) > 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Key, Part, Space};
    use crate::plan::{Debt, Gcra, Rate};

    const LIFE_MS: u64 = 100;

    fn spec() -> Arc<LeaseSpec> {
        let rate = Rate { amount: 1_000, per_ms: 1_000 };
        let algorithm = Algorithm::from(Gcra { burst: 500, rate, debt: Debt::None });
        let space = Arc::new(Space { text: "p/a/gcra3-1000".into(), digest: 3 });
        let cell = Cell {
            program: algorithm.program().unwrap(),
            key: Key { tag: 1, key: 2, space },
            unit_us: 1,
            shadow: false,
            part: Part::Alone,
            cost: 1,
            numbers: [0; crate::engine::NUMBERS_MAX],
            member: 0,
        };
        let lease = Lease::of_ms(LIFE_MS);
        let limiter: Weak<()> = Weak::new();
        LeaseSpec::new(limiter, &cell, lease, algorithm.leased(lease).unwrap())
    }

    fn granted(units: u64) -> Result<LeaseReply, EngineError> {
        let cell = CellReply {
            fits: true,
            remaining: 100,
            retry_units: None,
            reset_units: 0,
            outside: false,
            uncharged: false,
        };
        Ok(LeaseReply { at_us: 7, units, holders: 1, cell })
    }

    /// Asks until a call is due at `now_us`; returns its keeper and the call.
    fn asking(holders: &Holders, spec: &Arc<LeaseSpec>, now_us: u64) -> (Kept, Call) {
        let mut keep = None;
        for _ in 0..5 {
            if let Wanted::Wait { keep: Some(kept), .. } = holders.want(spec, now_us, 1).action {
                keep = Some(kept);
            }
        }
        let kept = keep.expect("several requests at once are worth a lease");
        let KeeperStep::Ask { call, .. } = holders.next(&kept, now_us) else { panic!("no call") };
        (kept, call)
    }

    fn spend(holders: &Holders, spec: &Arc<LeaseSpec>, now_us: u64) -> SpentUnits {
        match holders.want(spec, now_us, 1).action {
            Wanted::Now(Answer::Spent(units)) => units,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn units_do_not_return_to_the_lease_of_another_holder_of_the_same_counter() {
        let (holders, spec) = (Holders::default(), spec());
        let (kept, call) = asking(&holders, &spec, 10);
        assert!(holders.reply(&kept, 20, (call, granted(20))).is_empty());
        let old = spend(&holders, &spec, 30);
        assert!(holders.undo(&spec, 31, old));
        let old = spend(&holders, &spec, 32);
        assert!(holders.forget(spec.id).is_none());
        // Its first call has the same number.
        let (kept, call) = asking(&holders, &spec, 40);
        assert!(holders.reply(&kept, 50, (call, granted(20))).is_empty());
        let new = spend(&holders, &spec, 60);
        assert_eq!(new.spent.number(), old.spent.number());
        assert!(!holders.undo(&spec, 61, old));
        assert_eq!(spend(&holders, &spec, 62).left, new.left - 1);
    }

    #[test]
    fn the_keeper_of_a_holder_that_is_gone_does_nothing_to_its_successor() {
        let (holders, spec) = (Holders::default(), spec());
        let (old, old_call) = asking(&holders, &spec, 10);
        assert!(holders.forget(spec.id).is_none());
        let (kept, call) = asking(&holders, &spec, 20);
        assert!(holders.reply(&old, 30, (old_call, granted(20))).is_empty());
        let KeeperStep::End { give_back } = holders.next(&old, 30) else { panic!("it is kept") };
        assert!(give_back.is_empty());
        holders.abandon(&old);
        assert!(holders.reply(&kept, 40, (call, granted(20))).is_empty());
        assert!(spend(&holders, &spec, 50).left > 0);
    }

    #[test]
    fn a_holder_is_removed_from_a_full_table_only_if_it_is_idle() {
        let holders = Holders::default();
        let spec = spec();
        asking(&holders, &spec, 10);
        {
            let mut table = holders.lock();
            for id in 100..100 + HOLDERS_MAX as u128 - 1 {
                table.entries.insert(id, Entry::new(Arc::clone(&spec)));
            }
            table.make_room(SWEPT_EVERY_US * 10);
            assert_eq!(table.entries.len(), 1, "the one that is kept");
        }
    }
}
