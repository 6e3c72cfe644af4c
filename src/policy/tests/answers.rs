//! Arbitrary decisions of guests, by a seed: each is refused with the name of a field, or is one
//! that the proxy can carry out.
//!
//! `make test-long` tries more of them (`WEIR_ANSWERS`).

use fastrand::Rng;

use super::*;
use crate::policy::abi::types;

const ROUNDS: usize = 50_000;

const TEXTS: &[&str] = &[
    "",
    "a",
    "b",
    "x-a",
    "Transfer-Encoding",
    "host",
    "a b",
    "a\r\nb: c",
    "\0",
    "\u{20ac}",
    "{x}",
    "k",
    "/usage",
    "/a/0",
    "~2",
    "UTC",
    "Europe/Berlin",
    "Europe/Atlantis",
    "mine",
    "1",
    "{}",
    "[",
    "null",
    "text/plain",
    "text/plain\r\nx: y",
    "remaining",
];
const NUMBERS: &[u64] = &[
    0,
    1,
    2,
    10,
    100,
    403,
    1_000,
    60_000,
    86_400_000,
    34_560_000_000,
    1 << 31,
    1 << 32,
    (1 << 52) - 1,
    1 << 52,
    (1 << 52) + 1,
    1 << 53,
    i64::MAX as u64,
    u64::MAX - 1,
    u64::MAX,
];

fn text(random: &mut Rng) -> String {
    match random.u8(..40) {
        0 => "x".repeat(random.usize(..5_000)),
        1 => (0..random.usize(..9)).map(|_| random.char(..)).collect(),
        2..20 => ["a", "b", "c", "k"][random.usize(..4)].to_owned(),
        _ => TEXTS[random.usize(..TEXTS.len())].to_owned(),
    }
}

fn number(random: &mut Rng) -> u64 {
    if random.u8(..4) > 0 { random.u64(1..100) } else { NUMBERS[random.usize(..NUMBERS.len())] }
}

fn small(random: &mut Rng) -> u32 {
    u32::try_from(number(random)).unwrap_or(u32::MAX)
}

/// Few, mostly; sometimes more than there may be.
fn several<T>(random: &mut Rng, mut each: impl FnMut(&mut Rng) -> T) -> Vec<T> {
    let most = if random.u8(..20) == 0 { 70 } else { 3 };
    let count = if random.bool() { 0 } else { random.usize(..most) };
    (0..count).map(|_| each(random)).collect()
}

fn maybe<T>(random: &mut Rng, one: impl FnOnce(&mut Rng) -> T) -> Option<T> {
    (random.u8(..4) == 0).then(|| one(random))
}

fn pair(random: &mut Rng) -> (String, String) {
    (text(random), text(random))
}

fn algorithm(random: &mut Rng) -> types::Algorithm {
    let rate = types::Rate { amount: number(random), per_ms: number(random) };
    let bucket = types::Bucket { burst: number(random), rate };
    match random.u8(..10) {
        0 => types::Algorithm::FixedWindow(types::FixedWindow {
            rate,
            alignment: types::Alignment::Clock,
        }),
        1 => types::Algorithm::SlidingWindowCounter(rate),
        2 => types::Algorithm::SlidingWindowLog(rate),
        3 => types::Algorithm::SlidingWindowBuckets(types::SlidingBuckets {
            rate,
            buckets: small(random),
        }),
        4 => types::Algorithm::TokenBucket(bucket),
        5 => types::Algorithm::Gcra(bucket),
        6 => types::Algorithm::LeakyBucket(types::LeakyBucket {
            burst: number(random),
            rate,
            max_delay_ms: number(random),
        }),
        7 => types::Algorithm::Concurrency(number(random)),
        8 => types::Algorithm::Quota(types::Quota {
            amount: number(random),
            calendar: [types::Calendar::Month, types::Calendar::Day, types::Calendar::Forever]
                [random.usize(..3)],
            time_zone: text(random),
            anchor_day: random.u8(..),
            conditional: random.bool(),
        }),
        _ => types::Algorithm::Script(types::Script {
            name: text(random),
            arguments: several(random, |random| random.i64(..)),
        }),
    }
}

