//! Guests of each version of the contract that is kept, built once with that version's SDK
//! (`tests/guests/kept`). Every later version of the proxy serves them as the first one did. A
//! guest that fails here is not built again: the proxy has to change.

use wasmparser::{Parser, Payload};

use super::*;
use crate::plan::{
    Adjustment, Algorithm, Alignment, Calendar, Change, Debt, FixedWindow, Gcra, Rate, Refund,
    TimeZone,
};

/// Maximum size of a guest, in bytes: it is part of the repository.
const BYTES_MAX: usize = 96 << 10;

fn kept(name: &str) -> Vec<u8> {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/guests/kept");
    let guest = std::fs::read(folder.join(name)).unwrap();
    assert!(guest.len() <= BYTES_MAX, "{name}: {} bytes", guest.len());
    guest
}

/// The plain module that a component was made of.
fn module(component: &[u8]) -> Vec<u8> {
    let mut payloads = Parser::new(0).parse_all(component).map(Result::unwrap);
    let range = payloads.find_map(|payload| match payload {
        Payload::ModuleSection { unchecked_range, .. } => Some(unchecked_range),
        _ => None,
    });
    component[range.unwrap()].to_vec()
}

/// As a component, which carries the types that it was built for, and as a module.
fn guests(name: &str) -> [Module; 2] {
    let component = kept(name);
    [bytes(module(&component)), bytes(component)]
}

fn decide(policy: &Policy, query: &str) -> Arc<Decision> {
    policy.decide(&[("query", query)]).unwrap_or_else(|error| panic!("{query}: {error}"))
}

