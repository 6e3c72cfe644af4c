//! What the algorithms promise, in plain Rust with wide integers: the reference for both engines.
//!
//! Written from each algorithm's header in `lua/` and not from its code: nothing is packed, the
//! instant at which something fits is searched for instead of computed, and collections are plain
//! lists. `windows` has the algorithms that count in windows of time, `buckets` those that refill
//! at a rate, `units` those that store units by name or by sub-window.

mod buckets;
mod units;
mod windows;

use std::collections::HashMap;

use smallvec::SmallVec;

use super::{Cell, CellReply, ChargeReply, NUMBERS_MAX, Part, TakeReply};

/// All counters of the model.
#[derive(Default)]
pub(super) struct Model {
    counters: HashMap<u128, Box<dyn Counter>>,
}

/// A request to a counter, in its own time unit.
struct Query {
    now: i128,
    now_us: u64,
    /// The units that must fit: the cost, or 1.
    wanted: i128,
    cost: i128,
    member: u128,
    numbers: [i128; NUMBERS_MAX],
}

/// A counter's answer. It is not written yet.
struct Answer {
    fits: bool,
    /// Units left once it is written.
    remaining: i128,
    /// Time units until it fits, or if it fits, that it waits.
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
            uncharged: false,
        }
    }
}

/// A parent's counter after a charge; none if its debt has no room for it.
type Owing = Option<Box<dyn Counter>>;

fn nothing() -> Answer {
    Answer { fits: false, remaining: 0, retry: None, reset: 0, outside: false }
}

/// Whether the cell lets the others be charged.
fn agrees(cell: &Cell, answer: &Answer) -> bool {
    !answer.outside && (cell.shadow || cell.part == Part::Assured || answer.fits)
}

/// One algorithm's counter.
trait Counter: Copied {
    fn decide(&self, query: &Query) -> Answer;
    /// Writes a cost that fits.
    fn charge(&mut self, query: &Query);
    /// Writes a cost that may be owed.
    fn owe(&mut self, query: &Query) {
        self.charge(query);
    }
    /// How many units more may be charged now, debt included: `None` if nothing can be decided.
    fn room(&self, query: &Query) -> Option<i128>;
    /// Gives back `cost` units taken at `taken_at`.
    fn give_back(&mut self, query: &Query, taken_at: i128);
    /// Only leases are renewed.
    fn renew(&mut self, _: &Query) {}
}

/// Makes copies, to try something.
trait Copied {
    fn copied(&self) -> Box<dyn Counter>;
}

impl<T: Counter + Clone + 'static> Copied for T {
    fn copied(&self) -> Box<dyn Counter> {
        Box::new(self.clone())
    }
}

