//! One plan's way through its tags, as a list of steps: who is asked next, what is given back, what came of it. Pure: it calls no store and
//! reads no clock, so that the embedded engine can run it at once and Redis in a task, and both do the same.
//!
//! Groups are asked one after another in the order of their tags' digests, the same for every plan on every proxy: no two plans cross. Only the group with a
//! leaky bucket comes last, because a turn in it is not given back. When
//! one refuses, those behind it are still looked at (cost 0, nothing charged), because `Retry-After` is the longest of all; then what the
//! groups before it took is given back, the last first.

use smallvec::SmallVec;

use crate::engine::{Cause, Cell, CellReply, Cells, EngineError, NUMBERS_MAX, Ran, Taken};
use crate::plan::{Algorithm, Enforcement, Limit, LimitOutcome};

/// When each limit of a plan was charged, by the store's clock in microseconds, in the plan's order; `None` where it was not.
pub(super) type Charged = SmallVec<[Option<u64>; 2]>;

/// The limits of a plan that share a tag: one call to the engine. The same for every take of the plan.
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
    /// Where they are not the call's: they depend on the moment, are only looked at, or not all of them are given back.
    cells: Option<Box<Cells>>,
    /// When the store fails here, the request is denied.
    denies: bool,
    /// It was only looked at, because an earlier group had refused.
    looked: bool,
    /// It was asked again with other numbers.
    retold: bool,
    answer: Option<Result<Taken, EngineError>>,
}

/// What to do next.
#[derive(Debug)]
pub(super) enum Step<'a> {
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
        let among = call.cells.iter().position(|other| other.program.name > cell.program.name).unwrap_or(call.cells.len());
        call.cells.insert(among, cell);
        call.places.insert(among, place);
        let at = self.0.iter().position(|other| (other.last, other.tag) > (call.last, tag)).unwrap_or(self.0.len());
        self.0.insert(at, call);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The cell of the limit at `place`.
    pub(super) fn cell(&self, place: usize) -> Option<&Cell> {
        self.0.iter().find_map(|call| call.cells.iter().zip(&call.places).find(|(_, at)| usize::from(**at) == place)).map(|(cell, _)| cell)
    }
}

impl Call {
    /// Its cells as `adjust` leaves each, which is told the cell's place in the plan.
    pub(super) fn adjusted(&self, adjust: impl Fn(&mut Cell, usize)) -> Box<Cells> {
        let mut cells = Box::new(self.cells.clone());
        cells.iter_mut().zip(&self.places).for_each(|(cell, place)| adjust(cell, usize::from(*place)));
        cells
    }
}

impl<'p> Round<'p> {
    /// A round of these calls, with the cells that `adjust` gives where they are not those of every take; `denies` says of a limit's place whether a failed store
    /// denies the request because of it.
    pub(super) fn new(calls: &'p Calls, adjust: impl Fn(&Call) -> Option<Box<Cells>>, denies: impl Fn(usize) -> bool) -> Self {
        let mut groups = SmallVec::new();
        for call in &calls.0 {
            let denies = call.places.iter().any(|place| denies(usize::from(*place)));
            groups.push(Group { call, cells: adjust(call), denies, looked: false, retold: false, answer: None });
        }
        Self { groups, phase: Phase::Taking(0), verdict: Verdict::Admitted }
    }

    /// How many tags there are.
    pub(super) fn groups(&self) -> usize {
        self.groups.len()
    }

    pub(super) fn verdict(&self) -> Verdict {
        self.verdict
    }

