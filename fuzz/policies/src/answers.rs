//! What a guest may answer: any decision, settlement and manifest of the contract's types. A
//! refusal is reported in one line. What is accepted keeps every bound of the contract, and is
//! taken and settled on the engine in memory.
//!
//! Weir's own tests include this file, and give it random bytes.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arbitrary::{Arbitrary as _, Result, Unstructured};
use tokio::runtime::{Builder, Runtime};
use weir::clock::Clock;
use weir::engine::{EmbeddedSettings, Engine, Settings as EngineSettings};
use weir::limit::{Ending, Limiter, Scope, Settings, Take};
use weir::plan::{Adjustment, Limit, OnStoreError, is_reserved_field};
use weir::policy::fuzzing::types::{self as wit, Algorithm};
use weir::policy::fuzzing::usage;
use weir::policy::fuzzing::{decision, facts, settlement};
use weir::policy::{Bodies, Decision, Settlement, Verdict};
use weir::telemetry::Metrics;

/// Maximum size of a message, in bytes.
const MESSAGE_BYTES_MAX: usize = 2_000;
/// 2026-01-01T00:00:00Z.
const START_US: i64 = 1_767_225_600_000_000;
const AMOUNT_MAX: u64 = 1 << 52;
/// Elements of any list: more than the contract allows of each.
const ELEMENTS_MAX: usize = 70;

/// Texts that pass many checks; arbitrary ones are tried as well.
const TEXTS: [&str; 27] = [
    "",
    "a",
    "b",
    "per-minute",
    "A",
    "x-plan",
    "content-length",
    "host",
    "client-ip",
    "header.x",
    "body:/a/0",
    "/a",
    "/a/*/b",
    "/~2",
    "UTC",
    "Europe/Berlin",
    "1",
    "{\"a\":[1]}",
    "\u{e9}\r\n",
    "mine",
    "a b",
    "\0",
    "{x}",
    "Europe/Atlantis",
    "[",
    "text/plain",
    "remaining",
];

/// Amounts at the borders of what is allowed.
const AMOUNTS: [u64; 14] = [
    0,
    1,
    2,
    10,
    600,
    1_000,
    10_000,
    10_001,
    86_400_000,
    34_560_000_000,
    AMOUNT_MAX - 1,
    AMOUNT_MAX,
    AMOUNT_MAX + 1,
    u64::MAX,
];

/// What became of the bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// They ended before the answer did.
    TooShort,
    /// A manifest, accepted or not.
    Manifest,
    RefusedDecision,
    AcceptedDecision,
}

/// Reads one answer from the bytes.
pub fn answers(bytes: &[u8]) -> Answer {
    answer(&mut Unstructured::new(bytes)).unwrap_or(Answer::TooShort)
}

fn answer(bytes: &mut Unstructured<'_>) -> Result<Answer> {
    match bytes.int_in_range(0..=3)? {
        0 => {
            manifest(wit::Manifest {
                request_facts: list(bytes, text)?,
                response_facts: list(bytes, text)?,
                pure: bool::arbitrary(bytes)?,
                limits: rarely(bytes, declared)?,
                warnings: rarely(bytes, warning)?,
                options: options(bytes)?,
            });
            Ok(Answer::Manifest)
        }
        _ => {
            let (decided, settled) = (any_decision(bytes)?, any_settlement(bytes)?);
            let scripts = ["mine".to_owned()];
            let settled = settlement(settled).inspect_err(|message| told(message)).ok();
            settled.iter().for_each(check_settlement);
            match decision(decided, &scripts) {
                Ok(decided) => {
                    check_decision(&decided);
                    let ending = *bytes.choose(&[
                        Ending::Completed,
                        Ending::Unsent,
                        Ending::UpstreamFailed,
                        Ending::ClientGone,
                    ])?;
                    let adjustments = settled.map(|it| it.adjustments).unwrap_or_default();
                    let steps: Vec<i64> = list(bytes, i64::arbitrary)?;
                    charge(&decided, ending, &adjustments, &steps);
                    Ok(Answer::AcceptedDecision)
                }
                Err(message) => {
                    told(&message);
                    Ok(Answer::RefusedDecision)
                }
            }
        }
    }
}

fn told(message: &str) {
    let one_line = !message.contains('\n');
    assert!(!message.is_empty() && message.len() < MESSAGE_BYTES_MAX && one_line, "{message}");
}

