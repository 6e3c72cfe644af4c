//! Texts in, the lines that an operator reads out.

use std::path::Path;

use super::*;
use crate::plan::{Alignment, Debt, FixedWindow, Rate, SlidingWindowBuckets, SlidingWindowLog};

const BASE: &str = r#"
[store]
key_secret_env = "PATH"

[upstreams.api]
endpoints = ["http://127.0.0.1:3000"]

[policies.public]
use = "client-ip"
config.bypass = []
[[policies.public.config.limits]]
name = "per-minute"
algorithm = "fixed_window"
quota = 100
period = "1m"
[[policies.public.config.limits]]
name = "burst"
algorithm = "gcra"
quota = 10
period = "1s"

[policies.customers]
use = "plans"
config.key = "{header.x-api-key}"
config.default_plan = "gold"
config.plans.gold = [{ name = "plan", algorithm = "token_bucket", quota = 60, period = "1m" }]
config.assign = { "sha256:172889bfa7c46ebacf73665c6129e37c0e27e1e343a489a831c4b38f54e6a20f" = "gold" }

[[routes]]
path = "/*"
upstream = "api"
policy = "public"

[[routes]]
name = "paid"
path = "/paid/*"
upstream = "api"
policy = "customers"
request_headers.set = { Authorization = "Bearer hunter2" }
"#;

fn outline(text: &str) -> Outline {
    let config = Config::parse(text, Path::new("proxy.toml"));
    config.unwrap_or_else(|errors| panic!("{errors}")).outline
}

/// The lines of what `replaced` changes in `BASE`.
fn changes(replaced: &[(&str, &str)]) -> Vec<String> {
    between(BASE, replaced)
}

fn between(base: &str, replaced: &[(&str, &str)]) -> Vec<String> {
    let mut after = base.to_owned();
    for (old, new) in replaced {
        assert!(after.contains(old), "{old}");
        after = after.replacen(old, new, 1);
    }
    let all = Changes::between(&outline(base), &outline(&after)).to_string();
    all.lines().map(str::to_owned).collect()
}

#[test]
fn equal_settings_are_no_change() {
    for same in [
        ("quota = 100", "quota = 1_00 # a comment"),
        ("[store]", "\n\n[store]"),
        ("period = \"1m\"\n[[", "period   = '1m'\n[["),
    ] {
        assert_eq!(changes(&[same]), Vec::<String>::new(), "{same:?}");
    }
}

#[test]
fn a_limits_amounts_keep_its_counters_and_its_shape_starts_fresh_ones() {
    let limit = "policies.public.config.limits[per-minute]";
    let kept = "existing counters go on";
    let fresh = "starts with fresh counters";
    for (edit, what, effect) in [
        (("quota = 100", "quota = 50"), "quota: 100 -> 50", kept),
        (("period = \"1m\"", "period = \"1h\""), "period: \"1m\" -> \"1h\"", fresh),
        // Written differently, and the same shape.
        (("period = \"1m\"", "period = \"60s\""), "period: \"1m\" -> \"60s\"", kept),
        (
            ("period = \"1m\"", "period = \"1m\"\nalignment = \"first_request\""),
            "alignment: default -> \"first_request\"",
            kept,
        ),
        (
            ("period = \"1m\"", "period = \"1m\"\nalignment = \"clock\""),
            "alignment: default -> \"clock\"",
            fresh,
        ),
        (
            ("\"fixed_window\"", "\"sliding_window_log\""),
            "algorithm: \"fixed_window\" -> \"sliding_window_log\"",
            fresh,
        ),
    ] {
        assert_eq!(changes(&[edit]), [format!("{limit}.{what} ({effect})")]);
    }
    // One limit has one meaning: the quota's line can't say that counts are kept.
    assert_eq!(
        changes(&[("quota = 100\nperiod = \"1m\"", "quota = 50\nperiod = \"1h\"")]),
        [
            format!("{limit}.period: \"1m\" -> \"1h\" ({fresh})"),
            format!("{limit}.quota: 100 -> 50 ({fresh})")
        ]
    );
    assert_eq!(
        changes(&[("quota = 10\n", "quota = 10\nburst = 20\ncost = 2\nkey = \"{path}\"\n")]),
        [
            "policies.public.config.limits[burst].burst: default -> 20 (existing counters go on)",
            "policies.public.config.limits[burst].cost: default -> 2",
            "policies.public.config.limits[burst].key: changed"
        ]
    );
}

#[test]
fn limits_that_come_or_go_and_those_in_plans_are_named() {
    let limit = "[[policies.public.config.limits]]\nname = \"burst\"";
    assert_eq!(
        changes(&[(limit, "[[policies.public.config.limits]]\nname = \"second\"")]),
        [
            "policies.public.config.limits[burst]: removed (its counters are left to expire)",
            "policies.public.config.limits[second]: added",
        ]
    );
    assert_eq!(
        changes(&[("quota = 60", "quota = 61")]),
        ["policies.customers.config.plans.gold[plan].quota: 60 -> 61 (existing counters go on)"]
    );
}

