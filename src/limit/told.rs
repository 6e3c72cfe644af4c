//! What a counter holds, in words. Decides nothing: the numbers that a person reads follow the same
//! rules as `lua/`, and are never written back.
//!
//! The shape says what a state means. How much of an allowance is used follows only where the
//! limit's own numbers are known.

use std::time::Duration;

use super::programs::{self, LEASE_IN_MEMORY};
use crate::engine::Content;
use crate::plan::{self, Algorithm, utc_text};

/// Leases whose ends are told, at most.
const LEASES_TOLD_MAX: usize = 10;

/// Time of a counter, in its own unit.
#[derive(Clone, Copy)]
struct Time {
    unit_us: u64,
    now: u64,
}

impl Time {
    /// Of a counter whose period is so long.
    fn of(period_ms: u64, at_us: u64) -> Self {
        let unit_us = if period_ms <= plan::PERIOD_MS_MAX_FOR_MICROSECONDS { 1 } else { 1000 };
        Self { unit_us, now: at_us / unit_us }
    }

    fn units(self, ms: u64) -> u64 {
        ms.saturating_mul(1000 / self.unit_us)
    }

    /// An instant, as a person reads it.
    fn at(self, units: u64) -> String {
        utc_text(i64::try_from(units.saturating_mul(self.unit_us) / 1000).unwrap_or(i64::MAX))
    }

    /// From now until an instant.
    fn until(self, units: u64) -> String {
        self.span(units.saturating_sub(self.now))
    }

    fn span(self, units: u64) -> String {
        let us = units.saturating_mul(self.unit_us);
        format!("{}.{:03} s", us / 1_000_000, us / 1_000 % 1_000)
    }
}

/// The one of `algorithms` whose counters have this shape, where those that have it agree on their
/// numbers.
pub(super) fn of_shape<'a>(
    algorithms: &'a [Algorithm],
    shape: &str,
    lease: Duration,
) -> Option<&'a Algorithm> {
    let mut fitting =
        algorithms.iter().filter(|algorithm| programs::shape(algorithm, lease) == shape);
    let first = fitting.next()?;
    fitting.all(|other| other == first).then_some(first)
}

/// The algorithm's name, and its state in words. `known` is the limit as it is configured, where
/// that is known.
pub(super) fn words(
    shape: &str,
    content: &Content,
    at_us: u64,
    known: Option<&Algorithm>,
) -> Option<(String, String)> {
    let (code, rest) = shape.split_once('-')?;
    let digits = rest.trim_end_matches(|last: char| !last.is_ascii_digit());
    let period_ms = || digits.parse::<u64>().ok();
    let amount = known.and_then(Algorithm::amount);
    let (algorithm, state) = match (code, content) {
        ("fw1", Content::Numbers([start, count, _])) => (
            "fixed_window",
            window(Time::of(period_ms()?, at_us), period_ms()?, [*start, *count], amount),
        ),
        ("sc1", Content::Numbers(numbers)) => (
            "sliding_window_counter",
            two_windows(Time::of(period_ms()?, at_us), period_ms()?, *numbers, amount),
        ),
        ("tb1", Content::Numbers(numbers)) => {
            ("token_bucket", tokens(Time::of(period_ms()?, at_us), *numbers, known))
        }
        ("gcra2", Content::Numbers(numbers)) => {
            ("gcra", flowing(Time::of(period_ms()?, at_us), *numbers, known))
        }
        ("lb1", Content::Numbers(numbers)) => {
            ("leaky_bucket", flowing(Time::of(period_ms()?, at_us), *numbers, known))
        }
        ("sl2", Content::Members(instants)) => (
            "sliding_window_log",
            log(Time::of(period_ms()?, at_us), period_ms()?, instants, amount),
        ),
        ("sb1", Content::Buckets { last, counts }) => {
            let period_ms = rest.split_once('x')?.0.parse().ok()?;
            (
                "sliding_window_buckets",
                ring(Time::of(period_ms, at_us), period_ms, (*last, counts), amount),
            )
        }
        ("cc1", Content::Members(ends)) => {
            let renewed = Duration::from_millis(period_ms()?) < LEASE_IN_MEMORY;
            (
                "concurrency",
                leases(Time { unit_us: 1000, now: at_us / 1000 }, ends, renewed, amount),
            )
        }
        ("q1", Content::Numbers([_, count, _])) if rest == "ever" => {
            ("quota", format!("{}, for ever", used(whole(*count), amount)))
        }
        ("q1", Content::Numbers([start, count, _])) => {
            ("quota", period(Time { unit_us: 1000, now: at_us / 1000 }, [*start, *count], known))
        }
        // Behind the name stands the digest of its text.
        ("script", Content::Numbers(numbers)) => {
            return Some((rest.rsplit_once('-')?.0.to_owned(), format!("the numbers {numbers:?}")));
        }
        _ => return None,
    };
    Some((algorithm.to_owned(), state))
}

