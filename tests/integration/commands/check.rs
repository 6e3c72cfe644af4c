//! The command line: check, run without a file, demo.

use std::path::Path;
use std::process::Command;

use crate::harness::client::get;
use crate::harness::cluster::Cluster;
use crate::harness::free_address;
use crate::harness::redis::Redis;
use crate::harness::toml::simple;
use crate::harness::upstream::Upstream;
use crate::harness::weir::{Weir, binary};

/// The exit code for a wrong configuration (`EX_CONFIG`): a restart does not help.
const EXIT_CONFIG: i32 = 78;

#[test]
fn check_accepts_the_example_that_ships() {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("proxy.toml");
    let (code, out, err) =
        Weir::with_arguments(&["check", "--strict", "--config", example.to_str().unwrap()]).run();
    assert_eq!(code, 0, "{out}{err}");
}

#[test]
fn without_a_file_it_is_said_how_to_go_on() {
    let folder = tempfile::tempdir().unwrap();
    for command in ["check", "run", "demo", "explain"] {
        let mut weir = Command::new(binary());
        weir.arg(command).args((command == "explain").then_some("GET /"));
        let done = weir.current_dir(folder.path()).output().unwrap();
        let told = String::from_utf8_lossy(&done.stderr).into_owned();
        assert_eq!(done.status.code(), Some(EXIT_CONFIG), "{told}");
        assert!(told.contains("there is no proxy.toml in this folder"), "{told}");
        assert!(told.contains("weir run --to http://localhost:3000"), "{told}");
        assert!(told.contains(&format!("weir {command} --config /etc/")), "{told}");
    }
    let other = Command::new(binary()).args(["check", "other.toml"]).output().unwrap();
    let told = String::from_utf8_lossy(&other.stderr).into_owned();
    assert!(told.contains("other.toml: cannot be read"), "{told}");
}

#[test]
fn check_reports_all_errors_at_once_each_with_its_line() {
    let text = r#"[[listeners]]
address = "nowhere"

[server]
shutdown_grace = "soon"
wrokers = 2

[upstreams.api]
endpoints = ["http://127.0.0.1:9"]

[policies.public]
use = "client-ip"
[[policies.public.config.limits]]
name = "a"
algorithm = "fixed_window"
quota = 10
period = "1m"

[[routes]]
path = "/*"
upstream = "ipa"
policy = "public"
"#;
    let (code, out, err) = Weir::check(Weir::build(text));
    assert_eq!(code, EXIT_CONFIG, "{out}{err}");
    let told = format!("{out}{err}");
    for (line, word) in [(2, "nowhere"), (5, "soon"), (6, "wrokers"), (21, "ipa")] {
        assert!(told.contains(word), "`{word}` is not told:\n{told}");
        assert!(told.contains(&format!("proxy.toml:{line}")), "line {line} is not named:\n{told}");
    }
    assert!(told.contains("workers"), "the nearest known key is not named:\n{told}");
    assert!(told.contains("api"), "the nearest known upstream is not named:\n{told}");
}

