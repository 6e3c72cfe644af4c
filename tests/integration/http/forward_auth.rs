//! Other proxies ask whether a request of theirs may pass: what is read of a question, who may ask,
//! and what the answers are. `interop` has the proxies themselves.

use crate::harness::client::raw;
use crate::harness::toml::Toml;
use crate::harness::weir::Weir;
use crate::harness::{TIMEOUT, guest};

const TWO: &str =
    "name = \"day\", key = \"{path}\", algorithm = \"fixed_window\", quota = 2, period = \"1d\"";

/// A proxy that is asked by `serves`, about the paths of one route.
fn config(serves: &str, more: &str) -> Toml {
    Toml::new()
        .listener(&format!("serves = \"{serves}\""))
        .server("trusted_proxies = [\"127.0.0.1\"]")
        .upstream("unused", "http://127.0.0.1:9", "")
        .policy("public", &[TWO])
        .route(&format!(
            "name = \"api\"\nhost = \"api.example\"\npath = \"/api/*\"\nmethods = [\"GET\", \"POST\", \"HEAD\"]\nupstream = \"unused\"\npolicy = \"public\"\n{more}"
        ))
}

/// The status, the head in lower case, and the body.
fn ask(weir: &Weir, head: &str) -> (u16, String, String) {
    let asked = format!("{head}\r\nConnection: close\r\n\r\n");
    let text = raw(weir.http, asked.as_bytes(), TIMEOUT);
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{text}"));
    let status = head.get(9..12).and_then(|status| status.parse().ok());
    (status.unwrap_or_else(|| panic!("{text}")), head.to_lowercase(), body.to_owned())
}

fn nginx(method: &str, target: &str) -> String {
    format!(
        "GET /door HTTP/1.1\r\nHost: api.example\r\nX-Original-Method: {method}\r\nX-Original-URI: {target}\r\nX-Forwarded-For: 192.0.2.7"
    )
}

fn traefik(method: &str, target: &str) -> String {
    format!(
        "GET /door HTTP/1.1\r\nHost: weir:8090\r\nX-Forwarded-Method: {method}\r\nX-Forwarded-Uri: {target}\r\nX-Forwarded-Host: api.example\r\nX-Forwarded-Proto: https\r\nX-Forwarded-For: 192.0.2.7"
    )
}

#[test]
fn a_client_does_not_choose_which_fields_its_key_is_read_from() {
    let by_key = TWO.replace("{path}", "{header.x-api-key}");
    for (serves, refused, question) in [
        ("auth_request", 403, nginx("GET", "/api/a")),
        ("forward_auth", 429, traefik("GET", "/api/a")),
        (
            "ext_authz",
            429,
            "GET /api/a HTTP/1.1\r\nHost: api.example\r\nX-Forwarded-For: 192.0.2.7".to_owned(),
        ),
    ] {
        let text = config(serves, "").text().replace(TWO, &by_key);
        assert!(text.contains("x-api-key"), "{text}");
        let weir = Weir::start(&text);
        let named = |key: &str| {
            ask(&weir, &format!("{question}\r\nX-Api-Key: {key}\r\nConnection: X-Api-Key")).0
        };
        assert_eq!([0; 3].map(|_| named("k")), [200, 200, refused], "{serves}");
        assert_eq!(named("other"), 200, "{serves}: another key has its own");
        let plain = format!("{question}\r\nX-Api-Key: k");
        assert_eq!(ask(&weir, &plain).0, refused, "{serves}: the same one");
    }
}

#[test]
fn the_request_that_is_asked_about_is_the_one_that_is_decided() {
    for (serves, question) in [
        ("auth_request", nginx as fn(&str, &str) -> String),
        ("forward_auth", traefik),
        ("ext_authz", |method, target| {
            format!("{method} {target} HTTP/1.1\r\nHost: api.example\r\nX-Forwarded-For: 192.0.2.7")
        }),
    ] {
        let weir = Weir::start(&config(serves, "").text());
        for left in [1, 0] {
            // One key, however it is spelt.
            let path = if left == 1 { "/api/a?x=1" } else { "//api/./%61" };
            let (status, head, body) = ask(&weir, &question("POST", path));
            assert_eq!((status, body.as_str()), (200, ""), "{serves}: {head}");
            assert!(head.contains(&format!("ratelimit: \"day\";r={left}")), "{serves}: {head}");
        }
        let (status, head, body) = ask(&weir, &question("POST", "/api/a"));
        let refused = if serves == "auth_request" { 403 } else { 429 };
        assert_eq!(status, refused, "{serves}: {head}");
        assert!(head.contains("\r\nretry-after: ") && head.contains("r=0"), "{serves}: {head}");
        assert!(body.contains("\"status\":429"), "{serves}: {body}");
        assert_eq!(head.contains("\r\nx-weir-status: 429"), serves == "auth_request", "{head}");
        // Another method, another path: no route.
        for (method, path) in [("DELETE", "/api/b"), ("GET", "/other")] {
            let (status, head, _) = ask(&weir, &question(method, path));
            let meant = if method == "DELETE" { "405" } else { "404" };
            if serves == "auth_request" {
                assert_eq!(status, 403, "{head}");
                assert!(head.contains(&format!("\r\nx-weir-status: {meant}")), "{head}");
            } else {
                assert_eq!(status.to_string(), meant, "{head}");
            }
        }
        assert_eq!(weir.metric("weir_requests_total{route=\"api\",code=\"200\"}"), 2, "{serves}");
        assert_eq!(weir.metric("weir_requests_total{route=\"api\",code=\"429\"}"), 1, "{serves}");
    }
}

