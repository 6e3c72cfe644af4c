//! Tests over all algorithms.

use std::time::Duration;

use super::*;

const MINUTE: Rate = Rate { amount: 100, per_ms: 60_000 };
const LEASE: Duration = Duration::from_secs(10);
const NOON_MS: i64 = 1_774_742_400_000;
const SECOND_US: i64 = 1_000_000;
const DAY_MS: i64 = 86_400_000;

fn window(rate: Rate, alignment: fixed_window::Alignment) -> Algorithm {
    FixedWindow { rate, alignment, debt: Debt::None }.into()
}

fn quota(amount: u64, calendar: Calendar) -> Algorithm {
    Quota { amount, calendar, conditional: true, debt: Debt::None }.into()
}

fn berlin() -> TimeZone {
    TimeZone::named("Europe/Berlin").unwrap()
}

fn extra(algorithm: &Algorithm) -> ShapeExtra {
    match algorithm {
        Algorithm::Concurrency(_) => ShapeExtra::Lease(LEASE),
        Algorithm::Script(_) => ShapeExtra::Script("0123456789abcdef".into()),
        _ => ShapeExtra::Nothing,
    }
}

fn of_each_shape() -> Vec<(Algorithm, &'static str)> {
    use fixed_window::Alignment::{Clock, FirstRequest};
    let month = Calendar::Month { time_zone: berlin(), anchor_day: 31 };
    vec![
        (window(MINUTE, Clock), "fw2-60000c"),
        (window(MINUTE, FirstRequest), "fw2-60000f"),
        (window(Rate { per_ms: 60_001, ..MINUTE }, Clock), "fw2-60001c"),
        (SlidingWindowCounter { rate: MINUTE, debt: Debt::None }.into(), "sc1-60000"),
        (SlidingWindowLog { rate: MINUTE, debt: Debt::None }.into(), "sl2-60000"),
        (SlidingWindowBuckets { rate: MINUTE, buckets: 6, debt: Debt::None }.into(), "sb2-60000x6"),
        (SlidingWindowBuckets { rate: MINUTE, buckets: 7, debt: Debt::None }.into(), "sb2-60000x7"),
        (Gcra { burst: 1, rate: MINUTE, debt: Debt::None }.into(), "gcra3-60000"),
        (TokenBucket { burst: 1, rate: MINUTE, debt: Debt::None }.into(), "tb2-60000"),
        (LeakyBucket { burst: 1, rate: MINUTE, max_delay_ms: 5 }.into(), "lb2-60000"),
        (Concurrency { amount: 5 }.into(), "cc1-10000"),
        (quota(5, Calendar::Hour(berlin())), "q2-h-Europe.Berlin"),
        (quota(5, Calendar::Day(TimeZone::utc())), "q2-d-UTC"),
        (quota(5, Calendar::Day(berlin())), "q2-d-Europe.Berlin"),
        (quota(5, Calendar::Week(berlin())), "q2-w-Europe.Berlin"),
        (quota(5, month), "q2-m31-Europe.Berlin"),
        (quota(5, Calendar::Forever), "q2-ever"),
        (
            Script { name: "mi-ne".into(), arguments: [1, 2].into_iter().collect() }.into(),
            "script-mi-ne-0123456789abcdef",
        ),
    ]
}

#[test]
fn a_shape_is_read_as_it_is_written_and_each_is_its_own() {
    let all = of_each_shape();
    for (index, (algorithm, text)) in all.iter().enumerate() {
        let shape = algorithm.shape(extra(algorithm));
        assert_eq!(shape.to_string(), *text);
        assert_eq!(text.parse(), Ok(shape.clone()));
        assert_eq!(shape.kind(), algorithm.kind());
        for (other, (another, _)) in all.iter().enumerate() {
            assert_eq!(shape == another.shape(extra(another)), index == other, "{another:?}");
        }
    }
    for wrong in
        ["", "fw1", "fw2-60000", "fw1-60000c", "gcra3-", "gcra3-1x", "sb2-60000", "q2-x-UTC"]
    {
        assert_eq!(wrong.parse::<Shape>(), Err(()), "{wrong}");
    }
}

