//! Random cases: limits over the whole ranges that a plan allows, and calls on their counters. A
//! case runs on the model, which turns it into events with absolute times that any store can
//! repeat.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::super::driver::Verb;
use super::super::model::Model;
use super::super::testing::{ALL, Answer, Event, START_US, cell};
use super::super::{Cell, Cells, NUMBERS_MAX, Part, TakeReply};

/// One in this many takes is preceded by a look.
const TAKES_PER_LOOK: usize = 3;
/// What a plan allows: amounts, bursts, costs; burst x period; a log's and a concurrency's members.
const AMOUNT_MAX: u64 = 1 << 52;
const PRODUCT_MAX: u64 = 1 << 52;
const MEMBERS_MAX: u64 = 10_000;
/// Maximum members of most logs, and of most takes.
const MEMBERS_FEW: u64 = 100;
const HOUR_US: u64 = 3_600_000_000;
const PERIOD_MS_MAX: u64 = 400 * 24 * 3_600_000;
/// The times of a case: after Redis' own time, and early enough that the largest debt ends before
/// 2^53 microseconds.
const TIMES_US: std::ops::RangeInclusive<i128> = 2_000_000_000_000_000..=3_000_000_000_000_000;
/// What a parent may count with.
pub(super) const PARENTS: [&str; 6] =
    ["fixed_window", "sliding_window_counter", "quota", "token_bucket", "gcra", "concurrency"];
/// Maximum number of calls in one case.
const STEPS_MAX: usize = 240;

/// A limit: a sample cell, and its calendar's period if it has one.
#[derive(Clone, Debug)]
struct Limit {
    cell: Cell,
    calendar_ms: Option<i64>,
    /// Whether it may hold as many members as a plan allows, which is slow on Redis.
    large: bool,
    /// How its debt follows from its settings.
    debt: u8,
}

#[derive(Clone, Copy, Debug)]
enum Move {
    Us(i64),
    Units(i64),
    /// Moves to the last reported retry time plus this many time units.
    Retry(i64),
    /// Moves to the last reported reset time plus this many time units.
    Reset(i64),
    /// Moves to the start of the n-th next window plus this many time units.
    Border(i64, i64),
    /// Moves by eighths of the period plus this many time units.
    Part(i64, i64),
}

/// Shares of the capacity, or plain units.
#[derive(Clone, Copy, Debug)]
enum Cost {
    Units(u64),
    Eighths(u64),
    Above,
    Largest,
}

#[derive(Clone, Debug)]
enum Step {
    /// Takes all limits of the case, or only some of them, for one of a few keys. The caller's
    /// clock is off by `skew` tenths of a calendar's period.
    Take { key: u128, some: bool, costs: [Cost; 4], skew: i64, may_wait: bool },
    /// Gives back quarters of an earlier take. Of places not from the first one on: some quarters
    /// are skipped.
    GiveBack { which: usize, skip: u64, part: u64 },
    /// Renews the places of an earlier take but for the first quarters.
    Renew { which: usize, skip: u64 },
    /// Charges limits of the case, into debt if need be.
    Charge { key: u128, some: bool, costs: [Cost; 4], skew: i64 },
    /// Changes the amount and burst of a limit.
    Edit { which: usize, amount: u64, burst: u64 },
}

#[derive(Clone, Debug)]
pub(super) struct Case {
    limits: Vec<Limit>,
    /// The limits of a smaller plan, as a bit mask.
    some: u8,
    /// Whether limits are edited; in most cases they are not.
    edits: bool,
    /// Whether the clock only goes forward.
    forward: bool,
    start_us: u64,
    steps: Vec<(Move, usize, Step)>,
}

/// The events of a case, and what the model answered.
pub(super) struct Trace {
    pub(super) events: Vec<Event>,
    pub(super) expected: Vec<Answer>,
    pub(super) model: Model,
    pub(super) now_us: u64,
    pub(super) edited: bool,
    /// Each counter written, with the instant by which it must have expired.
    pub(super) latest_expiry: BTreeMap<u128, (Cell, u64)>,
}

