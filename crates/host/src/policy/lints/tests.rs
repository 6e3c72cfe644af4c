//! Lints about limits, and that what is called useless never refuses.

use proptest::prelude::*;

use super::super::listed;
use super::bound::never_refuses;
use super::*;
use crate::plan::{Alignment, Debt, FixedWindow, Gcra, Rate, SlidingWindowLog};

/// The lints about the limits that the configuration lists.
fn of_limits(config: &str) -> Vec<Lint> {
    super::of_limits(&listed::limits(config), config)
}

/// The lints about these limits of client-ip: kind, setting, and what is beside it.
fn lints(limits: &[&str]) -> Vec<(String, String, String)> {
    let limits: Vec<String> = limits.iter().map(|limit| format!("{{{limit}}}")).collect();
    let config = format!(r#"{{"limits": [{}]}}"#, limits.join(","));
    let read = serde_json::from_str::<Value>(&config);
    assert!(read.is_ok(), "{config}");
    let found = of_limits(&config);
    let all = found.into_iter();
    all.map(|lint| (lint.name.into_owned(), lint.setting, lint.beside[0].0.clone())).collect()
}

#[track_caller]
fn one(limits: &[&str], kind: &str, setting: &str, beside: &str) {
    let expected = format!("config.limits{setting}");
    let other = format!("config.limits{beside}");
    let found = lints(limits);
    assert_eq!(
        found
            .iter()
            .map(|(kind, at, by)| (kind.as_str(), at.as_str(), by.as_str()))
            .collect::<Vec<_>>(),
        [(kind, expected.as_str(), other.as_str())]
    );
}

const SECOND: &str =
    r#""name": "second", "algorithm": "fixed_window", "quota": 100, "period": "1s""#;
const MINUTE: &str =
    r#""name": "minute", "algorithm": "fixed_window", "quota": 20, "period": "1m""#;
const BUCKET: &str =
    r#""name": "bucket", "algorithm": "gcra", "quota": 1, "period": "1s", "burst": 10"#;

#[test]
fn a_key_of_a_whole_authorization_field_is_reported() {
    let found = |key: &str| {
        let limit = format!(r#"{{{MINUTE}, "key": "{key}"}}"#);
        let config = format!(r#"{{"key": "{key}", "limits": [{limit}]}}"#);
        let found = of_limits(&config).into_iter();
        found.map(|lint| (lint.name.into_owned(), lint.setting)).collect::<Vec<_>>()
    };
    for key in ["{header.authorization}", "{client_ip}/{header.Authorization}", "{header.cookie}"] {
        let expected = ["config.key", "config.limits[0].key"];
        assert_eq!(
            found(key),
            expected.map(|at| ("spelled-key".to_owned(), at.to_owned())),
            "{key}"
        );
    }
    assert_eq!(found("{bearer}"), []);
    assert_eq!(found("{header.x-authorization}"), []);
}

#[test]
fn a_limit_that_another_one_always_precedes_is_useless() {
    one(&[SECOND, MINUTE], "useless-limit", "[0].quota", "[1].quota");
    one(&[MINUTE, SECOND], "useless-limit", "[1].quota", "[0].quota");
    let hour = r#""name": "hour", "algorithm": "fixed_window", "quota": 3610, "period": "1h""#;
    one(&[BUCKET, hour], "useless-limit", "[1].quota", "[0].burst");
    assert_eq!(lints(&[BUCKET, &hour.replace("3610", "3609")]), []);
    // Of two that are the same, the second.
    let twice = MINUTE.replace("\"minute\"", "\"again\"");
    one(&[MINUTE, &twice], "useless-limit", "[1].quota", "[0].quota");
    let [few, many] =
        [5, 9].map(|n| format!(r#""name": "c{n}", "algorithm": "concurrency", "quota": {n}"#));
    one(&[&many, &few], "useless-limit", "[0].quota", "[1].quota");
    let month = r#""name": "month", "algorithm": "quota", "quota": 9, "calendar": "month""#;
    let forever = month.replace("\"quota\": 9", "\"quota\": 8").replace("month", "forever");
    one(&[month, &forever], "useless-limit", "[0].quota", "[1].quota");
}

#[test]
fn limits_that_each_refuse_something_are_left_alone() {
    let faster = SECOND.replace("100", "39");
    assert_eq!(lints(&[&faster, MINUTE]), [], "two windows' quotas come around a border");
    one(&[&SECOND.replace("100", "40"), MINUTE], "useless-limit", "[0].quota", "[1].quota");
    for other in [
        r#""key": "{path}""#,
        r#""when": {"method": "POST"}"#,
        r#""unless": "10.0.0.0/8""#,
        r#""shadow": true"#,
        r#""cost": 2"#,
        r#""refund": "unsent""#,
        r#""missing": "skip""#,
    ] {
        assert_eq!(lints(&[SECOND, &format!("{MINUTE}, {other}")]), [], "{other}");
    }
    // Messages are counted by the looser one alone.
    let messages = r#""messages": "close""#;
    assert_eq!(lints(&[&format!("{SECOND}, {messages}"), MINUTE]), []);
    one(&[SECOND, &format!("{MINUTE}, {messages}")], "useless-limit", "[0].quota", "[1].quota");
    // The looser one may be for some requests only, or count only.
    for own in [
        r#""when": {"method": "POST"}"#,
        r#""unless": "10.0.0.0/8""#,
        r#""shadow": true"#,
        r#""refund": "unsent""#,
    ] {
        let loose = format!("{SECOND}, {own}");
        one(&[&loose, MINUTE], "useless-limit", "[0].quota", "[1].quota");
    }
    // A limit that refuses everything is meant to.
    assert_eq!(lints(&[SECOND, &MINUTE.replace("20", "0")]), []);
    let counts =
        r#""name": "q", "algorithm": "quota", "quota": 1, "calendar": "day", "conditional": false"#;
    assert_eq!(lints(&[counts, SECOND]), []);
    // Other lists are for other clients.
    let config = format!(r#"{{"plans": {{"free": [{{{MINUTE}}}], "gold": [{{{SECOND}}}]}}}}"#);
    assert_eq!(of_limits(&config), []);
}

#[test]
fn a_burst_that_a_window_never_lets_come_is_reported() {
    let bucket = |burst: &str| {
        format!(r#""name": "bucket", "algorithm": "gcra", "quota": 9, "period": "1s"{burst}"#)
    };
    let burst = bucket(r#", "burst": 30"#);
    one(&[MINUTE, &burst], "unreached-burst", "[1].burst", "[0].quota");
    assert_eq!(lints(&[MINUTE, &bucket(r#", "burst": 20"#)]), []);
    assert_eq!(lints(&[MINUTE, &bucket("")]), [], "nobody wrote this burst");
    // Within seconds such a burst does come.
    let second = SECOND.replace("100", "20");
    assert_eq!(lints(&[&second, &bucket(r#", "burst": 50"#)]), []);
    let found = of_limits(&format!(r#"{{"limits": [{{{MINUTE}}}, {{{burst}}}]}}"#));
    assert_eq!(
        found[0].text,
        "a burst of 30 can never pass at once: `minute` has the same key and lets 20 in 1m through"
    );
}

/// A naive limit: whether it admits one unit at a time in milliseconds, and that it did.
enum NaiveLimit {
    /// Quota, period, and the windows' begin; by the clock if the last is true.
    Fixed(u64, u64, Option<u64>, bool, u64),
    /// Quota, period, and what was admitted.
    Log(u64, u64, Vec<u64>),
    /// Burst, quota, period, and how full it is, in units times the period.
    Bucket(u64, u64, u64, u64, u64),
}

impl NaiveLimit {
    fn of(algorithm: &Algorithm) -> Self {
        match algorithm {
            Algorithm::FixedWindow(it) => {
                let by_clock = it.alignment == Alignment::Clock;
                Self::Fixed(it.rate.amount, it.rate.per_ms, None, by_clock, 0)
            }
            Algorithm::SlidingWindowLog(it) => {
                Self::Log(it.rate.amount, it.rate.per_ms, Vec::new())
            }
            Algorithm::Gcra(it) => Self::Bucket(it.burst, it.rate.amount, it.rate.per_ms, 0, 0),
            other => panic!("{other:?}"),
        }
    }

    fn fits(&mut self, now: u64) -> bool {
        match self {
            Self::Fixed(quota, period, begin, by_clock, used) => {
                let over = begin.is_none_or(|begin| now >= begin + *period);
                if over {
                    *used = 0;
                    *begin = if *by_clock { Some(now - now % *period) } else { None };
                }
                *used < *quota
            }
            Self::Log(quota, period, all) => {
                all.retain(|at| at + *period > now);
                (all.len() as u64) < *quota
            }
            Self::Bucket(burst, quota, period, level, last) => {
                *level = level.saturating_sub((now - *last) * *quota);
                *last = now;
                *level + *period <= *burst * *period
            }
        }
    }

    fn charge(&mut self, now: u64) {
        match self {
            Self::Fixed(_, _, begin, _, used) => {
                begin.get_or_insert(now);
                *used += 1;
            }
            Self::Log(_, _, all) => all.push(now),
            Self::Bucket(_, _, period, level, _) => *level += *period,
        }
    }
}

fn algorithms() -> impl Strategy<Value = Algorithm> {
    let period = prop::sample::select(vec![10_u64, 20, 30, 40, 100]);
    (1_u64..12, period, 0_u8..4, 1_u64..12).prop_map(|(amount, per_ms, kind, burst)| {
        let (rate, debt) = (Rate { amount, per_ms }, Debt::None);
        match kind {
            0 => {
                let alignment = Alignment::Clock;
                Algorithm::FixedWindow(FixedWindow { rate, alignment, debt })
            }
            1 => {
                let alignment = Alignment::FirstRequest;
                Algorithm::FixedWindow(FixedWindow { rate, alignment, debt })
            }
            2 => Algorithm::SlidingWindowLog(SlidingWindowLog { rate, debt }),
            _ => Algorithm::Gcra(Gcra { burst, rate, debt }),
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(5_000))]
    #[test]
    fn a_useless_limit_never_refuses(
        loose in algorithms(),
        strict in algorithms(),
        steps in prop::collection::vec(prop::sample::select(vec![0_u64, 0, 0, 0, 1, 5, 9, 10, 11, 35]), 200),
    ) {
        if !never_refuses(&loose, &strict, true) {
            return Ok(());
        }
        let (mut first, mut second) = (NaiveLimit::of(&strict), NaiveLimit::of(&loose));
        let mut now = 1_000;
        for step in steps {
            now += step;
            if first.fits(now) {
                prop_assert!(second.fits(now), "{:?} refuses what {:?} lets through", loose, strict);
                first.charge(now);
                second.charge(now);
            }
        }
    }
}
