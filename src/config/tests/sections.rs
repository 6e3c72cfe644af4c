//! An error of each kind, section by section; and what is inherited.

use std::time::Duration;

use super::*;
use crate::engine::SnapshotSettings;
use crate::limit::Share;
use crate::otlp::Sampling;
use crate::policy::CacheFolder;
use crate::telemetry::{AccessField, AccessFields, AccessHeaders, WORKERS_MAX};
use crate::upstream::Protocol;

/// The minimal file after `text`: it begins with a table, so keys may come before it.
fn extended(text: &str) -> String {
    format!("{text}\n{}", MINIMAL)
}

/// Checks that `text` has exactly one error, whose excerpt contains these parts.
fn says(text: &str, parts: &[&str]) {
    let excerpt = parse(&extended(text)).expect_err(text).text;
    assert!(excerpt.ends_with("proxy.toml: 1 error"), "{excerpt}");
    parts.iter().for_each(|part| assert!(excerpt.contains(part), "{part:?} is not in\n{excerpt}"));
}

#[test]
fn each_number_has_its_range() {
    says(
        "server.workers = 0",
        &["server.workers: found 0", "\"auto\" or a whole number from 1 to 64"],
    );
    says("server.workers = 65", &["found 65"]);
    says("server.limits.connections = -1", &["server.limits.connections: found -1"]);
    says("server.limits.connections = 1.5", &["found 1.5"]);
    says("server.limits.header_bytes = \"4KiB\"", &["\"8KiB\" to \"512KiB\""]);
    says("server.limits.header_bytes = 16384", &["help: a size has a unit: \"16384B\""]);
    says("server.timeouts.request_header = \"0s\"", &["\"1ms\" to \"1h\""]);
    says("store.deadline = \"1m\"", &["\"1ms\" to \"10s\""]);
    says("store.embedded.max_keys = 0", &["from 1 to 1000000000"]);
    assert_eq!(good(&extended(&format!("server.workers = {WORKERS_MAX}"))).workers, WORKERS_MAX);
    assert_eq!(
        good(&extended("store.deadline = \"75ms\"")).limiter.deadline,
        Duration::from_millis(75)
    );
    says("store.lease = \"500ms\"", &["\"1s\" to \"5m\""]);
    says("store.lease = \"301s\"", &["\"1s\" to \"5m\""]);
    assert_eq!(good(&extended("store.lease = \"5m\"")).limiter.lease, Duration::from_secs(300));
    says("server.limits.connections_per_address = 0", &["from 1 to 1000000"]);
    says("server.limits.ipv6_prefix = 129", &["from 16 to 128"]);
    says("server.limits.body_rate = 240", &["help: a size has a unit: \"240B\""]);
    says("server.timeouts.rate_grace = \"2h\"", &["\"1ms\" to \"1h\""]);
    says("server.limits.waiting_per_worker = 1_000_001", &["0 to 1000000"]);
    assert_eq!(good(&extended("server.limits.waiting_per_worker = 0")).limiter.waiting_max, 0);
}

