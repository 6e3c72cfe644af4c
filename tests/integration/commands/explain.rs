//! `weir explain`: the key that it prints is what `weir key` takes, what it says about a malformed
//! request is what a listener does, and its JSON is as documented.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::{Value, json};

use crate::harness::client::Client;
use crate::harness::process::{Finished, run};
use crate::harness::toml::{Toml, simple};
use crate::harness::upstream::Upstream;
use crate::harness::weir::{Weir, binary};
use crate::observe::explain::members;

/// What a client may send as its key: blanks, quotes, backslashes, what a shell acts on, letters of
/// other scripts, and characters that nobody sees.
const KEYS: &[&str] = &[
    "abc",
    "two words",
    "it's \"quoted\"",
    "back\\slash\\'",
    "$HOME `id` !! *",
    "caf\u{e9} \u{6f22}\u{5b57}",
    "red \u{1b}[31m\u{7}",
    "line\nbreak",
    "gpj.\u{202e}exe",
    "-k",
];

#[tokio::test]
async fn a_key_that_is_printed_can_be_pasted_into_weir_key() {
    let upstream = Upstream::start();
    let config = Toml::new()
        .upstream("api", &upstream.url(), "")
        .more(
            "[policies.public]\nuse = \"keyed\"\nconfig.key = \"{body:/key}\"\n\
             config.limits = [{ name = \"day\", algorithm = \"fixed_window\", quota = 9, period = \"1d\" }]",
        )
        .route(
            "name = \"api\"\npath = \"/*\"\nupstream = \"api\"\npolicy = \"public\"\ninspect_bytes = \"4KiB\"",
        );
    let weir = Weir::start(&config.text());
    let path = weir.folder().join("proxy.toml");
    let (path, admin) = (path.to_str().unwrap(), weir.admin.unwrap().to_string());
    let mut client = Client::connect(weir.http).await.unwrap();
    for (number, key) in (1..).zip(KEYS) {
        let body = json!({ "key": key }).to_string();
        // Each key as often as its number, so that one is not taken for another.
        for _ in 0..number.min(9) {
            let fields = [("content-type", "application/json")];
            let reply = client.send("POST", "/", &fields, body.clone().into()).await.unwrap();
            assert_eq!(reply.status, 200, "{key:?}: {reply:?}");
        }
        let asked = "POST / content-type: application/json";
        let explained =
            run(Command::new(binary()).args(["explain", asked, "--config", path, "--body", &body]));
        assert_eq!(explained.code, 0, "{}", explained.err);
        let limit = explained.out.lines().find_map(|line| line.split_once(" 1 d) key "));
        let (_, limit) = limit.unwrap_or_else(|| panic!("{key:?}: {}", explained.out));
        let word = limit.rsplit_once(": had ").unwrap().0;
        let line = format!(
            "{} key show --policy public --limit day --key {word} --config {path} --admin {admin}",
            binary()
        );
        let shown = run(Command::new("bash").args(["-c", &line]));
        assert_eq!(shown.code, 0, "{line}: {}{}", shown.out, shown.err);
        let told = format!("{} of 9 used", number.min(9));
        assert!(shown.out.contains(&told), "{line}: {told}: {}", shown.out);
    }
}

const DAY: &str = "name = \"day\", algorithm = \"fixed_window\", quota = 2, period = \"1d\"";

fn explain(folder: &tempfile::TempDir, arguments: &[&str]) -> Finished {
    let path = folder.path().join("proxy.toml");
    let mut command = Command::new(binary());
    run(command.arg("explain").args(arguments).arg("--config").arg(path))
}

fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let config = simple("http://127.0.0.1:9", &[DAY]).text();
    std::fs::write(folder.path().join("proxy.toml"), config).unwrap();
    folder
}

