//! The steps of a [`Round`], for any answers of the store.

use crate::plan::{Algorithm, Debt, Gcra};
use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::engine::{Key, Kind, Part, Program, Space};
use crate::plan::Rate;

static PROGRAM: Program = Program { name: "", text: "", kind: Kind::Numbers, state: 3, numbers: 4 };

/// What the store answers for a tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Store {
    Fits,
    Refuses,
    Fails(Execution),
}

fn on_error(denies: bool) -> OnStoreError {
    if denies { OnStoreError::Deny } else { OnStoreError::Allow }
}

fn store() -> impl Strategy<Value = Store> {
    prop_oneof![
        Just(Store::Fits),
        Just(Store::Refuses),
        Just(Store::Fails(Execution::No)),
        Just(Store::Fails(Execution::Unknown))
    ]
}

fn cell(tag: u128, shadow: bool, cost: u64) -> Cell {
    let space = Arc::new(Space { text: String::new(), digest: 0 });
    Cell {
        program: &PROGRAM,
        key: Key { tag, key: 0, space },
        unit_us: 1,
        shadow,
        part: Part::Alone,
        cost,
        numbers: [9, 1, 9, 0, 0, 0, 0],
        member: 0,
    }
}

fn limit(cost: u64) -> Limit {
    Limit {
        cost,
        ..Limit::new(
            "l",
            "k",
            Algorithm::Gcra(Gcra {
                burst: 9,
                rate: Rate { amount: 9, per_ms: 1 },
                debt: Debt::None,
            }),
        )
    }
}

/// Answers as an engine does. In a refusing group no enforced cell fits. Shadows of odd cost never
/// fit.
fn answer(cells: &Cells, store: Store) -> Result<TakeReply, EngineError> {
    if let Store::Fails(ran) = store {
        return Err(EngineError { cause: Cause::Timeout, ran });
    }
    let fits =
        |cell: &Cell| if cell.shadow { cell.cost.is_multiple_of(2) } else { store == Store::Fits };
    let reply = |cell: &Cell| CellReply {
        fits: fits(cell),
        remaining: 5,
        retry_units: None,
        reset_units: 0,
        outside: false,
        uncharged: false,
    };
    let admitted = cells.iter().all(|cell| cell.shadow || fits(cell));
    Ok(TakeReply { at_us: 7, admitted, cells: cells.iter().map(reply).collect() })
}

