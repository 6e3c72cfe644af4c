//! What flows back at a rate. A bucket is measured in ticks: a unit is `period` of them, and `quota` of them flow in each time unit.

use super::{Answer, Asked, Counter, first};

/// A theoretical arrival time: `whole` time units since 1970 and `rest` parts of one in `quota`.
#[derive(Clone, Copy, Default)]
struct Arrival {
    whole: i128,
    rest: i128,
}

impl Arrival {
    /// How far it is ahead of `at`, in ticks. The limit may have been edited since it was written: a rest that is no part any more is rounded up, and
    /// what the limit can't have written in a bucket of `most` ticks is no debt.
    fn debt(self, at: i128, quota: i128, most: i128) -> i128 {
        let ticks = if self.rest < quota { self.whole * quota + self.rest } else { (self.whole + 1) * quota };
        let debt = ticks - at * quota;
        if (0..=most).contains(&debt) { debt } else { 0 }
    }

    fn after(at: i128, debt: i128, quota: i128) -> Self {
        Self { whole: at + debt.div_euclid(quota), rest: debt.rem_euclid(quota) }
    }
}

/// A bucket as one instant.
#[derive(Default)]
pub(super) struct Gcra(Arrival);

impl Counter for Gcra {
    fn ask(&self, asked: &Asked) -> Answer {
        let [quota, period, burst, ..] = asked.numbers;
        let full = burst * period;
        let written = self.0.debt(asked.now, quota, full);
        // What was forgotten now stays forgotten: later instants go on from what is owed now.
        let owed_at = |debt: i128, at: i128| (debt - (at - asked.now) * quota).max(0);
        let fits_at = |at: i128| owed_at(written, at) + asked.ask * period <= full;
        let fits = fits_at(asked.now);
        let after = if fits { written + asked.cost * period } else { written };
        Answer {
            fits,
            remaining: (full - after).div_euclid(period),
            retry: (!fits && asked.ask <= burst).then(|| first(asked.now, fits_at) - asked.now),
            reset: first(asked.now, |at| owed_at(after, at) == 0) - asked.now,
            outside: false,
        }
    }

    fn charge(&mut self, asked: &Asked) {
        let [quota, period, burst, ..] = asked.numbers;
        let debt = self.0.debt(asked.now, quota, burst * period) + asked.cost * period;
        self.0 = Arrival::after(asked.now, debt, quota);
    }

    fn give_back(&mut self, asked: &Asked, taken_at: i128) {
        let [quota, period, burst, ..] = asked.numbers;
        let debt = self.0.debt(asked.now, quota, burst * period);
        let back = not_flowed_back(asked, taken_at);
        if debt > 0 && back > 0 {
            self.0 = Arrival::after(asked.now, (debt - back).max(0), quota);
        }
    }
}

/// Ticks of a take that have not flowed back by themselves; none of a take in the future, where the clock has stepped back.
fn not_flowed_back(asked: &Asked, taken_at: i128) -> i128 {
    let [quota, period, burst, ..] = asked.numbers;
    if taken_at > asked.now { 0 } else { (asked.cost.min(burst) * period - (asked.now - taken_at) * quota).max(0) }
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
        let full = burst * period;
        let level = self.level(asked.now, quota, full);
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

    fn charge(&mut self, asked: &Asked) {
        let [quota, period, burst, ..] = asked.numbers;
        self.0 = Some((self.level(asked.now, quota, burst * period) - asked.cost * period, asked.now));
    }

    fn give_back(&mut self, asked: &Asked, taken_at: i128) {
        let [quota, period, burst, ..] = asked.numbers;
        let full = burst * period;
        let (level, back) = (self.level(asked.now, quota, full), not_flowed_back(asked, taken_at));
        if level < full && back > 0 {
            self.0 = Some(((level + back).min(full), asked.now));
        }
    }
}

/// A bucket whose debt may go beyond the burst: what is beyond it waits.
#[derive(Default)]
pub(super) struct Leaky(Arrival);

impl Leaky {
    fn debt(&self, asked: &Asked) -> i128 {
        let [quota, period, burst, max_delay, ..] = asked.numbers;
        self.0.debt(asked.now, quota, burst * period + max_delay * quota)
    }
}

impl Counter for Leaky {
    fn ask(&self, asked: &Asked) -> Answer {
        let [quota, period, burst, max_delay, may_wait, _] = asked.numbers;
        let debt = self.debt(asked);
        let owed_at = |debt: i128, at: i128| (debt - (at - asked.now) * quota).max(0);
        let passes_at = |at: i128| owed_at(debt, at) + asked.ask * period <= burst * period;
        // It fits when its turn comes within the delay that it may have. A turn can come while others still wait for theirs, so this asks for the debt
        // with its own and not for the instant.
        let most = burst * period + if may_wait == 1 { max_delay * quota } else { 0 };
        let fits_at = |at: i128| owed_at(debt, at) + asked.ask * period <= most;
        let fits = fits_at(asked.now);
        let after = if fits { debt + asked.cost * period } else { debt };
        let turn_at = |at: i128| debt + asked.ask * period - (at - asked.now) * quota <= burst * period;
        Answer {
            fits,
            remaining: (burst * period - after).max(0).div_euclid(period),
            retry: if fits {
                (!passes_at(asked.now)).then(|| first(asked.now, turn_at) - asked.now)
            } else {
                (asked.ask * period <= most).then(|| first(asked.now, fits_at) - asked.now)
            },
            reset: first(asked.now, |at| owed_at(after, at) == 0) - asked.now,
            outside: false,
        }
    }

    fn charge(&mut self, asked: &Asked) {
        let debt = self.debt(asked) + asked.cost * asked.numbers[1];
        self.0 = Arrival::after(asked.now, debt, asked.numbers[0]);
    }

    fn give_back(&mut self, _: &Asked, _: i128) {}
}
