//! Which connection a request uses: reuse, replacement, endpoints.

use super::super::{http1, pool};
use super::hosts::build;
use super::*;
use crate::clock;
use crate::wire::Network;

#[tokio::test]
async fn one_connection_serves_requests_that_follow_each_other() {
    let scripted = ScriptedUpstream::answering(OK).await;
    let upstream = upstream(&scripted);
    for _ in 0..50 {
        assert_eq!(text(upstream.send(get()).await.unwrap()).await, "ok");
    }
    assert_eq!(scripted.accepted(), 1);
}

#[tokio::test]
async fn every_kind_of_whole_reply_gives_its_connection_back() {
    for reply in [
        "HTTP/1.1 204 No Content\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok",
        "HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ncontent-length: 2\r\n\r\nok",
    ] {
        let scripted = ScriptedUpstream::answering(reply).await;
        let upstream = upstream(&scripted);
        for _ in 0..3 {
            let answer = in_time(upstream.send(get())).await.unwrap();
            assert!(answer.status.is_success());
            text(answer).await;
        }
        assert_eq!(scripted.accepted(), 1, "{reply}");
    }
}

#[tokio::test]
async fn a_reply_in_pieces_gives_its_connection_back_at_its_end_and_not_before() {
    for (head, pieces) in [
        ("HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n", ["ab", "cd"]),
        (
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
            ["2\r\nab\r\n", "2\r\ncd\r\n0\r\n\r\n"],
        ),
    ] {
        let scripted = ScriptedUpstream::new(move |mut stream, _| async move {
            while stream.head().await.is_some() {
                stream.send(head).await;
                for piece in pieces {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                    stream.send(piece).await;
                }
            }
        })
        .await;
        let upstream = upstream(&scripted);
        let under_way = upstream.send(get()).await.unwrap();
        // Its connection is in use, so this request needs another.
        assert_eq!(text(upstream.send(get()).await.unwrap()).await, "abcd");
        assert_eq!(scripted.accepted(), 2, "{head}");
        assert_eq!(text(under_way).await, "abcd");
        let (one, other) = tokio::join!(upstream.send(get()), upstream.send(get()));
        assert_eq!(
            (text(one.unwrap()).await, text(other.unwrap()).await),
            ("abcd".to_owned(), "abcd".to_owned())
        );
        assert_eq!(scripted.accepted(), 2, "{head}");
    }
}

#[tokio::test]
async fn a_reply_that_is_dropped_early_closes_its_connection() {
    let (closed, mut was_closed) = tokio::sync::mpsc::unbounded_channel();
    let scripted = ScriptedUpstream::new(move |mut stream, number| {
        let closed = closed.clone();
        async move {
            stream.head().await;
            stream.send("HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\nbegun").await;
            stream.closed().await;
            closed.send(number).unwrap();
        }
    })
    .await;
    let upstream = upstream(&scripted);
    drop(upstream.send(get()).await.unwrap());
    assert_eq!(in_time(was_closed.recv()).await, Some(0));
}

#[tokio::test]
async fn a_request_that_nobody_waits_for_any_more_closes_its_connection() {
    let (begun, mut has_begun) = tokio::sync::mpsc::unbounded_channel();
    let (closed, mut was_closed) = tokio::sync::mpsc::unbounded_channel();
    let scripted = ScriptedUpstream::new(move |mut stream, _| {
        let (begun, closed) = (begun.clone(), closed.clone());
        async move {
            stream.head().await;
            begun.send(()).unwrap();
            stream.closed().await;
            closed.send(()).unwrap();
        }
    })
    .await;
    let upstream = upstream(&scripted);
    tokio::select! {
        reply = upstream.send(get()) => panic!("{reply:?}"),
        begun = has_begun.recv() => begun.unwrap(),
    }
    in_time(was_closed.recv()).await.unwrap();
}

#[tokio::test]
async fn a_connection_that_the_upstream_says_it_closes_is_not_reused() {
    let scripted = ScriptedUpstream::answering(
        "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok",
    )
    .await;
    let upstream = upstream(&scripted);
    for requests in 1..=3 {
        assert_eq!(text(upstream.send(get()).await.unwrap()).await, "ok");
        assert_eq!(scripted.accepted(), requests);
    }
}

/// An upstream on a thread of its own, so that it can close while this thread's runtime does not
/// run. It answers one request per connection and closes when told to.
fn closing_on_demand() -> (SocketAddr, std::sync::mpsc::Sender<()>, std::sync::mpsc::Receiver<()>) {
    use std::io::{Read, Write};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (close, told) = std::sync::mpsc::channel();
    let (closed, was_closed) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut head = Vec::new();
            let mut byte = [0];
            while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|read| read > 0)
            {
                head.extend(byte);
            }
            stream.write_all(OK.as_bytes()).unwrap();
            if told.recv().is_err() {
                return;
            }
            drop(stream);
            closed.send(()).unwrap();
        }
    });
    (address, close, was_closed)
}

