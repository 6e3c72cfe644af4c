//! Counters outside requests: finds those of one key again, says in words what they hold, and forgets them. For a person who asks; decides nothing.
//!
//! A counter is found by its scope, limit and key; its shape is not known to whoever asks, so each that is there is told. What the state means follows
//! from the shape alone, as `programs` writes it: quotas and bursts are not in it, and are not told.

use std::sync::Arc;
use std::time::Duration;

use super::keys;
use super::programs::LEASE_IN_MEMORY;
use super::shared::Shared;
use crate::engine::{Content, EngineError, Found, Key, Kind, Space};
use crate::plan::{self, utc_text};

/// Leases whose ends are told, at most.
const LEASES_TOLD_MAX: usize = 10;

/// Which counters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// As [`super::Scope::name_of`] makes it.
    pub scope: String,
    /// The limit's name.
    pub limit: String,
    /// The key, as the policy answered it.
    pub key: String,
    /// The tag, where the policy answered one.
    pub tag: Option<String>,
}

/// A counter that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counter {
    /// The algorithm's name.
    pub algorithm: String,
    /// What gives its state its meaning, as it stands in the counter's name.
    pub shape: String,
    /// What it holds, in words.
    pub state: String,
    /// How long until it may be forgotten; `None`: never.
    pub expires: Option<Duration>,
    /// Its name on Redis.
    pub redis_key: Option<String>,
    key: Key,
}

pub(super) async fn find(shared: &Shared, wanted: &Wanted) -> Result<Vec<Counter>, EngineError> {
    let Wanted { scope, limit, key, tag } = wanted;
    let prefix = keys::space_prefix(scope, limit);
    let digest = |text: &str| shared.digests.of(&[text.as_bytes()]);
    let any = Arc::new(Space { text: String::new(), digest: 0 });
    let key = Key { tag: digest(tag.as_ref().unwrap_or(key)), key: digest(key), space: any };
    let found = shared.engine.find(&key, &prefix, kind).await?;
    let mut told: Vec<Counter> = found.into_iter().filter_map(|found| told(found, prefix.len())).collect();
    // Neither store has an order of its own.
    told.sort_by(|one, other| one.shape.cmp(&other.shape));
    Ok(told)
}

pub(super) async fn forget(shared: &Shared, counter: &Counter) -> Result<(), EngineError> {
    shared.engine.reset(&counter.key).await
}

fn told(found: Found, prefix_bytes: usize) -> Option<Counter> {
    let shape = found.key.space.text.get(prefix_bytes..)?.to_owned();
    let (algorithm, state) = words(&shape, &found.content, found.at_us)?;
    let expires = found.expires_ms.map(Duration::from_millis);
    Some(Counter { algorithm, state, shape, expires, redis_key: found.text, key: found.key })
}

/// What counters of a space are made of; `None` of a shape that this version does not write.
fn kind(space: &str) -> Option<Kind> {
    let shape = space.rsplit('/').next()?;
    let (code, _) = shape.split_once('-')?;
    Some(match code {
        "sl2" => Kind::Log,
        "sb1" => Kind::Buckets,
        "cc1" => Kind::Leases,
        "fw1" | "sc1" | "tb1" | "gcra2" | "lb1" | "q1" | "script" => Kind::Numbers,
        _ => return None,
    })
}

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

