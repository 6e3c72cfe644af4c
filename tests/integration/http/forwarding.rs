//! Forwarding: bodies both ways, which client addresses are believed, hop-by-hop fields.

use bytes::Bytes;

use crate::harness::TIMEOUT;
use crate::harness::client::{Client, get, raw, statuses};
use crate::harness::tls::Http2;
use crate::harness::toml::simple;
use crate::harness::upstream::Upstream;
use crate::harness::weir::Weir;

const THREE: &str = "name = \"day\", algorithm = \"fixed_window\", quota = 3, period = \"1d\"";
const MANY: &str = "name = \"day\", algorithm = \"fixed_window\", quota = 1000, period = \"1d\"";

#[tokio::test]
async fn requests_and_replies_pass_whole() {
    let upstream = Upstream::start();
    let weir = Weir::start(&simple(&upstream.url(), &[MANY]).text());
    let mut client = Client::connect(weir.http).await.unwrap();
    for size in [0, 1, 10_000, 3_000_000] {
        let body: Bytes = (0..size).map(|index| (index % 251) as u8).collect();
        upstream.answer(
            201,
            &[("x-reply", "yes"), ("set-cookie", "a=1"), ("set-cookie", "b=2")],
            body.clone(),
        );
        let reply = client
            .send("POST", "/a/b?c=d&e=%20f", &[("x-ask", "yes")], body.clone())
            .await
            .unwrap();
        let seen = upstream.last();
        assert_eq!((seen.method.as_str(), seen.target.as_str()), ("POST", "/a/b?c=d&e=%20f"));
        assert_eq!(seen.header("x-ask").as_deref(), Some("yes"));
        assert_eq!(seen.header("host"), Some(weir.http.to_string()), "the client's own Host");
        assert!(seen.body == body, "a body of {size} bytes changed on its way up");
        assert_eq!((reply.status, reply.header("x-reply").as_str()), (201, "yes"));
        assert_eq!(reply.headers.get_all("set-cookie").iter().count(), 2);
        assert!(reply.body == body, "a body of {size} bytes changed on its way down");
    }
}

#[tokio::test]
async fn head_and_statuses_without_a_body_keep_the_connection_in_step() {
    let upstream = Upstream::start();
    let weir = Weir::start(&simple(&upstream.url(), &[MANY]).text());
    let mut client = Client::connect(weir.http).await.unwrap();
    for _ in 0..3 {
        let head = client.send("HEAD", "/", &[], Bytes::new()).await.unwrap();
        assert_eq!(
            (head.status, head.body.len(), head.header("content-length").as_str()),
            (200, 0, "14"),
            "{head:?}"
        );
        for status in [204, 304] {
            upstream.answer(status, &[], "");
            assert_eq!(client.get("/", &[]).await.unwrap().status, status);
        }
        upstream.answer(200, &[], "from upstream\n");
        assert_eq!(client.get("/", &[]).await.unwrap().text(), "from upstream\n");
    }
}

#[tokio::test]
async fn fields_of_one_hop_stay_there() {
    let upstream = Upstream::start();
    upstream.answer(
        200,
        &[
            ("connection", "x-theirs"),
            ("x-theirs", "1"),
            ("keep-alive", "timeout=1"),
            ("proxy-authenticate", "Basic"),
            ("x-kept", "1"),
        ],
        "x",
    );
    let weir = Weir::start(&simple(&upstream.url(), &[MANY]).text());
    let asked = [
        ("connection", "x-mine, keep-alive"),
        ("x-mine", "1"),
        ("keep-alive", "timeout=1"),
        ("proxy-authorization", "Basic eA=="),
        ("proxy-connection", "keep-alive"),
        ("te", "gzip"),
        ("upgrade", "h2c"),
        ("x-kept", "1"),
    ];
    let reply = get(weir.http, "/", &asked).await;
    let seen = upstream.only();
    for (name, _) in asked.iter().filter(|(name, _)| *name != "x-kept" && *name != "connection") {
        assert_eq!(seen.header(name), None, "{name}: {seen:?}");
    }
    assert_eq!(seen.header("x-kept").as_deref(), Some("1"));
    assert_eq!(reply.header("x-kept"), "1");
    for name in ["x-theirs", "keep-alive", "proxy-authenticate"] {
        assert_eq!(reply.header(name), "", "{name}: {reply:?}");
    }
}

