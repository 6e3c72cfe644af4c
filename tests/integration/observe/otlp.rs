//! `[telemetry.otlp]`: the spans and metrics that a collector gets, the `traceparent` that an
//! upstream gets, and what happens while the collector is away. OpenTelemetry's own collector is in
//! no registry that these tests install from, so a plain receiver reads what comes, with the schema
//! that OpenTelemetry generates from its protocol definition.

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::api::Api;
use crate::harness::client::{Client, get};
use crate::harness::eventually;
use crate::harness::otlp::{Receiver, sum};
use crate::harness::toml::{Toml, simple};
use crate::harness::upstream::{Upstream, listener};
use crate::harness::weir::Weir;

const TWO: &str = "name = \"day\", algorithm = \"fixed_window\", quota = 2, period = \"1d\"";
const MANY: &str = "name = \"day\", algorithm = \"fixed_window\", quota = 1000000, period = \"1d\"";
const ALL: &str = "sample = 1.0\ninterval = \"1s\"";
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const SERVER: i32 = 2;
const CLIENT: i32 = 3;
const INTERNAL: i32 = 1;

fn sampled(flags: &str) -> String {
    format!("00-{TRACE}-00f067aa0ba902b7-{flags}")
}

fn with(toml: Toml, receiver: &Receiver, lines: &str) -> Toml {
    toml.more(&receiver.section(lines))
}

#[tokio::test]
async fn a_request_has_a_span_with_its_decision_and_its_sending() {
    let (upstream, receiver) = (Upstream::start(), Receiver::start());
    let lines = format!(
        "{ALL}\nservice = \"edge\"\n[telemetry.otlp.attributes]\n\"deployment.environment.name\" = \"test\""
    );
    let weir = Weir::start(&with(simple(&upstream.url(), &[TWO]), &receiver, &lines).text());
    let reply = get(weir.http, "/a?token=secret", &[]).await;
    let spans = receiver.of_request(&reply.header("x-request-id"));
    let [request, decision, sending] = &spans[..] else { panic!("{spans:#?}") };

    assert_eq!((request.name.as_str(), request.kind, request.failed), ("GET api", SERVER, false));
    assert_eq!(request.parent, "");
    let expected = [
        ("http.request.method", "GET"),
        ("url.scheme", "http"),
        ("url.path", "/a"),
        ("http.response.status_code", "200"),
        ("http.route", "/*"),
        ("weir.route", "api"),
        ("server.address", "127.0.0.1"),
        ("client.address", "127.0.0.1"),
        ("network.protocol.version", "1.1"),
    ];
    for (name, value) in expected {
        assert_eq!(request.get(name), value, "{name}: {request:#?}");
    }
    assert_eq!(request.get("server.port"), weir.http.port().to_string());
    assert!(!format!("{spans:?}").contains("secret"), "{spans:#?}");
    assert_eq!(request.resource["service.name"], "edge");
    assert_eq!(request.resource["deployment.environment.name"], "test");
    assert_eq!(request.resource["service.instance.id"].len(), 36);

    assert_eq!((decision.name.as_str(), decision.kind), ("decide", INTERNAL));
    assert_eq!(
        (decision.get("weir.decision"), decision.get("weir.policy")),
        ("admitted", "public")
    );
    assert_eq!((sending.name.as_str(), sending.kind), ("upstream", CLIENT));
    assert_eq!(sending.get("http.response.status_code"), "200");
    assert_eq!(sending.get("server.port"), upstream.address.port().to_string());
    for span in [decision, sending] {
        assert_eq!((&span.trace, &span.parent), (&request.trace, &request.id));
    }
    let times = [
        request.start_ns,
        decision.start_ns,
        decision.end_ns,
        sending.start_ns,
        sending.end_ns,
        request.end_ns,
    ];
    assert!(times.is_sorted() && times[0] < times[5], "{times:?}");
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let ago_ns = now.as_nanos().abs_diff(u128::from(request.start_ns));
    assert!(ago_ns < 60_000_000_000, "{ago_ns} ns ago");

    // The upstream continues the span of the sending.
    let told = upstream.only().header("traceparent").unwrap();
    assert_eq!(told, format!("00-{}-{}-01", sending.trace, sending.id));
}

