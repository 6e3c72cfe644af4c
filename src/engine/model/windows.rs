//! Windows of time: fixed, sliding by weight, of a calendar.

use std::collections::BTreeMap;

use super::{Answer, Counter, Query, first};

/// A single window, started by its first unit or by the clock.
#[derive(Default)]
pub(super) struct Fixed {
    start: i128,
    count: i128,
}

impl Fixed {
    /// The window that contains `now`: its start and its count.
    fn seen(&self, query: &Query) -> (i128, i128) {
        let [_, period, to_clock, ..] = query.numbers;
        let now = query.now;
        if to_clock == 1 {
            let start = now.div_euclid(period) * period;
            // Started before the clock stepped back over its border.
            if self.count > 0 && self.start == start + period {
                return (self.start, self.count);
            }
            return (start, if start == self.start { self.count } else { 0 });
        }
        let lasts = self.count > 0 && (self.start..self.start + period).contains(&now);
        if lasts { (self.start, self.count) } else { (now, 0) }
    }
}

impl Counter for Fixed {
    fn decide(&self, query: &Query) -> Answer {
        let [quota, period, ..] = query.numbers;
        let (start, count) = self.seen(query);
        let left_of_it = start + period - query.now;
        let fits = count + query.wanted <= quota;
        let after = if fits { count + query.cost } else { count };
        Answer {
            fits,
            remaining: (quota - after).max(0),
            retry: (!fits && query.wanted <= quota).then_some(left_of_it),
            reset: if after > 0 { left_of_it } else { 0 },
            outside: false,
        }
    }

    fn charge(&mut self, query: &Query) {
        let (start, count) = self.seen(query);
        *self = Self { start, count: count + query.cost };
    }

    fn give_back(&mut self, query: &Query, taken_at: i128) {
        let window = self.start..self.start + query.numbers[1];
        if window.contains(&taken_at) && window.contains(&query.now) && taken_at <= query.now {
            self.count = (self.count - query.cost).max(0);
        }
    }
}

/// Units of each window, by its number. Only the current one and the previous one count.
#[derive(Default)]
pub(super) struct Pair {
    units: BTreeMap<i128, i128>,
}

impl Pair {
    /// A window in the future shows that the clock stepped back: the counts are then dropped.
    fn of(&self, window: i128, this: i128) -> i128 {
        let known = self.units.last_key_value().is_none_or(|(last, _)| *last <= this);
        if known { self.units.get(&window).copied().unwrap_or(0) } else { 0 }
    }

    /// The free units at `now`, in units x period, once `taken` units of the current window are
    /// charged. The previous window counts in proportion to the part of it that is still covered.
    fn free(&self, now: i128, quota: i128, period: i128, taken: (i128, i128)) -> i128 {
        let this = now.div_euclid(period);
        let inside = (this + 1) * period - now;
        let of = |window| self.of(window, taken.0) + if window == taken.0 { taken.1 } else { 0 };
        quota * period - of(this) * period - of(this - 1) * inside
    }
}

impl Counter for Pair {
    fn decide(&self, query: &Query) -> Answer {
        let [quota, period, ..] = query.numbers;
        let (now, decide) = (query.now, query.wanted);
        let this = now.div_euclid(period);
        let free = self.free(now, quota, period, (this, 0));
        let fits = decide * period <= free;
        let taken = (this, if fits { query.cost } else { 0 });
        let left = self.free(now, quota, period, taken);
        let ends = (this + 1) * period;
        let reset = if self.of(this, this) + if fits { query.cost } else { 0 } > 0 {
            ends + period - now
        } else if self.of(this - 1, this) > 0 {
            ends - now
        } else {
            0
        };
        let next = if fits { 1 } else { decide };
        let fits_at = |at: i128| next * period <= self.free(at, quota, period, taken);
        let waits = left < next * period && decide <= quota && (!fits || query.cost > 0);
        Answer {
            fits,
            remaining: left.max(0) / period,
            retry: waits.then(|| first(now, fits_at) - now),
            reset,
            outside: false,
        }
    }

    fn charge(&mut self, query: &Query) {
        let this = query.now.div_euclid(query.numbers[1]);
        if self.units.last_key_value().is_some_and(|(last, _)| *last > this) {
            self.units.clear();
        }
        *self.units.entry(this).or_default() += query.cost;
        self.units.retain(|window, _| *window >= this - 1);
    }

    fn give_back(&mut self, query: &Query, taken_at: i128) {
        let period = query.numbers[1];
        let (this, charged) = (query.now.div_euclid(period), taken_at.div_euclid(period));
        if taken_at > query.now
            || charged < this - 1
            || self.units.last_key_value().is_some_and(|(last, _)| *last > this)
        {
            return;
        }
        if let Some(units) = self.units.get_mut(&charged) {
            *units = (*units - query.cost).max(0);
        }
    }
}

/// Units of a calendar's period, or of all time.
#[derive(Default)]
pub(super) struct Quota {
    start: i128,
    count: i128,
}

/// The period that contains `now`, among those named: its start, and its end if it has one.
fn period(query: &Query, now: i128) -> Option<(i128, Option<i128>)> {
    let [_, _, starts @ ..] = query.numbers;
    if starts == [0; 4] {
        return Some((0, None));
    }
    starts
        .windows(2)
        .find(|pair| (pair[0]..pair[1]).contains(&now))
        .map(|pair| (pair[0], Some(pair[1])))
}

impl Quota {
    /// The period to count in at `now`: the one that contains it, or the next one if that was
    /// started before the clock stepped back.
    fn period(&self, query: &Query) -> Option<(i128, Option<i128>)> {
        let (start, ends) = period(query, query.now)?;
        if self.count > 0 && ends == Some(self.start) {
            period(query, self.start)
        } else {
            Some((start, ends))
        }
    }
}

impl Counter for Quota {
    fn decide(&self, query: &Query) -> Answer {
        let [amount, conditional, ..] = query.numbers;
        let Some((start, ends)) = self.period(query) else {
            return Answer { fits: false, remaining: 0, retry: None, reset: 0, outside: true };
        };
        let count = if start == self.start { self.count } else { 0 };
        let fits = conditional == 0 || count + query.wanted <= amount;
        let after = if fits { count + query.cost } else { count };
        let until_the_end = ends.map(|ends| ends - query.now);
        Answer {
            fits,
            remaining: (amount - after).max(0),
            retry: until_the_end.filter(|_| !fits && query.wanted <= amount),
            reset: until_the_end.filter(|_| after > 0).unwrap_or(0),
            outside: false,
        }
    }

    fn charge(&mut self, query: &Query) {
        let Some((start, _)) = self.period(query) else { return };
        let count = if start == self.start { self.count } else { 0 };
        *self = Self { start, count: count + query.cost };
    }

    fn give_back(&mut self, query: &Query, taken_at: i128) {
        let (Some((now, _)), Some((charged, _))) =
            (period(query, query.now), period(query, taken_at))
        else {
            return;
        };
        if now == charged && self.start == now && taken_at <= query.now {
            self.count = (self.count - query.cost).max(0);
        }
    }
}