/// A time unit in microseconds, and a period in that unit: edge cases, common ones, and any.
fn spans() -> impl Strategy<Value = (u32, u64)> {
    prop_oneof![
        2 => (any::<bool>(), 1_u64..50).prop_map(|(long, units)| (if long { 1_000 } else { 1 }, units)),
        1 => Just((1, 1_000)),
        3 => Just((1, 1_000_000)),
        1 => Just((1, 1_000_003)),
        1 => Just((1, 60_000_000)),
        2 => (1_u64..=3_600_000).prop_map(|ms| (1, ms * 1_000)),
        1 => Just((1, HOUR_US)),
        1 => Just((1_000, 3_600_001)),
        1 => Just((1_000, 86_400_000)),
        2 => (3_600_001..=PERIOD_MS_MAX).prop_map(|ms| (1_000, ms)),
        1 => Just((1_000, PERIOD_MS_MAX)),
    ]
}

fn amounts() -> impl Strategy<Value = u64> {
    prop_oneof![
        6 => 1_u64..20,
        2 => 20_u64..2_000,
        1 => 2_000..=AMOUNT_MAX,
        1 => (0_u32..=52).prop_map(|bits| 1 << bits),
        1 => Just(AMOUNT_MAX),
    ]
}

fn limits() -> impl Strategy<Value = Limit> {
    let buckets = prop_oneof![Just(1_u64), 2_u64..20, Just(60), 1_u64..=1_000, Just(1_000)];
    let rest = (buckets, 0_u64..6, any::<bool>(), any::<bool>(), 0_u64..5, 0_u8..8);
    (0..ALL.len(), spans(), amounts(), amounts(), rest).prop_map(
        |(program, span, amount, burst, (buckets, delay, flag, other, shadow, debt))| {
            let (unit_us, period) = span;
            let mut cell = Cell {
                unit_us,
                shadow: shadow == 0,
                ..cell(ALL[program], "any", amount, period, burst)
            };
            let mut calendar_ms = None;
            match ALL[program].name {
                "fixed_window" => cell.numbers[2] = i64::from(flag),
                "sliding_window_buckets" => {
                    let buckets = buckets.min(period);
                    cell.numbers[1..3]
                        .copy_from_slice(&[period.div_ceil(buckets) as i64, buckets as i64]);
                }
                "leaky_bucket" => cell.numbers[3] = delay as i64,
                "concurrency" => cell.unit_us = 1_000,
                "quota" => {
                    cell.unit_us = 1_000;
                    cell.numbers = [0, i64::from(flag), 0, 0, 0, 0, 0];
                    calendar_ms = (other || delay > 2)
                        .then_some((period * u64::from(unit_us) / 1_000).max(40) as i64);
                }
                _ => {}
            }
            let large = other && delay == 5 && shadow == 1;
            let mut limit = Limit { cell, calendar_ms, large, debt };
            limit.edit(amount, burst);
            limit
        },
    )
}

impl Limit {
    /// The period, the length of a lease, or all sub-windows together, in time units.
    fn period(&self) -> u64 {
        let [_, second, third, ..] = self.cell.numbers.map(|number| number as u64);
        match self.cell.program.name {
            "quota" => self.calendar_ms.unwrap_or(86_400_000) as u64,
            "sliding_window_buckets" => second * third,
            _ => second,
        }
    }

    /// What is never too much at once.
    fn capacity(&self) -> u64 {
        let [first, period, burst, delay, ..] = self.cell.numbers.map(|number| number as u64);
        match self.cell.program.name {
            "gcra" | "token_bucket" => burst,
            "leaky_bucket" => {
                burst + (u128::from(delay) * u128::from(first) / u128::from(period)) as u64
            }
            _ => first,
        }
    }