fn manifest(mut manifest: wit::Manifest) {
    match facts(&weir::policy::fuzzing::known_facts(), &mut manifest) {
        Ok([request, response]) => {
            for all in [&request, &response] {
                let mut once = all.clone();
                once.sort_unstable();
                once.dedup();
                assert!(all.len() <= 64 && once.len() == all.len(), "{all:?}");
            }
        }
        Err(unknown) => {
            for (found, expected) in &unknown {
                told(found);
                told(expected);
            }
        }
    }
}

fn check_decision(decision: &Decision) {
    let Decision { verdict, upstream_headers, response_headers, labels, settle_with, .. } =
        decision;
    for fields in [upstream_headers, response_headers] {
        check_fields(fields);
    }
    for (name, value) in labels {
        assert!(!name.is_empty() && !value.chars().any(char::is_control), "{name:?} {value:?}");
    }
    assert!(labels.len() <= 16 && settle_with.as_ref().is_none_or(|memo| memo.len() <= 4_096));
    match verdict {
        Verdict::Bypass => {}
        Verdict::Deny(denial) => {
            assert!((400..=599).contains(&denial.status) && denial.reason.len() <= 1_024);
            check_fields(&denial.headers);
        }
        Verdict::Check(plan) => {
            let limits = plan.limits();
            assert!((1..=16).contains(&limits.len()));
            for (index, limit) in limits.iter().enumerate() {
                assert!(limits.iter().take(index).all(|other| other.name != limit.name));
                assert!(limit.cost <= AMOUNT_MAX && limit.key.len() <= 4_096, "{limit:?}");
            }
        }
    }
    if let Some(bodies) = &decision.bodies {
        assert!(bodies.edits.len() <= 16);
        for edit in &bodies.edits {
            // What is written into a body is one value, whatever surrounds it.
            let around = format!("[{},0]", edit.json);
            let read = serde_json::from_str::<Vec<serde_json::Value>>(&around);
            assert!(read.is_ok_and(|values| values.len() == 2), "{}", edit.json);
        }
        check_bodies(bodies, verdict);
    }
}

fn check_bodies(bodies: &Bodies, verdict: &Verdict) {
    assert!(bodies.read_on <= Duration::from_mins(10));
    let limits = match verdict {
        Verdict::Check(plan) => plan.limits(),
        Verdict::Bypass | Verdict::Deny(_) => &[],
    };
    let known =
        |names: &[String]| names.iter().all(|name| limits.iter().any(|limit| limit.name == *name));
    if let Some(partial) = &bodies.partial {
        assert!(known(&partial.limits) && partial.tell.len() <= 16, "{partial:?}");
        assert!(partial.least >= partial.base.max(1), "{partial:?}");
    }
    if let Some(cut) = &bodies.hard_cut {
        assert!(known(&cut.limits) && cut.terms.len() <= 32, "{cut:?}");
        assert!((1..=AMOUNT_MAX).contains(&cut.step), "{cut:?}");
        assert!(cut.terms.iter().all(|term| term.meter < 32 && term.per > 0), "{cut:?}");
    }
}

fn check_fields(fields: &[(String, String)]) {
    assert!(fields.len() <= 32);
    for (name, value) in fields {
        let lower = !name.bytes().any(|byte| byte.is_ascii_uppercase());
        let framing = ["host", "transfer-encoding", "content-length"].contains(&name.as_str());
        assert!(lower && !framing && !is_reserved_field(name), "{name}");
        assert!(http::HeaderName::from_bytes(name.as_bytes()).is_ok(), "{name}");
        let latin: Option<Vec<u8>> = value.chars().map(|c| u8::try_from(c).ok()).collect();
        let latin = latin.expect("characters that stand for a byte each");
        assert!(http::HeaderValue::from_bytes(&latin).is_ok(), "{value:?}");
    }
}

fn check_settlement(settlement: &Settlement) {
    assert!(settlement.adjustments.len() <= 16 && settlement.amounts.len() <= 16);
    let fits = |adjustment: &Adjustment| adjustment.change.units() <= AMOUNT_MAX;
    assert!(settlement.adjustments.iter().all(fits));
}

fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| Builder::new_current_thread().enable_all().build().expect("a runtime"))
}