proptest! {
    /// A take may answer other than its look did, because other requests come between.
    #[test]
    fn every_round_looks_first_and_ends_with_all_charged_or_nothing(
        limits in proptest::collection::vec((0_u128..5, any::<bool>(), any::<bool>(), 1_u64..4), 0..8),
        looks in proptest::array::uniform5(store()),
        takes in proptest::array::uniform5(store()),
    ) {
        let mut calls = Calls::default();
        for ((tag, shadow, _, cost), index) in limits.iter().zip(0..) {
            calls.add(cell(*tag, *shadow, *cost), index, Order::Usual);
        }
        let denies = |tag: u128| limits.iter().any(|(of, shadow, denies, _)| *of == tag && *denies && !shadow);
        let costs = |cells: &Cells| cells.iter().map(|cell| cell.cost).collect::<Vec<_>>();
        let mut round = Round::new(&calls, |_| None, |index| on_error(limits[index].2 && !limits[index].1));
        let (mut looked, mut taken, mut failed, mut held) = (Vec::new(), Vec::new(), Vec::new(), BTreeMap::new());
        let (mut refused, mut unavailable, mut dead) = (false, false, false);
        loop {
            match round.next() {
                Step::Look => {
                    prop_assert!(taken.is_empty(), "no look follows a take");
                    let answers: Vec<_> = round.due().into_iter().map(|(at, cells, _)| {
                        let tag = cells[0].key.tag;
                        (at, tag, costs(cells), answer(cells, looks[tag as usize]))
                    }).collect();
                    for (at, tag, costs_seen, answer) in answers {
                        prop_assert_eq!(costs_seen.iter().filter(|cost| **cost == 0).count(), 0, "a look asks for the real cost");
                        looked.push(tag);
                        match &answer {
                            Ok(answer) => refused |= !answer.admitted,
                            Err(_) => {
                                failed.push(tag);
                                dead |= denies(tag);
                            }
                        }
                        round.looked(at, answer, &TaggedNumbers);
                    }
                }
                Step::Take(cells, GroupStore::Store) => {
                    let tag = cells[0].key.tag;
                    prop_assert!(!refused && !unavailable && !dead && taken.last().is_none_or(|last| *last < tag));
                    prop_assert!(!failed.contains(&tag), "a store that failed in the look is not called again");
                    taken.push(tag);
                    let answer = answer(cells, takes[tag as usize]);
                    match &answer {
                        Ok(taken) if taken.admitted => {
                            let fits = cells.iter().zip(&taken.cells).filter(|(_, reply)| reply.fits);
                            held.insert(tag, fits.map(|(cell, _)| cell.cost).sum::<u64>());
                        }
                        Ok(_) => refused = true,
                        Err(_) => unavailable |= denies(tag),
                    }
                    round.took(answer, &TaggedNumbers);
                }
                Step::GiveBack(cells, at_us, GroupStore::Store) => {
                    prop_assert_eq!(at_us, 7);
                    prop_assert_eq!(held.remove(&cells[0].key.tag), Some(costs(cells).iter().sum()));
                }
                Step::Done => break,
                step => prop_assert!(false, "nothing is counted here: {:?}", step),
            }
        }
        unavailable |= dead && !refused;
        let result = if unavailable { RoundResult::Unavailable } else if refused { RoundResult::Refused } else { RoundResult::Admitted };
        prop_assert_eq!(round.result(), result);
        if result != RoundResult::Admitted {
            prop_assert!(held.values().all(|units| *units == 0), "{:?}", held);
        }
        let mut tags: Vec<u128> = limits.iter().map(|limit| limit.0).collect();
        tags.sort_unstable();
        tags.dedup();
        let several = tags.len() > 1;
        let mut expected: Vec<u128> = tags.iter().copied().skip(1).collect();
        if refused && taken.is_empty() && several {
            expected.extend(tags.first());
        }
        prop_assert_eq!(looked, expected, "all but the first, and the first where it is not taken");
        if result == RoundResult::Admitted {
            tags.retain(|tag| !failed.contains(tag));
            prop_assert_eq!(taken, tags, "every limit is charged");
        }
        let plan: Vec<Limit> = limits.iter().map(|(_, _, _, cost)| limit(*cost)).collect();
        let mut outcomes = vec![LimitOutcome::default(); plan.len()];
        let mut charged = ChargeTimes::from_elem(None, plan.len());
        round.report(&plan, &mut outcomes, &mut charged);
        let known: u64 = plan.iter().zip(&charged).filter_map(|(limit, at)| at.map(|_| limit.cost)).sum();
        prop_assert_eq!(known, if result == RoundResult::Admitted { held.values().sum() } else { 0 });
    }
}

proptest! {
    /// Where all limits had plenty a moment ago.
    #[test]
    fn takes_at_once_end_with_all_charged_or_nothing_too(
        limits in proptest::collection::vec((0_u128..5, any::<bool>(), any::<bool>(), 1_u64..4), 0..8),
        takes in proptest::array::uniform5(store()),
    ) {
        let mut calls = Calls::default();
        for ((tag, shadow, _, cost), index) in limits.iter().zip(0..) {
            calls.add(cell(*tag, *shadow, *cost), index, Order::Usual);
        }
        let mut round = Round::new(&calls, |_| None, |index| on_error(limits[index].2 && !limits[index].1));
        round.take_all_at_once();
        let (mut held, mut taken) = (BTreeMap::new(), 0);
        let several = calls.0.len() > 1;
        let units = |cells: &Cells, reply: &TakeReply| -> u64 {
            cells.iter().zip(&reply.cells).filter(|(_, reply)| reply.fits).map(|(cell, _)| cell.cost).sum()
        };
        loop {
            match round.next() {
                Step::TakeAll => {
                    let due: Vec<_> = round.due().into_iter().map(|(at, cells, _)| (at, cells.clone())).collect();
                    for (at, cells) in due {
                        let tag = cells[0].key.tag;
                        let answer = answer(&cells, takes[tag as usize]);
                        if let Ok(reply) = &answer && reply.admitted {
                            held.insert(tag, units(&cells, reply));
                        }
                        taken += 1;
                        round.took_at(at, answer, &TaggedNumbers);
                    }
                }
                Step::Take(cells, GroupStore::Store) => {
                    prop_assert!(!several);
                    let answer = answer(cells, takes[cells[0].key.tag as usize]);
                    if let Ok(reply) = &answer && reply.admitted {
                        held.insert(cells[0].key.tag, units(cells, reply));
                    }
                    round.took(answer, &TaggedNumbers);
                }
                Step::GiveBack(cells, _, GroupStore::Store) => {
                    let given: u64 = cells.iter().map(|cell| cell.cost).sum();
                    prop_assert_eq!(held.remove(&cells[0].key.tag), Some(given));
                }
                Step::Done => break,
                step => prop_assert!(false, "{:?}", step),
            }
        }
        prop_assert!(!several || taken == calls.0.len(), "each is taken once");
        let admitted = round.result() == RoundResult::Admitted;
        prop_assert!(admitted || held.values().all(|units| *units == 0), "{:?}", held);
        let plan: Vec<Limit> = limits.iter().map(|(_, _, _, cost)| limit(*cost)).collect();
        let mut outcomes = vec![LimitOutcome::default(); plan.len()];
        let mut charged = ChargeTimes::from_elem(None, plan.len());
        round.report(&plan, &mut outcomes, &mut charged);
        let known: u64 = plan.iter().zip(&charged).filter_map(|(limit, at)| at.map(|_| limit.cost)).sum();
        prop_assert_eq!(known, held.values().sum::<u64>());
    }
}

