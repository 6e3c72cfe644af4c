//! What remembers units: each with its instant, each with the end of its lease, or as counts of
//! sub-windows.

use std::collections::BTreeMap;

use super::super::counters::PURGE_EVERY;
use super::{Answer, Asked, Counter};

/// A unit with its instant, and its name: the take's own and a number.
struct Unit {
    at: i128,
    name: (u128, i128),
}

/// Whether a take forgets what is over. It is seen only after the clock has stepped back.
fn purges(asked: &Asked) -> bool {
    asked.cost > 1 || asked.now_us.is_multiple_of(PURGE_EVERY)
}

fn add(units: &mut Vec<Unit>, at: i128, asked: &Asked) {
    units.extend((0..asked.cost).map(|number| Unit { at, name: (asked.member, number) }));
}

fn remove(units: &mut Vec<Unit>, asked: &Asked) {
    units.retain(|unit| unit.name.0 != asked.member || unit.name.1 >= asked.cost);
}

/// All units of the last period.
#[derive(Default)]
pub(super) struct Log(Vec<Unit>);

impl Counter for Log {
    fn ask(&self, asked: &Asked) -> Answer {
        let [quota, period, ..] = asked.numbers;
        let inside = |unit: &&Unit| asked.now - period < unit.at && unit.at <= asked.now;
        let count = self.0.iter().filter(inside).count() as i128;
        let fits = count + asked.ask <= quota;
        let after = if fits { count + asked.cost } else { count };
        // As they stand after this take.
        let mut leaves: Vec<i128> =
            self.0.iter().filter(inside).map(|unit| unit.at + period).collect();
        leaves.extend((count..after).map(|_| asked.now + period));
        leaves.sort_unstable();
        let lacking = after + if fits { 1 } else { asked.ask } - quota;
        let waits = lacking > 0 && asked.ask <= quota;
        Answer {
            fits,
            remaining: (quota - after).max(0),
            retry: waits.then(|| leaves[(lacking - 1) as usize] - asked.now),
            reset: if after > 0 { period } else { 0 },
            outside: false,
        }
    }

    fn charge(&mut self, asked: &Asked) {
        let over = asked.now - asked.numbers[1];
        self.0.retain(|unit| over < unit.at && unit.at <= asked.now);
        add(&mut self.0, asked.now, asked);
    }

    fn give_back(&mut self, asked: &Asked, _: i128) {
        remove(&mut self.0, asked);
    }
}

/// Leases, each with its end as its instant.
#[derive(Default)]
pub(super) struct Leases(Vec<Unit>);

impl Counter for Leases {
    fn ask(&self, asked: &Asked) -> Answer {
        let [most, length, ..] = asked.numbers;
        let in_flight = self
            .0
            .iter()
            .filter(|unit| asked.now < unit.at && unit.at <= asked.now + length)
            .count() as i128;
        let fits = in_flight + asked.ask <= most;
        let after = if fits { in_flight + asked.cost } else { in_flight };
        Answer { fits, remaining: (most - after).max(0), retry: None, reset: 0, outside: false }
    }

    fn charge(&mut self, asked: &Asked) {
        let ends = asked.now + asked.numbers[1];
        let purges = purges(asked);
        self.0.retain(|unit| unit.at <= ends && !(purges && unit.at <= asked.now));
        add(&mut self.0, ends, asked);
    }

    fn give_back(&mut self, asked: &Asked, _: i128) {
        remove(&mut self.0, asked);
    }

    fn renew(&mut self, asked: &Asked) {
        remove(&mut self.0, asked);
        add(&mut self.0, asked.now + asked.numbers[1], asked);
    }
}

/// Units of each sub-window, by its number.
#[derive(Default)]
pub(super) struct SubWindows(BTreeMap<i128, i128>);

impl SubWindows {
    /// A sub-window in the future shows that the clock stepped back: then nothing is known.
    fn knows(&self, this: i128) -> bool {
        self.0.last_key_value().is_none_or(|(last, _)| *last <= this)
    }
}

impl Counter for SubWindows {
    fn ask(&self, asked: &Asked) -> Answer {
        let [quota, length, buckets, ..] = asked.numbers;
        let this = asked.now.div_euclid(length);
        let counting: Vec<(i128, i128)> = if self.knows(this) {
            self.0
                .range(this + 1 - buckets..=this)
                .map(|(window, units)| (*window, *units))
                .collect()
        } else {
            Vec::new()
        };
        let count: i128 = counting.iter().map(|(_, units)| units).sum();
        let fits = count + asked.ask <= quota;
        let after = if fits { count + asked.cost } else { count };
        // As it stands after this take.
        let lacking = after + if fits { 1 } else { asked.ask } - quota;
        let leaves = || {
            let mut lacking = lacking;
            let taken = [(this, after - count)];
            let last = counting.iter().chain(&taken).find(|(_, units)| {
                lacking -= units;
                lacking <= 0
            });
            last.map(|(window, _)| (window + buckets) * length - asked.now)
        };
        Answer {
            fits,
            remaining: (quota - after).max(0),
            retry: if lacking > 0 && asked.ask <= quota { leaves() } else { None },
            reset: if after > 0 { (this + buckets) * length - asked.now } else { 0 },
            outside: false,
        }
    }

    fn charge(&mut self, asked: &Asked) {
        let this = asked.now.div_euclid(asked.numbers[1]);
        if !self.knows(this) {
            self.0.clear();
        }
        self.0.retain(|window, _| window + asked.numbers[2] > this);
        *self.0.entry(this).or_default() += asked.cost;
    }

    fn give_back(&mut self, asked: &Asked, taken_at: i128) {
        let [_, length, buckets, ..] = asked.numbers;
        let (this, charged) = (asked.now.div_euclid(length), taken_at.div_euclid(length));
        if !self.knows(this) || charged + buckets <= this {
            return;
        }
        if let Some(units) = self.0.get_mut(&charged) {
            *units = (*units - asked.cost).max(0);
        }
    }
}