#[tokio::test]
async fn the_calls_of_one_body_are_parts_of_its_trace() {
    let receiver = Receiver::start();
    let config = Toml::new()
        .listener("serves = \"decisions\"")
        .policy("public", &[TWO])
        .route("name = \"mail\"\ndomain = \"mail\"\npolicy = \"public\"");
    let text = with(config, &receiver, ALL).text();
    let weir = tokio::task::spawn_blocking(move || Weir::start(&text)).await.unwrap();
    let api = Api::new(weir.http);
    let call = json!({ "domain": "mail", "facts": { "client-ip": "192.0.2.1" } });
    let traces = ["1", "2"].map(|digit| digit.repeat(32));
    for (trace, body) in traces.iter().zip([call.clone(), json!([call, call])]) {
        let parent = format!("00-{trace}-00f067aa0ba902b7-01");
        api.send_json("/v1/decide", &[("traceparent", &parent)], &body).await.is(200);
    }
    let [one, several] = tokio::task::spawn_blocking(move || {
        // Those of each trace from outside in: a call is decided on, a body has two calls.
        let spans = traces.iter().zip([2, 5]).map(|(trace, count)| {
            eventually("the spans of a trace", || {
                let mut own = receiver.spans();
                own.retain(|span| span.trace == *trace);
                own.sort_by_key(|span| (span.kind != SERVER, span.name == "decide"));
                if own.len() == count { Ok(own) } else { Err(format!("{own:#?}")) }
            })
        });
        let spans: Vec<_> = spans.collect();
        drop((weir, receiver));
        <[_; 2]>::try_from(spans).unwrap()
    })
    .await
    .unwrap();
    let [request, decision] = &one[..] else { panic!("{one:#?}") };
    assert_eq!((request.name.as_str(), request.kind), ("POST mail", SERVER));
    assert_eq!((request.get("weir.route"), request.get("http.route")), ("mail", ""));
    assert_eq!(decision.get("weir.decision"), "admitted");
    let [body, parts @ .., _, _] = &several[..] else { panic!("{several:#?}") };
    assert_eq!((body.name.as_str(), body.kind, parts.len()), ("POST", SERVER, 2));
    for part in parts {
        assert_eq!((part.name.as_str(), part.kind), ("POST mail", INTERNAL));
        assert_eq!((&part.trace, &part.parent), (&body.trace, &body.id));
    }
}

#[tokio::test]
async fn a_refusal_has_a_span_that_names_its_limit() {
    let (upstream, receiver) = (Upstream::start(), Receiver::start());
    let text = with(simple(&upstream.url(), &[TWO]), &receiver, ALL).text();
    let weir = Weir::start(&text.replace("access = \"off\"", "access = \"all\""));
    for _ in 0..2 {
        get(weir.http, "/a", &[]).await;
    }
    let refused = get(weir.http, "/b", &[]).await;
    assert_eq!(refused.status, 429);
    let spans = receiver.of_request(&refused.header("x-request-id"));
    let [request, decision] = &spans[..] else { panic!("{spans:#?}") };
    assert_eq!(request.get("http.response.status_code"), "429");
    // The client's fault, and no error of this server.
    assert!(!request.failed && request.get("error.type").is_empty(), "{request:#?}");
    assert_eq!(decision.get("weir.decision"), "refused");
    assert_eq!(decision.get("weir.limit"), "day");
    assert_eq!(decision.get("weir.algorithm"), "fixed_window");
    let line = eventually("the access line", || {
        let mut events = weir.output().events().into_iter();
        events.find(|event| event["path"] == "/b").ok_or_else(|| "not yet".to_owned())
    });
    assert_eq!(line["key_digest"][0], decision.get("weir.key_digest"));
    assert_eq!(line["trace_id"], request.trace.as_str());
}

#[tokio::test]
async fn an_upstream_that_fails_shows_in_its_span() {
    let receiver = Receiver::start();
    let nowhere = listener().local_addr().unwrap();
    let toml = simple(&format!("http://{nowhere}"), &[MANY]);
    let weir = Weir::start(&with(toml, &receiver, ALL).text());
    let reply = get(weir.http, "/a", &[]).await;
    assert_eq!(reply.status, 502);
    let spans = receiver.of_request(&reply.header("x-request-id"));
    let [request, _, sending] = &spans[..] else { panic!("{spans:#?}") };
    for span in [request, sending] {
        assert!(span.failed, "{span:#?}");
        assert_eq!(span.get("error.type"), "connect");
    }
    assert_eq!(sending.get("http.response.status_code"), "");
}