#[test]
fn amounts_leave_the_shape_as_it_is() {
    for (algorithm, text) in of_each_shape() {
        let edited: Algorithm = match algorithm.clone() {
            Algorithm::FixedWindow(it) => {
                FixedWindow { rate: Rate { amount: 1, ..it.rate }, ..it }.into()
            }
            Algorithm::Gcra(it) => {
                Gcra { burst: 9, rate: Rate { amount: 1, ..it.rate }, ..it }.into()
            }
            Algorithm::TokenBucket(it) => TokenBucket { burst: 9, ..it }.into(),
            Algorithm::LeakyBucket(it) => LeakyBucket { burst: 9, max_delay_ms: 9, ..it }.into(),
            Algorithm::Concurrency(_) => Concurrency { amount: 1 }.into(),
            Algorithm::Quota(it) => Quota { amount: 1, conditional: false, ..it }.into(),
            other => other,
        };
        assert_eq!(edited.shape(extra(&edited)).to_string(), text);
    }
}

#[test]
fn numbers_are_in_the_limits_own_unit() {
    use fixed_window::Alignment::{Clock, FirstRequest};
    let of = |algorithm: Algorithm| {
        algorithm.numbers(Moment { lease: LEASE, now_us: (NOON_MS + 43_200_000) * 1_000 })
    };
    assert_eq!(of(window(MINUTE, Clock)), [100, 60_000_000, 1, 0, 0, 0, 0]);
    assert_eq!(of(window(MINUTE, FirstRequest)), [100, 60_000_000, 0, 0, 0, 0, 0]);
    let day = Rate { amount: 5, per_ms: 86_400_000 };
    let gcra: Algorithm = Gcra { burst: 7, rate: day, debt: Debt::None }.into();
    assert_eq!((gcra.unit_us(), of(gcra)), (1000, [1, 17_280_000, 7, 0, 0, 0, 0]));
    let buckets = SlidingWindowBuckets { rate: day, buckets: 7, debt: Debt::None };
    assert_eq!(of(buckets.into()), [5, 12_342_858, 7, 0, 0, 0, 0], "rounded up");
    let leaky = |rate| LeakyBucket { burst: 2, rate, max_delay_ms: 1_500 }.into();
    assert_eq!(of(leaky(MINUTE)), [1, 600_000, 2, 1_500_000, 1, 0, 0]);
    assert_eq!(of(leaky(day)), [1, 17_280_000, 2, 1_500, 1, 0, 0]);
    let leases: Algorithm = Concurrency { amount: 3 }.into();
    assert_eq!((leases.unit_us(), of(leases)), (1000, [3, 10_000, 0, 0, 0, 0, 0]));
    let around = [NOON_MS - DAY_MS, NOON_MS, NOON_MS + DAY_MS, NOON_MS + 2 * DAY_MS];
    let [before, this, next, after] = around;
    assert_eq!(of(quota(9, Calendar::Day(TimeZone::utc()))), [9, 1, before, this, next, after, 0]);
    let script = Script { name: "s".into(), arguments: [-1, 2].into_iter().collect() };
    assert_eq!(of(script.into()), [-1, 2, 0, 0, 0, 0, 0]);
}

#[test]
fn a_program_bears_its_algorithms_name_and_reads_all_its_numbers() {
    for (algorithm, _) in of_each_shape() {
        let Some(program) = algorithm.program() else { continue };
        assert_eq!(program.name, algorithm.name());
        let numbers = algorithm.numbers(Moment { lease: LEASE, now_us: NOON_MS * 1_000 });
        let unread = &numbers[program.numbers..];
        assert!(unread.iter().all(|number| *number == 0), "{algorithm:?}: {numbers:?}");
        assert!(std::ptr::eq(program, algorithm.program().unwrap()), "one program each");
    }
}

#[test]
fn nothing_passes_a_limit_of_0_unless_it_only_counts() {
    let rate = |amount| Rate { amount, per_ms: 1_000 };
    let leaky = |max_delay_ms| LeakyBucket { burst: 0, rate: rate(5), max_delay_ms };
    for (algorithm, never) in [
        (Gcra { burst: 0, rate: rate(5), debt: Debt::None }.into(), true),
        (Gcra { burst: 5, rate: rate(0), debt: Debt::None }.into(), true),
        (leaky(1_000).into(), false),
        (leaky(0).into(), true),
        (Concurrency { amount: 0 }.into(), true),
        (quota(0, Calendar::Forever), true),
        (
            Quota { amount: 0, calendar: Calendar::Forever, conditional: false, debt: Debt::None }
                .into(),
            false,
        ),
    ] {
        let algorithm: Algorithm = algorithm;
        assert_eq!(algorithm.refuses_all(), never, "{algorithm:?}");
    }
}

