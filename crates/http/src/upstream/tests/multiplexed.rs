//! HTTP/2 to upstreams: real connections of the h2 crate, which do exactly what a test says.

use h2::RecvStream;
use h2::server::SendResponse;
use tokio::sync::Notify;

use super::super::streams::StreamUse;
use super::super::{http2, pool};
use super::*;
use crate::wire::Network;
use crate::wire::tests::{CHUNKED, incoming};

/// An upstream that hands each request to `script`.
pub(super) async fn multiplexing<F, R>(streams_max: u32, script: F) -> ScriptedUpstream
where
    F: Fn(http::Request<RecvStream>, SendResponse<Bytes>, usize) -> R + Clone + Send + 'static,
    R: Future<Output = ()> + Send + 'static,
{
    ScriptedUpstream::new(move |stream, number| {
        let script = script.clone();
        async move {
            let Ok(mut connection) = h2::server::Builder::new()
                .max_concurrent_streams(streams_max)
                .handshake(stream.0)
                .await
            else {
                return;
            };
            while let Some(Ok((request, respond))) = connection.accept().await {
                tokio::spawn(script(request, respond, number));
            }
        }
    })
    .await
}

pub(super) fn answer(respond: &mut SendResponse<Bytes>, body: impl Into<Bytes>) {
    // The proxy may be gone by now.
    if let Ok(mut stream) = respond.send_response(http::Response::new(()), false) {
        let _ = stream.send_data(body.into(), true);
    }
}

async fn ok(_request: http::Request<RecvStream>, mut respond: SendResponse<Bytes>, _: usize) {
    answer(&mut respond, "ok");
}

fn settings_h2(scripted: &ScriptedUpstream) -> Settings {
    Settings { protocol: Protocol::H2, ..settings(&[scripted.address]) }
}

fn build(settings: &Settings) -> Upstream {
    Upstream::build(settings, &Metrics::new(1)).unwrap()
}

fn loads(upstream: &Upstream) -> Vec<usize> {
    let host = Arc::clone(&upstream.0.hosts.current()[0]);
    pool::with_streams(&upstream.0, &host, StreamUse::Requests, |streams| streams.loads())
        .unwrap_or_default()
}

#[tokio::test]
async fn many_requests_share_one_connection() {
    let go = Arc::new(Notify::new());
    let held = Arc::clone(&go);
    let scripted = multiplexing(1_000, move |_, mut respond, _| {
        let held = Arc::clone(&held);
        async move {
            held.notified().await;
            answer(&mut respond, "ok");
        }
    })
    .await;
    let upstream = Arc::new(build(&settings_h2(&scripted)));
    let requests: Vec<_> = (0..20)
        .map(|_| {
            tokio::spawn({
                let upstream = Arc::clone(&upstream);
                async move { text(upstream.send(get()).await.unwrap()).await }
            })
        })
        .collect();
    until(|| loads(&upstream) == [20]).await;
    for request in requests {
        go.notify_one();
        drop(request);
    }
    until(|| {
        go.notify_waiters();
        loads(&upstream) == [0]
    })
    .await;
    assert_eq!(scripted.accepted(), 1);
}

#[tokio::test]
async fn a_request_is_translated() {
    let (seen, mut was_seen) = tokio::sync::mpsc::unbounded_channel();
    let scripted = multiplexing(10, move |request, mut respond, _| {
        seen.send(request.map(|_| ())).unwrap();
        async move { answer(&mut respond, "") }
    })
    .await;
    let upstream = build(&settings_h2(&scripted));
    let request = http::Request::get("/a/b?c=d")
        .header("host", "api.example")
        .header("te", "trailers")
        .header("x-a", "1");
    let reply = in_time(upstream.send(request.body(Body::empty()).unwrap().into())).await.unwrap();
    assert_eq!(reply.status, http::StatusCode::OK);
    let request = was_seen.recv().await.unwrap();
    assert_eq!(request.uri().to_string(), "http://api.example/a/b?c=d");
    let fields = request.headers();
    assert_eq!(
        (fields.len(), &fields["te"], &fields["x-a"]),
        (2, &"trailers".parse().unwrap(), &"1".parse().unwrap())
    );
}