#[test]
fn check_asks_the_store_and_the_upstreams_if_it_is_told_to() {
    let (upstream, redis) = (Upstream::start(), Redis::start());
    let limit = "name = \"a\", algorithm = \"gcra\", quota = 10, period = \"1m\"";
    let config = simple(&upstream.url(), &[limit]);
    let check = |text: &str| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("proxy.toml");
        std::fs::write(&path, text).unwrap();
        Weir::with_arguments(&["check", "--connect", "--config", path.to_str().unwrap()]).run()
    };
    let config = config.redis_within("single", &[redis.address], "deny", "1s");
    let (code, out, err) = check(&config.text());
    let reached = format!("upstreams.api: {} at ", upstream.url());
    assert_eq!(code, 0, "{out}{err}");
    assert!(out.contains("no errors, 1 warning\nstore: all of Redis: reached\n"), "{out}");
    assert!(err.contains(&format!("warning: Redis {} saves nothing", redis.address)), "{err}");
    assert!(out.contains(&reached) && out.ends_with(": reached\n"), "{out}");

    // A single server where a cluster was asked for, as it is if `mode` is not written.
    let wrong =
        simple(&upstream.url(), &[limit]).redis_within("cluster", &[redis.address], "deny", "1s");
    let (code, out, _) = check(&wrong.text());
    assert_eq!(code, 1, "{out}");
    assert!(
        out.contains(": no_cluster") && out.contains("write store.redis.mode = \"single\""),
        "{out}"
    );

    // A user without a command that the limit needs: the nodes answer all the same.
    let mut connection = redis.connect();
    connection.ask(&["ACL", "SETUSER", "default", "-set"]);
    let (code, out, _) = check(&config.text());
    connection.ask(&["ACL", "SETUSER", "default", "+@all"]);
    let expected = format!("store: Redis {}, gcra: no_permission; ", redis.address);
    assert!(code == 1 && out.contains(&expected), "{out}");

    // A node of a cluster as if it were a single server.
    let cluster = Cluster::of(1, &[]);
    let node = cluster.addresses()[0];
    let alone = simple(&upstream.url(), &[limit]).redis_within("single", &[node], "deny", "1s");
    let (code, out, _) = check(&alone.text());
    assert!(code == 1 && out.contains("is part of a cluster"), "{out}");

    let (nobody, dead) = (free_address(), free_address());
    let gone = simple(&format!("http://{nobody}"), &[limit]);
    let (code, out, _) = check(&gone.redis_within("single", &[dead], "deny", "1s").text());
    assert_eq!(code, 1, "{out}");
    let dead = format!("store: Redis {dead}: connection: ");
    assert!(out.contains(&dead) && out.contains("; is the node running, and reachable from here? store.redis.nodes names the servers\n"), "{out}");
    assert!(
        out.contains(&format!("upstreams.api: http://{nobody} at {nobody}: connect: ")),
        "{out}"
    );
}

#[test]
fn check_has_redis_load_the_scripts() {
    let (upstream, redis) = (Upstream::start(), Redis::start());
    let limit = "name = \"a\", algorithm = \"gcra\", quota = 10, period = \"1m\"";
    let config =
        simple(&upstream.url(), &[limit]).redis_within("single", &[redis.address], "deny", "1s");
    let config = config.text().replace("[store]\n", "[store]\nscripts = \"lua\"\n");
    let script = include_str!("../../../examples/scripts/lockout.lua");
    let check = |script: &str| {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("lua")).unwrap();
        std::fs::write(folder.path().join("lua/lockout.lua"), script).unwrap();
        let path = folder.path().join("proxy.toml");
        std::fs::write(&path, &config).unwrap();
        Weir::with_arguments(&["check", "--connect", "--config", path.to_str().unwrap()]).run()
    };
    let (code, out, err) = check(script);
    assert_eq!(code, 0, "{out}{err}");
    // Only LuaJIT reads that.
    let (code, out, err) = check(&format!("do goto done ::done:: end\n{script}"));
    assert_eq!(code, 1, "{out}{err}");
    assert!(out.contains("store.scripts: lockout.lua: Redis can't load it: "), "{out}");
    assert!(out.contains("user_script:1: "), "{out}");
}

#[test]
fn check_reports_what_a_policy_says_of_its_own_configuration() {
    let upstream = Upstream::start();
    let good = simple(
        &upstream.url(),
        &["name = \"a\", algorithm = \"gcra\", quota = 10, period = \"1m\""],
    )
    .text();
    let bad = good.replace("algorithm = \"gcra\"", "algorithm = \"gcar\"");
    let line = 1 + bad.lines().position(|line| line.contains("gcar")).unwrap();
    let (code, out, err) = Weir::check(Weir::build(&bad));
    let told = format!("{out}{err}");
    assert_eq!(code, EXIT_CONFIG, "{told}");
    assert!(told.contains("gcar") && told.contains("gcra"), "{told}");
    assert!(told.contains(&format!("proxy.toml:{line}")), "line {line} is not named:\n{told}");
    let (code, out, err) = Weir::check(Weir::build(&good));
    assert_eq!(code, 0, "{out}{err}");
}