#[test]
fn the_export_is_one_section() {
    let section =
        |lines: &str| format!("[telemetry.otlp]\nendpoint = \"http://127.0.0.1:4318\"\n{lines}");
    let of = |lines: &str| good(&extended(&section(lines))).otlp.unwrap();
    assert_eq!(good(MINIMAL).otlp, None);
    assert_eq!(good(&extended("[telemetry]")).otlp, None);
    assert_eq!(of(""), crate::otlp::Settings::default());
    let chosen = of("sample = 1\ntraces = false\nservice = \"edge\"\nattributes = { a = \"b\" }");
    assert_eq!(chosen.sampling, Sampling::of_share(1.0));
    assert_eq!((chosen.traces, chosen.metrics, chosen.service.as_str()), (false, true, "edge"));
    assert_eq!(chosen.attributes, [("a".to_owned(), "b".to_owned())]);
    let wrong = |lines: &str, parts: &[&str]| says(&section(lines), parts);
    wrong("sample = -0.1", &["telemetry.otlp.sample: found -0.1", "from 0 to 1, such as 0.01"]);
    wrong("sample = 2", &["found 2"]);
    wrong("sample = nan", &["found nan"]);
    wrong("timeout = \"2m\"", &["\"100ms\" to \"1m\""]);
    wrong("service = \"\"", &["telemetry.otlp.service: found \"\"", "1 to 256 bytes"]);
    wrong("attributes = { \"service.name\" = \"x\" }", &["`service`, which sets it"]);
    wrong("headers = { a = 1 }", &["telemetry.otlp.headers.a: found 1"]);
    wrong("headers_env = { a = \"NO_SUCH_VARIABLE\" }", &["an environment variable that is set"]);
    wrong("proxy = 1", &["the unknown key \"proxy\""]);
    says("[telemetry.otlp]", &["telemetry.otlp.endpoint: found nothing"]);
    says("telemetry.otpl = 1", &["the nearest known key is `otlp`"]);
}

#[test]
fn the_example_of_an_export_shows_the_defaults() {
    let example = include_str!("../../../proxy.toml");
    let section = &example[example.find("# [telemetry.otlp]").unwrap()..];
    let lines = section.split("\n\n").next().unwrap().lines();
    let section: Vec<&str> = lines.map(|line| line.strip_prefix("# ").unwrap()).collect();
    let section = section
        .join("\n")
        .replace(
            "headers_file = { Authorization = \"/run/secrets/otlp\" }",
            "headers_env = { A = \"PATH\" }",
        )
        .replace("tls = { ca = \"tls/collector-ca.pem\" }", "tls = {}");
    let written = good(&extended(&section)).otlp.unwrap();
    let names: Vec<&str> = written.headers.iter().map(|header| header.name.as_str()).collect();
    assert_eq!(names, ["X-Tenant", "A"]);
    assert_eq!(written.attributes.len(), 1);
    let (headers, attributes) = (Vec::new(), Vec::new());
    let plain = crate::otlp::Settings { headers, attributes, ..written };
    assert_eq!(plain, crate::otlp::Settings::default());
}

#[test]
fn the_fields_of_an_access_line_are_chosen_by_name() {
    let of = |list: &str| good(&extended(&format!("log.access_fields = {list}"))).log.access_fields;
    let chosen = AccessFields::NONE.and(AccessField::Path).and(AccessField::Query);
    assert_eq!(of("[\"query\", \"path\"]"), chosen);
    assert_eq!(good(MINIMAL).requests.access_fields, AccessFields::default());
    says("log.access_fields = [\"querry\"]", &["access_fields[0]", "is `query`"]);
    says("log.access_fields = [\"path\", \"path\"]", &["access_fields[1]: found \"path\""]);
    says("log.access_fields = []", &["found no field", "`access = \"off\"` writes no lines"]);
    says("log.access_fields = \"path\"", &["expected an array"]);
}

#[test]
fn header_fields_of_an_access_line_are_named_in_any_case() {
    let list = "log.access_fields = [\"path\", \"header.X-Api-Key\", \"header.x-b\"]";
    let names = ["x-api-key", "x-b"];
    for (admin, as_text) in [("", false), ("admin.show_keys = true\n", true)] {
        let config = good(&extended(&format!("{admin}{list}")));
        assert_eq!(config.log.access_headers, AccessHeaders::new(names, as_text));
        assert_eq!(config.requests.access_headers, config.log.access_headers);
        assert!(config.requests.access_fields.has_headers());
        assert!(config.log.access_fields.has(AccessField::Path));
    }
    // Nobody could find a text by its digest.
    let open = format!("[log]\naccess_fields = [\"header.x-api-key\"]\n{REDIS}");
    says(&open, &["log.access_fields: found header fields", "`key_secret_file`", "show_keys"]);
    let secret = open.replace("on_store_error", "key_secret_env = \"PATH\"\non_store_error");
    good(&extended(&secret));
    good(&extended(&format!("[admin]\nshow_keys = true\n{open}")));
}