#[tokio::test]
async fn a_full_connection_leads_to_another_and_then_requests_wait() {
    let go = Arc::new(Notify::new());
    let held = Arc::clone(&go);
    let scripted = multiplexing(2, move |request, mut respond, _| {
        let held = Arc::clone(&held);
        async move {
            if request.uri().path() == "/held" {
                held.notified().await;
            }
            answer(&mut respond, "ok");
        }
    })
    .await;
    let http2 = Http2Settings { connections_per_worker: 2, ..Http2Settings::default() };
    let upstream = Arc::new(build(&Settings {
        http2,
        connect: Duration::from_millis(300),
        ..settings_h2(&scripted)
    }));
    let request = || {
        let upstream = Arc::clone(&upstream);
        async move {
            let request = http::Request::get("/held").body(Body::empty()).unwrap().into();
            Ok::<_, UpstreamError>(text(upstream.send(request).await?).await)
        }
    };
    let held: Vec<_> = (0..4).map(|_| tokio::spawn(request())).collect();
    until(|| loads(&upstream) == [2, 2]).await;
    assert_eq!(scripted.accepted(), 2);
    let error = in_time(request()).await.unwrap_err();
    assert_eq!((error.cause, error.sent), (Cause::Overload, false));
    let waiting = tokio::spawn({
        let upstream = Arc::clone(&upstream);
        async move { text(upstream.send(get()).await.unwrap()).await }
    });
    tokio::task::yield_now().await;
    go.notify_one();
    assert_eq!(in_time(waiting).await.unwrap(), "ok");
    for request in held {
        go.notify_one();
        go.notify_waiters();
        drop(request);
    }
    assert_eq!(scripted.accepted(), 2);
}

#[tokio::test]
async fn a_stream_that_the_upstream_refused_is_sent_again_or_reported_as_unsent() {
    let refusals = Arc::new(AtomicUsize::new(2));
    let left = Arc::clone(&refusals);
    let scripted = multiplexing(10, move |_, mut respond, _| {
        let refuse = left
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1))
            .is_ok();
        async move {
            if refuse {
                respond.send_reset(h2::Reason::REFUSED_STREAM)
            } else {
                answer(&mut respond, "ok")
            }
        }
    })
    .await;
    let upstream = build(&settings_h2(&scripted));
    assert_eq!(text(in_time(upstream.send(get())).await.unwrap()).await, "ok");
    refusals.store(1, Ordering::SeqCst);
    let (_client, body) = incoming(&format!("{CHUNKED}3\r\nabc\r\n")).await;
    let error = in_time(upstream.send(post(Body::incoming(body)))).await.unwrap_err();
    assert_eq!((error.cause, error.sent), (Cause::Cut, false));
    // A reset with another reason may come in the middle of the work.
    refusals.store(usize::MAX, Ordering::SeqCst);
    let error = in_time(upstream.send(get())).await.unwrap_err();
    assert_eq!((error.cause, error.sent), (Cause::Cut, false));
}

#[tokio::test]
async fn a_reset_is_not_a_refusal() {
    let scripted = multiplexing(10, move |_, mut respond, _| async move {
        respond.send_reset(h2::Reason::INTERNAL_ERROR)
    })
    .await;
    let error = in_time(build(&settings_h2(&scripted)).send(get())).await.unwrap_err();
    assert_eq!((error.cause, error.sent), (Cause::Cut, true));
}

#[tokio::test]
async fn a_connection_that_says_goodbye_is_replaced_and_what_it_did_not_count_is_sent_again() {
    // Each connection answers its first request and then sends GOAWAY, whatever else has arrived.
    let scripted = ScriptedUpstream::new(|stream, _| async move {
        let mut connection = h2::server::handshake(stream.0).await.unwrap();
        let Some(Ok((_, mut respond))) = connection.accept().await else { return };
        answer(&mut respond, "ok");
        connection.graceful_shutdown();
        while connection.accept().await.is_some() {}
    })
    .await;
    let upstream = build(&settings_h2(&scripted));
    for _ in 0..10 {
        assert_eq!(text(in_time(upstream.send(get())).await.unwrap()).await, "ok");
    }
    assert!(scripted.accepted() > 1);
}

#[tokio::test]
async fn a_cut_connection_is_reported_as_sent() {
    let scripted = ScriptedUpstream::new(|stream, _| async move {
        let mut connection = h2::server::handshake(stream.0).await.unwrap();
        let _request = connection.accept().await;
    })
    .await;
    let error = in_time(build(&settings_h2(&scripted)).send(get())).await.unwrap_err();
    assert_eq!((error.cause, error.sent), (Cause::Cut, true));
}

