//! Decision by decision the same: a plain model, the embedded engine and a real Redis, under random plans, costs, times and give-backs.

use std::sync::Arc;

use proptest::prelude::*;

use super::testing::{ALL, Server, Timed, cell};
use super::{Cell, Cells, Taken};

#[derive(Clone, Copy, Debug)]
enum Move {
    /// Time units of the first cell.
    By(i64),
    /// To the last told retry time of a cell, and this much further.
    Retry(i64),
    /// Part of the first cell's period: n / 8, and this much further.
    Part(i64, i64),
}

#[derive(Clone, Debug)]
enum Step {
    Take(Move, Vec<u64>),
    /// Gives back part (n / 4) of an earlier take.
    GiveBack(Move, usize, u64),
}

fn moves() -> impl Strategy<Value = Move> {
    prop_oneof![
        4 => Just(Move::By(0)),
        2 => (-2_i64..3).prop_map(Move::By),
        2 => (-1_i64..2).prop_map(Move::Retry),
        2 => (0_i64..20, -1_i64..2).prop_map(|(part, more)| Move::Part(part, more)),
        1 => (-9_i64..0, -1_i64..2).prop_map(|(part, more)| Move::Part(part, more)),
        1 => (-4_000_000_000_i64..4_000_000_000).prop_map(Move::By),
    ]
}

fn steps() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (moves(), prop::collection::vec(0_u64..6, 3)).prop_map(|(to, costs)| Step::Take(to, costs)),
        1 => (moves(), any::<usize>(), 0_u64..6).prop_map(|(to, which, part)| Step::GiveBack(to, which, part)),
    ]
}

fn periods() -> impl Strategy<Value = u64> {
    prop_oneof![1_u64..50, 1_000_u64..2_000, Just(1_000_000), Just(1_000_003), Just(3_600_000_000)]
}

fn cells() -> impl Strategy<Value = Vec<Cell>> {
    let one = (0_usize..3, prop_oneof![1_u64..20, 100_u64..1_000_000], periods(), 1_u64..30, any::<bool>(), any::<bool>(), any::<bool>());
    prop::collection::vec(one, 1..4).prop_map(|rows| {
        let rows = rows.into_iter().enumerate();
        rows.map(|(index, (program, quota, period, burst, aligned, long, shadow))| {
            let mut cell = cell(ALL[program], &format!("equal{index}"), quota, period, burst);
            cell.numbers[3] = i64::from(aligned);
            cell.unit_us = if long { 1000 } else { 1 };
            cell.shadow = shadow;
            cell
        })
        .collect()
    })
}

/// Runs the steps on one store; what it answered, and what each take left when looked at again at the end.
fn run(mut store: Timed, cells: &[Cell], steps: &[Step]) -> Vec<Taken> {
    let mut answers: Vec<Taken> = Vec::new();
    let mut taken: Vec<(u64, Cells)> = Vec::new();
    for step in steps {
        let to = match step {
            Step::Take(to, _) | Step::GiveBack(to, ..) => *to,
        };
        let unit = i64::from(cells[0].unit_us);
        let units = match to {
            Move::By(units) => units,
            Move::Retry(more) => answers.last().and_then(|taken| taken.cells[0].retry_units).map_or(0, |units| units as i64 + more),
            Move::Part(part, more) => cells[0].numbers[1] / 8 * part + more,
        };
        store.step(units * unit);
        match step {
            Step::Take(_, costs) => {
                let cells: Cells = cells.iter().zip(costs).map(|(cell, cost)| Cell { cost: *cost, ..cell.clone() }).collect();
                let answer = store.take(&cells);
                if answer.admitted {
                    taken.push((answer.at_us, cells));
                }
                answers.push(answer);
            }
            Step::GiveBack(_, which, part) if !taken.is_empty() => {
                let (at_us, cells) = &taken[which % taken.len()];
                let cells: Cells = cells.iter().map(|cell| Cell { cost: cell.cost * part / 4, ..cell.clone() }).collect();
                store.give_back(&cells, *at_us);
            }
            Step::GiveBack(..) => {}
        }
    }
    answers
}

thread_local! {
    /// Holds the shared server for all cases of the test: it would be started anew for each.
    static SERVER: Arc<Server> = Server::shared();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn both_engines_decide_as_the_model_does(cells in cells(), steps in prop::collection::vec(steps(), 1..60)) {
        SERVER.with(|_| {});
        let expected = run(Timed::model(), &cells, &steps);
        prop_assert_eq!(&run(Timed::embedded(), &cells, &steps), &expected);
        prop_assert_eq!(&run(Timed::redis(), &cells, &steps), &expected);
    }
}