#[tokio::test]
async fn only_a_trusted_proxy_decides_what_is_traced() {
    let (upstream, receiver) = (Upstream::start(), Receiver::start());
    let toml = |lines: &str, trusted: &str| {
        let toml =
            simple(&upstream.url(), &[MANY]).server(&format!("trusted_proxies = [{trusted}]"));
        Weir::start(&with(toml, &receiver, lines).text())
    };
    let ask = async |weir: &Weir, flags: &str| {
        let parent = sampled(flags);
        let headers = [("traceparent", parent.as_str()), ("tracestate", "vendor=1")];
        let reply = get(weir.http, "/a", &headers).await;
        (reply.header("x-request-id"), upstream.last())
    };
    // From a trusted proxy, its flag counts and not our share.
    let weir = toml("sample = 0", "\"127.0.0.1\"");
    let (id, seen) = ask(&weir, "01").await;
    let request = &receiver.of_request(&id)[0];
    assert_eq!((request.trace.as_str(), request.parent.as_str()), (TRACE, "00f067aa0ba902b7"));
    let told = seen.header("traceparent").unwrap();
    assert!(
        told.starts_with(&format!("00-{TRACE}-")) && !told.contains("00f067aa0ba902b7"),
        "{told}"
    );
    assert_eq!(seen.header("tracestate").as_deref(), Some("vendor=1"));
    drop(weir);
    let weir = toml("sample = 1", "\"127.0.0.1\"");
    let (untraced, seen) = ask(&weir, "00").await;
    assert_eq!(seen.header("traceparent"), Some(sampled("00")), "as it came");
    // An export that comes later shows that there was none before.
    let traced = get(weir.http, "/a", &[]).await.header("x-request-id");
    receiver.of_request(&traced);
    assert!(!receiver.spans().iter().any(|span| span.get("weir.request_id") == untraced));
    drop(weir);

    // From anybody else, our own share decides. The trace is continued all the same.
    let mut weir = toml("sample = 0", "");
    let (untraced, seen) = ask(&weir, "01").await;
    assert_eq!(seen.header("traceparent"), Some(sampled("01")), "as it came");
    assert_eq!(get(weir.http, "/b", &[]).await.status, 200);
    assert_eq!(upstream.last().header("traceparent"), None);
    // It would be exported at the end.
    weir.signal(Signal::TERM);
    weir.exit();
    assert!(!receiver.spans().iter().any(|span| span.get("weir.request_id") == untraced));
    let weir = toml("sample = 1", "");
    let (id, _) = ask(&weir, "00").await;
    assert_eq!(receiver.of_request(&id)[0].trace, TRACE);
}

#[tokio::test]
async fn a_traceparent_that_is_not_valid_is_replaced_with_its_state() {
    let (upstream, receiver) = (Upstream::start(), Receiver::start());
    let toml = simple(&upstream.url(), &[MANY]).server("trusted_proxies = [\"127.0.0.1\"]");
    let weir = Weir::start(&with(toml, &receiver, ALL).text());
    let (upper, one, other) = (sampled("01").to_uppercase(), sampled("01"), sampled("00"));
    let several = [("traceparent", one.as_str()), ("traceparent", other.as_str())];
    for headers in
        [&[("traceparent", upper.as_str()), ("tracestate", "vendor=1")][..], &several[..]]
    {
        let reply = get(weir.http, "/a", headers).await;
        let request = &receiver.of_request(&reply.header("x-request-id"))[0];
        assert_ne!(request.trace, TRACE);
        assert_eq!(request.parent, "");
        let told = upstream.last();
        assert!(told.header("traceparent").unwrap().contains(&request.trace), "{told:?}");
        assert_eq!(told.header("tracestate"), None);
    }
}

#[tokio::test]
async fn metrics_are_those_that_the_metrics_page_shows() {
    let (upstream, receiver) = (Upstream::start(), Receiver::start());
    let toml =
        with(simple(&upstream.url(), &[TWO]), &receiver, "traces = false\ninterval = \"1s\"");
    let weir = Weir::start(&toml.text());
    for _ in 0..3 {
        get(weir.http, "/a", &[]).await;
    }
    eventually("the refusal is exported", || {
        let metrics = receiver.metrics();
        let refused = sum(&metrics, "weir_requests", &[("route", "api"), ("code", "429")]);
        if refused == 1 { Ok(()) } else { Err(format!("{refused}, {} metrics", metrics.len())) }
    });
    let metrics = receiver.metrics();
    assert_eq!(sum(&metrics, "weir_requests", &[("code", "200")]), 2);
    let page = weir.admin_page("/metrics").text();
    for metric in &metrics {
        let of = format!("# HELP {} ", metric.name);
        assert!(page.contains(&of), "{} is not in\n{page}", metric.name);
    }
    assert!(metrics.len() > 20, "{}", metrics.len());
    assert!(receiver.spans().is_empty());
    assert!(weir.metric("weir_otlp_exports_total{signal=\"metrics\",result=\"accepted\"}") > 0);
    assert_eq!(upstream.last().header("traceparent"), None);
}

