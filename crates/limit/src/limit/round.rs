//! The steps of one take: which tag is called next, what is given back, and the result. A pure
//! state machine that calls no store and reads no clock. The embedded engine runs it inline, Redis
//! runs it in a task, and both behave the same.
//!
//! A plan with one tag is one take. With several tags:
//!
//! 1. All groups but the first are looked at, in parallel, before anything is taken. A request that
//!    is refused must neither create keys nor hold shared units, even for a moment. The first group
//!    needs no look, because a take that refuses changes nothing. It is looked at only if another
//!    group refuses, because `Retry-After` is the longest of all.
//! 2. Then the groups are taken one after another, in the order of their tags' digests. Every plan
//!    on every proxy uses that order, so two plans that compete for the same last units can't
//!    refuse each other. The group with a leaky bucket comes last, because its slot can't be given
//!    back. After it come shadows that are scripts, each in a group of its own: where one fails, it
//!    takes nothing with it.
//! 3. If all limits had plenty a moment ago (`plenty`), all groups are taken at once instead, in
//!    one round trip.
//! 4. A take can refuse although its look did not, if another request came between. What the
//!    earlier groups took is then given back, in reverse order.

use smallvec::SmallVec;
use weir_algorithms::Describe;

use super::calls::{Call, Calls, LimitSet, Order};
use crate::engine::{
    Cause, Cell, CellReply, Cells, EngineError, Execution, NUMBERS_MAX, TakeReply,
};
use crate::plan::{Enforcement, LeakyBucket, Limit, LimitOutcome, OnStoreError};

/// When each limit of a plan was charged, in the plan's order: the store's time in microseconds.
/// `None` if it was not charged.
pub(super) type ChargeTimes = SmallVec<[Option<u64>; 2]>;

/// The numbers with which a limit is counted, by its index in the plan.
pub(super) trait Numbers {
    /// The numbers for the store's time, in microseconds since 1970.
    fn at(&self, index: usize, at_us: u64) -> Option<[i64; NUMBERS_MAX]>;

    /// The numbers for this proxy's share of the limit.
    fn local(&self, index: usize) -> Option<[i64; NUMBERS_MAX]>;
}

/// Who decides a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GroupStore {
    /// The store.
    Store,
    /// This process, because the store failed.
    Local,
}

/// The state of one call within a round.
#[derive(Debug)]
struct Group<'p> {
    call: &'p Call,
    /// This take's own cells, if they differ from the call's: numbers that depend on the time, or a
    /// give-back of only some of them.
    cells: Option<Box<Cells>>,
    /// What to do when the store fails: the strictest setting of the group's limits.
    on_store_error: OnStoreError,
    /// What is given back of them.
    released: Option<Box<Cells>>,
    /// It still has to be asked, where several are asked at once.
    is_due: bool,
    /// It was called again with other numbers, in this phase.
    retried: bool,
    place: GroupStore,
    /// The store's call that failed may have run.
    may_have_run: bool,
    /// Why the store's call failed first.
    failed: Option<Cause>,
    /// The last answer: of a look or of a take.
    answer: Option<Result<TakeReply, EngineError>>,
    /// Whether `answer` is that of a take.
    was_take: bool,
}

/// What the caller does next.
#[derive(Debug)]
pub(super) enum Step<'a> {
    /// Look at all of [`Round::due`] in parallel, then pass each answer to [`Round::looked`].
    Look,
    /// Take these, then pass the answer to [`Round::took`].
    Take(&'a Cells, GroupStore),
    /// Take all of [`Round::due`] in parallel, then pass each answer to [`Round::took_at`].
    TakeAll,
    /// Give these back. They were taken at this time, in microseconds since 1970.
    GiveBack(&'a Cells, u64, GroupStore),
    /// Nothing is left to do.
    Done,
}

/// The result of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RoundResult {
    /// All enforced limits fitted, or were let through uncounted.
    Admitted,
    /// One or more did not fit.
    Refused,
    /// The store failed for a group that denies on failure.
    Unavailable,
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    /// The groups that are due are looked at.
    Looking,
    /// The groups that are due are taken.
    TakingAll,
    /// The group at this index is taken next.
    Taking(usize),
    /// Groups before this index may still hold something that must be given back.
    RollingBack(usize),
    Done,
}