/// The algorithm's name, and its state in words.
fn words(shape: &str, content: &Content, at_us: u64) -> Option<(String, String)> {
    let (code, rest) = shape.split_once('-')?;
    let digits = rest.trim_end_matches(|last: char| !last.is_ascii_digit());
    let period_ms = || digits.parse::<u64>().ok();
    let (algorithm, state) = match (code, content) {
        ("fw1", Content::Numbers([start, count, _])) => {
            ("fixed_window", window(Time::of(period_ms()?, at_us), period_ms()?, *start, *count))
        }
        ("sc1", Content::Numbers([start, current, previous])) => {
            let time = Time::of(period_ms()?, at_us);
            let before = format!("; {previous} units in the window before it, which count by the share that is still inside");
            ("sliding_window_counter", window(time, period_ms()?, *start, *current) + &before)
        }
        ("tb1", Content::Numbers([tokens, _, last])) => {
            let at = Time::of(period_ms()?, at_us).at(whole(*last));
            ("token_bucket", format!("{tokens} tokens at {at}, and what was refilled since"))
        }
        ("gcra2", Content::Numbers([empty, ..])) => ("gcra", flowing(Time::of(period_ms()?, at_us), whole(*empty))),
        ("lb1", Content::Numbers([empty, ..])) => ("leaky_bucket", flowing(Time::of(period_ms()?, at_us), whole(*empty))),
        ("sl2", Content::Members(instants)) => ("sliding_window_log", log(Time::of(period_ms()?, at_us), period_ms()?, instants)),
        ("sb1", Content::Buckets { last, counts }) => {
            let period_ms = rest.split_once('x')?.0.parse().ok()?;
            ("sliding_window_buckets", ring(Time::of(period_ms, at_us), period_ms, *last, counts))
        }
        ("cc1", Content::Members(ends)) => {
            let renewed = Duration::from_millis(period_ms()?) < LEASE_IN_MEMORY;
            ("concurrency", leases(Time { unit_us: 1000, now: at_us / 1000 }, ends, renewed))
        }
        ("q1", Content::Numbers([_, count, _])) if rest == "ever" => ("quota", format!("{count} units counted, for ever")),
        ("q1", Content::Numbers([start, count, _])) => {
            let began = utc_text(*start);
            ("quota", format!("{count} units counted in the period that began at {began}"))
        }
        // Behind the name stands the digest of its text.
        ("script", Content::Numbers(numbers)) => return Some((rest.rsplit_once('-')?.0.to_owned(), format!("the numbers {numbers:?}"))),
        _ => return None,
    };
    Some((algorithm.to_owned(), state))
}