#[test]
fn a_guest_of_0_9_0_says_what_it_reads_and_declares() {
    for guest in guests("contract-0.9.0.wasm") {
        let policy = build(&settings(guest.clone(), "{}")).unwrap();
        assert_eq!(policy.request_facts(), ["query", "client-ip"]);
        assert_eq!(policy.response_facts(), ["header.x-cost"]);
        assert!(policy.remembers());
        let rate = Rate { amount: 6, per_ms: 1_000 };
        let declared = DeclaredLimit {
            name: "gcra".into(),
            at: "limits[0]".into(),
            algorithm: Algorithm::Gcra(Gcra { burst: 9, rate, debt: Debt::Units(7) }),
            key_facts: vec!["query".into()],
            key_prefix: "gold/".into(),
            together: Some("limits".into()),
            cost_max: Some(2),
            lease: None,
        };
        assert_eq!(policy.limits(), [declared]);
        let warning = Warning {
            kind: "kept".into(),
            at: "limits[0].quota".into(),
            text: "it is small".into(),
            beside: vec![("limits[1].quota".into(), "this is larger".into())],
            remedy: Some("raise it".into()),
        };
        assert_eq!(policy.warnings(), [warning]);
        let lint = policy.lints().remove(0);
        assert_eq!((&*lint.name, &*lint.setting), ("policy.kept", "config.limits[0].quota"));
        assert_eq!(lint.beside, [("config.limits[1].quota".into(), "this is larger".into())]);
        let errors = build(&settings(guest, r#"{"key": "wrong"}"#)).unwrap_err();
        assert_eq!((errors.len(), errors[0].setting.as_str()), (1, "config.key"));
        assert_eq!((&*errors[0].found, &*errors[0].expected), ("\"wrong\"", "\"right\""));
    }
}

#[test]
fn a_guest_of_0_9_0_decides_with_all_that_the_contract_has() {
    for guest in guests("contract-0.9.0.wasm") {
        let policy = build(&settings(guest, "{}")).unwrap();
        let decision = decide(&policy, "algorithms");
        let limits = plan(&decision).limits();
        let names: Vec<_> =
            limits.iter().map(|it| (it.name.as_str(), it.algorithm.name())).collect();
        let expected = [
            ("fixed", "fixed_window"),
            ("counter", "sliding_window_counter"),
            ("log", "sliding_window_log"),
            ("buckets", "sliding_window_buckets"),
            ("token", "token_bucket"),
            ("gcra", "gcra"),
            ("leaky", "leaky_bucket"),
            ("flight", "concurrency"),
            ("month", "quota"),
            ("script", "mine"),
            ("named", "fixed_window"),
        ];
        assert_eq!(names, expected);
        let rate = Rate { amount: 6, per_ms: 1_000 };
        let window = FixedWindow { rate, alignment: Alignment::Clock, debt: Debt::None };
        assert_eq!(limits[0].algorithm, Algorithm::FixedWindow(window));
        assert_eq!(limits[10].algorithm, limits[0].algorithm, "by its name");
        let Algorithm::Quota(month) = &limits[8].algorithm else { panic!("{limits:?}") };
        let time_zone = TimeZone::named("Europe/Berlin").unwrap();
        assert_eq!(month.calendar, Calendar::Month { time_zone, anchor_day: 31 });
        let first = &limits[0];
        assert_eq!((first.key.as_str(), first.tag.as_deref(), first.cost), ("k", Some("t"), 2));
        assert_eq!((first.unit.as_deref(), first.refund), (Some("units"), Refund::BySettle));
        assert_eq!(decision.upstream_headers, [("x-plan".to_owned(), "gold".to_owned())]);
        assert_eq!(decision.response_headers, [("x-seen".to_owned(), "yes".to_owned())]);
        assert_eq!(decision.labels, [("kept".to_owned(), "0.9.0".to_owned())]);
        assert_eq!(decision.settle_with.as_deref(), Some("memo"));
        assert!(decision.settle_on_refusal);
        assert_eq!(decision.bodies.as_ref().unwrap().edits.len(), 1);
        let metered = decide(&policy, "metered");
        let bodies = metered.bodies.as_ref().unwrap();
        let cut = bodies.hard_cut.as_ref().unwrap();
        assert_eq!((cut.taken, cut.step, cut.base, cut.terms.len()), (2, 4, 1, 1));
        assert_eq!(bodies.read_on, Duration::from_secs(5));
        let partial = decide(&policy, "partial");
        let partial = partial.bodies.as_ref().unwrap().partial.clone().unwrap();
        assert_eq!((partial.limits, partial.least, partial.base), (vec!["tokens".into()], 2, 1));
        let Verdict::Deny(denial) = &decide(&policy, "deny").verdict else { panic!() };
        assert_eq!((denial.status, denial.retry_after_ms), (403, Some(5_000)));
        assert_eq!(denial.body.as_ref().unwrap().1, "{}");
        let error = policy.decide(&[("query", "option")]).unwrap_err();
        assert!(error.to_string().contains("limits[0].options: found \"colour\""), "{error}");
        assert_eq!(policy.decide(&[("query", "error")]).unwrap_err().cause, Cause::Guest);
    }
}

#[test]
fn a_guest_of_0_9_0_is_told_the_time_and_remembered_until_it_says() {
    // 2026-03-28T22:59:30Z, a Saturday: the clocks of Berlin are put forward in the night after it.
    let clock = crate::clock::Clock::virtual_at(1_774_738_770_000_000);
    let small = RuntimeSettings { instances: 2, ..RuntimeSettings::default() };
    let runtime = Runtime::timed(&small, fuzzing::known_facts(), clock.clone()).unwrap();
    for guest in guests("contract-0.9.0.wasm") {
        let policy = Policy::build(&runtime, &settings(guest, "{}"), &Metrics::new(1)).unwrap();
        let first = decide(&policy, "timed");
        let labels: Vec<_> = first.labels.iter().map(|(_, value)| value.as_str()).collect();
        let change = 1_774_746_000_000_u64;
        assert_eq!(labels, [&*format!("2026-03-28 23:59:30 6+3600 {change}"), "true true"]);
        clock.step(29_999_000);
        assert!(Arc::ptr_eq(&first, &decide(&policy, "timed")));
        clock.step(1_000);
        assert!(!Arc::ptr_eq(&first, &decide(&policy, "timed")), "its time is over");
        clock.set(1_774_738_770_000_000);
    }
}

#[test]
fn a_guest_of_0_9_0_settles() {
    use ResponseOutcome::{
        ClientGone, Completed, Overdue, Refused, TimedOut, Unsent, UpstreamFailed,
    };
    for guest in guests("contract-0.9.0.wasm") {
        let policy = build(&settings(guest, "{}")).unwrap();
        let limit = |name: &str, fits, resets_ms| LimitResult {
            name: name.into(),
            fits,
            remaining: 3,
            resets_ms,
        };
        let view = |outcome, by_upstream| ResponseView {
            outcome,
            status: 201,
            by_upstream,
            facts: vec![("header.x-cost".into(), "7".into())],
            limits: vec![limit("a", true, Some(250)), limit("b", false, None)],
        };
        for (outcome, word) in [
            (Completed, "completed"),
            (Unsent, "unsent"),
            (TimedOut, "timed-out"),
            (UpstreamFailed, "upstream-failed"),
            (ClientGone, "client-gone"),
            (Overdue, "overdue"),
            (Refused, "refused"),
        ] {
            for (by_upstream, origin) in [(true, "upstream"), (false, "proxy")] {
                let settled = policy.settle("memo", &view(outcome, by_upstream)).unwrap();
                let told = "header.x-cost=7, a true 3 250, b false 3 unknown";
                let expected = [
                    ("ended".to_owned(), format!("memo {word} 201 {origin}")),
                    ("told".to_owned(), told.to_owned()),
                ];
                assert_eq!(settled.labels, expected);
                assert_eq!(settled.amounts, [("tokens".to_owned(), 3)]);
                let changes =
                    [("a", Change::Units(-1)), ("b", Change::Debt(2)), ("c", Change::Reset)];
                let changes =
                    changes.map(|(limit, change)| Adjustment { limit: limit.into(), change });
                assert_eq!(settled.adjustments, changes);
            }
        }
    }
}

/// A guest of a later patch: the same shapes under another label.
#[test]
fn a_guest_with_another_patch_is_served_as_it_is() {
    let relabelled = |module: Vec<u8>, label: &[u8; 5]| {
        let mut module = module;
        while let Some(at) = module.windows(6).position(|window| window == b"@0.9.0") {
            module[at + 1..at + 6].copy_from_slice(label);
        }
        bytes(module)
    };
    let component = kept("contract-0.9.0.wasm");
    for guest in [module(&component), component] {
        let policy = build(&settings(relabelled(guest.clone(), b"0.9.7"), "{}")).unwrap();
        assert_eq!(plan(&decide(&policy, "algorithms")).limits().len(), 11);
        let errors = build(&settings(relabelled(guest, b"1.0.0"), "{}")).unwrap_err();
        assert_eq!((errors.len(), errors[0].setting.as_str()), (1, "wasm"));
        assert_eq!(errors[0].found, "a guest of `weir:policy@1.0.0`");
        let expected = &errors[0].expected;
        assert!(expected.contains("build it again with the SDK of this Weir"), "{expected}");
    }
}