/// Takes the plan and settles it, at up to four moments. Nothing may panic, and each limit has an
/// outcome.
fn charge(decision: &Decision, ending: Ending, adjustments: &[Adjustment], steps_us: &[i64]) {
    let Verdict::Check(plan) = &decision.verdict else { return };
    let scripted = |limit: &Limit| matches!(limit.algorithm, weir::plan::Algorithm::Script(_));
    if plan.limits().iter().any(scripted) {
        // There is no such file here.
        return;
    }
    let (clock, metrics) = (Clock::simulated_at(START_US), Metrics::new(1));
    let settings = EngineSettings::Embedded(EmbeddedSettings::new(1_000));
    let engine = Engine::build(&settings, clock.clone(), &metrics).expect("an engine");
    let limiter = Limiter::new(Settings::default(), Arc::new(engine), clock.clone(), metrics);
    let scope = Scope::new("p".to_owned(), "p".to_owned(), OnStoreError::Deny, false);
    let scope = Arc::new(scope);
    for step_us in [0].iter().chain(steps_us.iter().take(3)) {
        clock.step(step_us % 1_000_000_000_000_000);
        match runtime().block_on(limiter.take(&scope, plan)) {
            Take::Granted(outcome, grant) => {
                assert_eq!(outcome.limits.len(), plan.limits().len());
                grant.settle(ending, adjustments);
            }
            Take::Refused(outcome) => {
                assert_eq!(outcome.limits.len(), plan.limits().len());
                limiter.empty_grant(&scope, plan).settle(ending, adjustments);
            }
            Take::Unavailable(cause) => panic!("{cause}: {plan:?}"),
        }
    }
}

fn list<'a, T>(
    bytes: &mut Unstructured<'a>,
    mut element: impl FnMut(&mut Unstructured<'a>) -> Result<T>,
) -> Result<Vec<T>> {
    // Mostly short, so that the rest gets something of the bytes, too.
    let length = match bytes.int_in_range(0..=15)? {
        15 => bytes.int_in_range(0..=ELEMENTS_MAX)?,
        14 => bytes.int_in_range(0..=17)?,
        few => few / 5,
    };
    (0..length).map(|_| element(bytes)).collect()
}

fn text(bytes: &mut Unstructured<'_>) -> Result<String> {
    Ok(match bytes.int_in_range(0..=7)? {
        0 => String::arbitrary(bytes)?,
        1 => TEXTS[bytes.int_in_range(0..=TEXTS.len() - 1)?].repeat(bytes.int_in_range(0..=5_000)?),
        2 => format!("l{}", bytes.int_in_range(0..=20)?),
        _ => (*bytes.choose(&TEXTS)?).to_owned(),
    })
}

/// Mostly one of those that pass.
fn usual(bytes: &mut Unstructured<'_>, good: &[&str]) -> Result<String> {
    if bytes.ratio(1, 24)? { text(bytes) } else { Ok((*bytes.choose(good)?).to_owned()) }
}

/// Mostly none, so that most answers are not refused for what few policies use.
fn rarely<'a, T>(
    bytes: &mut Unstructured<'a>,
    element: impl FnMut(&mut Unstructured<'a>) -> Result<T>,
) -> Result<Vec<T>> {
    if bytes.ratio(1, 6)? { list(bytes, element) } else { Ok(Vec::new()) }
}

fn name(bytes: &mut Unstructured<'_>) -> Result<String> {
    usual(bytes, &["a", "b", "c", "d", "e"])
}

fn pointer(bytes: &mut Unstructured<'_>) -> Result<String> {
    usual(bytes, &["/a", "/a/0", "/usage", "/b"])
}

fn field(bytes: &mut Unstructured<'_>) -> Result<(String, String)> {
    Ok((usual(bytes, &["x-a", "x-b", "x-plan"])?, usual(bytes, &["1", "gold", "{a}"])?))
}

fn label(bytes: &mut Unstructured<'_>) -> Result<(String, String)> {
    Ok((usual(bytes, &["plan", "tenant"])?, usual(bytes, &["gold", "\u{e9}"])?))
}

fn amount(bytes: &mut Unstructured<'_>) -> Result<u64> {
    Ok(match bytes.int_in_range(0..=15)? {
        0 => u64::arbitrary(bytes)?,
        1 | 2 => *bytes.choose(&AMOUNTS)?,
        _ => 1 + u64::from(u8::arbitrary(bytes)?),
    })
}

