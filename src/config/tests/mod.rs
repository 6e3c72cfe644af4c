//! The whole module: a text in, settings or rendered errors out. `sections` has an error of each
//! kind, `files` files that are named, `listeners`
//! what clients connect to, `hostile` texts that no operator writes.

mod data;
mod extras;
mod files;
mod hostile;
mod listeners;
mod renderings;
mod scripts;
mod sections;
mod settings;

use std::path::Path;

use super::*;
use crate::engine::{EmbeddedSettings, RedisMode};
use crate::policy::Module;
use crate::telemetry::{Access, AccessFields, Format};
use weir_tls::ClientTls;

/// The README's.
const MINIMAL: &str = r#"
[upstreams.api]
endpoints = ["http://127.0.0.1:3000"]

[policies.public]
use = "client-ip"
config.limits = [{ name = "per-minute", algorithm = "fixed_window", quota = 100, period = "1m" }]

[[routes]]
path = "/*"
upstream = "api"
policy = "public"
"#;

const REDIS: &str = "[store]\nengine = \"redis\"\non_store_error = \"allow\"\n[store.redis]\nnodes = [\"127.0.0.1:7000\"]\n";

fn parse(text: &str) -> Result<Config, ConfigErrors> {
    Config::parse(text, Path::new("proxy.toml"))
}

fn good(text: &str) -> Config {
    parse(text).unwrap_or_else(|errors| panic!("{errors}"))
}

#[test]
fn the_shipped_file_is_right_and_says_the_defaults() {
    let shipped = Config::load(&Path::new(env!("CARGO_MANIFEST_DIR")).join("proxy.toml"))
        .unwrap_or_else(|errors| panic!("{errors}"));
    let bare = good(MINIMAL);
    assert_eq!(shipped.warnings, []);
    assert_eq!(shipped.listeners, bare.listeners);
    assert_eq!((shipped.workers, shipped.shutdown_grace), (bare.workers, bare.shutdown_grace));
    assert_eq!(shipped.connections, bare.connections);
    assert_eq!(shipped.requests, bare.requests);
    assert_eq!((&shipped.admin, &shipped.log), (&bare.admin, &bare.log));
    assert_eq!(shipped.insight, bare.insight);
    assert_eq!(shipped.engine, bare.engine);
    assert_eq!(shipped.limiter, bare.limiter);
    assert_eq!(shipped.policy_runtime, bare.policy_runtime);
    let caps = |config: &Config| {
        (
            config.policies[0].caps.clone(),
            config.policies[0].cpu_time,
            config.policies[0].memory_bytes,
        )
    };
    assert_eq!(caps(&shipped), caps(&bare));
    assert_eq!(Route { name: "all".into(), ..shipped.routes[0].clone() }, bare.routes[0]);
    let [shipped, bare] = [&shipped, &bare].map(|config| config.upstreams[0].clone());
    assert_eq!(upstream::Settings { endpoints: bare.endpoints.clone(), ..shipped }, bare);
}

#[test]
fn a_file_of_twelve_lines_is_enough() {
    let config = good(MINIMAL);
    assert_eq!(MINIMAL.trim().lines().count(), 11);
    assert_eq!(config.listeners, [listen::Settings::plain("127.0.0.1:8080".parse().unwrap())]);
    assert_eq!(
        config.admin,
        Some(crate::admin::Settings::plain("127.0.0.1:9901".parse().unwrap()))
    );
    assert_eq!(config.engine, engine::Settings::Embedded(EmbeddedSettings::new(1_000_000)));
    assert_eq!(config.policies[0].module, Module::Shipped("client-ip".into()));
    assert_eq!(
        &*config.policies[0].config_json,
        r#"{"limits":[{"algorithm":"fixed_window","name":"per-minute","period":"1m","quota":100}]}"#
    );
    assert_eq!(
        (config.routes[0].name.as_str(), config.routes[0].on_store_error),
        ("all", OnStoreError::Deny)
    );
}

