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
    /// The window that contains `now`: its start and its count. Each window that has ended hands
    /// what it could not hold, at most the debt, to the next one.
    fn seen(&self, query: &Query, now: i128) -> (i128, i128) {
        let [quota, period, to_clock, debt, ..] = query.numbers;
        let new = if to_clock == 1 { now.div_euclid(period) * period } else { now };
        let (mut start, mut count) = (self.start, self.count);
        // Started before the clock stepped back over its border.
        if count > 0 && to_clock == 1 && start == new + period {
            return (start, count);
        }
        if start > now {
            return (new, 0);
        }
        while count > 0 && start + period <= now {
            (start, count) = (start + period, (count - quota).min(debt).max(0));
        }
        if count > 0 { (start, count) } else { (new, 0) }
    }
}

impl Counter for Fixed {
    fn decide(&self, query: &Query) -> Answer {
        let [quota, ..] = query.numbers;
        let now = query.now;
        let (start, count) = self.seen(query, now);
        let fits = count + query.wanted <= quota;
        let after = if fits { count + query.cost } else { count };
        let after = Self { start, count: after };
        let fits_at = |at| after.seen(query, at).1 + query.wanted <= quota;
        Answer {
            fits,
            remaining: (quota - after.count).max(0),
            retry: (!fits && query.wanted <= quota).then(|| first(now, fits_at) - now),
            reset: first(now, |at| after.seen(query, at).1 == 0) - now,
            outside: false,
        }
    }

    fn charge(&mut self, query: &Query) {
        let (start, count) = self.seen(query, query.now);
        *self = Self { start, count: count + query.cost };
    }

    fn room(&self, query: &Query) -> Option<i128> {
        let [quota, _, _, debt, ..] = query.numbers;
        Some(quota + debt.abs() - self.seen(query, query.now).1)
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

    fn room(&self, query: &Query) -> Option<i128> {
        let [quota, period, debt, ..] = query.numbers;
        let this = query.now.div_euclid(period);
        // What is free, less what the debt allows, in whole units.
        let free = self.free(query.now, quota, period, (this, 0));
        Some((free + debt * period).div_euclid(period))
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
    let [_, _, starts @ .., _] = query.numbers;
    if starts == [0; 4] {
        return Some((0, None));
    }
    starts
        .windows(2)
        .find(|pair| (pair[0]..pair[1]).contains(&now))
        .map(|pair| (pair[0], Some(pair[1])))
}

/// The end of the period after one from `start` to `ends`; as long as that one if it is not named.
fn second_end(query: &Query, start: i128, ends: i128) -> i128 {
    let (_, named_ends) = period(query, ends).unwrap_or((0, None));
    named_ends.unwrap_or(2 * ends - start)
}

impl Quota {
    /// The period to count in at `now` and its count. The period is the one that contains it, or
    /// the next one if that was started before the clock stepped back. A period hands what it could
    /// not hold, at most the debt, to the next one. `None` if the periods named don't tell.
    fn seen(&self, query: &Query) -> Option<(i128, Option<i128>, i128)> {
        let [amount, conditional, _, this, next, _, debt] = query.numbers;
        let (mut start, mut ends) = period(query, query.now)?;
        if self.count > 0 && ends == Some(self.start) {
            (start, ends) = period(query, self.start)?;
        }
        if self.start == start {
            return Some((start, ends, self.count));
        }
        let owed = (self.count - amount).min(debt).max(0);
        if owed == 0 || conditional == 0 || self.start > start {
            return Some((start, ends, 0));
        }
        // Only the first period named has an unknown predecessor. It may have been up to half as
        // long again.
        if start != this && start != next {
            let may_follow = 2 * (start - self.start) <= 3 * (this - start);
            return if may_follow { None } else { Some((start, ends, 0)) };
        }
        let followed = period(query, self.start).and_then(|(_, ends)| ends) == Some(start);
        Some((start, ends, if followed { owed } else { 0 }))
    }
}

impl Counter for Quota {
    fn decide(&self, query: &Query) -> Answer {
        let [amount, conditional, .., debt] = query.numbers;
        let Some((start, ends, count)) = self.seen(query) else {
            return Answer { fits: false, remaining: 0, retry: None, reset: 0, outside: true };
        };
        let fits = conditional == 0 || count + query.wanted <= amount;
        let after = if fits { count + query.cost } else { count };
        let owed = if conditional == 0 { 0 } else { (after - amount).min(debt).max(0) };
        // At the end of this period, or of the next one.
        let until = |second: bool| {
            let ends = ends?;
            Some(if second { second_end(query, start, ends) } else { ends } - query.now)
        };
        let wanted = !fits && query.wanted <= amount;
        Answer {
            fits,
            remaining: (amount - after).max(0),
            retry: until(owed + query.wanted > amount).filter(|_| wanted),
            reset: until(owed > 0).filter(|_| after > 0).unwrap_or(0),
            outside: false,
        }
    }

    fn charge(&mut self, query: &Query) {
        let Some((start, _, count)) = self.seen(query) else { return };
        // The largest number that a double counts.
        *self = Self { start, count: (count + query.cost).min(1 << 53) };
    }

    fn room(&self, query: &Query) -> Option<i128> {
        let [amount, conditional, .., debt] = query.numbers;
        let (_, _, count) = self.seen(query)?;
        Some(if conditional == 0 { query.cost } else { amount + debt.abs() - count })
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