#[test]
fn a_malformed_request_is_reported_with_the_check_that_refuses_it() {
    let folder = folder();
    for (request, status, check, found) in [
        ("GE(T /", 400, "head", "the head is not HTTP"),
        ("GET / transfer-encoding: gzip, chunked", 501, "head", "an unknown transfer coding"),
        ("GET / content-length: 1 transfer-encoding: chunked", 400, "head", ""),
        ("TRACE /", 501, "method", "this method is not forwarded"),
        ("CONNECT a:443", 501, "method", "this method is not forwarded"),
        ("get /", 501, "method", "methods are written in capitals"),
        ("GET *", 400, "target", "only OPTIONS may ask for `*`"),
        ("GET / host: a host: b", 400, "host", "there is more than one Host field"),
        ("GET / host: a/b", 400, "host", "the Host field is not a host"),
        ("GET /a%zz", 400, "path", "the path has a broken escape"),
        ("GET /../a", 400, "path", "the path climbs above the root"),
    ] {
        let ended = explain(&folder, &[request]);
        assert_eq!(ended.code, 0, "{request}: {}", ended.err);
        let told = format!(
            "rejected {status}\n    refused with {status} before the policy was asked, by the check of \
             its {check}: {found}"
        );
        assert!(ended.out.contains(&told), "{told}: {}", ended.out);
        assert!(ended.out.contains("; expected "), "{}", ended.out);
    }
    // More values of a fact than a policy is asked about.
    let key = format!("{DAY}, key = \"{{cookie.sid}}\"");
    let config = simple("http://127.0.0.1:9", &[&key]).text().replace("client-ip", "keyed");
    std::fs::write(folder.path().join("proxy.toml"), config).unwrap();
    for (count, told) in [(100, "admitted\n"), (101, "by the check of its facts: one of them")] {
        let ended = explain(&folder, &[&format!("GET / cookie: {}", "sid=a; ".repeat(count))]);
        assert!(ended.out.contains(told), "{count}: {}", ended.out);
    }
    // A request that Weir answers itself is not an error.
    let ended = explain(&folder, &["OPTIONS *"]);
    assert_eq!(ended.code, 0, "{}", ended.err);
    assert!(ended.out.ends_with("admitted\n    Weir answers it itself\n"), "{}", ended.out);
    // So is one that its route answers.
    std::fs::write(
        folder.path().join("proxy.toml"),
        "[[listeners]]\naddress = \"127.0.0.1:0\"\n[[routes]]\npath = \"/*\"\nrespond = { status = 403 }\n",
    )
    .unwrap();
    let ended = explain(&folder, &["GET /private"]);
    assert!(
        ended.out.contains("\nadmitted, and the route answers 403 itself\n"),
        "{} {}",
        ended.out,
        ended.err
    );
    // What no client could send is an error on the command line.
    let ended = explain(&folder, &["GET / x: \u{1b}"]);
    assert_eq!(ended.code, 2, "{}", ended.out);
    assert!(ended.err.contains("expected no control characters"), "{}", ended.err);
}

#[test]
fn a_body_that_has_no_place_for_a_policys_value_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let config = Toml::new()
        .upstream("model", "http://127.0.0.1:9", "")
        .more(
            "[policies.llm]\nuse = \"llm-budget\"\nconfig.api = \"openai\"\n\
             config.set_maximum = true\nconfig.default_max_output = 100\n\
             config.tokens = [{ name = \"day\", algorithm = \"fixed_window\", quota = 1000, period = \"1d\" }]",
        )
        .route("path = \"/*\"\nupstream = \"model\"\npolicy = \"llm\"\ninspect_bytes = \"4KiB\"");
    std::fs::write(folder.path().join("proxy.toml"), config.text()).unwrap();
    let asked = "POST /v1/chat/completions content-type: application/json";
    let told = |body: &str| {
        let ended = explain(&folder, &[asked, "--body", body]);
        assert_eq!(ended.code, 0, "{}", ended.err);
        ended.out
    };
    // The maximum can't be set in a list.
    let out = told("[1]");
    let line = "    refused with 400 before its limits were asked, by the check of its body: ";
    assert!(out.contains("\nrejected 400\n") && out.contains(line), "{out}");
    assert!(!out.contains("had 1000"), "nothing is charged: {out}");
    let out = told("{\"model\":\"m\"}");
    assert!(out.contains("\nadmitted\n") && !out.contains("refused"), "{out}");
}

#[test]
fn a_listener_redirects_or_answers_calls_as_in_the_proxy() {
    let folder = tempfile::tempdir().unwrap();
    let config = "[[listeners]]\nname = \"plain\"\naddress = \"127.0.0.1:8080\"\nredirect_to_https = 8443\n\
         [[listeners]]\nname = \"calls\"\naddress = \"127.0.0.1:8081\"\nserves = \"decisions\"\n\
         [[listeners]]\nname = \"own\"\naddress = \"127.0.0.1:8082\"\n\
         [[routes]]\npath = \"/*\"\nlisteners = [\"own\"]\nrespond = { status = 204 }\n";
    std::fs::write(folder.path().join("proxy.toml"), config).unwrap();
    let plain = ["GET /a?b host: x.example", "--listener", "plain"];
    let ended = explain(&folder, &plain);
    assert_eq!(ended.code, 0, "{}", ended.err);
    let told = "\n308 redirected to https\n    its listener redirects to \"https://x.example:8443/a?b\", \
                before a route is looked for\n";
    assert!(ended.out.ends_with(told), "{}", ended.out);
    let json: Value =
        serde_json::from_str(&explain(&folder, &[&plain[..], &["--json"]].concat()).out).unwrap();
    let shown = &json["shown"][0];
    assert_eq!((&shown["verdict"], &shown["status"]), (&json!("redirected"), &json!(308)));
    assert_eq!(shown["redirected_to"], "https://x.example:8443/a?b");
    let ended = explain(&folder, &["GET /", "--listener", "calls"]);
    assert_eq!(ended.code, 2, "{}", ended.out);
    assert!(ended.err.contains("this listener answers calls for decisions"), "{}", ended.err);
    // Without a name, it is the one whose requests are for routes.
    let ended = explain(&folder, &["GET /"]);
    assert!(ended.out.contains("the route answers 204 itself"), "{}", ended.out);
}