#[test]
fn every_setting_is_read() {
    let text = include_str!("../../../proxy.toml")
        .replace("workers = \"auto\"", "workers = 3")
        .replace("trusted_proxies = []", "trusted_proxies = [\"10.0.0.0/8\", \"::1\"]")
        .replace("engine = \"embedded\"", "engine = \"redis\"")
        .replace("on_store_error = \"deny\" ", "on_store_error = \"allow\" ")
        .replace("# key_secret_file = \"/run/secrets/weir\"", "key_secret_env = \"PATH\"")
        .replace("# [store.redis]", "[store.redis]")
        .replace("# nodes", "nodes")
        .replace("# mode", "mode")
        .replace("# username", "username")
        .replace("# password_file = \"/run/secrets/redis\"", "password_env = \"PATH\"")
        .replace("# key_prefix", "key_prefix")
        .replace("# tls = { ca = \"tls/redis-ca.pem\" }", "tls = {}")
        .replace("# addresses", "addresses")
        .replace("format = \"auto\"", "format = \"json\"")
        .replace("access = \"all\"", "access = \"refused\"")
        .replace("isolation = \"reuse\"", "isolation = \"request\"")
        .replace("# on_store_error = \"allow\"", "on_store_error = \"policy\"")
        .replace(
            "path = \"/*\"",
            "path = \"/*\"\nhost = \"*.example.com\"\nmethods = [\"GET\", \"POST\"]",
        );
    let config = good(&text);
    assert_eq!(config.workers, 3);
    assert_eq!(
        config.requests.trusted_proxies,
        ["10.0.0.0/8".parse().unwrap(), "::1/128".parse().unwrap()]
    );
    assert_eq!(
        (config.log.format, config.log.access, config.requests.access),
        (Format::Json, Access::Refused, Access::Refused)
    );
    assert!(config.requests.access_json);
    // The file shows the default.
    assert_eq!(config.log.access_fields, AccessFields::default());
    let engine::Settings::Redis(redis) = &config.engine else { panic!("{:?}", config.engine) };
    assert_eq!(redis.nodes, ["10.0.0.1:6379", "10.0.0.2:6379"]);
    assert_eq!(
        (redis.mode, redis.username.as_deref(), redis.key_prefix.as_str()),
        (RedisMode::Cluster, Some("weir"), "weir")
    );
    let secret = std::env::var("PATH").ok().map(engine::Secret);
    assert_eq!((&redis.password, &config.limiter.key_secret), (&secret, &secret));
    assert_eq!(redis.tls, Some(ClientTls::default()));
    assert_eq!(redis.addresses["172.18.0.2:6379"], "127.0.0.1:7001");
    assert!(config.policies[0].isolated);
    let route = &config.routes[0];
    assert_eq!(
        (route.host.as_deref(), &*route.methods),
        (Some("*.example.com"), &["GET".to_owned(), "POST".to_owned()][..])
    );
    assert_eq!((route.on_store_error, route.limit_decides), (OnStoreError::Allow, true));
    assert_eq!(config.routes[1].on_store_error, OnStoreError::Allow);
    assert_eq!(
        config.routes[1].action,
        RouteAction::Respond(Respond { status: 200, body: "ok\n".into(), ..Respond::default() })
    );
}

/// Eight errors of eight kinds.
const EIGHT: &str = r#"[[listeners]]
address = "localhost"

[server]
workres = 2
limits = { connections = "many", body_bytes = "100MB" }

[server.timeouts]
keep_alive = 75

[store]
engine = "reddis"

[policies.public]
use = "client-ip"
[[policies.public.config.limits]]
quota = 9007199254740993

[[routes]]
path = "/*"
policy = "pubic"
"#;

