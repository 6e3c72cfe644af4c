//! One plan's way through its tags, as a list of steps: who is asked next, what is given back, what came of it. Pure: it calls no store and
//! reads no clock, so that the embedded engine can run it at once and Redis in a task, and both do the same.
//!
//! Groups are asked one after another in the order of their tags' digests, the same for every plan on every proxy: no two plans cross. Only the group with a
//! leaky bucket comes last, because a turn in it is not given back. When
//! one refuses, those behind it are still looked at (cost 0, nothing charged), because `Retry-After` is the longest of all; then what the
//! groups before it took is given back, the last first.

use smallvec::{Array, SmallVec};

use crate::engine::{Cause, Cell, CellReply, Cells, EngineError, NUMBERS_MAX, Ran, Taken};
use crate::plan::{Algorithm, Enforcement, Limit, LimitOutcome};

/// When each limit of a plan was charged, by the store's clock in microseconds, in the plan's order; `None` where it was not.
pub(super) type Charged = SmallVec<[Option<u64>; 2]>;

/// The limits of a plan that share a tag: one call.
#[derive(Debug)]
struct Group {
    tag: u128,
    /// Asked after all others: what it takes is not given back.
    last: bool,
    cells: Cells,
    /// Each cell's place in the plan.
    places: SmallVec<[u8; 2]>,
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
pub(super) struct Round {
    groups: SmallVec<[Group; 1]>,
    phase: Phase,
    verdict: Verdict,
}

impl Round {
    pub(super) fn new() -> Self {
        Self { groups: SmallVec::new(), phase: Phase::Taking(0), verdict: Verdict::Admitted }
    }

    /// Adds the plan's limit at `place`; `denies` says what a failed store means for it.
    pub(super) fn add(&mut self, cell: Cell, place: u8, denies: bool) {
        let tag = cell.key.tag;
        let found = self.groups.iter().position(|group| group.tag == tag);
        let at = found.unwrap_or_else(|| self.groups.iter().position(|group| group.last || group.tag > tag).unwrap_or(self.groups.len()));
        if found.is_none() {
            let places = SmallVec::new();
            let fresh = Group { tag, last: false, cells: Cells::new(), places, denies: false, looked: false, retold: false, answer: None };
            put(&mut self.groups, at, fresh);
        }
        if let Some(group) = self.groups.get_mut(at) {
            // Sorted by program: a script for each order would be too many for Redis' memory.
            let among = group.cells.iter().position(|other| other.program.name > cell.program.name).unwrap_or(group.cells.len());
            put(&mut group.cells, among, cell);
            put(&mut group.places, among, place);
            group.denies |= denies;
        }
    }

    /// Has the group with that tag asked last, because what it takes can't be given back.
    pub(super) fn ask_last(&mut self, tag: u128) {
        if let Some(at) = self.groups.iter().position(|group| group.tag == tag) {
            let mut group = self.groups.remove(at);
            group.last = true;
            self.groups.push(group);
        }
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
                return self.groups.get(at).map_or(Step::Done, |group| Step::GiveBack(&group.cells, at_us));
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
                let cells = group.cells.iter_mut().zip(&group.places).zip(&taken.cells).filter(|(_, reply)| reply.outside);
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
            for (index, place) in group.places.iter().map(|place| usize::from(*place)).enumerate() {
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

    fn read(&self, group: &Group, limit: &Limit, reply: &CellReply) -> LimitOutcome {
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

impl Group {
    fn ask(&mut self, verdict: Verdict) -> Step<'_> {
        if verdict == Verdict::Refused {
            self.looked = true;
            self.cells.iter_mut().for_each(|cell| cell.cost = 0);
        }
        Step::Take(&self.cells)
    }

    /// Leaves in `cells` what was charged, and says when; `None` where nothing was. A take whose outcome is unknown stands.
    fn release(&mut self) -> Option<u64> {
        let Some(Ok(taken)) = &self.answer else { return None };
        if !taken.admitted || self.looked {
            return None;
        }
        // `retain` visits in order, and there is one reply for each cell.
        let mut replies = taken.cells.iter();
        self.cells.retain(|cell| replies.next().is_some_and(|reply| reply.fits) && cell.cost > 0);
        (!self.cells.is_empty()).then_some(taken.at_us)
    }

    fn reply(&self, index: usize) -> Option<(&Taken, &CellReply)> {
        let Some(Ok(taken)) = &self.answer else { return None };
        taken.cells.get(index).map(|reply| (taken, reply))
    }
}

/// Mostly the end is the place, where nothing must move.
fn put<A: Array>(items: &mut SmallVec<A>, at: usize, item: A::Item) {
    if at == items.len() {
        items.push(item);
    } else {
        items.insert(at, item);
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
            let mut round = Round::new();
            for ((tag, shadow, denies, cost), place) in limits.iter().zip(0..) {
                round.add(cell(*tag, *shadow, *cost), place, *denies && !shadow);
            }
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
        let mut round = Round::new();
        for (tag, place) in [(3, 0), (1, 1), (2, 2), (1, 3)] {
            round.add(cell(tag, false, 1), place, true);
        }
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
            let mut round = Round::new();
            round.add(cell(1, false, 1), 0, false);
            round.add(cell(1, shadow, 1), 1, denies);
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