/// The steps of a round whose looks all fit, and whose take of the tag `refuses` does not.
fn steps(refuses: u128) -> Vec<(&'static str, u128, usize)> {
    let mut calls = Calls::default();
    for (tag, index) in [(3, 0), (1, 1), (2, 2), (1, 3)] {
        calls.add(cell(tag, false, 1), index, Order::Usual);
    }
    let mut round = Round::new(&calls, |_| None, |_| OnStoreError::Deny);
    let mut steps = Vec::new();
    loop {
        match round.next() {
            Step::Look => {
                let looks: Vec<_> =
                    round.due().into_iter().map(|(at, cells, _)| (at, cells.clone())).collect();
                for (at, cells) in looks {
                    steps.push(("look", cells[0].key.tag, cells.len()));
                    round.looked(at, answer(&cells, Store::Fits), &TaggedNumbers);
                }
            }
            Step::Take(cells, GroupStore::Store) => {
                steps.push(("take", cells[0].key.tag, cells.len()));
                let store = if cells[0].key.tag == refuses { Store::Refuses } else { Store::Fits };
                let answer = answer(cells, store);
                round.took(answer, &TaggedNumbers);
            }
            Step::GiveBack(cells, _, GroupStore::Store) => {
                steps.push(("give back", cells[0].key.tag, cells.len()))
            }
            Step::Done => return steps,
            step => panic!("nothing is counted here: {step:?}"),
        }
    }
}

/// Numbers that show where they come from.
struct TaggedNumbers;

impl Numbers for TaggedNumbers {
    fn at(&self, index: usize, at_us: u64) -> Option<[i64; NUMBERS_MAX]> {
        Some([at_us as i64 + index as i64; NUMBERS_MAX])
    }

    fn local(&self, index: usize) -> Option<[i64; NUMBERS_MAX]> {
        Some([-1 - index as i64; NUMBERS_MAX])
    }
}