    /// Changes amount and burst to the nearest values that a plan allows.
    fn edit(&mut self, amount: u64, burst: u64) {
        let period = self.period();
        let whole = (PRODUCT_MAX / period).min(AMOUNT_MAX);
        let (debt, large) = (self.debt, self.large);
        let numbers = &mut self.cell.numbers;
        // None, a few units, a half or the whole of the allowance or several, or what is possible.
        let owed = |allowance: u64, most: u64| {
            let debt = match debt {
                0..3 => 0,
                3 => 3,
                4 => allowance.div_ceil(2),
                5 => allowance,
                6 => allowance.saturating_mul(3),
                _ => most,
            };
            debt.min(most) as i64
        };
        let cut = |debt: i64| if period.is_multiple_of(3) { -debt } else { debt };
        match self.cell.program.name {
            "gcra" | "token_bucket" => {
                (numbers[0], numbers[2]) = (amount.min(AMOUNT_MAX) as i64, burst.min(whole) as i64);
                numbers[3] = owed(numbers[2] as u64, PRODUCT_MAX / period - numbers[2] as u64);
            }
            "leaky_bucket" => {
                let (amount, burst) = (amount.min(AMOUNT_MAX), burst.min(whole));
                let room = (PRODUCT_MAX - burst * period) / amount;
                // No delay, a few units, half a period, or the maximum.
                let delay = match numbers[3] % 6 {
                    0 => 0,
                    1 => 1,
                    2 => period.div_ceil(amount),
                    3 => 3 * period / amount + 1,
                    4 => period / 2,
                    _ => room.min(PERIOD_MS_MAX * 1_000 / u64::from(self.cell.unit_us)),
                };
                (numbers[0], numbers[2], numbers[3]) =
                    (amount as i64, burst as i64, delay.min(room) as i64);
            }
            "sliding_window_log" => {
                let most = if large { MEMBERS_MAX } else { MEMBERS_FEW };
                numbers[0] = amount.min(most) as i64;
                numbers[2] = owed(numbers[0] as u64, most);
            }
            "concurrency" => numbers[0] = amount.min(AMOUNT_MAX) as i64,
            "quota" => {
                numbers[0] = amount.min(AMOUNT_MAX) as i64;
                let most = amount.min(AMOUNT_MAX).min(AMOUNT_MAX - numbers[0] as u64);
                numbers[6] = cut(owed(amount, most));
            }
            name => {
                let amount = amount.min(AMOUNT_MAX);
                let debt = owed(amount, (AMOUNT_MAX - amount).min(amount.saturating_mul(5)));
                numbers[0] = amount as i64;
                match name {
                    "fixed_window" => numbers[3] = cut(debt),
                    "sliding_window_buckets" => numbers[3] = debt,
                    _ => numbers[2] = debt,
                }
            }
        }
    }

    /// The start of the n-th period of its calendar; every third period is longer.
    fn begins(length_ms: i64, n: i64) -> i64 {
        1_000_000_000_000 + n * length_ms + n.rem_euclid(3) * (length_ms / 10)
    }

    /// Its numbers, with the periods that a caller names whose clock shows `caller_us`.
    fn numbers(&self, caller_us: i128, may_wait: bool) -> [i64; NUMBERS_MAX] {
        let mut numbers = self.cell.numbers;
        if let Some(length) = self.calendar_ms {
            let idea_ms = (caller_us / 1_000) as i64;
            let mut n = (idea_ms - 1_000_000_000_000) / length + 1;
            while Self::begins(length, n) > idea_ms {
                n -= 1;
            }
            numbers[2..6]
                .copy_from_slice(&[n - 1, n, n + 1, n + 2].map(|n| Self::begins(length, n)));
        }
        if self.cell.program.name == "leaky_bucket" {
            numbers[4] = i64::from(may_wait);
        }
        numbers
    }

    /// The start of the next window after `now`, and the distance to the ones after it.
    fn border(&self, now: i128) -> (i128, i128) {
        let length = match (self.cell.program.name, self.calendar_ms) {
            ("sliding_window_buckets", _) => i128::from(self.cell.numbers[1]),
            ("quota", Some(length)) => {
                let begins = self.numbers(now * 1_000, true)[4];
                return (i128::from(begins), i128::from(length));
            }
            _ => i128::from(self.period()),
        };
        ((now.div_euclid(length) + 1) * length, length)
    }
}

fn moves() -> impl Strategy<Value = Move> {
    prop_oneof![
        6 => Just(Move::Us(0)),
        2 => (-3_i64..4).prop_map(Move::Us),
        2 => (-2_i64..3).prop_map(Move::Units),
        4 => (-1_i64..2).prop_map(Move::Retry),
        1 => (-1_i64..2).prop_map(Move::Reset),
        2 => (0_i64..3, -1_i64..2).prop_map(|(nth, more)| Move::Border(nth, more)),
        3 => (0_i64..20, -1_i64..2).prop_map(|(part, more)| Move::Part(part, more)),
        1 => (-9_i64..0, -1_i64..2).prop_map(|(part, more)| Move::Part(part, more)),
        1 => (-4_000_000_000_i64..4_000_000_000).prop_map(Move::Us),
    ]
}

