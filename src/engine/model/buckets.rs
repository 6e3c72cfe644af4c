//! What flows back at a rate. A bucket is measured in ticks: a unit is `period` of them, and
//! `quota` of them flow in each time unit.

use super::{Answer, Asked, Counter, first};

/// The instant at which nothing was left: `whole` time units since 1970 and `rest` parts of one in
/// `quota`.
#[derive(Clone, Copy)]
struct Empty {
    whole: i128,
    rest: i128,
}

impl Empty {
    /// What has flowed in until `at`, in ticks, `full` at most; below zero is a queue. The limit
    /// may have been edited since it was written: a rest that is no part any more is rounded up.
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

/// A bucket as one instant; without one it is full.
#[derive(Default)]
pub(super) struct Gcra(Option<Empty>);

impl Gcra {
    fn level(&self, asked: &Asked) -> i128 {
        let [quota, period, burst, ..] = asked.numbers;
        let full = burst * period;
        // An instant in the future: the clock has stepped back.
        self.0
            .map(|empty| empty.level(asked.now, quota, full))
            .filter(|level| *level >= 0)
            .unwrap_or(full)
    }
}

impl Counter for Gcra {
    fn ask(&self, asked: &Asked) -> Answer {
        level_answer(asked, self.level(asked))
    }

    fn charge(&mut self, asked: &Asked) {
        let [quota, period, ..] = asked.numbers;
        self.0 = Some(Empty::of(asked.now, self.level(asked) - asked.cost * period, quota));
    }

    fn give_back(&mut self, asked: &Asked, taken_at: i128) {
        let [quota, period, burst, ..] = asked.numbers;
        let (full, level, back) =
            (burst * period, self.level(asked), not_flowed_back(asked, taken_at));
        if level < full && back > 0 {
            // A full bucket is as good as none.
            self.0 = (level + back < full).then(|| Empty::of(asked.now, level + back, quota));
        }
    }
}

/// What a bucket at `level` answers.
fn level_answer(asked: &Asked, level: i128) -> Answer {
    let [quota, period, burst, ..] = asked.numbers;
    let full = burst * period;
    let level_at = |level: i128, at: i128| (level + (at - asked.now) * quota).min(full);
    let fits_at = |at: i128| asked.ask * period <= level_at(level, at);
    let fits = fits_at(asked.now);
    let after = if fits { level - asked.cost * period } else { level };
    Answer {
        fits,
        remaining: after.div_euclid(period),
        retry: (!fits && asked.ask <= burst).then(|| first(asked.now, fits_at) - asked.now),
        reset: first(asked.now, |at| level_at(after, at) == full) - asked.now,
        outside: false,
    }
}

/// Ticks of a take that have not flowed back by themselves; none of a take in the future, where the
/// clock has stepped back.
fn not_flowed_back(asked: &Asked, taken_at: i128) -> i128 {
    let [quota, period, burst, ..] = asked.numbers;
    if taken_at > asked.now {
        0
    } else {
        (asked.cost.min(burst) * period - (asked.now - taken_at) * quota).max(0)
    }
}

/// A bucket as its level at an instant; without one it is full.
#[derive(Default)]
pub(super) struct Tokens(Option<(i128, i128)>);

impl Tokens {
    fn level(&self, at: i128, quota: i128, full: i128) -> i128 {
        match self.0 {
            Some((level, last)) if last <= at => (level + (at - last) * quota).min(full),
            _ => full,
        }
    }
}

impl Counter for Tokens {
    fn ask(&self, asked: &Asked) -> Answer {
        let [quota, period, burst, ..] = asked.numbers;
        level_answer(asked, self.level(asked.now, quota, burst * period))
    }

    fn charge(&mut self, asked: &Asked) {
        let [quota, period, burst, ..] = asked.numbers;
        self.0 =
            Some((self.level(asked.now, quota, burst * period) - asked.cost * period, asked.now));
    }

    fn give_back(&mut self, asked: &Asked, taken_at: i128) {
        let [quota, period, burst, ..] = asked.numbers;
        let full = burst * period;
        let (level, back) = (self.level(asked.now, quota, full), not_flowed_back(asked, taken_at));
        if level < full && back > 0 {
            self.0 = (level + back < full).then_some((level + back, asked.now));
        }
    }
}

/// A bucket whose level may go below zero: what is below it waits. And when it was written last.
#[derive(Default)]
pub(super) struct Leaky(Option<(Empty, i128)>);

impl Leaky {
    fn level(&self, asked: &Asked) -> i128 {
        let [quota, period, burst, ..] = asked.numbers;
        // Written in the future: the clock has stepped back.
        let known = self.0.filter(|(_, last)| *last <= asked.now);
        known.map_or(burst * period, |(empty, _)| empty.level(asked.now, quota, burst * period))
    }
}

impl Counter for Leaky {
    fn ask(&self, asked: &Asked) -> Answer {
        let [quota, period, burst, max_delay, may_wait, _] = asked.numbers;
        let (full, level) = (burst * period, self.level(asked));
        let level_at = |level: i128, at: i128| (level + (at - asked.now) * quota).min(full);
        // It fits when its turn comes within the delay that it may have.
        let waiting = if may_wait == 1 { max_delay * quota } else { 0 };
        let fits_at = |at: i128| asked.ask * period <= level_at(level, at) + waiting;
        let fits = fits_at(asked.now);
        let after = if fits { level - asked.cost * period } else { level };
        // A turn can come while others still wait for theirs, and what costs more than the burst
        // has one, too.
        let turn_at = |at: i128| asked.ask * period <= level + (at - asked.now) * quota;
        Answer {
            fits,
            remaining: after.max(0).div_euclid(period),
            retry: if fits {
                (!turn_at(asked.now)).then(|| first(asked.now, turn_at) - asked.now)
            } else {
                (asked.ask * period <= full + waiting)
                    .then(|| first(asked.now, fits_at) - asked.now)
            },
            reset: first(asked.now, |at| level_at(after, at) == full) - asked.now,
            outside: false,
        }
    }

    fn charge(&mut self, asked: &Asked) {
        let [quota, period, ..] = asked.numbers;
        self.0 =
            Some((Empty::of(asked.now, self.level(asked) - asked.cost * period, quota), asked.now));
    }

    fn give_back(&mut self, _: &Asked, _: i128) {}
}