fn new_counter(program: &str) -> Box<dyn Counter> {
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

fn query(cell: &Cell, now_us: u64) -> Query {
    Query {
        now: i128::from(now_us / u64::from(cell.unit_us)),
        now_us,
        wanted: i128::from(cell.cost.max(1)),
        cost: i128::from(cell.cost),
        member: cell.member,
        numbers: cell.numbers.map(i128::from),
    }
}

/// The first instant from `from` on at which `holds`; once it holds it must stay so.
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
    pub(super) fn take(&mut self, cells: &[Cell], now_us: u64) -> TakeReply {
        let mut answers: Vec<(Answer, Option<Owing>)> = Vec::new();
        for (index, cell) in cells.iter().enumerate() {
            let owing = self.assured(cells, index, now_us).then(|| self.owed(cell, now_us));
            answers.push(match owing {
                Some(Some((after, counter))) => (after, Some(counter)),
                Some(None) => (Answer { fits: false, outside: true, ..nothing() }, None),
                None => (self.decide(cell, now_us), None),
            });
        }
        let admitted = cells.iter().zip(&answers).all(|(cell, (answer, _))| agrees(cell, answer));
        let mut replies = SmallVec::new();
        for (cell, (answer, owing)) in cells.iter().zip(answers) {
            let uncharged = matches!(owing, Some(None));
            replies.push(CellReply { uncharged, ..answer.reply() });
            if admitted && answer.fits && cell.cost > 0 && !uncharged {
                let counter = self
                    .counters
                    .entry(cell.key.id())
                    .or_insert_with(|| new_counter(cell.program.name));
                match owing {
                    Some(Some(owing)) => *counter = owing,
                    Some(None) | None => counter.charge(&query(cell, now_us)),
                }
            }
        }
        TakeReply { at_us: now_us, admitted, cells: replies }
    }

    /// Whether the cell is a parent, and its child's assured cell before it fits.
    fn assured(&self, cells: &[Cell], index: usize, now_us: u64) -> bool {
        let [.., before, parent] = &cells[..=index] else { return false };
        before.part == Part::Assured
            && parent.part == Part::Parent
            && self.decide(before, now_us).fits
    }

    /// What the cell's counter answers after its cost was charged, into debt if need be, and the
    /// counter then: none if its debt has no room for all of it. `None` if nothing can be decided.
    fn owed(&self, cell: &Cell, now_us: u64) -> Option<(Answer, Owing)> {
        let mut counter = self
            .counters
            .get(&cell.key.id())
            .map_or_else(|| new_counter(cell.program.name), |counter| counter.copied());
        let query = query(cell, now_us);
        let charged = counter.room(&query)?.max(0) >= query.cost;
        if charged && query.cost > 0 {
            counter.owe(&query);
        }
        let after = counter.decide(&self::query(&Cell { cost: 0, ..cell.clone() }, now_us));
        let answer = Answer { fits: true, retry: None, ..after };
        (!answer.outside).then_some((answer, charged.then_some(counter)))
    }

    /// Charges each cell as far as its debt allows.
    pub(super) fn charge(&mut self, cells: &[Cell], now_us: u64) -> ChargeReply {
        let charge = |cell: &Cell| {
            let counter = self
                .counters
                .entry(cell.key.id())
                .or_insert_with(|| new_counter(cell.program.name));
            let query = query(cell, now_us);
            let cost = counter.room(&query)?.clamp(0, query.cost);
            if cost > 0 {
                counter.owe(&Query { cost, ..query });
            }
            Some(cost.try_into().unwrap())
        };
        ChargeReply { at_us: now_us, units: cells.iter().map(charge).collect() }
    }

    /// Decides without writing, and reports what is left now.
    pub(super) fn look(&self, cells: &[Cell], now_us: u64) -> TakeReply {
        let answers = cells.iter().enumerate().map(|(index, cell)| {
            let (mut answer, unchanged) =
                (self.decide(cell, now_us), self.decide(&Cell { cost: 0, ..cell.clone() }, now_us));
            if self.assured(cells, index, now_us) && !answer.outside {
                (answer.fits, answer.retry) = (true, None);
            }
            Answer { remaining: unchanged.remaining, reset: unchanged.reset, ..answer }
        });
        let answers: Vec<Answer> = answers.collect();
        let admitted = cells.iter().zip(&answers).all(|(cell, answer)| agrees(cell, answer));
        TakeReply { at_us: now_us, admitted, cells: answers.iter().map(Answer::reply).collect() }
    }

    fn decide(&self, cell: &Cell, now_us: u64) -> Answer {
        let query = query(cell, now_us);
        self.counters.get(&cell.key.id()).map_or_else(
            || new_counter(cell.program.name).decide(&query),
            |counter| counter.decide(&query),
        )
    }

    pub(super) fn give_back(&mut self, cells: &[Cell], now_us: u64, taken_at_us: u64) {
        for cell in cells {
            if let Some(counter) = self.counters.get_mut(&cell.key.id()) {
                counter.give_back(
                    &query(cell, now_us),
                    i128::from(taken_at_us / u64::from(cell.unit_us)),
                );
            }
        }
    }

    pub(super) fn renew(&mut self, cells: &[Cell], now_us: u64) {
        for cell in cells.iter().filter(|cell| cell.program.name == "concurrency") {
            let counter = self
                .counters
                .entry(cell.key.id())
                .or_insert_with(|| new_counter(cell.program.name));
            counter.renew(&query(cell, now_us));
        }
    }

    /// Time units until all is back, as a look reports it.
    pub(super) fn reset_units(&self, cell: &Cell, now_us: u64) -> u64 {
        self.decide(&Cell { cost: 0, ..cell.clone() }, now_us).reset.try_into().unwrap()
    }

    /// Whether the counter of `cell` answers at `at_us` like one that was never written.
    pub(super) fn is_forgotten(&self, cell: &Cell, at_us: u64) -> bool {
        let query = query(&Cell { cost: 0, ..cell.clone() }, at_us);
        let Some(counter) = self.counters.get(&cell.key.id()) else { return true };
        let (kept, new) = (counter.decide(&query), new_counter(cell.program.name).decide(&query));
        (kept.fits, kept.remaining, kept.reset) == (new.fits, new.remaining, new.reset)
    }
}
