//! What `weir check` warns of, by configurations and real guests.

use std::path::Path;

use super::*;

#[path = "../../../tests/harness/guest.rs"]
mod guest;

const API: &str = "[upstreams.api]\nendpoints = [\"http://127.0.0.1:9\"]\n";
const ROUTE: &str = "[[routes]]\npath = \"/*\"\nupstream = \"api\"\npolicy = \"p\"\n";

fn warnings(text: &str) -> Vec<Warning> {
    let config = Config::parse(text, Path::new("proxy.toml"));
    let config = config.unwrap_or_else(|errors| panic!("{errors}"));
    check(config).unwrap_or_else(|errors| panic!("{errors}")).warnings
}

/// The warnings about a policy that decides for all requests.
fn about(policy: &str) -> Vec<Warning> {
    warnings(&format!("{API}[policies.p]\n{policy}\n{ROUTE}"))
}

fn names(warnings: &[Warning]) -> Vec<&str> {
    warnings.iter().map(|warning| &*warning.name).collect()
}

/// The limits of a policy, each with a key.
fn keyed(keys: &[&str]) -> String {
    let limit = |(index, key): (usize, &&str)| {
        format!(
            "{{ name = \"l{index}\", algorithm = \"gcra\", quota = {}, period = \"1s\", {key} }}",
            9 - index
        )
    };
    let limits: Vec<String> = keys.iter().enumerate().map(limit).collect();
    format!("use = \"keyed\"\nconfig.limits = [{}]", limits.join(", "))
}

#[test]
fn a_route_that_others_hide_is_shown_with_them() {
    let route = |path: &str| format!("[[routes]]\npath = \"{path}\"\nupstream = \"api\"\n");
    let text = format!("{API}{}{}{}", route("/a/*"), route("/a"), route("/a/{id}/*"));
    let found = warnings(&text);
    assert_eq!(names(&found), ["hidden-route"]);
    assert_eq!(
        found[0].to_string(),
        "proxy.toml:4:8: no request can reach the route `a-all`: `a` and `a-id-all` match \
         everything that it would; remove it, or narrow the routes that hide it"
    );
    for part in [
        "warning: no request can reach the route `a-all`",
        "[hidden-route]",
        "--> proxy.toml:4:8",
        "4 | path = \"/a/*\"",
        "^^^^^^",
        "7 | path = \"/a\"",
        "---- this route is more specific",
        "help: remove it",
    ] {
        assert!(found[0].rendering.contains(part), "{part}\n{}", found[0].rendering);
    }
    let short = format!(
        "server.limits.uri_bytes = \"1KiB\"\n{API}{}",
        route(&format!("/{}", "a".repeat(1_024)))
    );
    let found = warnings(&short);
    assert_eq!(names(&found), ["hidden-route"]);
    assert!(found[0].rendering.contains("this is the maximum"), "{}", found[0].rendering);
}