#[test]
fn header_fields_that_no_access_line_shows() {
    let list = |fields: &str| format!("log.access_fields = [{fields}]");
    let says = |fields: &str, parts: &[&str]| says(&list(fields), parts);
    says("\"header.\"", &["access_fields[0]: found \"header.\"", "such as \"header.x-api-key\""]);
    says("\"header.x key\"", &["expected `header.` and the name of a header field"]);
    says(&format!("\"header.{}\"", "x".repeat(65)), &["of 1 to 64 characters"]);
    good(&extended(&list(&format!("\"header.{}\"", "x".repeat(64)))));
    says(
        "\"header.a\", \"header.A\"",
        &["access_fields[1]: found \"header.A\"", "does not have yet"],
    );
    for name in ["cookie", "Authorization", "proxy-authorization", "x-auth-token", "X-Secret"] {
        says(&format!("\"header.{name}\""), &["a header field without credentials"]);
    }
    says("\"header.User-Agent\"", &["expected \"user_agent\", the field for this header field"]);
    says("\"header.host\"", &["expected \"host\""]);
    let many = |count: usize| {
        let names = (0..count).map(|index| format!("\"header.x-{index}\""));
        names.collect::<Vec<_>>().join(", ")
    };
    good(&extended(&list(&many(16))));
    says(&many(17), &["log.access_fields: found 17 header fields", "at most 16"]);
}

#[test]
fn an_address_has_a_tenth_of_the_connections_unless_it_is_written() {
    let of = |text: &str| good(&extended(text)).connections.connections_per_address_max;
    assert_eq!(of(""), 2_000);
    assert_eq!(of("server.limits.connections = 50_000"), 5_000);
    assert_eq!(of("server.limits.connections = 500"), 100);
    // At most half of them, whatever is written.
    assert_eq!(of("server.limits.connections = 64"), 32);
    let written = "server.limits = { connections = 64, connections_per_address = 64 }";
    assert_eq!(of(written), 32);
    assert_eq!(of("server.limits.connections = 1"), 1);
    assert_eq!(of("server.limits.connections_per_address = 7"), 7);
}

#[test]
fn min_rates_and_request_timeouts_are_read() {
    let slow = |text: &str| {
        let config = good(&extended(text));
        (config.requests.body_rate, config.connections.send_rate)
    };
    let rate = |bytes, s| crate::wire::Rate::new(bytes, Duration::from_secs(s));
    assert_eq!(slow(""), (rate(240, 10), rate(240, 10)));
    assert_eq!(
        slow(
            "server.limits = { body_rate = \"0B\", send_rate = \"1KiB\" }\nserver.timeouts.rate_grace = \"3s\""
        ),
        (None, rate(1_024, 3))
    );
    let route = |line: &str| {
        format!("[[routes]]\npath = \"/slow\"\nrespond = {{ status = 200 }}\n{line}\n")
    };
    let wrong = parse(&format!("{}\n{}", MINIMAL, route("timeouts = { request = \"1m\" }")))
        .unwrap_err()
        .text;
    assert!(wrong.contains("a route with an `upstream`"), "{wrong}");
}