/// Numbers of a state that are never below zero.
fn whole(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

fn used(count: u64, of: Option<u64>) -> String {
    of.map_or_else(|| format!("{count} used"), |amount| format!("{count} of {amount} used"))
}

fn window(time: Time, period_ms: u64, [start, count]: [i64; 2], amount: Option<u64>) -> String {
    let (start, ends) = (whole(start), whole(start) + time.units(period_ms));
    let span = format!("the window from {} to {}", time.at(start), time.at(ends));
    if time.now >= ends {
        return format!("{} ({span}, with {count}, is over)", used(0, amount));
    }
    format!("{}, all back in {} ({span})", used(whole(count), amount), time.until(ends))
}

fn two_windows(
    time: Time,
    period_ms: u64,
    [start, current, previous]: [i64; 3],
    amount: Option<u64>,
) -> String {
    let period = time.units(period_ms).max(1);
    let now = time.now - time.now % period;
    let (current, previous) = match whole(start) {
        start if start == now => (whole(current), whole(previous)),
        start if start + period == now => (0, whole(current)),
        _ => (0, 0),
    };
    let ends = now + period;
    let inside = u128::from(previous) * u128::from(ends - time.now);
    let counted = current + u64::try_from(inside.div_ceil(u128::from(period))).unwrap_or(u64::MAX);
    let back = match (current, previous) {
        (0, 0) => String::new(),
        (0, _) => format!(", all back in {}", time.until(ends)),
        _ => format!(", all back in {}", time.until(ends + period)),
    };
    let windows = format!(
        "{current} in the window from {} to {}, {previous} in the one before it",
        time.at(now),
        time.at(ends)
    );
    format!(
        "{}{back} ({windows}, which counts by the share that is still inside)",
        used(counted, amount)
    )
}

/// A bucket's numbers: how many ticks a unit takes, how many come back in a time unit, and how many
/// are a whole burst.
struct Bucket {
    unit: i128,
    back: i128,
    burst: u64,
}

impl Bucket {
    fn of(known: Option<&Algorithm>) -> Option<Self> {
        let algorithm = known?;
        let rate = algorithm.rate().filter(|rate| rate.amount > 0)?;
        Some(Self {
            unit: rate.period_units().into(),
            back: rate.amount.into(),
            burst: algorithm.capacity()?,
        })
    }

    fn full(&self) -> i128 {
        i128::from(self.burst) * self.unit
    }

    /// What a level of ticks means; below zero there is a queue.
    fn told(&self, time: Time, level: i128) -> String {
        let level = level.min(self.full());
        let left = level.div_euclid(self.unit).max(0);
        let spent = self.burst.saturating_sub(u64::try_from(left).unwrap_or(u64::MAX));
        let used = used(spent, Some(self.burst));
        let after = |ticks: i128| {
            time.span(
                u64::try_from((ticks + self.back - 1).div_euclid(self.back)).unwrap_or(u64::MAX),
            )
        };
        let waiting = (-level + self.unit - 1).div_euclid(self.unit).max(0);
        let waiting = if waiting > 0 { format!(" and {waiting} waiting") } else { String::new() };
        let all = after(self.full() - level);
        match spent {
            0 => used,
            1 => format!("{used}{waiting}, back in {all}"),
            _ => format!(
                "{used}{waiting}, 1 back in {}, all in {all}",
                after((left + 1) * self.unit - level)
            ),
        }
    }
}

fn tokens(time: Time, [tokens, rest, last]: [i64; 3], known: Option<&Algorithm>) -> String {
    let Some(bucket) = Bucket::of(known) else {
        return format!(
            "{tokens} tokens left at {}, and what was refilled since",
            time.at(whole(last))
        );
    };
    let elapsed = i128::from(time.now) - i128::from(last);
    // A write in the future: the clock stepped back, and the bucket starts again at full.
    let level = i128::from(tokens) * bucket.unit + i128::from(rest) + elapsed * bucket.back;
    bucket.told(time, if last > 0 && elapsed >= 0 { level } else { bucket.full() })
}

/// `gcra` and `leaky_bucket`: the state is the instant at which nothing was left, or will be.
fn flowing(time: Time, [empty, rest, last]: [i64; 3], known: Option<&Algorithm>) -> String {
    let since = i128::from(time.now) - i128::from(empty);
    let shapes = matches!(known, Some(Algorithm::LeakyBucket { .. }));
    match Bucket::of(known) {
        Some(bucket) => {
            // As each algorithm says it: a `gcra` in the future, or a `leaky_bucket` written there,
            // is full.
            let full = if shapes {
                last <= 0 || i128::from(last) > i128::from(time.now)
            } else {
                since < 0 || (empty == 0 && rest == 0)
            };
            let level = since * bucket.back - i128::from(rest);
            bucket.told(time, if full { bucket.full() } else { level })
        }
        None if since < 0 => {
            format!("nothing left until {}, in {}", time.at(whole(empty)), time.until(whole(empty)))
        }
        None => {
            let ago = time.span(u64::try_from(since).unwrap_or(u64::MAX));
            format!(
                "nothing left at {}, {ago} ago; a burst at most has come back since",
                time.at(whole(empty))
            )
        }
    }
}

fn log(time: Time, period_ms: u64, instants: &[u64], amount: Option<u64>) -> String {
    let period = time.units(period_ms);
    let from = time.now.saturating_sub(period);
    let counted: Vec<u64> = instants
        .iter()
        .copied()
        .filter(|instant| (from + 1..=time.now).contains(instant))
        .collect();
    let used = used(counted.len() as u64, amount);
    match counted.as_slice() {
        [] => used,
        [one] => format!("{used}, back in {}", time.until(one + period)),
        [oldest, .., newest] => format!(
            "{used}, 1 back in {}, all in {}",
            time.until(oldest + period),
            time.until(newest + period)
        ),
    }
}

fn ring(time: Time, period_ms: u64, (last, counts): (u64, &[u32]), amount: Option<u64>) -> String {
    let buckets = counts.len().max(1) as u64;
    let length = time.units(period_ms).div_ceil(buckets).max(1);
    let this = time.now / length;
    let windows = (last.saturating_sub(buckets - 1)..=last)
        .filter(|window| last <= this && window + buckets > this);
    let counted: Vec<(u64, u64)> = windows
        .filter_map(|window| Some((window, u64::from(*counts.get((window % buckets) as usize)?))))
        .filter(|(_, count)| *count > 0)
        .collect();
    let used = used(counted.iter().map(|(_, count)| count).sum(), amount);
    let leaves = |window: u64| time.until((window + buckets) * length);
    match counted.as_slice() {
        [] => used,
        [(one, _)] => format!("{used}, all back in {}", leaves(*one)),
        [(oldest, count), .., (newest, _)] => {
            format!("{used}, {count} back in {}, all in {}", leaves(*oldest), leaves(*newest))
        }
    }
}

/// Those in memory are not renewed.
fn leases(time: Time, ends: &[u64], renewed: bool, amount: Option<u64>) -> String {
    let held: Vec<u64> = ends.iter().copied().filter(|ends| *ends > time.now).collect();
    let told: Vec<String> = held.iter().take(LEASES_TOLD_MAX).map(|ends| time.at(*ends)).collect();
    let more = if held.len() > told.len() { ", ..." } else { "" };
    let used = used(held.len() as u64, amount);
    match held.len() {
        0 => used,
        _ if !renewed => format!("{used}, back when their requests end"),
        _ => format!(
            "{used}, back when their requests end; leases until {}{more} unless they are renewed",
            told.join(", ")
        ),
    }
}

fn period(time: Time, [start, count]: [i64; 2], known: Option<&Algorithm>) -> String {
    let amount = known.and_then(Algorithm::amount);
    let began = utc_text(start);
    if let Some(Algorithm::Quota { calendar, .. }) = known {
        let [_, this, next, _] = calendar.starts(i64::try_from(time.now).unwrap_or(i64::MAX));
        if start < this {
            return format!(
                "{} (the period that began at {began}, with {count}, is over)",
                used(0, amount)
            );
        }
        return format!(
            "{}, all back in {} (the period from {began} to {})",
            used(whole(count), amount),
            time.until(whole(next)),
            utc_text(next)
        );
    }
    format!("{} in the period that began at {began}", used(whole(count), amount))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Alignment, Calendar, Rate, TimeZone};

    const SECOND_US: u64 = 1_000_000;

    fn said(shape: &str, content: &Content, known: Option<&Algorithm>) -> String {
        words(shape, content, 1_000 * SECOND_US, known).unwrap().1
    }

    fn numbers(first: i64, second: i64, third: i64) -> Content {
        Content::Numbers([first, second, third])
    }

    #[test]
    fn each_state_is_told_in_words() {
        let second = SECOND_US as i64;
        for (shape, content, expected) in [
            (
                "fw1-60000c",
                numbers(960 * second, 7, 0),
                "7 used, all back in 20.000 s (the window from 1970-01-01T00:16:00Z to 1970-01-01T00:17:00Z)",
            ),
            (
                "fw1-10000f",
                numbers(960 * second, 7, 0),
                "0 used (the window from 1970-01-01T00:16:00Z to 1970-01-01T00:16:10Z, with 7, is over)",
            ),
            (
                "gcra2-1000",
                numbers(997_500_000, 3, 0),
                "nothing left at 1970-01-01T00:16:37.5Z, 2.500 s ago; a burst at most has come back since",
            ),
            (
                "lb1-1000",
                numbers(1_002_500_000, 3, 1_000_000_000),
                "nothing left until 1970-01-01T00:16:42.5Z, in 2.500 s",
            ),
            (
                "tb1-1000",
                numbers(5, 0, 990 * second),
                "5 tokens left at 1970-01-01T00:16:30Z, and what was refilled since",
            ),
            (
                "sl2-10000",
                Content::Members(vec![1, 990_000_000, 990_000_001, 999_000_000, 1_000_000_001]),
                "2 used, 1 back in 0.000 s, all in 9.000 s",
            ),
            ("sl2-10000", Content::Members(vec![1]), "0 used"),
            // Each sub-window lasts a second: the oldest leaves at the beginning of the fourth
            // after it.
            (
                "sb1-4000x4",
                Content::Buckets { last: 999, counts: vec![1, 2, 4, 8] },
                "14 used, 2 back in 1.000 s, all in 3.000 s",
            ),
            ("sb1-4000x4", Content::Buckets { last: 1_001, counts: vec![1, 2, 4, 8] }, "0 used"),
            (
                "cc1-10000",
                Content::Members(vec![999_999, 1_000_500, 1_001_000]),
                "2 used, back when their requests end; leases until 1970-01-01T00:16:40.5Z, 1970-01-01T00:16:41Z unless they are renewed",
            ),
            (
                "cc1-34560000000",
                Content::Members(vec![34_560_000_000]),
                "1 used, back when their requests end",
            ),
            (
                "q1-d-Europe.Berlin",
                numbers(0, 3, 0),
                "3 used in the period that began at 1970-01-01T00:00:00Z",
            ),
            ("q1-ever", numbers(0, 3, 0), "3 used, for ever"),
            ("script-mi-ne-0123456789abcdef", numbers(1, -2, 3), "the numbers [1, -2, 3]"),
        ] {
            assert_eq!(said(shape, &content, None), expected, "{shape}");
        }
        let counter = said("sc1-60000", &numbers(960 * second, 7, 6), None);
        assert!(
            counter.starts_with("9 used, all back in 80.000 s (7 in the window from ")
                && counter.contains(", 6 in the one before"),
            "{counter}"
        );
        assert_eq!(words("script-mi-ne-01", &numbers(1, 2, 3), 0, None).unwrap().0, "mi-ne");
        assert_eq!(words("fw2-1", &numbers(0, 0, 0), 0, None), None, "of another version");
    }

    #[test]
    #[expect(clippy::too_many_lines, reason = "a table")]
    fn where_the_limit_is_known_it_is_told_how_much_of_it_is_used() {
        let second = SECOND_US as i64;
        let rate = Rate { amount: 3, per_ms: 60_000 };
        let gcra = Algorithm::Gcra { burst: 3, rate };
        let bucket = Algorithm::TokenBucket { burst: 3, rate };
        let leaky = Algorithm::LeakyBucket { burst: 1, rate, max_delay_ms: 60_000 };
        let day = Algorithm::Quota {
            amount: 9,
            calendar: Calendar::Day(TimeZone::utc()),
            conditional: true,
        };
        for (shape, content, known, expected) in [
            // Three at this very instant: one comes back each twenty seconds.
            (
                "gcra2-60000",
                numbers(1_000 * second, 0, 0),
                &gcra,
                "3 of 3 used, 1 back in 20.000 s, all in 60.000 s",
            ),
            (
                "gcra2-60000",
                numbers(990 * second, 0, 0),
                &gcra,
                "3 of 3 used, 1 back in 10.000 s, all in 50.000 s",
            ),
            ("gcra2-60000", numbers(950 * second, 0, 0), &gcra, "1 of 3 used, back in 10.000 s"),
            ("gcra2-60000", numbers(900 * second, 0, 0), &gcra, "0 of 3 used"),
            // The clock stepped back.
            ("gcra2-60000", numbers(1_001 * second, 0, 0), &gcra, "0 of 3 used"),
            (
                "tb1-60000",
                numbers(0, 0, 990 * second),
                &bucket,
                "3 of 3 used, 1 back in 10.000 s, all in 50.000 s",
            ),
            (
                "tb1-60000",
                numbers(2, 30 * second, 1_000 * second),
                &bucket,
                "1 of 3 used, back in 10.000 s",
            ),
            ("tb1-60000", numbers(0, 0, 0), &bucket, "0 of 3 used"),
            (
                "lb1-60000",
                numbers(1_000 * second, 0, 1_000 * second),
                &leaky,
                "1 of 1 used, back in 20.000 s",
            ),
            (
                "lb1-60000",
                numbers(1_040 * second, 0, 1_000 * second),
                &leaky,
                "1 of 1 used and 2 waiting, back in 60.000 s",
            ),
            (
                "fw1-60000c",
                numbers(960 * second, 2, 0),
                &Algorithm::FixedWindow { rate, alignment: Alignment::Clock },
                "2 of 3 used, all back in 20.000 s (the window from 1970-01-01T00:16:00Z to 1970-01-01T00:17:00Z)",
            ),
            (
                "sl2-60000",
                Content::Members(vec![999_000_000]),
                &Algorithm::SlidingWindowLog { rate },
                "1 of 3 used, back in 59.000 s",
            ),
            (
                "cc1-10000",
                Content::Members(vec![]),
                &Algorithm::Concurrency { amount: 4 },
                "0 of 4 used",
            ),
            (
                "q1-d-UTC",
                numbers(0, 4, 0),
                &day,
                "4 of 9 used, all back in 85400.000 s (the period from 1970-01-01T00:00:00Z to 1970-01-02T00:00:00Z)",
            ),
            (
                "q1-d-UTC",
                numbers(-86_400_000, 4, 0),
                &day,
                "0 of 9 used (the period that began at 1969-12-31T00:00:00Z, with 4, is over)",
            ),
        ] {
            assert_eq!(said(shape, &content, Some(known)), expected, "{shape}");
        }
    }

    #[test]
    fn a_limit_is_known_by_its_shape_and_not_where_two_differ() {
        let gcra = |burst, per_ms| Algorithm::Gcra { burst, rate: Rate { amount: 3, per_ms } };
        let lease = Duration::from_secs(10);
        let all =
            [gcra(1, 1_000), gcra(2, 60_000), gcra(2, 60_000), gcra(3, 5_000), gcra(4, 5_000)];
        assert_eq!(of_shape(&all, "gcra2-1000", lease), Some(&all[0]));
        assert_eq!(of_shape(&all, "gcra2-60000", lease), Some(&all[1]));
        assert_eq!(of_shape(&all, "gcra2-5000", lease), None);
        assert_eq!(of_shape(&all, "tb1-1000", lease), None);
    }
}