/// The warnings about two listeners, of which the first requires certificates.
fn about_listeners(second: &str, routes: &[&str]) -> Vec<Warning> {
    let folder = tempfile::tempdir().unwrap();
    let key = rcgen::KeyPair::generate().unwrap();
    let parameters = rcgen::CertificateParams::new(vec!["api.example".into()]).unwrap();
    let pem = parameters.self_signed(&key).unwrap().pem();
    for (name, text) in [("api.pem", &pem), ("ca.pem", &pem), ("api.key", &key.serialize_pem())] {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    let secured = "certificates = [{ certificate = \"api.pem\", key = \"api.key\" }]\n";
    let second = second.replace("SECURED", secured);
    let text = format!(
        "{API}[[listeners]]\nname = \"inside\"\naddress = \"127.0.0.1:1\"\n{secured}client_ca = \"ca.pem\"\n\
         [[listeners]]\nname = \"outside\"\naddress = \"127.0.0.1:2\"\n{second}\n{}",
        routes.iter().map(|route| format!("[[routes]]\n{route}\n")).collect::<String>()
    );
    let config = Config::parse(&text, &folder.path().join("proxy.toml"));
    let config = config.unwrap_or_else(|errors| panic!("{errors}"));
    let all = check(config).unwrap_or_else(|errors| panic!("{errors}"));
    all.warnings.into_iter().filter(|warning| warning.name == "open-listener").collect()
}

#[test]
fn a_listener_that_walks_round_the_certificates_of_another_is_reported() {
    let all = "path = \"/*\"\nupstream = \"api\"";
    for second in
        ["", "SECURED", "SECUREDclient_ca = \"ca.pem\"\nclient_certificates = \"optional\""]
    {
        let found = about_listeners(second, &[all]);
        assert_eq!(names(&found), ["open-listener"], "{second}");
        let excerpt = &found[0].rendering;
        for part in ["reach `all`", "this listener requires one", "help: give listeners a `name`"] {
            assert!(excerpt.contains(part), "{part}\n{excerpt}");
        }
    }
    let on = |listener: &str| format!("{all}\nlisteners = [\"{listener}\"]");
    let to_https =
        "path = \"/*\"\nname = \"to-https\"\nrespond = { status = 308 }\nlisteners = [\"outside\"]";
    for (second, routes) in [
        ("SECUREDclient_ca = \"ca.pem\"", &[all][..]),
        ("", &[&on("inside"), to_https]),
        ("", &[&on("outside")]),
        ("", &["path = \"/*\"\nrespond = { status = 204 }"]),
    ] {
        assert_eq!(about_listeners(second, routes), [], "{second} {routes:?}");
    }
}

#[test]
fn a_key_that_only_the_client_chooses_is_reported() {
    for (keys, by) in [
        (&["key = \"{header.x-user}\""][..], "`header.x-user`"),
        (&["key = \"{cookie.sid}\"", "key = \"{query.user}\""], "`cookie.sid` and `query.user`"),
        (&["key = \"{header.x-user} {path}\""], "`header.x-user`"),
        (&["key = \"{client_ip} {header.x-user}\""], "`header.x-user`"),
        (&["key = \"{body:/user/name}\""], "`body:/user/name`"),
        (&["key = \"{form.user}\""], "`form.user`"),
        (&["key = \"{query}\""], "`query`"),
        // With another port each time.
        (&["key = \"{authority}\""], "`authority`"),
        // A limit that never refuses bounds nobody.
        (&["key = \"{header.x-user}\"", "key = \"{client_ip}\", shadow = true"], "`header.x-user`"),
        // Nor does one for other requests.
        (
            &["key = \"{header.x-user}\"", "key = \"{client_ip}\", when = { method = \"POST\" }"],
            "`header.x-user`",
        ),
        (&["key = \"{header.x-user}\", when = { path = \"/login\" }"], "`header.x-user`"),
    ] {
        let found = about(&keyed(keys));
        assert_eq!(names(&found), ["unbounded-key"], "{keys:?}: {found:#?}");
        assert!(found[0].text.contains(by), "{by}: {}", found[0]);
        assert!(found[0].rendering.contains("^^^"), "{}", found[0].rendering);
    }
}

#[test]
fn a_client_that_some_limit_counts_is_bounded() {
    for keys in [
        &["key = \"{client_ip}\""][..],
        &["key = \"{header.x-user}\"", "key = \"{client_ip}\""],
        &["key = \"{header.x-user}\"", "key = \"{tls.client.subject}\""],
        &["key = \"{header.x-user}\"", "key = \"everyone\""],
        &["key = \"{host}\""],
        &["key = \"{path.id}\""],
        &["key = \"{path} {method}\""],
    ] {
        let found = about(&keyed(keys));
        let found: Vec<_> =
            names(&found).into_iter().filter(|name| *name != "missing-fact").collect();
        assert_eq!(found, [] as [&str; 0], "{keys:?}");
    }
    // Unknown keys are counted by address, or refused.
    let plans = "use = \"plans\"\n[policies.p.config]\nkey = \"{header.x-api-key}\"\n";
    let free =
        "plans.free = [{ name = \"a\", algorithm = \"gcra\", quota = 1, period = \"1s\" }]\n";
    for unknown in ["default_plan = \"free\"", "unknown = \"deny\""] {
        assert_eq!(about(&format!("{plans}{unknown}\n{free}")), [], "{unknown}");
    }
    // But not where a plan's own limit counts something else.
    let own = free.replace("\"1s\"", "\"1s\", key = \"{header.x-device}\"");
    assert_eq!(names(&about(&format!("{plans}default_plan = \"free\"\n{own}"))), ["unbounded-key"]);
}

/// Its limits are not in the configuration.
#[test]
fn policies_of_the_operators_own_are_asked_in_the_same_way() {
    let config =
        "config.limits = [{ name = \"a\", algorithm = \"gcra\", quota = 1, period = \"1s\" }]";
    let path = guest::api_key();
    let found = about(&format!("wasm = {path:?}\n{config}"));
    assert_eq!(names(&found), ["unbounded-key"], "{found:#?}");
    let looser = "{ name = \"b\", algorithm = \"gcra\", quota = 2, period = \"1s\" }]";
    let found = about(&format!("wasm = {path:?}\n{}, {looser}", config.trim_end_matches(']')));
    assert_eq!(names(&found), ["useless-limit", "unbounded-key"], "{found:#?}");
    // This one settles what its limits took, so neither always precedes the other.
    let window = "algorithm = \"fixed_window\", period = \"15m\"";
    let guard = format!(
        "use = \"login-guard\"\nconfig.account = \"{{form.user}}\"\nconfig.success = [302]\n\
         config.by_address = [{{ name = \"a\", quota = 5, {window} }}, {{ name = \"b\", quota = 9, {window} }}]"
    );
    assert_eq!(names(&about(&guard)), [] as [&str; 0]);
}

#[test]
fn a_path_that_ends_in_a_slash_is_reported_unless_what_is_below_it_has_a_route() {
    let warnings = |slash: &str, paths: &[&str]| {
        let route = |(number, path): (usize, &&str)| {
            format!("[[routes]]\nname = \"r{number}\"\n{path}\nupstream = \"api\"\n")
        };
        let routes: String = paths.iter().enumerate().map(route).collect();
        warnings(&format!("{API}[server.paths]\ntrailing_slash = \"{slash}\"\n{routes}"))
    };
    let (single, below) = ("path = \"/v1/\"", "path = \"/v1/*\"");
    for (paths, found) in [
        (&[single, "path = \"/*\""][..], &["single-path"][..]),
        (&[single, "host = \"other.example\"\npath = \"/v1/*\""], &["single-path"]),
        (&[single, below], &[]),
        (&["path = \"/\""], &["single-path"]),
        (&["path = \"/\"", "path = \"/a\""], &[]),
    ] {
        assert_eq!(names(&warnings("ignore", paths)), found, "{paths:?}");
    }
    assert_eq!(warnings("exact", &[single]), []);
}

#[test]
fn contradicting_limits_are_reported_with_both_lines() {
    let limits = "use = \"client-ip\"\n[[policies.p.config.limits]]\nname = \"second\"\nalgorithm = \"gcra\"\n\
                  quota = 100\nperiod = \"1s\"\n\n[[policies.p.config.limits]]\nname = \"minute\"\n\
                  algorithm = \"fixed_window\"\nquota = 20\nperiod = \"1m\"";
    let found = about(limits);
    assert_eq!(names(&found), ["useless-limit"]);
    let text = "proxy.toml:8:9: `second` (100 in 1s) can never refuse: `minute` (20 in 1m) has the \
                same key and refuses first; ";
    assert!(found[0].to_string().starts_with(text), "{}", found[0]);
    for part in [" 8 | quota = 100", "14 | quota = 20", "-- this limit is stricter"] {
        assert!(found[0].rendering.contains(part), "{part}\n{}", found[0].rendering);
    }
}

#[test]
fn messages_that_nobody_counts_are_reported() {
    let chat = "use = \"keyed\"\nconfig.key = \"{header.x-api-key}\"\nconfig.limits = [\
                { name = \"connects\", algorithm = \"gcra\", quota = 1, period = \"1s\" }, \
                { name = \"said\", algorithm = \"gcra\", quota = 9, period = \"1s\", \
                messages = \"close\" }]";
    let of = |route: &str| {
        warnings(&format!("{API}[policies.p]\n{chat}\n[[routes]]\npath = \"/*\"\n{route}"))
            .into_iter()
            .filter(|warning| warning.name == "no-messages")
            .collect::<Vec<_>>()
    };
    let upstream = "upstream = \"api\"\npolicy = \"p\"\n";
    for counted in ["", "methods = [\"GET\", \"POST\"]\n"] {
        assert_eq!(of(&format!("{upstream}{counted}")), [], "{counted}");
    }
    for none in ["methods = [\"POST\"]\n", "upgrade.protocols = []\n"] {
        let found = of(&format!("{upstream}{none}"));
        assert_eq!(found.len(), 1, "{none}");
        let found = &found[0];
        assert!(found.text.starts_with("`said` counts messages of WebSockets"), "{found}");
        assert!(found.rendering.contains("messages = \"close\""), "{}", found.rendering);
    }
    assert_eq!(of("policy = \"p\"\nrespond = { status = 204 }\n").len(), 1);
    // One route that takes them is enough.
    let both = "policy = \"p\"\nupstream = \"api\"\nmethods = [\"POST\"]\n\
                [[routes]]\npath = \"/chat\"\nupstream = \"api\"\npolicy = \"p\"\n";
    assert_eq!(of(both), []);
}

#[test]
fn a_delay_that_the_rest_of_the_file_cuts_off_is_reported() {
    let queue = "use = \"client-ip\"\nconfig.limits = [{ name = \"a\", algorithm = \"leaky_bucket\", \
                 quota = 1, period = \"1s\", max_delay = \"5s\" }]";
    let route = |timeout: &str| {
        let text = format!("{API}[policies.p]\n{queue}\n{ROUTE}timeouts.request = \"{timeout}\"\n");
        warnings(&text)
    };
    assert_eq!(route("6s"), []);
    let found = route("5s");
    assert_eq!(names(&found), ["long-delay"]);
    assert!(found[0].text.contains("may wait 5000 ms in `a`"), "{}", found[0]);
    let none = format!("server.limits.waiting_per_worker = 0\n{API}[policies.p]\n{queue}\n{ROUTE}");
    assert_eq!(names(&warnings(&none)), ["no-delay"]);
}

#[test]
fn more_in_flight_than_there_is_room_for_is_reported_where_it_is_certain() {
    let text = |quota: u32, more: &str| {
        format!(
            "{more}[server]\nworkers = 2\n{API}requests_per_worker = 10\n[policies.p]\nuse = \"client-ip\"\n\
             config.limits = [{{ name = \"a\", algorithm = \"concurrency\", quota = {quota} }}]\n{ROUTE}"
        )
    };
    assert_eq!(warnings(&text(20, "")), []);
    assert_eq!(names(&warnings(&text(21, ""))), ["useless-limit"]);
    // With a shared store there may be any number of proxies.
    let redis = "[store]\nengine = \"redis\"\non_store_error = \"allow\"\nkey_secret_env = \"PATH\"\n\
                 [store.redis]\nnodes = [\"127.0.0.1:7000\"]\nmode = \"single\"\n";
    assert_eq!(warnings(&text(21, redis)), []);
}
