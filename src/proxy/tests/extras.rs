//! What a route does besides deciding and forwarding: its own responses, header rules, rewriting.

use super::sockets::TestProxy;
use super::*;
use crate::proxy::settings::{Cors, HeaderRules, Preflight, RefusalPage, Rewrite, Upgrade};

fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

#[tokio::test]
async fn an_answer_of_its_own_has_any_status_type_and_fields() {
    let moved = Respond {
        status: 308,
        headers: pairs(&[("location", "https://new.example/")]),
        ..Respond::default()
    };
    let page = Respond {
        status: 503,
        body: "<p>".into(),
        content_type: Some("text/html".into()),
        headers: pairs(&[("set-cookie", "a"), ("set-cookie", "b")]),
    };
    let handler = TestHandler::new(vec![
        RouteSettings { action: RouteAction::Respond(moved), ..respond("/old/*") },
        RouteSettings { action: RouteAction::Respond(page), ..respond("/page") },
        RouteSettings {
            action: RouteAction::Respond(Respond { status: 204, ..Respond::default() }),
            ..respond("/nothing")
        },
    ]);
    let moved = handler.get("/old/x").await;
    assert_eq!(
        (moved.status.as_u16(), moved.field("location"), moved.field("content-type")),
        (308, Some("https://new.example/"), None)
    );
    let page = handler.get("/page").await;
    assert_eq!(
        (page.status.as_u16(), page.field("content-type"), page.body.as_str()),
        (503, Some("text/html"), "<p>")
    );
    assert_eq!(page.headers.get_all("set-cookie").iter().count(), 2);
    let nothing = handler.get("/nothing").await;
    assert_eq!(
        (nothing.status.as_u16(), nothing.field("content-length"), nothing.field("content-type")),
        (204, None, None)
    );
}

#[tokio::test]
async fn a_routes_fields_are_on_every_reply_and_never_in_the_place_of_a_refusals_own() {
    let rules = HeaderRules {
        set: pairs(&[
            ("strict-transport-security", "max-age=1"),
            ("cache-control", "public"),
            ("content-type", "text/css"),
            ("x-request-id", "mine"),
        ]),
        ..HeaderRules::default()
    };
    let extras = Extras { response_headers: rules, ..Extras::default() };
    let handler = TestHandler::new(vec![RouteSettings {
        policy: Some(client_ip(TWO_A_MINUTE)),
        extras,
        ..respond("/*")
    }]);
    for _ in 0..2 {
        let reply = handler.get("/").await;
        assert_eq!(
            (
                reply.status.as_u16(),
                reply.field("strict-transport-security"),
                reply.field("cache-control")
            ),
            (200, Some("max-age=1"), Some("public"))
        );
        assert_eq!(reply.field("x-request-id").map(str::len), Some(32));
    }
    let refused = handler.get("/").await;
    refused.problem(429);
    assert_eq!(refused.field("strict-transport-security"), Some("max-age=1"));
}

#[tokio::test]
async fn the_upstream_gets_the_rewritten_path_the_hosts_name_and_the_routes_fields() {
    let proxy = TestProxy::new(|route| {
        route.path = "/api/{tenant}/*".into();
        route.extras = Extras {
            rewrite: Some(Rewrite::Template("/t/{tenant}/*".into())),
            upstream_host: Some("inner.example:81".into()),
            request_headers: HeaderRules {
                set: pairs(&[("x-forwarded-proto", "https")]),
                add: pairs(&[("x-tag", "b")]),
                remove: vec!["authorization".into(), "forwarded".into()],
                ..HeaderRules::default()
            },
            ..Extras::default()
        };
    })
    .await;
    let reply =
        proxy.exchange("GET /api/acme/x//y?q=/api HTTP/1.1\r\nHost: a\r\nAuthorization: s\r\nX-Tag: a\r\nConnection: close\r\n\r\n").await;
    assert!(reply.starts_with("HTTP/1.1 200 "), "{reply}");
    let head = proxy.heads().pop().unwrap();
    assert!(head.starts_with("GET /t/acme/x/y?q=/api HTTP/1.1\r\n"), "{head}");
    for line in [
        "host: inner.example:81",
        "x-forwarded-host: a",
        "x-forwarded-proto: https",
        "X-Tag: a",
        "x-tag: b",
    ] {
        assert!(head.contains(&format!("\r\n{line}\r\n")), "{line}: {head}");
    }
    let head = head.to_lowercase();
    assert!(
        !head.contains("authorization")
            && !head.contains("\r\nforwarded:")
            && head.matches("\r\nhost:").count() == 1,
        "{head}"
    );
}

