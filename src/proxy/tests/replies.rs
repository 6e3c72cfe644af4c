//! Responses to clients.

use super::*;
use crate::policy::Denial;

#[tokio::test]
async fn a_route_may_answer_by_itself() {
    let handler = TestHandler::new(vec![respond("/healthz")]);
    let reply = handler.get("/healthz").await;
    assert_eq!((reply.status, reply.body.as_str()), (StatusCode::OK, "ok\n"));
    assert_eq!(reply.field("x-request-id").map(str::len), Some(32));
    let head = handler.ask("HEAD", "/healthz", &[]).await;
    assert_eq!((head.body.as_str(), head.field("content-length")), ("", Some("3")));
    handler.counted("weir_requests_total{route=\"healthz\",code=\"200\"}", 2);
    handler.counted("weir_request_duration_seconds_count{route=\"healthz\"}", 2);
}

#[tokio::test]
async fn each_refusal_before_the_policy_is_a_problem_document() {
    let handler = TestHandler::new(vec![RouteSettings {
        methods: vec!["GET".into(), "PUT".into()],
        ..respond("/a")
    }]);
    assert_eq!(handler.get("/b").await.problem(404)["title"], "Not Found");
    let wrong_method = handler.ask("POST", "/a", &[]).await;
    wrong_method.problem(405);
    assert_eq!(wrong_method.field("allow"), Some("GET, HEAD, PUT"));
    assert_eq!(
        handler.get("/../x").await.problem(400)["detail"],
        "The path climbs above the root."
    );
    handler.get(&format!("/{}", "a".repeat(200))).await.problem(414);
    handler.ask("TRACE", "/a", &[]).await.problem(501);
    for (status, detail) in [
        (400, "The request's head is not HTTP."),
        (431, "The request's head is too large."),
        (501, "Only the transfer coding chunked is known."),
    ] {
        let unreadable = Refusal::Unreadable(StatusCode::from_u16(status).unwrap(), "it is");
        let told =
            Reply::read(RequestContext::unreadable(&handler.local, &peer()).refuse(&unreadable))
                .await;
        assert_eq!(told.problem(status)["detail"], detail);
    }
    handler.ask("GET", "/a", &[("host", "twice")]).await.problem(400);
    let head = handler.ask("HEAD", "/b", &[]).await;
    assert!(
        head.status == 404 && head.body.is_empty() && head.headers.contains_key("content-length"),
        "{head:?}"
    );
    let options = handler.ask("OPTIONS", "*", &[]).await;
    assert!(
        options.status == 204
            && options.body.is_empty()
            && options.headers.contains_key("x-request-id"),
        "{options:?}"
    );
    handler.counted("weir_requests_total{route=\"none\",code=\"404\"}", 2);
    handler.counted("weir_requests_total{route=\"none\",code=\"405\"}", 1);
}

#[tokio::test]
async fn a_limit_admits_its_quota_and_then_says_when_to_come_back() {
    let handler = TestHandler::new(vec![RouteSettings {
        policy: Some(client_ip(TWO_A_MINUTE)),
        ..respond("/*")
    }]);
    for left in [1, 0] {
        let reply = handler.get("/a").await;
        assert_eq!(reply.status, StatusCode::OK);
        assert_eq!(reply.field("ratelimit-policy"), Some("\"per-minute\";q=2;w=60"));
        assert_eq!(reply.field("ratelimit"), Some(&*format!("\"per-minute\";r={left};t=60")));
        assert_eq!(reply.field("retry-after"), None);
    }
    let reply = handler.get("/a").await;
    let problem = reply.problem(429);
    assert_eq!(problem["type"], "https://iana.org/assignments/http-problem-types#quota-exceeded");
    assert_eq!(problem["violated-policies"], serde_json::json!(["per-minute"]));
    assert_eq!(reply.field("retry-after"), Some("60"));
    assert_eq!(reply.field("ratelimit"), Some("\"per-minute\";r=0;t=60"));
    handler.counted("weir_decisions_total{policy=\"public\",decision=\"admitted\"}", 2);
    handler.counted("weir_decisions_total{policy=\"public\",decision=\"refused\"}", 1);
    handler.counted("weir_decision_duration_seconds_count", 3);
}

#[tokio::test]
async fn a_quota_of_nothing_has_no_retry_after() {
    let handler = TestHandler::new(vec![RouteSettings {
        policy: Some(client_ip(TWO_A_MINUTE)),
        ..respond("/*")
    }]);
    let mut context = handler.context(0);
    let refusal = handler.charge(check(vec![window("closed", 0)]), &mut context).await.unwrap_err();
    let reply = Reply::read(context.refuse(&refusal)).await;
    reply.problem(429);
    assert_eq!(reply.field("retry-after"), None);
}

#[tokio::test]
async fn a_policys_denial_has_its_own_status_reason_and_fields() {
    let handler = TestHandler::new(vec![RouteSettings {
        policy: Some(client_ip(TWO_A_MINUTE)),
        ..respond("/*")
    }]);
    let denial = Denial {
        status: 451,
        reason: "not \"here\"".into(),
        retry_after_ms: Some(1_001),
        headers: vec![("x-why".into(), "law".into())],
        body: None,
    };
    let mut context = handler.context(0);
    let refusal =
        handler.charge(Arc::new(decision(Verdict::Deny(denial))), &mut context).await.unwrap_err();
    let reply = Reply::read(context.refuse(&refusal)).await;
    assert_eq!(reply.problem(451)["detail"], "not \"here\"");
    assert_eq!((reply.field("retry-after"), reply.field("x-why")), (Some("2"), Some("law")));
    handler.counted("weir_decisions_total{policy=\"public\",decision=\"denied\"}", 1);
}

#[tokio::test]
async fn a_configuration_names_all_its_errors() {
    let metrics = Metrics::new(1);
    let routes = vec![
        respond("/a"),
        respond("/a"),
        respond("x"),
        RouteSettings {
            action: RouteAction::Respond(Respond { status: 101, ..Respond::default() }),
            ..respond("/b")
        },
    ];
    let errors = Snapshot::build(settings(), routes, limiter(&metrics), &metrics).unwrap_err();
    let settings: Vec<&str> = errors.iter().map(|error| error.setting.as_str()).collect();
    assert_eq!(settings, ["routes[1].path", "routes[2].path", "routes[3].respond.status"]);
}

#[test]
fn a_new_house_serves_the_next_request_and_the_old_one_those_that_hold_it() {
    let metrics = Metrics::new(1);
    let snapshot = |path| {
        Snapshot::build(settings(), vec![respond(path)], limiter(&metrics), &metrics).unwrap()
    };
    let current = Arc::new(arc_swap::ArcSwap::from_pointee(snapshot("/a")));
    let live = Live::new(Arc::clone(&current) as _);
    let serves = |local: &LocalSnapshot, path| local.snapshot().has_route(path);
    let old = live.load();
    assert!(Arc::ptr_eq(&old, &live.load()), "a worker holds the snapshot once");
    current.store(Arc::new(snapshot("/b")));
    live.renew();
    let new = live.load();
    assert!(serves(&old, "/a") && !serves(&old, "/b"));
    assert!(serves(&new, "/b") && !serves(&new, "/a"));
    let elsewhere =
        std::thread::scope(|scope| scope.spawn(|| serves(&live.load(), "/b")).join().unwrap());
    assert!(elsewhere);
}
