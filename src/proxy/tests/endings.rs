//! The end of a request, however it ends.

use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

use super::*;
use crate::plan::{Enforcement, Refund};
use crate::proxy::forward::tunnel;
use crate::proxy::settle;
use crate::proxy::verdict;
use crate::telemetry::{AccessField, AccessHeaders};
use crate::upstream::{Cause, UpstreamError};
use crate::wire::{self, Fields};

fn handler() -> TestHandler {
    TestHandler::new(vec![RouteSettings { policy: Some(client_ip(TWO_A_MINUTE)), ..respond("/*") }])
}

fn refunded(refund: Refund) -> Arc<Decision> {
    check(vec![Limit { refund, ..window("one", 1) }])
}

/// A request that took the only unit.
async fn admitted(handler: &TestHandler, refund: Refund) -> Box<RequestContext> {
    let mut context = handler.context(0);
    handler.charge(refunded(refund), &mut context).await.unwrap();
    context
}

/// Whether the only unit is available again.
async fn is_back(handler: &TestHandler) -> bool {
    let mut context = handler.context(0);
    let admitted = handler.charge(refunded(Refund::Unsent), &mut context).await.is_ok();
    assert_eq!(
        context.decided.as_ref().and_then(|decided| decided.verdict),
        Some(if admitted { verdict::Verdict::Admitted } else { verdict::Verdict::Refused })
    );
    admitted
}

fn reply(status: u16) -> Response {
    Response::new(
        StatusCode::from_u16(status).unwrap(),
        crate::wire::full(Bytes::from_static(b"body")),
    )
}

#[tokio::test]
async fn a_client_that_goes_before_anything_was_sent_gets_its_unit_back() {
    let handler = handler();
    drop(admitted(&handler, Refund::Unsent).await);
    assert!(is_back(&handler).await);
    handler.counted("weir_requests_total{route=\"\",code=\"499\"}", 2);
}

#[tokio::test]
async fn a_client_that_goes_after_it_was_sent_does_not() {
    let handler = handler();
    let mut context = admitted(&handler, Refund::UpstreamError).await;
    send(&mut context);
    drop(context);
    assert!(!is_back(&handler).await);
}

#[tokio::test]
async fn a_reply_that_was_read_whole_ends_by_its_status() {
    for (status, back) in [(200, false), (404, false), (500, true), (503, true)] {
        let handler = handler();
        let mut context = admitted(&handler, Refund::UpstreamError).await;
        send(&mut context);
        let answered = Reply::read(context.stream(reply(status))).await;
        assert_eq!(answered.status, status);
        assert_eq!(is_back(&handler).await, back, "{status}");
    }
}

#[tokio::test]
async fn a_routes_own_reply_is_no_failure_of_an_upstream() {
    let handler = handler();
    let context = admitted(&handler, Refund::UpstreamError).await;
    Reply::read(context.stream(reply(503))).await;
    assert!(!is_back(&handler).await);
}

#[tokio::test]
async fn a_reply_that_was_left_unread_refunds_nothing() {
    let handler = handler();
    let mut context = admitted(&handler, Refund::UpstreamError).await;
    send(&mut context);
    drop(context.stream(reply(500)));
    assert!(!is_back(&handler).await);
}

#[tokio::test]
async fn an_upstream_that_gives_no_reply_refunds_as_far_as_it_was_reached() {
    for (sent, refund, back) in [
        (false, Refund::Unsent, true),
        (true, Refund::Unsent, false),
        (true, Refund::UpstreamError, true),
        (true, Refund::Never, false),
    ] {
        let handler = handler();
        let mut context = admitted(&handler, refund).await;
        let refusal =
            send(&mut context).failed(&UpstreamError { cause: Cause::Connect, sent, body: None });
        Reply::read(context.refuse(&refusal)).await.problem(502);
        assert_eq!(is_back(&handler).await, back, "{sent} {refund:?}");
    }
}