#[test]
fn customers_keys_and_values_are_not_shown() {
    let customer = "\"sha256:172889bfa7c46ebacf73665c6129e37c0e27e1e343a489a831c4b38f54e6a20f\"";
    assert_eq!(
        changes(&[(customer, &customer.replace('1', "2"))]),
        ["policies.customers.config.assign: 1 added, 1 removed"]
    );
    assert_eq!(
        changes(&[("Bearer hunter2", "Bearer hunter3")]),
        ["routes[paid].request_headers.set.Authorization: changed"]
    );
    assert_eq!(
        changes(&[("config.key = \"{header.x-api-key}\"", "config.key = \"{header.x-key}\"")]),
        ["policies.customers.config.key: changed"]
    );
    let debug = format!("{:?}", outline(BASE));
    assert!(!debug.contains("hunter"), "{debug}");
}

#[test]
fn routes_are_told_apart_by_their_names_and_say_what_they_charge() {
    let first = "[[routes]]\npath = \"/first\"\nupstream = \"api\"\n\n";
    assert_eq!(
        changes(&[("[[routes]]", &format!("{first}[[routes]]"))]),
        ["routes[first]: added"],
        "the others have moved"
    );
    assert_eq!(
        changes(&[("policy = \"public\"", "policy = \"public\"\ntimeouts.request = \"1s\"")]),
        ["routes[all].timeouts: added"]
    );
    assert_eq!(
        changes(&[("policy = \"public\"", "policy = \"public\"\nlimit_scope = \"route\"")]),
        [
            "routes[all]: charges the counters of `public@all` instead of `public` (starts with fresh counters)",
            "counters of `public`: no route charges them any more: they are left as they are",
            "routes[all].limit_scope: added",
        ]
    );
    assert_eq!(
        changes(&[("policy = \"public\"", "policy = \"customers\"")]),
        [
            "counters of `public`: no route charges them any more: they are left as they are",
            "routes[all]: charges the counters of `customers` instead of `public`",
            "routes[all].policy: changed",
        ]
    );
}

#[test]
fn a_secret_a_store_a_script_and_a_lease_are_named_with_what_they_do_to_counters() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    let load = || {
        Config::load(&folder.path().join("proxy.toml"))
            .unwrap_or_else(|errors| panic!("{errors}"))
            .outline
    };
    let text = BASE
        .replace("key_secret_env = \"PATH\"", "key_secret_file = \"secret\"\nscripts = \"lua\"")
        .replace(
            "algorithm = \"gcra\"\nquota = 10\nperiod = \"1s\"",
            "algorithm = \"script\"\nscript = \"mine\"\narguments = [1]",
        );
    std::fs::create_dir(folder.path().join("lua")).unwrap();
    write("lua/mine.lua", "one");
    write("secret", "hunter2");
    write("proxy.toml", &text);
    let first = load();
    write("lua/mine.lua", "two");
    let second = load();
    let told = |before: &Outline, after: &Outline| {
        Changes::between(before, after).shown().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(
        told(&first, &second),
        [
            "policies.public.config.limits[burst]: counts differently (starts with fresh counters)",
            "store.scripts[mine]: new content",
        ]
    );
    write("secret", "hunter3");
    let third = load();
    assert_eq!(
        told(&second, &third),
        [
            "store.key_secret: another secret (all counters start fresh)",
            "store.key_secret_file: new content"
        ]
    );
    write("proxy.toml", &text.replace("quota = 100", "quota = 50"));
    write("secret", "hunter4");
    let limit = "policies.public.config.limits[per-minute].quota: 100 -> 50";
    assert!(
        told(&third, &load()).contains(&format!("{limit} (starts with fresh counters)")),
        "nothing is kept under another secret"
    );
    // On Redis a lease is part of what a permit means.
    let redis = |lease: &str, prefix: &str| {
        outline(&format!(
            "{}\n[store.redis]\nnodes = [\"127.0.0.1:7000\"]\nkey_prefix = \"{prefix}\"\n",
            BASE.replace(
                "[store]",
                &format!(
                    "[store]\nengine = \"redis\"\non_store_error = \"deny\"\nlease = \"{lease}\""
                )
            )
            .replace(
                "algorithm = \"gcra\"\nquota = 10\nperiod = \"1s\"",
                "algorithm = \"concurrency\"\nquota = 10"
            )
        ))
    };
    assert_eq!(
        told(&redis("10s", "weir"), &redis("20s", "weir")),
        [
            "policies.public.config.limits[burst]: counts differently (starts with fresh counters)",
            "store.lease: changed",
        ]
    );
    assert_eq!(
        told(&redis("10s", "weir"), &redis("10s", "other")),
        ["store: another store (all counters start fresh)", "store.redis.key_prefix: changed"]
    );
}