/// The progress of one take through its groups.
#[derive(Debug)]
pub(super) struct Round<'p> {
    groups: SmallVec<[Group<'p>; 1]>,
    phase: Phase,
    result: RoundResult,
    /// The request is refused already, and nothing is taken.
    only_looks: bool,
}

impl<'p> Round<'p> {
    /// A round of these calls. `adjust` returns this take's own cells where they differ from the
    /// call's; `on_store_error` says what to do when the store fails, by the limit's index.
    pub(super) fn new(
        calls: &'p Calls,
        adjust: impl Fn(&Call) -> Option<Box<Cells>>,
        on_store_error: impl Fn(usize) -> OnStoreError,
    ) -> Self {
        let mut groups = SmallVec::new();
        for call in &calls.0 {
            let of_limits = call.indices.iter().map(|index| on_store_error(usize::from(*index)));
            let on_store_error = of_limits.max().unwrap_or(OnStoreError::Allow);
            let is_due = !groups.is_empty();
            groups.push(Group {
                call,
                cells: adjust(call),
                on_store_error,
                released: None,
                is_due,
                retried: false,
                place: GroupStore::Store,
                may_have_run: false,
                failed: None,
                answer: None,
                was_take: false,
            });
        }
        let phase = if groups.len() > 1 { Phase::Looking } else { Phase::Taking(0) };
        Self { groups, phase, result: RoundResult::Admitted, only_looks: false }
    }

    /// Only looks: the request is refused by a limit that is not in these calls.
    pub(super) fn only_look(&mut self) {
        self.groups.iter_mut().for_each(|group| group.is_due = true);
        (self.phase, self.only_looks) = (Phase::Looking, true);
    }

    /// Takes all groups at once, without a look before. What a group took is given back if another
    /// refuses, so this is for limits that had plenty a moment ago. Not for one whose units can't
    /// be given back.
    pub(super) fn take_all_at_once(&mut self) {
        if self.groups.len() > 1 && self.groups.iter().all(|group| group.call.order != Order::Last)
        {
            self.groups.iter_mut().for_each(|group| group.is_due = true);
            self.phase = Phase::TakingAll;
        }
    }

    /// Gives back all that was taken, because the request can't be admitted after all. Go on with
    /// [`Round::next`].
    pub(super) fn roll_back(&mut self) {
        self.result = RoundResult::Refused;
        self.phase = Phase::RollingBack(self.groups.len());
    }

    /// The number of groups, one for each tag.
    pub(super) fn groups(&self) -> usize {
        self.groups.len()
    }

    pub(super) fn result(&self) -> RoundResult {
        self.result
    }