#[tokio::test]
async fn a_request_whose_own_body_failed_is_the_clients_doing() {
    let handler = handler();
    let mut context = admitted(&handler, Refund::UpstreamError).await;
    send(&mut context);
    let body = Some(crate::wire::BodyError::TooLarge { limit_bytes: 7 });
    let refusal =
        send(&mut context).failed(&UpstreamError { cause: Cause::Body, sent: true, body });
    Reply::read(context.refuse(&refusal)).await.problem(413);
    assert!(!is_back(&handler).await);
}

#[tokio::test]
async fn each_failure_of_an_upstream_has_its_status() {
    let handler = handler();
    for (cause, status) in [
        (Cause::Connect, 502),
        (Cause::Cut, 502),
        (Cause::Protocol, 502),
        (Cause::Overload, 503),
        (Cause::Timeout, 504),
    ] {
        let mut context = handler.context(0);
        let refusal = send(&mut context).failed(&UpstreamError { cause, sent: false, body: None });
        Reply::read(context.refuse(&refusal)).await.problem(status);
    }
}

#[tokio::test]
async fn a_replys_own_connection_fields_stay_behind_and_ours_are_added() {
    let handler = handler();
    let mut context = admitted(&handler, Refund::Never).await;
    context.decided.as_mut().unwrap().degraded = Some("store");
    let mut reply = reply(200);
    for (name, value) in [
        ("connection", "x-hop"),
        ("x-hop", "1"),
        ("x-request-id", "theirs"),
        ("weir-degraded", "theirs"),
        ("ratelimit", "\"up\";r=3;t=1"),
        ("trailer", "x-sum"),
    ] {
        reply.fields.append(name, value);
    }
    let answered = Reply::read(context.stream(reply)).await;
    assert_eq!(
        (answered.field("connection"), answered.field("x-hop"), answered.field("trailer")),
        (None, None, Some("x-sum"))
    );
    assert_eq!(answered.field("weir-degraded"), Some("store"));
    assert_eq!(answered.headers.get_all("x-request-id").iter().count(), 1);
    let members: Vec<&[u8]> =
        answered.headers.get_all("ratelimit").iter().map(HeaderValue::as_bytes).collect();
    assert_eq!(members, [b"\"up\";r=3;t=1".as_slice(), b"\"one\";r=0;t=60"]);
}

/// The request as its policy's `settle` sees it.
fn ended(
    context: &RequestContext,
    ending: Ending,
    bytes: u64,
    took: Duration,
) -> settle::Ended<'_> {
    settle::Ended {
        received: &context.received,
        routed: &context.routed,
        decided: context.decided.as_ref().unwrap(),
        sent: context.sent.as_ref(),
        answer: &context.answer,
        notes: &context.notes,
        ending,
        bytes,
        messages: None,
        took,
    }
}

#[tokio::test]
async fn a_policy_is_told_what_it_asked_to_know_where_it_exists() {
    let handler = handler();
    let mut context = handler.context(0);
    let asked = Decision {
        settle_with: Some("memo".into()),
        ..(*check(vec![window("a", 9), window("b", 9)])).clone()
    };
    handler.charge(Arc::new(asked), &mut context).await.unwrap();
    context.answer.status = 201;
    let names = ["header.x-cost", "response.bytes", "duration-ms", "request.bytes", "trailer.t"]
        .map(str::to_owned);
    let fields = |name: &str, value: &str| {
        let mut fields = Fields::new();
        fields.append(name, value);
        fields
    };
    context.notes.facts = settle::of_fields(&names, "header.", &fields("X-Cost", "7"));
    context.notes.facts.extend(settle::of_fields(&names, "trailer.", &fields("t", "8")));
    let ended = ended(&context, Ending::Completed, 5, Duration::from_millis(12));
    let view = settle::view(&ended, &names);
    let facts: Vec<(&str, &str)> =
        view.facts.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    assert_eq!(
        facts,
        [
            ("header.x-cost", "7"),
            ("trailer.t", "8"),
            ("response.bytes", "5"),
            ("duration-ms", "12")
        ]
    );
    assert_eq!((view.status, view.outcome), (201, crate::policy::ResponseOutcome::Completed));
    let limits: Vec<_> = view.limits.iter().map(|it| (&*it.name, it.fits, it.remaining)).collect();
    assert_eq!(limits, [("a", true, 8), ("b", true, 8)]);
    assert!(view.limits.iter().all(|limit| limit.resets_ms.is_some()), "{:?}", view.limits);
}