#[test]
fn each_setting_names_the_algorithms_that_it_belongs_to() {
    for (setting, owners) in [
        (Setting::Quota, "Weir's own algorithms"),
        (Setting::Period, "algorithms with a rate"),
        (Setting::Burst, "token_bucket, gcra and leaky_bucket"),
        (Setting::Buckets, "sliding_window_buckets"),
        (Setting::Arguments, "script"),
    ] {
        assert_eq!(setting.owners(), owners);
    }
}

fn numbers(first: i64, second: i64, third: i64) -> Content {
    Content::Numbers([first, second, third])
}

fn state(shape: &str, content: &Content, known: Option<&Algorithm>) -> String {
    let shape: Shape = shape.parse().unwrap();
    shape.state(content, 1_000 * SECOND_US as u64, known).unwrap()
}

#[test]
fn each_state_is_put_into_words() {
    for (shape, content, expected) in [
        (
            "fw2-60000c",
            numbers(960 * SECOND_US, 7, 0),
            "7 used, all back in 20.000 s (the window from 1970-01-01T00:16:00Z to 1970-01-01T00:17:00Z)",
        ),
        (
            "fw2-10000f",
            numbers(960 * SECOND_US, 7, 0),
            "0 used (the window from 1970-01-01T00:16:00Z to 1970-01-01T00:16:10Z, with 7, is over)",
        ),
        (
            "gcra3-1000",
            numbers(997_500_000, 3, 0),
            "nothing left at 1970-01-01T00:16:37.5Z, 2.500 s ago; at most a burst has come back since",
        ),
        (
            "lb2-1000",
            numbers(1_002_500_000, 3, 1_000_000_000),
            "nothing left until 1970-01-01T00:16:42.5Z, in 2.500 s",
        ),
        (
            "tb2-1000",
            numbers(5, 0, 990 * SECOND_US),
            "5 tokens left at 1970-01-01T00:16:30Z, and what was refilled since",
        ),
        (
            "sl2-10000",
            Content::Members(vec![1, 990_000_000, 990_000_001, 999_000_000, 1_000_000_001]),
            "2 used, 1 back in 0.000 s, all in 9.000 s",
        ),
        ("sl2-10000", Content::Members(vec![1]), "0 used"),
        // Each sub-window lasts a second: the oldest leaves at the start of the fourth one after
        // it.
        (
            "sb2-4000x4",
            Content::Buckets { last: 999, counts: vec![1, 2, 4, 8] },
            "14 used, 2 back in 1.000 s, all in 3.000 s",
        ),
        ("sb2-4000x4", Content::Buckets { last: 1_001, counts: vec![1, 2, 4, 8] }, "0 used"),
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
            "q2-d-Europe.Berlin",
            numbers(0, 3, 0),
            "3 used in the period that began at 1970-01-01T00:00:00Z",
        ),
        ("q2-ever", numbers(0, 3, 0), "3 used, for ever"),
        ("script-mi-ne-0123456789abcdef", numbers(1, -2, 3), "the numbers [1, -2, 3]"),
    ] {
        assert_eq!(state(shape, &content, None), expected, "{shape}");
    }
    let counter = state("sc1-60000", &numbers(960 * SECOND_US, 7, 6), None);
    assert!(
        counter.starts_with("9 used, all back in 80.000 s (7 in the window from ")
            && counter.contains(", 6 in the one before"),
        "{counter}"
    );
    let script: Shape = "script-mi-ne-01".parse().unwrap();
    assert_eq!(script.name(), "mi-ne");
    let window: Shape = "fw2-1f".parse().unwrap();
    assert_eq!(window.state(&Content::Members(vec![]), 0, None), None, "of another kind");
}