#[tokio::test]
async fn a_path_that_is_too_long_for_the_upstream_is_charged_nothing() {
    let proxy = TestProxy::new(|route| {
        route.policy = Some(client_ip(TWO_A_MINUTE));
        route.path = "/api/*".into();
        route.extras.rewrite = Some(Rewrite::Template(format!("/{}/*", "a".repeat(65_500))));
    })
    .await;
    let request =
        format!("GET /api/{} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", "b".repeat(100));
    for nth in 0..3 {
        let reply = proxy.exchange(&request).await;
        assert!(reply.starts_with("HTTP/1.1 414 "), "{nth}: {reply}");
    }
    assert_eq!(proxy.heads().len(), 0);
}

#[tokio::test]
async fn a_policy_sees_the_path_that_was_matched_and_the_fields_that_the_route_takes_off() {
    let keyed = r#"{"name":"l","algorithm":"fixed_window","quota":1,"period":"1m","key":"{path} {header.x-key}"}"#;
    let proxy = TestProxy::new(|route| {
        route.policy = Some(client_ip(keyed));
        route.path = "/api/*".into();
        route.extras.rewrite = Some(Rewrite::Template("/same".into()));
        route.extras.request_headers.remove = vec!["x-key".into()];
    })
    .await;
    for (path, key, status) in
        [("/api/a", "1", 200), ("/api/b", "1", 200), ("/api/a", "2", 200), ("/api/a", "1", 429)]
    {
        let reply = proxy
            .exchange(&format!(
                "GET {path} HTTP/1.1\r\nHost: a\r\nX-Key: {key}\r\nConnection: close\r\n\r\n"
            ))
            .await;
        assert!(reply.starts_with(&format!("HTTP/1.1 {status} ")), "{path} {key}: {reply}");
    }
    assert!(
        proxy.heads().iter().all(|head| head.starts_with("GET /same HTTP/1.1\r\n")
            && !head.to_lowercase().contains("x-key"))
    );
}

#[tokio::test]
async fn each_error_in_a_routes_extras_has_its_place() {
    let extras = Extras {
        request_headers: HeaderRules { remove: vec!["host".into()], ..HeaderRules::default() },
        response_headers: HeaderRules {
            set: pairs(&[("content-length", "1")]),
            ..HeaderRules::default()
        },
        upstream_host: Some("a/b".into()),
        rewrite: Some(Rewrite::Template("/{id}".into())),
        upgrade: Upgrade {
            protocols: ["websocket", "h2c", "a/b/c", "", "TLS/1.0"].map(str::to_owned).to_vec(),
            ..Upgrade::default()
        },
        ..Extras::default()
    };
    let own = Respond {
        status: 204,
        body: "x".into(),
        content_type: Some("html".into()),
        headers: pairs(&[("te", "x")]),
    };
    let metrics = Metrics::new(1);
    let route = RouteSettings { extras, action: RouteAction::Respond(own), ..respond("/a") };
    let errors = Snapshot::build(settings(), vec![route], limiter(&metrics), &metrics).unwrap_err();
    let settings: Vec<&str> = errors.iter().map(|error| error.setting.as_str()).collect();
    let expected = [
        "routes[0].request_headers.remove[0]",
        "routes[0].rewrite",
        "routes[0].upstream_host",
        "routes[0].upgrade.protocols[1]",
        "routes[0].upgrade.protocols[2]",
        "routes[0].upgrade.protocols[3]",
        "routes[0].upgrade.protocols[4]",
        "routes[0].response_headers.set.content-length",
        "routes[0].respond.status",
        "routes[0].respond.content_type",
        "routes[0].respond.headers.te",
    ];
    assert_eq!(settings, expected);
}