/// A client that makes its request last is told apart from an upstream that is too slow.
#[tokio::test]
async fn a_policy_is_told_what_became_of_a_request_and_whose_the_status_is() {
    use crate::policy::ResponseOutcome;
    let handler = handler();
    let mut context = handler.context(0);
    let asked =
        Decision { settle_with: Some("memo".into()), ..(*check(vec![window("a", 9)])).clone() };
    handler.charge(Arc::new(asked), &mut context).await.unwrap();
    for (ending, failure, outcome) in [
        (Ending::Completed, None, ResponseOutcome::Completed),
        (Ending::Unsent, Some("timeout"), ResponseOutcome::Unsent),
        (Ending::UpstreamFailed, Some("cut"), ResponseOutcome::UpstreamFailed),
        (Ending::UpstreamFailed, Some("timeout"), ResponseOutcome::TimedOut),
        (Ending::ClientGone, Some("timeout"), ResponseOutcome::Overdue),
        (Ending::ClientGone, Some("request-timeout"), ResponseOutcome::Overdue),
        (Ending::ClientGone, Some("client-gone"), ResponseOutcome::ClientGone),
        (Ending::ClientGone, Some("body"), ResponseOutcome::ClientGone),
    ] {
        context.answer.failure = failure;
        let view = settle::view(&ended(&context, ending, 0, Duration::ZERO), &[]);
        assert_eq!((view.outcome, view.by_upstream), (outcome, false), "{ending:?} {failure:?}");
    }
}

#[tokio::test]
async fn a_client_that_takes_all_the_time_to_send_its_body_is_overdue() {
    use crate::policy::ResponseOutcome;
    use crate::wire::BodyError;
    for (error, outcome) in [
        (BodyError::Overdue, ResponseOutcome::Overdue),
        (BodyError::Slow, ResponseOutcome::ClientGone),
    ] {
        let handler = handler();
        let mut context = admitted(&handler, Refund::UpstreamError).await;
        let error = UpstreamError { cause: Cause::Body, sent: true, body: Some(error) };
        let refusal = send(&mut context).failed(&error);
        let ended = ended(&context, Ending::ClientGone, 0, Duration::ZERO);
        assert_eq!(settle::view(&ended, &[]).outcome, outcome);
        Reply::read(context.refuse(&refusal)).await.problem(408);
    }
}

#[tokio::test]
async fn a_settle_without_adjustments_leaves_the_declared_refunds() {
    let handler = handler();
    let mut context = handler.context(0);
    let asked =
        Decision { settle_with: Some("memo".into()), ..(*refunded(Refund::UpstreamError)).clone() };
    handler.charge(Arc::new(asked), &mut context).await.unwrap();
    send(&mut context);
    // The shipped policy has no settle.
    Reply::read(context.stream(reply(500))).await;
    assert!(is_back(&handler).await);
}