#[test]
fn spellings_of_paths_have_a_word_each() {
    let paths = |text: &str| good(&extended(text)).requests.paths;
    assert_eq!(paths(""), crate::proxy::settings::Paths::default());
    let all = paths(
        "server.paths = { case = \"exact\", trailing_dots = \"ignore\", trailing_slash = \"exact\", parameters = \"strip\", encoded_slash = \"decode\", control_characters = \"keep\" }",
    );
    let expected = crate::proxy::settings::Paths {
        encoded_slash: crate::proxy::settings::EncodedSlash::Decode,
        parameters: crate::proxy::settings::PathParameters::Strip,
        control_characters: true,
        trailing_slash_exact: true,
        trailing_dots_ignored: true,
        case_exact: true,
    };
    assert_eq!(all, expected);
    assert!(!good(&extended("")).requests.underscores_in_headers);
    assert!(
        good(&extended("server.underscores_in_headers = true")).requests.underscores_in_headers
    );
    says("server.underscores_in_headers = \"keep\"", &["true or false"]);
    says(
        "server.paths.case = \"lower\"",
        &["server.paths.case: found \"lower\"", "\"ignore\" or \"exact\""],
    );
    says("server.paths.encoded_slash = \"rejct\"", &["the nearest is \"reject\""]);
    says("server.paths.parameters = true", &["\"ignore\" or \"keep\" or \"strip\" or \"reject\""]);
    says("server.paths.slash = \"keep\"", &["the unknown key \"slash\""]);
}

#[test]
fn a_share_is_a_fraction() {
    let share = |text: &str| format!("store.local_share = {text}");
    assert_eq!(
        good(&extended(&share("\"1/4\""))).limiter.local_share,
        Share::parse("1/4").unwrap()
    );
    assert_eq!(good(MINIMAL).limiter.local_share, Share::WHOLE);
    for wrong in ["\"25%\"", "0.25", "\"5/4\""] {
        says(&share(wrong), &["store.local_share", "such as \"1/4\" for one of four proxies"]);
    }
    let local = good(&extended("store.on_store_error = \"local\""));
    assert_eq!(local.routes[0].on_store_error, OnStoreError::Local);
}

#[test]
fn counters_in_memory_are_saved_to_a_file_in_a_folder_that_exists() {
    let folder = tempfile::tempdir().unwrap();
    let load = |lines: &str| {
        let text = extended(&format!("[store.embedded]\n{lines}"));
        Config::parse(&text, &folder.path().join("proxy.toml"))
    };
    let snapshot = |lines: &str| match load(lines).unwrap().engine {
        engine::Settings::Embedded(settings) => settings.snapshot,
        engine::Settings::Redis(_) => None,
    };
    let written = |path: std::path::PathBuf, s| {
        Some(SnapshotSettings { path, every: Duration::from_secs(s) })
    };
    let path = folder.path().join("weir.snapshot");
    assert_eq!(snapshot("snapshot = \"weir.snapshot\""), written(path.clone(), 5));
    let slower = format!("snapshot = \"{}\"\nsnapshot_every = \"1m\"", path.display());
    assert_eq!(snapshot(&slower), written(path, 60));
    assert_eq!(snapshot(""), None);
    for (wrong, parts) in [
        ("snapshot = \"\"", ["store.embedded.snapshot", "in a folder that exists"]),
        ("snapshot = \"nowhere/weir.snapshot\"", ["nowhere/weir.snapshot", "that exists"]),
        ("snapshot = \".\"", ["store.embedded.snapshot", "in a folder that exists"]),
        ("snapshot = {}", ["store.embedded.snapshot", "in a folder that exists"]),
        ("snapshot = \"a\"\nsnapshot_every = \"1ms\"", ["snapshot_every", "\"100ms\" to \"1d\""]),
        ("snapshot_every = \"5s\"", ["without `snapshot`", "a `snapshot` to write"]),
    ] {
        let errors = load(wrong).unwrap_err().to_string();
        assert!(parts.iter().all(|part| errors.contains(part)), "{wrong}: {errors}");
    }
}

