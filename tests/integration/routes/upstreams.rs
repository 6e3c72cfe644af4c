//! What a route asks of its upstream instead of the upstream's own settings, and copies of its
//! requests for another upstream.

use std::collections::BTreeSet;

use crate::harness::client::{Client, get};
use crate::harness::eventually_async;
use crate::harness::toml::Toml;
use crate::harness::upstream::{Seen, Upstream};
use crate::harness::weir::Weir;

const TEN: &str = "name = \"day\", algorithm = \"fixed_window\", quota = 10, period = \"1d\"";

#[tokio::test]
async fn a_route_may_wait_for_less_time_than_others() {
    let upstream = Upstream::start();
    let config = Toml::new()
        .upstream("api", &upstream.url(), "")
        .route("path = \"/*\"\nupstream = \"api\"")
        .route("path = \"/quick\"\nupstream = \"api\"\ntimeouts.response_header = \"50ms\"");
    let weir = Weir::start(&config.text());
    upstream.hold();
    assert_eq!(get(weir.http, "/quick", &[]).await.status, 504);
    upstream.release();
    assert_eq!(get(weir.http, "/quick", &[]).await.status, 200);
}

#[tokio::test]
async fn a_route_may_be_spread_by_a_fact_of_its_own_or_by_none() {
    let answering = |text: &str| {
        let route = format!("path = \"/*\"\nrespond = {{ status = 200, body = \"{text}\" }}");
        Weir::start(&Toml::new().route(&route).text())
    };
    let (one, two) = (answering("one"), answering("two"));
    let route = |path: &str, more: &str| format!("path = \"{path}\"\nupstream = \"api\"\n{more}");
    let config = Toml::new()
        .more(&format!(
            "[upstreams.api]\nendpoints = [\"http://{}\", \"http://{}\"]\nhash = \"header.x-user\"",
            one.http, two.http
        ))
        .route(&route("/*", ""))
        .route(&route("/shops/{id}", "hash = \"path.id\""))
        .route(&route("/any", "hash = \"off\""));
    let weir = Weir::start(&config.text());
    let answers = async |target: &str| {
        let mut answers = BTreeSet::new();
        for user in 0..40 {
            let user = format!("user-{}", if target == "/" { 0 } else { user });
            answers.insert(get(weir.http, target, &[("x-user", &user)]).await.text());
        }
        answers.len()
    };
    assert_eq!(answers("/").await, 1);
    assert_eq!(answers("/shops/7").await, 1, "whoever asks");
    assert_eq!(answers("/any").await, 2);
    let wrong = route("/shops/{id}", "hash = \"path.shop\"");
    let wrong = Toml::new().upstream("api", "http://127.0.0.1:1", "").route(&wrong);
    let (code, _, errors) = Weir::check(Weir::build(&wrong.text()));
    assert_eq!(code, 78);
    assert!(errors.contains("hash") && errors.contains("which this route never has"), "{errors}");
}

/// The copies that have arrived, once there are so many.
async fn copies(shadow: &Upstream, count: usize) -> Vec<Seen> {
    eventually_async("copies arrive", async || {
        let seen = shadow.seen();
        if seen.len() == count { Ok(seen) } else { Err(format!("{} of {count}", seen.len())) }
    })
    .await
}

