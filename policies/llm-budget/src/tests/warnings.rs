//! What a configuration is warned of.

use super::*;

/// The settings of the warnings of one kind, each with the one that is shown beside it.
fn warned(kind: &str, config: &str) -> Vec<(String, String)> {
    let policy = Instance::<LlmBudget>::new(&format!(r#"{{"api": "openai", {config}}}"#)).unwrap();
    let warnings = policy.manifest().warnings.into_iter().filter(|warning| warning.kind == kind);
    warnings.map(|warning| (warning.path, warning.beside[0].0.clone())).collect()
}

fn pair(one: &str, other: &str) -> Vec<(String, String)> {
    vec![(one.to_owned(), other.to_owned())]
}

#[test]
fn a_requests_reservation_is_compared_with_its_limits() {
    let llm = |config: &str| warned("small-budget", config);
    let list = |name: &str, quota: u64| {
        format!(
            r#""{name}": [{{"name": "a", "algorithm": "fixed_window", "quota": {quota}, "period": "1m"}}]"#
        )
    };
    let default = "default_max_output";
    assert_eq!(llm(&list("tokens", 4_095)), pair("tokens[0].quota", default));
    assert_eq!(llm(&list("tokens", 4_096)), []);
    assert_eq!(llm(&format!(r#"{}, "default_max_output": 99"#, list("tokens", 100))), []);
    assert_eq!(llm(&format!(r#"{}, "hard_cut": 64"#, list("tokens", 100))), []);
    let models = r#""models": {"*": {"max_output": 50, "input": 1, "output": 30000000}}"#;
    assert_eq!(llm(&format!("{}, {models}", list("output_tokens", 50))), []);
    assert_eq!(
        llm(&format!("{}, {models}", list("money", 1_499))),
        pair("money[0].quota", "models.*.max_output")
    );
    assert_eq!(llm(&format!("{}, {models}", list("money", 1_500))), []);
    let bucket = r#""tokens": [{"name": "a", "algorithm": "gcra", "quota": 9000, "period": "1m", "burst": 9}]"#;
    assert_eq!(llm(bucket), pair("tokens[0].burst", default));
}

#[test]
fn a_price_of_all_other_models_that_is_lower_than_one_of_them_is_reported() {
    let found = |limits: &str, others: &str| {
        warned(
            "cheap-others",
            &format!(
                r#"{limits}, "models": {{"big*": {{"input": 5, "output": 9}}, "small": {{"input": 1, "output": 1}}, "*": {others}}}"#
            ),
        )
    };
    let money = r#""money": [{"name": "a", "algorithm": "fixed_window", "quota": 1000000, "period": "1m"}]"#;
    let of = |kind: &str| (format!("models.*.{kind}"), format!("models.big*.{kind}"));
    assert_eq!(found(money, r#"{"input": 4, "output": 9}"#), [of("input")]);
    assert_eq!(found(money, r#"{"input": 4, "output": 8}"#), [of("input"), of("output")]);
    assert_eq!(found(money, r#"{"input": 5, "output": 10}"#), []);
    let tokens = money.replace("money", "tokens");
    assert_eq!(found(&tokens, r#"{"input": 4, "output": 9}"#), [], "prices don't matter");
}

#[test]
fn budgets_are_charged_by_what_requests_use_and_not_alike() {
    let two = r#"{"api": "openai", "tokens": [
        {"name": "a", "algorithm": "fixed_window", "quota": 5000, "period": "1m"},
        {"name": "b", "algorithm": "fixed_window", "quota": 9000, "period": "1m"}]}"#;
    let declared = Instance::<LlmBudget>::new(two).unwrap().manifest().limits;
    let told = declared.iter().map(|one| (&*one.name, one.together.is_some(), one.cost_max));
    let expected =
        [("a", false, Some(5_000)), ("b", false, Some(9_000)), ("in-flight", false, Some(1))];
    assert_eq!(told.collect::<Vec<_>>(), expected);
}