#[test]
fn another_way_to_the_same_redis_keeps_its_counters() {
    let told = |before: &str, after: &str| {
        let changes = Changes::between(&outline(before), &outline(after));
        changes.shown().map(ToString::to_string).collect::<Vec<_>>()
    };
    let store = "[store]\nengine = \"redis\"\non_store_error = \"deny\"";
    let nodes = "nodes = [\"127.0.0.1:7000\"]";
    let text = BASE.replace("[store]", store) + "\n[store.redis]\n" + nodes;
    let more_nodes = text.replace("\"127.0.0.1:7000\"", "\"127.0.0.1:7001\", \"127.0.0.1:7000\"");
    let deadline = text.replace(store, &format!("{store}\ndeadline = \"250ms\""));
    for (other, setting) in [
        (more_nodes, "store.redis.nodes"),
        (text.clone() + "\ntls = {}", "store.redis.tls"),
        (text.clone() + "\nusername = \"weir\"", "store.redis.username"),
        (deadline, "store.deadline"),
    ] {
        let told = told(&text, &other);
        assert!(told.len() == 1 && told[0].starts_with(setting), "{setting}: {told:?}");
    }
    let told = told(&text, &text.replace("7000", "7001"));
    assert_eq!(told[0], "store: another store (all counters start fresh)");
}

#[test]
fn proxies_that_decide_alike_have_the_same_number() {
    let number = |replaced: &[(&str, &str)]| {
        let mut text = BASE.to_owned();
        for (old, new) in replaced {
            assert!(text.contains(old), "{old}");
            text = text.replacen(old, new, 1);
        }
        outline(&text).number()
    };
    let base = number(&[]);
    assert!(base > 0 && base < 1 << 48, "{base}");
    for same in [
        ("quota = 100", "quota = 1_00 # a comment"),
        ("name = \"per-minute\"\nalgorithm", "# first\nname = \"per-minute\"\nalgorithm"),
        ("quota = 10\nperiod = \"1s\"", "period = \"1s\"\nquota = 10"),
        ("[store]", "[server]\nworkers = 3\n[[listeners]]\naddress = \"127.0.0.1:8\"\n[store]"),
        ("http://127.0.0.1:3000", "http://127.0.0.1:3001"),
    ] {
        assert_eq!(number(&[same]), base, "{same:?}");
    }
    let mut numbers = BTreeSet::from([base]);
    for other in [
        ("quota = 100", "quota = 101"),
        ("name = \"burst\"", "name = \"bursts\""),
        ("use = \"client-ip\"", "use = \"keyed\"\nconfig.key = \"{path}\""),
        ("path = \"/paid/*\"", "path = \"/gold/*\""),
        ("hunter2", "hunter3"),
        ("key_secret_env = \"PATH\"", ""),
        ("key_secret_env = \"PATH\"", "key_secret_env = \"HOME\""),
    ] {
        assert!(numbers.insert(number(&[other])), "{other:?}");
    }
}

#[test]
fn files_are_named_by_their_settings_and_modules_by_their_digests() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    let load = || {
        Config::load(&folder.path().join("proxy.toml"))
            .unwrap_or_else(|errors| panic!("{errors}"))
            .outline
    };
    let text = BASE
        .replace("use = \"client-ip\"", "wasm = \"one.wasm\"")
        .replace("config.assign = ", "config_files = { assign = \"a.toml\" } # ");
    write("proxy.toml", &format!("{text}[[refusals]]\nstatus = 429\nbody_file = \"busy.txt\"\n"));
    write("one.wasm", "first");
    write("a.toml", "secret-key-1 = \"gold\"\nsecret-key-2 = \"gold\"\n");
    write("busy.txt", "busy");
    let before = load();
    write("one.wasm", "second");
    write("a.toml", "secret-key-1 = \"free\"\n# hm\n");
    write("busy.txt", "very busy");
    let digest = |text: &str| blake3::hash(text.as_bytes()).to_hex()[..12].to_owned();
    let changes = Changes::between(&before, &load());
    assert_eq!(
        changes.to_string().lines().collect::<Vec<_>>(),
        [
            "policies.customers.config.assign: 1 removed, 1 changed",
            &format!(
                "policies.public.wasm: new module (digest {} -> {})",
                digest("first"),
                digest("second")
            ),
            "refusals[0].body_file: new content",
        ]
    );
    assert_eq!(
        changes.json()[2],
        json!({ "setting": "refusals[0].body_file", "change": "new content", "counters": null })
    );
}