/// A context whose client asked for a WebSocket, and a reply to it with the upstream's far end.
async fn switching(handler: &TestHandler) -> (Box<RequestContext>, Response, DuplexStream) {
    let mut context = admitted(handler, Refund::UpstreamError).await;
    let mut request = http::Request::get("/").body(Body::empty()).unwrap().into();
    let upgrades = &handler.snapshot.route(0).unwrap().upgrades;
    let protocol = (b"WebSocket".as_slice().into(), false);
    let upgrade = tunnel::request_upgrade(upgrades, &mut request, &Body::empty(), protocol);
    assert!(request.upgrade);
    assert_eq!(
        (request.fields.get("connection"), request.fields.get("upgrade")),
        (Some(&b"upgrade"[..]), Some(&b"WebSocket"[..]))
    );
    let sent = context.sent.insert(Sent::new(&context.received, upgrade));
    let (far, near) = tokio::io::duplex(64);
    let mut reply = Response::new(StatusCode::SWITCHING_PROTOCOLS, Body::empty());
    reply.fields.append("upgrade", "websocket");
    assert!(!sent.accepts(&reply), "without a connection");
    reply.upgrade = Some(wire::Upgrade::Stream(Box::new(near)));
    assert!(sent.accepts(&reply));
    (context, reply, far)
}

#[tokio::test]
async fn a_tunnel_joins_client_and_upstream_and_is_settled_at_its_end() {
    let handler = handler();
    let (context, mut reply, mut upstream) = switching(&handler).await;
    reply.fields.append("content-length", "5");
    let reply = context.stream(reply);
    assert!(
        reply.fields.get("connection") == Some(b"upgrade") && !reply.fields.has("content-length"),
        "{reply:?}"
    );
    handler.counted("weir_tunnels_open", 1);
    let Some(wire::Upgrade::Callback(begin)) = reply.upgrade else { panic!("no upgrade") };
    let (mut client, near) = tokio::io::duplex(64);
    begin(Box::new(near));
    client.write_all(b"hi").await.unwrap();
    client.shutdown().await.unwrap();
    let mut got = String::new();
    upstream.read_to_string(&mut got).await.unwrap();
    assert_eq!(got, "hi");
    drop(upstream);
    client.read_to_string(&mut got).await.unwrap();
    while !handler.metrics.encode().contains("weir_tunnels_total{ending=\"closed\"} 1\n") {
        tokio::task::yield_now().await;
    }
    handler.counted("weir_tunnels_open", 0);
    assert!(!is_back(&handler).await);
}

#[tokio::test]
async fn a_tunnel_whose_client_never_got_its_101_has_ended_with_the_client() {
    let handler = handler();
    let (context, reply, _upstream) = switching(&handler).await;
    drop(context.stream(reply));
    handler.counted("weir_tunnels_total{ending=\"client\"}", 1);
    handler.counted("weir_tunnels_open", 0);
    handler.counted("weir_requests_total{route=\"\",code=\"101\"}", 1);
    assert!(!is_back(&handler).await);
}

#[tokio::test]
async fn a_log_line_names_the_shadow_limits_that_would_refuse() {
    let handler = handler();
    let mut context = handler.context(0);
    let shadow = Limit { enforcement: Enforcement::Shadow, ..window("trial", 0) };
    handler.charge(check(vec![window("real", 1), shadow]), &mut context).await.unwrap();
    let line: serde_json::Value =
        serde_json::from_slice(&line_of(&context, 0, Duration::ZERO, true)).unwrap();
    assert_eq!(
        (&line["would_refuse"], &line["refused_by"]),
        (&serde_json::json!(["trial"]), &serde_json::Value::Null)
    );
}

#[tokio::test]
async fn a_status_that_means_nothing_is_no_reply() {
    let mut context = handler().context(0);
    let sent = send(&mut context);
    for (status, means) in
        [(200, true), (404, true), (599, true), (600, false), (999, false), (101, false)]
    {
        assert_eq!(sent.accepts(&reply(status)), means, "{status}");
    }
}