#[tokio::test]
async fn an_endpoint_without_http2_is_reported_and_so_is_one_that_is_down() {
    let scripted =
        ScriptedUpstream::answering("HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n").await;
    let error = in_time(build(&settings_h2(&scripted)).send(get())).await.unwrap_err();
    assert_eq!((error.cause, error.sent), (Cause::Protocol, false));
    let silent = ScriptedUpstream::new(|mut stream, _| async move { stream.closed().await }).await;
    let error = in_time(
        build(&Settings { connect: Duration::from_millis(100), ..settings_h2(&silent) })
            .send(get()),
    )
    .await
    .unwrap_err();
    assert_eq!((error.cause, error.sent), (Cause::Timeout, false));
    let upstream = build(&Settings { protocol: Protocol::H2, ..settings(&[nobody().await]) });
    let replies = tokio::join!(upstream.send(get()), upstream.send(get()), upstream.send(get()));
    for reply in [replies.0, replies.1, replies.2] {
        let error = reply.unwrap_err();
        assert_eq!((error.cause, error.sent), (Cause::Connect, false));
    }
}

#[tokio::test]
async fn both_directions_stream_at_once_and_trailers_pass_both_ways() {
    let scripted = multiplexing(10, |request, mut respond, _| async move {
        let mut reply = respond.send_response(http::Response::new(()), false).unwrap();
        let mut body = request.into_body();
        while let Some(piece) = body.data().await {
            reply.send_data(piece.unwrap(), false).unwrap();
        }
        let trailers = body.trailers().await.unwrap().unwrap();
        assert_eq!(trailers["x-up"], "1");
        reply
            .send_trailers(http::HeaderMap::from_iter([(
                http::HeaderName::from_static("grpc-status"),
                http::HeaderValue::from(0),
            )]))
            .unwrap();
    })
    .await;
    let upstream = build(&settings_h2(&scripted));
    let (mut client, body) = incoming(CHUNKED).await;
    // The head comes before anything of the body was sent.
    let mut reply = in_time(upstream.send(post(Body::incoming(body)))).await.unwrap().body;
    for round in 0..3 {
        client.write_all(format!("1\r\n{round}\r\n").as_bytes()).await.unwrap();
        let piece = in_time(reply.frame()).await.unwrap().unwrap().into_data().unwrap();
        assert_eq!(piece, format!("{round}"));
    }
    client.write_all(b"0\r\nx-up: 1\r\n\r\n").await.unwrap();
    let trailers = in_time(reply.frame()).await.unwrap().unwrap().into_trailers().unwrap();
    assert_eq!(trailers["grpc-status"], "0");
    drop(reply);
    assert_eq!(loads(&upstream), [0]);
}

/// An upstream that never answers, and reports the code with which each stream was reset.
async fn silent(
    head: bool,
) -> (ScriptedUpstream, tokio::sync::mpsc::UnboundedReceiver<h2::Reason>) {
    let (told, resets) = tokio::sync::mpsc::unbounded_channel();
    let scripted = multiplexing(10, move |_request, mut respond, _| {
        let told = told.clone();
        async move {
            if head {
                let mut stream = respond.send_response(http::Response::new(()), false).unwrap();
                told.send(std::future::poll_fn(|cx| stream.poll_reset(cx)).await.unwrap()).unwrap();
            } else {
                told.send(std::future::poll_fn(|cx| respond.poll_reset(cx)).await.unwrap())
                    .unwrap();
            }
        }
    })
    .await;
    (scripted, resets)
}

#[tokio::test]
async fn streams_without_a_waiting_caller_are_reset() {
    for uploads in [false, true] {
        // While it waits for the head ...
        let (scripted, mut resets) = silent(false).await;
        let upstream = build(&settings_h2(&scripted));
        let (_client, body) = incoming(CHUNKED).await;
        let request = || if uploads { None } else { Some(get()) };
        let request = request().unwrap_or_else(|| post(Body::incoming(body)));
        assert!(
            tokio::time::timeout(Duration::from_millis(100), upstream.send(request)).await.is_err()
        );
        assert_eq!(in_time(resets.recv()).await, Some(h2::Reason::CANCEL));
        until(|| loads(&upstream) == [0]).await;
        // ... and after it, even if the request's body is still being sent.
        let (scripted, mut resets) = silent(true).await;
        let upstream = build(&settings_h2(&scripted));
        let (_client, body) = incoming(CHUNKED).await;
        let reply =
            in_time(upstream.send(if uploads { post(Body::incoming(body)) } else { get() }))
                .await
                .unwrap();
        drop(reply);
        assert_eq!(in_time(resets.recv()).await, Some(h2::Reason::CANCEL));
        assert_eq!(loads(&upstream), [0]);
    }
}

