//! HTTP/2 from clients, to an upstream that speaks HTTP/1.1.

use bytes::Bytes;
use rustix::process::Signal;

use crate::harness::client::Tally;
use crate::harness::pki::Pki;
use crate::harness::tls::{HOST, Http2};
use crate::harness::toml::simple;
use crate::harness::upstream::Upstream;
use crate::harness::weir::Weir;
use crate::harness::{TIMEOUT, eventually_async};

fn day(quota: u32) -> String {
    format!("name = \"day\", algorithm = \"fixed_window\", quota = {quota}, period = \"1d\"")
}

#[tokio::test]
async fn requests_on_one_connection_are_counted_one_by_one() {
    const QUOTA: u32 = 20;
    let upstream = Upstream::start();
    let weir = Weir::start(&simple(&upstream.url(), &[&day(QUOTA)]).text());
    let client = Http2::plain(weir.http).await.unwrap();
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..90 {
        let mut client = client.clone();
        tasks.spawn(async move { client.get(&format!("/{number}"), &[]).await });
    }
    let mut tally = Tally::default();
    while let Some(reply) = tasks.join_next().await {
        tally.add(&reply.unwrap());
    }
    tally.only(&[200, 429]);
    assert_eq!((tally.count(200), upstream.count()), (u64::from(QUOTA), u64::from(QUOTA)));
}

#[tokio::test]
async fn bodies_pass_and_a_refused_upload_does_not_end_the_connection() {
    let upstream = Upstream::start();
    let weir = Weir::start(
        &simple(&upstream.url(), &[&day(2)]).route("path = \"/free\"\nupstream = \"api\"").text(),
    );
    let mut client = Http2::plain(weir.http).await.unwrap();
    let large = Bytes::from(vec![b'z'; 3 << 20]);
    for expected in [200, 200, 429] {
        assert_eq!(client.send("POST", "/up", &[], large.clone()).await.unwrap().status, expected);
    }
    assert_eq!(upstream.last().body.len(), large.len());
    let head = client.send("HEAD", "/free", &[], Bytes::new()).await.unwrap();
    assert_eq!((head.status, head.body.len()), (200, 0), "{head:?}");
    // Pages of Weir's own, too.
    let mut admin = Http2::plain(weir.admin.unwrap()).await.unwrap();
    let head = admin.send("HEAD", "/live", &[], Bytes::new()).await.unwrap();
    let page = admin.send("GET", "/live", &[], Bytes::new()).await.unwrap();
    assert_eq!((head.status, head.body.len()), (page.status, 0), "{head:?}");
    assert!(!page.body.is_empty(), "{page:?}");
    assert_eq!(head.header("content-length"), page.body.len().to_string());
}

#[tokio::test]
async fn an_upload_that_stands_still_ends_alone() {
    let upstream = Upstream::start();
    let weir = Weir::start(
        &simple(&upstream.url(), &[&day(1_000_000)]).timeout("body_idle = \"600ms\"").text(),
    );
    let mut client = Http2::plain(weir.http).await.unwrap();
    let mut other = client.clone();
    let stalled = tokio::spawn(async move { client.send_stalled("/up").await });
    let mut turns = 0;
    while !stalled.is_finished() {
        assert_eq!(other.get("/", &[]).await.unwrap().status, 200);
        turns += 1;
    }
    assert!(turns > 1, "{turns}");
    assert_eq!(stalled.await.unwrap().unwrap().status, 408);
    assert_eq!(other.get("/", &[]).await.unwrap().status, 200);
}

#[tokio::test]
async fn a_reply_that_comes_before_the_requests_end_is_followed_by_no_reset_while_the_client_sends_on()
 {
    let upstream = Upstream::start();
    let weir = Weir::start(&simple(&upstream.url(), &[&day(1)]).text());
    let stream = tokio::net::TcpStream::connect(weir.http).await.unwrap();
    let (client, connection) = h2::client::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    let mut client = client.ready().await.unwrap();
    // The first gets its response when its declared length has arrived, the second is refused at
    // its head.
    for (length, expected) in [(10, 200), (60_000, 429)] {
        let request = http::Request::post("http://api.example/up")
            .header("content-length", length)
            .body(())
            .unwrap();
        let (reply, mut body) = client.send_request(request, false).unwrap();
        if expected == 200 {
            body.send_data(Bytes::from(vec![b'x'; length]), false).unwrap();
        }
        let mut reply = tokio::time::timeout(TIMEOUT, reply).await.expect("in time").unwrap();
        assert_eq!(reply.status(), expected);
        while let Some(piece) = reply.body_mut().data().await {
            piece.unwrap();
        }
        // A stream's frames come in order, and a later stream's come after them. So a reset would
        // have been seen by now.
        let mut client = client.clone().ready().await.unwrap();
        let (later, _) = client
            .send_request(http::Request::get("http://api.example/later").body(()).unwrap(), true)
            .unwrap();
        assert_eq!(later.await.unwrap().status(), 429);
        let reset = reset_of(&mut body).await;
        assert!(reset.is_none(), "{expected}: {reset:?}");
        let rest = if expected == 200 { Bytes::new() } else { Bytes::from(vec![b'x'; length]) };
        body.send_data(rest, true).unwrap();
    }
}

/// Why the stream was reset, if it is known to be.
async fn reset_of(body: &mut h2::SendStream<Bytes>) -> Option<h2::Reason> {
    std::future::poll_fn(|cx| match body.poll_reset(cx) {
        std::task::Poll::Ready(reason) => std::task::Poll::Ready(reason.ok()),
        std::task::Poll::Pending => std::task::Poll::Ready(None),
    })
    .await
}

#[tokio::test]
async fn a_drain_finishes_the_streams_that_are_open_and_the_process_ends() {
    let (pki, upstream) = (Pki::new(), Upstream::start());
    upstream.answer(200, &[], "x".repeat(300_000));
    let ping = "path = \"/ping\"\nrespond = { status = 204 }";
    let config = simple(&upstream.url(), &[&day(1000)]).secured(&["api"]).route(ping).text();
    let mut weir = Weir::build(&config).identity("api", &pki.server(&[HOST])).start();
    let mut client = Http2::secured(weir.http, &pki.ca).await.unwrap();
    assert_eq!(client.get("/", &[]).await.unwrap().status, 200);
    upstream.hold();
    let mut under_way = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let mut client = client.clone();
        under_way.spawn(async move { client.get("/", &[]).await });
    }
    eventually_async("all eight wait at the upstream", async || {
        let count = upstream.count();
        if count == 9 { Ok(()) } else { Err(count.to_string()) }
    })
    .await;
    weir.signal(Signal::TERM);
    eventually_async("no new stream is taken", async || match client.get("/ping", &[]).await {
        Ok(reply) => Err(reply.status.to_string()),
        Err(_) => Ok(()),
    })
    .await;
    assert!(weir.running(), "streams are open");
    upstream.release();
    while let Some(reply) = under_way.join_next().await {
        let reply =
            reply.unwrap().unwrap_or_else(|error| panic!("a stream under way was cut: {error}"));
        assert_eq!((reply.status, reply.body.len()), (200, 300_000));
    }
    drop(client);
    let status = weir.exit();
    assert_eq!(status.code(), Some(0), "{status:?}");
}