#[tokio::test]
async fn a_collector_that_is_away_costs_only_what_does_not_fit() {
    const BUFFER: u64 = 2_048;
    let (upstream, receiver) = (Upstream::start(), Receiver::start());
    let address = receiver.address();
    let toml = with(simple(&upstream.url(), &[MANY]).server("workers = 1"), &receiver, ALL);
    let weir = Weir::start(&toml.text());
    let first = get(weir.http, "/a", &[]).await.header("x-request-id");
    receiver.of_request(&first);
    drop(receiver);
    // More than the buffer holds, and what is under way besides.
    let mut client = Client::connect(weir.http).await.unwrap();
    let mut asked = 0;
    let dropped = || weir.metric("weir_otlp_dropped_total{signal=\"traces\"}");
    while dropped() == 0 {
        for _ in 0..500 {
            assert_eq!(client.get("/b", &[]).await.unwrap().status, 200);
        }
        asked += 500;
        assert!(asked < 40 * BUFFER, "nothing was dropped of {asked}");
    }
    assert!(asked > BUFFER, "{asked}");
    let failed = "weir_otlp_exports_total{signal=\"traces\",result=\"failed\"}";
    assert!(weir.metric(failed) > 0);
    let told = |text: &str| {
        let events = weir.output().events();
        let of = |event: &&Value| {
            event["signal"] == "traces" && event["message"].as_str().unwrap_or("").contains(text)
        };
        events.iter().filter(of).count()
    };
    assert_eq!(told("can't export"), 1);

    let receiver = Receiver::start_at(address);
    eventually("it exports again", || match told("accepts exports again") {
        1 => Ok(()),
        n => Err(format!("told {n} times")),
    });
    // The buffer has room again once all that it held has come.
    eventually("what waited has come", || match receiver.spans().len() as u64 {
        spans if spans > 3 * BUFFER => Ok(()),
        spans => Err(format!("{spans} spans")),
    });
    let after = get(weir.http, "/c", &[]).await.header("x-request-id");
    receiver.of_request(&after);
    assert_eq!((told("can't export"), told("accepts exports again")), (1, 1));
}

#[tokio::test]
async fn a_collector_may_refuse_or_reject_a_part() {
    let (upstream, receiver) = (Upstream::start(), Receiver::start());
    let lines = format!("{ALL}\nmetrics = false");
    let weir = Weir::start(&with(simple(&upstream.url(), &[MANY]), &receiver, &lines).text());
    let dropped = || weir.metric("weir_otlp_dropped_total{signal=\"traces\"}");
    let is_dropped = |count| {
        eventually("spans are dropped", || match dropped() {
            found if found == count => Ok(()),
            found => Err(format!("{found} of {count}")),
        });
    };
    // Not to be tried again.
    receiver.http().answer(400, &[], "no");
    get(weir.http, "/a", &[]).await;
    is_dropped(3);
    // Taken, but for two spans: partial_success { rejected_spans: 2 }.
    receiver.http().answer(200, &[], vec![0x0a, 0x02, 0x08, 0x02]);
    get(weir.http, "/a", &[]).await;
    is_dropped(5);
    // To be tried again, until it is taken.
    receiver.http().answer(503, &[("retry-after", "1")], "busy");
    let before = weir.metric("weir_otlp_exports_total{signal=\"traces\",result=\"failed\"}");
    let id = get(weir.http, "/b", &[]).await.header("x-request-id");
    eventually("it was refused", || {
        let failed = weir.metric("weir_otlp_exports_total{signal=\"traces\",result=\"failed\"}");
        if failed > before { Ok(()) } else { Err(format!("{failed} failed")) }
    });
    let accepted = weir.metric("weir_otlp_exports_total{signal=\"traces\",result=\"accepted\"}");
    receiver.http().answer(200, &[], "");
    eventually("it is taken at last", || {
        let now = weir.metric("weir_otlp_exports_total{signal=\"traces\",result=\"accepted\"}");
        if now > accepted { Ok(()) } else { Err(format!("{now}")) }
    });
    receiver.of_request(&id);
    assert_eq!(dropped(), 5);
}

