//! What the algorithms promise, in plain Rust with wide integers: the reference that both engines
//! are held to.
//!
//! Written from each algorithm's header in `lua/` and not from its code: nothing is packed,
//! instants at which something will fit are searched for and not computed, collections are plain
//! lists. `windows` has those that count in windows of time, `buckets` those that flow back,
//! `units` those that remember units by name or by sub-window.

mod buckets;
mod units;
mod windows;

use std::collections::HashMap;

use super::{Cell, CellReply, Taken};

/// All counters of the model.
#[derive(Default)]
pub(super) struct Model {
    counters: HashMap<u128, Box<dyn Counter>>,
}

/// What is asked of a counter, in its own time unit.
struct Asked {
    now: i128,
    now_us: u64,
    /// What it is decided as: the cost, or 1.
    ask: i128,
    cost: i128,
    member: u128,
    numbers: [i128; 6],
}

/// What a counter says. Nothing is written by it.
struct Answer {
    fits: bool,
    /// Units left once it is written.
    remaining: i128,
    /// Time units until it fits, or that it waits.
    retry: Option<i128>,
    /// Time units until all is back, once it is written.
    reset: i128,
    outside: bool,
}

impl Answer {
    fn reply(&self) -> CellReply {
        CellReply {
            fits: self.fits,
            remaining: self.remaining.try_into().unwrap(),
            retry_units: self.retry.map(|units| units.try_into().unwrap()),
            reset_units: self.reset.try_into().unwrap(),
            outside: self.outside,
        }
    }
}

/// One algorithm's counter.
trait Counter {
    fn ask(&self, asked: &Asked) -> Answer;
    /// Writes a cost that fits.
    fn charge(&mut self, asked: &Asked);
    /// Gives `cost` units back that were taken at `taken_at`.
    fn give_back(&mut self, asked: &Asked, taken_at: i128);
    /// Only leases have something to renew.
    fn renew(&mut self, _: &Asked) {}
}

fn fresh(program: &str) -> Box<dyn Counter> {
    match program {
        "fixed_window" => Box::<windows::Fixed>::default(),
        "sliding_window_counter" => Box::<windows::Pair>::default(),
        "quota" => Box::<windows::Quota>::default(),
        "gcra" => Box::<buckets::Gcra>::default(),
        "leaky_bucket" => Box::<buckets::Leaky>::default(),
        "token_bucket" => Box::<buckets::Tokens>::default(),
        "sliding_window_log" => Box::<units::Log>::default(),
        "sliding_window_buckets" => Box::<units::SubWindows>::default(),
        "concurrency" => Box::<units::Leases>::default(),
        other => panic!("the model knows no {other}"),
    }
}

fn asked(cell: &Cell, now_us: u64) -> Asked {
    Asked {
        now: i128::from(now_us / u64::from(cell.unit_us)),
        now_us,
        ask: i128::from(cell.cost.max(1)),
        cost: i128::from(cell.cost),
        member: cell.member,
        numbers: cell.numbers.map(i128::from),
    }
}

/// The first instant from `from` on at which `holds`, of what holds for ever once it does.
fn first(from: i128, holds: impl Fn(i128) -> bool) -> i128 {
    let mut step = 1;
    while !holds(from + step - 1) {
        assert!(step < 1 << 64, "it never holds");
        step *= 2;
    }
    let (mut low, mut high) = (from + step / 2, from + step - 1);
    while low < high {
        let middle = (low + high).div_euclid(2);
        if holds(middle) { high = middle } else { low = middle + 1 }
    }
    low
}

impl Model {
    pub(super) fn take(&mut self, cells: &[Cell], now_us: u64) -> Taken {
        let answers: Vec<Answer> = cells.iter().map(|cell| self.ask(cell, now_us)).collect();
        let agrees =
            |(cell, answer): (&Cell, &Answer)| !answer.outside && (cell.shadow || answer.fits);
        let admitted = cells.iter().zip(&answers).all(agrees);
        for (cell, answer) in cells.iter().zip(&answers) {
            if admitted && answer.fits && cell.cost > 0 {
                let counter =
                    self.counters.entry(cell.key.id()).or_insert_with(|| fresh(cell.program.name));
                counter.charge(&asked(cell, now_us));
            }
        }
        Taken { at_us: now_us, admitted, cells: answers.iter().map(Answer::reply).collect() }
    }

    /// Whether all of it fits, and what there is of it: nothing is written.
    pub(super) fn look(&self, cells: &[Cell], now_us: u64) -> Taken {
        let answers = cells.iter().map(|cell| {
            let (answer, idle) =
                (self.ask(cell, now_us), self.ask(&Cell { cost: 0, ..cell.clone() }, now_us));
            Answer { remaining: idle.remaining, reset: idle.reset, ..answer }
        });
        let answers: Vec<Answer> = answers.collect();
        let admitted = cells
            .iter()
            .zip(&answers)
            .all(|(cell, answer)| !answer.outside && (cell.shadow || answer.fits));
        Taken { at_us: now_us, admitted, cells: answers.iter().map(Answer::reply).collect() }
    }

    fn ask(&self, cell: &Cell, now_us: u64) -> Answer {
        let asked = asked(cell, now_us);
        self.counters
            .get(&cell.key.id())
            .map_or_else(|| fresh(cell.program.name).ask(&asked), |counter| counter.ask(&asked))
    }

    pub(super) fn give_back(&mut self, cells: &[Cell], now_us: u64, taken_at_us: u64) {
        for cell in cells {
            if let Some(counter) = self.counters.get_mut(&cell.key.id()) {
                counter.give_back(
                    &asked(cell, now_us),
                    i128::from(taken_at_us / u64::from(cell.unit_us)),
                );
            }
        }
    }

    pub(super) fn renew(&mut self, cells: &[Cell], now_us: u64) {
        for cell in cells.iter().filter(|cell| cell.program.name == "concurrency") {
            let counter =
                self.counters.entry(cell.key.id()).or_insert_with(|| fresh(cell.program.name));
            counter.renew(&asked(cell, now_us));
        }
    }

    /// Time units until all is back, as a look says.
    pub(super) fn reset_units(&self, cell: &Cell, now_us: u64) -> u64 {
        self.ask(&Cell { cost: 0, ..cell.clone() }, now_us).reset.try_into().unwrap()
    }

    /// Whether the counter of `cell` says at `at_us` what one says that was never written.
    pub(super) fn is_forgotten(&self, cell: &Cell, at_us: u64) -> bool {
        let asked = asked(&Cell { cost: 0, ..cell.clone() }, at_us);
        let Some(counter) = self.counters.get(&cell.key.id()) else { return true };
        let (kept, new) = (counter.ask(&asked), fresh(cell.program.name).ask(&asked));
        (kept.fits, kept.remaining, kept.reset) == (new.fits, new.remaining, new.reset)
    }
}