/// A group whose store fails is looked at and taken here, with other numbers, and given back here.
#[test]
fn a_group_without_its_store_is_counted_here() {
    let mut calls = Calls::default();
    for (tag, index) in [(1, 0), (2, 1), (3, 2)] {
        calls.add(cell(tag, false, 1), index, Order::Usual);
    }
    let mut round = Round::new(&calls, |_| None, |_| OnStoreError::Local);
    let mut steps = Vec::new();
    loop {
        match round.next() {
            Step::Look => {
                let looks: Vec<_> = round
                    .due()
                    .into_iter()
                    .map(|(at, cells, place)| (at, cells.clone(), place))
                    .collect();
                for (at, cells, place) in looks {
                    let (tag, number) = (cells[0].key.tag, cells[0].numbers[0]);
                    steps.push(("look", tag, place, number));
                    let fails = tag == 2 && place == GroupStore::Store;
                    let store = if fails { Store::Fails(Execution::No) } else { Store::Fits };
                    round.looked(at, answer(&cells, store), &TaggedNumbers);
                }
            }
            Step::Take(cells, place) => {
                let (tag, number) = (cells[0].key.tag, cells[0].numbers[0]);
                steps.push(("take", tag, place, number));
                let store = match (tag, place) {
                    (1, GroupStore::Store) => Store::Fails(Execution::No),
                    (3, _) => Store::Refuses,
                    _ => Store::Fits,
                };
                let answer = answer(cells, store);
                round.took(answer, &TaggedNumbers);
            }
            Step::GiveBack(cells, _, place) => {
                steps.push(("give back", cells[0].key.tag, place, cells[0].numbers[0]));
            }
            Step::TakeAll => panic!("nothing is taken at once here"),
            Step::Done => break,
        }
    }
    let (store, local) = (GroupStore::Store, GroupStore::Local);
    assert_eq!(
        steps,
        [
            ("look", 2, store, 9),
            ("look", 3, store, 9),
            ("look", 2, local, -2),
            ("take", 1, store, 9),
            ("take", 1, local, -1),
            ("take", 2, local, -2),
            ("take", 3, store, 9),
            ("give back", 2, local, -2),
            ("give back", 1, local, -1),
        ]
    );
    assert_eq!([0, 1, 2].map(|index| round.local().contains(index)), [true, true, false]);
    assert_eq!(round.result(), RoundResult::Refused);
}

#[test]
fn groups_are_given_back_in_reverse_order() {
    let looks = [("look", 2, 1), ("look", 3, 1)];
    let takes = [("take", 1, 2), ("take", 2, 1), ("take", 3, 1)];
    assert_eq!(steps(0), [&looks[..], &takes].concat());
    assert_eq!(
        steps(1),
        [&looks[..], &takes[..1]].concat(),
        "the first take refuses without a trace"
    );
    assert_eq!(
        steps(3),
        [&looks[..], &takes, &[("give back", 2, 1), ("give back", 1, 2)]].concat()
    );
}

#[test]
fn a_tag_that_is_called_last_comes_after_all_others() {
    let mut calls = Calls::default();
    for (tag, last, index) in
        [(1, false, 0), (1, true, 1), (3, false, 2), (2, false, 3), (1, false, 4)]
    {
        calls.add(cell(tag, false, 1), index, if last { Order::Last } else { Order::Usual });
    }
    let order: Vec<(u128, &[u8])> =
        calls.0.iter().map(|call| (call.tag, &call.indices[..])).collect();
    assert_eq!(order, [(2, &[3][..]), (3, &[2][..]), (1, &[0, 1, 4][..])]);
    assert_eq!(calls.cell(3).map(|cell| cell.key.tag), Some(2));
    assert!(calls.cell(5).is_none());
}

/// A cell that is outside its period is called once more with the numbers of the store's time, and
/// only that cell's change. Outside a second time is a store failure.
#[test]
fn a_cell_outside_its_period_is_called_again_once() {
    let outside = |cells: &Cells, which: usize| {
        let reply = |index| CellReply {
            fits: index != which,
            remaining: 5,
            retry_units: None,
            reset_units: 0,
            outside: index == which,
            uncharged: false,
        };
        Ok(TakeReply { at_us: 77, admitted: false, cells: (0..cells.len()).map(reply).collect() })
    };
    // A shadow limit that is outside is called again as well, though it never refuses.
    for (shadow, denies) in [(false, true), (true, false)] {
        let mut calls = Calls::default();
        calls.add(cell(1, false, 1), 0, Order::Usual);
        calls.add(cell(1, shadow, 1), 1, Order::Usual);
        let mut round = Round::new(&calls, |_| None, |index| on_error(index == 1 && denies));
        let mut numbers = Vec::new();
        while let Step::Take(cells, GroupStore::Store) = round.next() {
            numbers.push(cells.iter().map(|cell| cell.numbers[0]).collect::<Vec<_>>());
            let answer = outside(cells, 1);
            round.took(answer, &TaggedNumbers);
        }
        assert_eq!(numbers, [[9, 9], [9, 78]]);
        assert_eq!(
            round.result(),
            if denies { RoundResult::Unavailable } else { RoundResult::Admitted }
        );
        let (mut outcomes, mut charged) =
            (vec![LimitOutcome::default(); 2], ChargeTimes::from_elem(None, 2));
        round.report(&[limit(1), limit(1)], &mut outcomes, &mut charged);
        assert!(
            outcomes.iter().all(|outcome| outcome.unmeasured.is_some())
                && charged.iter().all(Option::is_none)
        );
    }
}
