//! The error that a caller gets when an upstream fails.

use super::*;
use crate::clock;

async fn fails(scripted: &ScriptedUpstream, changed: impl Fn(&mut Settings)) -> UpstreamError {
    let metrics = Metrics::new(1);
    let mut settings = settings(&[scripted.address]);
    changed(&mut settings);
    let error =
        in_time(Upstream::build(&settings, &metrics).unwrap().send(get())).await.unwrap_err();
    let line = format!(
        "weir_upstream_errors_total{{upstream=\"api\",cause=\"{}\"}} 1\n",
        error.cause.label()
    );
    assert!(metrics.encode().contains(&line), "{line}{}", metrics.encode());
    error
}

#[tokio::test]
async fn nobody_there_is_a_failure_to_connect_and_nothing_was_sent() {
    let upstream =
        Upstream::build(&settings(&[nobody().await, nobody().await]), &Metrics::new(1)).unwrap();
    let error = upstream.send(get()).await.unwrap_err();
    assert_eq!((error.cause, error.sent), (Cause::Connect, false));
    assert!(error.body.is_none());
}

#[tokio::test]
async fn a_connection_that_does_not_come_about_times_out() {
    // The backlog is full: the kernel makes further connects wait.
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    socket.listen(0).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    let wait = Duration::from_millis(100);
    let mut waiting = Vec::new();
    while let Ok(stream) = tokio::time::timeout(wait, TcpStream::connect(address)).await {
        waiting.push(stream.unwrap());
    }
    let upstream =
        Upstream::build(&Settings { connect: wait, ..settings(&[address]) }, &Metrics::new(1))
            .unwrap();
    let error = in_time(upstream.send(get())).await.unwrap_err();
    assert_eq!((error.cause, error.sent), (Cause::Timeout, false));
}

#[tokio::test]
async fn an_upstream_that_does_not_answer_times_out_and_its_connection_is_closed() {
    let (closed, mut was_closed) = tokio::sync::mpsc::unbounded_channel();
    let scripted = ScriptedUpstream::new(move |mut stream, _| {
        let closed = closed.clone();
        async move {
            stream.head().await;
            stream.closed().await;
            closed.send(()).unwrap();
        }
    })
    .await;
    let wait = Duration::from_millis(80);
    let began = clock::monotonic();
    let error = fails(&scripted, |settings| settings.response_header = wait).await;
    assert_eq!((error.cause, error.sent), (Cause::Timeout, true));
    assert!(clock::monotonic() - began >= wait);
    in_time(was_closed.recv()).await.unwrap();
}

/// Sends a request of a route that asks this of the upstream.
async fn sent_with(upstream: &Upstream, overrides: Overrides) -> Result<Response, UpstreamError> {
    let overrides = Arc::new(overrides);
    let sender = Sender { overrides: Some(&overrides), ..Sender::default() };
    in_time(upstream.send_from(get(), &sender)).await
}

#[tokio::test]
async fn a_route_may_wait_longer_or_shorter_than_others() {
    let scripted = ScriptedUpstream::new(|mut stream, _| async move {
        while stream.head().await.is_some() {
            tokio::time::sleep(Duration::from_millis(150)).await;
            stream.send("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\no").await;
            tokio::time::sleep(Duration::from_millis(150)).await;
            stream.send("k").await;
        }
    })
    .await;
    let short = Some(Duration::from_millis(50));
    let impatient = Settings {
        response_header: Duration::from_millis(50),
        idle: Duration::from_millis(50),
        ..settings(&[scripted.address])
    };
    let upstream = Upstream::build(&impatient, &Metrics::new(1)).unwrap();
    assert_eq!(in_time(upstream.send(get())).await.unwrap_err().cause, Cause::Timeout);
    let long = Some(TEST_TIMEOUT);
    let patient = Overrides { response_header: long, idle: long, ..Overrides::default() };
    assert_eq!(text(sent_with(&upstream, patient).await.unwrap()).await, "ok");
    let cut = Overrides { response_header: long, ..Overrides::default() };
    let reply = sent_with(&upstream, cut).await.unwrap();
    assert!(reply.body.collect().await.is_err(), "the upstream's own `idle` holds");
    let upstream = Upstream::build(&settings(&[scripted.address]), &Metrics::new(1)).unwrap();
    let hurried = Overrides { response_header: short, ..Overrides::default() };
    assert_eq!(sent_with(&upstream, hurried).await.unwrap_err().cause, Cause::Timeout);
    assert_eq!(text(in_time(upstream.send(get())).await.unwrap()).await, "ok");
}