#[test]
fn servers_listeners_and_logs() {
    says("listeners = []", &["one `[[listeners]]` or more"]);
    let twice = "[[listeners]]\naddress = \"[::1]:80\"\n";
    says(&twice.repeat(2), &["listeners[1].address", "that no other listener has"]);
    says("[[listeners]]", &["listeners[0].address: found nothing", "1 | [[listeners]]"]);
    says("listeners = 5", &["found 5", "an array"]);
    says("[listeners]", &["found a table", "help: write `[[listeners]]`, with two brackets"]);
    says("server = 5", &["server: found 5", "a table"]);
    says(
        "server.trusted_proxies = [\"10.0.0.1/8\"]",
        &["trusted_proxies[0]", "the network of 10.0.0.1/8 is \"10.0.0.0/8\""],
    );
    says("server.trusted_proxies = [\"everyone\"]", &["a network such as"]);
    says("admin.address = \"127.0.0.1:8080\"", &["an address that no listener has"]);
    says("log.level = \"warning\"", &["expected \"error\" or \"warn\" or"]);
    says("log.level = \"wran\"", &["help: the nearest is \"warn\""]);
    says("log.format = true", &["found true"]);
    says("[sever]", &["sever: found the unknown key", "help: the nearest known key is `server`"]);
    says("[zzzzzzzz]", &["help: known here: acme, listeners, server"]);
    let off = good(&extended("admin.address = \"off\""));
    assert_eq!((off.admin, off.insight), (None, insight::Settings::default().off()));
    assert!(good(&extended("admin.show_keys = true")).insight.show_keys);
    says("admin.explain.refusals = -1", &["admin.explain.refusals: found -1", "1000000"]);
    says(
        "admin.explain.sample = 5",
        &["the unknown key \"sample\"", "the nearest known key is `samples`"],
    );
    says("admin.top.window = \"1s\"", &["admin.top.window: found \"1s\"", "\"2s\""]);
    assert_eq!(
        good(&extended("admin.hosts = [\"Weir.internal\"]")).admin.unwrap().hosts,
        ["weir.internal"]
    );
    says(
        "admin.hosts = [\"weir.internal:9901\"]",
        &["admin.hosts[0]: found \"weir.internal:9901\"", "without a port"],
    );
    says(
        "admin.token_env = \"WEIR_TEST_THAT_IS_NOT_SET\"",
        &["admin.token_env", "an environment variable that is set"],
    );
}

#[test]
fn upstreams() {
    let upstream = |keys: &str| format!("[upstreams.x]\nendpoints = [\"https://h\"]\n{keys}");
    says(&upstream("protocol = \"h3\""), &["found \"h3\"", "\"h1\" or \"h2\""]);
    says(
        &upstream("tls.certificate = \"proxy.toml\""),
        &["upstreams.x.tls.key: found nothing", "the certificate's key"],
    );
    says(
        &upstream("tls.ca = \"absent.pem\""),
        &["upstreams.x.tls.ca: found absent.pem (No such file or directory)"],
    );
    says(&upstream("tls.insecure = true"), &["upstreams.x.tls.insecure: found the unknown key"]);
    says(
        &upstream("http2.ping_interval = \"never\""),
        &["http2.ping_interval: found \"never\"", "\"off\" or a duration from \"1s\""],
    );
    says(&upstream("http2.streams_per_connection = 0"), &["from 1 to 10000"]);
    says(&upstream("retry = \"always\""), &["\"idempotent\" or \"unsent\" or \"off\""]);
    says(&upstream("retry_percent = 101"), &["from 0 to 100"]);
    says(
        &upstream("ejection = { max_percent = 0 }"),
        &["upstreams.x.ejection.max_percent", "from 1 to 100"],
    );
    says(
        &upstream("ejection = { time = \"1m\", time_max = \"30s\" }"),
        &["upstreams.x.ejection: found a `time_max` that is shorter"],
    );
    let set = good(&extended(&upstream(
        "protocol = \"h2\"\nhttp2 = { ping_interval = \"30s\", connections_per_worker = 2 }",
    )));
    let set = set.upstreams.iter().find(|upstream| upstream.name == "x").unwrap();
    assert_eq!(
        (set.protocol, set.http2.ping_interval, set.http2.connections_per_worker),
        (Protocol::H2, Some(Duration::from_secs(30)), 2)
    );
}