#[test]
fn all_errors_are_reported_at_once_each_in_its_place() {
    let errors = parse(EIGHT).unwrap_err();
    let renderings: Vec<&str> = errors.text.split("\n\n").collect();
    let expected: [(&str, &[&str]); 9] = [
        (
            "listeners[0].address: found \"localhost\"",
            &[
                "--> proxy.toml:2:11\n",
                "2 | address = \"localhost\"\n  |           ^^^^^^^^^^^ expected an address and port",
            ],
        ),
        (
            "server.workres: found the unknown key \"workres\"",
            &[
                "--> proxy.toml:5:1\n",
                "| ^^^^^^^ expected a key of `server`",
                "help: the nearest known key is `workers`",
            ],
        ),
        (
            "server.limits.connections: found \"many\"",
            &[":6:26\n", "^^^^^^ expected a whole number from 1 to 1000000"],
        ),
        (
            "server.limits.body_bytes: found \"100MB\"",
            &[":6:47\n", "^^^^^^^ expected a size from \"0B\" to \"1TiB\""],
        ),
        (
            "server.timeouts.keep_alive: found 75",
            &[
                ":9:14\n",
                "^^ expected a duration from \"1ms\" to \"1h\"",
                "help: a duration has a unit: \"75s\" or \"75ms\"",
            ],
        ),
        (
            "store.engine: found \"reddis\"",
            &[
                ":12:10\n",
                "^^^^^^^^ expected \"embedded\" or \"redis\"",
                "help: the nearest is \"redis\"",
            ],
        ),
        (
            "policies.public.config.limits[0].quota: found 9007199254740993",
            &[":17:9\n", "^^^^^^^^^^^^^^^^ expected a whole number from -2^53 to 2^53"],
        ),
        (
            "routes[0].upstream: found nothing",
            &[":19:1\n", "19 | [[routes]]\n   | ^^^^^^^^^^ expected `upstream = \"NAME\"`"],
        ),
        (
            "routes[0].policy: found \"pubic\"",
            &[
                ":21:10\n",
                "^^^^^^^ expected the name of a policy",
                "the nearest known name is `public`",
            ],
        ),
    ];
    assert_eq!((errors.count, renderings.len()), (expected.len(), expected.len() + 1), "{errors}");
    for (excerpt, (title, parts)) in renderings.iter().zip(expected) {
        assert!(excerpt.starts_with(&format!("error: {title}\n")), "{title}\n{excerpt}");
        parts.iter().for_each(|part| assert!(excerpt.contains(part), "{part}\n{excerpt}"));
    }
    assert_eq!(renderings.last(), Some(&"proxy.toml: 9 errors"));
}

#[test]
fn several_syntax_errors_are_reported_at_once_and_nothing_that_follows_from_them() {
    let text = parse("[server]\nworkers = = 2\n[log]\nlevel = \"info\nformat = \"auto\"\n")
        .unwrap_err()
        .text;
    assert!(text.contains("proxy.toml:2:") && text.contains("proxy.toml:4:"), "{text}");
    assert!(!text.contains("routes"), "{text}");
    let text = parse("[log]\nlevel = \"info\"\nlevel = \"warn\"\n").unwrap_err().text;
    assert!(
        text.contains("duplicate key")
            && text.contains("proxy.toml:3:1")
            && text.contains("help: it is set in line 2 already")
            && text.contains("routes: found nothing"),
        "{text}"
    );
    for (text, line) in [
        ("[log]\nlevel = \"info\"\n[server]\n[log]\n", 1),
        ("[server]\nlevel = 1\n[log]\nlevels = 1\n  level=1\n# level = 5\nlevel = 2\n", 5),
        ("[log]\nlevel.a = 1\nlevel.a = 2\n", 2),
    ] {
        let found = parse(text).unwrap_err().text;
        let help = format!("help: it is set in line {line} already");
        assert!(found.contains(&help), "{text}{found}");
    }
    let alone = parse("log = { level = 1, level = 2 }\n").unwrap_err().text;
    assert!(alone.contains("duplicate key") && !alone.contains("already"), "{alone}");
}

#[test]
fn errors_of_other_modules_are_located_also_those_of_missing_keys() {
    let config = good(&MINIMAL.replace("config.limits", "config.\"x.y\" = 1\nconfig.limits"));
    let at = |setting: &str, place: &str| {
        let located = config.source.locate(&[SettingError::new(setting, "one thing", "another")]);
        assert!(
            located.text.contains(&format!("error: {setting}: found one thing\n")),
            "{setting}: {located}"
        );
        assert!(
            located.text.contains(&format!("--> proxy.toml:{place}\n")),
            "{setting}: {located}"
        );
        assert!(
            located.text.contains("expected another")
                && located.text.ends_with("proxy.toml: 1 error"),
            "{located}"
        );
        assert_eq!(located.watched.len(), 1);
    };
    at("policies.public.config.limits[0].quota", "8:77");
    at("policies.public.config.limits[0].burst.deeper[3]", "8:18");
    at("policies.public.config.limits[7].quota", "8:17");
    at("policies.public.config.x.y", "7:16");
    at("policies.public.config.absent", "7:1");
    at("policies.public.cpu_time", "5:1");
    at("routes[0].path", "11:8");
    at("upstreams.api.endpoints[0]", "3:14");
    let nowhere = config.source.locate(&[
        SettingError::new("[.[", "one\nthing", ""),
        SettingError::new("x".repeat(5_000), "", "b"),
    ]);
    assert!(nowhere.text.contains("error: [.[: one thing\n") && nowhere.count == 2, "{nowhere}");
    assert!(nowhere.text.contains("--> proxy.toml\n"), "{nowhere}");
}

