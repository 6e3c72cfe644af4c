//! Parsing of the limits table: the values read, and the text and path of each mistake.

use super::*;
use crate::{Algorithm, Alignment, Enforcement, Fallback, Refund};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(dead_code, reason = "some are read only for their mistakes")]
struct Config {
    limits: Limits,
    #[serde(default)]
    other: u8,
    plans: Option<std::collections::BTreeMap<String, Limits>>,
}

pub(super) fn read(text: &str) -> Limits {
    let (config, mistakes) = crate::config::read::<Config>(text);
    assert!(mistakes.is_empty(), "{mistakes:?}");
    config.unwrap().limits
}

pub(super) fn mistakes(text: &str) -> Vec<String> {
    let (_, mistakes) = crate::config::read::<Config>(text);
    let mut mistakes: Vec<String> = mistakes
        .into_iter()
        .map(|mistake| format!("{}: {}", mistake.path, mistake.message))
        .collect();
    mistakes.sort();
    mistakes
}

pub(super) fn one(fields: &str) -> String {
    format!(r#"{{"limits": [{{"name": "a", {fields}}}]}}"#)
}

#[test]
fn a_limit_is_read_with_its_defaults() {
    let limits = read(&one(r#""algorithm": "fixed_window", "quota": 100, "period": "1m""#));
    let charged = limits.charge("me", &Facts::new(&[])).unwrap();
    assert_eq!(charged.len(), 1);
    let limit = &charged[0];
    assert_eq!((limit.name.as_str(), limit.key.as_str(), limit.cost), ("a", "me", 1));
    assert_eq!(
        (limit.enforcement, limit.refund, limit.on_store_error),
        (Enforcement::Enforce, Refund::Never, Fallback::RouteDefault)
    );
    let Algorithm::FixedWindow(window) = limit.algorithm else { panic!("{limit:?}") };
    assert_eq!(
        (window.rate.amount, window.rate.per_ms, window.alignment),
        (100, 60_000, Alignment::FirstRequest)
    );
}

#[test]
fn burst_is_the_quota_unless_it_is_written() {
    for (burst, expected) in [("", 10), (r#", "burst": 20"#, 20)] {
        let limits =
            read(&one(&format!(r#""algorithm": "gcra", "quota": 10, "period": "1s"{burst}"#)));
        let Algorithm::Gcra(bucket) = limits.charge("", &Facts::new(&[])).unwrap()[0].algorithm
        else {
            panic!()
        };
        assert_eq!(bucket.burst, expected);
    }
}

#[test]
fn everything_else_that_may_be_written_is_read() {
    let limits = read(&one(
        r#""algorithm": "fixed_window", "quota": 5, "period": "1s", "alignment": "clock", "cost": 5, "shadow": true, "refund": "upstream_error",
           "on_store_error": "allow", "unit": "content-bytes", "key": "{path}""#,
    ));
    let shown = [("path".to_owned(), "/x".to_owned())];
    let limit = &limits.charge("me", &Facts::new(&shown)).unwrap()[0];
    assert_eq!(
        (limit.key.as_str(), limit.cost, limit.unit.as_deref()),
        ("/x", 5, Some("content-bytes"))
    );
    assert_eq!(
        (limit.enforcement, limit.refund, limit.on_store_error),
        (Enforcement::Shadow, Refund::UpstreamError, Fallback::Allow)
    );
    assert_eq!(limits.facts().collect::<Vec<_>>(), ["path"]);
}

#[test]
fn a_limit_that_is_not_shown_has_an_empty_unit() {
    let field =
        |more: &str| one(&format!(r#""algorithm": "gcra", "quota": 5, "period": "1s"{more}"#));
    let unit = |more: &str| read(&field(more)).each().next().unwrap().unit.clone();
    assert_eq!(unit(""), None);
    assert_eq!(unit(r#", "show": true"#), None);
    assert_eq!(unit(r#", "show": false"#).as_deref(), Some(""));
    let wrong = mistakes(&field(r#", "show": false, "unit": "bytes""#));
    assert_eq!(wrong.len(), 1, "{wrong:?}");
    assert!(wrong[0].contains("with `show = false` nobody sees it"), "{wrong:?}");
}

#[test]
fn a_lease_becomes_options_of_the_contract() {
    let options = |lease: &str| {
        let field = format!(r#""algorithm": "gcra", "quota": 5, "period": "1s", "lease": {lease}"#);
        read(&one(&field)).each().next().unwrap().options.clone()
    };
    let pairs = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    };
    assert_eq!(options(r#""200ms""#), pairs(&[("lease-ms", "200")]));
    assert_eq!(
        options(r#"{"life": "1s", "units": 9, "strict": false}"#),
        pairs(&[("lease-ms", "1000"), ("lease-units", "9"), ("lease-bound", "loose")])
    );
    assert_eq!(
        options(r#"{"life": "5s", "callers": true}"#),
        pairs(&[("lease-ms", "5000"), ("lease-to", "callers")])
    );
    for (lease, expected) in [
        ("5", "lease: found 5, expected how long a lease lives, such as"),
        (r#"{"units": 5}"#, "lease: found no `life`, expected how long a lease lives"),
        (r#"{"life": "1s", "unit": 5}"#, "lease.unit: found the unknown key `unit`"),
        (r#"{"life": "1s", "units": -1}"#, "lease.units: found -1, expected a whole number"),
    ] {
        let found = mistakes(&one(&format!(
            r#""algorithm": "gcra", "quota": 5, "period": "1s", "lease": {lease}"#
        )));
        assert!(
            found.len() == 1 && found[0].starts_with(&format!("limits[0].{expected}")),
            "{found:?}"
        );
    }
}

#[test]
fn settings_of_children_that_say_nothing_are_mistakes() {
    for (fields, expected) in [
        (
            r#""algorithm": "fixed_window", "quota": 9, "period": "1s", "children":
               {"key": "{path}", "assured": {"quota": 2, "burst": 4}}"#,
            "children.assured.burst: found one, expected nothing: fixed_window has no burst",
        ),
        (
            r#""algorithm": "gcra", "quota": 9, "period": "1s", "debt": 3, "children":
               {"key": "{path}", "assured": {"quota": 2, "burst": 4}}"#,
            "debt: found 3, expected at least 4, as a child is assured at once",
        ),
        (
            r#""algorithm": "sliding_window_log", "quota": 9, "period": "1s", "children":
               {"key": "{path}", "assured": 2}"#,
            "children: found sliding_window_log, expected nothing: only fixed_window, ",
        ),
    ] {
        let found = mistakes(&one(fields));
        let expected = format!("limits[0].{expected}");
        assert!(found.len() == 1 && found[0].starts_with(&expected), "{found:?}");
    }
    let places = r#""algorithm": "concurrency", "quota": 9, "children":
        {"key": "{path}", "assured": 2, "ceiling": 5}"#;
    assert_eq!(read(&one(places)).count(), 3);
}

#[test]
fn children_of_a_leased_limit_have_slots_of_their_own() {
    let tags = |lease: &str| {
        let field = format!(
            r#""algorithm": "gcra", "quota": 9, "period": "1s", "key": "all"{lease},
               "children": {{"key": "{{path}}", "assured": 2}}"#
        );
        let limits = read(&one(&field));
        let charged =
            limits.charge("", &Facts::new(&[("path".to_owned(), "/a".to_owned())])).unwrap();
        let of = |limit: &crate::Limit| (limit.key.clone(), limit.tag.clone());
        (charged.iter().map(of).collect::<Vec<_>>(), limits.are_leased())
    };
    let key = |key: &str, tag: Option<&str>| (key.to_owned(), tag.map(str::to_owned));
    let shared = [key("all", None), key("/a", Some("all")), key("/a", Some("all"))];
    assert_eq!(tags(""), (shared.to_vec(), false));
    let apart = [key("all", None), key("/a", None), key("/a", None)];
    assert_eq!(tags(r#", "lease": "100ms""#), (apart.to_vec(), true));
}

#[test]
fn a_misspelt_word_is_reported_with_the_nearest() {
    for (fields, expected) in [
        (
            r#""algorithm": "leaky_buckt""#,
            "algorithm: found the unknown word `leaky_buckt`, expected one of `fixed_window`, `sliding_window_counter`, ",
        ),
        (
            r#""algorithm": "gcra", "on_store_error": "locl""#,
            "on_store_error: found the unknown word `locl`, expected one of `allow`, `local`, `deny`; `local` is near",
        ),
    ] {
        let found = mistakes(&one(&format!(r#"{fields}, "quota": 1, "period": "1s""#)));
        assert!(
            found.len() == 1 && found[0].starts_with(&format!("limits[0].{expected}")),
            "{found:?}"
        );
    }
    let found = mistakes(&one(r#""algorithm": "leaky_buckt", "quota": 1, "period": "1s""#));
    assert!(found[0].ends_with("`script`; `leaky_bucket` is near"), "{found:?}");
    let found = mistakes(&one(r#""algorithm": "gcra", "quota": 1, "period": "1s", "bucket": 5"#));
    assert!(
        found[0].starts_with("limits[0].bucket: found the unknown key `bucket`")
            && found[0].ends_with("`buckets` is near"),
        "{found:?}"
    );
}

#[test]
fn a_cost_that_could_never_pass_is_an_error() {
    for (fields, expected) in [
        (
            r#""algorithm": "gcra", "quota": 5, "cost": 6"#,
            Some("cost: found 6, expected at most the quota, 5: such a request could never pass"),
        ),
        (
            r#""algorithm": "fixed_window", "quota": 5, "cost": 6"#,
            Some("cost: found 6, expected at most the quota, 5: such"),
        ),
        (
            r#""algorithm": "token_bucket", "quota": 5, "burst": 3, "cost": 4"#,
            Some("cost: found 4, expected at most the burst, 3: such"),
        ),
        (
            r#""algorithm": "token_bucket", "quota": 5, "burst": 0"#,
            Some("burst: found 0, expected 1 or more: with 0 no request could ever pass"),
        ),
        (r#""algorithm": "gcra", "quota": 5, "cost": 5"#, None),
        (r#""algorithm": "gcra", "quota": 5, "burst": 8, "cost": 8"#, None),
        (r#""algorithm": "gcra", "quota": 5, "cost": 0"#, None),
        // How a limit that refuses everything is written.
        (r#""algorithm": "gcra", "quota": 0, "cost": 6"#, None),
    ] {
        let found = mistakes(&one(&format!(r#"{fields}, "period": "1m""#)));
        assert_eq!(found.len(), usize::from(expected.is_some()), "{fields}: {found:#?}");
        assert!(
            expected.is_none_or(|expected| found[0].starts_with(&format!("limits[0].{expected}"))),
            "{fields}: {found:#?}"
        );
    }
    // The capacity isn't known if the burst is invalid.
    let found = mistakes(&one(
        r#""algorithm": "gcra", "quota": 5, "burst": "20", "cost": 10, "period": "1m""#,
    ));
    assert_eq!(found, ["limits[0].burst: found \"20\", expected a whole number, 0 or more"]);
}

#[test]
fn everything_that_is_missing_is_named_at_once() {
    assert_eq!(
        mistakes(r#"{"limits": [{}]}"#),
        [
            "limits[0]: found no `algorithm`, expected one of `fixed_window`, `sliding_window_counter`, `sliding_window_log`, `sliding_window_buckets`, `token_bucket`, `gcra`, `leaky_bucket`, `concurrency`, `quota`, `script`",
            "limits[0]: found no `name`, expected a name, such as `name = \"per-minute\"`",
            "limits[0]: found no `period`, expected a duration, such as `period = \"1m\"`",
            "limits[0]: found no `quota`, expected the units that each period allows, such as `quota = 100`",
        ]
    );
}

#[test]
fn each_number_out_of_range_is_named() {
    for (fields, expected) in [
        (
            r#""algorithm": "gcra", "quota": 4503599627370497, "period": "1ms""#,
            "limits[0].quota: found 4503599627370497, expected 0 to 4503599627370496",
        ),
        (
            r#""algorithm": "gcra", "quota": 1, "burst": 4503599627370497, "period": "1ms""#,
            "limits[0].burst: found 4503599627370497, expected 0 to",
        ),
        (
            r#""algorithm": "gcra", "quota": 1, "period": "0s""#,
            "limits[0].period: found \"0s\", expected a duration from \"1ms\" to \"400d\", such as",
        ),
        (
            r#""algorithm": "gcra", "quota": 1, "period": "401d""#,
            "limits[0].period: found \"401d\", expected a duration from \"1ms\" to \"400d\", such as",
        ),
        (
            r#""algorithm": "gcra", "quota": 2000000011, "period": "1h""#,
            "limits[0].quota: found 2000000011, expected a burst (by default the quota) of 0 to 1250999, or a rounder quota, with a period of \"1h\"",
        ),
        (
            r#""algorithm": "gcra", "quota": 1, "burst": 2000000000, "period": "1d""#,
            "limits[0].burst: found 2000000000, expected a burst (by default the quota) of 0 to 52124995, or a rounder quota, with a period of \"1d\"",
        ),
        (
            r#""algorithm": "gcra", "quota": 1, "period": "1m", "cost": 4503599627370497"#,
            "limits[0].cost: found 4503599627370497, expected 0 to",
        ),
        (r#""algorithm": "gcra", "quota": 1"#, "limits[0]: found no `period`, expected a duration"),
        (
            r#""algorithm": "gcra", "quota": 1, "period": "1x""#,
            "limits[0].period: found \"1x\", expected a duration from",
        ),
        (
            r#""algorithm": "gcra", "quota": 1, "period": 60"#,
            "limits[0].period: found 60, expected a duration from \"1ms\" to \"400d\", such as \"10s\", \"1m\" or \"1h30m\": it has a unit, as in \"60s\" or \"60ms\"",
        ),
        (
            r#""algorithm": "gcra", "quota": 1, "period": true"#,
            "limits[0].period: found true or false, expected a duration from",
        ),
        (
            r#""algorithm": "gcra", "quota": -1, "period": "1s""#,
            "limits[0].quota: found -1, expected a whole number, 0 or more",
        ),
        (
            r#""algorithm": "gcra", "quota": 1, "period": "1s", "key": "{ip}""#,
            "limits[0].key: found `{ip}`, expected one of {client_ip}",
        ),
    ] {
        let found = mistakes(&one(fields));
        assert!(found.len() == 1 && found[0].starts_with(expected), "{fields}: {found:#?}");
    }
}

#[test]
fn all_errors_of_all_tables_come_at_once() {
    let found = mistakes(
        r#"{"other": "x",
            "limits": [{"name": "A!", "algorithm": "gcar", "qouta": 1, "quota": 1, "period": "1s"},
                       {"name": "b", "algorithm": "gcra", "quota": 9999999999999999, "period": "500d"},
                       {"name": "b", "algorithm": "gcra", "quota": 1, "period": "1s"}],
            "plans": {"free": [], "gold": [{"name": "x", "algorithm": "gcra", "quota": 1}]}}"#,
    );
    let paths: Vec<&str> =
        found.iter().map(|mistake| mistake.split_once(": ").unwrap().0).collect();
    let expected = [
        "limits[0].algorithm",
        "limits[0].name",
        "limits[0].qouta",
        "limits[1].period",
        "limits[1].quota",
        "limits[2].name",
        "other",
        "plans.free",
        "plans.gold[0]",
    ];
    assert_eq!(paths, expected, "{found:#?}");
    assert!(
        found[0].contains("`gcra` is near") && found[2].contains("`quota` is near"),
        "{found:#?}"
    );
}

#[test]
fn a_table_that_is_no_list_is_an_error() {
    assert_eq!(mistakes(r#"{"limits": 3}"#), ["limits: found a number, expected a list of limits"]);
    assert_eq!(mistakes(r#"{"limits": []}"#), ["limits: found 0 limits, expected 1 to 16"]);
    assert_eq!(
        mistakes("{}"),
        [": found no `limits`, expected this setting, as it has no default"]
    );
}

#[test]
fn a_key_above_the_bound_becomes_its_digest() {
    let limits = read(&one(r#""algorithm": "gcra", "quota": 1, "period": "1s""#));
    let key = |key: &str| limits.charge(key, &Facts::new(&[])).unwrap()[0].key.clone();
    assert_eq!(key(&"k".repeat(KEY_BYTES_MAX)).len(), KEY_BYTES_MAX);
    let long = key(&"k".repeat(KEY_BYTES_MAX + 1));
    assert_eq!(long.len(), 66);
    assert_ne!(long, key(&format!("{}j", "k".repeat(KEY_BYTES_MAX))));
}

fn keys(limits: &Limits, facts: &[(&str, &str)]) -> Result<Vec<String>, u16> {
    let facts: Vec<_> =
        facts.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let charged = limits.charge("own", &Facts::new(&facts)).map_err(|denial| denial.status)?;
    Ok(charged.into_iter().map(|limit| limit.key).collect())
}

const GCRA: &str = r#""algorithm": "gcra", "quota": 1, "period": "1s""#;

#[test]
fn a_client_without_a_key_is_charged_as_missing_says() {
    let ip = ("client-ip", "2001:db8::1");
    let own = ("header.k", "v");
    for (missing, absent, repeated) in [
        ("", Ok("\\@2001:db8::/64"), Ok("\\@2001:db8::/64")),
        (r#", "missing": "address""#, Ok("\\@2001:db8::/64"), Ok("\\@2001:db8::/64")),
        (r#", "missing": "shared""#, Ok("\\-"), Ok("\\@2001:db8::/64")),
        (r#", "missing": "skip""#, Ok(""), Ok("\\@2001:db8::/64")),
        (r#", "missing": "deny""#, Err(400), Err(400)),
        (r#", "missing": {"deny": 401}"#, Err(401), Err(401)),
        (r#", "missing": "deny", "shadow": true"#, Ok("\\@2001:db8::/64"), Ok("\\@2001:db8::/64")),
    ] {
        let limits = read(&one(&format!(r#"{GCRA}, "key": "{{header.k}}"{missing}"#)));
        assert_eq!(limits.facts().collect::<Vec<_>>(), ["header.k", "client-ip"]);
        let one = |facts: &[(&str, &str)]| keys(&limits, facts).map(|keys| keys.concat());
        assert_eq!(one(&[ip, own]), Ok("v".to_owned()), "{missing}");
        assert_eq!(one(&[ip]), absent.map(str::to_owned), "{missing}");
        assert_eq!(one(&[ip, own, own]), repeated.map(str::to_owned), "{missing}");
        // An empty value is as good as none.
        assert_eq!(one(&[ip, ("header.k", "")]), absent.map(str::to_owned), "{missing}");
    }
}

#[test]
fn all_requests_without_a_key_share_one_allowance() {
    let key = r#""key": "{header.a}/{header.b}", "missing": "shared""#;
    let limits = read(&one(&format!("{GCRA}, {key}")));
    let sent: [&[(&str, &str)]; 5] = [
        &[],
        &[("header.a", "x")],
        &[("header.a", "y"), ("header.b", "")],
        &[("header.b", "z")],
        &[("header.a", ""), ("header.b", "")],
    ];
    for facts in sent {
        assert_eq!(keys(&limits, facts).unwrap(), ["\\-"], "{facts:?}");
    }
    let both = [("header.a", "x"), ("header.b", "z")];
    assert_eq!(keys(&limits, &both).unwrap(), ["1:x/1:z"]);
}

#[test]
fn an_address_is_asked_for_only_where_a_key_may_need_it() {
    for (key, facts) in [("{path}", &["path"][..]), ("{method}", &["method"]), ("all", &[])] {
        let limits = read(&one(&format!(r#"{GCRA}, "key": "{key}""#)));
        assert_eq!(limits.facts().collect::<Vec<_>>(), facts, "{key}");
        // Nothing else may be asked for.
        let shown =
            [("path", "/"), ("method", "GET")].map(|(name, value)| (name.into(), value.into()));
        let named: Vec<String> = facts.iter().map(|fact| (*fact).to_owned()).collect();
        crate::named::set(Some(named));
        let charged = limits.charge("own", &Facts::new(&shown));
        crate::named::set(None);
        assert_eq!(charged.unwrap().len(), 1, "{key}");
    }
}

#[test]
fn no_key_that_is_sent_passes_for_an_address_or_a_digest() {
    let limits = read(&one(&format!(r#"{GCRA}, "key": "{{header.k}}", "missing": "shared""#)));
    let one = |value: &str| {
        keys(&limits, &[("client-ip", "192.0.2.1"), ("header.k", value)]).unwrap().concat()
    };
    let address =
        keys(&limits, &[("client-ip", "192.0.2.1"), ("header.k", "a"), ("header.k", "b")])
            .unwrap()
            .concat();
    assert_eq!(address, "\\@192.0.2.1");
    assert_ne!(one("\\@192.0.2.1"), address);
    assert_ne!(one("\\-"), keys(&limits, &[]).unwrap().concat());
    let long = one(&"x".repeat(KEY_BYTES_MAX + 1));
    assert_ne!(one(&long), long);
}

#[test]
fn a_key_that_each_request_has_needs_no_address() {
    let limits = read(&one(&format!(r#"{GCRA}, "key": "{{method}} {{path}}""#)));
    assert_eq!(limits.facts().collect::<Vec<_>>(), ["method", "path"]);
    assert_eq!(keys(&limits, &[("method", "GET"), ("path", "/a")]).unwrap(), ["3:GET 2:/a"]);
}

#[test]
fn an_ipv6_client_is_its_network_in_keys() {
    let limits = read(&one(&format!(r#"{GCRA}, "key": "{{client_ip}} {{path}}""#)));
    assert_eq!(
        keys(&limits, &[("client-ip", "2001:db8::1"), ("path", "/")]).unwrap(),
        ["13:2001:db8::/64 1:/"]
    );
    let limits = limits.ipv6_prefix(serde_json::from_str("48").unwrap());
    assert_eq!(
        keys(&limits, &[("client-ip", "2001:db8::1"), ("path", "/")]).unwrap(),
        ["13:2001:db8::/48 1:/"]
    );
}

#[test]
fn a_limit_is_about_the_requests_that_its_conditions_name() {
    let limits = read(&format!(
        r#"{{"limits": [{{"name": "all", {GCRA}}}, {{"name": "writes", {GCRA}, "when": {{"method": ["POST", "PUT"]}}}},
                        {{"name": "inside", {GCRA}, "when": ["10.0.0.0/8", "2001:db8::1"]}}]}}"#
    ));
    assert_eq!(limits.facts().collect::<Vec<_>>(), ["method", "client-ip", "client-ip"]);
    let names = |facts: &[(&str, &str)]| {
        let facts: Vec<_> =
            facts.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        limits
            .charge("own", &Facts::new(&facts))
            .unwrap()
            .into_iter()
            .map(|limit| limit.name)
            .collect::<Vec<_>>()
    };
    assert_eq!(names(&[("method", "GET"), ("client-ip", "192.0.2.1")]), ["all"]);
    assert_eq!(names(&[("method", "PUT"), ("client-ip", "10.1.1.1")]), ["all", "writes", "inside"]);
    // One address of a network that counts as one client.
    assert_eq!(names(&[("method", "GET"), ("client-ip", "2001:db8::1")]), ["all", "inside"]);
    assert_eq!(names(&[("method", "GET"), ("client-ip", "2001:db8::2")]), ["all"]);
}

#[test]
fn a_limit_leaves_out_the_requests_that_certainly_meet_its_exceptions() {
    let limits = read(&format!(
        r#"{{"limits": [{{"name": "outside", {GCRA}, "unless": ["10.0.0.0/8", {{"header.x-internal": "yes"}}]}},
                        {{"name": "writes", {GCRA}, "when": {{"method": "POST"}}, "unless": {{"path": "/status/*"}}}}]}}"#
    ));
    assert_eq!(
        limits.facts().collect::<Vec<_>>(),
        ["client-ip", "header.x-internal", "method", "path"]
    );
    let names = |facts: &[(&str, &str)]| {
        let facts: Vec<_> =
            facts.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let charged = limits.charge("own", &Facts::new(&facts)).unwrap();
        charged.into_iter().map(|limit| limit.name).collect::<Vec<_>>()
    };
    let (inside, outside) = (("client-ip", "10.1.1.1"), ("client-ip", "192.0.2.1"));
    let post = ("method", "POST");
    assert_eq!(names(&[outside, post, ("path", "/a")]), ["outside", "writes"]);
    assert_eq!(names(&[inside, post, ("path", "/a")]), ["writes"]);
    assert_eq!(names(&[inside, post, ("path", "/status/a")]), Vec::<String>::new());
    // A spelling that may be another path's, and a value that a client may have added.
    assert_eq!(names(&[inside, post, ("path", "/STATUS/a")]), ["writes"]);
    let internal = ("header.x-internal", "yes");
    assert_eq!(names(&[outside, internal]), Vec::<String>::new());
    assert_eq!(names(&[outside, internal, ("header.x-internal", "no")]), ["outside"]);
}

#[test]
fn settings_that_a_limit_does_not_write_are_the_policys() {
    let limits = read(&format!(
        r#"{{"limits": [{{"name": "a", {GCRA}}}, {{"name": "b", {GCRA}, "key": "{{path}}", "missing": "skip"}}, {{"name": "c", {GCRA}, "key": "{{header.c}}"}}]}}"#
    ));
    assert_eq!(limits.without_key().collect::<Vec<_>>(), [0]);
    let key: Template = serde_json::from_str("\"{header.k}\"").unwrap();
    let limits = limits.by_default(Some(&key), Some(Missing::Shared));
    assert_eq!(limits.without_key().count(), 0);
    assert_eq!(keys(&limits, &[("path", "/p")]).unwrap(), ["\\-", "/p", "\\-"]);
    assert_eq!(keys(&limits, &[("header.k", "k")]).unwrap(), ["k", "\\-"]);
}

#[test]
fn a_space_keeps_counters_apart_also_those_of_long_keys() {
    let limits = || read(&one(&format!(r#"{GCRA}, "key": "{{header.k}}""#)));
    let key = |space: &str, value: &str| {
        keys(&limits().in_space(space), &[("header.k", value)]).unwrap().concat()
    };
    assert_eq!(key("gold", "x"), "gold/x");
    let long = "x".repeat(KEY_BYTES_MAX);
    assert!(key("gold", &long).len() < 100);
    assert_ne!(key("gold", &long), key("free", &long));
}

#[test]
fn words_for_a_missing_key_are_checked() {
    for (text, expected) in [
        (
            "\"skipp\"",
            "limits[0].missing: found \"skipp\", expected \"address\", \"shared\", \"skip\", \"deny\" or { deny = STATUS }; \"skip\" is near",
        ),
        ("7", "limits[0].missing: found a number, expected \"address\""),
        (
            r#"{"deny": 200}"#,
            "limits[0].missing: found deny = 200, expected { deny = STATUS } with a status from 400 to 499",
        ),
        (r#"{"deny": 400, "x": 1}"#, "limits[0].missing: found another table, expected { deny"),
    ] {
        let found = mistakes(&one(&format!(r#"{GCRA}, "key": "{{header.k}}", "missing": {text}"#)));
        assert!(found.len() == 1 && found[0].starts_with(expected), "{text}: {found:#?}");
    }
    let limits =
        read(&one(&format!(r#"{GCRA}, "key": "{{header.k}}", "missing": {{"deny": 401}}"#)));
    let denial = limits.charge("", &Facts::new(&[])).unwrap_err();
    assert_eq!(
        (denial.reason.as_str(), denial.headers[0].0.as_str()),
        ("header k must be there", "www-authenticate")
    );
}
