//! One plan's way through its tags, as a list of steps: who is asked next, what is given back, what
//! came of it. Pure: it calls no store and reads no clock, so that the embedded engine can run it
//! at once and Redis in a task, and both do the same.
//!
//! A plan under one tag is one take. Under several, all but the first group are looked at side by
//! side before anything is taken: a request that is refused anyway must neither leave keys behind
//! nor hold units that others share, not even until they are given back. Then the groups are taken
//! one after another in the order of their tags' digests, the same for every plan on every proxy:
//! no two plans cross. Only the group with a leaky bucket comes last, because a turn in it is not
//! given back. The first group need not be looked at: its take refuses without a trace. Only when
//! another one refuses is it looked at, too, because `Retry-After` is the longest of all. A take
//! that refuses after its look did not is a race with another request: what the groups before it
//! took is given back, the last first.

use smallvec::SmallVec;

use crate::engine::{Cause, Cell, CellReply, Cells, EngineError, NUMBERS_MAX, Ran, Taken};
use crate::plan::{Enforcement, Limit, LimitOutcome, OnStoreError};

/// When each limit of a plan was charged, by the store's clock in microseconds, in the plan's
/// order; `None` where it was not.
pub(super) type Charged = SmallVec<[Option<u64>; 2]>;

/// The limits of a plan that share a tag: one call to the engine. The same for every take of the
/// plan.
#[derive(Clone, Debug)]
pub(super) struct Call {
    tag: u128,
    /// Asked after all others: what it takes is not given back.
    last: bool,
    cells: Cells,
    /// Each cell's place in the plan.
    places: SmallVec<[u8; 8]>,
}

/// A plan's calls, in the order in which they are made.
#[derive(Clone, Debug, Default)]
pub(super) struct Calls(SmallVec<[Call; 1]>);

/// What came of a call so far.
#[derive(Debug)]
struct Group<'p> {
    call: &'p Call,
    /// Where they are not the call's: they depend on the moment, or not all of them are given back.
    cells: Option<Box<Cells>>,
    /// What its limits want done when the store fails here: the strictest of them.
    on_store_error: OnStoreError,
    /// It is looked at next.
    look: bool,
    /// It was asked again with other numbers, in this phase.
    retold: bool,
    /// The last one: of a look, or of a take.
    answer: Option<Result<Taken, EngineError>>,
    /// The answer is a take's.
    taken: bool,
}

/// What to do next.
#[derive(Debug)]
pub(super) enum Step<'a> {
    /// Look at all of [`Round::looks`], side by side, then say of each what it answered with
    /// [`Round::looked`].
    Look,
    /// Take these, then say so with [`Round::took`].
    Take(&'a Cells),
    /// Give these back, taken at that instant.
    GiveBack(&'a Cells, u64),
    /// Nothing is left to do.
    Done,
}

/// What a round came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// All enforced limits fitted, or were let through uncounted.
    Admitted,
    /// One or more did not fit.
    Refused,
    /// The store failed where that denies.
    Unavailable,
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    /// Groups are looked at.
    Looking,
    /// The group at this place is asked next.
    Taking(usize),
    /// Groups before this place may still hold something that must be given back.
    RollingBack(usize),
    Done,
}

/// A plan on its way.
#[derive(Debug)]
pub(super) struct Round<'p> {
    groups: SmallVec<[Group<'p>; 1]>,
    phase: Phase,
    verdict: Verdict,
}

impl Calls {
    /// Adds the plan's limit at `place`; `last` has its tag asked after all others.
    pub(super) fn add(&mut self, cell: Cell, place: u8, last: bool) {
        let tag = cell.key.tag;
        let mut call = match self.0.iter().position(|call| call.tag == tag) {
            Some(at) => self.0.remove(at),
            None => Call { tag, last: false, cells: Cells::new(), places: SmallVec::new() },
        };
        call.last |= last;
        // Sorted by program: a script for each order would be too many for Redis' memory.
        let among = call
            .cells
            .iter()
            .position(|other| other.program.name > cell.program.name)
            .unwrap_or(call.cells.len());
        call.cells.insert(among, cell);
        call.places.insert(among, place);
        let at = self
            .0
            .iter()
            .position(|other| (other.last, other.tag) > (call.last, tag))
            .unwrap_or(self.0.len());
        self.0.insert(at, call);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The cell of the limit at `place`.
    pub(super) fn cell(&self, place: usize) -> Option<&Cell> {
        self.0
            .iter()
            .find_map(|call| {
                call.cells.iter().zip(&call.places).find(|(_, at)| usize::from(**at) == place)
            })
            .map(|(cell, _)| cell)
    }
}

impl Call {
    /// Its cells as `adjust` leaves each, which is told the cell's place in the plan.
    pub(super) fn adjusted(&self, adjust: impl Fn(&mut Cell, usize)) -> Box<Cells> {
        let mut cells = Box::new(self.cells.clone());
        cells
            .iter_mut()
            .zip(&self.places)
            .for_each(|(cell, place)| adjust(cell, usize::from(*place)));
        cells
    }
}

impl<'p> Round<'p> {
    /// A round of these calls, with the cells that `adjust` gives where they are not those of every
    /// take; `on_store_error` says of a limit's place what it wants done when the store fails.
    pub(super) fn new(
        calls: &'p Calls,
        adjust: impl Fn(&Call) -> Option<Box<Cells>>,
        on_store_error: impl Fn(usize) -> OnStoreError,
    ) -> Self {
        let mut groups = SmallVec::new();
        for call in &calls.0 {
            let of_limits = call.places.iter().map(|place| on_store_error(usize::from(*place)));
            let on_store_error = of_limits.max().unwrap_or(OnStoreError::Allow);
            let look = !groups.is_empty();
            groups.push(Group {
                call,
                cells: adjust(call),
                on_store_error,
                look,
                retold: false,
                answer: None,
                taken: false,
            });
        }
        let phase = if groups.len() > 1 { Phase::Looking } else { Phase::Taking(0) };
        Self { groups, phase, verdict: Verdict::Admitted }
    }