#[test]
fn unused_definitions_are_allowed_and_reported() {
    let config = good(&format!(
        "upstreams.spare.endpoints = [\"http://h:1\"]\npolicies.spare.use = \"client-ip\"\n{}",
        MINIMAL
    ));
    let lines: Vec<String> = config.warnings.iter().map(ToString::to_string).collect();
    assert_eq!(
        lines,
        [
            "proxy.toml:1:11: no route names upstreams.spare",
            "proxy.toml:2:10: no route names policies.spare"
        ]
    );
    let excerpt = "warning: no route names upstreams.spare [unused]\n --> proxy.toml:1:11\n  |\n\
                   1 | upstreams.spare.endpoints = [\"http://h:1\"]\n  |           ^^^^^";
    assert_eq!(config.warnings[0].rendering.trim_end(), excerpt);
}

#[test]
fn a_missing_secret_on_redis_is_warned_of() {
    let warnings = good(&format!("{REDIS}{MINIMAL}")).warnings;
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(
        warnings[0]
            .to_string()
            .starts_with("proxy.toml:1:2: no `key_secret_file` or `key_secret_env`: "),
        "{warnings:?}"
    );
    let keyed = REDIS.replace("[store.redis]", "key_secret_env = \"PATH\"\n[store.redis]");
    assert_eq!(good(&format!("{keyed}{MINIMAL}")).warnings, []);
    assert_eq!(good(MINIMAL).warnings, [], "in memory each process makes its own");
}

#[test]
fn two_words_are_a_configuration() {
    let config =
        quick("http://localhost:3000/", "100/1m", Some("127.0.0.1:0".parse().unwrap()), None);
    let config = config.unwrap_or_else(|errors| panic!("{errors}"));
    assert_eq!(config.listeners[0].address.port(), 0);
    assert_eq!(
        config.upstreams[0].endpoints.iter().map(|one| one.url.as_str()).collect::<Vec<_>>(),
        ["http://localhost:3000"]
    );
    assert_eq!(config.routes[0].policy.as_deref(), Some("limit"));
    assert!(config.policies[0].config_json.contains(r#""period":"1m","quota":100"#));
    assert!(config.watched.is_empty());
    assert_eq!(
        quick("localhost:3000", "10/1s", None, None).unwrap().upstreams[0]
            .endpoints
            .iter()
            .map(|one| one.url.as_str())
            .collect::<Vec<_>>(),
        ["http://localhost:3000"]
    );
    for limit in [
        "",
        "100",
        "100/",
        "/1m",
        "100/month",
        "-1/1m",
        "+1/1m",
        "100/401d",
        "1/0s",
        "5000000000000000/1s",
        "1/1m\"\n[x]",
    ] {
        assert!(
            quick("h:1", limit, None, None).unwrap_err().text.starts_with("error: --limit: found "),
            "{limit}"
        );
    }
    for limit in ["100r/m", "100/m", "100/min", "100/minute", "100/60s"] {
        let config = quick("h:1", limit, None, None).unwrap();
        let period = if limit.ends_with('s') { "60s" } else { "1m" };
        let expected = format!(r#""period":"{period}","quota":100"#);
        assert!(config.policies[0].config_json.contains(&expected), "{limit}");
    }
    let port = quick("3000", "1/1s", None, None).unwrap_err().text;
    assert_eq!(
        port,
        "error: --to: found \"3000\", expected a URL, or a host and a port: http://localhost:3000"
    );
    let odd = "h\"\n[x]\\";
    assert_eq!(
        quick(odd, "1/1s", None, None).unwrap().upstreams[0]
            .endpoints
            .iter()
            .map(|one| one.url.as_str())
            .collect::<Vec<_>>(),
        [format!("http://{odd}")]
    );
    assert_eq!(
        quick("https://h", "1/1s", None, None).unwrap().upstreams[0]
            .endpoints
            .iter()
            .map(|one| one.url.as_str())
            .collect::<Vec<_>>(),
        ["https://h"]
    );
}