#[tokio::test]
async fn connection_cannot_strip_what_the_proxy_itself_says() {
    let upstream = Upstream::start();
    let weir = Weir::start(&simple(&upstream.url(), &[MANY]).text());
    let spoof = [
        ("connection", "close, x-forwarded-for, forwarded, x-request-id, host"),
        ("x-forwarded-for", "203.0.113.9"),
    ];
    assert_eq!(get(weir.http, "/", &spoof).await.status, 200);
    let seen = upstream.only();
    assert_eq!(seen.header("x-forwarded-for").as_deref(), Some("127.0.0.1"), "{seen:?}");
    assert!(seen.header("x-request-id").is_some() && seen.header("host").is_some(), "{seen:?}");
}

#[tokio::test]
async fn a_name_with_an_underscore_does_not_pass_for_the_one_with_a_hyphen() {
    let upstream = Upstream::start();
    let names = ["x_forwarded_for", "x_plan", "x-forwarded_host"];
    let forged = names.map(|name| (name, "forged"));
    for trusted in ["trusted_proxies = []", "trusted_proxies = [\"127.0.0.1\"]"] {
        let weir = Weir::start(&simple(&upstream.url(), &[MANY]).server(trusted).text());
        let mut over_http2 = Http2::plain(weir.http).await.unwrap();
        for http2 in [false, true] {
            let reply = if http2 {
                over_http2.get("/", &forged).await.unwrap()
            } else {
                get(weir.http, "/", &forged).await
            };
            assert_eq!(reply.status, 200, "{reply:?}");
            let seen = upstream.last();
            assert!(
                names.iter().all(|name| seen.header(name).is_none()),
                "{trusted} {http2}: {seen:?}"
            );
        }
        let request = "POST / HTTP/1.1\r\nHost: a\r\nX_Plan: gold\r\nx-plan: free\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\
                       Trailer: x_plan\r\n\r\n2\r\nhi\r\n0\r\nx_plan: gold\r\n\r\n";
        assert_eq!(statuses(&raw(weir.http, request.as_bytes(), TIMEOUT)), [200]);
        assert_eq!(
            (upstream.last().header("x_plan"), upstream.last().header("x-plan").as_deref()),
            (None, Some("free"))
        );
    }
    let kept = simple(&upstream.url(), &[MANY]).server("underscores_in_headers = true");
    let weir = Weir::start(&kept.text());
    let reply = get(weir.http, "/", &forged).await;
    assert_eq!(reply.status, 200, "{reply:?}");
    let seen = upstream.last();
    assert_eq!(
        (seen.header("x_plan").as_deref(), seen.header("x_forwarded_for")),
        (Some("forged"), None),
        "{seen:?}"
    );
}

#[tokio::test]
async fn an_untrusted_client_cannot_choose_its_address() {
    let upstream = Upstream::start();
    let weir = Weir::start(&simple(&upstream.url(), &[THREE]).text());
    let mut told = Vec::new();
    for turn in 0..5 {
        let spoof = format!("203.0.113.{turn}");
        told.push(
            get(
                weir.http,
                "/",
                &[
                    ("x-forwarded-for", &spoof),
                    ("forwarded", "for=203.0.113.1"),
                    ("x-real-ip", &spoof),
                ],
            )
            .await
            .status,
        );
    }
    assert_eq!(told, [200, 200, 200, 429, 429]);
    for seen in upstream.seen() {
        assert_eq!(seen.header("x-forwarded-for").as_deref(), Some("127.0.0.1"), "{seen:?}");
        assert!(!seen.header("forwarded").unwrap().contains("203.0.113"), "{seen:?}");
        assert_eq!(seen.header("x-forwarded-proto").as_deref(), Some("http"));
        assert_eq!(seen.header("x-forwarded-host"), Some(weir.http.to_string()));
    }
}

