//! Each algorithm's settings: keys, defaults, ranges, and the text of each mistake.

use super::super::tests::{mistakes, one, read};
use super::types::Algorithm;
use super::{
    Bucket, FixedWindow, LeakyBucket, MEMBERS_MAX, Quota, Rate, Script, SlidingBuckets, types,
};
use crate::Facts;

fn charged(fields: &str) -> Algorithm {
    read(&one(fields)).charge("", &Facts::new(&[])).unwrap().remove(0).algorithm
}

#[test]
fn each_algorithm_is_read_with_its_numbers_and_defaults() {
    let rate = || Rate { amount: 6, per_ms: 1_000 };
    let quota = |calendar, time_zone: &str, anchor_day, conditional| {
        Algorithm::Quota(Quota {
            amount: 6,
            calendar,
            time_zone: time_zone.to_owned(),
            anchor_day,
            conditional,
        })
    };
    for (algorithm, more, expected) in [
        (
            "fixed_window",
            "",
            Algorithm::FixedWindow(FixedWindow {
                rate: rate(),
                alignment: types::Alignment::FirstRequest,
            }),
        ),
        ("sliding_window_counter", "", Algorithm::SlidingWindowCounter(rate())),
        ("sliding_window_log", "", Algorithm::SlidingWindowLog(rate())),
        (
            "sliding_window_buckets",
            "",
            Algorithm::SlidingWindowBuckets(SlidingBuckets { rate: rate(), buckets: 60 }),
        ),
        (
            "sliding_window_buckets",
            r#", "buckets": 1000"#,
            Algorithm::SlidingWindowBuckets(SlidingBuckets { rate: rate(), buckets: 1_000 }),
        ),
        ("token_bucket", "", Algorithm::TokenBucket(Bucket { burst: 6, rate: rate() })),
        ("gcra", r#", "burst": 9"#, Algorithm::Gcra(Bucket { burst: 9, rate: rate() })),
        (
            "leaky_bucket",
            r#", "max_delay": "500ms""#,
            Algorithm::LeakyBucket(LeakyBucket { burst: 1, rate: rate(), max_delay_ms: 500 }),
        ),
        (
            "leaky_bucket",
            r#", "burst": 9, "max_delay": "0s""#,
            Algorithm::LeakyBucket(LeakyBucket { burst: 9, rate: rate(), max_delay_ms: 0 }),
        ),
    ] {
        let found =
            charged(&format!(r#""algorithm": "{algorithm}", "quota": 6, "period": "1s"{more}"#));
        assert_eq!(format!("{found:?}"), format!("{expected:?}"));
    }
    for (fields, expected) in [
        (r#""algorithm": "concurrency""#, Algorithm::Concurrency(6)),
        (
            r#""algorithm": "quota", "calendar": "forever""#,
            quota(types::Calendar::Forever, "UTC", 1, true),
        ),
        (
            r#""algorithm": "quota", "calendar": "hour""#,
            quota(types::Calendar::Hour, "UTC", 1, true),
        ),
        (
            r#""algorithm": "quota", "calendar": "month", "time_zone": "Europe/Berlin", "anchor_day": 31, "conditional": false"#,
            quota(types::Calendar::Month, "Europe/Berlin", 31, false),
        ),
    ] {
        assert_eq!(
            format!("{:?}", charged(&format!(r#"{fields}, "quota": 6"#))),
            format!("{expected:?}")
        );
    }
}

#[test]
fn a_key_of_another_algorithm_is_said_to_be_one() {
    for (algorithm, key, value, only) in [
        ("fixed_window", "burst", "2", "token_bucket, gcra and leaky_bucket"),
        ("gcra", "alignment", "\"clock\"", "fixed_window"),
        ("sliding_window_log", "buckets", "5", "sliding_window_buckets"),
        ("gcra", "max_delay", "\"1s\"", "leaky_bucket"),
        ("token_bucket", "time_zone", "\"UTC\"", "quota"),
        ("gcra", "calendar", "\"day\"", "quota"),
        ("gcra", "conditional", "true", "quota"),
        ("fixed_window", "anchor_day", "3", "quota"),
    ] {
        let expected = format!(
            "limits[0].{key}: found {value}, expected nothing: `{key}` does not belong to {algorithm}, only to {only}"
        );
        assert_eq!(
            mistakes(&one(&format!(
                r#""algorithm": "{algorithm}", "quota": 1, "period": "1s", "{key}": {value}"#
            ))),
            [expected]
        );
    }
    for algorithm in ["concurrency", r#"quota", "calendar": "day"#] {
        let found = mistakes(&one(&format!(
            r#""algorithm": "{algorithm}", "quota": 1, "period": "1m", "burst": 2"#
        )));
        assert_eq!(found.len(), 2, "{found:#?}");
        assert!(found[0].starts_with("limits[0].burst: found 2, expected nothing"), "{found:#?}");
        assert!(found[1].ends_with(", only to algorithms with a rate"), "{found:#?}");
    }
}

#[test]
fn a_script_is_named_with_its_numbers() {
    for (fields, arguments) in
        [("", vec![]), (r#", "arguments": [100, -60000000]"#, vec![100, -60_000_000])]
    {
        let expected = Algorithm::Script(Script { name: "mine".into(), arguments });
        let found = charged(&format!(r#""algorithm": "script", "script": "mine"{fields}"#));
        assert_eq!(format!("{found:?}"), format!("{expected:?}"));
    }
    for (fields, expected) in [
        ("", "limits[0]: found no `script`, expected the name of a script, such as"),
        (
            r#", "script": "a/b""#,
            "limits[0].script: found \"a/b\", expected the name of a script, without `.lua`",
        ),
        (
            r#", "script": "a", "arguments": [1, 2, 3, 4, 5, 6, 7]"#,
            "limits[0].arguments: found 7 numbers, expected at most 6",
        ),
        (
            r#", "script": "a", "arguments": [9007199254740993]"#,
            "limits[0].arguments: found 9007199254740993, expected whole numbers",
        ),
        (
            r#", "script": "a", "arguments": [1.5]"#,
            "limits[0].arguments[0]: found 1.5, expected a whole number",
        ),
        (
            r#", "script": "a", "quota": 5"#,
            "limits[0].quota: found 5, expected nothing: `quota` does not belong to script, only to Weir's",
        ),
        (
            r#", "script": "a", "cost": 4503599627370497"#,
            "limits[0].cost: found 4503599627370497, expected 0 to",
        ),
    ] {
        let found = mistakes(&one(&format!(r#""algorithm": "script"{fields}"#)));
        assert!(
            found.first().is_some_and(|first| first.starts_with(expected)),
            "{fields}: {found:#?}"
        );
    }
}

#[test]
fn missing_settings_of_an_algorithm_are_named() {
    for (fields, expected) in [
        (
            r#""algorithm": "concurrency""#,
            "found no `quota`, expected how many requests may be in flight, such as `quota = 10`",
        ),
        (
            r#""algorithm": "quota", "quota": 1"#,
            "found no `calendar`, expected one of `hour`, `day`, `week`, `month`, `forever`",
        ),
        (
            r#""algorithm": "sliding_window_log", "quota": 1"#,
            "found no `period`, expected a duration, such as `period = \"1m\"`",
        ),
        (
            r#""algorithm": "leaky_bucket", "quota": 1, "period": "1s""#,
            "found no `max_delay`, expected the longest that a request may wait, such as `max_delay = \"500ms\"`",
        ),
    ] {
        assert_eq!(mistakes(&one(fields)), [format!("limits[0]: {expected}")]);
    }
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn each_range_is_held() {
    let leaky = r#""algorithm": "leaky_bucket", "period": "1s""#;
    for (fields, expected) in [
        (
            r#""algorithm": "sliding_window_log", "quota": 10001, "period": "1s""#,
            "quota: found 10001, expected at most 10000: a log",
        ),
        (
            r#""algorithm": "sliding_window_log", "quota": 0, "period": "1s", "cost": 10001"#,
            "cost: found 10001, expected at most 10000: each",
        ),
        (
            r#""algorithm": "concurrency", "quota": 20000, "cost": 10001"#,
            "cost: found 10001, expected at most 10000: each",
        ),
        (
            r#""algorithm": "concurrency", "quota": 4503599627370497"#,
            "quota: found 4503599627370497, expected 0 to 4503599627370496",
        ),
        (
            r#""algorithm": "concurrency", "quota": 2, "cost": 3"#,
            "cost: found 3, expected at most the quota, 2: such",
        ),
        (
            r#""algorithm": "sliding_window_buckets", "quota": 1, "period": "1s", "buckets": 0"#,
            "buckets: found 0, expected 1 to 1000",
        ),
        (
            r#""algorithm": "sliding_window_buckets", "quota": 1, "period": "1s", "buckets": 1001"#,
            "buckets: found 1001, expected 1 to",
        ),
        (
            r#""algorithm": "quota", "quota": 1, "calendar": "yer""#,
            "calendar: found the unknown word `yer`, expected one of `hour`",
        ),
        (
            r#""algorithm": "quota", "quota": 1, "calendar": "day", "time_zone": """#,
            "time_zone: found \"\", expected a name of the IANA",
        ),
        (
            r#""algorithm": "quota", "quota": 1, "calendar": "day", "time_zone": "a b""#,
            "time_zone: found \"a b\", expected a name",
        ),
        (
            r#""algorithm": "quota", "quota": 1, "calendar": "forever", "time_zone": "UTC""#,
            "time_zone: found \"UTC\", expected nothing",
        ),
        (
            r#""algorithm": "quota", "quota": 1, "calendar": "month", "anchor_day": 32"#,
            "anchor_day: found 32, expected 1 to 31",
        ),
        (
            r#""algorithm": "quota", "quota": 1, "calendar": "month", "anchor_day": 0"#,
            "anchor_day: found 0, expected 1 to 31",
        ),
        (
            r#""algorithm": "quota", "quota": 1, "calendar": "week", "anchor_day": 2"#,
            "anchor_day: found 2, expected nothing: only a",
        ),
        (
            r#""algorithm": "quota", "quota": 1, "calendar": "day", "cost": 2"#,
            "cost: found 2, expected at most the quota, 1: such",
        ),
        (
            &format!(r#"{leaky}, "quota": 10, "max_delay": "401d""#),
            "max_delay: found \"401d\", expected a duration from \"0ms\" to \"400d\"",
        ),
        (
            &format!(r#"{leaky}, "quota": 1000003, "max_delay": "9h""#),
            "max_delay: found \"9h\", expected \"0ms\" to \"4503586ms\" with this quota, burst and a period of \"1s\"",
        ),
        (
            &format!(r#"{leaky}, "quota": 10, "max_delay": "1s", "debt": 5"#),
            "debt: found 5, expected nothing: `debt` does not belong to leaky_bucket, only to fixed_window, quota, sliding windows, token_bucket and gcra",
        ),
        (
            r#""algorithm": "gcra", "quota": 10, "period": "1s", "debt": "some""#,
            "debt: found \"some\", expected units such as `debt = 500`, \"allowance\" or \"window\"",
        ),
        (
            r#""algorithm": "gcra", "quota": 10, "period": "1s", "debt": -5"#,
            "debt: found -5, expected units such as",
        ),
        (
            r#""algorithm": "gcra", "quota": 10, "period": "1s", "debt": "window""#,
            "debt: found \"window\", expected units or \"allowance\"",
        ),
        (
            r#""algorithm": "fixed_window", "quota": 10, "period": "1d", "debt": 4001"#,
            "debt: found 4001, expected 0 to 4000 units with these settings",
        ),
        (
            r#""algorithm": "quota", "quota": 10, "calendar": "day", "debt": 11"#,
            "debt: found 11, expected 0 to 10 units with these settings",
        ),
        // One at once, and five more in the half second of delay.
        (
            &format!(r#"{leaky}, "quota": 10, "max_delay": "500ms", "cost": 7"#),
            "cost: found 7, expected at most the burst and what may wait, 6",
        ),
        (
            &format!(r#"{leaky}, "quota": 10, "max_delay": "0s", "burst": 0"#),
            "burst: found 0, expected 1 or more",
        ),
    ] {
        let found = mistakes(&one(fields));
        assert!(
            found.len() == 1 && found[0].starts_with(&format!("limits[0].{expected}")),
            "{fields}: {found:#?}"
        );
    }
}

#[test]
fn the_edges_of_each_range_are_inside() {
    for fields in [
        &format!(
            r#""algorithm": "sliding_window_log", "quota": {MEMBERS_MAX}, "period": "400d", "cost": {MEMBERS_MAX}"#
        ),
        r#""algorithm": "concurrency", "quota": 4503599627370496, "cost": 10000"#,
        r#""algorithm": "quota", "quota": 1, "calendar": "day", "conditional": false, "cost": 4503599627370496"#,
        r#""algorithm": "quota", "quota": 4503599627370496, "calendar": "month", "anchor_day": 1, "time_zone": "Etc/GMT+1""#,
        r#""algorithm": "fixed_window", "quota": 10, "period": "1d", "debt": 4000"#,
        r#""algorithm": "gcra", "quota": 1000000000, "period": "1d", "debt": "allowance""#,
        r#""algorithm": "leaky_bucket", "quota": 10, "period": "1s", "max_delay": "500ms", "cost": 6"#,
        // None at once: every request waits.
        r#""algorithm": "leaky_bucket", "quota": 10, "period": "1s", "max_delay": "500ms", "burst": 0"#,
    ] {
        assert_eq!(mistakes(&one(fields)), [""; 0]);
    }
}

#[test]
fn a_request_waits_once() {
    let leaky = |name: &str| {
        format!(
            r#"{{"name": "{name}", "algorithm": "leaky_bucket", "quota": 1, "period": "1s", "max_delay": "1s"}}"#
        )
    };
    let found = mistakes(&format!(r#"{{"limits": [{}, {}]}}"#, leaky("a"), leaky("b")));
    assert_eq!(
        found,
        [
            "limits[1].algorithm: found a second `leaky_bucket`, expected at most one in a table: a request waits once"
        ]
    );
}

#[test]
fn several_errors_of_one_limit_come_at_once() {
    let found = mistakes(&one(
        r#""algorithm": "quota", "quota": 4503599627370497, "calendar": "month", "time_zone": "", "anchor_day": 40, "period": "1s", "burst": 2"#,
    ));
    assert_eq!(found.len(), 5, "{found:#?}");
}