    /// The next step. Pass the answer of a `Take` to [`Round::took`], and those of a `Look` to
    /// [`Round::looked`], before the next call.
    pub(super) fn next(&mut self) -> Step<'_> {
        if let Phase::Looking = self.phase {
            if !self.groups.iter().any(|group| group.is_due) {
                self.end_looking();
            }
            if let Phase::Looking = self.phase {
                return Step::Look;
            }
        }
        if let Phase::TakingAll = self.phase {
            if self.groups.iter().any(|group| group.is_due) {
                return Step::TakeAll;
            }
            self.end_taking_all();
        }
        while let Phase::Taking(at) = self.phase {
            match self.groups.get(at) {
                // The store failed in the look, and the request goes on without this group.
                Some(Group { answer: Some(Err(_)), .. }) => self.phase = Phase::Taking(at + 1),
                Some(_) => {
                    return self
                        .groups
                        .get(at)
                        .map_or(Step::Done, |group| Step::Take(group.cells(), group.place));
                }
                None => self.end_taking(at),
            }
        }
        while let Phase::RollingBack(end) = self.phase {
            let Some(at) = end.checked_sub(1) else {
                self.phase = Phase::Done;
                break;
            };
            self.phase = Phase::RollingBack(at);
            if let Some(at_us) = self.groups.get_mut(at).and_then(Group::release) {
                return self.groups.get(at).map_or(Step::Done, |group| {
                    let cells = group.released.as_deref().unwrap_or(group.cells());
                    Step::GiveBack(cells, at_us, group.place)
                });
            }
        }
        Step::Done
    }

    /// The groups that have to be looked at, or taken, now: their indices and cells, and where.
    pub(super) fn due(&self) -> SmallVec<[(usize, &Cells, GroupStore); 4]> {
        self.groups
            .iter()
            .enumerate()
            .filter(|(_, group)| group.is_due)
            .map(|(at, group)| (at, group.cells(), group.place))
            .collect()
    }

    /// Records the answer of the look at the group `at`. For `numbers` see [`Round::took`].
    pub(super) fn looked(
        &mut self,
        at: usize,
        answer: Result<TakeReply, EngineError>,
        numbers: &impl Numbers,
    ) {
        let Some(group) = self.groups.get_mut(at) else { return };
        if let Some(answer) = group.accept_or_retry(answer, numbers) {
            (group.is_due, group.retried, group.answer) = (false, false, Some(answer));
        }
    }

    /// Records the answer of the take of the group `at`, one of several at once. For `numbers` see
    /// [`Round::took`].
    pub(super) fn took_at(
        &mut self,
        at: usize,
        answer: Result<TakeReply, EngineError>,
        numbers: &impl Numbers,
    ) {
        let Some(group) = self.groups.get_mut(at) else { return };
        if let Some(answer) = group.accept_or_retry(answer, numbers) {
            (group.is_due, group.answer, group.was_take) = (false, Some(answer), true);
        }
    }

    /// Ends with what all groups answered.
    fn end_taking_all(&mut self) {
        let refuses =
            |group: &Group<'_>| matches!(&group.answer, Some(Ok(taken)) if !taken.admitted);
        let fails = |group: &Group<'_>| group.denies() && matches!(group.answer, Some(Err(_)));
        if self.groups.iter().any(refuses) {
            self.result = RoundResult::Refused;
        } else if self.groups.iter().any(fails) {
            self.result = RoundResult::Unavailable;
        }
        self.end_taking(self.groups.len());
    }

    /// Chooses the next phase from the looks' answers.
    fn end_looking(&mut self) {
        let refuses =
            |group: &Group<'_>| matches!(&group.answer, Some(Ok(taken)) if !taken.admitted);
        if self.groups.iter().any(refuses) {
            // A refusal is final, whatever the other groups answer.
            self.result = RoundResult::Refused;
            match self.groups.first_mut() {
                Some(first) if first.answer.is_none() => first.is_due = true,
                _ => self.phase = Phase::Done,
            }
        } else if self
            .groups
            .iter()
            .any(|group| group.denies() && matches!(group.answer, Some(Err(_))))
        {
            self.result = RoundResult::Unavailable;
            self.phase = Phase::Done;
        } else if self.only_looks {
            self.result = RoundResult::Refused;
            self.phase = Phase::Done;
        } else {
            self.phase = Phase::Taking(0);
        }
    }

    /// Records the answer to the last `Take`. If the store's time lies outside the period that the
    /// cells' numbers describe, the group is called once more, with other numbers. If the store
    /// failed for a group that is then counted here, it is called here.
    pub(super) fn took(&mut self, answer: Result<TakeReply, EngineError>, numbers: &impl Numbers) {
        let Phase::Taking(at) = self.phase else { return };
        let Some(group) = self.groups.get_mut(at) else { return };
        let Some(answer) = group.accept_or_retry(answer, numbers) else { return };
        self.phase = Phase::Taking(at + 1);
        match &answer {
            Ok(taken) if !taken.admitted => self.result = RoundResult::Refused,
            Err(_) if group.denies() => self.result = RoundResult::Unavailable,
            Ok(_) | Err(_) => {}
        }
        (group.answer, group.was_take) = (Some(answer), true);
        if self.result != RoundResult::Admitted {
            self.end_taking(at);
        }
    }

    fn end_taking(&mut self, end: usize) {
        self.phase = if self.result == RoundResult::Admitted {
            Phase::Done
        } else {
            Phase::RollingBack(end)
        };
    }

    /// Whether the cost fitted the limit at `index`. `None` if that was not measured.
    pub(super) fn fits(&self, index: usize) -> Option<bool> {
        self.groups.iter().find_map(|group| {
            let nth = group.call.position(index)?;
            Some(group.reply(nth)?.1.fits)
        })
    }

    /// The cell of the limit at `index`, as it was asked.
    pub(super) fn cell(&self, index: usize) -> Option<&Cell> {
        self.groups.iter().find_map(|group| group.cells().get(group.call.position(index)?))
    }

    /// Why a call failed, if one did.
    pub(super) fn failure(&self) -> Option<Cause> {
        self.groups.iter().find_map(|group| group.failed)
    }

    /// The limits that were counted here.
    pub(super) fn local(&self) -> LimitSet {
        self.limits_of(|group| group.place == GroupStore::Local)
    }

    /// The limits that were counted here and certainly not on Redis.
    pub(super) fn owed(&self) -> LimitSet {
        self.limits_of(|group| group.place == GroupStore::Local && !group.may_have_run)
    }

    fn limits_of(&self, which: impl Fn(&Group<'_>) -> bool) -> LimitSet {
        let groups = self.groups.iter().filter(|group| which(group));
        groups.flat_map(|group| &group.call.indices).fold(LimitSet::default(), |mut set, at| {
            set.add(usize::from(*at));
            set
        })
    }

    /// Writes each called limit's outcome, and when it was charged, at the limit's index.
    pub(super) fn report(
        &self,
        limits: &[Limit],
        outcomes: &mut [LimitOutcome],
        charged: &mut ChargeTimes,
    ) {
        for group in &self.groups {
            for (nth, index) in
                group.call.indices.iter().map(|index| usize::from(*index)).enumerate()
            {
                let (Some(limit), Some(outcome)) = (limits.get(index), outcomes.get_mut(index))
                else {
                    continue;
                };
                let reply = group.reply(nth).filter(|_| !group.is_left_out(nth, limit));
                let Some((taken, reply)) = reply else {
                    let unmeasured = match group.place {
                        GroupStore::Store => group.on_store_error,
                        GroupStore::Local => OnStoreError::Allow,
                    };
                    *outcome = LimitOutcome {
                        fits: true,
                        unmeasured: Some(unmeasured),
                        ..LimitOutcome::default()
                    };
                    continue;
                };
                let unit_us = group.cells().get(nth).map_or(1, |cell| cell.unit_us);
                *outcome = self.read(group, limit, (reply, u64::from(unit_us)));
                if self.result == RoundResult::Admitted
                    && reply.fits
                    && !reply.uncharged
                    && limit.cost > 0
                    && let Some(slot) = charged.get_mut(index)
                {
                    *slot = Some(taken.at_us);
                }
            }
        }
    }

    fn read(
        &self,
        group: &Group<'_>,
        limit: &Limit,
        (reply, unit_us): (&CellReply, u64),
    ) -> LimitOutcome {
        let us = |units: u64| units.saturating_mul(unit_us);
        let reset_us = us(reply.reset_units);
        let not_kept = self.result != RoundResult::Admitted && group.was_take && reply.fits;
        // A shadow limit delays nothing, either.
        let waits = limit.algorithm.queues()
            && reply.fits
            && group.was_take
            && limit.enforcement == Enforcement::Enforce
            // What only looks has no turn to wait for.
            && limit.cost > 0;
        LimitOutcome {
            fits: reply.fits,
            remaining: reply.remaining.saturating_add(if not_kept && remaining_is_exact(limit) {
                limit.cost
            } else {
                0
            }),
            retry_after_us: reply
                .retry_units
                .filter(|_| !reply.fits || (reply.remaining == 0 && !limit.algorithm.queues()))
                .map(us),
            reset_us,
            delay_us: reply.retry_units.filter(|_| waits).map_or(0, us),
            unmeasured: None,
            held: 0,
            is_local: group.place == GroupStore::Local,
            is_leased: false,
        }
    }
}