#[test]
fn a_store_on_redis_must_say_what_happens_without_it() {
    assert!(matches!(good(&extended(REDIS)).engine, engine::Settings::Redis(_)));
    says(
        &REDIS.replace("on_store_error = \"allow\"\n", ""),
        &["store.on_store_error: found nothing", "1 | [store]", "must be written"],
    );
    says(
        "[store]\nengine = \"redis\"\non_store_error = \"deny\"",
        &["store.redis.nodes: found nothing"],
    );
    says(&REDIS.replace("127.0.0.1:7000", "127.0.0.1"), &["store.redis.nodes[0]", "\"host:port\""]);
    says(&format!("{REDIS}key_prefix = \"{{prod}}\""), &["without { and }"]);
    says(&format!("{REDIS}mode = \"sentinels\""), &["\"cluster\" or \"single\" or \"sentinel\""]);
    says(&format!("{REDIS}mode = \"sentinel\""), &["store.redis.master", "such as \"mymaster\""]);
    says(&format!("{REDIS}master = \"m\""), &["only with mode = \"sentinel\""]);
    says(&REDIS.replace(":7000\"]", ":7000\", \"b:1\"]\nmode = \"single\""), &["found 2 nodes"]);
    says(&format!("{REDIS}tls = true"), &["store.redis.tls: found true", "expected a table"]);
    says(
        &format!("{REDIS}tls.ca = \"absent.pem\""),
        &["store.redis.tls.ca: found absent.pem (No such file or directory)"],
    );
    says(
        &format!("{REDIS}addresses = {{ \"h\" = \"h:1\" }}"),
        &["store.redis.addresses.h", "\"host:port\", as the node announces it"],
    );
    says(
        &format!("{REDIS}addresses = {{ \"h:1\" = \"h\" }}"),
        &["found \"h\"", "\"host:port\", to connect to instead"],
    );
}

#[test]
fn caps_of_policies_have_names_and_bounds() {
    let policy = |keys: &str| format!("[policies.x]\nuse = \"client-ip\"\nconfig = {{}}\n{keys}");
    says(&policy("cpu_time = \"0ms\""), &["policies.x.cpu_time", "\"1ms\" to \"10s\""]);
    says(
        &policy("start_cpu_time = \"1ms\""),
        &["policies.x.start_cpu_time: found \"1ms\"", "\"10ms\" to \"1m\""],
    );
    says(&policy("memory = \"2GiB\""), &["policies.x.memory", "\"1MiB\" to \"1GiB\""]);
    says(&policy("module_bytes = \"1GiB\""), &["x.module_bytes", "\"1KiB\" to \"256MiB\""]);
    says(&policy("answer_bytes = \"1KiB\""), &["x.answer_bytes", "\"16KiB\" to \"16MiB\""]);
    says(&policy("log_lines = 1_001"), &["policies.x.log_lines: found 1001", "from 0 to 1000"]);
    says(&policy("log_lines_per_second = -1"), &["x.log_lines_per_second", "from 0 to 10000"]);
    says(&policy("breaker.failures = \"20\""), &["x.breaker.failures", "from 0 to 1000000"]);
    says(&policy("breaker.time = \"1ms\""), &["x.breaker.time", "\"10ms\" to \"1h\""]);
    says(
        &policy("breaker = { time = \"2s\", time_max = \"1s\" }"),
        &["x.breaker.time_max: found \"1s\"", "\"2s\" to \"1h\""],
    );
    says(&policy("breaker.tries = 1"), &["x.breaker.tries: found the unknown key \"tries\""]);
    let config =
        good(&extended(&policy("breaker = { failures = 0, time = \"1m\" }\nlog_lines = 0")));
    let caps = &config.policies.iter().find(|policy| policy.name == "x").unwrap().caps;
    assert_eq!((caps.log_lines, caps.breaker.failures), (0, 0));
    assert_eq!(caps.breaker.time_max, Duration::from_secs(60), "at least `time`");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("proxy.toml");
    std::fs::write(folder.path().join("a.wasm"), [0; 2_000]).unwrap();
    let text = extended("[policies.x]\nwasm = \"a.wasm\"\nmodule_bytes = \"1KiB\"");
    let wrong = Config::parse(&text, &path).unwrap_err().text;
    assert!(wrong.contains("a .wasm file (`module_bytes`) of at most 1KiB"), "{wrong}");
}