/// Numbers of a state are never below zero.
fn whole(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

fn window(time: Time, period_ms: u64, start: i64, count: i64) -> String {
    let (start, ends) = (whole(start), whole(start) + time.units(period_ms));
    if time.now >= ends {
        return format!("{count} units counted in the window from {} to {}, which is over", time.at(start), time.at(ends));
    }
    format!("{count} units counted in the window from {} to {}, which ends in {}", time.at(start), time.at(ends), time.until(ends))
}

fn flowing(time: Time, empty: u64) -> String {
    if empty > time.now {
        return format!("a queue that is empty in {}, at {}", time.until(empty), time.at(empty));
    }
    format!("what has flowed in since {}, {} ago, a burst at most", time.at(empty), time.span(time.now - empty))
}

fn log(time: Time, period_ms: u64, instants: &[u64]) -> String {
    let period = time.units(period_ms);
    let from = time.now.saturating_sub(period);
    let mut counted = instants.iter().filter(|instant| (from + 1..=time.now).contains(*instant));
    let Some(oldest) = counted.next() else { return format!("no units within the last {}", time.span(period)) };
    let (count, newest) = counted.fold((1_u64, oldest), |(count, _), instant| (count + 1, instant));
    format!("{count} units within the last {}, from {} to {}", time.span(period), time.at(*oldest), time.at(*newest))
}

fn ring(time: Time, period_ms: u64, last: u64, counts: &[u32]) -> String {
    let buckets = counts.len().max(1) as u64;
    let length = time.units(period_ms).div_ceil(buckets).max(1);
    let this = time.now / length;
    let windows = (last.saturating_sub(buckets - 1)..=last).filter(|window| last <= this && window + buckets > this);
    let count: u64 = windows.filter_map(|window| counts.get((window % buckets) as usize)).map(|count| u64::from(*count)).sum();
    format!("{count} units in the last {buckets} sub-windows of {}", time.span(length))
}

/// Those in memory are not renewed.
fn leases(time: Time, ends: &[u64], renewed: bool) -> String {
    let held: Vec<u64> = ends.iter().copied().filter(|ends| *ends > time.now).collect();
    let told: Vec<String> = held.iter().take(LEASES_TOLD_MAX).map(|ends| time.at(*ends)).collect();
    let more = if held.len() > told.len() { ", ..." } else { "" };
    match held.len() {
        0 => "no place is held".to_owned(),
        count if !renewed => format!("{count} places held until their requests end"),
        count => format!("{count} places held, unless they are renewed until {}{more}", told.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::programs;
    use super::*;

    const SECOND_US: u64 = 1_000_000;

    fn said(shape: &str, content: &Content) -> String {
        words(shape, content, 1_000 * SECOND_US).unwrap().1
    }

    #[test]
    fn each_state_is_told_in_words() {
        let second = SECOND_US as i64;
        let numbers = |first: i64, second: i64, third: i64| Content::Numbers([first, second, third]);
        for (shape, content, expected) in [
            (
                "fw1-60000c",
                numbers(960 * second, 7, 0),
                "7 units counted in the window from 1970-01-01T00:16:00Z to 1970-01-01T00:17:00Z, which ends in 20.000 s",
            ),
            (
                "fw1-10000f",
                numbers(960 * second, 7, 0),
                "7 units counted in the window from 1970-01-01T00:16:00Z to 1970-01-01T00:16:10Z, which is over",
            ),
            ("gcra2-1000", numbers(997_500_000, 3, 0), "what has flowed in since 1970-01-01T00:16:37.5Z, 2.500 s ago, a burst at most"),
            ("gcra2-86400000", numbers(1_000_000, 3, 0), "what has flowed in since 1970-01-01T00:16:40Z, 0.000 s ago, a burst at most"),
            ("lb1-1000", numbers(1_002_500_000, 3, 1_000_000_000), "a queue that is empty in 2.500 s, at 1970-01-01T00:16:42.5Z"),
            ("tb1-1000", numbers(5, 0, 990 * second), "5 tokens at 1970-01-01T00:16:30Z, and what was refilled since"),
            (
                "sl2-10000",
                Content::Members(vec![1, 990_000_000, 990_000_001, 999_000_000, 1_000_000_001]),
                "2 units within the last 10.000 s, from 1970-01-01T00:16:30Z to 1970-01-01T00:16:39Z",
            ),
            ("sl2-10000", Content::Members(vec![1]), "no units within the last 10.000 s"),
            ("sb1-4000x4", Content::Buckets { last: 999, counts: vec![1, 2, 4, 8] }, "14 units in the last 4 sub-windows of 1.000 s"),
            ("sb1-4000x4", Content::Buckets { last: 1_001, counts: vec![1, 2, 4, 8] }, "0 units in the last 4 sub-windows of 1.000 s"),
            (
                "cc1-10000",
                Content::Members(vec![999_999, 1_000_500, 1_001_000]),
                "2 places held, unless they are renewed until 1970-01-01T00:16:40.5Z, 1970-01-01T00:16:41Z",
            ),
            ("cc1-34560000000", Content::Members(vec![34_560_000_000]), "1 places held until their requests end"),
            ("q1-d-Europe.Berlin", numbers(0, 3, 0), "3 units counted in the period that began at 1970-01-01T00:00:00Z"),
            ("q1-ever", numbers(0, 3, 0), "3 units counted, for ever"),
            ("script-mi-ne-0123456789abcdef", numbers(1, -2, 3), "the numbers [1, -2, 3]"),
        ] {
            assert_eq!(said(shape, &content), expected, "{shape}");
        }
        let counter = said("sc1-60000", &numbers(960 * second, 7, 5));
        assert!(counter.contains("7 units counted") && counter.contains("5 units in the window before it"), "{counter}");
        assert_eq!(words("script-mi-ne-01", &numbers(1, 2, 3), 0).unwrap().0, "mi-ne");
        assert_eq!(words("fw2-1", &numbers(0, 0, 0), 0), None, "of another version");
    }

    #[test]
    fn what_a_counter_is_made_of_is_known_of_each_shape() {
        for (algorithm, program) in programs::samples() {
            let shape = programs::shape(&algorithm, Duration::from_secs(10));
            assert_eq!(kind(&format!("public/limit/{shape}")), Some(program.map_or(Kind::Numbers, |program| program.kind)), "{shape}");
        }
    }
}