#[test]
fn run_refuses_a_wrong_file_as_check_does() {
    let (code, out, err) = Weir::build("[[routes]]\npath = \"/*\"\nupstream = \"nobody\"\n").run();
    assert_eq!(code, EXIT_CONFIG, "{out}{err}");
    assert!(err.contains("nobody"), "{err}");
    let (code, _, err) = Weir::with_arguments(&["run", "--config", "missing.toml"]).run();
    assert_eq!(code, EXIT_CONFIG);
    assert!(err.contains("missing.toml"), "{err}");
}

#[tokio::test]
async fn run_without_a_file_needs_only_an_upstream_and_a_limit() {
    let upstream = Upstream::start();
    let weir = Weir::with_arguments(&[
        "run",
        "--to",
        &upstream.url(),
        "--limit",
        "3/1m",
        "--listen",
        "127.0.0.1:0",
        "--admin",
        "off",
    ])
    .start();
    for expected in [200, 200, 200, 429] {
        assert_eq!(get(weir.http, "/", &[]).await.status, expected);
    }
    assert_eq!(upstream.count(), 3);
}

#[test]
fn a_file_is_named_with_or_without_an_option() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mine.toml");
    std::fs::write(&path, format!("{HEAD}[[routes]]\npath = \"/*\"\nupstream = \"api\"\n"))
        .unwrap();
    let path = path.to_str().unwrap();
    for words in [&["check", path][..], &["check", "--config", path]] {
        let (code, out, err) = Weir::with_arguments(words).run();
        assert!(code == 0 && out.starts_with(&format!("{path}: no errors")), "{out}{err}");
    }
    // What a file says can't be said beside it.
    for words in [
        &["check", path, "--config", path][..],
        &["run", path, "--config", path],
        &["run", "--config", path, "--admin", "off"],
        &["run", path, "--listen", "127.0.0.1:0"],
    ] {
        let (code, out, err) = Weir::with_arguments(words).run();
        assert!(code == 2 && err.contains("cannot be used with"), "{words:?}: {out}{err}");
    }
}

#[test]
fn run_without_a_file_explains_a_limit_that_is_none() {
    for limit in ["3", "3/", "/1m", "x/1m", "3/1parsec", "-3/1m", "0/1m"] {
        let (code, out, err) = Weir::with_arguments(&[
            "run",
            "--to",
            "http://127.0.0.1:9",
            &format!("--limit={limit}"),
        ])
        .run();
        assert_ne!(code, 0, "{limit}");
        assert!(
            format!("{out}{err}").contains("100/1m"),
            "{limit}: no example of a right one:\n{out}{err}"
        );
    }
}

#[tokio::test]
async fn demo_brings_its_own_upstream() {
    let upstream = free_address();
    let config = simple(
        &format!("http://{upstream}"),
        &["name = \"a\", algorithm = \"fixed_window\", quota = 2, period = \"1d\""],
    )
    .text();
    let weir = Weir::demo(Weir::build(&config)).start();
    let first = get(weir.http, "/hello", &[]).await;
    assert_eq!((first.status, first.remaining("a")), (200, 1), "{first:?}");
    assert_eq!(first.json()["path"], "/hello");
    assert_eq!(get(weir.http, "/", &[]).await.status, 200);
    let refused = get(weir.http, "/", &[]).await;
    assert_eq!(refused.status, 429);
    assert_ne!(refused.header("retry-after"), "");
    assert!(
        weir.output()
            .lines()
            .iter()
            .any(|line| line.contains("curl") && line.contains(&weir.http.to_string())),
        "{:?}",
        weir.output().lines()
    );
}