#[tokio::test]
async fn an_upload_that_the_upstream_does_not_read_ends_with_its_reply() {
    // It has answered completely, or goes on answering.
    for is_whole in [true, false] {
        let (told, mut resets) = tokio::sync::mpsc::unbounded_channel();
        let scripted = multiplexing(10, move |request, mut respond, _| {
            let told = told.clone();
            async move {
                let unread = request.into_body();
                let mut stream = respond.send_response(http::Response::new(()), false).unwrap();
                stream.send_data("ok".into(), is_whole).unwrap();
                let reset = std::future::poll_fn(|cx| stream.poll_reset(cx)).await;
                told.send(reset.ok()).unwrap();
                drop(unread);
            }
        })
        .await;
        let upstream = build(&settings_h2(&scripted));
        let (mut client, body) = incoming(CHUNKED).await;
        let sent = Arc::<AtomicUsize>::default();
        let counted = Arc::clone(&sent);
        let endless = tokio::spawn(async move {
            let chunk = format!("8000\r\n{}\r\n", "x".repeat(0x8000));
            while client.write_all(chunk.as_bytes()).await.is_ok() {
                counted.fetch_add(0x8000, Ordering::SeqCst);
            }
        });
        let ends = crate::wire::tests::EndRecorder::default();
        let body = Body::incoming(body).on_end(ends.hook());
        let mut reply = in_time(upstream.send(post(body))).await.unwrap().body;
        let piece = in_time(reply.frame()).await.unwrap().unwrap().into_data().unwrap();
        assert_eq!(piece, "ok");
        // More than the upstream's window was taken from the client, so that the rest waits.
        until(|| sent.load(Ordering::SeqCst) > 0x20_000).await;
        drop(reply);
        until(|| !ends.ends().is_empty()).await;
        if !is_whole {
            assert_eq!(in_time(resets.recv()).await, Some(Some(h2::Reason::CANCEL)));
        }
        until(|| loads(&upstream) == [0]).await;
        endless.abort();
    }
}

#[tokio::test]
async fn an_upstream_that_ends_each_connection_is_given_up() {
    let scripted = ScriptedUpstream::new(|stream, _| async move {
        let Ok(mut connection) = h2::server::handshake(stream.0).await else { return };
        connection.abrupt_shutdown(h2::Reason::NO_ERROR);
        while connection.accept().await.is_some() {}
    })
    .await;
    let upstream = build(&settings_h2(&scripted));
    let error = in_time(upstream.send(get())).await.unwrap_err();
    assert!(!error.sent, "{error:?}");
    assert!(scripted.accepted() <= 3, "{}", scripted.accepted());
    // Another host is asked instead.
    let other = multiplexing(10, ok).await;
    let both = Settings { protocol: Protocol::H2, ..settings(&[scripted.address, other.address]) };
    let upstream = build(&both);
    for _ in 0..10 {
        assert_eq!(text(in_time(upstream.send(get())).await.unwrap()).await, "ok");
    }
}

#[tokio::test]
async fn connections_without_requests_give_way() {
    let scripted = multiplexing(10, ok).await;
    let upstream = build(&settings_h2(&scripted));
    assert_eq!(text(in_time(upstream.send(get())).await.unwrap()).await, "ok");
    until(|| loads(&upstream) == [0]).await;
    pool::release_idle();
    assert_eq!(loads(&upstream), [0; 0]);
    // Not while there is a request on it.
    let reply = in_time(upstream.send(get())).await.unwrap();
    pool::release_idle();
    assert_eq!(loads(&upstream), [1]);
    assert_eq!(text(reply).await, "ok");
}

