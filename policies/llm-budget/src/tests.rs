//! The policy on the host: what is reserved, what it is settled to, and what each mistake says.

mod asking;
mod cutting;
mod mistakes;
mod pricing;
mod references;
mod reserving;
mod settling;
mod warnings;

use weir_policy::testing::Instance;
use weir_policy::{Change, Decision, HardCut, Meter, Outcome, Partial, ResponseView, Verdict};

use crate::LlmBudget;

const CHAT: &str = "/v1/chat/completions";
const MESSAGES: &str = "/v1/messages";
const GENERATE: &str = "/v1beta/models/gemini-pro:streamGenerateContent";

/// Prices for tests: 2.5 and 10 dollars a million, less for the small model.
const MODELS: &str = r#""models": {
    "gpt-4o": {"input": 2500000, "output": 10000000, "max_output": 2000},
    "gpt-4o-mini*": {"input": 150000, "output": 600000},
    "gpt-4o-mini-high*": {"input": 1100000, "output": 4400000},
    "free": {"input": 0, "output": 0}}"#;

/// A list with one limit of this quota, in a fixed window of a minute.
fn list(setting: &str, name: &str, quota: u64) -> String {
    format!(r#""{setting}": [{}]"#, limit(name, quota))
}

fn limit(name: &str, quota: u64) -> String {
    format!(
        r#"{{"name": "{name}", "algorithm": "fixed_window", "quota": {quota}, "period": "1m"}}"#
    )
}

/// A large limit in `tokens`, so that nothing is lowered.
fn tokens() -> String {
    list("tokens", "all", 1_000_000)
}

/// One large limit in each list that is settled.
fn all_lists() -> String {
    ["tokens", "input_tokens", "output_tokens", "money"]
        .map(|setting| list(setting, &setting.replace('_', "-"), 1_000_000_000))
        .join(",")
}

fn openai(more: &str) -> Instance<LlmBudget> {
    Instance::new(&format!(r#"{{"api": "openai", {more}}}"#)).unwrap()
}

fn of(api: &str, more: &str) -> Instance<LlmBudget> {
    Instance::new(&format!(r#"{{"api": "{api}", {more}}}"#)).unwrap()
}

/// The facts of a request with a body of 300 bytes, about 100 tokens.
fn post<'a>(path: &'a str, more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    let mut facts = vec![
        ("method", "POST"),
        ("path", path),
        ("client-ip", "192.0.2.1"),
        ("body.type", "json"),
        ("body.bytes", "300"),
    ];
    facts.extend(more);
    facts
}

fn decide(policy: &Instance<LlmBudget>, facts: &[(&str, &str)]) -> Decision {
    policy.decide(facts).unwrap()
}

fn costs(decision: &Decision) -> Vec<(&str, u64)> {
    decision.limits().iter().map(|limit| (limit.name.as_str(), limit.cost)).collect()
}

/// The cost of the only limit.
fn cost(policy: &Instance<LlmBudget>, facts: &[(&str, &str)]) -> u64 {
    let decision = decide(policy, facts);
    assert_eq!(decision.limits().len(), 1, "{:?}", decision.verdict);
    decision.limits()[0].cost
}

/// The status of a refusal, and its reason.
fn refusal(policy: &Instance<LlmBudget>, facts: &[(&str, &str)]) -> (u16, String) {
    match decide(policy, facts).verdict {
        Verdict::Deny(denial) => (denial.status, denial.reason),
        other => panic!("{facts:?}: {other:?}"),
    }
}

fn changes(decision: &Decision) -> Vec<(&str, &str)> {
    let changes = decision.body_changes.iter();
    changes.map(|change| (change.pointer.as_str(), change.json.as_str())).collect()
}

fn meters(decision: &Decision) -> Vec<Meter> {
    decision.metering.as_ref().map_or_else(Vec::new, |metering| metering.meters.clone())
}

fn partial(decision: &Decision) -> Option<Partial> {
    decision.metering.as_ref()?.partial.clone()
}

fn hard_cut(decision: &Decision) -> Option<HardCut> {
    decision.metering.as_ref()?.hard_cut.clone()
}

fn read_on_ms(decision: &Decision) -> u32 {
    decision.metering.as_ref().map_or(0, |metering| metering.read_on_ms)
}

fn label(decision: &Decision) -> &str {
    assert_eq!(decision.labels.len(), 1);
    assert_eq!(decision.labels[0].0, "model");
    &decision.labels[0].1
}

fn ended(outcome: Outcome, status: u16, facts: &[(&str, &str)]) -> ResponseView {
    let view = ResponseView::new(outcome, status);
    facts.iter().fold(view, |view, (name, value)| view.with_fact(*name, *value))
}

fn completed(facts: &[(&str, &str)]) -> ResponseView {
    ended(Outcome::Completed, 200, facts)
}

/// What a reply changes: below zero what is given back, above what is owed.
fn settled(
    policy: &Instance<LlmBudget>,
    facts: &[(&str, &str)],
    view: &ResponseView,
) -> Vec<(String, i64)> {
    let memo = decide(policy, facts).settle_with.unwrap();
    let adjustments = policy.settle(&memo, view).unwrap().adjustments;
    let units = |change: &Change| match change {
        Change::Units(units) => {
            assert!(*units < 0, "what is charged must not be dropped: {units}");
            *units
        }
        Change::Debt(units) => i64::try_from(*units).unwrap(),
        Change::Reset => panic!("nothing is reset"),
    };
    adjustments.iter().map(|it| (it.limit.clone(), units(&it.change))).collect()
}

/// What a reply changes of the only limit.
fn change(policy: &Instance<LlmBudget>, facts: &[(&str, &str)], view: &ResponseView) -> i64 {
    let all = settled(policy, facts, view);
    assert!(all.len() <= 1, "{all:?}");
    all.first().map_or(0, |(_, units)| *units)
}
