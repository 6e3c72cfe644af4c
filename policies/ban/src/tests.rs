//! The policy on the host: which limits a decision has, and what each reply charges.

use weir_policy::testing::Instance;
use weir_policy::{Algorithm, Change, Enforcement, Verdict};

use super::*;

const CONFIG: &str = r#"{"ban": "15m", "strikes": {"quota": 3, "period": "1m"}, "statuses": [401],
    "limits": [{"name": "a", "algorithm": "gcra", "quota": 10, "period": "1s"}]}"#;

fn policy(config: &str) -> Instance<Ban> {
    Instance::new(config).unwrap_or_else(|mistakes| panic!("{mistakes:?}"))
}

fn with(more: &str) -> String {
    CONFIG.replacen('{', &format!("{{{more}, "), 1)
}

fn settled(
    config: &str,
    outcome: Outcome,
    status: u16,
    limits: &[(&str, bool, u64)],
) -> Settlement {
    let results = limits.iter().map(|(name, fits, left)| LimitResult::new(*name, *fits, *left));
    let view = results.fold(ResponseView::new(outcome, status), ResponseView::with_limit);
    policy(config).settle("", &view).unwrap()
}

fn changes(settlement: Settlement) -> Vec<(String, Change)> {
    settlement.adjustments.into_iter().map(|one| (one.limit, one.change)).collect()
}

fn strike() -> Vec<(String, Change)> {
    vec![(STRIKES.to_owned(), Change::Units(1))]
}

fn ban() -> Vec<(String, Change)> {
    vec![(BAN.to_owned(), Change::Units(1)), (STRIKES.to_owned(), Change::Reset)]
}

#[test]
fn a_decision_has_the_limits_and_two_that_are_only_looked_at() {
    let decision = policy(CONFIG).decide(&[("client-ip", "192.0.2.1")]).unwrap();
    assert!(decision.settle_on_refusal && decision.settle_with.is_some());
    let limits: Vec<_> = decision
        .limits()
        .iter()
        .map(|limit| (limit.name.as_str(), limit.key.as_str(), limit.cost, limit.enforcement))
        .collect();
    let enforced = Enforcement::Enforce;
    assert_eq!(
        limits,
        [
            ("a", "192.0.2.1", 1, enforced),
            (STRIKES, "192.0.2.1", 0, enforced),
            (BAN, "192.0.2.1", 0, enforced)
        ]
    );
    let Algorithm::FixedWindow(window) = &decision.limits()[2].algorithm else { panic!() };
    assert_eq!((window.rate.amount, window.rate.per_ms), (1, 900_000));
}

#[test]
fn each_refusal_is_a_strike_and_the_last_one_a_ban() {
    let refused = |strikes: (bool, u64)| {
        let limits = [("a", false, 0), (STRIKES, strikes.0, strikes.1), (BAN, true, 1)];
        changes(settled(CONFIG, Outcome::Refused, 429, &limits))
    };
    assert_eq!(refused((true, 3)), strike());
    assert_eq!(refused((true, 2)), strike());
    assert_eq!(refused((true, 1)), ban());
    // Several at once have used them up.
    assert_eq!(refused((false, 0)), ban());
    let limits = [(STRIKES, true, 1), (BAN, true, 1)];
    let begins = settled(CONFIG, Outcome::Refused, 429, &limits);
    assert_eq!(begins.labels, [("ban".to_owned(), "begins".to_owned())]);
}

#[test]
fn an_admitted_request_is_no_strike_unless_its_status_is_named() {
    for (outcome, status, strikes, expected) in [
        (Outcome::Completed, 200, 1, vec![]),
        (Outcome::Completed, 401, 3, strike()),
        (Outcome::Completed, 401, 1, ban()),
        (Outcome::ClientGone, 401, 3, strike()),
        (Outcome::ClientGone, 499, 3, vec![]),
        (Outcome::UpstreamFailed, 502, 3, vec![]),
    ] {
        let limits = [("a", true, 5), (STRIKES, true, strikes), (BAN, true, 1)];
        assert_eq!(changes(settled(CONFIG, outcome, status, &limits)), expected, "{status}");
    }
}