    /// How many tags there are.
    pub(super) fn groups(&self) -> usize {
        self.groups.len()
    }

    pub(super) fn verdict(&self) -> Verdict {
        self.verdict
    }

    /// What is to be done now. A `Take` is answered with [`Round::took`], a `Look` with
    /// [`Round::looked`], before the next step is asked for.
    pub(super) fn next(&mut self) -> Step<'_> {
        if let Phase::Looking = self.phase {
            if !self.groups.iter().any(|group| group.look) {
                self.end_looking();
            }
            if let Phase::Looking = self.phase {
                return Step::Look;
            }
        }
        while let Phase::Taking(at) = self.phase {
            match self.groups.get(at) {
                // The store failed in the look, and the request goes on without it.
                Some(Group { answer: Some(Err(_)), .. }) => self.phase = Phase::Taking(at + 1),
                Some(_) => {
                    return self
                        .groups
                        .get(at)
                        .map_or(Step::Done, |group| Step::Take(group.cells()));
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
                return self
                    .groups
                    .get(at)
                    .map_or(Step::Done, |group| Step::GiveBack(group.cells(), at_us));
            }
        }
        Step::Done
    }

    /// The groups that are to be looked at now: their places, and what they ask.
    pub(super) fn looks(&self) -> SmallVec<[(usize, &Cells); 4]> {
        self.groups
            .iter()
            .enumerate()
            .filter(|(_, group)| group.look)
            .map(|(at, group)| (at, group.cells()))
            .collect()
    }

    /// What the look at the group `at` answered; `numbers` as for [`Round::took`].
    pub(super) fn looked(
        &mut self,
        at: usize,
        answer: Result<Taken, EngineError>,
        numbers: impl Fn(usize, u64) -> Option<[i64; NUMBERS_MAX]>,
    ) {
        let Some(group) = self.groups.get_mut(at) else { return };
        if let Some(answer) = group.inside(answer, numbers) {
            (group.look, group.retold, group.answer) = (false, false, Some(answer));
        }
    }

    /// Goes on with what the looks came to.
    fn end_looking(&mut self) {
        let refuses =
            |group: &Group<'_>| matches!(&group.answer, Some(Ok(taken)) if !taken.admitted);
        if self.groups.iter().any(refuses) {
            // A refusal is known and stands, whatever becomes of the others.
            self.verdict = Verdict::Refused;
            match self.groups.first_mut() {
                Some(first) if first.answer.is_none() => first.look = true,
                _ => self.phase = Phase::Done,
            }
        } else if self
            .groups
            .iter()
            .any(|group| group.denies() && matches!(group.answer, Some(Err(_))))
        {
            self.verdict = Verdict::Unavailable;
            self.phase = Phase::Done;
        } else {
            self.phase = Phase::Taking(0);
        }
    }

    /// The answer to the last `Take`. Where the store's time lies outside what the cells' numbers
    /// are about, the same group is asked once more, with `numbers` of a limit (by its place) at
    /// that time.
    pub(super) fn took(
        &mut self,
        answer: Result<Taken, EngineError>,
        numbers: impl Fn(usize, u64) -> Option<[i64; NUMBERS_MAX]>,
    ) {
        let Phase::Taking(at) = self.phase else { return };
        let Some(group) = self.groups.get_mut(at) else { return };
        let Some(answer) = group.inside(answer, numbers) else { return };
        self.phase = Phase::Taking(at + 1);
        match &answer {
            Ok(taken) if !taken.admitted => self.verdict = Verdict::Refused,
            Err(_) if group.denies() => self.verdict = Verdict::Unavailable,
            Ok(_) | Err(_) => {}
        }
        (group.answer, group.taken) = (Some(answer), true);
        if self.verdict != Verdict::Admitted {
            self.end_taking(at);
        }
    }