fn page(status: u16, content_type: &str, body: &str) -> RefusalPage {
    RefusalPage {
        statuses: vec![status],
        content_type: Some(content_type.into()),
        body: body.into(),
    }
}

#[tokio::test]
async fn a_refusals_body_is_the_routes_else_everybodys_else_weirs() {
    let everybodys = vec![
        page(429, "text/plain", "all"),
        page(404, "text/html", "<p>{status} {title} {detail}"),
    ];
    let own = page(
        429,
        "application/json",
        "{\"wait\":{retry_after},\"limit\":\"{limit}\",\"id\":{request_id}}",
    );
    let extras = Extras { refusals: vec![own], ..Extras::default() };
    let limited = |path| RouteSettings { policy: Some(client_ip(TWO_A_MINUTE)), ..respond(path) };
    let settings = Settings { refusals: everybodys, ..settings() };
    let handler = TestHandler::with(
        settings,
        vec![RouteSettings { extras, ..limited("/own") }, limited("/all")],
    );
    for _ in 0..2 {
        assert_eq!(handler.get("/own").await.status, StatusCode::OK);
    }
    let own = handler.get("/own").await;
    assert_eq!(
        (own.status, own.field("content-type"), own.field("cache-control")),
        (StatusCode::TOO_MANY_REQUESTS, Some("application/json"), Some("no-store"))
    );
    let body: serde_json::Value = serde_json::from_str(&own.body).unwrap();
    assert_eq!(
        body,
        serde_json::json!({"wait": 60, "limit": "per-minute", "id": own.field("x-request-id").unwrap()})
    );
    assert_eq!(handler.get("/all").await.body, "all");
    let nothing = handler.get("/nothing").await;
    assert_eq!(
        (nothing.status.as_u16(), nothing.body.as_str()),
        (404, "<p>404 Not Found Nothing is served here.")
    );
    handler.ask("TRACE", "/all", &[]).await.problem(501);
    let head = handler.ask("HEAD", "/all", &[]).await;
    assert_eq!(
        (head.status.as_u16(), head.body.as_str(), head.field("content-length")),
        (429, "", Some("3"))
    );
}

#[tokio::test]
async fn a_page_that_can_not_be_filled_in_is_an_error_with_its_place() {
    let metrics = Metrics::new(1);
    let extras = Extras { refusals: vec![page(429, "text/plain", "{wait}")], ..Extras::default() };
    let settings = Settings { refusals: vec![page(429, "application/json", "{")], ..settings() };
    let errors = Snapshot::build(
        settings,
        vec![RouteSettings { extras, ..respond("/") }],
        limiter(&metrics),
        &metrics,
    )
    .unwrap_err();
    let settings: Vec<&str> = errors.iter().map(|error| error.setting.as_str()).collect();
    assert_eq!(settings, ["refusals[0].body", "routes[0].refusals[0].body"]);
}

const ORIGIN: (&str, &str) = ("origin", "https://app.example");
const PREFLIGHT: (&str, &str) = ("access-control-request-method", "PUT");

fn open(preflight: Preflight) -> Extras {
    Extras {
        cors: Some(Cors { origins: vec![ORIGIN.1.into()], credentials: false, preflight }),
        ..Extras::default()
    }
}

