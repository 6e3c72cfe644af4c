//! Clients that transfer a body as slowly as possible to occupy shared resources: they are given
//! up, and one address can't take everything.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::harness::client::connect_from;
use crate::harness::flood::{Flood, Speaks};
use crate::harness::toml::Toml;
use crate::harness::upstream::Upstream;
use crate::harness::weir::Weir;
use crate::harness::{TIMEOUT, eventually_async};

/// The time between two bytes of a slow client.
const DRIP: Duration = Duration::from_millis(20);
const LARGE: u64 = 256 << 20;

fn config(url: &str, upstream: &str, route: &str) -> Toml {
    Toml::new()
        .server("workers = 1")
        .timeout("body_idle = \"5m\"\nsend_idle = \"5m\"\nrate_grace = \"300ms\"")
        .upstream("api", url, upstream)
        .route(&format!("name = \"api\"\npath = \"/*\"\nupstream = \"api\"\n{route}"))
}

/// No minimum rates.
const NO_RATE: &str = "body_rate = \"0B\"\nsend_rate = \"0B\"";

/// Sends a body byte by byte for as long as possible, and returns the response.
async fn drip(address: SocketAddr) -> String {
    let stream = connect_from(1, address).await;
    let (mut reading, mut writing) = stream.into_split();
    writing
        .write_all(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n")
        .await
        .unwrap();
    let dripping = tokio::spawn(async move {
        while writing.write_all(b"x").await.is_ok() {
            tokio::time::sleep(DRIP).await;
        }
    });
    let mut reply = Vec::new();
    let _ = tokio::time::timeout(TIMEOUT, reading.read_to_end(&mut reply))
        .await
        .expect("never given up");
    dripping.abort();
    String::from_utf8_lossy(&reply).into_owned()
}

#[tokio::test]
async fn a_body_that_drips_is_408() {
    let upstream = Upstream::start();
    let weir = Weir::start(&config(&upstream.url(), "", "").limit("body_rate = \"10KiB\"").text());
    let reply = drip(weir.http).await;
    assert!(reply.starts_with("HTTP/1.1 408 ") && reply.contains("too slowly"), "{reply}");

    // Even where it calls itself gRPC, which its upstream does not speak: over HTTP/1.
    for media in ["text/plain", "application/grpc"] {
        let stream = TcpStream::connect(weir.http).await.unwrap();
        let (client, connection) = h2::client::handshake(stream).await.unwrap();
        tokio::spawn(connection);
        let mut client = client.ready().await.unwrap();
        let request = http::Request::post("http://api.example/").header("content-type", media);
        let (reply, mut body) = client.send_request(request.body(()).unwrap(), false).unwrap();
        let dripping = tokio::spawn(async move {
            while body.send_data(Bytes::from_static(b"x"), false).is_ok() {
                tokio::time::sleep(DRIP).await;
            }
        });
        let reply = tokio::time::timeout(TIMEOUT, reply).await.expect("never given up").unwrap();
        // A refusal of a gRPC call is a head with its status (DEADLINE_EXCEEDED or the like).
        let is_refused = reply.status() == 408 || reply.headers().contains_key("grpc-status");
        assert!(is_refused, "{media}: {reply:?}");
        dripping.abort();
    }
    assert_eq!(weir.metric("weir_upstream_ejections_total"), 0);
}

#[tokio::test]
async fn a_body_that_keeps_the_rate_passes() {
    let upstream = Upstream::start();
    let weir = Weir::start(&config(&upstream.url(), "", "").limit("body_rate = \"10B\"").text());
    let mut stream = connect_from(1, weir.http).await;
    stream
        .write_all(b"POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 50\r\n\r\n")
        .await
        .unwrap();
    for _ in 0..50 {
        stream.write_all(b"x").await.unwrap();
        tokio::time::sleep(DRIP).await;
    }
    let mut reply = String::new();
    stream.read_to_string(&mut reply).await.unwrap();
    assert!(reply.starts_with("HTTP/1.1 200 "), "{reply}");
}

/// Reads byte by byte until `series` is shown.
async fn sip(mut stream: TcpStream, weir: &Weir, series: &str) {
    stream.write_all(format!("GET /{LARGE} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes()).await.unwrap();
    eventually_async(series, async || {
        let _ = tokio::time::timeout(DRIP, stream.read_u8()).await;
        if weir.metric(series) == 1 { Ok(()) } else { Err("not yet".into()) }
    })
    .await;
}

#[tokio::test]
async fn a_reply_that_is_taken_too_slowly_is_cut() {
    let flood = Flood::start(Speaks::Http1);
    let weir = Weir::start(&config(&flood.url(), "", "").limit("send_rate = \"1GiB\"").text());
    sip(
        connect_from(1, weir.http).await,
        &weir,
        "weir_connection_errors_total{cause=\"send_slow\"}",
    )
    .await;
    assert!(flood.sent() < LARGE);
}

#[tokio::test]
async fn a_whole_request_has_its_time() {
    let (upstream, flood) = (Upstream::start(), Flood::start(Speaks::Http1));
    let timeout = "timeouts = { request = \"500ms\" }";
    let weir = Weir::start(&config(&upstream.url(), "", timeout).limit(NO_RATE).text());
    let reply = drip(weir.http).await;
    assert!(reply.starts_with("HTTP/1.1 408 "), "{reply}");
    upstream.hold();
    let mut stream = connect_from(1, weir.http).await;
    stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await.unwrap();
    let mut reply = String::new();
    tokio::time::timeout(TIMEOUT, stream.read_to_string(&mut reply))
        .await
        .expect("never given up")
        .unwrap();
    assert!(reply.starts_with("HTTP/1.1 504 "), "{reply}");

    // A response that has begun is cut off.
    let weir = Weir::start(&config(&flood.url(), "", timeout).limit(NO_RATE).text());
    sip(
        connect_from(1, weir.http).await,
        &weir,
        "weir_connection_errors_total{cause=\"request_timeout\"}",
    )
    .await;
    let stream = TcpStream::connect(weir.http).await.unwrap();
    let (client, connection) = h2::client::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    let mut client = client.ready().await.unwrap();
    let request = http::Request::get(format!("http://api.example/{LARGE}")).body(()).unwrap();
    let mut body = client.send_request(request, true).unwrap().0.await.unwrap().into_body();
    // Nothing is given back to the flow-control window, so the stream stalls.
    let cut = async { while let Some(Ok(_)) = body.data().await {} };
    tokio::time::timeout(TIMEOUT, cut).await.expect("never given up");
}

#[tokio::test]
async fn one_address_does_not_take_all_places_of_an_upstream() {
    let upstream = Upstream::start();
    let weir =
        Weir::start(&config(&upstream.url(), "requests_per_worker = 20", "").limit(NO_RATE).text());
    let mut slow = Vec::new();
    for _ in 0..30 {
        let mut stream = connect_from(1, weir.http).await;
        stream
            .write_all(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nx")
            .await
            .unwrap();
        slow.push(stream);
    }
    // Half of the permits, an eighth, and no more.
    eventually_async("the others are refused", async || {
        let refused = weir.metric("weir_upstream_errors_total{upstream=\"api\",cause=\"share\"}");
        if refused == 30 - 12 { Ok(()) } else { Err(refused.to_string()) }
    })
    .await;
    for _ in 0..43 {
        let mut stream = connect_from(2, weir.http).await;
        stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await.unwrap();
        let mut reply = String::new();
        tokio::time::timeout(TIMEOUT, stream.read_to_string(&mut reply))
            .await
            .expect("in time")
            .unwrap();
        assert!(reply.starts_with("HTTP/1.1 200 "), "{reply}");
    }
    assert_eq!(weir.metric("weir_upstream_errors_total{upstream=\"api\",cause=\"overload\"}"), 0);
}
