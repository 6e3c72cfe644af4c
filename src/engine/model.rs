//! What the algorithms promise, in plain Rust with wide integers and fractions: the reference that both engines are held to.
//!
//! Written from the promise and not from the Lua: levels and instants are exact fractions here, nothing is packed.

use std::collections::HashMap;

use super::{Cell, CellReply, Taken};

/// All counters of the model.
#[derive(Default)]
pub(super) struct Model {
    counters: HashMap<u128, Counter>,
}

#[derive(Clone, Copy)]
enum Counter {
    Window {
        start: i128,
        count: i128,
    },
    /// `debt_until` x quota: TAT as a fraction.
    Gcra {
        tat_ticks: i128,
    },
    /// `level` x period at `last`.
    Bucket {
        level: i128,
        last: i128,
    },
}

struct Answer {
    fits: bool,
    after: Counter,
    remaining: i128,
    retry: Option<i128>,
    reset: i128,
}

struct Numbers {
    now: i128,
    ask: i128,
    cost: i128,
    quota: i128,
    period: i128,
    burst: i128,
    to_clock: bool,
}

fn numbers(cell: &Cell, now_us: u64) -> Numbers {
    let [quota, period, burst, alignment, ..] = cell.numbers.map(i128::from);
    Numbers {
        now: i128::from(now_us / u64::from(cell.unit_us)),
        ask: i128::from(cell.cost.max(1)),
        cost: i128::from(cell.cost),
        quota,
        period,
        burst,
        to_clock: alignment == 1,
    }
}

fn ceil(a: i128, b: i128) -> i128 {
    -(-a).div_euclid(b)
}

impl Model {
    pub(super) fn take(&mut self, cells: &[Cell], now_us: u64) -> Taken {
        let answers: Vec<Answer> = cells.iter().map(|cell| self.ask(cell, now_us)).collect();
        let admitted = cells.iter().zip(&answers).all(|(cell, answer)| cell.shadow || answer.fits);
        for (cell, answer) in cells.iter().zip(&answers) {
            if admitted && answer.fits && cell.cost > 0 {
                self.counters.insert(cell.key.id(), answer.after);
            }
        }
        let reply = |answer: &Answer| CellReply {
            fits: answer.fits,
            remaining: answer.remaining.try_into().unwrap(),
            retry_units: answer.retry.map(|units| units.try_into().unwrap()),
            reset_units: answer.reset.try_into().unwrap(),
            outside: false,
        };
        Taken { at_us: now_us, admitted, cells: answers.iter().map(reply).collect() }
    }

    fn ask(&self, cell: &Cell, now_us: u64) -> Answer {
        let n = numbers(cell, now_us);
        let stored = self.counters.get(&cell.key.id()).copied();
        match cell.program.name {
            "fixed_window" => {
                let (start, count) = window(&n, stored);
                let ends = start + n.period;
                let fits = count + n.ask <= n.quota;
                let count = if fits { count + n.cost } else { count };
                Answer {
                    fits,
                    after: Counter::Window { start, count },
                    remaining: (n.quota - count).max(0),
                    retry: (!fits && n.ask <= n.quota).then_some(ends - n.now),
                    reset: if count > 0 { ends - n.now } else { 0 },
                }
            }
            name => {
                // Both are one bucket of burst x period ticks into which quota ticks flow in each time unit.
                let full = n.burst * n.period;
                let level = if name == "gcra" { full - debt(&n, stored) } else { level(&n, stored) };
                let fits = n.ask * n.period <= level;
                let after = if fits { level - n.cost * n.period } else { level };
                let counter = if name == "gcra" {
                    Counter::Gcra { tat_ticks: n.now * n.quota + full - after }
                } else {
                    Counter::Bucket { level: after, last: n.now }
                };
                Answer {
                    fits,
                    after: counter,
                    remaining: after.div_euclid(n.period),
                    retry: (!fits && n.ask <= n.burst).then_some(ceil(n.ask * n.period - level, n.quota)),
                    reset: ceil(full - after, n.quota),
                }
            }
        }
    }

    pub(super) fn give_back(&mut self, cells: &[Cell], now_us: u64, taken_at_us: u64) {
        for cell in cells {
            let n = numbers(cell, now_us);
            let taken_at = i128::from(taken_at_us / u64::from(cell.unit_us));
            let Some(stored) = self.counters.get_mut(&cell.key.id()) else { continue };
            let back = n.cost.min(n.burst) * n.period - (n.now - taken_at) * n.quota;
            let possible = taken_at <= n.now && back > 0;
            let full = n.burst * n.period;
            match stored {
                Counter::Window { start, count } => {
                    if *start <= taken_at && taken_at <= n.now && n.now < *start + n.period {
                        *count = (*count - n.cost).max(0);
                    }
                }
                Counter::Gcra { tat_ticks } => {
                    let debt = *tat_ticks - n.now * n.quota;
                    if possible && debt > 0 && debt <= full {
                        *tat_ticks = n.now * n.quota + (debt - back).max(0);
                    }
                }
                Counter::Bucket { level, last } => {
                    if possible && *last <= n.now {
                        let here = (*level + (n.now - *last) * n.quota).min(full);
                        if here < full {
                            (*level, *last) = ((here + back).min(full), n.now);
                        }
                    }
                }
            }
        }
    }
}

fn window(n: &Numbers, stored: Option<Counter>) -> (i128, i128) {
    let begins = if n.to_clock { n.now - n.now.rem_euclid(n.period) } else { n.now };
    match stored {
        Some(Counter::Window { start, count }) if n.to_clock && start == begins => (start, count),
        Some(Counter::Window { start, count }) if !n.to_clock && count > 0 && start <= n.now && n.now < start + n.period => (start, count),
        _ => (begins, 0),
    }
}

fn debt(n: &Numbers, stored: Option<Counter>) -> i128 {
    match stored {
        Some(Counter::Gcra { tat_ticks }) => {
            let debt = (tat_ticks - n.now * n.quota).max(0);
            if debt > n.burst * n.period { 0 } else { debt }
        }
        _ => 0,
    }
}

fn level(n: &Numbers, stored: Option<Counter>) -> i128 {
    let full = n.burst * n.period;
    match stored {
        Some(Counter::Bucket { level, last }) if last <= n.now => (level + (n.now - last) * n.quota).min(full),
        _ => full,
    }
}
