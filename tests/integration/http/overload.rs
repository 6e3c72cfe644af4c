//! Upstreams with `concurrency`: who waits, who is turned away, and what that costs.

use serde_json::Value;

use crate::harness::client::{Reply, get};
use crate::harness::eventually_async;
use crate::harness::toml::Toml;
use crate::harness::upstream::Upstream;
use crate::harness::weir::Weir;

const ONE_PLACE: &str = "concurrency = { max = 1, queue = 1, max_wait = \"20s\" }";
const LIMIT: &str = "name = \"day\", algorithm = \"fixed_window\", quota = 10, period = \"1d\"";
/// Of the key `gold-key`.
const DIGEST: &str = "sha256:6163937e6547cc2853a333d323496f4d5608b3958a3bd3939752708bc9cb0feb";

fn concurrency(weir: &Weir) -> Value {
    weir.admin_page("/status").json()["concurrency"]["api"].clone()
}

async fn until_waiting(weir: &Weir, count: u64) {
    eventually_async("requests wait", async || {
        let now = concurrency(weir);
        if now["waiting"] == count { Ok(()) } else { Err(now.to_string()) }
    })
    .await;
}

async fn until_seen(upstream: &Upstream, count: u64) {
    eventually_async("requests arrive", async || {
        let now = upstream.count();
        if now == count { Ok(()) } else { Err(now.to_string()) }
    })
    .await;
}

fn is_turned_away(reply: &Reply) {
    assert_eq!(reply.status, 503, "{reply:?}");
    let problem = reply.json();
    let expected = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";
    assert_eq!(problem["type"], expected);
    let wait: u64 = reply.header("retry-after").parse().unwrap();
    assert!((1..=4).contains(&wait), "{wait}");
}

#[tokio::test]
async fn the_more_important_request_is_served_and_the_other_is_not_charged() {
    let upstream = Upstream::start();
    let weir = Weir::start(
        &Toml::new()
            .upstream("api", &upstream.url(), ONE_PLACE)
            .policy("public", &[LIMIT])
            .route("path = \"/*\"\nupstream = \"api\"\npolicy = \"public\"")
            .route("path = \"/checkout\"\nupstream = \"api\"\npolicy = \"public\"\npriority = 7")
            .text(),
    );
    let address = weir.http;
    let send = |path: &'static str| tokio::spawn(async move { get(address, path, &[]).await });
    upstream.hold();
    let first = send("/first");
    until_seen(&upstream, 1).await;
    let displaced = send("/search");
    until_waiting(&weir, 1).await;
    let full = send("/search").await.unwrap();
    is_turned_away(&full);
    let checkout = send("/checkout");
    is_turned_away(&displaced.await.unwrap());
    until_waiting(&weir, 1).await;
    assert_eq!(concurrency(&weir)["in_flight"], 1);
    upstream.release();
    assert_eq!(first.await.unwrap().status, 200);
    assert_eq!(checkout.await.unwrap().status, 200);
    let paths: Vec<_> = upstream.seen().iter().map(|seen| seen.target.clone()).collect();
    assert_eq!(paths, ["/first", "/checkout"]);
    // Three requests were served with this one.
    assert_eq!(get(address, "/", &[]).await.remaining("day"), 7);
    for (reason, count) in [("displaced", 1), ("full", 1), ("waited", 0)] {
        let series = format!("weir_upstream_shed_total{{upstream=\"api\",reason=\"{reason}\"}}");
        assert_eq!(weir.metric(&series), count, "{reason}");
    }
    assert_eq!(weir.metric("weir_upstream_errors_total{upstream=\"api\",cause=\"shed\"}"), 2);
    assert_eq!(weir.metric("weir_route_refusals_total{route=\"all\",cause=\"overload\"}"), 2);
}

#[tokio::test]
async fn a_plan_has_the_priority_that_is_written_beside_it() {
    let upstream = Upstream::start();
    let policy = format!(
        "[policies.customers]\nuse = \"plans\"\n[policies.customers.config]\n\
         key = \"{{header.x-api-key}}\"\ndefault_plan = \"free\"\n\
         priorities = {{ gold = 6, free = 2 }}\nassign = {{ \"{DIGEST}\" = \"gold\" }}\n\
         plans.gold = [{{ {LIMIT} }}]\nplans.free = [{{ {LIMIT} }}]\n"
    );
    let weir = Weir::start(
        &Toml::new()
            .upstream("api", &upstream.url(), ONE_PLACE)
            .more(&policy)
            .route("path = \"/*\"\nupstream = \"api\"\npolicy = \"customers\"")
            .text(),
    );
    let address = weir.http;
    let send = |key: &'static str| {
        tokio::spawn(async move { get(address, "/", &[("x-api-key", key)]).await })
    };
    upstream.hold();
    let first = send("");
    until_seen(&upstream, 1).await;
    let free = send("");
    until_waiting(&weir, 1).await;
    let gold = send("gold-key");
    is_turned_away(&free.await.unwrap());
    until_waiting(&weir, 1).await;
    upstream.release();
    assert_eq!(first.await.unwrap().status, 200);
    assert_eq!(gold.await.unwrap().status, 200);
}

#[test]
fn what_is_wrong_with_the_setting_is_said_where_it_is() {
    let check = |concurrency: &str| {
        let config = Toml::new()
            .upstream("api", "http://127.0.0.1:1", &format!("concurrency = {concurrency}"))
            .route("path = \"/*\"\nupstream = \"api\"\npriority = 8");
        let (code, _, errors) = Weir::check(Weir::build(&config.text()));
        assert_eq!(code, 78, "{errors}");
        errors
    };
    for (written, expected) in [
        ("{ queue = 1 }", "max"),
        ("{ max = 4, min = 2 }", "adaptive"),
        ("{ adaptive = true, min = 9, max = 5 }", "less than `min`"),
        ("{ max = 0 }", "1 to 100000"),
        ("{ max = 4, max_wait = 5 }", "\"5ms\""),
    ] {
        let errors = check(written);
        assert!(errors.contains(expected), "{written}: {errors}");
        assert!(errors.contains("0 to 7"), "{errors}");
    }
}