#[test]
fn a_listener_that_gets_another_name_is_the_same_one() {
    let listener = |name: &str| {
        format!("[[listeners]]\naddress = \"127.0.0.1:1\"\nname = \"{name}\"\n[store]")
    };
    let base = BASE.replacen("[store]", &listener("a"), 1);
    let found = between(&base, &[("name = \"a\"", "name = \"b\"")]);
    assert_eq!(found, ["listeners[127.0.0.1:1].name: changed"]);
}

#[test]
fn changes_that_need_a_restart_say_so_and_the_lines_are_bounded() {
    assert_eq!(
        changes(&[(
            "[store]",
            "[[listeners]]\naddress = \"127.0.0.1:1\"\n[server]\nworkers = 1\n[store]"
        )]),
        [
            "listeners[127.0.0.1:1]: added (needs a restart)",
            "server.workers: added (needs a restart)"
        ]
    );
    // In a process that began with it, one that is taken back needs none, and another does.
    let started = outline(BASE);
    let with = |workers| outline(&format!("{BASE}\n[server]\nworkers = {workers}\n"));
    let of_reload =
        |before: &Outline, after: &Outline| Changes::of_reload(&started, before, after).to_string();
    assert_eq!(of_reload(&with(1), &with(2)), "server.workers: changed (needs a restart)");
    assert_eq!(of_reload(&with(1), &started), "server.workers: removed");
    let many =
        (0..100).map(|number| format!("[[routes]]\npath = \"/{number}\"\nupstream = \"api\"\n"));
    let more = format!("quota = 99\nperiod = \"1m\"\n{}", many.collect::<String>());
    let after = outline(&BASE.replacen("quota = 100\n", "quota = 99\n", 1).replacen(
        "[[routes]]\npath = \"/*\"",
        &format!("{}[[routes]]\npath = \"/*\"", more.split_once("\"1m\"\n").unwrap().1),
        1,
    ));
    let changes = Changes::between(&outline(BASE), &after);
    assert_eq!((changes.shown().count(), changes.left_off()), (CHANGES_SHOWN_MAX, 69));
    let text = changes.to_string();
    assert!(text.starts_with("policies.public.config.limits[per-minute].quota"), "{text}");
    assert!(text.ends_with("\n... and 69 more"), "{text}");
}

#[test]
fn limits_that_a_policy_makes_of_its_settings_are_understood_as_it_declares_them() {
    let base = r#"
[upstreams.api]
endpoints = ["http://127.0.0.1:3000"]
[policies.p]
use = "ban"
config.statuses = [404]
config.strikes = { quota = 5, period = "1m" }
config.ban = "1h"
[[routes]]
path = "/*"
upstream = "api"
policy = "p"
"#;
    let outlined = |text: &str, quota: u64, extends: bool| {
        let config = Config::parse(text, Path::new("proxy.toml"));
        let mut outline = config.unwrap_or_else(|errors| panic!("{errors}")).outline;
        let rate = |amount, per_ms| Rate { amount, per_ms };
        let strikes = Algorithm::SlidingWindowLog(SlidingWindowLog {
            rate: rate(quota, 60_000),
            debt: Debt::None,
        });
        let ban = rate(1, 3_600_000);
        let ban = match extends {
            true => {
                let debt = Debt::Units(9);
                Algorithm::SlidingWindowBuckets(SlidingWindowBuckets {
                    rate: ban,
                    buckets: 60,
                    debt,
                })
            }
            false => Algorithm::FixedWindow(FixedWindow {
                rate: ban,
                alignment: Alignment::FirstRequest,
                debt: Debt::None,
            }),
        };
        let limit = |name: &str, algorithm| DeclaredLimit {
            name: name.into(),
            at: name.into(),
            algorithm,
            key_facts: Vec::new(),
            key_prefix: String::new(),
            together: None,
            cost_max: None,
            lease: None,
        };
        outline.declare("p", &[limit("strikes", strikes), limit("ban", ban)]);
        outline
    };
    let before = outlined(base, 5, false);
    let quota = base.replace("quota = 5", "quota = 7");
    let changes = Changes::between(&before, &outlined(&quota, 7, false)).to_string();
    assert_eq!(changes, "policies.p.config.strikes.quota: 5 -> 7 (existing counters go on)");
    let extends = base.replace("config.ban = \"1h\"", "config.ban = \"60m\"\nconfig.extend = true");
    let changes = Changes::between(&before, &outlined(&extends, 5, true)).to_string();
    let expected = [
        "policies.p.config.ban: \"1h\" -> \"60m\" (starts with fresh counters)",
        "policies.p.config.extend: added",
    ];
    assert_eq!(changes.lines().collect::<Vec<_>>(), expected);
    let extends = base.replace("[[routes]]", "config.extend = true\n[[routes]]");
    let changes = Changes::between(&before, &outlined(&extends, 5, true)).to_string();
    assert!(
        changes.contains("policies.p.config.ban: counts differently (starts with"),
        "{changes}"
    );
}