#[test]
fn a_request_during_a_ban_changes_nothing_unless_it_extends_it() {
    let limits = [("a", false, 0), (STRIKES, true, 3), (BAN, false, 0)];
    assert_eq!(changes(settled(CONFIG, Outcome::Refused, 429, &limits)), []);
    let extended = with(r#""extend": true"#);
    let found = changes(settled(&extended, Outcome::Refused, 429, &limits));
    assert_eq!(found, [(BAN.to_owned(), Change::Debt(1))]);
    let decision = policy(&extended).decide(&[("client-ip", "192.0.2.1")]).unwrap();
    assert!(matches!(decision.limits()[2].algorithm, Algorithm::SlidingWindowBuckets(_)));
    assert!(decision.limits()[2].debt.is_some());
    for length in ["1s", "400d"] {
        let policy = policy(&extended.replace("15m", length));
        assert_eq!(policy.decide(&[("client-ip", "192.0.2.1")]).unwrap().limits().len(), 3);
    }
}

#[test]
fn a_ban_may_only_be_reported() {
    let decision =
        policy(&with(r#""shadow": true"#)).decide(&[("client-ip", "192.0.2.1")]).unwrap();
    let shadow: Vec<bool> =
        decision.limits().iter().map(|limit| limit.enforcement == Enforcement::Shadow).collect();
    assert_eq!(shadow, [false, true, true]);
}

#[test]
fn the_banned_clients_may_be_chosen() {
    let keyed = policy(&with(r#""key": "{header.x-api-key}""#));
    let keys = |facts: &[(&str, &str)]| -> Vec<String> {
        keyed.decide(facts).unwrap().limits().iter().map(|limit| limit.key.clone()).collect()
    };
    let address = ("client-ip", "2001:db8::1");
    assert_eq!(keys(&[address, ("header.x-api-key", "k")]), ["k", "k", "k"]);
    let two = [address, ("header.x-api-key", "k"), ("header.x-api-key", "l")];
    assert_eq!(keys(&two)[2], "\\@2001:db8::/64");
    let skip = policy(&with(r#""key": "{header.x-api-key}", "missing": "skip""#));
    assert_eq!(skip.decide(&[address]).unwrap().limits(), []);
    assert_eq!(changes(settled(CONFIG, Outcome::Completed, 401, &[])), []);
    let bypass = policy(&with(r#""bypass": ["2001:db8::/32"]"#));
    assert_eq!(bypass.decide(&[address]).unwrap().verdict, Verdict::Bypass);
}

#[test]
fn limits_are_optional_where_statuses_are_strikes() {
    let config = r#"{"ban": "1h", "strikes": {"quota": 1, "period": "1s"}, "statuses": [404]}"#;
    let decision = policy(config).decide(&[("client-ip", "192.0.2.1")]).unwrap();
    assert_eq!(decision.limits().len(), 2);
}

#[test]
fn errors_are_reported_where_they_stand() {
    let limit = r#"{"name": "a", "algorithm": "gcra", "quota": 10, "period": "1s"}"#;
    let many: Vec<String> =
        (0..15).map(|index| limit.replace("\"a\"", &format!("\"a{index}\""))).collect();
    for (from, to, expected) in [
        ("\"15m\"", "\"15\"", "ban: found \"15\", expected a duration from \"1s\""),
        ("\"15m\"", "15", "ban: found 15, expected a duration from \"1s\""),
        ("\"quota\": 3", "\"quota\": 0", "strikes.quota: found 0, expected 1 to 10000"),
        ("\"quota\": 3", "\"quota\": 10001", "strikes.quota: found 10001, expected 1 to 10000"),
        ("\"quota\": 3, ", "", "strikes: found no `quota`, expected this setting"),
        ("\"1m\"", "\"1x\"", "strikes.period: found \"1x\", expected a duration"),
        ("401", "99", "statuses[0]: found 99, expected a status from 200 to 599"),
        ("\"a\"", "\"ban\"", "limits[0].name: found \"ban\", expected a name that this policy"),
        ("\"gcra\"", "\"gcar\"", "limits[0].algorithm: found the unknown word `gcar`"),
        (
            "\"quota\": 10",
            "\"refund\": \"by_settle\", \"quota\": 10",
            "limits[0].refund: found \"by_settle\", expected another refund",
        ),
        (limit, &many.join(", "), "limits: found 15 limits, expected at most 14"),
    ] {
        assert!(CONFIG.contains(from), "{from}");
        let mistakes = Instance::<Ban>::new(&CONFIG.replacen(from, to, 1)).unwrap_err();
        let found: Vec<_> =
            mistakes.iter().map(|one| format!("{}: {}", one.path, one.message)).collect();
        assert!(found.len() == 1 && found[0].starts_with(expected), "{to}: {found:#?}");
    }
    let none = r#"{"ban": "1h", "strikes": {"quota": 1, "period": "1s"}}"#;
    let found = Instance::<Ban>::new(none).unwrap_err();
    assert!(found[0].message.starts_with("found no `limits`"), "{found:?}");
}