fn costs() -> impl Strategy<Value = Cost> {
    prop_oneof![
        2 => Just(Cost::Units(0)),
        8 => Just(Cost::Units(1)),
        4 => (2_u64..6).prop_map(Cost::Units),
        6 => (1_u64..9).prop_map(Cost::Eighths),
        1 => Just(Cost::Above),
        1 => Just(Cost::Largest),
    ]
}

fn steps() -> impl Strategy<Value = Step> {
    // Most of the time the clocks agree.
    let skews = prop_oneof![8 => Just(0_i64), 1 => -25_i64..26];
    let take = (0_u128..3, any::<bool>(), prop::array::uniform4(costs()), skews.clone(), 0_u8..8);
    let charge = (0_u128..3, any::<bool>(), prop::array::uniform4(costs()), skews);
    prop_oneof![
        16 => take.prop_map(|(key, some, costs, skew, room)| Step::Take { key, some, costs, skew, may_wait: room > 0 }),
        3 => (any::<usize>(), skipped(), 0_u64..6).prop_map(|(which, skip, part)| Step::GiveBack { which, skip, part }),
        1 => (any::<usize>(), skipped()).prop_map(|(which, skip)| Step::Renew { which, skip }),
        3 => charge.prop_map(|(key, some, costs, skew)| Step::Charge { key, some, costs, skew }),
        1 => (any::<usize>(), amounts(), amounts()).prop_map(|(which, amount, burst)| Step::Edit { which, amount, burst }),
    ]
}

pub(super) fn cases() -> impl Strategy<Value = Case> {
    // Include very round times.
    let starts = prop_oneof![3 => 0_u64..1_000_000_000_000, 1 => (0_u64..8).prop_map(|n| n * 100_000_000_000)];
    let step = (moves(), any::<usize>(), steps());
    (
        prop::collection::vec(limits(), 1..5),
        1_u8..16,
        (0_u8..4, 0_u8..4, 0_usize..6),
        starts,
        prop::collection::vec(step, 1..STEPS_MAX),
    )
        .prop_map(|(mut limits, some, (edits, forward, assured), start, steps)| {
            for (index, limit) in limits.iter_mut().enumerate() {
                let [first, _, third, ..] = limit.cell.numbers;
                let name = format!("equal{index}");
                let named = cell(limit.cell.program, &name, 1, 1, 1);
                limit.cell.key = named.key;
                debug_assert!(first >= 0 && third >= 0);
            }
            if let [child, parent] = &mut *limits.get_mut(assured..assured + 2).unwrap_or_default()
                && PARENTS.contains(&parent.cell.program.name)
            {
                (child.cell.part, parent.cell.part) = (Part::Assured, Part::Parent);
            }
            Case {
                limits,
                some,
                edits: edits == 0,
                forward: forward == 0,
                start_us: START_US + start,
                steps,
            }
        })
}

impl Case {
    /// Runs the case on a new model.
    pub(super) fn run(&self) -> Trace {
        let mut run = Run {
            limits: self.limits.clone(),
            taken: Vec::new(),
            last: None,
            trace: Trace {
                events: Vec::new(),
                expected: Vec::new(),
                model: Model::default(),
                now_us: self.start_us,
                edited: self.edits,
                latest_expiry: BTreeMap::new(),
            },
        };
        for (to, focus, step) in &self.steps {
            run.go(*to, *focus, self.forward);
            run.step(step, self.some);
        }
        run.trace
    }
}

struct Run {
    limits: Vec<Limit>,
    /// The admitted takes and their instants.
    taken: Vec<(u64, Cells)>,
    /// The last answer, and its cells.
    last: Option<(TakeReply, Cells)>,
    trace: Trace,
}

