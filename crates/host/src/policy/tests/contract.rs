//! Facts in, plan out: what a well-behaved guest sees and what comes back.

use super::*;
use crate::plan::{
    Adjustment, Algorithm, Alignment, Calendar, Change, Concurrency, Debt, FixedWindow, Gcra,
    LeakyBucket, Quota, Rate, Script, SlidingWindowBuckets, SlidingWindowCounter, SlidingWindowLog,
    TimeZone, TokenBucket,
};

#[test]
fn the_shipped_policy_charges_the_clients_address() {
    let policy = client_ip();
    assert_eq!(policy.request_facts(), ["client-ip"]);
    let decision = policy.decide(&[("client-ip", "2001:db8::1")]).unwrap();
    let limits = plan(&decision).limits();
    assert_eq!(
        limits.iter().map(|limit| limit.name.as_str()).collect::<Vec<_>>(),
        ["per-minute", "burst"]
    );
    assert!(limits.iter().all(|limit| limit.key == "2001:db8::/64" && limit.cost == 1));
    let window = Algorithm::FixedWindow(FixedWindow {
        rate: Rate { amount: 100, per_ms: 60_000 },
        alignment: Alignment::FirstRequest,
        debt: Debt::None,
    });
    assert_eq!(limits[0].algorithm, window);
    assert_eq!(
        limits[1].algorithm,
        Algorithm::Gcra(Gcra {
            burst: 20,
            rate: Rate { amount: 10, per_ms: 1_000 },
            debt: Debt::None
        })
    );
}

