//! Refusals without a policy: no route, wrong method, too large, upstream down or too slow. Each is
//! a short problem document.

use std::time::Duration;

use crate::harness::client::{Client, Reply, get, raw, statuses};
use crate::harness::free_address;
use crate::harness::toml::{Toml, simple};
use crate::harness::upstream::Upstream;
use crate::harness::weir::Weir;

const LIMIT: &str = "name = \"day\", algorithm = \"fixed_window\", quota = 1000, period = \"1d\"";
/// How long a raw client waits for more before it stops reading.
const SILENCE: Duration = Duration::from_secs(20);

#[track_caller]
fn is_problem(reply: &Reply, status: u16) {
    assert_eq!(reply.status, status, "{reply:?}");
    assert_eq!(reply.header("content-type"), "application/problem+json", "{reply:?}");
    assert_ne!(reply.header("x-request-id"), "", "{reply:?}");
    let problem = reply.json();
    assert_eq!(problem["status"], status, "{problem}");
    assert!(problem["title"].as_str().is_some_and(|title| !title.is_empty()), "{problem}");
}

fn routed(upstream: &Upstream) -> Toml {
    Toml::new()
        .upstream("api", &upstream.url(), "")
        .policy("public", &[LIMIT])
        .route("name = \"items\"\npath = \"/items/{id}\"\nmethods = [\"GET\", \"PUT\"]\nupstream = \"api\"\npolicy = \"public\"\nbody_bytes = \"1KiB\"")
        .route("name = \"health\"\npath = \"/healthz\"\nrespond = { status = 200, body = \"ok\\n\" }")
        .route("name = \"host\"\nhost = \"other.example\"\npath = \"/*\"\nrespond = { status = 200, body = \"other\\n\" }")
}

#[tokio::test]
async fn no_route_is_404_and_a_wrong_method_405_with_allow() {
    let upstream = Upstream::start();
    let weir = Weir::start(&routed(&upstream).text());
    let mut client = Client::connect(weir.http).await.unwrap();
    for target in ["/", "/items", "/items/1/2", "/healthz/x"] {
        is_problem(&client.get(target, &[]).await.unwrap(), 404);
    }
    let wrong = client.send("DELETE", "/items/1", &[], "".into()).await.unwrap();
    is_problem(&wrong, 405);
    let mut allowed: Vec<String> =
        wrong.header("allow").split(',').map(|method| method.trim().to_owned()).collect();
    allowed.retain(|method| method != "HEAD" && method != "OPTIONS");
    allowed.sort();
    assert_eq!(allowed, ["GET", "PUT"]);
    assert_eq!(upstream.count(), 0);
    assert_eq!(client.get("/items/1", &[]).await.unwrap().status, 200);
}

#[tokio::test]
async fn the_most_specific_route_wins_whatever_the_order() {
    let upstream = Upstream::start();
    let mut config = Toml::new();
    // From the least to the most specific and back: the order in the file does not matter.
    let paths = ["/*", "/v1/*", "/v1/{kind}", "/v1/items", "/v1/{kind}/*", "/v1/items/{id}"];
    let (forwards, backwards): (Vec<_>, Vec<_>) =
        (paths.to_vec(), paths.iter().rev().copied().collect());
    for order in [forwards, backwards] {
        config.rest.clear();
        config = config.upstream("api", &upstream.url(), "");
        for path in order {
            config = config.route(&format!(
                "name = \"r{}\"\npath = \"{path}\"\nrespond = {{ status = 200, body = \"{path}\" }}",
                path.replace(['/', '*', '{', '}'], "-")
            ));
        }
        let weir = Weir::start(&config.text());
        for (target, expected) in [
            ("/", "/*"),
            ("/v2/x", "/*"),
            ("/v1", "/v1/*"),
            ("/v1/other", "/v1/{kind}"),
            ("/v1/items", "/v1/items"),
            ("/v1/items/7", "/v1/items/{id}"),
            ("/v1/other/7", "/v1/{kind}/*"),
            ("/v1/items/7/8", "/v1/{kind}/*"),
        ] {
            assert_eq!(get(weir.http, target, &[]).await.text(), expected, "{target}");
        }
    }
}

#[tokio::test]
async fn a_host_of_its_own_beats_any_path() {
    let upstream = Upstream::start();
    let weir = Weir::start(&routed(&upstream).text());
    assert_eq!(get(weir.http, "/healthz", &[]).await.text(), "ok\n");
    for host in ["other.example", "OTHER.example", "other.example:8080", "other.example."] {
        assert_eq!(get(weir.http, "/healthz", &[("host", host)]).await.text(), "other\n", "{host}");
    }
    assert_eq!(get(weir.http, "/healthz", &[("host", "x.other.example")]).await.text(), "ok\n");
}

#[tokio::test]
async fn a_body_above_the_routes_limit_is_413() {
    let upstream = Upstream::start();
    let weir = Weir::start(&routed(&upstream).text());
    let put = async |body: usize| {
        let mut client = Client::connect(weir.http).await.unwrap();
        client.send("PUT", "/items/1", &[], "x".repeat(body).into()).await.unwrap()
    };
    assert_eq!(put(1024).await.status, 200);
    assert_eq!(upstream.last().body.len(), 1024);
    is_problem(&put(1025).await, 413);
    assert_eq!(upstream.count(), 1, "a declared length is refused before anything is sent");

    // Without a declared length, the size is noticed while the body arrives.
    let piece = format!("400\r\n{}\r\n", "x".repeat(1024));
    let head = "PUT /items/1 HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n";
    let answer = raw(weir.http, format!("{head}{piece}{piece}0\r\n\r\n").as_bytes(), SILENCE);
    assert_eq!(statuses(&answer), [413], "{answer}");
    assert!(
        upstream.seen().iter().all(|seen| seen.body.len() <= 1024),
        "the upstream took a body above the limit as whole"
    );
}

