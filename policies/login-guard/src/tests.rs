//! The policy on the host: what is an attempt and for which account, what is charged for it, and
//! what each reply gives back or resets.

use weir_policy::testing::Instance;
use weir_policy::{Change, Outcome, Verdict};

use super::*;

const FORM: &str = r#"{"account": "{form.username}", "success": [302]}"#;
const JSON: &str = r#"{"account": "{body:/user/email}", "success": [200]}"#;
const ALL: &str = r#"{"account": "{form.username}", "success": [302],
    "by_pair": [{"name": "pair", "algorithm": "gcra", "quota": 5, "period": "15m"}],
    "by_address": [{"name": "address", "algorithm": "fixed_window", "quota": 50, "period": "15m", "cost": 2}],
    "by_account": [{"name": "account", "algorithm": "fixed_window", "quota": 90, "period": "1d"}]}"#;

fn policy(config: &str) -> Instance<LoginGuard> {
    Instance::new(config).unwrap_or_else(|mistakes| panic!("{mistakes:?}"))
}

/// The decision about an attempt with these facts, besides those of every attempt.
fn decide(policy: &Instance<LoginGuard>, facts: &[(&str, &str)]) -> Decision {
    let head = [("client-ip", "192.0.2.1"), ("method", "POST")];
    policy.decide(&[&head[..], facts].concat()).unwrap()
}

/// The keys that are charged, or the reason for a refusal.
fn keys(policy: &Instance<LoginGuard>, facts: &[(&str, &str)]) -> Result<Vec<String>, String> {
    let decision = decide(policy, facts);
    match decision.verdict {
        Verdict::Deny(denial) => {
            assert_eq!(denial.status, 400);
            Err(denial.reason)
        }
        _ => Ok(decision.limits().iter().map(|limit| limit.key.clone()).collect()),
    }
}

/// The account that is counted.
fn account(config: &str, facts: &[(&str, &str)]) -> Result<String, String> {
    let pair = keys(&policy(config), facts)?.remove(0);
    Ok(pair.strip_prefix("192.0.2.1 ").unwrap().to_owned())
}

fn settled(config: &str, status: u16, outcome: Outcome) -> Vec<(String, Change)> {
    let policy = policy(config);
    let memo = decide(&policy, &[("form.username", "ann")]).settle_with.unwrap();
    let view = ResponseView::new(outcome, status);
    let settlement = policy.settle(&memo, &view).unwrap();
    let failed = settlement.adjustments.is_empty();
    assert_eq!(settlement.labels[0].1 == "failed", failed, "{settlement:?}");
    settlement.adjustments.into_iter().map(|one| (one.limit, one.change)).collect()
}

fn changes(expected: &[(&str, Change)]) -> Vec<(String, Change)> {
    expected.iter().map(|(name, change)| ((*name).to_owned(), *change)).collect()
}

fn mistakes(config: &str) -> Vec<String> {
    let mistakes = Instance::<LoginGuard>::new(config).unwrap_err();
    mistakes.iter().map(|mistake| format!("{}: {}", mistake.path, mistake.message)).collect()
}

#[test]
fn a_failure_stays_charged_a_success_resets_its_account_and_all_else_is_given_back() {
    let nothing = changes(&[]);
    let reset = changes(&[
        ("pair", Change::Reset),
        ("address", Change::Units(-2)),
        ("account", Change::Reset),
    ]);
    let back = changes(&[
        ("pair", Change::Units(-1)),
        ("address", Change::Units(-2)),
        ("account", Change::Units(-1)),
    ]);
    for (status, outcome, expected) in [
        (401, Outcome::Completed, &nothing),
        // What is not a success is a failure, unless the upstream failed.
        (200, Outcome::Completed, &nothing),
        (404, Outcome::Completed, &nothing),
        (302, Outcome::Completed, &reset),
        (302, Outcome::ClientGone, &reset),
        (500, Outcome::UpstreamFailed, &back),
        (502, Outcome::UpstreamFailed, &back),
        // The client has seen the status of a reply that broke off.
        (401, Outcome::UpstreamFailed, &nothing),
        (499, Outcome::ClientGone, &nothing),
        (503, Outcome::ClientGone, &nothing),
    ] {
        assert_eq!(&settled(ALL, status, outcome), expected, "{status} {outcome:?}");
    }
}