#[test]
fn check_warns_of_a_key_that_a_route_can_never_have_with_its_line() {
    let config = "[upstreams.api]\nendpoints = [\"http://127.0.0.1:9\"]\n[policies.p]\nuse = \"keyed\"\n\
                  config.limits = [{ name = \"a\", algorithm = \"gcra\", quota = 1, period = \"1s\", key = \"{path.id}\" }]\n\
                  [[routes]]\nname = \"users\"\npath = \"/users/{id}\"\nupstream = \"api\"\npolicy = \"p\"\n\
                  [[routes]]\nname = \"items\"\npath = \"/items/{item}\"\nupstream = \"api\"\npolicy = \"p\"\n";
    let (code, out, err) = Weir::check(Weir::build(config));
    assert_eq!(code, 0, "{out}{err}");
    assert!(
        err.matches("warning: ").count() == 1 && out.ends_with(": no errors, 1 warning\n"),
        "{out}{err}"
    );
    let expected = "warning: this policy reads `path.id`, which the path of the route items has no place for: it is never there [missing-fact]\n";
    assert!(err.starts_with(expected) && err.contains("proxy.toml:15:1\n"), "{err}");
    assert!(err.contains("15 | policy = \"p\"\n   | ^^^^^^\n"), "{err}");
}

#[test]
fn check_refuses_a_refund_and_a_debt_that_the_policy_never_makes() {
    for policy in ["client-ip", "keyed"] {
        let text = format!(
            "{HEAD}[policies.p]\nuse = \"{policy}\"\nconfig.limits = [{{ name = \"a\", algorithm = \"gcra\", quota = 1, period = \"1s\", \
             key = \"{{client_ip}}\", refund = \"by_settle\", debt = 5 }}]\n[[routes]]\npath = \"/*\"\nupstream = \"api\"\npolicy = \"p\"\n"
        );
        let (code, told) = checked(&text);
        assert_eq!(
            (code, told.matches("this policy never settles").count()),
            (EXIT_CONFIG, 2),
            "{told}"
        );
        assert!(told.contains("limits[0].refund: found \"by_settle\""), "{told}");
        assert!(told.contains("limits[0].debt: found 5"), "{told}");
    }
}

const HEAD: &str = "[upstreams.api]\nendpoints = [\"http://127.0.0.1:9\"]\n\n";

/// `weir check` of this text: its exit code and its whole output.
fn checked(text: &str) -> (i32, String) {
    let (code, out, err) = Weir::check(Weir::build(text));
    (code, format!("{out}{err}"))
}

#[test]
fn check_marks_keys_and_names_the_range_of_each_setting() {
    let limit = |fields: &str| {
        format!(
            "{HEAD}[policies.p]\nuse = \"client-ip\"\n[[policies.p.config.limits]]\nname = \"a\"\n{fields}\n\
             [[routes]]\npath = \"/*\"\nupstream = \"api\"\npolicy = \"p\"\n"
        )
    };
    for (fields, parts) in [
        (
            "algorithm = \"gcra\"\nquota = 1\nperiod = \"1s\"\nbrust = 3",
            &["11 | brust = 3\n   | ^^^^^ expected one of"][..],
        ),
        (
            "algorithm = \"fixed_window\"\nquota = 1\nperiod = \"1s\"\nburst = 3",
            &[
                "11 | burst = 3\n   | ^^^^^ expected nothing: `burst` does not belong to fixed_window",
            ],
        ),
        (
            "algorithm = \"sliding_window_log\"\nquota = 10001\nperiod = \"1s\"",
            &["quota: found 10001\n", "expected at most 10000: a log remembers each unit"],
        ),
        (
            "algorithm = \"gcra\"\nquota = 9\nburst = 5\ncost = 6\nperiod = \"1s\"",
            &["cost: found 6\n", "expected at most the burst, 5: such a request could never pass"],
        ),
        (
            "algorithm = \"gcra\"\nquota = 1\nperiod = 60",
            &["period: found 60\n", "from \"1ms\" to \"400d\"", "\"60s\""],
        ),
        (
            "algorithm = \"gcra\"\nquota = 1\nperiod = \"500d\"",
            &["period: found \"500d\"\n", "from \"1ms\" to \"400d\""],
        ),
        (
            "algorithm = \"gcra\"\nquota = 9007199254740993\nperiod = \"1s\"",
            &["found 9007199254740993\n", "expected 0 to 4503599627370496"],
        ),
    ] {
        let (code, told) = checked(&limit(fields));
        assert_eq!(code, EXIT_CONFIG, "{told}");
        parts.iter().for_each(|part| assert!(told.contains(part), "{part}\n{told}"));
        assert!(told.trim_end().ends_with("proxy.toml: 1 error"), "{told}");
    }
    let method = "algorithm = \"gcra\"\nquota = 1\nperiod = \"1s\"\nwhen = { method = \"get\" }";
    let (code, told) = checked(&limit(method));
    assert!(
        code == 0
            && told.contains("warning: the method \"get\", expected \"GET\"")
            && told.contains("proxy.toml:11:10\n"),
        "{told}"
    );
}