#[test]
fn shared_settings_of_policies_have_names_and_bounds() {
    let shared = |key: &str| format!("[server.policies]\n{key}");
    says(&shared("instances = 0"), &["server.policies.instances: found 0", "to 10000"]);
    says(
        &format!("server.workers = 8\n{}", shared("instances = 7")),
        &["server.policies.instances: found 7", "from 8 to 10000"],
    );
    says(&shared("core_instances = 0"), &["server.policies.core_instances", "from 1 to 1000"]);
    says(&shared("memories = 101"), &["server.policies.memories", "from 1 to 100"]);
    says(&shared("tables = 0"), &["server.policies.tables", "from 1 to 1000"]);
    says(&shared("table_elements = 99"), &["server.policies.table_elements", "from 100 to"]);
    says(&shared("handles = -1"), &["server.policies.handles", "from 0 to 1000000"]);
    says(&shared("stack = \"1KiB\""), &["server.policies.stack", "\"64KiB\" to \"16MiB\""]);
    says(&shared("heap = 1"), &["server.policies.heap: found the unknown key \"heap\""]);
    says("server.cache_bytes = \"1B\"", &["server.cache_bytes", "\"1MiB\" to \"1TiB\""]);
    says("server.cache_folder = \"\"", &["server.cache_folder", "a folder, or \"off\""]);
    says("server.cache_folder = 1", &["server.cache_folder: found 1", "a folder, or \"off\""]);
    let folder = |text: &str| {
        let text = extended(&format!("server.cache_folder = \"{text}\""));
        Config::parse(&text, Path::new("/etc/weir/proxy.toml")).unwrap().policy_runtime.cache
    };
    assert_eq!(folder("off"), CacheFolder::Off);
    assert_eq!(folder("code"), CacheFolder::At("/etc/weir/code".into()));
    assert_eq!(folder("/c"), CacheFolder::At("/c".into()));
    assert_eq!(good(MINIMAL).policy_runtime.cache, CacheFolder::Usual);
}

#[test]
fn references_and_names() {
    says("policies.p = {}", &["policies.p.use: found nothing"]);
    says("policies.p.use = \"client_ip\"", &["help: the nearest is \"client-ip\""]);
    says("policies.p = { use = \"client-ip\", wasm = \"a.wasm\" }", &["both `use` and `wasm`"]);
    says(
        "policies.p.wasm = \"absent.wasm\"",
        &["policies.p.wasm: found absent.wasm (No such file or directory)"],
    );
    says("policies.\"a b\".use = \"client-ip\"", &["found \"a b\"", "a name of 1 to 64"]);
    says("upstreams.\"\".endpoints = [\"http://h\"]", &["a name of 1 to 64"]);
    says("upstreams.x = {}", &["upstreams.x.endpoints: found nothing"]);
    says("upstreams.x.endpoints = []", &["no endpoint"]);
    let route = |route: &str| format!("[[routes]]\npath = \"/a/{{id}}/*\"\n{route}\n");
    says(
        &route("upstream = \"apo\""),
        &["routes[0].upstream: found \"apo\"", "help: the nearest known name is `api`"],
    );
    says(&route("upstream = \"api\"\nrespond = {}"), &["both `upstream` and `respond`"]);
    says(&route("respond = { status = 99 }"), &["from 200 to 599"]);
    says(
        &route("respond = {}\nname = \"all\""),
        &[
            "routes[1].path: found no name, and the one made of the path, \"all\", which routes[0] has",
            "write a `name`",
        ],
    );
    says(
        &route("respond = {}\non_store_error = \"locl\""),
        &["\"allow\" or \"local\" or \"deny\" or \"policy\"", "the nearest is \"local\""],
    );
    says(&route("respond = {}\npolcy = \"public\""), &["the nearest known key is `policy`"]);
    says("[[routes]]\nrespond = {}", &["routes[0].path: found nothing"]);
    assert_eq!(good(&extended(&route("respond = {}"))).routes[0].name, "a-id-all");
    let empty = parse("").unwrap_err().text;
    assert!(
        empty.starts_with("error: routes: found nothing, expected one `[[routes]]` or more\n"),
        "{empty}"
    );
}