#[tokio::test]
async fn an_idle_connection_that_was_closed_a_moment_ago_costs_no_request() {
    let (address, close, was_closed) = closing_on_demand();
    let upstream = Upstream::build(&settings(&[address]), &Metrics::new(1)).unwrap();
    for _ in 0..5 {
        assert_eq!(text(upstream.send(get()).await.unwrap()).await, "ok");
        std::thread::sleep(http1::IDLE_TRUSTED);
        // The kernel knows of the close, but this thread's runtime does not: there is no await from
        // here to the request.
        close.send(()).unwrap();
        was_closed.recv().unwrap();
    }
}

#[tokio::test]
async fn a_request_with_a_body_goes_whole_to_another_connection_when_the_kept_one_was_closed() {
    let close = Arc::new(tokio::sync::Notify::new());
    let told = Arc::clone(&close);
    let scripted = ScriptedUpstream::new(move |mut stream, number| {
        let told = Arc::clone(&told);
        async move {
            let head = stream.head().await.unwrap();
            if number == 0 {
                stream.send(OK).await;
                told.notified().await;
                return;
            }
            assert!(
                head.starts_with("POST / ") && head.contains("content-length: 7\r\n"),
                "{head}"
            );
            let payload = stream.read_to("payload").await.unwrap();
            stream.send(&format!("HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\n{payload}")).await;
        }
    })
    .await;
    let upstream = upstream(&scripted);
    assert_eq!(text(upstream.send(get()).await.unwrap()).await, "ok");
    close.notify_one();
    // The other side has closed once this thread's runtime has seen the close.
    let host = Arc::clone(&upstream.0.hosts.current()[0]);
    let mut other = http1::Http1Connection::connect(&upstream.0, &host, None, || {})
        .await
        .unwrap_or_else(|cause| panic!("{cause:?}"));
    assert!(other.is_quiet());
    tokio::time::sleep(http1::IDLE_TRUSTED).await;
    let reply =
        in_time(upstream.send(post(Body::full(Bytes::from_static(b"payload"))))).await.unwrap();
    assert_eq!(text(reply).await, "payload");
}

#[tokio::test]
async fn an_upstream_that_closes_whatever_it_accepts_is_not_tried_for_ever() {
    let scripted = ScriptedUpstream::new(|stream, _| async move { drop(stream) }).await;
    let upstream = upstream(&scripted);
    let error = in_time(upstream.send(get())).await.unwrap_err();
    assert_eq!(error.cause, Cause::Cut);
    assert_eq!(scripted.accepted(), 1);
}

