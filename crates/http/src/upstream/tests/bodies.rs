//! Request and reply bodies: pieces, trailers, backpressure, failures on the client's side.

use super::*;
use crate::wire::BodyError;
use crate::wire::tests::{CHUNKED, incoming};

#[tokio::test]
async fn a_request_of_known_length_is_sent_with_it_and_one_of_unknown_length_in_chunks() {
    let scripted = ScriptedUpstream::new(|mut stream, _| async move {
        while let Some(head) = stream.head().await {
            let end =
                if head.contains("transfer-encoding: chunked") { "\r\n0\r\n\r\n" } else { "abc" };
            let body = if head.starts_with("GET") {
                String::new()
            } else {
                stream.read_to(end).await.unwrap()
            };
            let echo = format!("{head}{body}");
            stream
                .send(&format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{echo}", echo.len()))
                .await;
        }
    })
    .await;
    let upstream = upstream(&scripted);
    let plain = text(upstream.send(get()).await.unwrap()).await;
    assert!(!plain.contains("content-length") && !plain.contains("transfer-encoding"), "{plain}");
    let full =
        text(upstream.send(post(Body::full(Bytes::from_static(b"abc")))).await.unwrap()).await;
    assert!(full.contains("content-length: 3\r\n") && full.ends_with("\r\n\r\nabc"), "{full}");
    let (_client, body) = incoming(&format!("{CHUNKED}3\r\nabc\r\n0\r\n\r\n")).await;
    let chunked = text(upstream.send(post(Body::incoming(body))).await.unwrap()).await;
    assert!(chunked.ends_with("\r\n\r\n3\r\nabc\r\n0\r\n\r\n"), "{chunked}");
    // A client's old version does not change ours.
    let mut old = get();
    old.version = http::Version::HTTP_10;
    assert!(text(upstream.send(old).await.unwrap()).await.starts_with("GET / HTTP/1.1\r\n"));
    assert_eq!(scripted.accepted(), 1);
}

#[tokio::test]
async fn trailers_pass_both_ways() {
    let scripted = ScriptedUpstream::new(|mut stream, _| async move {
        while stream.head().await.is_some() {
            let body = stream.read_to("\r\n\r\n").await.unwrap();
            assert_eq!(body, "3\r\nabc\r\n0\r\nx-up: 1\r\n\r\n");
            stream.send("HTTP/1.1 200 OK\r\ntrailer: x-down\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nx-down: 2\r\n\r\n").await;
        }
    })
    .await;
    let upstream = upstream(&scripted);
    for _ in 0..2 {
        let (_client, body) = incoming(&format!("{CHUNKED}3\r\nabc\r\n0\r\nx-up: 1\r\n\r\n")).await;
        let mut request = post(Body::incoming(body));
        request.fields.append("trailer", "x-up");
        let reply = in_time(upstream.send(request)).await.unwrap().body.collect().await.unwrap();
        assert_eq!(reply.trailers().unwrap()["x-down"], "2");
    }
    assert_eq!(scripted.accepted(), 1);
}

#[tokio::test]
async fn a_reader_that_is_slow_holds_the_upstream_back() {
    const TOTAL: usize = 64 << 20;
    let written = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&written);
    let scripted = ScriptedUpstream::new(move |mut stream, _| {
        let count = Arc::clone(&count);
        async move {
            stream.head().await;
            stream.send(&format!("HTTP/1.1 200 OK\r\ncontent-length: {TOTAL}\r\n\r\n")).await;
            let piece = vec![b'x'; 64 << 10];
            while count.load(Ordering::SeqCst) < TOTAL {
                stream.0.write_all(&piece).await.unwrap();
                count.fetch_add(piece.len(), Ordering::SeqCst);
            }
        }
    })
    .await;
    let upstream = upstream(&scripted);
    let mut reply = upstream.send(get()).await.unwrap().body;
    let mut read = reply.frame().await.unwrap().unwrap().into_data().unwrap().len();
    // Until the upstream's writes have stalled.
    let mut before = usize::MAX;
    while before != written.load(Ordering::SeqCst) {
        before = written.load(Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // Buffered in between: the kernel's buffers, which grow to some megabytes, and ours.
    assert!(before < TOTAL / 3, "{before} bytes were taken for a reader that read {read}");
    while let Some(frame) = reply.frame().await {
        let piece = frame.unwrap().into_data().unwrap().len();
        // No piece grows with the amount that waits.
        assert!(piece <= crate::wire::FRAME_BYTES_MAX, "{piece}");
        read += piece;
    }
    assert_eq!(read, TOTAL);
}

#[tokio::test]
async fn a_request_body_that_fails_is_reported_as_the_clients_fault() {
    for (sent, cut, expected) in [
        ("5\r\nhello\r\n", false, "TooLarge"),
        ("1\r\nh\r\n", false, "Idle"),
        ("1\r\nh\r\n", true, "Cut"),
    ] {
        let scripted = ScriptedUpstream::new(|mut stream, _| async move {
            stream.head().await;
            stream.closed().await;
        })
        .await;
        let metrics = Metrics::new(1);
        let upstream = Upstream::build(&settings(&[scripted.address]), &metrics).unwrap();
        let (mut client, body) = incoming(CHUNKED).await;
        client.write_all(sent.as_bytes()).await.unwrap();
        let client = (!cut).then_some(client);
        let body = Body::incoming(body).limit(4).idle_timeout(Duration::from_millis(50));
        let error = in_time(upstream.send(post(body))).await.unwrap_err();
        assert_eq!((error.cause, error.sent), (Cause::Body, true));
        let told = error.body.unwrap();
        assert!(format!("{told:?}").starts_with(expected), "{told:?}");
        // A client that goes away is no error.
        let counted = metrics.encode();
        let failed =
            counted.contains("weir_upstream_errors_total{upstream=\"api\",cause=\"body\"} 1\n");
        assert_eq!(failed, !cut, "{counted}");
        drop(client);
    }
}

#[tokio::test]
async fn a_slow_upload_is_not_a_slow_upstream() {
    let scripted = ScriptedUpstream::new(|mut stream, _| async move {
        stream.head().await;
        stream.read_to("0\r\n\r\n").await;
        stream.send(OK).await;
    })
    .await;
    let short = Duration::from_millis(60);
    let settings =
        Settings { response_header: short, idle: short, ..settings(&[scripted.address]) };
    let upstream = Upstream::build(&settings, &Metrics::new(1)).unwrap();
    let (mut client, body) = incoming(CHUNKED).await;
    let upload = tokio::spawn(async move {
        for _ in 0..4 {
            tokio::time::sleep(short * 2).await;
            client.write_all(b"1\r\na\r\n").await.unwrap();
        }
        client.write_all(b"0\r\n\r\n").await.unwrap();
        client
    });
    let reply = in_time(upstream.send(post(Body::incoming(body)))).await.unwrap();
    assert_eq!(text(reply).await, "ok");
    drop(upload.await.unwrap());
}

#[tokio::test]
async fn an_upstream_that_takes_nothing_or_answers_nothing_after_an_upload_times_out() {
    let scripted = ScriptedUpstream::new(|mut stream, number| async move {
        stream.head().await;
        // The first reads nothing of the body, the second all of it. Neither answers.
        if number == 1 {
            stream.read_to("0\r\n\r\n").await;
        }
        tokio::time::sleep(TEST_TIMEOUT).await;
    })
    .await;
    let short = Duration::from_millis(80);
    let settings =
        Settings { response_header: short, idle: short, ..settings(&[scripted.address]) };
    let upstream = Upstream::build(&settings, &Metrics::new(1)).unwrap();
    let (mut client, body) = incoming(CHUNKED).await;
    let endless = tokio::spawn(async move {
        let chunk = format!("8000\r\n{}\r\n", "x".repeat(0x8000));
        while client.write_all(chunk.as_bytes()).await.is_ok() {}
    });
    let error = in_time(upstream.send(post(Body::incoming(body)))).await.unwrap_err();
    assert_eq!((error.cause, error.sent), (Cause::Timeout, true));
    endless.abort();

    let (mut client, body) = incoming(CHUNKED).await;
    client.write_all(b"1\r\na\r\n").await.unwrap();
    let finish = tokio::spawn(async move {
        tokio::time::sleep(short * 2).await;
        client.write_all(b"0\r\n\r\n").await.unwrap();
        client
    });
    let error = in_time(upstream.send(post(Body::incoming(body)))).await.unwrap_err();
    assert_eq!((error.cause, error.sent), (Cause::Timeout, true));
    drop(finish.await.unwrap());
}

#[tokio::test]
async fn an_upload_that_the_upstream_takes_slowly_but_steadily_has_time() {
    // More than the sockets' buffers hold.
    const BYTES: usize = 32 << 20;
    let (pause, answer) = (Duration::from_millis(300), Duration::from_millis(1_500));
    let scripted = ScriptedUpstream::new(move |mut stream, _| async move {
        stream.head().await;
        let (mut piece, mut read) = (vec![0; 128 << 10], 0);
        let began = Instant::now();
        while read < BYTES {
            // As fast as it is: longer in all than a pause, and than an answer, may take.
            tokio::time::sleep(Duration::from_millis(10)).await;
            read += stream.0.read(&mut piece).await.unwrap();
        }
        assert!(began.elapsed() > answer);
        stream.send(OK).await;
    })
    .await;
    let settings =
        Settings { response_header: answer, idle: pause, ..settings(&[scripted.address]) };
    let upstream = Upstream::build(&settings, &Metrics::new(1)).unwrap();
    let body = Body::full(crate::wire::counted(vec![b'x'; BYTES].into()));
    let reply = in_time(upstream.send(post(body))).await.unwrap();
    assert_eq!(text(reply).await, "ok");
}

#[tokio::test]
async fn an_answer_that_comes_before_the_upload_is_over_is_passed_on() {
    let scripted = ScriptedUpstream::new(|mut stream, _| async move {
        stream.head().await;
        stream.send("HTTP/1.1 413 Content Too Large\r\ncontent-length: 3\r\n\r\nbig").await;
        stream.closed().await;
    })
    .await;
    let upstream = upstream(&scripted);
    let (_client, body) = incoming(CHUNKED).await;
    let reply = in_time(upstream.send(post(Body::incoming(body)))).await.unwrap();
    assert_eq!(reply.status, 413);
    assert_eq!(text(reply).await, "big");
}

#[tokio::test]
async fn an_upload_goes_on_while_nobody_reads_its_answer() {
    let taken = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&taken);
    let scripted = ScriptedUpstream::new(move |mut stream, _| {
        let count = Arc::clone(&count);
        async move {
            stream.head().await;
            stream.send("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhe").await;
            stream.read_to("\r\n0\r\n\r\n").await;
            count.fetch_add(1, Ordering::SeqCst);
            stream.send("llo").await;
        }
    })
    .await;
    let upstream = upstream(&scripted);
    let (mut client, body) = incoming(CHUNKED).await;
    let reply = in_time(upstream.send(post(Body::incoming(body)))).await.unwrap();
    client.write_all(b"3\r\nabc\r\n0\r\n\r\n").await.unwrap();
    until(|| taken.load(Ordering::SeqCst) == 1).await;
    assert_eq!(text(reply).await, "hello");
}

#[tokio::test]
async fn an_answer_to_a_body_that_broke_a_limit_does_not_hide_it() {
    let scripted = ScriptedUpstream::new(|mut stream, _| async move {
        stream.head().await;
        stream.read_to("0\r\n\r\n").await;
        stream.send(OK).await;
    })
    .await;
    let upstream = upstream(&scripted);
    let (mut client, body) = incoming(CHUNKED).await;
    client.write_all(b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n").await.unwrap();
    let error = in_time(upstream.send(post(Body::incoming(body).limit(4)))).await.unwrap_err();
    assert!(matches!(error.body, Some(BodyError::TooLarge { limit_bytes: 4 })), "{error:?}");
}

#[tokio::test]
async fn a_body_of_unknown_length_is_sent_whatever_the_method() {
    let scripted = ScriptedUpstream::new(|mut stream, _| async move {
        while let Some(head) = stream.head().await {
            let body = if head.contains("transfer-encoding: chunked") {
                stream.read_to("\r\n0\r\n\r\n").await.unwrap()
            } else {
                String::new()
            };
            let length = if head.starts_with("HEAD") { 0 } else { body.len() };
            assert_eq!(body, "3\r\nabc\r\n0\r\n\r\n", "{head}");
            stream
                .send(&format!(
                    "HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{}",
                    &body[..length]
                ))
                .await;
        }
    })
    .await;
    let upstream = upstream(&scripted);
    for method in ["GET", "HEAD", "DELETE", "POST"] {
        let (_client, body) = incoming(&format!("{CHUNKED}3\r\nabc\r\n0\r\n\r\n")).await;
        let mut request = post(Body::incoming(body));
        request.method = method.parse().unwrap();
        let reply = in_time(upstream.send(request))
            .await
            .unwrap_or_else(|error| panic!("{method}: {error}"));
        assert_eq!(reply.status, 200, "{method}");
        drop(text(reply).await);
    }
    assert_eq!(scripted.accepted(), 1);
}

#[tokio::test]
async fn an_upload_that_the_upstream_takes_no_more_of_after_its_answer_ends() {
    let scripted = ScriptedUpstream::new(|mut stream, _| async move {
        stream.head().await;
        stream.send(OK).await;
        // It neither reads nor closes.
        tokio::time::sleep(2 * TEST_TIMEOUT).await;
        drop(stream);
    })
    .await;
    an_endless_upload_ends(&upstream(&scripted)).await;
}

#[tokio::test]
async fn nor_does_it_go_on_over_a_connection_that_was_used_before() {
    let whole = Arc::new(tokio::sync::Notify::new());
    let rest = Arc::clone(&whole);
    let scripted = ScriptedUpstream::new(move |mut stream, _| {
        let rest = Arc::clone(&rest);
        async move {
            stream.head().await;
            stream.read_to("0\r\n\r\n").await;
            stream.send("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\no").await;
            rest.notified().await;
            stream.send("k").await;
            stream.head().await;
            stream.send(OK).await;
            tokio::time::sleep(2 * TEST_TIMEOUT).await;
            drop(stream);
        }
    })
    .await;
    let upstream = upstream(&scripted);
    let (mut client, body) = incoming(CHUNKED).await;
    client.write_all(b"3\r\nabc\r\n0\r\n\r\n").await.unwrap();
    // The reply's head comes alone, so the upload gets a task of its own.
    let reply = in_time(upstream.send(post(Body::incoming(body)))).await.unwrap();
    whole.notify_one();
    assert_eq!(text(reply).await, "ok");
    an_endless_upload_ends(&upstream).await;
    assert_eq!(scripted.accepted(), 1);
}

/// The upload ends soon after the reply, whatever the upstream would still take.
async fn an_endless_upload_ends(upstream: &Upstream) {
    let (mut client, body) = incoming(CHUNKED).await;
    let endless = tokio::spawn(async move {
        let chunk = format!("8000\r\n{}\r\n", "x".repeat(0x8000));
        while client.write_all(chunk.as_bytes()).await.is_ok() {}
    });
    let ends = crate::wire::tests::EndRecorder::default();
    let body = Body::incoming(body).on_end(ends.hook());
    let reply = in_time(upstream.send(post(body))).await.unwrap();
    assert_eq!(text(reply).await, "ok");
    // The connection has dropped the body, so the client's connection may close.
    until(|| !ends.ends().is_empty()).await;
    endless.abort();
}

#[tokio::test]
async fn a_reply_whose_length_is_said_twice_is_passed_on_by_its_chunks() {
    let scripted =
        ScriptedUpstream::answering("HTTP/1.1 200 OK\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n").await;
    let upstream = upstream(&scripted);
    let reply = in_time(upstream.send(get())).await.unwrap();
    assert!(!reply.fields.has("content-length"), "{:?}", reply.fields);
    assert_eq!(text(reply).await, "hello");
}