#[tokio::test]
async fn a_client_has_its_share_of_the_streams_that_the_upstream_allows() {
    let scripted = multiplexing(4, |_, mut respond, _| async move {
        let stream = respond.send_response(http::Response::new(()), false);
        std::future::pending::<()>().await;
        drop(stream);
    })
    .await;
    let settings = Settings {
        http2: Http2Settings { connections_per_worker: 2, ..Http2Settings::default() },
        ..settings_h2(&scripted)
    };
    let upstream = build(&settings);
    let client = |last: u8| Some(Network::of([192, 0, 2, last].into(), 64));
    let send = async |last| {
        let sender = Sender { client: client(last), ..Sender::default() };
        in_time(upstream.send_from(get(), &sender)).await
    };
    let mut held = Vec::new();
    let error = loop {
        match send(1).await {
            Ok(reply) => held.push(reply),
            Err(error) => break error,
        }
    };
    assert_eq!(error.cause, Cause::Share);
    assert!(held.len() < 8, "{}", held.len());
    assert!(send(2).await.is_ok());
}

#[tokio::test]
async fn a_request_body_that_fails_resets_its_stream_and_is_reported() {
    let (scripted, mut resets) = silent(false).await;
    let upstream = build(&settings_h2(&scripted));
    let (mut client, body) = incoming(CHUNKED).await;
    client.write_all(b"5\r\nhello\r\n").await.unwrap();
    let error = in_time(upstream.send(post(Body::incoming(body).limit(4)))).await.unwrap_err();
    assert_eq!((error.cause, error.sent), (Cause::Body, true));
    assert_eq!(in_time(resets.recv()).await, Some(h2::Reason::CANCEL));
}

#[tokio::test]
async fn an_answer_to_an_upload_is_not_awaited_for_as_long_as_its_pieces() {
    let (scripted, mut resets) = silent(false).await;
    let settings = Settings {
        response_header: Duration::from_millis(80),
        idle: 2 * TEST_TIMEOUT,
        ..settings_h2(&scripted)
    };
    let upstream = build(&settings);
    let (_client, body) = incoming(&format!("{CHUNKED}3\r\nabc\r\n0\r\n\r\n")).await;
    let error = in_time(upstream.send(post(Body::incoming(body)))).await.unwrap_err();
    assert_eq!((error.cause, error.sent), (Cause::Timeout, true));
    assert_eq!(in_time(resets.recv()).await, Some(h2::Reason::CANCEL));
}

#[tokio::test]
async fn an_upstream_that_does_not_answer_times_out_and_others_take_a_new_connection() {
    let scripted = multiplexing(10, |_, mut respond, number| async move {
        if number == 0 {
            std::future::poll_fn(|cx| respond.poll_reset(cx)).await.unwrap();
        } else {
            answer(&mut respond, "ok");
        }
    })
    .await;
    let upstream =
        build(&Settings { response_header: Duration::from_millis(80), ..settings_h2(&scripted) });
    let error = in_time(upstream.send(get())).await.unwrap_err();
    assert_eq!((error.cause, error.sent), (Cause::Timeout, true));
    assert_eq!(text(in_time(upstream.send(get())).await.unwrap()).await, "ok");
    assert_eq!(scripted.accepted(), 2);
}

#[tokio::test]
async fn a_slow_reader_holds_nobody_else_on_its_connection() {
    let scripted = multiplexing(100, |request, mut respond, _| async move {
        if request.uri().path() != "/large" {
            return answer(&mut respond, "ok");
        }
        let mut stream = respond.send_response(http::Response::new(()), false).unwrap();
        loop {
            stream.reserve_capacity(16 << 10);
            let Some(Ok(room)) = std::future::poll_fn(|cx| stream.poll_capacity(cx)).await else {
                return;
            };
            if room > 0 && stream.send_data(vec![b'x'; room].into(), false).is_err() {
                return;
            }
        }
    })
    .await;
    let upstream = build(&settings_h2(&scripted));
    let mut slow = Vec::new();
    for _ in 0..30 {
        let request = http::Request::get("/large").body(Body::empty()).unwrap().into();
        slow.push(in_time(upstream.send(request)).await.unwrap());
    }
    for _ in 0..10 {
        assert_eq!(text(in_time(upstream.send(get())).await.unwrap()).await, "ok");
    }
    assert_eq!(scripted.accepted(), 1);
    // The buffered bytes of each stream stay bounded.
    let mut read = 0;
    for mut reply in slow {
        read += in_time(reply.body.frame()).await.unwrap().unwrap().into_data().unwrap().len();
    }
    assert!(read <= 30 * http2::STREAM_WINDOW_BYTES as usize);
}