#[tokio::test]
async fn a_trusted_proxy_is_believed_from_the_right() {
    let upstream = Upstream::start();
    let config = simple(&upstream.url(), &[THREE])
        .server("trusted_proxies = [\"127.0.0.0/8\", \"10.0.0.0/8\"]");
    let weir = Weir::start(&config.text());
    // The same client, whatever is made up to the left of it, and whichever of our proxies it came
    // through.
    let chains = [
        "198.51.100.7",
        "1.2.3.4, 198.51.100.7",
        "1.2.3.4, 5.6.7.8, 198.51.100.7, 10.1.1.1",
        "9.9.9.9, 198.51.100.7, 10.2.2.2",
    ];
    for (turn, chain) in chains.iter().enumerate() {
        let reply = get(weir.http, "/", &[("x-forwarded-for", chain)]).await;
        assert_eq!(reply.status, if turn < 3 { 200 } else { 429 }, "{chain}");
    }
    assert_eq!(
        upstream.last().header("x-forwarded-for").as_deref(),
        Some("1.2.3.4, 5.6.7.8, 198.51.100.7, 10.1.1.1, 127.0.0.1")
    );
    // Another client, and two addresses of one IPv6 network.
    assert_eq!(
        get(weir.http, "/", &[("x-forwarded-for", "198.51.100.8")]).await.remaining("day"),
        2
    );
    assert_eq!(
        get(weir.http, "/", &[("x-forwarded-for", "2001:db8:1:2::1")]).await.remaining("day"),
        2
    );
    assert_eq!(
        get(weir.http, "/", &[("x-forwarded-for", "2001:db8:1:2:ffff::9")]).await.remaining("day"),
        1
    );
}

#[tokio::test]
async fn the_path_that_is_matched_is_the_path_that_is_forwarded() {
    let upstream = Upstream::start();
    let weir = Weir::start(&simple(&upstream.url(), &[MANY]).text());
    for (asked, forwarded) in [
        ("/a/../b", "/b"),
        ("/a/./b", "/a/b"),
        ("//a//b", "/a/b"),
        ("/%61%c3%a9?x=%2f%61", "/a%C3%A9?x=%2f%61"),
        ("/a/%2e%2e/b", "/b"),
        ("/a%2fb", "/a%2Fb"),
    ] {
        assert_eq!(get(weir.http, asked, &[]).await.status, 200, "{asked}");
        assert_eq!(upstream.last().target, forwarded, "{asked}");
    }
    let before = upstream.count();
    for refused in ["/..", "/../x", "/a%00", "/a%5cb", "/%zz", "/a%2"] {
        assert_eq!(get(weir.http, refused, &[]).await.status, 400, "{refused}");
    }
    assert_eq!(upstream.count(), before);
}

#[tokio::test]
async fn each_response_has_a_request_id_that_the_upstream_saw_too() {
    let upstream = Upstream::start();
    let weir = Weir::start(&simple(&upstream.url(), &[THREE]).text());
    let mut ids = std::collections::BTreeSet::new();
    for turn in 0..5 {
        let reply = get(weir.http, "/", &[]).await;
        let id = reply.header("x-request-id");
        assert!(id.len() >= 16, "{reply:?}");
        if turn < 3 {
            assert_eq!(upstream.last().header("x-request-id").as_deref(), Some(id.as_str()));
        }
        assert!(ids.insert(id), "an id came twice");
    }
}

#[tokio::test]
async fn upstream_connections_are_kept_and_clients_share_them() {
    let upstream = Upstream::start();
    let weir = Weir::start(&simple(&upstream.url(), &[MANY]).server("workers = 1").text());
    for _ in 0..50 {
        assert_eq!(get(weir.http, "/", &[]).await.status, 200);
    }
    assert!(
        upstream.connections() <= 3,
        "{} upstream connections for 50 requests one after another",
        upstream.connections()
    );
}