fn maybe<T>(
    bytes: &mut Unstructured<'_>,
    value: impl FnOnce(&mut Unstructured<'_>) -> Result<T>,
) -> Result<Option<T>> {
    if bytes.ratio(1, 6)? { value(bytes).map(Some) } else { Ok(None) }
}

fn rate(bytes: &mut Unstructured<'_>) -> Result<wit::Rate> {
    Ok(wit::Rate { amount: amount(bytes)?, per_ms: amount(bytes)? })
}

fn bucket(bytes: &mut Unstructured<'_>) -> Result<wit::Bucket> {
    Ok(wit::Bucket { burst: amount(bytes)?, rate: rate(bytes)? })
}

fn algorithm(bytes: &mut Unstructured<'_>) -> Result<Algorithm> {
    Ok(match bytes.int_in_range(0..=10)? {
        10 => Algorithm::Named(wit::Named {
            name: usual(bytes, &["gcra", "fixed-window", "quota"])?,
            arguments: list(bytes, |bytes| {
                let names = ["quota", "period-ms", "calendar", "time-zone", "conditional"];
                let value = match bytes.int_in_range(0..=2)? {
                    0 => wit::Value::Text(usual(bytes, &["day", "UTC", "true"])?),
                    _ => wit::Value::Number(amount(bytes)?.cast_signed()),
                };
                Ok((usual(bytes, &names)?, value))
            })?,
        }),
        0 => Algorithm::FixedWindow(wit::FixedWindow {
            rate: rate(bytes)?,
            alignment: *bytes.choose(&[wit::Alignment::FirstRequest, wit::Alignment::Clock])?,
        }),
        1 => Algorithm::SlidingWindowCounter(rate(bytes)?),
        2 => Algorithm::SlidingWindowLog(rate(bytes)?),
        3 => {
            let buckets = u32::try_from(amount(bytes)?).unwrap_or(u32::MAX);
            Algorithm::SlidingWindowBuckets(wit::SlidingBuckets { rate: rate(bytes)?, buckets })
        }
        4 => Algorithm::TokenBucket(bucket(bytes)?),
        5 => Algorithm::Gcra(bucket(bytes)?),
        6 => Algorithm::LeakyBucket(wit::LeakyBucket {
            burst: amount(bytes)?,
            rate: rate(bytes)?,
            max_delay_ms: amount(bytes)?,
        }),
        7 => Algorithm::Concurrency(amount(bytes)?),
        8 => Algorithm::Quota(wit::Quota {
            amount: amount(bytes)?,
            calendar: *bytes.choose(&[
                wit::Calendar::Hour,
                wit::Calendar::Day,
                wit::Calendar::Week,
                wit::Calendar::Month,
                wit::Calendar::Forever,
            ])?,
            time_zone: usual(bytes, &["UTC", "Europe/Berlin"])?,
            anchor_day: bytes.int_in_range(0..=32)?,
            conditional: bool::arbitrary(bytes)?,
        }),
        _ => Algorithm::Script(wit::Script {
            name: usual(bytes, &["mine"])?,
            arguments: list(bytes, i64::arbitrary)?,
        }),
    })
}

fn limit(bytes: &mut Unstructured<'_>) -> Result<wit::Limit> {
    Ok(wit::Limit {
        name: name(bytes)?,
        key: usual(bytes, &["k", "192.0.2.1"])?,
        tag: maybe(bytes, |bytes| usual(bytes, &["t"]))?,
        algorithm: algorithm(bytes)?,
        cost: amount(bytes)?,
        unit: maybe(bytes, |bytes| usual(bytes, &["tokens"]))?,
        enforcement: *bytes.choose(&[wit::Enforcement::Enforce, wit::Enforcement::Shadow])?,
        refund: *bytes.choose(&[
            wit::Refund::Never,
            wit::Refund::Unsent,
            wit::Refund::UpstreamError,
            wit::Refund::BySettle,
        ])?,
        debt: maybe(bytes, |bytes| {
            Ok(match bytes.int_in_range(0..=2)? {
                0 => wit::Debt::Allowance,
                1 => wit::Debt::Window,
                _ => wit::Debt::Units(amount(bytes)?),
            })
        })?,
        on_store_error: *bytes.choose(&[
            wit::Fallback::RouteDefault,
            wit::Fallback::Allow,
            wit::Fallback::Local,
            wit::Fallback::Deny,
        ])?,
        options: options(bytes)?,
    })
}

/// None are known: an answer with one is refused.
fn options(bytes: &mut Unstructured<'_>) -> Result<Vec<(String, String)>> {
    if bytes.ratio(1, 100)? { list(bytes, label) } else { Ok(Vec::new()) }
}

fn declared(bytes: &mut Unstructured<'_>) -> Result<wit::DeclaredLimit> {
    Ok(wit::DeclaredLimit {
        name: name(bytes)?,
        at: text(bytes)?,
        algorithm: algorithm(bytes)?,
        debt: None,
        key_facts: list(bytes, name)?,
        key_prefix: text(bytes)?,
        together: maybe(bytes, text)?,
        cost_max: maybe(bytes, amount)?,
        options: options(bytes)?,
    })
}

fn warning(bytes: &mut Unstructured<'_>) -> Result<wit::Warning> {
    Ok(wit::Warning {
        kind: name(bytes)?,
        path: text(bytes)?,
        message: text(bytes)?,
        beside: list(bytes, label)?,
        remedy: maybe(bytes, text)?,
    })
}

fn denial(bytes: &mut Unstructured<'_>) -> Result<wit::Denial> {
    Ok(wit::Denial {
        status: bytes.int_in_range(390..=610)?,
        reason: text(bytes)?,
        retry_after_ms: maybe(bytes, amount)?,
        headers: rarely(bytes, field)?,
        body: maybe(bytes, |bytes| {
            Ok(wit::Body { media_type: usual(bytes, &["text/plain"])?, text: text(bytes)? })
        })?,
    })
}

fn any_decision(bytes: &mut Unstructured<'_>) -> Result<wit::Decision> {
    Ok(wit::Decision {
        verdict: match bytes.int_in_range(0..=7)? {
            0 => wit::Verdict::Bypass,
            1 => wit::Verdict::Deny(denial(bytes)?),
            _ => wit::Verdict::Check(list(bytes, limit)?),
        },
        upstream_headers: rarely(bytes, field)?,
        response_headers: rarely(bytes, field)?,
        labels: rarely(bytes, label)?,
        settle_with: maybe(bytes, text)?,
        settle_on_refusal: bool::arbitrary(bytes)?,
        body_changes: rarely(bytes, |bytes| {
            let json = usual(bytes, &["1", "null", "{\"a\":[1]}"])?;
            Ok(wit::BodyChange { pointer: pointer(bytes)?, json })
        })?,
        metering: maybe(bytes, metering)?,
        valid_until_ms: maybe(bytes, |bytes| bytes.arbitrary())?,
        options: options(bytes)?,
    })
}

fn metering(bytes: &mut Unstructured<'_>) -> Result<usage::Metering> {
    Ok(usage::Metering {
        meters: list(bytes, |bytes| {
            Ok(usage::Meter { pointer: pointer(bytes)?, gather: gather(bytes)? })
        })?,
        read_on_ms: if bytes.ratio(1, 8)? { u32::arbitrary(bytes)? } else { 0 },
        partial: maybe(bytes, |bytes| {
            Ok(usage::Partial {
                limits: list(bytes, name)?,
                least: amount(bytes)?,
                tell: list(bytes, pointer)?,
                base: amount(bytes)?,
            })
        })?,
        hard_cut: maybe(bytes, |bytes| {
            Ok(usage::HardCut {
                limits: list(bytes, name)?,
                taken: amount(bytes)?,
                step: amount(bytes)?,
                used: usage::Estimate { base: amount(bytes)?, terms: list(bytes, term)? },
            })
        })?,
    })
}

fn gather(bytes: &mut Unstructured<'_>) -> Result<usage::Gather> {
    Ok(*bytes.choose(&[
        usage::Gather::Last,
        usage::Gather::Max,
        usage::Gather::Sum,
        usage::Gather::Bytes,
        usage::Gather::Count,
    ])?)
}

fn term(bytes: &mut Unstructured<'_>) -> Result<usage::Term> {
    Ok(usage::Term {
        group: u32::arbitrary(bytes)?,
        meter: bytes.int_in_range(0..=40)?,
        units: amount(bytes)?,
        per: amount(bytes)?,
    })
}

fn any_settlement(bytes: &mut Unstructured<'_>) -> Result<wit::Settlement> {
    Ok(wit::Settlement {
        adjustments: list(bytes, |bytes| {
            let change = match bytes.int_in_range(0..=4)? {
                0 => wit::Change::Reset,
                1 => wit::Change::Debt(amount(bytes)?),
                2 => wit::Change::Units(i64::arbitrary(bytes)?),
                _ => wit::Change::Units(amount(bytes)?.cast_signed().wrapping_neg()),
            };
            Ok(wit::Adjustment { limit: name(bytes)?, change })
        })?,
        labels: rarely(bytes, label)?,
        amounts: list(bytes, |bytes| Ok((name(bytes)?, amount(bytes)?)))?,
        options: options(bytes)?,
    })
}