#[test]
fn a_target_that_is_too_long_is_414_and_a_head_431() {
    let upstream = Upstream::start();
    let config = routed(&upstream).limit("uri_bytes = \"1KiB\"").limit("header_bytes = \"16KiB\"");
    let weir = Weir::start(&config.text());
    let send = |target: &str, value: &str| {
        statuses(&raw(
            weir.http,
            format!("GET {target} HTTP/1.1\r\nhost: a\r\nx: {value}\r\nconnection: close\r\n\r\n")
                .as_bytes(),
            SILENCE,
        ))
    };
    assert_eq!(send(&format!("/items/{}", "a".repeat(1000)), "y"), [200]);
    assert_eq!(send(&format!("/items/{}", "a".repeat(1100)), "y"), [414]);
    assert_eq!(send("/items/1", &"y".repeat(15_000)), [200]);
    assert_eq!(send("/items/1", &"y".repeat(40_000)), [431]);
    assert_eq!(upstream.count(), 2);
}

#[tokio::test]
async fn an_upstream_that_is_not_there_is_502() {
    let weir = Weir::start(&simple(&format!("http://{}", free_address()), &[LIMIT]).text());
    is_problem(&get(weir.http, "/", &[]).await, 502);
    assert_eq!(weir.metric("weir_upstream_errors_total{upstream=\"api\",cause=\"connect\"}"), 1);
    crate::harness::eventually_async("the log names the endpoint and the reason", async || {
        let told = weir.output().lines().iter().any(|line| {
            line.contains("can't connect") && line.contains("refused") && line.contains("http://")
        });
        told.then_some(()).ok_or_else(|| weir.output().lines().join("\n"))
    })
    .await;
    // The charge of a limit that is never refunded stands: the request was made.
    assert_eq!(get(weir.http, "/", &[]).await.remaining("day"), 998);
}

#[tokio::test]
async fn a_unit_declared_to_be_refunded_comes_back_when_the_upstream_got_nothing() {
    let weir = Weir::start(
        &simple(&format!("http://{}", free_address()), &[&format!("{LIMIT}, refund = \"unsent\"")])
            .text(),
    );
    for _ in 0..3 {
        let mut client = Client::connect(weir.http).await.unwrap();
        crate::harness::eventually_async("each finds the allowance as it was", async || {
            let reply = client.get("/", &[]).await.unwrap();
            assert_eq!(reply.status, 502);
            let told = reply.remaining("day");
            if told == 999 { Ok(()) } else { Err(told.to_string()) }
        })
        .await;
    }
}

#[tokio::test]
async fn an_upstream_that_is_too_slow_is_504() {
    let upstream = Upstream::start();
    let config = Toml::new()
        .upstream("api", &upstream.url(), "timeouts = { response_header = \"2s\" }")
        .policy("public", &[LIMIT])
        .route("path = \"/*\"\nupstream = \"api\"\npolicy = \"public\"");
    let weir = Weir::start(&config.text());
    upstream.hold();
    is_problem(&get(weir.http, "/", &[]).await, 504);
    upstream.release();
    assert_eq!(
        get(weir.http, "/", &[]).await.status,
        200,
        "the slow response does not affect other requests"
    );
}

#[test]
fn an_upstream_that_speaks_no_http_is_502() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let _ = std::io::Write::write_all(&mut stream, b"SSH-2.0-OpenSSH_9\r\n");
        }
    });
    let weir = Weir::start(&simple(&format!("http://{address}"), &[LIMIT]).text());
    let reply = crate::harness::client::get_blocking(weir.http, "/").unwrap();
    is_problem(&reply, 502);
}

#[test]
fn a_head_that_never_ends_and_a_connection_that_stands_idle_are_closed() {
    let upstream = Upstream::start();
    let config =
        routed(&upstream).timeout("request_header = \"200ms\"").timeout("keep_alive = \"200ms\"");
    let weir = Weir::start(&config.text());
    // `raw` returns when the other side closes, or after its silence. Then it would take the whole
    // silence.
    let begun = std::time::Instant::now();
    let answer = raw(weir.http, b"GET /healthz HTTP/1.1\r\nHost: a\r\nX-Slow: ", SILENCE);
    assert!(!statuses(&answer).contains(&200), "{answer}");
    let answer = raw(weir.http, b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n", SILENCE);
    assert_eq!(statuses(&answer), [200], "{answer}");
    assert!(begun.elapsed() < SILENCE, "both connections were closed by the proxy");
}

#[test]
fn a_body_that_stands_still_is_given_up() {
    let upstream = Upstream::start();
    let weir = Weir::start(&routed(&upstream).timeout("body_idle = \"200ms\"").text());
    let begun = std::time::Instant::now();
    let answer = raw(
        weir.http,
        b"PUT /items/1 HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nabc",
        SILENCE,
    );
    assert!(statuses(&answer).iter().all(|status| *status == 408), "{answer}");
    assert!(begun.elapsed() < SILENCE, "the proxy waited on");
    assert!(upstream.seen().is_empty(), "half a body arrived as a whole one");
}
