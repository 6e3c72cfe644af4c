//! The policy on the host: what a request costs, when it is given back, and what each mistake says.

use weir_policy::testing::Instance;
use weir_policy::{Change, Outcome, Verdict};

use super::*;

const DAY: &str = r#"{"name": "day", "algorithm": "quota", "quota": 100, "calendar": "day"}"#;

fn policy(more: &str) -> Instance<SendQuota> {
    Instance::new(&format!(r#"{{{more}"limits": [{DAY}]}}"#)).unwrap()
}

fn decide(policy: &Instance<SendQuota>, facts: &[(&str, &str)]) -> Decision {
    policy.decide(&[&[("client-ip", "192.0.2.1"), ("method", "POST")], facts].concat()).unwrap()
}

/// The first limit's cost, or the status and reason of a refusal.
fn cost(policy: &Instance<SendQuota>, facts: &[(&str, &str)]) -> Result<u64, (u16, String)> {
    let decision = decide(policy, facts);
    match decision.verdict {
        Verdict::Check(limits) => {
            assert_eq!(decision.labels, [("units".to_owned(), limits[0].cost.to_string())]);
            Ok(limits[0].cost)
        }
        Verdict::Deny(denial) => Err((denial.status, denial.reason)),
        Verdict::Bypass => Ok(0),
    }
}

fn refused(status: u16, reason: &str) -> Result<u64, (u16, String)> {
    Err((status, reason.to_owned()))
}

fn mistakes(config: &str) -> Vec<String> {
    let mistakes = Instance::<SendQuota>::new(config).unwrap_err();
    mistakes.iter().map(|one| format!("{}: {}", one.path, one.message)).collect()
}

#[test]
fn a_number_says_what_a_request_costs() {
    let policy = policy(r#""cost": "{header.x-recipients}", "#);
    let of = |values: &[&str]| {
        let facts: Vec<_> = values.iter().map(|value| ("header.x-recipients", *value)).collect();
        cost(&policy, &facts)
    };
    assert_eq!([of(&["25"]), of(&["0"]), of(&[]), of(&[""])], [Ok(25), Ok(1), Ok(1), Ok(1)]);
    let no_number = refused(400, "header x-recipients must be a whole number");
    for value in ["x", "-1", "1.5", "1e2", "+1", " 1", "\"1\""] {
        assert_eq!(of(&[value]), no_number, "{value}");
    }
    assert_eq!(of(&["5", "5"]), refused(400, "header x-recipients must be there once"));
    let many = "the request sends 101, and at most 100 may be sent at once";
    assert_eq!(of(&["101"]), refused(400, many));
    assert_eq!(of(&["99999999999999999999999"]).unwrap_err().0, 400);
    assert_eq!(policy.manifest().request_facts, ["method", "client-ip", "header.x-recipients"]);
    assert!(policy.manifest().pure);
}

#[test]
fn a_number_in_a_body_is_read_as_json_and_a_list_is_none() {
    let policy = policy(r#""cost": "{body:/count}", "#);
    let fact = "body.json:/count";
    assert_eq!(policy.manifest().request_facts, ["method", "client-ip", fact, "body.type"]);
    let of = |kind: &str, value: &str| cost(&policy, &[("body.type", kind), (fact, value)]);
    assert_eq!(
        [of("json", "25"), of("json", "\"25\""), of("json", "null")],
        [Ok(25), Ok(25), Ok(1)]
    );
    assert_eq!(of("json", "[1,2]"), refused(400, "/count must be a whole number"));
    assert_eq!(cost(&policy, &[("body.type", "empty")]), Ok(1));
    assert_eq!(cost(&policy, &[("body.type", "other")]), refused(400, "the body must be JSON"));
    let large = refused(413, "the body is too large to count what it sends");
    assert_eq!(cost(&policy, &[("body.type", "large")]), large);
    let form = super::tests::policy(r#""cost": "{form.count}", "#);
    let of = |kind: &str| cost(&form, &[("body.type", kind), ("form.count", "7")]);
    assert_eq!([of("form"), of("json")], [Ok(7), refused(400, "the body must be an HTML form")]);
}

#[test]
fn recipients_are_counted_wherever_they_are_listed() {
    let policy = policy(r#""count": ["/to", "/cc"], "#);
    let of = |lists: &[(&str, &str)]| {
        let mut facts = vec![("body.type", "json")];
        facts.extend(lists);
        cost(&policy, &facts)
    };
    let (to, cc) = ("body.json:/to", "body.json:/cc");
    for (lists, expected) in [
        (&[(to, r#"["a@x", "b@x"]"#), (cc, r#"["c@x"]"#)][..], 3),
        (&[(to, r#""a@x""#)], 1),
        (&[(to, r#""a@x, b@x;c@x,""#)], 3),
        (&[(to, r#"["a@x,b@x", "c@x"]"#)], 3),
        (&[(to, r#""a\u002cb""#)], 2),
        (&[(to, r#"[{"email": "a@x", "name": ["A"]}, {"email": "b@x"}, null]"#)], 2),
        (&[(to, "[491511234567, 491511234568]")], 2),
        (&[(to, "\"491511234567\"")], 1),
        (&[(to, "[]")], 1),
        (&[(to, "null")], 1),
        (&[], 1),
    ] {
        assert_eq!(of(lists), Ok(expected), "{lists:?}");
    }
    for wrong in ["true", "[true]", "[[\"a\"]]", "-1"] {
        assert_eq!(of(&[(to, wrong)]), refused(400, "/to must be a list of recipients"), "{wrong}");
    }
    assert_eq!(of(&[(to, "[]"), (to, "[]")]), refused(400, "/to must be there once"));
    let many = format!("[{}]", vec!["\"a\""; 101].join(","));
    assert_eq!(of(&[(to, &many)]).unwrap_err().0, 400);
}

#[test]
fn without_a_number_a_request_costs_the_default_or_is_refused() {
    let ten = policy(r#""cost": "{query.n}", "default_cost": 10, "#);
    assert_eq!((cost(&ten, &[]), cost(&ten, &[("query.n", "3")])), (Ok(10), Ok(3)));
    let denying = policy(r#""cost": "{query.n}", "default_cost": "deny", "#);
    assert_eq!(cost(&denying, &[]), refused(400, "the request does not say how much it sends"));
    assert_eq!(cost(&policy(r#""default_cost": 5, "#), &[]), Ok(5));
    let most = policy(r#""cost": "{query.n}", "max_cost": 3, "#);
    assert_eq!(cost(&most, &[("query.n", "3")]), Ok(3));
    assert_eq!(cost(&most, &[("query.n", "4")]).unwrap_err().0, 400);
}

#[test]
fn only_what_sends_is_counted() {
    let policy = policy(r#""methods": ["POST"], "bypass": ["10.0.0.0/8"], "#);
    for (method, address, expected) in [
        ("POST", "192.0.2.1", true),
        ("post", "192.0.2.1", true),
        ("GET", "192.0.2.1", false),
        ("POST", "10.0.0.1", false),
    ] {
        let decision = policy.decide(&[("client-ip", address), ("method", method)]).unwrap();
        assert_eq!(decision.verdict != Verdict::Bypass, expected, "{method} {address}");
    }
}

/// The refund of the limit, and what is given back at the end.
fn back(policy: &Instance<SendQuota>, outcome: Outcome, status: u16) -> (Refund, Vec<Change>) {
    let decision = decide(policy, &[("query.n", "7")]);
    let refund = decision.limits()[0].refund;
    let Some(memo) = decision.settle_with else { return (refund, Vec::new()) };
    let view = ResponseView::new(outcome, status);
    let back = policy.settle(&memo, &view).unwrap().adjustments;
    assert!(back.iter().all(|one| one.limit == "day"));
    (refund, back.into_iter().map(|one| one.change).collect())
}

#[test]
fn the_proxy_gives_back_by_itself_where_no_status_decides() {
    for (setting, refund) in [
        ("", Refund::UpstreamError),
        (r#""refund": "unsent", "#, Refund::Unsent),
        (r#""refund": "never", "#, Refund::Never),
    ] {
        let policy = policy(&format!(r#"{setting}"cost": "{{query.n}}", "#));
        assert_eq!(back(&policy, Outcome::UpstreamFailed, 503), (refund, Vec::new()));
    }
}

#[test]
fn statuses_that_say_that_nothing_was_sent_give_back() {
    use Outcome::{ClientGone, Completed, UpstreamFailed};
    let of = |more: &str| {
        policy(&format!(r#""cost": "{{query.n}}", "refund_statuses": ["4xx", 507], {more}"#))
    };
    let all = (Refund::BySettle, vec![Change::Units(-7)]);
    let none = (Refund::BySettle, Vec::new());
    let errors = of("");
    for (outcome, status, expected) in [
        (Completed, 200, &none),
        (Completed, 422, &all),
        (UpstreamFailed, 503, &all),
        (UpstreamFailed, 507, &all),
        (ClientGone, 499, &none),
        (ClientGone, 422, &none),
    ] {
        assert_eq!(&back(&errors, outcome, status), expected, "{outcome:?} {status}");
    }
    let never = of(r#""refund": "never", "#);
    assert_eq!(back(&never, UpstreamFailed, 503), none);
    assert_eq!(back(&never, UpstreamFailed, 507), all);
}

#[test]
fn a_limit_may_have_a_refund_of_its_own_and_requests_are_charged_once() {
    let config = format!(
        r#"{{"refund_statuses": [422], "cost": "{{query.n}}", "key": "{{header.x-account}}", "limits": [{DAY},
            {{"name": "attempts", "algorithm": "gcra", "quota": 500, "period": "1m", "refund": "never", "cost": 2}},
            {{"name": "at-once", "algorithm": "concurrency", "quota": 50}}],
            "requests": [{{"name": "rate", "algorithm": "gcra", "quota": 5, "period": "1s", "key": "{{client_ip}}"}}]}}"#
    );
    let policy = Instance::<SendQuota>::new(&config).unwrap();
    let decision = decide(&policy, &[("query.n", "7"), ("header.x-account", "ann")]);
    let limits = decision.limits().iter();
    let shown: Vec<_> =
        limits.map(|it| (it.name.as_str(), it.key.as_str(), it.cost, it.refund)).collect();
    assert_eq!(
        shown,
        [
            ("day", "ann", 7, Refund::BySettle),
            ("attempts", "ann", 14, Refund::Never),
            ("at-once", "ann", 7, Refund::Never),
            ("rate", "192.0.2.1", 1, Refund::Never),
        ]
    );
    assert_eq!(decision.settle_with.as_deref(), Some("day 7\n"));
    // At most 50 can be in flight.
    assert_eq!(cost(&policy, &[("query.n", "51")]).unwrap_err().0, 400);
}

#[test]
fn errors_say_what_was_expected() {
    let with = |more: &str| mistakes(&format!(r#"{{{more}"limits": [{DAY}]}}"#));
    for (more, expected) in [
        (r#""cost": "a {method}", "#, "cost: found a template of another shape, expected one fact"),
        (
            r#""cost": "{path}", "count": ["/to"], "#,
            "count: found `count` beside `cost`, expected only one",
        ),
        (r#""count": [], "#, "count: found 0 lists, expected 1 to 16"),
        (r#""count": ["to"], "#, "count[0]: found \"to\", expected a JSON pointer"),
        (r#""count": ["/to", "/to"], "#, "count[1]: found \"/to\" a second time, expected each"),
        (r#""default_cost": "deny", "#, "default_cost: found \"deny\", expected units, or `cost`"),
        (r#""default_cost": 0, "#, "default_cost: found 0, expected \"deny\", or units from 1 to"),
        (
            r#""default_cost": 101, "#,
            "default_cost: found 101, expected 1 to 100: limit \"day\" could",
        ),
        (r#""max_cost": 101, "#, "max_cost: found 101, expected 1 to 100: limit \"day\" could"),
        (
            r#""max_cost": 5, "default_cost": 6, "#,
            "default_cost: found 6, expected at most `max_cost`, 5",
        ),
        (
            r#""refund": "by_settle", "#,
            "refund: found the unknown word `by_settle`, expected one of `never`",
        ),
        (
            r#""refund": "unsent", "refund_statuses": [404], "#,
            "refund: found \"unsent\", expected `refund =",
        ),
        (r#""refund_statuses": ["2xx"], "#, "refund_statuses: found a status below 300, expected"),
        (
            r#""refund_statuses": ["40x"], "#,
            "refund_statuses: found \"40x\", expected a status such as",
        ),
        (
            &format!(r#""requests": [{DAY}], "#),
            "requests[0].name: found \"day\", expected a name that",
        ),
        (
            &format!(
                r#""requests": [{}], "#,
                DAY.replace("\"day\",", "\"b\", \"refund\": \"by_settle\",")
            ),
            "requests[0].refund: found \"by_settle\", expected another refund",
        ),
    ] {
        let found = with(more);
        assert!(found.len() == 1 && found[0].starts_with(expected), "{more}: {found:#?}");
    }
    let owing = mistakes(&format!(r#"{{"limits": [{}]}}"#, DAY.replace("100", "100, \"debt\": 5")));
    assert!(owing.len() == 1 && owing[0].starts_with("limits[0].debt: found a debt"), "{owing:?}");
    let typo = mistakes(&format!(
        r#"{{"limits": [{}]}}"#,
        DAY.replace("\"quota\": 100", "\"quota\": \"x\"")
    ));
    assert_eq!(typo, ["limits[0].quota: found \"x\", expected a whole number, 0 or more"]);
}
