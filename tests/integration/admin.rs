//! The operator's pages: what is counted, and whether to send traffic.

use crate::harness::client::{Client, get};
use crate::harness::eventually;
use crate::harness::toml::simple;
use crate::harness::upstream::Upstream;
use crate::harness::weir::Weir;

const LIMIT: &str = "name = \"day\", algorithm = \"fixed_window\", quota = 3, period = \"1d\"";

#[tokio::test]
async fn metrics_count_what_happened() {
    let upstream = Upstream::start();
    let weir = Weir::start(&simple(&upstream.url(), &[LIMIT]).text());
    let mut client = Client::connect(weir.http).await.unwrap();
    for _ in 0..5 {
        client.get("/some/path?key=secret", &[("x-api-key", "secret")]).await.unwrap();
    }
    let counted = [
        ("weir_requests_total{route=\"api\",code=\"200\"}", 3),
        ("weir_requests_total{route=\"api\",code=\"429\"}", 2),
        ("weir_decisions_total{policy=\"public\",decision=\"admitted\"}", 3),
        ("weir_decisions_total{policy=\"public\",decision=\"refused\"}", 2),
        ("weir_limit_refusals_total{policy=\"public\",limit=\"day\"}", 2),
        ("weir_takes_unknown_total", 0),
        ("weir_embedded_keys", 1),
    ];
    for (series, expected) in counted {
        // A request is counted at its reply's end, which the client may see a moment earlier.
        eventually(series, || {
            let found = weir.metric(series);
            if found == expected { Ok(()) } else { Err(format!("{found}, expected {expected}")) }
        });
    }
    let page = weir.admin_page("/metrics");
    assert_eq!(page.status, 200);
    assert!(page.header("content-type").starts_with("application/openmetrics-text"), "{:?}", page.headers);
    assert!(page.text().ends_with("# EOF\n"));
    assert!(!page.text().contains("secret") && !page.text().contains("some/path"), "a caller's text in a label");
}

#[tokio::test]
async fn live_ready_and_status_answer() {
    let upstream = Upstream::start();
    let weir = Weir::start(&simple(&upstream.url(), &[LIMIT]).text());
    assert_eq!(weir.admin_page("/live").status, 200);
    assert_eq!(weir.admin_page("/ready").status, 200);
    let status = weir.admin_page("/status");
    assert_eq!(status.status, 200);
    assert!(status.json()["version"].is_string(), "{}", status.text());
    assert_eq!(weir.admin_page("/nothing").status, 404);
}

#[tokio::test]
async fn the_operators_pages_are_not_on_the_public_listener() {
    let upstream = Upstream::start();
    let weir = Weir::start(&simple(&upstream.url(), &[LIMIT]).text());
    let reply = get(weir.http, "/metrics", &[]).await;
    assert_eq!(reply.text(), "from upstream\n", "/metrics belongs to the upstream there");
}

#[tokio::test]
async fn the_access_log_is_one_json_object_a_request() {
    let upstream = Upstream::start();
    let text = simple(&upstream.url(), &[LIMIT]).text().replace("access = \"off\"", "access = \"all\"");
    let weir = Weir::start(&text);
    let id = get(weir.http, "/one?two=three", &[]).await.header("x-request-id");
    let line = eventually("the line of that request", || {
        let lines = weir.output().lines();
        lines.into_iter().find(|line| line.contains(&id)).ok_or_else(|| "not yet".to_owned())
    });
    let event: serde_json::Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"));
    let text = event.to_string();
    assert!(text.contains("/one") && text.contains("200") && text.contains("127.0.0.1"), "{text}");
}