    fn end_taking(&mut self, asked: usize) {
        self.phase =
            if self.verdict == Verdict::Admitted { Phase::Done } else { Phase::RollingBack(asked) };
    }

    /// Writes what each asked limit answered to its place, and when it was charged.
    pub(super) fn report(
        &self,
        limits: &[Limit],
        outcomes: &mut [LimitOutcome],
        charged: &mut Charged,
    ) {
        for group in &self.groups {
            for (index, place) in
                group.call.places.iter().map(|place| usize::from(*place)).enumerate()
            {
                let (Some(limit), Some(outcome)) = (limits.get(place), outcomes.get_mut(place))
                else {
                    continue;
                };
                let Some((taken, reply)) = group.reply(index) else {
                    *outcome = LimitOutcome {
                        fits: true,
                        unmeasured: Some(group.on_store_error),
                        ..LimitOutcome::default()
                    };
                    continue;
                };
                *outcome = self.read(group, limit, reply);
                if self.verdict == Verdict::Admitted
                    && reply.fits
                    && limit.cost > 0
                    && let Some(slot) = charged.get_mut(place)
                {
                    *slot = Some(taken.at_us);
                }
            }
        }
    }

    fn read(&self, group: &Group<'_>, limit: &Limit, reply: &CellReply) -> LimitOutcome {
        let unit_us = limit.algorithm.unit_us();
        let us = |units: u64| units.saturating_mul(unit_us);
        let reset_us = us(reply.reset_units);
        let not_kept = self.verdict != Verdict::Admitted && group.taken && reply.fits;
        // A shadow has nobody wait, either.
        let waits = limit.algorithm.queues()
            && reply.fits
            && group.taken
            && limit.enforcement == Enforcement::Enforce;
        LimitOutcome {
            fits: reply.fits,
            remaining: reply.remaining.saturating_add(if not_kept && tells_all(limit) {
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
        }
    }
}

/// Whether what is left after a take tells what was there before it: not where nothing is refused
/// (what is left ends at 0 there), nor where a request may wait for what is not there yet.
fn tells_all(limit: &Limit) -> bool {
    limit.algorithm.cost_max().is_some() && !limit.algorithm.queues()
}

impl Group<'_> {
    /// Whether a failed store denies the request here.
    fn denies(&self) -> bool {
        match self.on_store_error {
            OnStoreError::Allow => false,
            // No configuration and no plan can ask for `Local` yet.
            OnStoreError::Local | OnStoreError::Deny => true,
        }
    }

    fn cells(&self) -> &Cells {
        self.cells.as_deref().unwrap_or(&self.call.cells)
    }

    fn cells_mut(&mut self) -> &mut Cells {
        self.cells.get_or_insert_with(|| Box::new(self.call.cells.clone()))
    }

    /// The answer, unless the store's time lies outside what the cells' numbers are about: then
    /// they are told again, once, and the group is asked again.
    fn inside(
        &mut self,
        answer: Result<Taken, EngineError>,
        numbers: impl Fn(usize, u64) -> Option<[i64; NUMBERS_MAX]>,
    ) -> Option<Result<Taken, EngineError>> {
        let Some(taken) =
            answer.as_ref().ok().filter(|taken| taken.cells.iter().any(|reply| reply.outside))
        else {
            return Some(answer);
        };
        if std::mem::replace(&mut self.retold, true) {
            return Some(Err(EngineError { cause: Cause::Script, ran: Ran::No }));
        }
        // Only theirs: the others' may say what was decided before, as that nobody may wait.
        let call = self.call;
        let cells = self
            .cells_mut()
            .iter_mut()
            .zip(&call.places)
            .zip(&taken.cells)
            .filter(|(_, reply)| reply.outside);
        for ((cell, place), _) in cells {
            cell.numbers = numbers(usize::from(*place), taken.at_us).unwrap_or(cell.numbers);
        }
        None
    }

    /// Leaves in `cells` what was charged, and says when; `None` where nothing was. A take whose
    /// outcome is unknown stands.
    fn release(&mut self) -> Option<u64> {
        let Some(Ok(taken)) = &self.answer else { return None };
        if !taken.admitted || !self.taken {
            return None;
        }
        let cells = self.cells.get_or_insert_with(|| Box::new(self.call.cells.clone()));
        // `retain` visits in order, and there is one reply for each cell.
        let mut replies = taken.cells.iter();
        cells.retain(|cell| replies.next().is_some_and(|reply| reply.fits) && cell.cost > 0);
        (!cells.is_empty()).then_some(taken.at_us)
    }

    fn reply(&self, index: usize) -> Option<(&Taken, &CellReply)> {
        let Some(Ok(taken)) = &self.answer else { return None };
        taken.cells.get(index).map(|reply| (taken, reply))
    }
}

#[cfg(test)]
#[path = "tests/round.rs"]
mod tests;