#[test]
fn statuses_of_failures_may_be_named() {
    let config = ALL.replacen('{', r#"{"failure": [401, "5xx"], "#, 1);
    for (status, outcome, failed) in [
        (401, Outcome::Completed, true),
        (500, Outcome::UpstreamFailed, true),
        (404, Outcome::Completed, false),
        (499, Outcome::ClientGone, true),
    ] {
        assert_eq!(settled(&config, status, outcome).is_empty(), failed, "{status}");
    }
}

#[test]
fn only_the_configured_methods_are_attempts() {
    for (config, method, counted) in [
        (FORM.to_owned(), "POST", true),
        (FORM.to_owned(), "GET", false),
        (FORM.to_owned(), "HEAD", false),
        (FORM.replacen('{', r#"{"methods": ["PUT"], "#, 1), "PUT", true),
        (FORM.replacen('{', r#"{"methods": ["PUT"], "#, 1), "POST", false),
    ] {
        let facts = [("client-ip", "192.0.2.1"), ("method", method), ("form.username", "ann")];
        let decision = policy(&config).decide(&facts).unwrap();
        let found = (decision.verdict != Verdict::Bypass, decision.settle_with.is_some());
        assert_eq!(found, (counted, counted), "{method}");
    }
}

#[test]
fn each_list_counts_by_its_own_key() {
    let policy = policy(ALL);
    let ann = [("form.username", "ann")];
    assert_eq!(keys(&policy, &ann).unwrap(), ["192.0.2.1 ann", "192.0.2.1", "ann"]);
    let decision = decide(&policy, &ann);
    let tags: Vec<_> = decision.limits().iter().map(|limit| limit.tag.as_deref()).collect();
    assert_eq!(tags, [Some("192.0.2.1"), None, None]);
    // What is left of the account is not shown: others may have failed at it.
    let units: Vec<_> = decision.limits().iter().map(|limit| limit.unit.as_deref()).collect();
    assert_eq!(units, [None, None, Some("")]);
    assert!(decision.limits().iter().all(|limit| limit.refund == Refund::BySettle));
    let facts = [("client-ip", "2001:db8::7"), ("method", "POST"), ("form.username", "ann")];
    let decision = policy.decide(&facts).unwrap();
    assert_eq!(decision.limits()[0].key, "2001:db8::/64 ann");
}

#[test]
fn without_lists_the_pair_and_the_address_are_limited() {
    let decision = decide(&policy(FORM), &[("form.username", "ann")]);
    let names: Vec<_> = decision.limits().iter().map(|limit| limit.name.as_str()).collect();
    assert_eq!(names, ["pair", "address"]);
}

#[test]
fn one_account_has_one_spelling() {
    for spelling in ["ann", "Ann", " ann", "ANN\t", "\u{c2}\u{a0}ann", "ann\0"] {
        assert_eq!(account(FORM, &[("form.username", spelling)]).unwrap(), "ann", "{spelling:?}");
    }
    let wide = [("body.json:/user/email", "\"\\ufeffann\\u200b\"")];
    assert_eq!(account(JSON, &wide).unwrap(), "ann");
    let within = Err("the account must have no control characters".to_owned());
    for spelling in ["a\u{1}nn", "an\u{7f}n", "a\0nn"] {
        assert_eq!(account(FORM, &[("form.username", spelling)]), within, "{spelling:?}");
    }
    // A form shows bytes, a document characters.
    assert_eq!(account(FORM, &[("form.username", "JOS\u{c3}\u{89}")]).unwrap(), "jos\u{e9}");
    let json = [("body.json:/user/email", "\" JOS\\u00c9\"")];
    assert_eq!(account(JSON, &json).unwrap(), "jos\u{e9}");
    let keep = FORM.replacen('{', r#"{"case": "keep", "#, 1);
    assert_eq!(account(&keep, &[("form.username", " Ann ")]).unwrap(), "Ann");
    let ascii = FORM.replacen('{', r#"{"ascii_only": true, "#, 1);
    assert_eq!(account(&ascii, &[("form.username", "Ann")]).unwrap(), "ann");
    let fullwidth = [("form.username", "\u{ef}\u{bd}\u{81}nn")];
    assert_eq!(account(&ascii, &fullwidth), Err("the account must be ASCII text".to_owned()));
}

#[test]
fn an_account_that_is_given_twice_is_refused_and_several_places_must_agree() {
    let once = "the account must be given once";
    for (facts, expected) in [
        (vec![("form.username", "ann"), ("form.username", "bob")], Err(once)),
        (vec![("form.username", ""), ("form.username", "ann")], Err(once)),
        // The proxy repeats what PHP may take for the same name, and the only value of one.
        (vec![("form.username", "ann"), ("form.username", "ann")], Err(once)),
        (vec![("query.username", "ann"), ("query.username", "ann")], Err(once)),
        (vec![("form.username", "ann"), ("query.username", "bob")], Err(once)),
        (vec![("form.username", "ann"), ("query.username", "Ann")], Ok("ann")),
        (vec![("query.username", "ann")], Ok("ann")),
        (vec![("body.type", "empty"), ("query.username", "ann")], Ok("ann")),
        (vec![("body.type", "form"), ("form.username", "ann")], Ok("ann")),
        // The upstream may read another account in a body that can't be read here.
        (vec![("body.type", "other"), ("query.username", "ann")], Err("the account is missing")),
        (vec![("body.type", "json"), ("query.username", "ann")], Err("the account is missing")),
        (vec![("body.type", "large"), ("query.username", "ann")], Err("the account is missing")),
        (vec![], Err("the account is missing")),
        (vec![("form.username", " ")], Err("the account is missing")),
    ] {
        let found = account(FORM, &facts);
        assert_eq!(found.as_deref().map_err(String::as_str), expected, "{facts:?}");
    }
    let long = "x".repeat(513);
    assert_eq!(
        account(FORM, &[("form.username", &long)]),
        Err("the account is too long".to_owned())
    );
}

/// The proxy repeats members that occur in the document twice or in another case, and what is
/// inside such objects.
#[test]
fn a_document_with_members_that_an_upstream_could_take_for_the_account_is_refused() {
    let unclear = Err("the account must be a text, and be given once");
    let once = Err("the account must be given once");
    let long = format!("\"{}\"", "\\u0061".repeat(513));
    for (emails, expected) in [
        (&["\"ann\""][..], Ok("ann")),
        (&["7"], Ok("7")),
        (&["\"7\""], Ok("7")),
        (&["\"bob\"", "\"ann\""], once),
        (&["\"ann\"", "\"ann\""], once),
        // Objects, arrays and other spellings of a number.
        (&[r#"{"$ne": 1}"#], unclear),
        (&[r#"["ann"]"#], unclear),
        (&["7.0"], unclear),
        (&["true"], unclear),
        (&["null"], unclear),
        (&[&long], Err("the account is too long")),
        (&[], Err("the account is missing")),
    ] {
        let facts: Vec<_> = emails.iter().map(|email| ("body.json:/user/email", *email)).collect();
        let found = account(JSON, &facts);
        assert_eq!(found.as_deref().map_err(String::as_str), expected, "{emails:?}");
    }
    // A parameter of the query counts only where the account is no deeper.
    let flat = r#"{"account": ["{form.user}", "{body:/user}"], "success": [200]}"#;
    let facts = [("body.json:/user", "\"bob\""), ("query.user", "ann")];
    assert_eq!(account(flat, &facts), Err("the account must be given once".to_owned()));
    assert_eq!(
        policy(flat).manifest().request_facts,
        ["method", "client-ip", "query.user", "form.user", "body.json:/user", "body.type"]
    );
}

#[test]
fn attempts_without_an_account_may_be_counted_by_address_alone() {
    let config = ALL.replacen('{', r#"{"missing": "address", "#, 1);
    assert_eq!(keys(&policy(&config), &[]).unwrap(), ["192.0.2.1"]);
    let twice = [("form.username", "ann"), ("form.username", "bob")];
    assert!(keys(&policy(&config), &twice).is_err());
}

#[test]
fn accounts_of_different_tenants_differ() {
    let config = FORM.replacen('{', r#"{"tenant": "{authority}", "#, 1);
    let key = |tenant: &str, name: &str| {
        account(&config, &[("authority", tenant), ("form.username", name)]).unwrap()
    };
    assert_eq!(key("a.example", "ann"), "9:a.example/ann");
    assert_ne!(key("a", "b/ann"), key("a/b", "ann"));
    assert!(account(&config, &[("form.username", "ann")]).is_err());
}

#[test]
fn listed_clients_are_never_counted() {
    let config = FORM.replacen('{', r#"{"bypass": ["192.0.2.0/24"], "#, 1);
    assert_eq!(decide(&policy(&config), &[("form.username", "ann")]).verdict, Verdict::Bypass);
}

#[test]
fn errors_are_reported_where_they_stand() {
    let limit = r#"{"name": "pair", "algorithm": "fixed_window", "quota": 5, "period": "15m"}"#;
    for (config, expected) in [
        (r#"{"account": "{form.user}"}"#, ": found no `success`, expected this setting"),
        (
            r#"{"account": "user", "success": [200]}"#,
            "account: found \"user\", expected a template",
        ),
        (r#"{"account": [], "success": [200]}"#, "account: found [], expected a template"),
        (
            r#"{"account": ["{form.user}", "{forms.user}"], "success": [200]}"#,
            "account: found \"{forms.user}\", expected a template",
        ),
        (r#"{"account": "{form.user}", "success": []}"#, "success: found [], expected statuses"),
        (r#"{"account": "{form.user}", "success": [99]}"#, "success: found 99, expected statuses"),
        (r#"{"account": "{form.user}", "success": ["1xx"]}"#, "success: found \"1xx\", expected"),
        (
            r#"{"account": "{form.user}", "success": [200, 302], "failure": [200]}"#,
            "failure: found 200, which is in `success` too, expected statuses that are no success",
        ),
        (
            r#"{"account": "{form.user}", "success": [200], "methods": []}"#,
            "methods: found no method, expected the methods that are attempts",
        ),
    ] {
        let found = mistakes(config);
        assert!(found.len() == 1 && found[0].starts_with(expected), "{config}: {found:#?}");
    }
    for (from, to, expected) in [
        ("\"quota\"", "\"key\": \"x\", \"quota\"", "by_pair[0].key: found \"x\", expected nothing"),
        ("\"quota\"", "\"refund\": \"never\", \"quota\"", "by_pair[0].refund: found \"never\""),
        ("fixed_window", "concurrency", "by_pair[0].algorithm: found \"concurrency\", expected an"),
        ("pair", "a", "by_account[0].name: found \"a\" a second time"),
    ] {
        let limit = limit.replace(from, to);
        let limit =
            if to == "concurrency" { limit.replace(", \"period\": \"15m\"", "") } else { limit };
        let other = r#"[{"name": "a", "algorithm": "gcra", "quota": 5, "period": "15m"}]"#;
        let config = format!(
            r#"{{"account": "{{form.user}}", "success": [200], "by_pair": [{limit}], "by_account": {other}}}"#
        );
        let found = mistakes(&config);
        assert!(found.len() == 1 && found[0].starts_with(expected), "{to}: {found:#?}");
    }
}
