//! What a route does besides deciding and forwarding.

use std::fs;

use super::super::settings::Row;
use super::super::settings::routes::compress;
use super::*;
use crate::proxy::settings::{
    Compress, CompressionLevel, ContentCoding, Cors, HeaderRules, Preflight, RefusalPage, Rewrite,
    Upgrade,
};

/// A route with these lines, and one for the policy.
fn route(lines: &str) -> String {
    format!("{MINIMAL}\n[[routes]]\npath = \"/x/*\"\n{lines}\n")
}

fn extras(lines: &str) -> Extras {
    good(&route(&format!("upstream = \"api\"\n{lines}"))).routes.remove(1).extras
}

#[track_caller]
fn says(lines: &str, parts: &[&str]) {
    let excerpt = parse(&route(lines)).expect_err(lines).text;
    assert!(excerpt.ends_with("proxy.toml: 1 error"), "{excerpt}");
    parts.iter().for_each(|part| assert!(excerpt.contains(part), "{part:?} is not in\n{excerpt}"));
}

#[test]
fn header_rules_and_rewriting_are_read() {
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let read = extras(
        "request_headers = { set = { X-A = \"1\" }, add = { x-b = [\"1\", \"2\"], x-c = \"3\" }, remove = [\"cookie\"] }",
    );
    let expected = HeaderRules {
        set: vec![pair("X-A", "1")],
        add: vec![pair("x-b", "1"), pair("x-b", "2"), pair("x-c", "3")],
        remove: vec!["cookie".into()],
        secrets: Vec::new(),
    };
    assert_eq!((read.request_headers, read.response_headers), (expected, HeaderRules::default()));
    assert_eq!(
        extras("response_headers.remove = [\"server\"]").response_headers.remove,
        ["server"]
    );
    assert_eq!(
        extras("rewrite = \"/v2/{id}\"").rewrite,
        Some(Rewrite::Template("/v2/{id}".into()))
    );
    assert_eq!(
        extras("rewrite.strip_prefix = \"/x\"").rewrite,
        Some(Rewrite::Prefix { strip: Some("/x".into()), add: None })
    );
    assert_eq!(extras("upstream_host = \"a:1\"").upstream_host.as_deref(), Some("a:1"));
    assert_eq!(extras(""), Extras::default());
}

#[test]
fn a_fields_value_may_stand_in_a_file_or_in_the_environment() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("upstream.key"), "Bearer s3cret\n").unwrap();
    let lines = "upstream = \"api\"\nrequest_headers = { set_file = { Authorization = \"upstream.key\" }, add_env = { x-path = \"PATH\" } }\n\
                 response_headers.add_file = { x-b = \"upstream.key\" }";
    let config = Config::parse(&route(lines), &folder.path().join("proxy.toml"))
        .unwrap_or_else(|errors| panic!("{errors}"));
    let extras = &config.routes[1].extras;
    let values = |rules: &HeaderRules| {
        rules
            .secrets
            .iter()
            .map(|secret| (secret.key, secret.name.clone(), secret.value.clone()))
            .collect::<Vec<_>>()
    };
    let path = std::env::var("PATH").unwrap();
    assert_eq!(
        values(&extras.request_headers),
        [
            ("set_file", "Authorization".to_owned(), "Bearer s3cret".to_owned()),
            ("add_env", "x-path".to_owned(), path)
        ]
    );
    assert_eq!(
        values(&extras.response_headers),
        [("add_file", "x-b".to_owned(), "Bearer s3cret".to_owned())]
    );
    assert_eq!(config.watched.len(), 2 + 1, "the file is named twice");
    assert!(!format!("{config:?}").contains("s3cret"));
    says(
        "upstream = \"api\"\nrequest_headers.set_env = { x-a = \"WEIR_TEST_THAT_IS_NOT_SET\" }",
        &[
            "routes[1].request_headers.set_env.x-a: found \"WEIR_TEST_THAT_IS_NOT_SET\"",
            "an environment variable that is set",
        ],
    );
    says(
        "upstream = \"api\"\nrequest_headers.set_file = { x-a = \"absent\" }",
        &["request_headers.set_file.x-a: found absent (No such file"],
    );
}