#[tokio::test]
async fn a_log_line_is_one_json_object_without_the_query() {
    let routes = vec![RouteSettings { policy: Some(client_ip(TWO_A_MINUTE)), ..respond("/*") }];
    let handler = TestHandler::with(Settings { access: Access::Refused, ..settings() }, routes);
    let mut context = handler.context(0);
    let denied = Decision {
        labels: vec![("plan".into(), "g\"1".into())],
        ..(*check(vec![window("a", 0), window("b", 1)])).clone()
    };
    handler.charge(Arc::new(denied), &mut context).await.unwrap_err();
    context.answer.status = 429;
    let line = line_of(&context, 17, Duration::from_micros(1_234), true);
    let text = String::from_utf8(line).unwrap();
    assert!(text.ends_with("}\n") && !text.contains("secret"), "{text}");
    let line: serde_json::Value = serde_json::from_str(&text).unwrap();
    let expected = serde_json::json!({
        "timestamp": "2024-10-04T00:00:00.000Z", "level": "INFO", "message": "request", "request_id": context.received.id.as_str(),
        "client": "192.0.2.1", "method": "GET", "path": "/x", "route": "", "status": 429, "bytes": 17, "duration_ms": 1.234,
        "decision": "refused", "policy": "public", "refused_by": ["a"], "labels": { "plan": "g\"1" },
        "key_digest": [context.decided.as_ref().unwrap().refused_keys[0].to_string()],
    });
    assert_eq!(line, expected);
    let text = String::from_utf8(line_of(&context, 17, Duration::ZERO, false)).unwrap();
    assert!(text.starts_with("2024-10-04T00:00:00.000Z  INFO request request_id="), "{text}");
    assert!(
        text.contains(" client=192.0.2.1 method=GET path=/x route=\"\" status=429 bytes=17 duration_ms=0.000 decision=refused"),
        "{text}"
    );
    // Not marked as refused after all, so that the test itself logs nothing.
    drop(context.stream(reply(200)));
}

#[tokio::test]
async fn counting_an_empty_body_for_the_log_leaves_it_empty() {
    let access_fields = AccessFields::NONE.and(AccessField::BytesIn);
    let settings = Settings { access: Access::Refused, access_fields, ..settings() };
    let handler = TestHandler::with(settings, vec![respond("/*")]);
    let mut context = handler.context(0);
    // Otherwise its request could not be sent twice.
    assert!(send(&mut context).count(Body::empty()).is_nothing());
    let line = line_of(&context, 0, Duration::ZERO, true);
    assert_eq!(line, b"{\"level\":\"INFO\",\"message\":\"request\",\"bytes_in\":0}\n");
    drop(send(&mut context).count(wire::full("hello")));
    let line = line_of(&context, 0, Duration::ZERO, false);
    assert_eq!(line, b" INFO request bytes_in=5\n");
    drop(context.stream(reply(200)));
}

/// A line of text and one of JSON, of a request with these header fields.
fn lines_with(handler: &TestHandler, fields: &[(&str, &[u8])]) -> [String; 2] {
    let mut request = http::Request::get("/x");
    for (name, value) in fields {
        request = request.header(*name, *value);
    }
    let request = request.header("host", "api.example");
    let mut request: Request = request.body(Body::empty()).unwrap().into();
    let mut context = RequestContext::begin(&handler.local, &request, &peer());
    receive::normalize(&mut request, &mut context.received, &peer(), &handler.local).unwrap();
    let lines = [false, true].map(|as_json| {
        let line = line_of(&context, 0, Duration::ZERO, as_json);
        String::from_utf8(line).unwrap()
    });
    // Not refused, so that the test itself logs nothing.
    drop(context.stream(reply(200)));
    lines
}

fn logging(names: &[&str], as_text: bool) -> TestHandler {
    let access_fields = AccessFields::NONE.and(AccessField::UserAgent).and_headers();
    let access_headers = AccessHeaders::new(names.iter().copied(), as_text);
    let settings =
        Settings { access: Access::Refused, access_fields, access_headers, ..settings() };
    TestHandler::with(settings, vec![respond("/*")])
}

