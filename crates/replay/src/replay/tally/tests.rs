//! Requests are counted where they belong, in bounded memory.

use super::*;
use crate::replay::line::Line;
use crate::replay::record::Clients;

#[test]
fn a_timeline_keeps_all_in_a_bounded_number_of_spans() {
    let mut line = Timeline::new(5_500_000);
    for second in 0..10_000 {
        line.add(5_500_000 + second * 1_000_000, second % 4 != 0);
    }
    assert!(line.spans.len() <= SPANS_MAX);
    let sum = line.spans.iter().fold((0, 0), |(a, b), (c, d)| (a + c, b + d));
    assert_eq!(sum, (7_500, 2_500));
    assert_eq!((line.start_us, line.span_us), (5_000_000, 64_000_000));
    assert_eq!(line.spans.first(), Some(&(48, 16)));
}

#[test]
fn each_verdict_has_its_place() {
    let mut counts = Counts::default();
    for (verdict, word) in VERDICTS {
        counts.add(verdict);
        assert_eq!((counts.of(verdict), verdict.word()), (1, word));
    }
    assert_eq!((counts.all(), counts.passed()), (6, 2));
}

fn limit(name: &str, key: &str) -> Limit {
    let rate = crate::plan::Rate { amount: 5, per_ms: 60_000 };
    let (alignment, debt) = (crate::plan::Alignment::Clock, crate::plan::Debt::None);
    let window = crate::plan::FixedWindow { rate, alignment, debt };
    Limit::new(name, key.to_owned(), window.into())
}

/// A client whose limits have other keys with each request, and two clients that share one.
#[test]
fn a_key_is_counted_under_its_text_whatever_the_requests_before_had() {
    let mut tally = Tally::default();
    let mut clients = Clients::default();
    for index in 0..40_u64 {
        let client = format!("10.0.0.{}", index % 2);
        let line = Line {
            stamp_us: Some(1_000_000),
            client: Some(client.into()),
            target: Some("/".into()),
            ..Line::default()
        };
        let record = Record::of(&line, &mut clients, (0, 1)).unwrap();
        let (first, second) = (format!("a{}", index % 4), format!("b{}", index % 8));
        let limits = [limit("first", &first), limit("second", &second), limit("third", "all")];
        let outcomes = [LimitOutcome { fits: true, ..Default::default() }; 3];
        let policy = Some(Decider { name: "p", scope: "p", facts: (&[], &[]) });
        let seen = DecidedRequest {
            verdict: Verdict::Admitted,
            route: Some("r"),
            policy,
            limits: limits.get((index / 20) as usize..).unwrap(),
            outcomes: outcomes.get((index / 20) as usize..).unwrap(),
            settles: false,
            passes_in_us: None,
            cause: None,
            rejection: None,
        };
        tally.add(&record, &seen);
    }
    let asked = |limit: &LimitTally| {
        let each = limit.numbers.iter().map(|(key, number)| {
            let tally = limit.keys.get(*number as usize).unwrap();
            (key.to_string(), tally.asked)
        });
        each.collect::<std::collections::BTreeMap<_, _>>()
    };
    let all = |names: &[&str], each: &[u64]| {
        names.iter().map(|name| (*name).to_owned()).zip(each.iter().copied()).collect()
    };
    let [first, second, third] = &tally.limits[..] else { panic!("three limits") };
    assert_eq!(asked(first), all(&["a0", "a1", "a2", "a3"], &[5; 4]));
    let names = ["b0", "b1", "b2", "b3", "b4", "b5", "b6", "b7"];
    assert_eq!(asked(second), all(&names, &[5; 8]));
    assert_eq!(asked(third), all(&["all"], &[40]));
}