#[tokio::test]
async fn a_route_in_a_hurry_says_nothing_of_a_host() {
    let silent = || async {
        ScriptedUpstream::new(|mut stream, _| async move {
            stream.head().await;
            stream.closed().await;
        })
        .await
    };
    let (one, two) = (silent().await, silent().await);
    let ejection = Ejection { failures: 1, ..Ejection::default() };
    let written = Settings {
        ejection,
        response_header: Duration::from_millis(100),
        ..settings(&[one.address, two.address])
    };
    let upstream = Upstream::build(&written, &Metrics::new(1)).unwrap();
    let short = Some(Duration::from_millis(10));
    for _ in 0..4 {
        let hurried = Overrides { response_header: short, ..Overrides::default() };
        assert_eq!(sent_with(&upstream, hurried).await.unwrap_err().cause, Cause::Timeout);
    }
    assert!(!upstream.status().iter().any(|status| status.ejected));
    assert_eq!(in_time(upstream.send(get())).await.unwrap_err().cause, Cause::Timeout);
    assert!(upstream.status().iter().any(|status| status.ejected));
}

#[tokio::test]
async fn a_route_may_have_its_requests_sent_once() {
    let cut = || async {
        ScriptedUpstream::new(|mut stream, _| async move {
            stream.head().await;
        })
        .await
    };
    let count = async |retry, overrides| {
        let (one, two) = (cut().await, cut().await);
        let settings = Settings { retry, ..settings(&[one.address, two.address]) };
        let upstream = Upstream::build(&settings, &Metrics::new(1)).unwrap();
        assert_eq!(sent_with(&upstream, overrides).await.unwrap_err().cause, Cause::Cut);
        one.accepted() + two.accepted()
    };
    let with = |retry| Overrides { retry: Some(retry), ..Overrides::default() };
    assert_eq!(count(Retry::Idempotent, Overrides::default()).await, 2);
    assert_eq!(count(Retry::Idempotent, with(Retry::Unsent)).await, 1);
    assert_eq!(count(Retry::Off, with(Retry::Idempotent)).await, 2);
}

#[tokio::test]
async fn a_cut_connection_is_reported_as_sent_and_not_tried_again() {
    let scripted = ScriptedUpstream::new(|mut stream, _| async move {
        stream.head().await;
    })
    .await;
    let error = fails(&scripted, |_| {}).await;
    assert_eq!((error.cause, error.sent), (Cause::Cut, true));
    assert_eq!(scripted.accepted(), 1);
    let half = ScriptedUpstream::new(|mut stream, _| async move {
        stream.head().await;
        stream.send("HTTP/1.1 200 OK\r\ncontent-le").await;
    })
    .await;
    assert_eq!(fails(&half, |_| {}).await.cause, Cause::Cut);
}

#[tokio::test]
async fn a_reply_that_is_not_http_is_a_protocol_failure() {
    for garbage in [
        "SSH-2.0-OpenSSH_9.2\r\n\r\n",
        "HTTP/1.1 abc\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
        "HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        // We would pass on compressed bytes as if they were the content.
        "HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n",
        "HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
    ] {
        let scripted = ScriptedUpstream::answering(garbage).await;
        let error = fails(&scripted, |_| {}).await;
        assert_eq!((error.cause, error.sent), (Cause::Protocol, true), "{garbage}");
    }
}

#[tokio::test]
async fn a_replys_head_is_bounded() {
    let scripted = ScriptedUpstream::new(|mut stream, _| async move {
        stream.head().await;
        stream.send("HTTP/1.1 200 OK\r\n").await;
        for _ in 0..super::super::http1::REPLY_HEAD_BYTES_MAX / 1024 + 1 {
            stream.send(&format!("x: {}\r\n", "y".repeat(1024))).await;
        }
        stream.closed().await;
    })
    .await;
    assert_eq!(fails(&scripted, |_| {}).await.cause, Cause::Protocol);
}