#[test]
fn a_client_that_writes_the_fields_of_another_proxy_is_not_believed() {
    for (serves, question) in
        [("auth_request", nginx as fn(&str, &str) -> String), ("forward_auth", traefik)]
    {
        let weir = Weir::start(&config(serves, "").text());
        let fakes = [
            "X-Original-URI: /api/free",
            "X-Forwarded-Uri: /api/free",
            "X-Forwarded-Path: /api/free",
            "X-Rewrite-Url: /api/free",
            "X-Original-Url: /api/free",
            "X-Http-Method-Override: DELETE",
        ];
        // Those of its own kind make two of it, and whoever asks must say one thing.
        for fake in fakes {
            let (status, head, _) = ask(&weir, &format!("{}\r\n{fake}", question("GET", "/api/x")));
            let own = [("auth_request", "X-Original-URI"), ("forward_auth", "X-Forwarded-Uri")];
            if own.contains(&(serves, fake.split(':').next().unwrap())) {
                assert!(matches!(status, 400 | 403), "{serves} {fake}: {head}");
            }
        }
        // Four of the others were decided on as `/api/x`, and two of them fitted.
        let refused = weir.metric("weir_requests_total{route=\"api\",code=\"429\"}");
        let passed = weir.metric("weir_requests_total{route=\"api\",code=\"200\"}");
        assert_eq!((passed, refused), (2, 3), "{serves}");
    }
}

#[test]
fn a_question_without_one_method_path_and_host_is_refused() {
    for (serves, questions) in [
        (
            "auth_request",
            [
                "GET /api/x HTTP/1.1\r\nHost: api.example",
                "GET /api/x HTTP/1.1\r\nHost: api.example\r\nX-Original-Method: GET",
                "GET /api/x HTTP/1.1\r\nHost: api.example\r\nX-Original-URI: /api/x",
                "GET /api/x HTTP/1.1\r\nHost: api.example\r\nX-Original-Method: GET\r\nX-Original-URI: api/x",
            ],
        ),
        (
            "forward_auth",
            [
                "GET /api/x HTTP/1.1\r\nHost: api.example",
                "GET /api/x HTTP/1.1\r\nHost: api.example\r\nX-Forwarded-Method: GET\r\nX-Forwarded-Uri: /api/x",
                "GET /api/x HTTP/1.1\r\nHost: a\r\nX-Forwarded-Method: G ET\r\nX-Forwarded-Uri: /api/x\r\nX-Forwarded-Host: api.example",
                "GET /api/x HTTP/1.1\r\nHost: a\r\nX-Forwarded-Method: GET\r\nX-Forwarded-Uri: /api/x\r\nX-Forwarded-Uri: /api/x\r\nX-Forwarded-Host: api.example",
            ],
        ),
    ] {
        let weir = Weir::start(&config(serves, "").text());
        for question in questions {
            let (status, head, _) = ask(&weir, question);
            let meant = if serves == "auth_request" { 403 } else { 400 };
            assert_eq!(status, meant, "{question}: {head}");
            assert!(meant != 403 || head.contains("\r\nx-weir-status: 400"), "{head}");
        }
        assert_eq!(weir.metric("weir_requests_total{route=\"api\",code=\"200\"}"), 0, "{serves}");
    }
}

#[test]
fn only_trusted_proxies_may_ask() {
    let text = config("forward_auth", "").text().replace("\"127.0.0.1\"]", "\"192.0.2.1\"]");
    let weir = Weir::start(&text);
    let (status, head, _) = ask(&weir, &traefik("GET", "/api/x"));
    assert_eq!(status, 400, "{head}");
}

