//! The policy on the host: who is charged under which key, and what each mistake says.

use weir_policy::testing::Instance;
use weir_policy::{KEY_BYTES_MAX, Verdict};

use super::*;

const CONFIG: &str = r#"{
    "tenant": "{header.x-tenant}", "user": "{header.x-user}",
    "tenant_limits": [{"name": "tenant", "algorithm": "gcra", "quota": 100, "period": "1s"}],
    "user_limits": [{"name": "user", "algorithm": "gcra", "quota": 10, "period": "1s"},
                    {"name": "writes", "algorithm": "gcra", "quota": 1, "period": "1s", "when": {"method": "POST"}}]}"#;

fn policy(more: &str) -> Instance<Tenant> {
    Instance::new(&CONFIG.replacen('{', &format!("{{{more}"), 1)).unwrap()
}

fn decide(policy: &Instance<Tenant>, facts: &[(&str, &str)]) -> Decision {
    policy.decide(&[&[("client-ip", "192.0.2.1"), ("method", "GET")], facts].concat()).unwrap()
}

/// Each limit's name and key, after checking that all have the same tag.
fn charged(policy: &Instance<Tenant>, facts: &[(&str, &str)]) -> Vec<(String, String)> {
    let decision = decide(policy, facts);
    let limits = decision.limits();
    assert!(!limits.is_empty(), "{facts:?}: {decision:?}");
    assert!(limits.iter().all(|limit| limit.tag.is_some() && limit.tag == limits[0].tag));
    limits.iter().map(|limit| (limit.name.clone(), limit.key.clone())).collect()
}

fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    expected.iter().map(|(name, key)| ((*name).to_owned(), (*key).to_owned())).collect()
}

fn status(policy: &Instance<Tenant>, facts: &[(&str, &str)]) -> (u16, String) {
    match decide(policy, facts).verdict {
        Verdict::Deny(denial) => (denial.status, denial.reason),
        other => panic!("{facts:?}: {other:?}"),
    }
}

const ACME_ANN: [(&str, &str); 2] = [("header.x-tenant", "acme"), ("header.x-user", "ann")];

#[test]
fn a_request_is_charged_to_its_tenant_and_its_user_in_one_slot() {
    let policy = policy("");
    assert_eq!(charged(&policy, &ACME_ANN), pairs(&[("tenant", "acme"), ("user", "4:acme/ann")]));
    assert_eq!(decide(&policy, &ACME_ANN).limits()[1].tag.as_deref(), Some("acme"));
    let posting =
        policy.decide(&[&[("client-ip", "192.0.2.1"), ("method", "POST")], &ACME_ANN[..]].concat());
    let names: Vec<String> = posting.unwrap().limits().iter().map(|it| it.name.clone()).collect();
    assert_eq!(names, ["tenant", "user", "writes"]);
    assert!(policy.manifest().pure);
    assert_eq!(
        policy.manifest().request_facts,
        ["client-ip", "header.x-tenant", "header.x-user", "method"]
    );
}