#[tokio::test]
async fn a_reload_switches_it_on_and_off() {
    let (upstream, receiver) = (Upstream::start(), Receiver::start());
    let off = simple(&upstream.url(), &[MANY]);
    let on = with(off.clone(), &receiver, ALL);
    let weir = Weir::start(&off.text());
    get(weir.http, "/a", &[]).await;
    assert_eq!(upstream.last().header("traceparent"), None);
    weir.reload(&on.text(), "applied");
    let id = get(weir.http, "/a", &[]).await.header("x-request-id");
    receiver.of_request(&id);
    weir.reload(&off.text(), "applied");
    get(weir.http, "/a", &[]).await;
    assert_eq!(upstream.last().header("traceparent"), None);
    // To another collector.
    let other = Receiver::start();
    weir.reload(&with(off, &other, ALL).text(), "applied");
    let id = get(weir.http, "/a", &[]).await.header("x-request-id");
    other.of_request(&id);
}

#[tokio::test]
async fn waiting_spans_are_exported_at_the_end() {
    let (upstream, receiver) = (Upstream::start(), Receiver::start());
    let mut weir = Weir::start(&with(simple(&upstream.url(), &[MANY]), &receiver, ALL).text());
    let id = get(weir.http, "/a", &[]).await.header("x-request-id");
    weir.signal(Signal::TERM);
    weir.exit();
    let spans = receiver.spans();
    assert!(spans.iter().any(|span| span.get("weir.request_id") == id), "{spans:?}");
}

#[tokio::test]
async fn fields_and_a_path_of_its_own_reach_a_collector() {
    let (upstream, collector) = (Upstream::start(), Upstream::start());
    let lines = format!(
        "[telemetry.otlp]\nendpoint = \"{}/api/otlp\"\nsample = 1\nmetrics = false\nheaders = {{ X-Tenant = \"a\" }}\nheaders_file = {{ Authorization = \"token\" }}",
        collector.url()
    );
    let toml = simple(&upstream.url(), &[MANY]).more(&lines);
    let weir = Weir::build(&toml.text()).file("token", b"Bearer hidden\n").start();
    get(weir.http, "/a", &[]).await;
    let seen = eventually("an export", || {
        collector.seen().first().cloned().ok_or_else(|| "not yet".to_owned())
    });
    assert_eq!((seen.method.as_str(), seen.target.as_str()), ("POST", "/api/otlp/v1/traces"));
    assert_eq!(seen.header("x-tenant").as_deref(), Some("a"));
    assert_eq!(seen.header("authorization").as_deref(), Some("Bearer hidden"));
    assert_eq!(seen.header("host"), Some(collector.address.to_string()));
}

#[test]
fn errors_are_reported_with_their_lines() {
    let wrong = |lines: &str, told: &str| {
        let text = simple("http://127.0.0.1:9", &[MANY])
            .more(&format!("[telemetry.otlp]\n{lines}"))
            .text();
        let (code, out, err) = Weir::check(Weir::build(&text));
        let said = out + &err;
        assert_eq!(code, 78, "{said}");
        assert!(said.contains(told), "{told} is not in\n{said}");
        let key = lines.lines().last().unwrap();
        let line = text.lines().position(|line| line == key).unwrap() + 1;
        assert!(said.contains(&format!("proxy.toml:{line}:")), "{said}");
    };
    let endpoint = "endpoint = \"http://127.0.0.1:4318\"\n";
    wrong("endpoint = \"127.0.0.1:4318\"", "telemetry.otlp.endpoint: found \"127.0.0.1:4318\"");
    wrong("endpoint = \"http://a:1/v1/traces\"", "which are appended");
    wrong(&format!("{endpoint}sample = 1.5"), "telemetry.otlp.sample: found 1.5");
    wrong(&format!("{endpoint}sample = \"all\""), "a share of requests from 0 to 1");
    wrong(&format!("{endpoint}interval = \"0s\""), "\"1s\" to \"1h\"");
    wrong(&format!("{endpoint}sampel = 1"), "the nearest known key is `sample`");
    wrong(
        &format!("{endpoint}headers = {{ Host = \"a\" }}"),
        "telemetry.otlp.headers.Host: found the field host",
    );
    let ca = "tls.ca = \"nowhere.pem\"";
    wrong(&format!("{endpoint}{ca}"), "telemetry.otlp.tls.ca");
}
