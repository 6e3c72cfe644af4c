//! Algorithms that store units: with an instant each, with the end of a lease each, or as counts of
//! sub-windows.

use std::collections::BTreeMap;

use super::super::counters::PURGE_EVERY;
use super::{Answer, Counter, Query};

/// A unit with its instant and its name.
#[derive(Clone)]
struct Unit {
    at: i128,
    name: u128,
}

/// Whether a take purges expired units. This shows only after the clock stepped back.
fn purges(query: &Query) -> bool {
    query.cost > 1 || query.now_us.is_multiple_of(PURGE_EVERY)
}

fn add(units: &mut Vec<Unit>, at: i128, query: &Query) {
    units.extend((0..query.cost as u128).map(|number| Unit { at, name: query.member + number }));
}

fn remove(units: &mut Vec<Unit>, query: &Query) {
    let names = query.member..query.member + query.cost as u128;
    units.retain(|unit| !names.contains(&unit.name));
}

/// All units of the last period.
#[derive(Clone, Default)]
pub(super) struct Log(Vec<Unit>);

impl Counter for Log {
    fn decide(&self, query: &Query) -> Answer {
        let [quota, period, ..] = query.numbers;
        let inside = |unit: &&Unit| query.now - period < unit.at && unit.at <= query.now;
        let count = self.0.iter().filter(inside).count() as i128;
        let fits = count + query.wanted <= quota;
        let after = if fits { count + query.cost } else { count };
        // The units after this take.
        let mut leaves: Vec<i128> =
            self.0.iter().filter(inside).map(|unit| unit.at + period).collect();
        leaves.extend((count..after).map(|_| query.now + period));
        leaves.sort_unstable();
        let lacking = after + if fits { 1 } else { query.wanted } - quota;
        let waits = lacking > 0 && query.wanted <= quota;
        Answer {
            fits,
            remaining: (quota - after).max(0),
            retry: waits.then(|| leaves[(lacking - 1) as usize] - query.now),
            reset: if after > 0 { period } else { 0 },
            outside: false,
        }
    }

    fn charge(&mut self, query: &Query) {
        let over = query.now - query.numbers[1];
        self.0.retain(|unit| over < unit.at && unit.at <= query.now);
        add(&mut self.0, query.now, query);
    }

    fn room(&self, query: &Query) -> Option<i128> {
        let [quota, period, debt, ..] = query.numbers;
        let inside = |unit: &&Unit| query.now - period < unit.at && unit.at <= query.now;
        Some(quota + debt - self.0.iter().filter(inside).count() as i128)
    }

    fn give_back(&mut self, query: &Query, _: i128) {
        remove(&mut self.0, query);
    }
}

/// Leases, each with its end as its instant.
#[derive(Clone, Default)]
pub(super) struct Leases(Vec<Unit>);

impl Leases {
    fn in_flight(&self, query: &Query) -> i128 {
        let length = query.numbers[1];
        let holds = |unit: &&Unit| query.now < unit.at && unit.at <= query.now + length;
        self.0.iter().filter(holds).count() as i128
    }
}

impl Counter for Leases {
    fn decide(&self, query: &Query) -> Answer {
        let (most, in_flight) = (query.numbers[0], self.in_flight(query));
        let fits = in_flight + query.wanted <= most;
        let after = if fits { in_flight + query.cost } else { in_flight };
        Answer { fits, remaining: (most - after).max(0), retry: None, reset: 0, outside: false }
    }

    fn charge(&mut self, query: &Query) {
        let ends = query.now + query.numbers[1];
        let purges = purges(query);
        self.0.retain(|unit| unit.at <= ends && !(purges && unit.at <= query.now));
        add(&mut self.0, ends, query);
    }

    /// What children are assured may take twice the places.
    fn room(&self, query: &Query) -> Option<i128> {
        Some(2 * query.numbers[0] - self.in_flight(query))
    }

    fn give_back(&mut self, query: &Query, _: i128) {
        remove(&mut self.0, query);
    }

    fn renew(&mut self, query: &Query) {
        remove(&mut self.0, query);
        add(&mut self.0, query.now + query.numbers[1], query);
    }
}

/// Units of each sub-window, by its number.
#[derive(Clone, Default)]
pub(super) struct SubWindows(BTreeMap<i128, i128>);

impl SubWindows {
    /// A sub-window in the future shows that the clock stepped back: the counts are then dropped.
    fn knows(&self, this: i128) -> bool {
        self.0.last_key_value().is_none_or(|(last, _)| *last <= this)
    }
}

impl Counter for SubWindows {
    fn decide(&self, query: &Query) -> Answer {
        let [quota, length, buckets, ..] = query.numbers;
        let this = query.now.div_euclid(length);
        let counting: Vec<(i128, i128)> = if self.knows(this) {
            self.0
                .range(this + 1 - buckets..=this)
                .map(|(window, units)| (*window, *units))
                .collect()
        } else {
            Vec::new()
        };
        let count: i128 = counting.iter().map(|(_, units)| units).sum();
        let fits = count + query.wanted <= quota;
        let after = if fits { count + query.cost } else { count };
        // The count after this take.
        let lacking = after + if fits { 1 } else { query.wanted } - quota;
        let leaves = || {
            let mut lacking = lacking;
            let taken = [(this, after - count)];
            let last = counting.iter().chain(&taken).find(|(_, units)| {
                lacking -= units;
                lacking <= 0
            });
            last.map(|(window, _)| (window + buckets) * length - query.now)
        };
        Answer {
            fits,
            remaining: (quota - after).max(0),
            retry: if lacking > 0 && query.wanted <= quota { leaves() } else { None },
            reset: if after > 0 { (this + buckets) * length - query.now } else { 0 },
            outside: false,
        }
    }

    fn charge(&mut self, query: &Query) {
        let this = query.now.div_euclid(query.numbers[1]);
        if !self.knows(this) {
            self.0.clear();
        }
        self.0.retain(|window, _| window + query.numbers[2] > this);
        *self.0.entry(this).or_default() += query.cost;
    }

    fn room(&self, query: &Query) -> Option<i128> {
        let [quota, length, buckets, debt, ..] = query.numbers;
        let this = query.now.div_euclid(length);
        let counting = self.0.range(this + 1 - buckets..=this).filter(|_| self.knows(this));
        Some(quota + debt - counting.map(|(_, units)| units).sum::<i128>())
    }

    fn give_back(&mut self, query: &Query, taken_at: i128) {
        let [_, length, buckets, ..] = query.numbers;
        let (this, charged) = (query.now.div_euclid(length), taken_at.div_euclid(length));
        if !self.knows(this) || charged + buckets <= this {
            return;
        }
        if let Some(units) = self.0.get_mut(&charged) {
            *units = (*units - query.cost).max(0);
        }
    }
}