#[test]
fn check_shows_both_routes_that_are_for_the_same_requests() {
    let route = "[[routes]]\npath = \"/*\"\nupstream = \"api\"\n\n\n\n";
    let (code, told) = checked(&format!("{HEAD}{route}{route}"));
    assert_eq!(code, EXIT_CONFIG, "{told}");
    for part in [
        "5 | path = \"/*\"",
        "---- routes[0] is here",
        "11 | path = \"/*\"",
        "^^^^ expected a host, path or methods",
        "1 error",
    ] {
        assert!(told.contains(part), "{part}\n{told}");
    }
}

#[test]
fn check_names_what_a_guest_lacks() {
    let text = format!(
        "{HEAD}[policies.p]\nwasm = \"empty.wasm\"\n[[routes]]\npath = \"/*\"\nupstream = \"api\"\npolicy = \"p\"\n"
    );
    // The smallest component: it has no exports.
    let (code, out, err) = Weir::check(Weir::build(&text).file("empty.wasm", b"\0asm\x0d\0\x01\0"));
    assert!(
        code == EXIT_CONFIG && err.contains("no export `weir:policy/handler@0.9.0`"),
        "{out}{err}"
    );
}

#[test]
fn check_says_which_file_a_policys_module_was_looked_for_in() {
    let check = |policy: &str| {
        let route = "[[routes]]\npath = \"/*\"\nupstream = \"api\"\npolicy = \"p\"\n";
        let weir = Weir::build(&format!("{HEAD}[policies.p]\n{policy}\n{route}"));
        let path = weir.folder().join("nothing.wasm").display().to_string();
        let (code, out, err) = Weir::check(weir);
        (code, out + &err, path)
    };
    let (code, told, path) = check("wasm = \"nothing.wasm\"");
    let found = format!("policies.p.wasm: found {path} (No such file or directory)");
    assert!(code == EXIT_CONFIG && told.contains(&found), "{told}");
    assert!(told.contains("expected the path of a .wasm file"), "{told}");
    let (code, told, path) = check("use = \"nothing.wasm\"");
    assert!(
        code == EXIT_CONFIG && told.contains("policies.p.use: found \"nothing.wasm\""),
        "{told}"
    );
    assert!(told.contains("expected the name of a built-in policy: one of "), "{told}");
    let help = format!(
        "a module in a file is named by `wasm`: `wasm = \"nothing.wasm\"` is {path}, where no file is"
    );
    assert!(told.contains(&help), "{told}");
}

#[test]
fn check_repeats_a_wrong_value_as_it_is_written() {
    for (value, found, expected) in [
        ("quota = \"many\"", "found \"many\"", "expected a whole number, 0 or more"),
        ("quota = 1.5", "found 1.5", "expected a whole number, 0 or more"),
        ("quota = [1]", "found a list", "expected a whole number, 0 or more"),
        ("quota = 1, shadow = 7", "found 7", "expected true or false"),
        ("quota = 1, name = { a = 1 }", "found a table", "expected a string"),
    ] {
        let name = if value.contains("name") { "" } else { "name = \"a\", " };
        let (code, told) = checked(&format!(
            "{HEAD}[policies.p]\nuse = \"client-ip\"\nconfig.limits = [{{ {name}algorithm = \"gcra\", period = \"1s\", {value} }}]\n\
             [[routes]]\npath = \"/*\"\nupstream = \"api\"\npolicy = \"p\"\n"
        ));
        assert_eq!(code, EXIT_CONFIG, "{told}");
        assert!(told.contains(&format!("{found}\n")) && told.contains(expected), "{value}: {told}");
    }
}