#[test]
fn an_answer_of_its_own_is_read_and_its_file_is_watched() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("gone.html"), "<p>gone\n").unwrap();
    let lines = "respond = { status = 410, body_file = \"gone.html\", content_type = \"text/html\", headers = { x-a = [\"1\", \"2\"] } }";
    let config = Config::parse(&route(lines), &folder.path().join("proxy.toml"))
        .unwrap_or_else(|errors| panic!("{errors}"));
    let headers = ["1", "2"].map(|value| ("x-a".to_owned(), value.to_owned())).to_vec();
    let expected = Respond {
        status: 410,
        body: "<p>gone\n".into(),
        content_type: Some("text/html".into()),
        headers,
    };
    assert_eq!(config.routes[1].action, RouteAction::Respond(expected));
    assert_eq!(config.watched.len(), 2);
    says(
        "respond = { body = \"a\", body_file = \"b\" }",
        &["routes[1].respond.body_file: found both `body` and `body_file`"],
    );
    says(
        "respond = { body_file = \"absent\" }",
        &["routes[1].respond.body_file: found absent (No such file"],
    );
    says(
        &format!("respond = {{ body = \"{}\" }}", "x".repeat(70_000)),
        &["a text of at most 65536 bytes"],
    );
}

#[test]
fn settings_without_effect_on_a_route_without_upstream_are_errors() {
    for line in [
        "request_headers.remove = []",
        "upstream_host = \"a\"",
        "rewrite = \"/a\"",
        "upgrade.protocols = []",
    ] {
        let key = line.split(['.', ' ']).next().unwrap();
        says(
            &format!("respond = {{}}\n{line}"),
            &[&format!("routes[1].{key}: found the key `{key}`, which does nothing here")],
        );
    }
    good(&route(
        "respond = {}\nresponse_headers.remove = [\"a\"]\nrefusals = []\ncors.origins = [\"*\"]",
    ));
}

#[test]
fn invalid_values_are_reported_with_their_place() {
    let api = |line: &str| format!("upstream = \"api\"\n{line}");
    says(
        &api("request_headers = { sett = {} }"),
        &[
            "routes[1].request_headers.sett: found the unknown key",
            "the nearest known key is `set`",
        ],
    );
    says(
        &api("request_headers.set = { x-a = 5 }"),
        &["routes[1].request_headers.set.x-a: found 5", "a field's value"],
    );
    says(
        &api("response_headers.add = { x-a = [5] }"),
        &["routes[1].response_headers.add.x-a[0]: found 5"],
    );
    says(&api("response_headers.remove = \"server\""), &["found \"server\"", "an array"]);
    says(&api("rewrite = 5"), &["routes[1].rewrite: found 5", "a path such as"]);
    says(&api("rewrite = {}"), &["neither `strip_prefix` nor `add_prefix`"]);
    says(&api("rewrite = { strip = \"/x\" }"), &["routes[1].rewrite.strip: found the unknown key"]);
}

#[test]
fn cors_and_bodies_of_refusals_are_read() {
    let cors = extras(
        "cors = { origins = [\"https://a.example\"], credentials = true, preflight = \"limit\" }",
    )
    .cors;
    assert_eq!(
        cors,
        Some(Cors {
            origins: vec!["https://a.example".into()],
            credentials: true,
            preflight: Preflight::Limit
        })
    );
    let page = |statuses: &[u16], content_type: Option<&str>, body: &str| RefusalPage {
        statuses: statuses.to_vec(),
        content_type: content_type.map(str::to_owned),
        body: body.into(),
    };
    let own = extras("refusals = [{ status = 429, body = \"{retry_after}\" }]").refusals;
    assert_eq!(own, [page(&[429], None, "{retry_after}")]);
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("busy.html"), "<p>").unwrap();
    let all = "[[refusals]]\nstatus = [502, 503]\ncontent_type = \"text/html\"\nbody_file = \"busy.html\"\n";
    let text = format!("{MINIMAL}\n{all}");
    let config = Config::parse(&text, &folder.path().join("proxy.toml"))
        .unwrap_or_else(|errors| panic!("{errors}"));
    assert_eq!(config.requests.refusals, [page(&[502, 503], Some("text/html"), "<p>")]);
    assert_eq!(config.watched.len(), 2);
    fs::write(folder.path().join("busy.html"), b"\xff").unwrap();
    let excerpt = Config::parse(&text, &folder.path().join("proxy.toml")).unwrap_err().text;
    assert!(excerpt.contains("refusals[0].body_file: found a file that is not UTF-8"), "{excerpt}");
}