#[tokio::test]
async fn chosen_header_fields_are_in_the_line_as_they_were_sent() {
    let handler = logging(&["x-a", "x-two", "x-none", "x-empty"], true);
    let sent: [(&str, &[u8]); 7] = [
        ("X-Two", b"a"),
        ("x-unasked", b"secret"),
        ("x-a", b"k \"1\""),
        ("user-agent", b"curl"),
        ("x-two", b"b"),
        ("x-empty", b""),
        ("x-two", b"a"),
    ];
    let [text, json] = lines_with(&handler, &sent);
    let expected = " INFO request user_agent=curl header.x-a=\"k \\\"1\\\"\" \
        header.x-two=[\"a\",\"b\",\"a\"] header.x-none= header.x-empty=\"\"\n";
    assert_eq!(text, expected);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let expected = serde_json::json!({
        "level": "INFO", "message": "request", "user_agent": "curl", "header.x-a": "k \"1\"",
        "header.x-two": ["a", "b", "a"], "header.x-none": null, "header.x-empty": "",
    });
    assert_eq!(json, expected);

    // A line has neither more of a value, nor more values.
    let long = [b'x'; 3_000];
    let mut sent: Vec<(&str, &[u8])> = vec![("x-two", b"v"); 5];
    sent.push(("x-a", &long));
    let [_, json] = lines_with(&handler, &sent);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["header.x-a"], "x".repeat(1_024));
    assert_eq!(json["header.x-two"], serde_json::json!(["v", "v", "v"]));

    // Nor more of all together: a field that does not fit is left out as a whole.
    let handler = logging(&["x-a", "x-b", "x-c"], true);
    let sent: Vec<(&str, &[u8])> =
        vec![("x-a", &long), ("x-b", &long), ("x-b", &long), ("x-b", &long), ("x-b", &long)];
    let [text, json] =
        lines_with(&handler, &[&sent[..], &[("x-a", &long), ("x-c", b"c")]].concat());
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["header.x-a"].as_array().map(Vec::len), Some(2));
    assert_eq!((json.get("header.x-b"), &json["header.x-c"]), (None, &"c".into()));
    assert!(!text.contains("x-b") && text.ends_with(" header.x-c=c\n"), "{text}");
}

#[tokio::test]
async fn header_fields_in_the_line_are_those_that_a_policy_sees() {
    let sent: [(&str, &[u8]); 3] = [("connection", b"x-a"), ("x-a", b"invented"), ("x-b", b"b")];
    for as_text in [true, false] {
        let handler = logging(&["x-a", "x-b"], as_text);
        let [_, json] = lines_with(&handler, &sent);
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(json.get("header.x-a"), Some(&serde_json::Value::Null), "{json}");
        assert!(json["header.x-b"].is_string(), "{json}");
        // To a policy, an empty value is one that was not sent: its digest would be a key.
        let [_, json] = lines_with(&handler, &[("x-a", b"")]);
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(json["header.x-a"], "", "{json}");
    }
}

#[tokio::test]
async fn header_fields_are_digests_of_keys_where_keys_are_not_shown() {
    let handler = logging(&["x-a", "x-b", "x-none"], false);
    let long = [b'x'; 3_000];
    let sent: [(&str, &[u8]); 3] = [("x-a", b"secret-\xe9"), ("x-b", b"b"), ("x-b", &long)];
    let [text, json] = lines_with(&handler, &sent);
    assert!(!text.contains("secret") && !json.contains("secret"), "{text}{json}");
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    // As a policy that counts by them has its keys: each byte is a character.
    let digest = |key: &str| format!("digest:{}", handler.limiter.digest(key, None));
    assert_eq!(json["header.x-a"], digest("secret-\u{e9}"));
    assert_eq!(json["header.x-b"], serde_json::json!([digest("b"), digest(&"x".repeat(3_000))]));
    assert_eq!(
        (json.get("header.x-none"), text.contains("header.x-none=\n")),
        (Some(&serde_json::Value::Null), true)
    );
}