#[tokio::test]
async fn a_browsers_script_may_read_a_refusal_and_when_to_come_back() {
    let limited = RouteSettings { policy: Some(client_ip(TWO_A_MINUTE)), ..respond("/*") };
    let handler =
        TestHandler::new(vec![RouteSettings { extras: open(Preflight::Limit), ..limited.clone() }]);
    for status in [200, 200, 429] {
        let reply = handler.ask("GET", "/", &[ORIGIN]).await;
        assert_eq!(reply.status, status);
        assert_eq!(
            (reply.field("access-control-allow-origin"), reply.field("vary")),
            (Some(ORIGIN.1), Some("origin"))
        );
        let exposed = "RateLimit, RateLimit-Policy, Retry-After, X-Request-Id, Weir-Degraded";
        assert_eq!(
            reply.headers.get_all("access-control-expose-headers").iter().collect::<Vec<_>>(),
            [exposed]
        );
    }
    let other = handler.ask("GET", "/", &[("origin", "https://evil.example")]).await;
    assert_eq!(
        (other.field("access-control-allow-origin"), other.field("vary")),
        (None, Some("origin"))
    );
    handler.ask("OPTIONS", "/", &[ORIGIN, PREFLIGHT]).await.problem(429);
    let plain = TestHandler::new(vec![limited]);
    let reply = plain.ask("GET", "/", &[ORIGIN]).await;
    assert!(
        !reply.headers.keys().any(|name| name.as_str().starts_with("access-control"))
            && reply.field("vary").is_none(),
        "{reply:?}"
    );
}

#[tokio::test]
async fn a_preflight_is_not_counted_where_the_route_says_so() {
    let route = RouteSettings {
        policy: Some(client_ip(TWO_A_MINUTE)),
        methods: vec!["PUT".into()],
        extras: open(Preflight::Bypass),
        ..respond("/*")
    };
    let handler = TestHandler::new(vec![route]);
    for _ in 0..5 {
        let reply = handler.ask("OPTIONS", "/", &[ORIGIN, PREFLIGHT]).await;
        assert_eq!((reply.status.as_u16(), reply.field("ratelimit")), (200, None));
    }
    handler.counted("weir_decisions_total{policy=\"public\",decision=\"bypassed\"}", 5);
    // None of these is a preflight for this route.
    for fields in
        [&[][..], &[ORIGIN], &[PREFLIGHT], &[ORIGIN, ("access-control-request-method", "PATCH")]]
    {
        handler.ask("OPTIONS", "/", fields).await.problem(405);
    }
    let handler = TestHandler::new(vec![RouteSettings {
        policy: Some(client_ip(TWO_A_MINUTE)),
        extras: open(Preflight::Bypass),
        ..respond("/*")
    }]);
    let mut told = Vec::new();
    for fields in [&[ORIGIN][..], &[PREFLIGHT], &[ORIGIN], &[ORIGIN, PREFLIGHT]] {
        told.push(handler.ask("OPTIONS", "/", fields).await.status.as_u16());
    }
    assert_eq!(told, [200, 200, 429, 200]);
    // An origin that the route does not list can't bypass the limits either.
    handler
        .ask("OPTIONS", "/", &[("origin", "https://other.example"), PREFLIGHT])
        .await
        .problem(429);
}

#[tokio::test]
async fn an_upstreams_reply_is_opened_to_nobody_whom_it_did_not_allow() {
    let handler =
        TestHandler::new(vec![RouteSettings { extras: open(Preflight::Limit), ..respond("/*") }]);
    for (allowed, exposed) in [(None, 0), (Some("https://app.example"), 1), (Some("*"), 1)] {
        let mut reply = Response::new(StatusCode::OK, Body::empty());
        if let Some(allowed) = allowed {
            reply.fields.append("access-control-allow-origin", allowed);
        }
        let reply = Reply::read(handler.context(0).stream(reply)).await;
        assert_eq!(reply.field("access-control-allow-origin"), allowed);
        assert_eq!(reply.headers.get_all("access-control-expose-headers").iter().count(), exposed);
    }
}