#[tokio::test]
async fn a_reply_that_breaks_off_fails_its_body_and_is_counted() {
    let scripted = ScriptedUpstream::new(|mut stream, _| async move {
        stream.head().await;
        stream.send("HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhello").await;
    })
    .await;
    let metrics = Metrics::new(1);
    let upstream = Upstream::build(&settings(&[scripted.address]), &metrics).unwrap();
    let reply = upstream.send(get()).await.unwrap();
    let error = in_time(reply.body.collect()).await.unwrap_err();
    assert!(matches!(error, crate::wire::BodyError::Cut(_)), "{error}");
    assert!(
        metrics.encode().contains("weir_upstream_errors_total{upstream=\"api\",cause=\"cut\"} 1\n"),
        "{}",
        metrics.encode()
    );
}

#[tokio::test]
async fn a_reply_that_stands_still_fails_after_the_idle_time() {
    let scripted = ScriptedUpstream::new(|mut stream, _| async move {
        stream.head().await;
        stream.send("HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhello").await;
        stream.closed().await;
    })
    .await;
    let metrics = Metrics::new(1);
    let idle = Duration::from_millis(80);
    let upstream =
        Upstream::build(&Settings { idle, ..settings(&[scripted.address]) }, &metrics).unwrap();
    let reply = upstream.send(get()).await.unwrap();
    let error = in_time(reply.body.collect()).await.unwrap_err();
    assert!(matches!(error, crate::wire::BodyError::Idle), "{error}");
    assert!(
        metrics
            .encode()
            .contains("weir_upstream_errors_total{upstream=\"api\",cause=\"timeout\"} 1\n"),
        "{}",
        metrics.encode()
    );
}

#[tokio::test]
async fn our_own_lack_of_descriptors_is_no_endpoints_failure() {
    let (one, other) =
        (ScriptedUpstream::answering(OK).await, ScriptedUpstream::answering(OK).await);
    let (metrics, budget) = (Metrics::new(1), Budget::unlimited());
    let settings = Settings {
        ejection: Ejection { failures: 1, ..Ejection::default() },
        ..settings(&[one.address, other.address])
    };
    let upstream = Upstream::build_within(&settings, &metrics, &budget, None).unwrap();
    let held = budget.open().unwrap();
    budget.set(1, 1);
    for _ in 0..5 {
        let error = upstream.send(get()).await.unwrap_err();
        assert_eq!((error.cause, error.sent), (Cause::Descriptors, false));
    }
    assert_eq!(one.accepted() + other.accepted(), 0);
    assert!(upstream.status().iter().all(|host| !host.ejected));
    assert!(
        metrics
            .encode()
            .contains("weir_upstream_errors_total{upstream=\"api\",cause=\"descriptors\"} 5\n"),
        "{}",
        metrics.encode()
    );
    drop(held);
    // When few are left an idle connection is not kept, so the next request has a descriptor.
    for _ in 0..5 {
        assert_eq!(text(upstream.send(get()).await.unwrap()).await, "ok");
    }
    assert_eq!(one.accepted() + other.accepted(), 5);
}

#[tokio::test]
async fn an_idle_connection_gives_way_to_one_that_is_needed() {
    let (one, other) =
        (ScriptedUpstream::answering(OK).await, ScriptedUpstream::answering(OK).await);
    let budget = Budget::unlimited();
    let build = |scripted: &ScriptedUpstream| {
        Upstream::build_within(&settings(&[scripted.address]), &Metrics::new(1), &budget, None)
            .unwrap()
    };
    let (first, second) = (build(&one), build(&other));
    assert_eq!(text(first.send(get()).await.unwrap()).await, "ok");
    // The connection that the first request keeps takes the last one.
    budget.set(1, 1);
    assert_eq!(text(second.send(get()).await.unwrap()).await, "ok");
    assert_eq!(text(first.send(get()).await.unwrap()).await, "ok");
    assert_eq!((one.accepted(), other.accepted()), (2, 1));
}