#[tokio::test]
async fn a_worker_keeps_no_more_idle_connections_than_it_may() {
    let scripted =
        ScriptedUpstream::answering("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
    let upstream = Upstream::build(
        &Settings { pool_idle_per_worker: 2, ..settings(&[scripted.address]) },
        &Metrics::new(1),
    )
    .unwrap();
    for round in 0..2 {
        let replies = tokio::join!(
            upstream.send(get()),
            upstream.send(get()),
            upstream.send(get()),
            upstream.send(get())
        );
        for reply in [replies.0, replies.1, replies.2, replies.3] {
            assert_eq!(text(reply.unwrap()).await, "ok");
        }
        // Four the first time, of which two stayed, so two more the second time.
        assert_eq!(scripted.accepted(), 4 + round * 2);
    }
}

#[tokio::test]
async fn an_idle_connection_grows_old_and_is_closed_without_a_request() {
    let (closed, mut was_closed) = tokio::sync::mpsc::unbounded_channel();
    let scripted = ScriptedUpstream::new(move |mut stream, _| {
        let closed = closed.clone();
        async move {
            while stream.head().await.is_some() {
                stream.send(OK).await;
            }
            closed.send(clock::monotonic()).unwrap();
        }
    })
    .await;
    let idle = Duration::from_millis(100);
    let upstream =
        Upstream::build(&Settings { idle, ..settings(&[scripted.address]) }, &Metrics::new(1))
            .unwrap();
    let began = clock::monotonic();
    assert_eq!(text(upstream.send(get()).await.unwrap()).await, "ok");
    assert!(in_time(was_closed.recv()).await.unwrap() - began >= idle);

    // An upstream that was dropped keeps none, however young.
    let upstream = super::upstream(&scripted);
    assert_eq!(text(upstream.send(get()).await.unwrap()).await, "ok");
    let began = clock::monotonic();
    drop(upstream);
    assert!(in_time(was_closed.recv()).await.unwrap() - began < pool::SWEEP * 3);
}

#[tokio::test]
async fn a_worker_with_too_many_requests_sends_no_more() {
    let metrics = Metrics::new(1);
    let scripted = ScriptedUpstream::answering(OK).await;
    let upstream = Upstream::build(
        &Settings { requests_per_worker: 10, ..settings(&[scripted.address]) },
        &metrics,
    )
    .unwrap();
    let mut permits = Vec::new();
    while let pool::Admission::Granted(permit) = pool::admit(&upstream.0, &Sender::default()) {
        permits.push(permit);
    }
    assert_eq!(permits.len(), 10);
    let error = upstream.send(get()).await.unwrap_err();
    assert_eq!((error.cause, error.sent), (Cause::Overload, false));
    assert!(
        metrics
            .encode()
            .contains("weir_upstream_errors_total{upstream=\"api\",cause=\"overload\"} 1")
    );
    permits.pop();
    // Its own permit is returned once it is answered.
    for _ in 0..2 {
        assert_eq!(text(upstream.send(get()).await.unwrap()).await, "ok");
    }
}

#[tokio::test]
async fn while_many_requests_are_under_way_no_client_gets_more_than_its_share() {
    let metrics = Metrics::new(1);
    let scripted = ScriptedUpstream::answering(OK).await;
    let upstream = Upstream::build(
        &Settings { requests_per_worker: 32, ..settings(&[scripted.address]) },
        &metrics,
    )
    .unwrap();
    let client = |last: u8| Some(Network::of([192, 0, 2, last].into(), 64));
    let of = |client| Sender { client, ..Sender::default() };
    let send = async |client| upstream.send_from(get(), &of(client)).await;
    let mut permits = Vec::new();
    while let pool::Admission::Granted(permit) = pool::admit(&upstream.0, &of(client(1))) {
        permits.push(permit);
    }
    // Half of them, which are not counted, and an eighth.
    assert_eq!(permits.len(), 16 + 4);
    let error = send(client(1)).await.unwrap_err();
    assert_eq!((error.cause, error.sent), (Cause::Share, false));
    assert!(
        metrics.encode().contains("weir_upstream_errors_total{upstream=\"api\",cause=\"share\"} 1")
    );
    assert_eq!(text(send(client(2)).await.unwrap()).await, "ok");
    assert_eq!(text(send(None).await.unwrap()).await, "ok");
    // The counted permits are returned. Below half, nothing is counted.
    drop(permits);
    assert_eq!(text(send(client(1)).await.unwrap()).await, "ok");
    let permits: Vec<_> = (0..16).map(|_| pool::admit(&upstream.0, &of(client(1)))).collect();
    assert!(permits.iter().all(|admitted| matches!(admitted, pool::Admission::Granted(_))));
    assert!(matches!(pool::admit(&upstream.0, &of(client(1))), pool::Admission::Granted(_)));
}

/// Reads the header of the PROXY protocol, and answers requests with what it said.
async fn proxied() -> ScriptedUpstream {
    ScriptedUpstream::new(|mut stream, _| async move {
        let mut head = vec![0; 16];
        if stream.0.read_exact(&mut head).await.is_err() {
            return;
        }
        if head.starts_with(b"PROXY ") {
            while !head.ends_with(b"\r\n") {
                head.push(stream.0.read_u8().await.unwrap());
            }
        } else {
            let rest = usize::from(u16::from_be_bytes([head[14], head[15]]));
            let mut addresses = vec![0; rest];
            stream.0.read_exact(&mut addresses).await.unwrap();
            head.extend(addresses);
        }
        let (header, _) =
            proxy_header::ProxyHeader::parse(&head, proxy_header::ParseConfig::default()).unwrap();
        let told = header.proxied_address().map_or_else(
            || "nobody".to_owned(),
            |ends| format!("{} {}", ends.source, ends.destination),
        );
        let length = told.len();
        while stream.head().await.is_some() {
            stream
                .send(&format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{told}"))
                .await;
        }
    })
    .await
}

#[tokio::test]
async fn a_connection_says_whose_it_is_and_serves_nobody_else() {
    let ends = |source: &str, destination: &str| -> (SocketAddr, SocketAddr) {
        (source.parse().unwrap(), destination.parse().unwrap())
    };
    let clients =
        [ends("192.0.2.1:51234", "198.51.100.9:443"), ends("[2001:db8::1]:9", "[2001:db8::2]:443")];
    for version in [ProxyVersion::V1, ProxyVersion::V2] {
        let scripted = proxied().await;
        let settings = Settings { proxy_protocol: Some(version), ..settings(&[scripted.address]) };
        let upstream = build(&settings);
        let mut sent = 0;
        for ends in clients.iter().chain(&clients) {
            let sender = Sender { ends: Some(ends), ..Sender::default() };
            let told = text(in_time(upstream.send_from(get(), &sender)).await.unwrap()).await;
            assert_eq!(told, format!("{} {}", ends.0, ends.1), "{version:?}");
            sent += 1;
            assert_eq!(scripted.accepted(), sent, "each has a connection of its own");
        }
        // A header has one family of addresses.
        let mixed = ends("192.0.2.1:1", "[2001:db8::2]:443");
        let sender = Sender { ends: Some(&mixed), ..Sender::default() };
        let told = text(in_time(upstream.send_from(get(), &sender)).await.unwrap()).await;
        assert_eq!(told, "[::ffff:192.0.2.1]:1 [2001:db8::2]:443");
        // Our own requests, such as health checks, are nobody's.
        assert_eq!(text(in_time(upstream.send(get())).await.unwrap()).await, "nobody");
        assert_eq!(upstream.reach().await[0].1, Ok(()));
    }
}