/// Whether adding the cost to what remains after a take gives what was there before it. Not if the
/// limit never refuses, because then `remaining` stops at 0. Not if requests may wait, because they
/// take what is not there yet.
fn remaining_is_exact(limit: &Limit) -> bool {
    limit.algorithm.cost_max().is_some() && !limit.algorithm.queues()
}

impl Group<'_> {
    /// Whether a store failure in this group denies the request.
    fn denies(&self) -> bool {
        match self.on_store_error {
            OnStoreError::Allow => false,
            // It has failed here too: too many keys.
            OnStoreError::Local | OnStoreError::Deny => true,
        }
    }

    fn cells(&self) -> &Cells {
        self.cells.as_deref().unwrap_or(&self.call.cells)
    }

    fn cells_mut(&mut self) -> &mut Cells {
        self.cells.get_or_insert_with(|| Box::new(self.call.cells.clone()))
    }

    /// Returns the answer, unless the store's time lies outside the period that the cells' numbers
    /// describe. Then it replaces those numbers and returns `None`, and the group is called again,
    /// once.
    fn accept_or_retry(
        &mut self,
        answer: Result<TakeReply, EngineError>,
        numbers: &impl Numbers,
    ) -> Option<Result<TakeReply, EngineError>> {
        if let Err(error) = &answer {
            self.failed.get_or_insert(error.cause);
        }
        let counts_here =
            self.on_store_error == OnStoreError::Local && self.place == GroupStore::Store;
        if let (Err(error), true) = (&answer, counts_here) {
            self.may_have_run |= error.ran == Execution::Unknown;
            self.count_here(numbers);
            return None;
        }
        let Some(taken) =
            answer.as_ref().ok().filter(|taken| taken.cells.iter().any(|reply| reply.outside))
        else {
            return Some(answer);
        };
        if std::mem::replace(&mut self.retried, true) {
            return Some(Err(EngineError { cause: Cause::Script, ran: Execution::No }));
        }
        // Only the affected cells: the numbers of others may hold what was decided before, such as
        // that the request must not wait.
        let call = self.call;
        let cells = self
            .cells_mut()
            .iter_mut()
            .zip(&call.indices)
            .zip(&taken.cells)
            .filter(|(_, reply)| reply.outside);
        for ((cell, index), _) in cells {
            cell.numbers = numbers.at(usize::from(*index), taken.at_us).unwrap_or(cell.numbers);
        }
        None
    }

    /// Has the group counted in this process. Limits of which no proxy has a share take nothing and
    /// refuse nobody: they are shadows, or let requests through.
    fn count_here(&mut self, numbers: &impl Numbers) {
        let call = self.call;
        for (cell, index) in self.cells_mut().iter_mut().zip(&call.indices) {
            let Some(local) = numbers.local(usize::from(*index)) else {
                (cell.shadow, cell.cost) = (true, 0);
                continue;
            };
            // That a request must not wait is kept.
            let waits = cell.numbers[LeakyBucket::MAY_WAIT];
            cell.numbers = local;
            if cell.program.name == LeakyBucket::NAME {
                cell.numbers[LeakyBucket::MAY_WAIT] = waits;
            }
        }
        self.place = GroupStore::Local;
    }

    /// Whether the limit of this cell is neither counted on the store nor here.
    fn is_left_out(&self, nth: usize, limit: &Limit) -> bool {
        let cost = self.cells().get(nth).map_or(0, |cell| cell.cost);
        self.place == GroupStore::Local && cost == 0 && limit.cost > 0
    }

    /// Prepares to give back what was charged, and returns when that was. `None` if nothing was, or
    /// if the outcome of the take is unknown: then nothing is given back.
    fn release(&mut self) -> Option<u64> {
        let Some(Ok(taken)) = &self.answer else { return None };
        if !taken.admitted || !self.was_take {
            return None;
        }
        let cells = self.released.insert(Box::new(self.cells().clone()));
        // `retain` visits in order, and there is one reply for each cell.
        let mut replies = taken.cells.iter();
        cells.retain(|cell| {
            replies.next().is_some_and(|reply| reply.fits && !reply.uncharged) && cell.cost > 0
        });
        (!cells.is_empty()).then_some(taken.at_us)
    }

    fn reply(&self, nth: usize) -> Option<(&TakeReply, &CellReply)> {
        let Some(Ok(taken)) = &self.answer else { return None };
        taken.cells.get(nth).map(|reply| (taken, reply))
    }
}

#[cfg(test)]
#[path = "tests/round.rs"]
mod tests;

#[cfg(test)]
#[path = "tests/explored.rs"]
mod explored;