impl Run {
    fn go(&mut self, to: Move, focus: usize, forward: bool) {
        let now_us = i128::from(self.trace.now_us);
        let limit = &self.limits[focus % self.limits.len()];
        let unit = i128::from(limit.cell.unit_us);
        let reported = |units_of: fn(&super::super::CellReply) -> Option<u64>, more: i64| {
            let (taken, cells) = self.last.as_ref()?;
            let (reply, cell) = (&taken.cells[focus % cells.len()], &cells[focus % cells.len()]);
            let unit = i128::from(cell.unit_us);
            // Relative to the whole time unit in which it was reported.
            Some(
                i128::from(taken.at_us) / unit * unit
                    + (i128::from(units_of(reply)?) + i128::from(more)) * unit,
            )
        };
        let to_us = match to {
            Move::Us(us) => now_us + i128::from(us),
            Move::Units(units) => now_us + i128::from(units) * unit,
            Move::Retry(more) => reported(|reply| reply.retry_units, more).unwrap_or(now_us),
            Move::Reset(more) => reported(|reply| Some(reply.reset_units), more).unwrap_or(now_us),
            Move::Border(nth, more) => {
                let (border, length) = limit.border(now_us / unit);
                (border + i128::from(nth) * length + i128::from(more)) * unit
            }
            Move::Part(part, more) => {
                now_us
                    + (i128::from(limit.period()) * i128::from(part) / 8 + i128::from(more)) * unit
            }
        };
        if TIMES_US.contains(&to_us) && (!forward || to_us >= now_us) {
            self.trace.now_us = to_us as u64;
        }
    }

    fn step(&mut self, step: &Step, some: u8) {
        match step {
            Step::Take { key, some: only_some, costs, skew, may_wait } => {
                let cells = self.cells(
                    *key,
                    if *only_some { some } else { u8::MAX },
                    costs,
                    *skew,
                    *may_wait,
                );
                self.take(cells);
            }
            Step::GiveBack { which, skip, part } if !self.taken.is_empty() => {
                let (taken_at_us, cells) = &self.taken[which % self.taken.len()];
                let cells: Cells = cells
                    .iter()
                    .map(|cell| Cell { cost: cell.cost * part / 4, ..without(cell, *skip) })
                    .collect();
                let taken_at_us = *taken_at_us;
                self.trace.model.give_back(&cells, self.trace.now_us, taken_at_us);
                for cell in &cells {
                    // The give-back uses the numbers of the take, as the limit may have been edited
                    // since.
                    let reset_units = self.trace.model.reset_units(cell, self.trace.now_us);
                    if self.trace.latest_expiry.contains_key(&cell.key.id()) {
                        self.extend_lifetime(cell, reset_units);
                    }
                }
                self.push_event(Verb::GiveBack, cells, taken_at_us);
            }
            Step::Charge { key, some: only_some, costs, skew } => {
                let some = if *only_some { some } else { u8::MAX };
                let mut cells = self.cells(*key, some, costs, *skew, true);
                cells.retain(|cell| !matches!(cell.program.name, "leaky_bucket" | "concurrency"));
                self.charge(cells);
            }
            Step::Renew { which, skip } if !self.taken.is_empty() => {
                let (_, cells) = &self.taken[which % self.taken.len()];
                let cells: Cells = cells.iter().map(|cell| without(cell, *skip)).collect();
                self.trace.model.renew(&cells, self.trace.now_us);
                for cell in cells.iter().filter(|cell| cell.program.name == "concurrency") {
                    self.extend_lifetime(cell, 0);
                }
                self.push_event(Verb::Renew, cells, 0);
            }
            Step::Edit { which, amount, burst } if self.trace.edited => {
                let count = self.limits.len();
                self.limits[which % count].edit(*amount, *burst);
            }
            Step::GiveBack { .. } | Step::Renew { .. } | Step::Edit { .. } => {}
        }
    }

