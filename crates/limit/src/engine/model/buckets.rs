//! Algorithms whose units come back at a rate. A bucket is measured in ticks: a unit is `period`
//! ticks, and each time unit brings `quota` ticks.

use super::{Answer, Counter, Query, first};

/// The instant at which nothing was left: `whole` time units since 1970 and `rest` parts of one in
/// `quota`.
#[derive(Clone, Copy)]
struct Empty {
    whole: i128,
    rest: i128,
}

impl Empty {
    /// The level at `at` in ticks, at most `full`; below zero is a queue. If the limit was edited
    /// since the last write, a remainder that is out of range is rounded up.
    fn level(self, at: i128, quota: i128, full: i128) -> i128 {
        let ticks = if self.rest < quota {
            self.whole * quota + self.rest
        } else {
            (self.whole + 1) * quota
        };
        (at * quota - ticks).min(full)
    }

    fn of(at: i128, level: i128, quota: i128) -> Self {
        let ticks = at * quota - level;
        Self { whole: ticks.div_euclid(quota), rest: ticks.rem_euclid(quota) }
    }
}

/// The most ticks that a bucket may lack. Only one that was edited while it was in debt could lack
/// more.
const LACKING_MAX: i128 = 1 << 52;

/// A bucket stored as one instant, and the instant of the last write; without them it is full.
#[derive(Clone, Default)]
pub(super) struct Gcra(Option<(Empty, i128)>);

impl Gcra {
    fn level(&self, query: &Query) -> i128 {
        let [quota, period, burst, ..] = query.numbers;
        let full = burst * period;
        // Written in the future: the clock has stepped back.
        self.0
            .filter(|(_, last)| *last <= query.now)
            .map_or(full, |(empty, _)| empty.level(query.now, quota, full).max(full - LACKING_MAX))
    }
}

impl Counter for Gcra {
    fn decide(&self, query: &Query) -> Answer {
        level_answer(query, self.level(query))
    }

    fn charge(&mut self, query: &Query) {
        let [quota, period, ..] = query.numbers;
        let empty = Empty::of(query.now, self.level(query) - query.cost * period, quota);
        self.0 = Some((empty, query.now));
    }

    fn room(&self, query: &Query) -> Option<i128> {
        Some(room(query, self.level(query)))
    }

    fn give_back(&mut self, query: &Query, taken_at: i128) {
        let [quota, period, burst, ..] = query.numbers;
        let (full, level, back) = (burst * period, self.level(query), outstanding(query, taken_at));
        if level < full && back > 0 {
            // A full bucket is equivalent to none.
            let empty = (level + back < full).then(|| Empty::of(query.now, level + back, quota));
            self.0 = empty.map(|empty| (empty, query.now));
        }
    }
}

/// The answer of a bucket at `level`.
fn level_answer(query: &Query, level: i128) -> Answer {
    let [quota, period, burst, ..] = query.numbers;
    let full = burst * period;
    let level_at = |level: i128, at: i128| (level + (at - query.now) * quota).min(full);
    let fits_at = |at: i128| query.wanted * period <= level_at(level, at);
    let fits = fits_at(query.now);
    let after = if fits { level - query.cost * period } else { level };
    Answer {
        fits,
        remaining: after.max(0).div_euclid(period),
        retry: (!fits && query.wanted <= burst).then(|| first(query.now, fits_at) - query.now),
        reset: first(query.now, |at| level_at(after, at) == full) - query.now,
        outside: false,
    }
}

/// The whole units between `level` and the largest debt.
fn room(query: &Query, level: i128) -> i128 {
    let [_, period, _, debt, ..] = query.numbers;
    (level + debt * period).div_euclid(period)
}

/// The ticks of a take that have not come back by themselves; none if the take is in the future,
/// because the clock stepped back.
fn outstanding(query: &Query, taken_at: i128) -> i128 {
    let [quota, period, burst, ..] = query.numbers;
    if taken_at > query.now {
        0
    } else {
        (query.cost.min(burst) * period - (query.now - taken_at) * quota).max(0)
    }
}

/// A bucket stored as its level at an instant; without one it is full.
#[derive(Clone, Default)]
pub(super) struct Tokens(Option<(i128, i128)>);

impl Tokens {
    fn level(&self, at: i128, quota: i128, full: i128) -> i128 {
        match self.0 {
            Some((level, last)) if last <= at => {
                (level + (at - last) * quota).min(full).max(full - LACKING_MAX)
            }
            _ => full,
        }
    }
}

impl Counter for Tokens {
    fn decide(&self, query: &Query) -> Answer {
        let [quota, period, burst, ..] = query.numbers;
        level_answer(query, self.level(query.now, quota, burst * period))
    }

    fn charge(&mut self, query: &Query) {
        let [quota, period, burst, ..] = query.numbers;
        self.0 =
            Some((self.level(query.now, quota, burst * period) - query.cost * period, query.now));
    }

    fn room(&self, query: &Query) -> Option<i128> {
        let [quota, period, burst, ..] = query.numbers;
        Some(room(query, self.level(query.now, quota, burst * period)))
    }

    fn give_back(&mut self, query: &Query, taken_at: i128) {
        let [quota, period, burst, ..] = query.numbers;
        let full = burst * period;
        let (level, back) = (self.level(query.now, quota, full), outstanding(query, taken_at));
        if level < full && back > 0 {
            self.0 = (level + back < full).then_some((level + back, query.now));
        }
    }
}

/// A bucket whose level may go below zero, where requests wait, and the instant of the last write.
#[derive(Clone, Default)]
pub(super) struct Leaky(Option<(Empty, i128)>);

impl Leaky {
    fn level(&self, query: &Query) -> i128 {
        let [quota, period, burst, ..] = query.numbers;
        // Written in the future: the clock has stepped back.
        let known = self.0.filter(|(_, last)| *last <= query.now);
        known.map_or(burst * period, |(empty, _)| empty.level(query.now, quota, burst * period))
    }
}

impl Counter for Leaky {
    fn decide(&self, query: &Query) -> Answer {
        let [quota, period, burst, max_delay, may_wait, ..] = query.numbers;
        let (full, level) = (burst * period, self.level(query));
        let level_at = |level: i128, at: i128| (level + (at - query.now) * quota).min(full);
        // It fits if its turn comes within the delay that it may have.
        let waiting = if may_wait == 1 { max_delay * quota } else { 0 };
        let fits_at = |at: i128| query.wanted * period <= level_at(level, at) + waiting;
        let fits = fits_at(query.now);
        let after = if fits { level - query.cost * period } else { level };
        // Its turn may come while others still wait for theirs, and a cost above the burst gets a
        // turn, too.
        let turn_at = |at: i128| query.wanted * period <= level + (at - query.now) * quota;
        Answer {
            fits,
            remaining: after.max(0).div_euclid(period),
            retry: if fits {
                (!turn_at(query.now)).then(|| first(query.now, turn_at) - query.now)
            } else {
                (query.wanted * period <= full + waiting)
                    .then(|| first(query.now, fits_at) - query.now)
            },
            reset: first(query.now, |at| level_at(after, at) == full) - query.now,
            outside: false,
        }
    }

    fn charge(&mut self, query: &Query) {
        let [quota, period, ..] = query.numbers;
        self.0 =
            Some((Empty::of(query.now, self.level(query) - query.cost * period, quota), query.now));
    }

    fn room(&self, _: &Query) -> Option<i128> {
        panic!("a turn can't be owed");
    }

    fn give_back(&mut self, _: &Query, _: i128) {}
}