#[test]
fn of_a_known_limit_it_is_said_how_much_is_used() {
    let rate = Rate { amount: 3, per_ms: 60_000 };
    let gcra: Algorithm = Gcra { burst: 3, rate, debt: Debt::None }.into();
    let bucket: Algorithm = TokenBucket { burst: 3, rate, debt: Debt::None }.into();
    let leaky: Algorithm = LeakyBucket { burst: 1, rate, max_delay_ms: 60_000 }.into();
    for (shape, content, known, expected) in [
        // Three at the same instant: one comes back every twenty seconds.
        (
            "gcra3-60000",
            numbers(1_000 * SECOND_US, 0, 900 * SECOND_US),
            &gcra,
            "3 of 3 used, 1 back in 20.000 s, all in 60.000 s",
        ),
        (
            "gcra3-60000",
            numbers(990 * SECOND_US, 0, 900 * SECOND_US),
            &gcra,
            "3 of 3 used, 1 back in 10.000 s, all in 50.000 s",
        ),
        (
            "gcra3-60000",
            numbers(950 * SECOND_US, 0, 900 * SECOND_US),
            &gcra,
            "1 of 3 used, back in 10.000 s",
        ),
        ("gcra3-60000", numbers(900 * SECOND_US, 0, 900 * SECOND_US), &gcra, "0 of 3 used"),
        (
            "gcra3-60000",
            numbers(1_030 * SECOND_US, 0, 900 * SECOND_US),
            &gcra,
            "3 of 3 used and 2 owed, 1 back in 50.000 s, all in 90.000 s",
        ),
        // The clock stepped back.
        ("gcra3-60000", numbers(1_001 * SECOND_US, 0, 1_001 * SECOND_US), &gcra, "0 of 3 used"),
        (
            "tb2-60000",
            numbers(0, 0, 990 * SECOND_US),
            &bucket,
            "3 of 3 used, 1 back in 10.000 s, all in 50.000 s",
        ),
        (
            "tb2-60000",
            numbers(2, 10 * SECOND_US, 1_000 * SECOND_US),
            &bucket,
            "1 of 3 used, back in 10.000 s",
        ),
        ("tb2-60000", numbers(0, 0, 0), &bucket, "0 of 3 used"),
        (
            "lb2-60000",
            numbers(1_000 * SECOND_US, 0, 1_000 * SECOND_US),
            &leaky,
            "1 of 1 used, back in 20.000 s",
        ),
        (
            "lb2-60000",
            numbers(1_040 * SECOND_US, 0, 1_000 * SECOND_US),
            &leaky,
            "1 of 1 used and 2 waiting, back in 60.000 s",
        ),
    ] {
        assert_eq!(state(shape, &content, Some(known)), expected, "{shape}");
    }
    let of = |shape, content, known: Algorithm| state(shape, &content, Some(&known));
    let clock = window(rate, fixed_window::Alignment::Clock);
    assert_eq!(
        of("fw2-60000c", numbers(960 * SECOND_US, 2, 0), clock),
        "2 of 3 used, all back in 20.000 s (the window from 1970-01-01T00:16:00Z to 1970-01-01T00:17:00Z)"
    );
    let log = SlidingWindowLog { rate, debt: Debt::None }.into();
    let one = Content::Members(vec![999_000_000]);
    assert_eq!(of("sl2-60000", one, log), "1 of 3 used, back in 59.000 s");
    let places = Concurrency { amount: 4 }.into();
    assert_eq!(of("cc1-10000", Content::Members(vec![]), places), "0 of 4 used");
    let day = || quota(9, Calendar::Day(TimeZone::utc()));
    assert_eq!(
        of("q2-d-UTC", numbers(0, 4, 0), day()),
        "4 of 9 used, all back in 85400.000 s (the period from 1970-01-01T00:00:00Z to 1970-01-02T00:00:00Z)"
    );
    assert_eq!(
        of("q2-d-UTC", numbers(-86_400_000, 4, 0), day()),
        "0 of 9 used (the period that began at 1969-12-31T00:00:00Z, with 4, is over)"
    );
    // A limit of another shape says nothing about this counter.
    assert!(of("q2-ever", numbers(0, 4, 0), day()).starts_with("4 used"));
}

#[test]
fn a_windows_debt_is_paid_by_the_ones_after_it() {
    let rate = Rate { amount: 3, per_ms: 60_000 };
    for (count, owing, at, expected) in [
        // Above a quota that was edited to less, and owed.
        (9, 0, 960, "3 of 3 used, all back in 20.000 s (the window from"),
        (9, 6, 960, "3 of 3 used and 6 owed, all back in 140.000 s (the window from"),
        // In the windows after it, of which the second one is paid off.
        (9, 6, 900, "3 of 3 used and 3 owed, all back in 80.000 s (the window from"),
        (9, 6, 840, "3 of 3 used, all back in 20.000 s (the window from"),
        (9, 6, 780, "0 of 3 used (the window from"),
        // A debt that can never be paid is reported, too.
        (i64::MAX, i64::MAX, 960, "3 of 3 used and 9223372036854775804 owed, all back in "),
    ] {
        let clock = window(rate, fixed_window::Alignment::Clock);
        let found = state("fw2-60000c", &numbers(at * SECOND_US, count, owing), Some(&clock));
        assert!(found.starts_with(expected), "{found}");
    }
}
