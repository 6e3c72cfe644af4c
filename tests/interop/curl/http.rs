//! The versions of HTTP that curl speaks, and what it waits for.

use std::time::Duration;

use crate::harness::client::raw;
use crate::harness::curl::curl;
use crate::harness::eventually;
use crate::harness::test_proxy::TestProxy;
use crate::harness::tls::HOST;
use crate::harness::toml::simple;
use crate::harness::upstream::Upstream;
use crate::harness::weir::Weir;

const SILENCE: Duration = Duration::from_millis(700);

fn day(quota: u32) -> String {
    format!("name = \"day\", algorithm = \"fixed_window\", quota = {quota}, period = \"1d\"")
}

#[tokio::test]
async fn an_upload_that_waits_for_100_gets_it_when_admitted_and_only_then() {
    let upstream = Upstream::start();
    let weir = Weir::start(&simple(&upstream.url(), &[&day(1)]).text());
    let ask = b"POST /up HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\nexpect: 100-continue\r\nconnection: close\r\n\r\n";
    let body = vec![b'z'; 2 << 20];
    let path = weir.folder().join("body");
    std::fs::write(&path, body).unwrap();
    let data = format!("@{}", path.display());
    let admitted = curl(
        weir.http,
        "http://api.example/up",
        &["-H", "Expect: 100-continue", "--data-binary", &data],
    )
    .await;
    assert_eq!((admitted.exit, admitted.status), (0, 200), "{admitted:?}");
    assert!(admitted.text.starts_with("HTTP/1.1 100 Continue"), "{admitted:?}");
    assert_eq!(upstream.last().body.len(), 2 << 20);
    // Refused: the client is told at once, and is never asked for its body.
    let refused = raw(weir.http, ask, SILENCE);
    assert!(refused.starts_with("HTTP/1.1 429 ") && !refused.contains("100 Continue"), "{refused}");
    assert_eq!(upstream.count(), 1);
}

#[tokio::test]
async fn curl_is_served_by_prior_knowledge_and_told_of_its_limits() {
    let upstream = Upstream::start();
    let weir = Weir::start(&simple(&upstream.url(), &[&day(2)]).text());
    for expected in [200, 200, 429] {
        let reply = curl(
            weir.http,
            "http://api.example/x",
            &["--http2-prior-knowledge", "-H", "X-Tea: earl grey"],
        )
        .await;
        assert_eq!(
            (reply.exit, reply.status, reply.version.as_str()),
            (0, expected, "2"),
            "{reply:?}"
        );
        assert!(
            reply.text.contains("ratelimit: \"day\";r=") && reply.text.contains("x-request-id: "),
            "{reply:?}"
        );
    }
    let seen = upstream.last();
    assert_eq!(seen.header("x-tea").as_deref(), Some("earl grey"));
    assert!(seen.header("host").is_some_and(|host| host.starts_with(HOST)), "{seen:?}");
    // HTTP/2 is not spoken after an HTTP/1.1 upgrade, which RFC 9113 has withdrawn: the request is
    // served as HTTP/1.1.
    let upgrade = curl(weir.http, "http://api.example/x", &["--http2"]).await;
    assert_eq!((upgrade.status, upgrade.version.as_str()), (429, "1.1"), "{upgrade:?}");
}

#[test]
fn the_connection_of_a_client_is_named() {
    let upstream = Upstream::start();
    let toml = simple(&upstream.url(), &[&day(2)]);
    let fields = ["path", "host", "protocol", "tls_version"];
    let chosen = format!("access = \"all\"\naccess_fields = {fields:?}");
    let proxy = TestProxy::start_text(&toml, |text| text.replace("access = \"off\"", &chosen));
    let protocols = ["HTTP/1.1", "HTTP/2", "HTTP/1.1", "HTTP/2"];
    for (index, (way, protocol)) in proxy.ways().iter().zip(protocols).enumerate() {
        let path = format!("/{index}");
        way.curl(&path, &[]);
        let line = eventually(&path, || {
            let mut events = proxy.weir.output().events().into_iter();
            events.find(|event| event["path"] == path).ok_or_else(|| "not yet".to_owned())
        });
        assert_eq!(line["protocol"], protocol, "{}", way.name);
        let tls = if index < 2 { serde_json::Value::Null } else { "TLSv1.3".into() };
        assert_eq!(line["tls_version"], tls, "{}", way.name);
        assert!(way.url.ends_with(line["host"].as_str().unwrap()), "{}: {line}", way.name);
    }
}