#[test]
fn each_algorithm_that_is_written_arrives() {
    let rate = Rate { amount: 6, per_ms: 1_000 };
    let timed = r#""quota": 6, "period": "1s""#;
    let month =
        Calendar::Month { time_zone: TimeZone::named("Europe/Berlin").unwrap(), anchor_day: 31 };
    for (written, expected) in [
        (format!(r#""fixed_window", "alignment": "clock", {timed}"#), Algorithm::FixedWindow(FixedWindow { rate, alignment: Alignment::Clock, debt: Debt::None })),
        (format!(r#""sliding_window_counter", {timed}"#), Algorithm::SlidingWindowCounter(SlidingWindowCounter { rate, debt: Debt::None })),
        (format!(r#""sliding_window_log", {timed}"#), Algorithm::SlidingWindowLog(SlidingWindowLog { rate, debt: Debt::None })),
        (format!(r#""sliding_window_buckets", {timed}"#), Algorithm::SlidingWindowBuckets(SlidingWindowBuckets { rate, buckets: 60, debt: Debt::None })),
        (format!(r#""sliding_window_buckets", "buckets": 7, {timed}"#), Algorithm::SlidingWindowBuckets(SlidingWindowBuckets { rate, buckets: 7, debt: Debt::None })),
        (format!(r#""token_bucket", "burst": 9, {timed}"#), Algorithm::TokenBucket(TokenBucket { burst: 9, rate, debt: Debt::None })),
        (format!(r#""gcra", {timed}"#), Algorithm::Gcra(Gcra { burst: 6, rate, debt: Debt::None })),
        (format!(r#""leaky_bucket", "max_delay": "500ms", {timed}"#), Algorithm::LeakyBucket(LeakyBucket { burst: 1, rate, max_delay_ms: 500 })),
        (r#""concurrency", "quota": 6"#.into(), Algorithm::Concurrency(Concurrency { amount: 6 })),
        (
            r#""quota", "quota": 6, "calendar": "day""#.into(),
            Algorithm::Quota(Quota { amount: 6, calendar: Calendar::Day(TimeZone::utc()), conditional: true, debt: Debt::None }),
        ),
        (
            r#""quota", "quota": 6, "calendar": "month", "time_zone": "Europe/Berlin", "anchor_day": 31, "conditional": false"#.into(),
            Algorithm::Quota(Quota { amount: 6, calendar: month, conditional: false, debt: Debt::None }),
        ),
        (
            r#""quota", "quota": 6, "calendar": "forever""#.into(),
            Algorithm::Quota(Quota { amount: 6, calendar: Calendar::Forever, conditional: true, debt: Debt::None }),
        ),
        (
            r#""script", "script": "mine", "arguments": [7, -8]"#.into(),
            Algorithm::Script(Script { name: "mine".into(), arguments: [7, -8].into_iter().collect() }),
        ),
    ] {
        let config = format!(r#"{{"limits": [{{"name": "a", "algorithm": {written}}}]}}"#);
        let policy = build(&settings(shipped("client-ip"), &config)).unwrap_or_else(|errors| panic!("{written}: {errors:?}"));
        assert_eq!(plan(&policy.decide(&[("client-ip", "192.0.2.1")]).unwrap()).limits()[0].algorithm, expected);
    }
}

#[test]
fn a_policy_from_a_file_is_loaded_as_cargo_built_it() {
    let policy = build(&settings(file(&guest::api_key()), LIMITS)).unwrap();
    let facts: Vec<&str> = policy.request_facts().iter().map(String::as_str).collect();
    assert_eq!(facts, ["header.x-api-key", "client-ip"]);
    let decision =
        policy.decide(&[("header.x-api-key", "k\u{e9}y"), ("client-ip", "192.0.2.1")]).unwrap();
    assert_eq!(plan(&decision).limits()[0].key, "key:k\u{e9}y");
}

#[test]
fn a_component_is_accepted_as_it_is() {
    // What a plain module becomes inside is a component: handed in from outside, it must serve the
    // same.
    let module = std::fs::read(guest::api_key()).unwrap();
    let component = super::super::component::validated(&module).unwrap().unwrap();
    let policy = build(&settings(bytes(component), LIMITS)).unwrap();
    assert_eq!(
        plan(&policy.decide(&[("client-ip", "192.0.2.1")]).unwrap()).limits()[0].key,
        "ip:192.0.2.1"
    );
}

#[test]
fn the_largest_plan_of_the_contract_passes_the_bound_on_what_is_handed_over() {
    // Otherwise a long header would be a way round the limits, where a route lets requests through
    // on a policy error.
    let limit = |index: usize| {
        format!(
            r#"{{"name": "l{index}", "algorithm": "gcra", "quota": 1, "period": "1s", "key": "{{header.x}}", "unit": "{}"}}"#,
            "u".repeat(64)
        )
    };
    let limits: Vec<String> = (0..crate::plan::LIMITS_MAX).map(limit).collect();
    let policy =
        build(&settings(shipped("client-ip"), &format!(r#"{{"limits": [{}]}}"#, limits.join(","))))
            .unwrap();
    let key = "x".repeat(crate::plan::KEY_BYTES_MAX);
    let decision = policy.decide(&[("client-ip", "192.0.2.1"), ("header.x", &key)]).unwrap();
    assert!(plan(&decision).limits().iter().all(|limit| limit.key == key));
}

#[test]
fn each_verdict_arrives() {
    let policy = build(&settings(misbehaving(), "{}")).unwrap();
    let decide = |how: &str| policy.decide(&[("query", how)]).unwrap();
    assert_eq!(decide("bypass").verdict, Verdict::Bypass);
    assert_eq!(decide("no-limits").verdict, Verdict::Bypass);
    let Verdict::Deny(denial) = &decide("deny").verdict else { panic!() };
    assert_eq!(
        (denial.status, denial.reason.as_str(), denial.retry_after_ms),
        (403, "not you", Some(5_000))
    );
    assert_eq!(denial.headers, [("x-why".to_owned(), "because".to_owned())]);
    let decorated = decide("decorated");
    assert_eq!(decorated.upstream_headers, [("x-plan".to_owned(), "gold".to_owned())]);
    assert_eq!(decorated.response_headers, decorated.upstream_headers);
    assert_eq!(decorated.labels, [("plan".to_owned(), "gold".to_owned())]);
    assert_eq!(decorated.settle_with.as_deref(), Some("memo"));
}

fn adjustment(change: Change) -> Adjustment {
    Adjustment { limit: "tokens".into(), change }
}

#[test]
fn settle_gets_its_memo_and_adjusts() {
    let policy = build(&settings(
        misbehaving(),
        r#"{"response_facts": ["header.x-cost", "response.bytes"]}"#,
    ))
    .unwrap();
    assert_eq!(policy.response_facts(), ["header.x-cost", "response.bytes"]);
    let tokens =
        LimitResult { name: "tokens".into(), fits: true, remaining: 3, resets_ms: Some(5) };
    let view = ResponseView {
        outcome: ResponseOutcome::Completed,
        status: 201,
        by_upstream: true,
        facts: vec![],
        limits: vec![tokens],
    };
    let adjusts = |memo: &str| policy.settle(memo, &view).unwrap().adjustments;
    assert_eq!(adjusts("memo"), [adjustment(Change::Units(5))]);
    assert_eq!(adjusts("reset"), [adjustment(Change::Reset)]);
    assert_eq!(policy.settle("huge", &view).unwrap_err().cause, Cause::Answer);
    assert_eq!(policy.settle("many", &view).unwrap_err().cause, Cause::Answer);
    assert_eq!(policy.settle("loop", &view).unwrap_err().cause, Cause::Time);
    for (memo, part) in [
        ("17-amounts", "amounts: 17 of them, at most 16"),
        ("amount-name", "amounts[0]: found the name \"a b\""),
        ("settle-label", "labels[0]: its name"),
    ] {
        let error = policy.settle(memo, &view).unwrap_err();
        assert!(error.cause == Cause::Answer && error.to_string().contains(part), "{error}");
    }
    assert_eq!(adjusts("memo"), [adjustment(Change::Units(5))]);
    let refused = ResponseView { outcome: ResponseOutcome::Refused, status: 429, ..view };
    let settled = policy.settle("strikes", &refused).unwrap();
    assert_eq!(settled.labels, [("ended".to_owned(), "refused".to_owned())]);
    assert_eq!(settled.amounts, [("strikes".to_owned(), 2), ("hidden".to_owned(), 1)]);
}

#[test]
fn signatures_are_verified_a_few_in_each_call() {
    let policy = build(&settings(misbehaving(), "{}")).unwrap();
    let error = policy.decide(&[("query", "verifies")]).unwrap_err();
    assert!(error.to_string().contains("verified signatures"), "{error}");
}

#[test]
fn a_denial_may_have_a_body_of_its_own() {
    let policy = build(&settings(misbehaving(), "{}")).unwrap();
    let Verdict::Deny(denial) = &policy.decide(&[("query", "own-body")]).unwrap().verdict.clone()
    else {
        panic!("not denied")
    };
    let (media_type, text) = denial.body.as_ref().unwrap();
    assert_eq!((media_type.as_str(), text.len()), ("application/json", 29));
    for (query, part) in
        [("long-body", "denial.body.text: 20000 bytes"), ("media-type", "denial.body.media-type")]
    {
        let error = policy.decide(&[("query", query)]).unwrap_err();
        assert!(error.cause == Cause::Answer && error.to_string().contains(part), "{error}");
    }
}

#[test]
fn time_stands_still_during_a_call() {
    let policy = build(&settings(misbehaving(), "{}")).unwrap();
    let decision = policy.decide(&[("query", "now")]).unwrap();
    let (before, after) = plan(&decision).limits()[0]
        .key
        .split_once(' ')
        .map(|(a, b)| (a.to_owned(), b.to_owned()))
        .unwrap();
    assert_eq!(before, after);
    assert!(before.parse::<u64>().unwrap() > 1_700_000_000_000);
}

#[test]
fn an_instance_is_reused_unless_it_is_isolated() {
    let calls = |policy: &Policy| {
        plan(&policy.decide(&[("query", "calls")]).unwrap()).limits()[0].key.clone()
    };
    let mut settings = settings(misbehaving(), "{}");
    let reused = build(&settings).unwrap();
    assert_eq!([calls(&reused), calls(&reused), calls(&reused)], ["1", "2", "3"]);
    settings.isolated = true;
    let isolated = build(&settings).unwrap();
    assert_eq!([calls(&isolated), calls(&isolated)], ["1", "1"]);
}

#[test]
fn a_pure_policy_is_remembered_and_a_new_one_is_asked_afresh() {
    let settings = settings(misbehaving(), r#"{"pure": true}"#);
    let calls = |policy: &Policy, path: &str| {
        plan(&policy.decide(&[("query", "calls"), ("path", path)]).unwrap()).limits()[0].key.clone()
    };
    let policy = build(&settings).unwrap();
    assert_eq!(
        [calls(&policy, "/a"), calls(&policy, "/a"), calls(&policy, "/b"), calls(&policy, "/a")],
        ["1", "1", "2", "1"]
    );
    drop(policy);
    let replaced = build(&settings).unwrap();
    assert_eq!([calls(&replaced, "/b"), calls(&replaced, "/a")], ["1", "2"]);
}

/// Office hours, for example: at another time the same facts may give another decision.
#[test]
fn a_call_that_asked_the_time_is_not_remembered() {
    let decided = |config: &str, queries: [&str; 2]| {
        let policy = build(&settings(misbehaving(), config)).unwrap();
        let asked = |query| policy.decide(&[("query", query)]).unwrap();
        queries.map(|query| {
            let first = asked(query);
            Arc::ptr_eq(&first, &asked(query))
        })
    };
    // Whether a call is remembered does not depend on those before it.
    assert_eq!(decided(r#"{"pure": true}"#, ["now", "well"]), [false, true]);
    // `broken_ms` compares each call's time.
    assert_eq!(decided(r#"{"pure": true, "broken_ms": [0, 1]}"#, ["well", "calls"]), [false; 2]);
    let by_time = r#"{"pure": true, "asks_time_in_configure": true}"#;
    assert_eq!(decided(by_time, ["well", "calls"]), [false; 2]);
}

#[test]
fn a_thread_drops_the_instances_of_policies_that_are_gone() {
    let held = build(&settings(misbehaving(), "{}")).unwrap();
    let ask = |policy: &Policy| drop(policy.decide(&[("query", "well")]).unwrap());
    ask(&held);
    for _ in 0..10 {
        ask(&build(&settings(misbehaving(), "{}")).unwrap());
    }
    ask(&held);
    assert_eq!(workers::kept(), 1);
}

#[test]
fn a_guests_log_lines_are_bounded() {
    let policy = build(&settings(misbehaving(), "{}")).unwrap();
    let lines = Lines::default();
    let subscriber = tracing_subscriber::fmt().with_writer(lines.clone()).with_ansi(false).finish();
    tracing::subscriber::with_default(subscriber, || {
        policy.decide_for(Some(b"id-1"), &[("query", "log")]).unwrap()
    });
    let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
    assert_eq!(text.lines().count(), 9, "{text}");
    assert!(
        text.lines().all(|line| line.len() < 1_200 && line.contains("request_id=\"id-1\"")),
        "{text}"
    );
    assert!(
        text.contains("line 7 xxx")
            && text.contains("992 lines in one call beyond `log_lines` (8)"),
        "{text}"
    );
}

#[test]
fn the_log_lines_of_all_calls_of_a_policy_together_are_bounded() {
    let policy = build(&settings(misbehaving(), "{}")).unwrap();
    let lines = Lines::default();
    let subscriber = tracing_subscriber::fmt().with_writer(lines.clone()).with_ansi(false).finish();
    let log = || String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
    let started = std::time::Instant::now();
    tracing::subscriber::with_default(subscriber, || {
        // Until a second is over: then the suppressed lines of the first one are reported.
        while !log().contains("lines more than `log_lines_per_second` (100)") {
            policy.decide(&[("query", "log")]).unwrap();
            assert!(started.elapsed() < Duration::from_secs(30), "{}", log());
        }
    });
    let (count, seconds) =
        (log().lines().count(), usize::try_from(started.elapsed().as_secs()).unwrap() + 1);
    assert!(count <= seconds * 101, "{count} lines in {seconds} s");
}

#[derive(Clone, Default)]
pub(super) struct Lines(pub(super) Arc<std::sync::Mutex<Vec<u8>>>);

impl std::io::Write for Lines {
    fn write(&mut self, text: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(text);
        Ok(text.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl tracing_subscriber::fmt::MakeWriter<'_> for Lines {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}