    /// What is to be done now. A `Take` is answered with [`Round::took`] before the next step is asked for.
    pub(super) fn next(&mut self) -> Step<'_> {
        if let Phase::Taking(at) = self.phase {
            if at < self.groups.len() {
                return self.groups.get_mut(at).map_or(Step::Done, |group| group.ask(self.verdict));
            }
            self.end_taking(at);
        }
        while let Phase::RollingBack(end) = self.phase {
            let Some(at) = end.checked_sub(1) else {
                self.phase = Phase::Done;
                break;
            };
            self.phase = Phase::RollingBack(at);
            if let Some(at_us) = self.groups.get_mut(at).and_then(Group::release) {
                return self.groups.get(at).map_or(Step::Done, |group| Step::GiveBack(group.cells(), at_us));
            }
        }
        Step::Done
    }

    /// The answer to the last `Take`. Where the store's time lies outside what the cells' numbers are about, the same group is asked once more, with
    /// `numbers` of a limit (by its place) at that time.
    pub(super) fn took(&mut self, mut answer: Result<Taken, EngineError>, numbers: impl Fn(usize, u64) -> Option<[i64; NUMBERS_MAX]>) {
        let Phase::Taking(at) = self.phase else { return };
        let Some(group) = self.groups.get_mut(at) else { return };
        if let Ok(taken) = &answer
            && taken.cells.iter().any(|reply| reply.outside)
        {
            if !std::mem::replace(&mut group.retold, true) {
                // Only theirs: the others' may say what was decided before, as that nobody may wait.
                let call = group.call;
                let cells = group.cells_mut().iter_mut().zip(&call.places).zip(&taken.cells).filter(|(_, reply)| reply.outside);
                for ((cell, place), _) in cells {
                    cell.numbers = numbers(usize::from(*place), taken.at_us).unwrap_or(cell.numbers);
                }
                return;
            }
            answer = Err(EngineError { cause: Cause::Script, ran: Ran::No });
        }
        self.phase = Phase::Taking(at + 1);
        match &answer {
            Ok(taken) if !taken.admitted => self.verdict = Verdict::Refused,
            // A refusal is known and stands, whatever becomes of those that are only looked at.
            Err(_) if group.denies && !group.looked => {
                self.verdict = Verdict::Unavailable;
                self.end_taking(at);
            }
            Ok(_) | Err(_) => {}
        }
        if let Some(group) = self.groups.get_mut(at) {
            group.answer = Some(answer);
        }
    }

    fn end_taking(&mut self, asked: usize) {
        self.phase = if self.verdict == Verdict::Admitted { Phase::Done } else { Phase::RollingBack(asked) };
    }

    /// Writes what each asked limit answered to its place, and when it was charged.
    pub(super) fn report(&self, limits: &[Limit], outcomes: &mut [LimitOutcome], charged: &mut Charged) {
        for group in &self.groups {
            for (index, place) in group.call.places.iter().map(|place| usize::from(*place)).enumerate() {
                let (Some(limit), Some(outcome)) = (limits.get(place), outcomes.get_mut(place)) else { continue };
                let Some((taken, reply)) = group.reply(index) else {
                    *outcome = DEGRADED;
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
        // A look was decided as a cost of 1. Where the real cost is more than what is there, how long one must wait for it is not known, but
        // when the whole allowance is back, it fits.
        if group.looked
            && limit.cost > 1
            && reply.remaining < limit.cost
            && let Some(most) = beyond_a_look(limit)
        {
            let retry_after_us = (limit.cost <= most).then_some(reset_us);
            return LimitOutcome { fits: false, remaining: reply.remaining, retry_after_us, reset_us, ..LimitOutcome::default() };
        }
        let not_kept = self.verdict != Verdict::Admitted && !group.looked && reply.fits;
        // A shadow has nobody wait, either.
        let waits = reply.fits && !group.looked && limit.enforcement == Enforcement::Enforce;
        LimitOutcome {
            fits: reply.fits,
            remaining: reply.remaining.saturating_add(if not_kept && beyond_a_look(limit).is_some() { limit.cost } else { 0 }),
            retry_after_us: reply.retry_units.filter(|_| !reply.fits).map(us),
            reset_us,
            delay_us: reply.retry_units.filter(|_| waits).map_or(0, us),
            degraded: false,
        }
    }
}

/// The most that a limit can ever give at once, where what is left says whether more than one unit fits: not where nothing is refused (what is left ends at
/// 0 there), nor where a request may wait for what is not there yet.
fn beyond_a_look(limit: &Limit) -> Option<u64> {
    limit.algorithm.most().filter(|_| !matches!(limit.algorithm, Algorithm::LeakyBucket { .. }))
}

/// Of a limit whose counter could not be reached.
const DEGRADED: LimitOutcome = LimitOutcome { fits: true, remaining: 0, retry_after_us: None, reset_us: 0, delay_us: 0, degraded: true };

impl Group<'_> {
    fn cells(&self) -> &Cells {
        self.cells.as_deref().unwrap_or(&self.call.cells)
    }

    fn cells_mut(&mut self) -> &mut Cells {
        self.cells.get_or_insert_with(|| Box::new(self.call.cells.clone()))
    }

    fn ask(&mut self, verdict: Verdict) -> Step<'_> {
        if verdict == Verdict::Refused {
            self.looked = true;
            self.cells_mut().iter_mut().for_each(|cell| cell.cost = 0);
        }
        Step::Take(self.cells())
    }

    /// Leaves in `cells` what was charged, and says when; `None` where nothing was. A take whose outcome is unknown stands.
    fn release(&mut self) -> Option<u64> {
        let Some(Ok(taken)) = &self.answer else { return None };
        if !taken.admitted || self.looked {
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
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::engine::{Key, Kind, Program, Space};
    use crate::plan::Rate;

    static PROGRAM: Program = Program { name: "", text: "", kind: Kind::Numbers, state: 3, numbers: 4 };

    /// What the store does with a tag.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Store {
        Fits,
        Refuses,
        Fails(Ran),
    }

    fn store() -> impl Strategy<Value = Store> {
        prop_oneof![Just(Store::Fits), Just(Store::Refuses), Just(Store::Fails(Ran::No)), Just(Store::Fails(Ran::Unknown))]
    }

    fn cell(tag: u128, shadow: bool, cost: u64) -> Cell {
        let space = Arc::new(Space { text: String::new(), digest: 0 });
        Cell { program: &PROGRAM, key: Key { tag, key: 0, space }, unit_us: 1, shadow, cost, numbers: [9, 1, 9, 0, 0, 0], member: 0 }
    }

    fn limit(cost: u64) -> Limit {
        Limit { cost, ..Limit::new("l", "k", Algorithm::Gcra { burst: 9, rate: Rate { amount: 9, per_ms: 1 } }) }
    }

    /// Answers as an engine does: in a refusing group no enforced cell fits; shadows of odd cost never do.
    fn answer(cells: &Cells, store: Store) -> Result<Taken, EngineError> {
        if let Store::Fails(ran) = store {
            return Err(EngineError { cause: Cause::Timeout, ran });
        }
        let fits = |cell: &Cell| if cell.shadow { cell.cost.is_multiple_of(2) } else { store == Store::Fits };
        let reply = |cell: &Cell| CellReply { fits: fits(cell), remaining: 5, retry_units: None, reset_units: 0, outside: false };
        let admitted = cells.iter().all(|cell| cell.shadow || fits(cell));
        Ok(Taken { at_us: 7, admitted, cells: cells.iter().map(reply).collect() })
    }

    proptest! {
        #[test]
        fn every_round_asks_in_order_and_ends_with_all_charged_or_nothing(
            limits in proptest::collection::vec((0_u128..5, any::<bool>(), any::<bool>(), 1_u64..4), 0..8),
            stores in proptest::array::uniform5(store()),
        ) {
            let mut calls = Calls::default();
            for ((tag, shadow, _, cost), place) in limits.iter().zip(0..) {
                calls.add(cell(*tag, *shadow, *cost), place, false);
            }
            let mut round = Round::new(&calls, |_| None, |place| limits[place].2 && !limits[place].1);
            let (mut asked, mut held) = (Vec::new(), BTreeMap::new());
            let (mut refused, mut unavailable) = (false, false);
            loop {
                match round.next() {
                    Step::Take(cells) => {
                        let tag = cells[0].key.tag;
                        prop_assert!(!unavailable && asked.last().is_none_or(|last| *last < tag));
                        prop_assert!(cells.iter().all(|cell| cell.key.tag == tag && (cell.cost == 0) == refused));
                        asked.push(tag);
                        let answer = answer(cells, stores[tag as usize]);
                        match &answer {
                            Ok(taken) if taken.admitted => {
                                let fits = cells.iter().zip(&taken.cells).filter(|(_, reply)| reply.fits);
                                held.insert(tag, fits.map(|(cell, _)| cell.cost).sum::<u64>());
                            }
                            Ok(_) => refused = true,
                            Err(_) => {
                                let denies = limits.iter().any(|(of, shadow, denies, _)| *of == tag && *denies && !shadow);
                                unavailable |= denies && !refused;
                            }
                        }
                        round.took(answer, |_, _| None);
                    }
                    Step::GiveBack(cells, at_us) => {
                        prop_assert_eq!(at_us, 7);
                        let back: u64 = cells.iter().map(|cell| cell.cost).sum();
                        prop_assert_eq!(held.remove(&cells[0].key.tag), Some(back));
                    }
                    Step::Done => break,
                }
            }
            let verdict = if unavailable { Verdict::Unavailable } else if refused { Verdict::Refused } else { Verdict::Admitted };
            prop_assert_eq!(round.verdict(), verdict);
            if verdict != Verdict::Admitted {
                prop_assert!(held.values().all(|units| *units == 0), "{:?}", held);
            }
            if !unavailable {
                let mut tags: Vec<u128> = limits.iter().map(|limit| limit.0).collect();
                tags.sort_unstable();
                tags.dedup();
                prop_assert_eq!(asked, tags, "every limit is evaluated");
            }
            let plan: Vec<Limit> = limits.iter().map(|(_, _, _, cost)| limit(*cost)).collect();
            let mut outcomes = vec![DEGRADED; plan.len()];
            let mut charged = Charged::from_elem(None, plan.len());
            round.report(&plan, &mut outcomes, &mut charged);
            let known: u64 = plan.iter().zip(&charged).filter_map(|(limit, at)| at.map(|_| limit.cost)).sum();
            prop_assert_eq!(known, if verdict == Verdict::Admitted { held.values().sum() } else { 0 });
        }
    }

    #[test]
    fn what_is_given_back_goes_the_way_it_came() {
        let mut calls = Calls::default();
        for (tag, place) in [(3, 0), (1, 1), (2, 2), (1, 3)] {
            calls.add(cell(tag, false, 1), place, false);
        }
        let mut round = Round::new(&calls, |_| None, |_| true);
        let mut steps = Vec::new();
        loop {
            match round.next() {
                Step::Take(cells) => {
                    steps.push(("take", cells[0].key.tag, cells.len()));
                    let store = if cells[0].key.tag == 3 { Store::Refuses } else { Store::Fits };
                    let answer = answer(cells, store);
                    round.took(answer, |_, _| None);
                }
                Step::GiveBack(cells, _) => steps.push(("give back", cells[0].key.tag, cells.len())),
                Step::Done => break,
            }
        }
        assert_eq!(steps, [("take", 1, 2), ("take", 2, 1), ("take", 3, 1), ("give back", 2, 1), ("give back", 1, 2)]);
    }

    #[test]
    fn a_tag_that_is_asked_last_comes_after_all_others() {
        let mut calls = Calls::default();
        for (tag, last, place) in [(1, false, 0), (1, true, 1), (3, false, 2), (2, false, 3), (1, false, 4)] {
            calls.add(cell(tag, false, 1), place, last);
        }
        let order: Vec<(u128, &[u8])> = calls.0.iter().map(|call| (call.tag, &call.places[..])).collect();
        assert_eq!(order, [(2, &[3][..]), (3, &[2][..]), (1, &[0, 1, 4][..])]);
        assert_eq!(calls.cell(3).map(|cell| cell.key.tag), Some(2));
        assert!(calls.cell(5).is_none());
    }

    /// What is outside is asked once more with the numbers of that instant, and only that; outside twice is the store's failure.
    #[test]
    fn what_lies_outside_is_told_again_once() {
        let outside = |cells: &Cells, which: usize| {
            let reply =
                |place| CellReply { fits: place != which, remaining: 5, retry_units: None, reset_units: 0, outside: place == which };
            Ok(Taken { at_us: 77, admitted: false, cells: (0..cells.len()).map(reply).collect() })
        };
        // The one that is outside may be a shadow: it refuses nobody, and is asked again all the same.
        for (shadow, denies) in [(false, true), (true, false)] {
            let mut calls = Calls::default();
            calls.add(cell(1, false, 1), 0, false);
            calls.add(cell(1, shadow, 1), 1, false);
            let mut round = Round::new(&calls, |_| None, |place| place == 1 && denies);
            let mut numbers = Vec::new();
            while let Step::Take(cells) = round.next() {
                numbers.push(cells.iter().map(|cell| cell.numbers[0]).collect::<Vec<_>>());
                let answer = outside(cells, 1);
                round.took(answer, |place, at_us| Some([at_us as i64 + place as i64; NUMBERS_MAX]));
            }
            assert_eq!(numbers, [[9, 9], [9, 78]]);
            assert_eq!(round.verdict(), if denies { Verdict::Unavailable } else { Verdict::Admitted });
            let (mut outcomes, mut charged) = (vec![LimitOutcome::default(); 2], Charged::from_elem(None, 2));
            round.report(&[limit(1), limit(1)], &mut outcomes, &mut charged);
            assert!(outcomes.iter().all(|outcome| outcome.degraded) && charged.iter().all(Option::is_none));
        }
    }
}