#[tokio::test]
async fn what_is_admitted_is_copied_and_nobody_waits_for_the_copy() {
    let (upstream, shadow) = (Upstream::start(), Upstream::start());
    shadow.answer(500, &[], "who is asking?");
    let config = Toml::new()
        .upstream("api", &upstream.url(), "")
        .upstream("next", &shadow.url(), "")
        .policy("public", &[TEN])
        .route(
            "path = \"/*\"\nupstream = \"api\"\npolicy = \"public\"\n\
             rewrite = { add_prefix = \"/v2\" }\nmirror = { upstream = \"next\", body_bytes = \"1KiB\" }",
        );
    let weir = Weir::start(&config.text());
    let result = |result: &str| {
        weir.metric(&format!("weir_mirrored_requests_total{{route=\"all\",result=\"{result}\"}}"))
    };
    let mut client = Client::connect(weir.http).await.unwrap();
    // The copy has to wait, and the request does not.
    shadow.hold();
    let headers = [("x-a", "1"), ("content-type", "text/plain")];
    let reply = client.send("POST", "/orders?x=1", &headers, "a body".into()).await.unwrap();
    assert_eq!((reply.status, reply.remaining("day")), (200, 9));
    shadow.release();
    let copy = copies(&shadow, 1).await.remove(0);
    let original = upstream.only();
    assert_eq!((copy.method, copy.target), (original.method, "/v2/orders?x=1".to_owned()));
    assert_eq!((&copy.body, &copy.headers), (&original.body, &original.headers));
    eventually_async("it is counted", async || {
        if result("answered") == 1 { Ok(()) } else { Err("not yet".to_owned()) }
    })
    .await;
    assert_eq!(client.get("/", &[]).await.unwrap().status, 200);
    copies(&shadow, 2).await;
    // Too long: by its length, and as it turns out.
    let long = "x".repeat(1_025);
    let reply = client.send("POST", "/", &[], long.clone().into()).await.unwrap();
    assert_eq!((reply.status, upstream.last().body.len()), (200, 1_025));
    let chunked = format!(
        "POST / HTTP/1.1\r\nhost: a\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n\
         401\r\n{long}\r\n0\r\n\r\n"
    );
    let answer = crate::harness::client::raw(
        weir.http,
        chunked.as_bytes(),
        std::time::Duration::from_secs(5),
    );
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert_eq!(upstream.last().body.len(), 1_025);
    let trailing = "POST / HTTP/1.1\r\nhost: a\r\nconnection: close\r\ntrailer: x-sum\r\n\
                    transfer-encoding: chunked\r\n\r\n1\r\na\r\n0\r\nx-sum: 1\r\n\r\n";
    crate::harness::client::raw(weir.http, trailing.as_bytes(), std::time::Duration::from_secs(5));
    assert_eq!(upstream.last().header("trailer").as_deref(), Some("x-sum"));
    let copy = copies(&shadow, 3).await.remove(2);
    assert_eq!((copy.header("trailer"), copy.body.len()), (None, 1), "it has no trailers");
    assert_eq!((result("too_large"), shadow.seen().len()), (2, 3));
    // Nothing else was charged, and what is refused is not copied.
    for left in (0..5).rev() {
        assert_eq!(client.get("/", &[]).await.unwrap().remaining("day"), left);
    }
    assert_eq!(client.get("/", &[]).await.unwrap().status, 429);
    assert_eq!(copies(&shadow, 8).await.len(), 8);
    assert_eq!(upstream.seen().len(), 10);
}

#[tokio::test]
async fn a_share_is_copied_and_an_upstream_that_is_down_is_nobodys_trouble() {
    let upstream = Upstream::start();
    let nobody = crate::harness::free_address();
    let config = Toml::new()
        .upstream("api", &upstream.url(), "")
        .upstream("next", &format!("http://{nobody}"), "")
        .route("path = \"/*\"\nupstream = \"api\"\nmirror = { upstream = \"next\", share = 20 }");
    let weir = Weir::start(&config.text());
    for _ in 0..300 {
        assert_eq!(get(weir.http, "/", &[]).await.status, 200);
    }
    let failed = "weir_mirrored_requests_total{route=\"all\",result=\"failed\"}";
    let mut before = 0;
    eventually_async("no more copies fail", async || {
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        let now = weir.metric(failed);
        let last = std::mem::replace(&mut before, now);
        if now > 0 && last == now { Ok(()) } else { Err(now.to_string()) }
    })
    .await;
    assert!((25..=110).contains(&before), "{before}");
}

#[tokio::test]
async fn a_body_is_copied_over_either_version_also_if_the_policy_has_read_it() {
    let (upstream, shadow) = (Upstream::start(), Upstream::start());
    // Behind another proxy, so that the copy goes over HTTP/2.
    let behind =
        Toml::new().upstream("api", &shadow.url(), "").route("path = \"/*\"\nupstream = \"api\"");
    let behind = Weir::start(&behind.text());
    let policy = format!(
        "[policies.keyed]\nuse = \"keyed\"\nconfig.key = \"{{body:/user}}\"\n\
         config.limits = [{{ {TEN} }}]\n"
    );
    let config = Toml::new()
        .upstream("api", &upstream.url(), "")
        .upstream("next", &format!("http://{}", behind.http), "protocol = \"h2\"")
        .more(&policy)
        .route(
            "path = \"/*\"\nupstream = \"api\"\nmirror = { upstream = \"next\" }",
        )
        .route(
            "path = \"/read\"\nupstream = \"api\"\npolicy = \"keyed\"\nmirror = { upstream = \"next\" }",
        );
    let weir = Weir::start(&config.text());
    let body = "{\"user\": \"alice\"}";
    let json = [("content-type", "application/json")];
    let mut one = Client::connect(weir.http).await.unwrap();
    let mut two = crate::harness::tls::Http2::plain(weir.http).await.unwrap();
    let mut sent = 0;
    for target in ["/", "/read"] {
        let reply = one.send("POST", target, &json, body.into()).await.unwrap();
        assert_eq!(reply.status, 200);
        let reply = two.send("POST", target, &json, body.into()).await.unwrap();
        assert_eq!(reply.status, 200);
        sent += 2;
        for copy in copies(&shadow, sent).await {
            assert_eq!((copy.method.as_str(), &copy.body[..]), ("POST", body.as_bytes()));
        }
    }
}
