//! HTTP/2 requests, which look like any other to policies and upstreams, and gRPC, which gets
//! refusals in its own form.

use super::sockets::TestProxy;
use super::*;
use crate::proxy::settings::RefusalPage;

fn request(method: &str, uri: &str, fields: &[(&str, &str)]) -> Request {
    let mut request = http::Request::builder().method(method).uri(uri).version(Version::HTTP_2);
    for (name, value) in fields {
        request = request.header(*name, *value);
    }
    request.body(Body::empty()).unwrap().into()
}

impl TestHandler {
    async fn ask_h2(&self, method: &str, uri: &str, fields: &[(&str, &str)]) -> Reply {
        Reply::read(handle(&self.local, request(method, uri, fields), &peer()).await).await
    }
}

#[tokio::test]
async fn the_upstream_sees_what_an_older_client_would_have_sent() {
    let proxy = TestProxy::new(|route| route.host = Some("api.example".into())).await;
    let fields =
        [("cookie", "a=1"), ("cookie", "b=2; c=3"), ("te", "trailers"), ("x-a", "1"), ("x-a", "2")];
    let reply =
        Reply::read(proxy.handle(request("GET", "https://API.example:8443/a//b?c", &fields)).await)
            .await;
    assert_eq!((reply.status, reply.body.as_str()), (StatusCode::OK, "ok"));
    for name in ["connection", "keep-alive", "transfer-encoding"] {
        assert_eq!(reply.field(name), None, "{name}");
    }
    let head = proxy.heads().pop().unwrap();
    assert!(head.starts_with("GET /a/b?c HTTP/1.1\r\n"), "{head}");
    for line in [
        "host: API.example:8443",
        "cookie: a=1; b=2; c=3",
        "te: trailers",
        "x-a: 1",
        "x-a: 2",
        "x-forwarded-host: API.example:8443",
    ] {
        assert!(head.contains(&format!("\r\n{line}\r\n")), "{line}: {head}");
    }
}

#[tokio::test]
async fn a_policy_counts_by_the_same_facts_in_both_versions() {
    let keyed = r#"{"name":"l","algorithm":"fixed_window","quota":2,"period":"1m","key":"{authority} {header.cookie} {cookie.b}"}"#;
    let handler =
        TestHandler::new(vec![RouteSettings { policy: Some(client_ip(keyed)), ..respond("/*") }]);
    let one = handler.ask("GET", "/", &[("cookie", "a=1; b=2")]).await;
    let two =
        handler.ask_h2("GET", "http://api.example/", &[("cookie", "a=1"), ("cookie", "b=2")]).await;
    let three = handler.ask_h2("GET", "http://API.example:80/", &[("cookie", "a=1; b=2")]).await;
    assert_eq!([one.status.as_u16(), two.status.as_u16(), three.status.as_u16()], [200, 200, 429]);
}

#[tokio::test]
async fn requests_without_a_host_and_tunnels_are_refused() {
    let handler = TestHandler::new(vec![respond("/*")]);
    handler.ask_h2("GET", "/", &[]).await.problem(400);
    handler.ask_h2("CONNECT", "api.example:443", &[]).await.problem(501);
    assert_eq!(handler.ask_h2("GET", "/", &[("host", "api.example")]).await.status, StatusCode::OK);
    // The authority takes precedence over Host, as in an absolute target.
    assert_eq!(
        handler
            .ask_h2("GET", "http://api.example/", &[("host", "other"), ("host", "another")])
            .await
            .status,
        StatusCode::OK
    );
}

const GRPC: (&str, &str) = ("content-type", "application/grpc+proto");

#[tokio::test]
async fn a_grpc_client_is_told_of_a_refusal_in_its_own_way() {
    let page = RefusalPage { statuses: vec![429], content_type: None, body: "page".into() };
    let extras = Extras { refusals: vec![page], ..Extras::default() };
    let handler = TestHandler::new(vec![RouteSettings {
        policy: Some(client_ip(TWO_A_MINUTE)),
        extras,
        ..respond("/a/*")
    }]);
    for _ in 0..2 {
        handler.ask_h2("POST", "http://h/a/x", &[GRPC]).await;
    }
    let refused = handler.ask_h2("POST", "http://h/a/x", &[GRPC]).await;
    assert_eq!(
        (refused.status, refused.body.as_str(), refused.field("content-length")),
        (StatusCode::OK, "", None)
    );
    for (name, value) in [
        ("content-type", "application/grpc"),
        ("grpc-status", "8"),
        ("grpc-message", "The allowance is used up for now."),
        ("grpc-retry-pushback-ms", "60000"),
        ("retry-after", "60"),
        ("cache-control", "no-store"),
        ("ratelimit", "\"per-minute\";r=0;t=60"),
    ] {
        assert_eq!(refused.field(name), Some(value), "{name}");
    }
    assert!(refused.field("x-request-id").is_some());
    handler.counted("weir_requests_total{route=\"a\",code=\"429\"}", 1);
    let no_route = handler.ask_h2("POST", "http://h/b", &[GRPC]).await;
    assert_eq!(
        (
            no_route.status.as_u16(),
            no_route.field("grpc-status"),
            no_route.field("grpc-retry-pushback-ms")
        ),
        (200, Some("12"), None)
    );
    // Requests that are not gRPC get the usual response.
    assert_eq!(
        handler
            .ask_h2("POST", "http://h/a/x", &[("content-type", "application/grpc-web")])
            .await
            .status
            .as_u16(),
        429
    );
    assert_eq!(handler.ask("POST", "/a/x", &[GRPC]).await.status.as_u16(), 429);
    assert_eq!(handler.ask_h2("GET", "http://h/a/x", &[GRPC]).await.status.as_u16(), 429);
}

#[tokio::test]
async fn a_grpc_client_is_told_when_waiting_is_no_help_and_what_the_policy_said() {
    use crate::policy::Denial;
    let handler = TestHandler::new(vec![RouteSettings {
        policy: Some(client_ip(TWO_A_MINUTE)),
        ..respond("/*")
    }]);
    let told = async |decision: Arc<Decision>| {
        let mut context = handler.context(0);
        context.received.grpc = true;
        let refusal = handler.charge(decision, &mut context).await.unwrap_err();
        let reply = Reply::read(context.refuse(&refusal)).await;
        ["grpc-status", "grpc-message", "grpc-retry-pushback-ms", "x-why"]
            .map(|name| reply.field(name).unwrap_or_default().to_owned())
    };
    let closed = told(check(vec![window("closed", 0)])).await;
    assert_eq!(closed, ["8", "The allowance is used up for now.", "-1", ""]);
    let denial = Denial {
        status: 401,
        reason: "no k\u{e9}y".into(),
        retry_after_ms: Some(1_001),
        headers: vec![("x-why".into(), "law".into())],
        body: None,
    };
    assert_eq!(
        told(Arc::new(decision(Verdict::Deny(denial)))).await,
        ["16", "no k%C3%A9y", "1001", "law"]
    );
}