    fn cells(&self, key: u128, some: u8, costs: &[Cost; 4], skew: i64, may_wait: bool) -> Cells {
        let chosen = |index: &usize| some >> index & 1 == 1;
        let indices: Vec<usize> = (0..self.limits.len()).filter(chosen).collect();
        let indices = if indices.is_empty() { vec![0] } else { indices };
        let member = (1 + self.trace.events.len() as u128) << 32;
        let cells = indices.into_iter().map(|index| {
            let limit = &self.limits[index];
            let cost = match costs[index] {
                Cost::Units(units) => units,
                Cost::Eighths(eighths) => limit.capacity() * eighths / 8,
                Cost::Above => limit.capacity() + 1,
                Cost::Largest => AMOUNT_MAX,
            };
            let named = matches!(limit.cell.program.name, "sliding_window_log" | "concurrency");
            let cost = cost.min(if named { MEMBERS_MAX } else { AMOUNT_MAX });
            let cost = if named && !limit.large && cost <= limit.capacity() {
                cost.min(MEMBERS_FEW)
            } else {
                cost
            };
            let caller_us = i128::from(self.trace.now_us)
                + i128::from(skew) * i128::from(limit.calendar_ms.unwrap_or(0)) * 100;
            let mut cell = Cell {
                cost,
                member,
                numbers: limit.numbers(caller_us, may_wait),
                ..limit.cell.clone()
            };
            cell.key.key = key;
            cell
        });
        cells.collect()
    }

    fn take(&mut self, cells: Cells) {
        if self.trace.events.len().is_multiple_of(TAKES_PER_LOOK) {
            let answer = self.trace.model.look(&cells, self.trace.now_us);
            self.trace.expected.push(Answer::Taken(answer));
            self.push_event(Verb::Look, cells.clone(), 0);
        }
        let answer = self.trace.model.take(&cells, self.trace.now_us);
        for (cell, reply) in cells.iter().zip(&answer.cells) {
            // What refuses is kept until it would not any more.
            let told = !reply.fits && reply.retry_units.is_some();
            if told && self.trace.latest_expiry.contains_key(&cell.key.id()) {
                self.extend_lifetime(cell, reply.reset_units);
            }
        }
        if answer.admitted {
            self.taken.push((answer.at_us, cells.clone()));
            for (cell, reply) in cells.iter().zip(&answer.cells) {
                if reply.fits && cell.cost > 0 {
                    self.extend_lifetime(cell, reply.reset_units);
                }
            }
        }
        self.last = Some((answer.clone(), cells.clone()));
        self.trace.expected.push(Answer::Taken(answer));
        self.push_event(Verb::Take, cells, 0);
    }

    fn charge(&mut self, cells: Cells) {
        if cells.is_empty() {
            return;
        }
        let charged = self.trace.model.charge(&cells, self.trace.now_us);
        for (cell, units) in cells.iter().zip(&charged.units) {
            if units.is_some_and(|units| units > 0) {
                let reset_units = self.trace.model.reset_units(cell, self.trace.now_us);
                self.extend_lifetime(cell, reset_units);
            }
        }
        self.trace.expected.push(Answer::Charged(charged));
        self.push_event(Verb::Charge, cells, 0);
    }

    fn push_event(&mut self, verb: Verb, cells: Cells, taken_at_us: u64) {
        self.trace.events.push(Event { now_us: self.trace.now_us, verb, cells, taken_at_us });
    }

    /// A counter lives until all is back, then for at most two periods (for a calendar, the last
    /// two periods named) and a second.
    fn extend_lifetime(&mut self, cell: &Cell, reset_units: u64) {
        let [_, second, third, ..] = cell.numbers.map(|number| number as u64);
        let period = match cell.program.name {
            "sliding_window_buckets" => second * third,
            "quota" => {
                cell.numbers[5].abs_diff(cell.numbers[4])
                    + cell.numbers[4].abs_diff(cell.numbers[3])
            }
            _ => second,
        };
        let until_us =
            self.trace.now_us + (reset_units + 2 * period) * u64::from(cell.unit_us) + 1_001_000;
        let (known, latest_us) =
            self.trace.latest_expiry.entry(cell.key.id()).or_insert_with(|| (cell.clone(), 0));
        *known = cell.clone();
        *latest_us = until_us.max(*latest_us);
    }
}

/// Quarters of a take that are left alone: mostly none.
fn skipped() -> impl Strategy<Value = u64> {
    prop_oneof![4 => Just(0), 1 => 1_u64..4]
}

/// Of places those after the first quarters; of other units all.
fn without(cell: &Cell, quarters: u64) -> Cell {
    if cell.program.name != "concurrency" {
        return cell.clone();
    }
    let skipped = cell.cost * quarters / 4;
    Cell { cost: cell.cost - skipped, member: cell.member + u128::from(skipped), ..cell.clone() }
}