#[test]
fn users_of_different_tenants_never_share_a_key() {
    let policy = policy(r#""missing_tenant": "user", "#);
    let words =
        ["a", "ann", "/", "a/ann", "1:a", "1:a/ann", "\\", "\\-", "\\-/ann", "\\@192.0.2.1"];
    let mut keys = std::collections::HashSet::new();
    for user in words {
        assert!(keys.insert(charged(&policy, &[("header.x-user", user)])[0].1.clone()), "{user}");
        for tenant in words {
            let facts = [("header.x-tenant", tenant), ("header.x-user", user)];
            assert!(keys.insert(charged(&policy, &facts)[1].1.clone()), "{tenant} {user}");
        }
    }
}

#[test]
fn without_a_tenant_or_a_user_a_request_is_refused_unless_it_is_said_otherwise() {
    let denying = policy("");
    assert_eq!(status(&denying, &ACME_ANN[1..]), (400, "header x-tenant must be there".to_owned()));
    assert_eq!(status(&denying, &ACME_ANN[..1]), (400, "header x-user must be there".to_owned()));
    let chosen = policy(r#""missing_tenant": {"deny": 401}, "missing_user": {"deny": 403}, "#);
    assert_eq!((status(&chosen, &ACME_ANN[1..]).0, status(&chosen, &ACME_ANN[..1]).0), (401, 403));
    let twice = [&ACME_ANN[..], &ACME_ANN[..1]].concat();
    assert_eq!(status(&chosen, &twice), (401, "header x-tenant must be there once".to_owned()));
}

#[test]
fn the_address_may_stand_for_either() {
    let policy = policy(r#""missing_tenant": "address", "missing_user": "address", "#);
    assert_eq!(
        charged(&policy, &ACME_ANN[1..]),
        pairs(&[("tenant", "\\@192.0.2.1"), ("user", "11:\\@192.0.2.1/ann")])
    );
    assert_eq!(
        charged(&policy, &ACME_ANN[..1]),
        pairs(&[("tenant", "acme"), ("user", "4:acme/\\@192.0.2.1")])
    );
}

#[test]
fn the_other_ones_limits_may_be_enough_but_never_none() {
    let policy = policy(r#""missing_tenant": "user", "missing_user": "tenant", "#);
    assert_eq!(charged(&policy, &ACME_ANN[1..]), pairs(&[("user", "\\-/ann")]));
    assert_eq!(charged(&policy, &ACME_ANN[..1]), pairs(&[("tenant", "acme")]));
    let address = pairs(&[("tenant", "\\@192.0.2.1"), ("user", "11:\\@192.0.2.1/\\@192.0.2.1")]);
    assert_eq!(charged(&policy, &[]), address);
    assert_eq!(charged(&policy, &[("header.x-tenant", ""), ("header.x-user", "")]), address);
    // Two tenants are no reason to leave the tenant's limits out.
    let two =
        [("header.x-tenant", "acme"), ("header.x-tenant", "made-up"), ("header.x-user", "ann")];
    assert_eq!(
        charged(&policy, &two),
        pairs(&[("tenant", "\\@192.0.2.1"), ("user", "11:\\@192.0.2.1/ann")])
    );
}

#[test]
fn an_address_is_the_client_as_it_is_counted_and_a_long_tenant_is_a_digest() {
    let config = CONFIG.replace("{header.x-user}", "{client_ip}");
    let policy = Instance::<Tenant>::new(&config).unwrap();
    let ask = |tenant: &str| {
        let facts = [("client-ip", "2001:db8::1"), ("method", "GET"), ("header.x-tenant", tenant)];
        policy.decide(&facts).unwrap().limits().to_vec()
    };
    assert_eq!(ask("acme")[1].key, "4:acme/2001:db8::/64");
    for limit in ask(&"x".repeat(KEY_BYTES_MAX + 1)) {
        let tag = limit.tag.unwrap();
        assert!(tag.starts_with("\\#") && limit.key.starts_with("\\#"), "{tag}");
        assert!(tag.len() < KEY_BYTES_MAX);
    }
}

#[test]
fn listed_clients_are_never_counted() {
    let policy = policy(r#""bypass": [{"header.x-tenant": "us"}], "#);
    assert_eq!(decide(&policy, &[("header.x-tenant", "us")]).verdict, Verdict::Bypass);
}

#[test]
fn all_errors_come_at_once() {
    let config =
        CONFIG.replace(r#""name": "user""#, r#""name": "tenant", "key": "{client_ip}""#).replacen(
            '{',
            r#"{"missing_tenant": "tenant", "missing_user": {"deny": 500}, "usr": 1, "#,
            1,
        );
    let mistakes = Instance::<Tenant>::new(&config).unwrap_err();
    let mut found: Vec<String> =
        mistakes.iter().map(|one| format!("{}: {}", one.path, one.message)).collect();
    found.sort();
    let starts = [
        "missing_tenant: found \"tenant\", expected \"deny\", { deny = STATUS } with a status from 400 to 499, \"address\" or \"user\"",
        "missing_user: found {\"deny\":500}, expected \"deny\", { deny = STATUS } with a status from 400 to 499, \"address\" or \"tenant\"",
        "user_limits[0].key: found the key `key`, expected nothing: these are counted by tenant and user",
        "user_limits[0].name: found \"tenant\", expected a name that no limit in `tenant_limits` has",
        "usr: found the unknown key `usr`",
    ];
    assert_eq!(found.len(), starts.len(), "{found:#?}");
    for (found, start) in found.iter().zip(starts) {
        assert!(found.starts_with(start), "{found}");
    }
    let limit = r#"{"name": "NAME", "algorithm": "gcra", "quota": 1, "period": "1s"}"#;
    let many = |list: &str| {
        let limits = (0..9).map(|index| limit.replace("NAME", &format!("{list}{index}")));
        limits.collect::<Vec<_>>().join(",")
    };
    let config = format!(
        r#"{{"tenant": "{{path}}", "user": "{{path}}", "tenant_limits": [{}], "user_limits": [{}]}}"#,
        many("a"),
        many("b")
    );
    let mistakes = Instance::<Tenant>::new(&config).unwrap_err();
    assert_eq!(
        (mistakes[0].path.as_str(), mistakes[0].message.as_str()),
        ("user_limits", "found 18 limits, with those in `tenant_limits`, expected 16 together")
    );
}

const FAIR: &str = r#"{
    "tenant": "{header.x-tenant}", "user": "{header.x-user}", "missing_user": "tenant",
    "tenant_limits": [{"name": "tenant", "algorithm": "gcra", "quota": 100, "period": "1s",
                       "children": {"name": "user", "assured": 10, "ceiling": 60}}]}"#;

#[test]
fn the_children_of_a_tenants_limit_are_its_users() {
    let policy = Instance::<Tenant>::new(FAIR).unwrap();
    let all = [("tenant", "acme"), ("user", "4:acme/ann"), ("user.assured", "4:acme/ann")];
    assert_eq!(charged(&policy, &ACME_ANN), pairs(&all));
    let decision = decide(&policy, &ACME_ANN);
    let options = [("assured", "user.assured"), ("parent", "tenant")];
    assert_eq!(decision.limits()[1].options, pairs(&options));
    // Without a user, the tenant's alone.
    assert_eq!(charged(&policy, &ACME_ANN[..1]), pairs(&all[..1]));
    let declared = policy.manifest().limits.into_iter().map(|it| (it.name, it.at));
    assert_eq!(
        declared.collect::<Vec<_>>(),
        pairs(&[
            ("tenant", "tenant_limits[0]"),
            ("user", "tenant_limits[0].children.ceiling"),
            ("user.assured", "tenant_limits[0].children.assured"),
        ])
    );
}

#[test]
fn users_of_a_tenant_whose_limits_are_leased_have_slots_of_their_own() {
    let keys = |config: &str| {
        let policy = Instance::<Tenant>::new(config).unwrap();
        let decision = decide(&policy, &ACME_ANN);
        let keys = decision.limits().iter().map(|limit| {
            let tag = limit.tag.clone().unwrap_or_else(|| limit.key.clone());
            (limit.name.clone(), limit.key.clone(), tag)
        });
        keys.collect::<Vec<_>>()
    };
    let all = |expected: &[[&str; 3]]| {
        expected.iter().map(|it| it.map(str::to_owned).into()).collect::<Vec<_>>()
    };
    let lease = r#""period": "1s", "lease": "100ms""#;
    let (tenant, user) = (["tenant", "acme", "acme"], ["user", "4:acme/ann", "4:acme/ann"]);
    let assured = ["user.assured", "4:acme/ann", "4:acme/ann"];
    let fair = FAIR.replace(r#""period": "1s""#, lease);
    assert_eq!(keys(&fair), all(&[tenant, user, assured]));
    let leased = CONFIG.replacen(r#""period": "1s""#, lease, 1);
    let writes = ["writes", "4:acme/ann", "4:acme/ann"];
    assert_eq!(keys(&leased)[..2], all(&[tenant, user, writes])[..2]);
    // Not if one of the tenant's limits is not leased.
    let second = r#"[{"name": "day", "algorithm": "quota", "calendar": "day", "quota": 9}, {"name": "tenant","#;
    let mixed = leased.replacen(r#"[{"name": "tenant","#, second, 1);
    assert!(keys(&mixed).iter().all(|(_, _, tag)| tag == "acme"), "{:?}", keys(&mixed));
}

#[test]
fn users_without_limits_of_their_own_have_to_be_children() {
    let wrong = |text: &str| {
        let mistakes = Instance::<Tenant>::new(text).map(|_| ()).unwrap_err();
        let all = mistakes.iter().map(|one| format!("{}: {}", one.path, one.message));
        all.collect::<Vec<_>>().join("\n")
    };
    let alone = FAIR.replace(r#""name": "user", "#, r#""key": "{path}", "#);
    assert!(wrong(&alone).contains("tenant_limits[0].children.key"), "{}", wrong(&alone));
    let none = r#"{"tenant": "{path}", "user": "{query}",
        "tenant_limits": [{"name": "a", "algorithm": "gcra", "quota": 5, "period": "1s"}]}"#;
    assert!(wrong(none).contains("no `user_limits`"), "{}", wrong(none));
    let missing = FAIR.replace(r#""name": "user", "#, r#""missing": "skip", "#);
    assert!(wrong(&missing).contains("tenant_limits[0].children.missing"), "{}", wrong(&missing));
    let wrong_limit = none.replacen('{', r#"{"user_limits": [{"name": "b"}], "#, 1);
    assert!(!wrong(&wrong_limit).contains("no `user_limits`"), "{}", wrong(&wrong_limit));
    let stray = FAIR.replacen('{', r#"{"missing_tenant": "user", "#, 1);
    assert!(wrong(&stray).contains("no `user_limits`"), "{}", wrong(&stray));
}