#[test]
fn run_without_a_file_says_how_to_do_without_or_name_another() {
    let (code, out, err) = Weir::with_arguments(&["run"]).run();
    assert_eq!(code, EXIT_CONFIG, "{out}{err}");
    assert!(
        err.contains("weir run --to http://")
            && err.contains("--limit")
            && err.contains("weir run --config "),
        "{err}"
    );
}

#[test]
fn check_warns_of_a_field_that_is_dropped_for_its_name() {
    let config = "[upstreams.api]\nendpoints = [\"http://127.0.0.1:9\"]\n[policies.p]\nuse = \"keyed\"\n\
                  config.limits = [{ name = \"a\", algorithm = \"gcra\", quota = 1, period = \"1s\", key = \"{header.api_key}\" },\n\
                  { name = \"b\", algorithm = \"gcra\", quota = 9, period = \"1s\", key = \"{client_ip}\" }]\n\
                  [[routes]]\npath = \"/*\"\nupstream = \"api\"\npolicy = \"p\"\n";
    let (code, _, err) = Weir::check(Weir::build(config));
    assert!(code == 0 && err.contains("`header.api_key`, which is dropped from requests without server.underscores_in_headers"), "{err}");
    let (code, _, err) =
        Weir::check(Weir::build(&format!("server.underscores_in_headers = true\n{config}")));
    assert!(code == 0 && err.is_empty(), "{err}");
}

#[test]
fn warnings_fail_a_strict_check_unless_they_are_allowed() {
    let config = "[upstreams.api]\nendpoints = [\"http://127.0.0.1:9\"]\n[policies.p]\nuse = \"keyed\"\n\
                  config.limits = [{ name = \"a\", algorithm = \"gcra\", quota = 1, period = \"1s\", key = \"{header.x-key}\" }]\n\
                  [[routes]]\npath = \"/*\"\nupstream = \"api\"\npolicy = \"p\"\n";
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("proxy.toml");
    std::fs::write(&path, config).unwrap();
    let check = |more: &[&str]| {
        let arguments = [&["check", "--config", path.to_str().unwrap()], more].concat();
        Weir::with_arguments(&arguments).run()
    };
    let (code, out, err) = check(&[]);
    assert!(code == 0 && out.ends_with(": no errors, 1 warning\n"), "{out}{err}");
    assert!(err.contains("`header.x-key`") && err.contains("[unbounded-key]"), "{err}");
    let (code, _, err) = check(&["--strict"]);
    assert!(code == EXIT_CONFIG && err.contains("[unbounded-key]"), "{err}");
    let (code, out, err) = check(&["--strict", "--allow", "unbounded-key"]);
    assert!(code == 0 && out.ends_with(": no errors\n") && err.is_empty(), "{out}{err}");
    let (code, _, err) = check(&["--allow", "unbounded-keys"]);
    assert_eq!(code, 2, "{err}");
    for part in ["'unbounded-keys' for '--allow <KIND>'", "hidden-route, ", "similar value"] {
        assert!(err.contains(part), "{part}: {err}");
    }
}