fn limit(random: &mut Rng) -> types::Limit {
    types::Limit {
        name: text(random),
        key: text(random),
        tag: maybe(random, text),
        algorithm: algorithm(random),
        cost: number(random),
        unit: maybe(random, text),
        enforcement: types::Enforcement::Enforce,
        refund: types::Refund::BySettle,
        debt: maybe(random, |random| types::Debt::Units(number(random))),
        on_store_error: types::Fallback::RouteDefault,
    }
}

fn decision(random: &mut Rng) -> types::Decision {
    let verdict = match random.u8(..6) {
        0 => types::Verdict::Bypass,
        1 => types::Verdict::Deny(types::Denial {
            status: u16::try_from(number(random)).unwrap_or(403),
            reason: text(random),
            retry_after_ms: maybe(random, number),
            headers: several(random, pair),
            body: maybe(random, |random| types::Body {
                media_type: text(random),
                text: text(random),
            }),
        }),
        _ => types::Verdict::Check(several(random, limit)),
    };
    types::Decision {
        verdict,
        upstream_headers: several(random, pair),
        response_headers: several(random, pair),
        labels: several(random, pair),
        settle_with: maybe(random, text),
        settle_on_refusal: random.bool(),
        body_changes: maybe(random, |random| {
            several(random, |random| types::BodyChange {
                pointer: text(random),
                json: text(random),
            })
        })
        .unwrap_or_default(),
        meters: maybe(random, |random| {
            several(random, |random| types::Meter {
                pointer: text(random),
                gather: types::Gather::Max,
            })
        })
        .unwrap_or_default(),
        read_on_ms: if random.bool() { 0 } else { small(random) },
        partial: maybe(random, |random| types::Partial {
            limits: several(random, text),
            least: number(random),
            tell: several(random, text),
            base: number(random),
        }),
        hard_cut: maybe(random, |random| types::HardCut {
            limits: several(random, text),
            taken: number(random),
            step: number(random),
            used: types::Estimate {
                base: number(random),
                terms: several(random, |random| types::Term {
                    group: small(random),
                    meter: small(random),
                    units: number(random),
                    per: number(random),
                }),
            },
        }),
    }
}

/// What the proxy relies on, told in other words than those of `answer`.
fn check(decision: &Decision) {
    let mut fields: Vec<_> =
        decision.upstream_headers.iter().chain(&decision.response_headers).collect();
    match &decision.verdict {
        Verdict::Bypass => {}
        Verdict::Check(plan) => {
            let limits = plan.limits();
            assert!((1..=16).contains(&limits.len()));
            for (index, limit) in limits.iter().enumerate() {
                assert!(limits[..index].iter().all(|other| other.name != limit.name));
                assert!(limit.cost <= 1 << 52 && limit.key.len() <= 4_096, "{limit:?}");
            }
        }
        Verdict::Deny(denial) => {
            assert!((400..600).contains(&denial.status) && denial.reason.len() <= 1_024);
            fields.extend(&denial.headers);
        }
    }
    for (name, value) in fields {
        let wire: Vec<u8> =
            value.chars().map(|next| u8::try_from(u32::from(next)).unwrap()).collect();
        assert!(http::HeaderName::from_bytes(name.as_bytes()).is_ok(), "{name:?}");
        assert!(http::HeaderValue::from_bytes(&wire).is_ok(), "{value:?}");
        assert!(!["host", "transfer-encoding", "content-length"].contains(&name.as_str()));
    }
    for (name, value) in &decision.labels {
        assert!(!name.is_empty() && !value.chars().any(char::is_control), "{name:?} {value:?}");
    }
}

#[test]
fn an_arbitrary_answer_is_refused_by_name_or_can_be_carried_out() {
    let rounds =
        std::env::var("WEIR_ANSWERS").map_or(ROUNDS, |rounds| rounds.parse().expect("a number"));
    let (mut random, scripts) = (Rng::with_seed(5), ["mine".to_owned()]);
    let mut accepted = 0;
    for _ in 0..rounds {
        match crate::policy::answer::decision(decision(&mut random), &scripts) {
            Ok(decision) => {
                accepted += 1;
                check(&decision);
            }
            Err(message) => assert!(!message.is_empty() && message.len() < 6_000, "{message}"),
        }
    }
    eprintln!("{rounds} answers: {accepted} accepted");
    assert!(accepted > rounds / 50 && accepted < rounds, "{accepted} of {rounds}");
}
