//! Windows of time: fixed, sliding by weight, of a calendar.

use std::collections::BTreeMap;

use super::{Answer, Asked, Counter, first};

/// A window of its own, set by its first unit or by the clock.
#[derive(Default)]
pub(super) struct Fixed {
    start: i128,
    count: i128,
}

impl Fixed {
    /// The window that contains `now`: its beginning and what it holds.
    fn seen(&self, asked: &Asked) -> (i128, i128) {
        let [_, period, to_clock, ..] = asked.numbers;
        let now = asked.now;
        if to_clock == 1 {
            let start = now.div_euclid(period) * period;
            // Begun before the clock stepped back over its border.
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
    fn ask(&self, asked: &Asked) -> Answer {
        let [quota, period, ..] = asked.numbers;
        let (start, count) = self.seen(asked);
        let left_of_it = start + period - asked.now;
        let fits = count + asked.ask <= quota;
        let after = if fits { count + asked.cost } else { count };
        Answer {
            fits,
            remaining: (quota - after).max(0),
            retry: (!fits && asked.ask <= quota).then_some(left_of_it),
            reset: if after > 0 { left_of_it } else { 0 },
            outside: false,
        }
    }

    fn charge(&mut self, asked: &Asked) {
        let (start, count) = self.seen(asked);
        *self = Self { start, count: count + asked.cost };
    }

    fn give_back(&mut self, asked: &Asked, taken_at: i128) {
        let window = self.start..self.start + asked.numbers[1];
        if window.contains(&taken_at) && window.contains(&asked.now) && taken_at <= asked.now {
            self.count = (self.count - asked.cost).max(0);
        }
    }
}

/// Units of each window, by its number. Only the present one and the one before it are looked at.
#[derive(Default)]
pub(super) struct Pair {
    units: BTreeMap<i128, i128>,
}

impl Pair {
    /// A window in the future shows that the clock stepped back: then nothing is known.
    fn of(&self, window: i128, this: i128) -> i128 {
        let known = self.units.last_key_value().is_none_or(|(last, _)| *last <= this);
        if known { self.units.get(&window).copied().unwrap_or(0) } else { 0 }
    }

    /// What is free at `now`, in units x period, with `taken` units of the present window charged:
    /// the last window weighs by the share that is still inside.
    fn free(&self, now: i128, quota: i128, period: i128, taken: (i128, i128)) -> i128 {
        let this = now.div_euclid(period);
        let inside = (this + 1) * period - now;
        let of = |window| self.of(window, taken.0) + if window == taken.0 { taken.1 } else { 0 };
        quota * period - of(this) * period - of(this - 1) * inside
    }
}

impl Counter for Pair {
    fn ask(&self, asked: &Asked) -> Answer {
        let [quota, period, ..] = asked.numbers;
        let (now, ask) = (asked.now, asked.ask);
        let this = now.div_euclid(period);
        let free = self.free(now, quota, period, (this, 0));
        let fits = ask * period <= free;
        let taken = (this, if fits { asked.cost } else { 0 });
        let left = self.free(now, quota, period, taken);
        let ends = (this + 1) * period;
        let reset = if self.of(this, this) + if fits { asked.cost } else { 0 } > 0 {
            ends + period - now
        } else if self.of(this - 1, this) > 0 {
            ends - now
        } else {
            0
        };
        let next = if fits { 1 } else { ask };
        let fits_at = |at: i128| next * period <= self.free(at, quota, period, taken);
        let waits = left < next * period && ask <= quota && (!fits || asked.cost > 0);
        Answer {
            fits,
            remaining: left.max(0) / period,
            retry: waits.then(|| first(now, fits_at) - now),
            reset,
            outside: false,
        }
    }

    fn charge(&mut self, asked: &Asked) {
        let this = asked.now.div_euclid(asked.numbers[1]);
        if self.units.last_key_value().is_some_and(|(last, _)| *last > this) {
            self.units.clear();
        }
        *self.units.entry(this).or_default() += asked.cost;
        self.units.retain(|window, _| *window >= this - 1);
    }

    fn give_back(&mut self, asked: &Asked, taken_at: i128) {
        let period = asked.numbers[1];
        let (this, charged) = (asked.now.div_euclid(period), taken_at.div_euclid(period));
        if taken_at > asked.now
            || charged < this - 1
            || self.units.last_key_value().is_some_and(|(last, _)| *last > this)
        {
            return;
        }
        if let Some(units) = self.units.get_mut(&charged) {
            *units = (*units - asked.cost).max(0);
        }
    }
}

/// Units of a calendar's period, or of all time.
#[derive(Default)]
pub(super) struct Quota {
    start: i128,
    count: i128,
}

/// The period among those named that contains `now`: its beginning, and its end where it has one.
fn period(asked: &Asked, now: i128) -> Option<(i128, Option<i128>)> {
    let [_, _, starts @ ..] = asked.numbers;
    if starts == [0; 4] {
        return Some((0, None));
    }
    starts
        .windows(2)
        .find(|pair| (pair[0]..pair[1]).contains(&now))
        .map(|pair| (pair[0], Some(pair[1])))
}

impl Quota {
    /// The period to count in at `now`: the one that contains it, or the next one where that was
    /// begun before the clock stepped back.
    fn period(&self, asked: &Asked) -> Option<(i128, Option<i128>)> {
        let (start, ends) = period(asked, asked.now)?;
        if self.count > 0 && ends == Some(self.start) {
            period(asked, self.start)
        } else {
            Some((start, ends))
        }
    }
}

impl Counter for Quota {
    fn ask(&self, asked: &Asked) -> Answer {
        let [amount, conditional, ..] = asked.numbers;
        let Some((start, ends)) = self.period(asked) else {
            return Answer { fits: false, remaining: 0, retry: None, reset: 0, outside: true };
        };
        let count = if start == self.start { self.count } else { 0 };
        let fits = conditional == 0 || count + asked.ask <= amount;
        let after = if fits { count + asked.cost } else { count };
        let until_the_end = ends.map(|ends| ends - asked.now);
        Answer {
            fits,
            remaining: (amount - after).max(0),
            retry: until_the_end.filter(|_| !fits && asked.ask <= amount),
            reset: until_the_end.filter(|_| after > 0).unwrap_or(0),
            outside: false,
        }
    }

    fn charge(&mut self, asked: &Asked) {
        let Some((start, _)) = self.period(asked) else { return };
        let count = if start == self.start { self.count } else { 0 };
        *self = Self { start, count: count + asked.cost };
    }

    fn give_back(&mut self, asked: &Asked, taken_at: i128) {
        let (Some((now, _)), Some((charged, _))) =
            (period(asked, asked.now), period(asked, taken_at))
        else {
            return;
        };
        if now == charged && self.start == now && taken_at <= asked.now {
            self.count = (self.count - asked.cost).max(0);
        }
    }
}