#[test]
fn check_says_what_a_change_means_for_counters() {
    let text = |quota: u32, period: &str| {
        format!(
            "{HEAD}[policies.p]\nuse = \"client-ip\"\n[[policies.p.config.limits]]\nname = \"a\"\nalgorithm = \"gcra\"\n\
             quota = {quota}\nperiod = \"{period}\"\n[[routes]]\npath = \"/*\"\nupstream = \"api\"\npolicy = \"p\"\n"
        )
    };
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (old, new) = (file("old.toml", &text(5, "1s")), file("new.toml", &text(9, "1s")));
    let check = |config: &str, old: &str, more: &[&str]| {
        let arguments = [&["check", "--config", config, "--against", old][..], more].concat();
        Weir::with_arguments(&arguments).run()
    };
    let (code, out, err) = check(&new, &old, &[]);
    assert_eq!(code, 0, "{out}{err}");
    assert!(out.contains("quota: 5 -> 9 (existing counters go on)\n"), "{out}");
    let slow = file("slow.toml", &text(5, "1m"));
    let (_, out, _) = check(&slow, &old, &[]);
    assert!(out.contains("(starts with fresh counters)"), "{out}");
    let (_, out, _) = check(&old, &old, &[]);
    assert!(out.ends_with("old.toml says the same\n"), "{out}");
    let (code, out, _) = check(&slow, &old, &["--json"]);
    let json: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(
        (code, &json["errors"], &json["warnings"]),
        (0, &serde_json::json!([]), &serde_json::json!([]))
    );
    assert_eq!(json["changes"][0]["counters"], "fresh", "{out}");
    // An error in the old file is one, too.
    let wrong = file("wrong.toml", &text(5, "1s").replace("[[routes]]", "[[rutes]]"));
    let (code, _, err) = check(&new, &wrong, &[]);
    assert!(code == EXIT_CONFIG && err.contains("wrong.toml:"), "{err}");
    let (code, out, _) = check(&wrong, &old, &["--json"]);
    let json: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &json["errors"][0]["line"]), (EXIT_CONFIG, &serde_json::json!(11)), "{out}");
    // The object has the same members, whatever was found.
    let page = include_str!("../../../docs/warnings.md");
    let (_, good, _) = check(&new, &old, &["--json"]);
    let good: serde_json::Value = serde_json::from_str(&good).unwrap();
    let names = |json: &serde_json::Value| -> Vec<String> {
        json.as_object().unwrap().keys().cloned().collect()
    };
    assert_eq!(names(&json), names(&good));
    for name in names(&good) {
        assert!(page.contains(&format!("| `{name}` |")), "{name} is not documented");
    }
}

fn toml_blocks(page: &str) -> Vec<&str> {
    page.split("```toml\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect()
}

/// Newcomers copy these: each TOML block of the README and of the first pages, completed with what
/// it leaves out.
#[test]
fn the_readmes_configurations_have_no_errors() {
    let pages = [
        include_str!("../../../README.md"),
        include_str!("../../../docs/start.md"),
        include_str!("../../../docs/tls.md"),
        include_str!("../../../docs/upstreams.md"),
        include_str!("../../../docs/limits.md"),
        include_str!("../../../docs/built-in-policies.md"),
    ];
    let blocks: Vec<&str> = pages.into_iter().flat_map(toml_blocks).collect();
    assert!(blocks.len() >= 8, "{blocks:?}");
    let pki = crate::harness::pki::Pki::new();
    for block in blocks {
        let mut text = block.to_owned();
        if !block.contains("[upstreams.") {
            text += "\n[upstreams.api]\nendpoints = [\"http://127.0.0.1:3000\"]\n";
        }
        if block.contains("[policies.public.") {
            text += "\n[policies.public]\nuse = \"client-ip\"\n";
        }
        if block.contains("\"per-client\"") && !block.contains("[policies.per-client]") {
            text += "\n[policies.per-client]\nuse = \"client-ip\"\n";
            text += "config.limits = [{ name = \"a\", algorithm = \"gcra\", quota = 1, period = \"1s\" }]\n";
        }
        if !block.contains("[[routes]]") {
            text += "\n[[routes]]\npath = \"/*\"\nupstream = \"api\"\n";
            text += if block.contains("policies.public") { "policy = \"public\"\n" } else { "" };
        }
        let guest = std::fs::read(crate::harness::guest::api_key()).unwrap();
        let mut weir =
            Weir::build(&text).file("api-key.wasm", &guest).file("tls/ca.pem", pki.ca.as_bytes());
        for name in ["api", "wild", "weir"] {
            let issued = pki.server(&[&format!("{name}.example.com")]);
            weir = weir
                .file(&format!("tls/{name}.pem"), issued.certificate.as_bytes())
                .file(&format!("tls/{name}.key"), issued.key.as_bytes());
        }
        let (code, out, err) = Weir::check(weir);
        assert_eq!(code, 0, "{block}\n{out}{err}");
    }
}