#[test]
fn compression_is_off_or_all_defaults_or_what_differs_from_them() {
    assert_eq!(extras("").compress, None);
    assert_eq!(extras("compress = false").compress, None);
    for line in ["compress = true", "compress = {}"] {
        assert_eq!(extras(line).compress, Some(Compress::default()), "{line}");
    }
    let rows = [&compress::ENCODINGS, &compress::TYPES].map(|row| row.default());
    let line = format!("compress = {{ encodings = {}, types = {} }}", rows[0], rows[1]);
    assert_eq!(extras(&line).compress, Some(Compress::default()));
    let own = extras(
        "compress = { encodings = [\"gzip\"], types = [\"a/b\"], min_bytes = \"0B\", level = \"best\" }",
    );
    let expected = Compress {
        encodings: vec![ContentCoding::Gzip],
        types: vec!["a/b".into()],
        min_bytes: 0,
        level: CompressionLevel::Best,
    };
    assert_eq!(own.compress, Some(expected));
    let api = |line: &str| format!("upstream = \"api\"\n{line}");
    says(&api("compress = \"gzip\""), &["routes[1].compress: found \"gzip\"", "true, false"]);
    says(
        &api("compress = { encodings = [\"brotli\"] }"),
        &["routes[1].compress.encodings[0]: found \"brotli\"", "\"br\""],
    );
    says(&api("compress = { types = [] }"), &["routes[1].compress.types: found an empty array"]);
    says(&api("compress = { level = 5 }"), &["routes[1].compress.level: found 5", "\"fast\""]);
}

#[test]
fn cors_and_bodies_of_refusals_written_wrong() {
    let api = |line: &str| format!("upstream = \"api\"\n{line}");
    says(&api("cors = {}"), &["routes[1].cors.origins: found nothing"]);
    says(
        &api("cors = { origins = [\"*\"], preflight = \"bypas\" }"),
        &["\"bypass\" or \"limit\"", "the nearest is \"bypass\""],
    );
    says(
        &api("cors = { origins = [\"*\"], credentials = \"yes\" }"),
        &["found \"yes\"", "true or false"],
    );
    says(
        &api("refusals = [{ status = 200, body = \"\" }]"),
        &["routes[1].refusals[0].status: found 200", "from 400 to 599"],
    );
    says(&api("refusals = [{ status = 429 }]"), &["routes[1].refusals[0].body: found nothing"]);
    says(&api("refusals = [{ body = \"\" }]"), &["routes[1].refusals[0].status: found nothing"]);
}

#[test]
fn upgrade_protocols_are_read() {
    assert_eq!(
        extras("").upgrade,
        Upgrade { protocols: vec!["websocket".into()], idle: Duration::from_secs(300) }
    );
    let own = extras("upgrade = { protocols = [\"websocket\", \"x/1\"], idle = \"1h\" }").upgrade;
    assert_eq!(
        own,
        Upgrade {
            protocols: vec!["websocket".into(), "x/1".into()],
            idle: Duration::from_secs(3_600)
        }
    );
    assert_eq!(extras("upgrade.protocols = []").upgrade.protocols, [""; 0]);
    says(
        "upstream = \"api\"\nupgrade = { idle = \"0s\" }",
        &["routes[1].upgrade.idle: found \"0s\""],
    );
    says(
        "upstream = \"api\"\nupgrade = { protocols = \"websocket\" }",
        &["found \"websocket\"", "an array"],
    );
}