#[test]
fn no_refusal_is_a_yes_and_a_body_is_never_promised() {
    // gRPC's refusals are 200 with a status in trailers, and a policy's may be 200.
    let refuses_all = TWO.replace("quota = 2", "quota = 0");
    for (serves, question) in
        [("auth_request", nginx as fn(&str, &str) -> String), ("forward_auth", traefik)]
    {
        let weir = Weir::start(&config(serves, "").text().replace(TWO, &refuses_all));
        let grpc = "Content-Type: application/grpc\r\nTE: trailers";
        for (method, more) in [("POST", grpc), ("HEAD", "Accept: */*")] {
            let (status, head, body) =
                ask(&weir, &format!("{}\r\n{more}", question(method, "/api/x")));
            assert!(matches!(status, 403 | 429), "{head}");
            // The question was a GET, whatever it was about.
            let length = format!("content-length: {}", body.len());
            assert!(!body.is_empty() && head.contains(&length), "{head} {body}");
        }
    }
}

#[test]
fn a_route_of_its_own_answers_too_and_the_proxy_gets_the_policys_fields() {
    let config = config("forward_auth", "")
        .route("path = \"/down\"\nrespond = { status = 503, body = \"later\" }")
        .route("path = \"/open\"\nrespond = { status = 200, headers = { X-Who = \"all\" } }");
    let weir = Weir::start(&config.text());
    let (status, head, body) = ask(&weir, &traefik("GET", "/down"));
    assert_eq!((status, body.as_str()), (503, "later"), "{head}");
    let (status, head, _) = ask(&weir, &traefik("GET", "/open"));
    assert!(status == 200 && head.contains("\r\nx-who: all"), "{head}");
    // nginx is told of a route's own no as of any other.
    let text = config.text().replace("\"forward_auth\"", "\"auth_request\"");
    let weir = Weir::start(&text);
    let (status, head, _) = ask(&weir, &nginx("GET", "/down"));
    assert!(status == 403 && head.contains("\r\nx-weir-status: 503"), "{head}");
}

/// With the guest that sets `X-Plan` on requests.
#[test]
fn a_yes_has_what_the_policy_sets_on_requests_whatever_the_route_does() {
    let module = std::fs::read(guest::shown()).unwrap();
    for action in ["upstream = \"unused\"", "respond = { status = 200 }"] {
        let config = Toml::new()
            .listener("serves = \"forward_auth\"")
            .server("trusted_proxies = [\"127.0.0.1\"]")
            .upstream("unused", "http://127.0.0.1:9", "")
            .more("[policies.shown]\nwasm = \"shown.wasm\"\nconfig = { fact = \"path\" }\n")
            .route(&format!("path = \"/*\"\n{action}\npolicy = \"shown\""));
        let weir = Weir::build(&config.text()).file("shown.wasm", &module).start();
        let (status, head, _) = ask(&weir, &traefik("GET", "/a"));
        assert!(status == 200 && head.contains("\r\nx-plan: policy"), "{action}: {head}");
        assert!(head.contains("\r\nx-shown: 2f61"), "{action}: {head}");
    }
}

/// nginx passes on what a request line can't have, and its upstream may cut it off.
#[test]
fn a_fragment_is_no_part_of_a_path() {
    let weir = Weir::start(&config("auth_request", "").text());
    for target in ["/api/a#1", "/api/a?x#y", "/api/a b"] {
        let (status, head, _) = ask(&weir, &nginx("GET", target));
        assert_eq!(status, 403, "{target}: {head}");
        assert!(head.contains("\r\nx-weir-status: 400"), "{target}: {head}");
    }
}

/// The listener's address can't change without a restart, so neither does what it is asked.
#[test]
fn a_reload_that_moves_the_listener_leaves_questions_what_they_are() {
    let text = config("forward_auth", "").text();
    let weir = Weir::start(&text);
    let moved = text.replacen("address = \"127.0.0.1:0\"", "address = \"127.0.0.2:0\"", 1);
    assert_ne!(moved, text);
    weir.reload(&moved, "applied");
    let (status, head, _) = ask(&weir, &traefik("GET", "/api/a"));
    assert!(status == 200 && head.contains("r=1"), "{head}");
    let (status, head, _) = ask(&weir, &traefik("GET", "/other"));
    assert_eq!(status, 404, "{head}");
}

#[test]
fn the_access_line_and_explain_show_the_request_that_was_asked_about() {
    let text = config("forward_auth", "").text().replace(
        "access = \"off\"",
        "access = \"all\"\naccess_fields = [\"method\", \"path\", \"host\", \"query\"]",
    );
    let weir = Weir::start(&text);
    ask(&weir, &traefik("POST", "/api/a?x=1"));
    let line = &weir.output().await_events("request", 1)[0];
    assert_eq!(
        (&line["method"], &line["path"], &line["query"], &line["host"]),
        (&"POST".into(), &"/api/a".into(), &"x=1".into(), &"api.example".into()),
        "{line}"
    );
}