#[tokio::test]
async fn a_dead_connection_is_noticed_by_its_ping() {
    // It accepts the connection and the request, and then sends nothing more.
    let scripted = ScriptedUpstream::new(|stream, _| async move {
        let mut connection = h2::server::handshake(stream.0).await.unwrap();
        let _request = connection.accept().await;
        tokio::time::sleep(2 * TEST_TIMEOUT).await;
    })
    .await;
    let ping = Duration::from_millis(50);
    let http2 =
        Http2Settings { ping_interval: Some(ping), ping_timeout: ping, ..Http2Settings::default() };
    let upstream =
        build(&Settings { http2, response_header: 2 * TEST_TIMEOUT, ..settings_h2(&scripted) });
    let error = in_time(upstream.send(get())).await.unwrap_err();
    assert_eq!((error.cause, error.sent), (Cause::Timeout, true));
}

#[tokio::test]
async fn an_unused_connection_is_closed() {
    let (closed, mut was_closed) = tokio::sync::mpsc::unbounded_channel();
    let scripted = ScriptedUpstream::new(move |stream, _| {
        let closed = closed.clone();
        async move {
            let mut connection = h2::server::handshake(stream.0).await.unwrap();
            while let Some(Ok((_, mut respond))) = connection.accept().await {
                answer(&mut respond, "ok");
            }
            closed.send(()).unwrap();
        }
    })
    .await;
    let upstream = build(&Settings { idle: Duration::from_millis(50), ..settings_h2(&scripted) });
    assert_eq!(text(upstream.send(get()).await.unwrap()).await, "ok");
    in_time(was_closed.recv()).await.unwrap();
    // The next request uses a new one.
    assert_eq!(text(upstream.send(get()).await.unwrap()).await, "ok");
    drop(upstream);
    in_time(was_closed.recv()).await.unwrap();
}

/// Starts a thread that answers the first request of each connection, and closes it without a
/// GOAWAY when told to.
fn closing(
    close: std::sync::mpsc::Receiver<()>,
    closed: std::sync::mpsc::Sender<()>,
) -> SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        while let Ok((stream, _)) = listener.accept() {
            stream.set_nonblocking(true).unwrap();
            runtime.block_on(async {
                let stream = TcpStream::from_std(stream).unwrap();
                let mut connection = h2::server::handshake(stream).await.unwrap();
                let (_, mut respond) = connection.accept().await.unwrap().unwrap();
                answer(&mut respond, "ok");
                // Sends the answer and goes on reading.
                while close.try_recv().is_err() {
                    let _ =
                        tokio::time::timeout(Duration::from_millis(5), connection.accept()).await;
                }
            });
            closed.send(()).unwrap();
        }
    });
    address
}

#[tokio::test]
async fn a_connection_that_was_closed_while_unused_is_noticed_before_a_request_is_sent() {
    let ((close, told), (tell, closed)) = (std::sync::mpsc::channel(), std::sync::mpsc::channel());
    let upstream = build(&Settings { protocol: Protocol::H2, ..settings(&[closing(told, tell)]) });
    for _ in 0..5 {
        let reply =
            in_time(upstream.send(post(Body::full(Bytes::from_static(b"payload"))))).await.unwrap();
        assert_eq!(text(reply).await, "ok");
        close.send(()).unwrap();
        // This thread is blocked meanwhile, so the proxy can't have seen the close.
        closed.recv_timeout(TEST_TIMEOUT).unwrap();
        std::thread::sleep(super::super::http1::IDLE_TRUSTED);
    }
}

#[tokio::test]
async fn a_plain_answer_goes_through_with_many_at_once() {
    let scripted = multiplexing(100, ok).await;
    let upstream = Arc::new(build(&settings_h2(&scripted)));
    let all: Vec<_> = (0..500)
        .map(|_| {
            let upstream = Arc::clone(&upstream);
            tokio::spawn(async move { text(upstream.send(get()).await.unwrap()).await })
        })
        .collect();
    for one in all {
        assert_eq!(in_time(one).await.unwrap(), "ok");
    }
    assert!(
        scripted.accepted() <= Http2Settings::default().connections_per_worker,
        "{}",
        scripted.accepted()
    );
}