#[test]
fn a_route_inherits_and_overrides() {
    let text = extended("store.on_store_error = \"allow\"\nserver.limits.body_bytes = \"1KiB\"");
    let inherited = good(&text);
    assert_eq!(
        (inherited.routes[0].on_store_error, inherited.routes[0].body_bytes_max),
        (OnStoreError::Allow, 1024)
    );
    let own = "on_store_error = \"deny\"\nbody_bytes = \"1MiB\"\nlimit_scope = \"route\"\non_policy_error = \"allow\"\n";
    let overridden = good(&format!("{text}{own}"));
    let route = &overridden.routes[0];
    assert_eq!(
        (route.on_store_error, route.limit_decides, route.body_bytes_max),
        (OnStoreError::Deny, false, 1 << 20)
    );
    assert!(route.scope_is_route && route.allow_on_policy_error);
}

#[test]
fn a_policys_configuration_becomes_json_as_it_stands() {
    let text = "[policies.p]\nuse = \"client-ip\"\n[policies.p.config]\nwhole = 9007199254740992\nhex = 0xff\nhalf = 0.5\nday = 1979-05-27\n\
                \"a.b\" = [true, { t = \"ü\\n\" }]\n";
    let json = good(&extended(text)).policies[0].config_json.clone();
    assert_eq!(
        &*json,
        r#"{"a.b":[true,{"t":"ü\n"}],"day":"1979-05-27","half":0.5,"hex":255,"whole":9007199254740992}"#
    );
    says(
        "policies.p = { use = \"client-ip\", config.x = nan }",
        &["policies.p.config.x: found nan", "a finite number"],
    );
    says(
        "policies.p = { use = \"client-ip\", config = [] }",
        &["policies.p.config: found an array"],
    );
    let deep = format!(
        "policies.p.use = \"client-ip\"\npolicies.p.config.x = {}1{}",
        "[".repeat(40),
        "]".repeat(40)
    );
    says(&deep, &["at most 32 levels"]);
}

#[test]
fn labels_and_amounts_of_a_policy_are_in_metrics_by_name() {
    let policy = |metrics: &str| {
        format!("[policies.p]\nuse = \"client-ip\"\nmetrics = {metrics}\n[policies.p.config]\n")
    };
    let measured = |metrics: &str| {
        let config = good(&extended(&policy(metrics)));
        config.policies.iter().find(|policy| policy.name == "p").unwrap().measured.clone()
    };
    assert!(measured("{}").is_empty());
    let both = measured("{ labels = [\"plan\"], amounts = [\"input-tokens\", \"b\"] }");
    assert_eq!((both.labels.len(), both.amounts.len()), (1, 2));
    says(&policy("{ labels = [\"a b\"] }"), &["metrics.labels[0]: found \"a b\"", "1 to 64 of"]);
    says(&policy("{ amounts = [3] }"), &["metrics.amounts[0]: found 3"]);
    says(&policy("{ label = [] }"), &["nearest", "labels"]);
    let many = vec!["\"a\""; 17].join(",");
    says(&policy(&format!("{{ labels = [{many}] }}")), &["17 elements", "at most 16"]);
}
