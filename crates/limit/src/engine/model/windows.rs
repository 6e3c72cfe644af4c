//! Windows of time: fixed, sliding by weight, of a calendar.

use std::collections::BTreeMap;

use super::{Answer, Counter, Query, first};

/// A single window, started by its first unit or by the clock.
#[derive(Clone, Copy, Default)]
pub(super) struct Fixed {
    start: i128,
    count: i128,
    /// Units that charges took beyond the quota, to be paid by the next windows.
    owing: i128,
}

impl Fixed {
    /// The window that contains `now`. Each window that has ended hands what is owed of the units
    /// that it could not hold to the next one.
    fn seen(self, query: &Query, now: i128) -> Self {
        let [quota, period, to_clock, ..] = query.numbers;
        let start = if to_clock == 1 { now.div_euclid(period) * period } else { now };
        let new = Self { start, ..Self::default() };
        let mut window = self;
        // Started before the clock stepped back over its border.
        if window.count > 0 && to_clock == 1 && window.start == start + period {
            return window;
        }
        if window.start > now {
            return new;
        }
        let ended = (now - window.start).div_euclid(period);
        if window.count > 0 && ended > 0 {
            // The first one after it gets all that is owed, at most what 2^51 time units can pay,
            // and each pays a quota.
            let owed = (window.count - quota).min(window.owing).min((1 << 51) / period * quota);
            let carried = (owed.max(0) - (ended - 1) * quota).max(0);
            let start = window.start + ended * period;
            window = Self { start, count: carried, owing: carried };
        }
        if window.count > 0 { window } else { new }
    }
}

impl Counter for Fixed {
    fn decide(&self, query: &Query) -> Answer {
        let [quota, ..] = query.numbers;
        let now = query.now;
        let seen = self.seen(query, now);
        let fits = seen.count + query.wanted <= quota;
        let after = Self { count: seen.count + if fits { query.cost } else { 0 }, ..seen };
        let fits_at = |at| after.seen(query, at).count + query.wanted <= quota;
        Answer {
            fits,
            remaining: (quota - after.count).max(0),
            retry: (!fits && query.wanted <= quota).then(|| first(now, fits_at) - now),
            reset: first(now, |at| after.seen(query, at).count == 0) - now,
            outside: false,
        }
    }

    fn charge(&mut self, query: &Query) {
        let seen = self.seen(query, query.now);
        *self = Self { count: seen.count + query.cost, owing: 0, ..seen };
    }

    fn owe(&mut self, query: &Query) {
        let [quota, _, _, debt, ..] = query.numbers;
        let seen = self.seen(query, query.now);
        let count = seen.count + query.cost;
        let owing = if debt > 0 { seen.owing.max(count - quota) } else { seen.owing };
        *self = Self { count, owing, ..seen };
    }

    fn room(&self, query: &Query) -> Option<i128> {
        let [quota, _, _, debt, ..] = query.numbers;
        Some(quota + debt.abs() - self.seen(query, query.now).count)
    }

    fn give_back(&mut self, query: &Query, taken_at: i128) {
        let window = self.start..self.start + query.numbers[1];
        if window.contains(&taken_at) && window.contains(&query.now) && taken_at <= query.now {
            self.count = (self.count - query.cost).max(0);
        }
    }
}

/// Units of each window, by its number. Only the current one and the previous one count.
#[derive(Clone, Default)]
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
#[derive(Clone, Default)]
pub(super) struct Quota {
    start: i128,
    count: i128,
    /// Units that charges took beyond the amount, to be paid by the next period.
    owing: i128,
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

/// The end of the period after one from `start` to `ends`; as long as that one if it is not named,
/// as when the clock stepped back.
fn second_end(query: &Query, start: i128, ends: i128) -> i128 {
    let (_, named_ends) = period(query, ends).unwrap_or((0, None));
    named_ends.unwrap_or(2 * ends - start)
}

impl Quota {
    /// The period to count in at `now`, with its end if it has one. It is the one that contains
    /// `now`, or the next one if that was started before the clock stepped back. A period hands
    /// what is owed of the units that it could not hold to the next one. `None` if the periods that
    /// were named don't cover it.
    fn seen(&self, query: &Query) -> Option<(Self, Option<i128>)> {
        let [amount, _, _, this, next, ..] = query.numbers;
        let (mut start, mut ends) = period(query, query.now)?;
        if self.count > 0 && ends == Some(self.start) {
            (start, ends) = period(query, self.start)?;
        }
        if self.start == start {
            return Some((Self { ..*self }, ends));
        }
        let owed = (self.count - amount).min(self.owing).max(0);
        let new = |owed| Some((Self { start, count: owed, owing: owed }, ends));
        if owed == 0 || self.start > start {
            return new(0);
        }
        // Only the first period named has an unknown predecessor. It may have been up to half as
        // long again.
        if start != this && start != next {
            let may_follow = 2 * (start - self.start) <= 3 * (this - start);
            return if may_follow { None } else { new(0) };
        }
        let followed = period(query, self.start).and_then(|(_, ends)| ends) == Some(start);
        new(if followed { owed } else { 0 })
    }
}

impl Counter for Quota {
    fn decide(&self, query: &Query) -> Answer {
        let [amount, conditional, _, _, next, ..] = query.numbers;
        let outside = Answer { fits: false, remaining: 0, retry: None, reset: 0, outside: true };
        let Some((seen, ends)) = self.seen(query) else { return outside };
        let fits = conditional == 0 || seen.count + query.wanted <= amount;
        let after = if fits { seen.count + query.cost } else { seen.count };
        let owed = (after - amount).min(seen.owing).max(0);
        // It is paid by the period after the last one that is named.
        if owed > 0 && ends.is_some() && query.now >= next {
            return outside;
        }
        // At the end of this period, or of the next one.
        let until = |second: bool| {
            let ends = ends?;
            Some(if second { second_end(query, seen.start, ends) } else { ends } - query.now)
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
        let Some((seen, _)) = self.seen(query) else { return };
        // The largest number that a double counts.
        *self = Self { count: (seen.count + query.cost).min(1 << 53), ..seen };
    }

    fn owe(&mut self, query: &Query) {
        let [amount, conditional, .., debt] = query.numbers;
        self.charge(query);
        if conditional == 1 && debt > 0 {
            self.owing = self.owing.max(self.count - amount);
        }
    }

    fn room(&self, query: &Query) -> Option<i128> {
        let [amount, conditional, .., debt] = query.numbers;
        let (seen, _) = self.seen(query)?;
        Some(if conditional == 0 { query.cost } else { amount + debt.abs() - seen.count })
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