#[test]
fn a_route_that_is_worked_on_says_so() {
    let folder = folder();
    let route = "upstream = \"api\"\nmaintenance = \"shop.off\"\n";
    for (policy, name) in [("", "with"), ("policy = \"public\"\n", "without")] {
        let config = simple("http://127.0.0.1:9", &[DAY])
            .route(&format!("name = \"{name}\"\npath = \"/shop/*\"\n{route}{policy}"));
        std::fs::write(folder.path().join("proxy.toml"), config.text()).unwrap();
        std::fs::write(folder.path().join("shop.off"), "").unwrap();
        let ended = explain(&folder, &["GET /shop/a"]);
        assert!(ended.out.contains("\nrejected 503\n"), "{policy}: {}", ended.out);
        let told =
            "refused with 503 before the policy was asked, since the route is being worked on";
        assert!(ended.out.contains(told), "{policy}: {}", ended.out);
        let json: Value =
            serde_json::from_str(&explain(&folder, &["GET /shop/a", "--json"]).out).unwrap();
        assert_eq!(json["shown"][0]["cause"], "maintenance", "{json}");
        // A replay has the same cause.
        let log = "203.0.113.7 - - [17/May/2015:10:05:03 +0000] \"GET /shop/a HTTP/1.1\" 200 5\n";
        std::fs::write(folder.path().join("access.log"), log).unwrap();
        let replay = |arguments: &[&str]| {
            let mut command = Command::new(binary());
            let command = command.current_dir(folder.path()).args(["replay", "access.log"]);
            run(command.args(arguments)).out
        };
        let text = replay(&[]);
        assert!(text.contains("GET /shop/a: rejected (maintenance)\n"), "{text}");
        let json: Value = serde_json::from_str(&replay(&["--json"])).unwrap();
        assert_eq!(json["refusals"][0]["cause"], "maintenance", "{json}");
    }
}

#[test]
fn requests_at_one_moment_are_in_flight_together() {
    let folder = folder();
    let limit = "name = \"flights\", algorithm = \"concurrency\", quota = 2";
    let config = simple("http://127.0.0.1:9", &[limit]).text();
    std::fs::write(folder.path().join("proxy.toml"), config).unwrap();
    let ended = explain(&folder, &["GET /", "--times", "3"]);
    assert!(ended.out.contains("\n2 of 3: admitted\n"), "{}", ended.out);
    assert!(ended.out.contains("\n3 of 3: refused by flights"), "{}", ended.out);
    // One by itself has ended when its limits are looked at.
    let ended = explain(&folder, &["GET /"]);
    assert!(ended.out.contains("2 left"), "{}", ended.out);
}

#[test]
fn what_a_terminal_obeys_is_escaped_in_json() {
    let folder = folder();
    let key = format!("{DAY}, key = \"{{header.x-key}}\"");
    let config = simple("http://127.0.0.1:9", &[&key]).text().replace("client-ip", "keyed");
    std::fs::write(folder.path().join("proxy.toml"), config).unwrap();
    let ended = explain(&folder, &["GET / x-key: a\u{9b}31mb", "--json"]);
    assert_eq!(ended.code, 0, "{}", ended.err);
    assert!(!ended.out.trim_end().contains(char::is_control), "{:?}", ended.out);
    assert!(ended.out.contains("\\u009b31mb"), "{}", ended.out);
}

#[test]
fn the_fields_of_its_json_are_those_of_the_documentation() {
    let folder = folder();
    let mut written = BTreeSet::new();
    for request in ["GET /", "GET /%zz"] {
        let ended = explain(&folder, &[request, "--times", "3", "--json"]);
        let json: Value = serde_json::from_str(&ended.out).unwrap();
        members(&json, "", &[], &mut written);
    }
    // Lists of names and values.
    let lists = ["facts[]", "headers[]", "labels[]", "upstream[]", "client[]"];
    written.retain(|name| !lists.iter().any(|list| name.contains(list)));
    let page = include_str!("../../../docs/replay.md");
    let section = page.split("## `weir explain`").nth(1).unwrap().split("\n## ").next().unwrap();
    let rows = section.lines().filter(|line| line.starts_with("| `"));
    let names = rows.filter_map(|row| row.split('|').nth(1));
    let documented: BTreeSet<String> =
        names.flat_map(|names| names.split('`').skip(1).step_by(2)).map(str::to_owned).collect();
    assert_eq!(documented, written);
}
