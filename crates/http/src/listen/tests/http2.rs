//! HTTP/2: by ALPN and with prior knowledge, its streams, and how they end.

use bytes::Bytes;
use http_body::Frame;
use http_body_util::{BodyExt, Empty, Full, combinators::BoxBody};
use hyper::client::conn::http2::SendRequest;
use hyper_util::rt::TokioIo;

use super::certificates::{client, handshake, listener, tls};
use super::*;
use crate::clock;
use crate::pki::Pki;

#[derive(Clone)]
struct LocalExecutor;

impl<F: Future<Output: Send> + Send + 'static> hyper::rt::Executor<F> for LocalExecutor {
    fn execute(&self, work: F) {
        tokio::spawn(work);
    }
}

type Outgoing = BoxBody<Bytes, std::convert::Infallible>;

/// A body that arrives piece by piece.
struct Upload(tokio::sync::mpsc::Receiver<Frame<Bytes>>);

impl http_body::Body for Upload {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        self.0.poll_recv(cx).map(|frame| frame.map(Ok))
    }
}

fn upload() -> (tokio::sync::mpsc::Sender<Frame<Bytes>>, Outgoing) {
    let (sender, receiver) = tokio::sync::mpsc::channel(1);
    (sender, Upload(receiver).boxed())
}

fn empty() -> Outgoing {
    Empty::new().boxed()
}

/// Starts HTTP/2 on a stream. The task that drives the connection is returned too.
async fn speak<S>(stream: S) -> (SendRequest<Outgoing>, JoinHandle<hyper::Result<()>>)
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let (sender, connection) =
        hyper::client::conn::http2::handshake(LocalExecutor, TokioIo::new(stream)).await.unwrap();
    (sender, tokio::spawn(connection))
}

async fn connect(server: &TestServer) -> (SendRequest<Outgoing>, JoinHandle<hyper::Result<()>>) {
    speak(TcpStream::connect(server.address).await.unwrap()).await
}

fn request(path: &str, body: Outgoing) -> http::Request<Outgoing> {
    http::Request::builder().uri(format!("http://api.example{path}")).body(body).unwrap()
}

async fn get(sender: &mut SendRequest<Outgoing>, path: &str) -> (u16, String) {
    let reply = tokio::time::timeout(TEST_TIMEOUT, sender.send_request(request(path, empty())))
        .await
        .expect("no reply")
        .unwrap();
    let status = reply.status().as_u16();
    let body = reply.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

#[tokio::test]
async fn it_is_spoken_by_alpn_and_by_prior_knowledge() {
    let pki = Pki::new();
    let server = start_tls(settings(), Some(tls(&listener(&[pki.server(&["api.example"])]))));
    let stream =
        handshake(&server, client(&pki.ca, &[b"http/1.1", b"h2"]), "api.example").await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let (mut sender, _connection) = speak(stream).await;
    assert_eq!(
        get(&mut sender, "/tls").await,
        (200, "true Some(\"api.example\") None HTTP/2.0".into())
    );
    server.set_tls(None);
    let (mut sender, _connection) = connect(&server).await;
    assert_eq!(get(&mut sender, "/tls").await, (200, "false None None HTTP/2.0".into()));
    // The same port still serves HTTP/1.1.
    server.connect().await.get("/hello", "hello").await;
}

#[tokio::test]
async fn requests_run_side_by_side_and_one_that_is_cancelled_ends_its_handler() {
    let server = start(settings());
    let (mut sender, _connection) = connect(&server).await;
    let mut waiting = sender.clone();
    let waiting = tokio::spawn(async move { get(&mut waiting, "/wait").await });
    server.handler.0.begun.notified().await;
    assert_eq!(get(&mut sender, "/hello").await, (200, "hello".into()));
    server.handler.0.go.notify_one();
    assert_eq!(waiting.await.unwrap(), (200, "waited".into()));

    let mut cancelled = sender.clone();
    let cancelled = tokio::spawn(async move { get(&mut cancelled, "/wait").await });
    server.handler.0.begun.notified().await;
    cancelled.abort();
    tokio::time::timeout(TEST_TIMEOUT, server.handler.0.dropped.notified())
        .await
        .expect("the handler lives on");
    assert_eq!(get(&mut sender, "/empty").await, (200, String::new()));
}

#[tokio::test]
async fn bodies_and_trailers_pass_both_ways() {
    let server = start(settings());
    let (mut sender, _connection) = connect(&server).await;
    let (upload, body) = upload();
    let replying = sender.send_request(request("/echo", body));
    upload.send(Frame::data("abc".into())).await.unwrap();
    let mut reply = replying.await.unwrap().into_body();
    assert_eq!(reply.frame().await.unwrap().unwrap().into_data().unwrap(), "abc");
    upload.send(Frame::data("de".into())).await.unwrap();
    let trailers = http::HeaderMap::from_iter([("x-sum".parse().unwrap(), "5".parse().unwrap())]);
    upload.send(Frame::trailers(trailers)).await.unwrap();
    drop(upload);
    let rest = reply.collect().await.unwrap();
    assert_eq!(rest.trailers().unwrap()["x-sum"], "5");
    assert_eq!(rest.to_bytes(), "de");
}

#[tokio::test]
async fn a_refused_upload_is_answered_and_the_connection_goes_on() {
    let server = start(settings());
    let (mut sender, _connection) = connect(&server).await;
    let upload = Full::new(Bytes::from(vec![b'z'; 4 << 20])).boxed();
    let reply = sender.send_request(request("/refused", upload)).await.unwrap();
    assert_eq!(reply.status(), 429);
    assert_eq!(reply.into_body().collect().await.unwrap().to_bytes(), "no");
    assert_eq!(get(&mut sender, "/hello").await.0, 200);
}

#[tokio::test]
async fn a_head_above_the_limit_is_431_and_harms_no_other_stream() {
    let server = start(ConnectionSettings { header_bytes_max: 4 << 10, ..settings() });
    let (mut sender, _connection) = connect(&server).await;
    assert_eq!(get(&mut sender, "/hello").await.0, 200);
    let mut large = request("/hello", empty());
    large.headers_mut().insert("x", "y".repeat(5 << 10).parse().unwrap());
    assert_eq!(sender.send_request(large).await.unwrap().status(), 431);
    assert_eq!(server.handler.0.calls.load(Ordering::SeqCst), 1);
    assert_eq!(get(&mut sender, "/hello").await.0, 200);
}

#[tokio::test]
async fn an_idle_connection_is_closed_with_a_goodbye_and_a_silent_one_sooner() {
    const KEEP: Duration = Duration::from_millis(400);
    let server = start(ConnectionSettings {
        request_header: Duration::from_millis(100),
        keep_alive: KEEP,
        ..settings()
    });
    let (mut sender, connection) = connect(&server).await;
    for _ in 0..3 {
        assert_eq!(get(&mut sender, "/hello").await.0, 200);
        tokio::time::sleep(KEEP / 2).await;
    }
    assert_eq!(get(&mut sender, "/hello").await.0, 200);
    let began = clock::monotonic();
    // Without an error, because a GOAWAY came first.
    tokio::time::timeout(TEST_TIMEOUT, connection).await.expect("never closed").unwrap().unwrap();
    assert!(clock::monotonic() - began >= KEEP - Duration::from_millis(5));
    let (_sender, connection) = connect(&server).await;
    let _ = tokio::time::timeout(TEST_TIMEOUT, connection).await.expect("never closed").unwrap();
    server.await_shown("weir_connection_errors_total{cause=\"head_timeout\"} 1").await;
    server.await_shown("weir_connections_open 0").await;
}

#[tokio::test]
async fn a_request_that_takes_long_is_not_cut_by_the_idle_time() {
    let short = Duration::from_millis(60);
    let server =
        start(ConnectionSettings { request_header: short, keep_alive: short, ..settings() });
    let (mut sender, _connection) = connect(&server).await;
    let waiting = tokio::spawn(async move { get(&mut sender, "/wait").await });
    server.handler.0.begun.notified().await;
    tokio::time::sleep(short * 4).await;
    server.handler.0.go.notify_one();
    assert_eq!(waiting.await.unwrap().1, "waited");
}

#[tokio::test]
async fn a_drain_says_goodbye_finishes_the_streams_and_closes() {
    let server = start(settings());
    let (mut idle, idle_connection) = connect(&server).await;
    get(&mut idle, "/hello").await;
    let (mut busy, busy_connection) = connect(&server).await;
    let mut late = busy.clone();
    let waiting = tokio::spawn(async move { get(&mut busy, "/wait").await });
    server.handler.0.begun.notified().await;
    server.drain.start();
    tokio::time::timeout(TEST_TIMEOUT, idle_connection)
        .await
        .expect("never closed")
        .unwrap()
        .unwrap();
    server.await_shown("weir_connections_open 1").await;
    // No new request is sent: the client knows of the GOAWAY and refuses it itself.
    while late.send_request(request("/hello", empty())).await.is_ok() {
        tokio::task::yield_now().await;
    }
    assert!(!server.serving.is_finished());
    server.handler.0.go.notify_one();
    assert_eq!(waiting.await.unwrap().1, "waited");
    drop(late);
    tokio::time::timeout(TEST_TIMEOUT, server.serving)
        .await
        .expect("serve() does not return")
        .unwrap();
    busy_connection.await.unwrap().unwrap();
}

#[tokio::test]
async fn streams_end_before_serve_returns_after_the_grace_period() {
    let server = start(settings());
    let (mut sender, _connection) = connect(&server).await;
    let waiting =
        tokio::spawn(async move { sender.send_request(request("/wait", empty())).await.is_err() });
    server.handler.0.begun.notified().await;
    server.drain.start();
    server.drain.cut();
    tokio::time::timeout(TEST_TIMEOUT, server.serving)
        .await
        .expect("serve() does not return")
        .unwrap();
    // It must have ended before, since the caller of `serve` then settles what is left.
    tokio::time::timeout(Duration::ZERO, server.handler.0.dropped.notified())
        .await
        .expect("the handler outlived serve()");
    assert!(waiting.await.unwrap());
}

#[tokio::test]
async fn a_stream_whose_client_takes_nothing_is_given_up_and_the_others_go_on() {
    const IDLE: Duration = Duration::from_millis(400);
    let server = start(ConnectionSettings { send_idle: IDLE, ..settings() });
    let (mut sender, _connection) = connect(&server).await;
    let (upload, body) = upload();
    let reply = sender.send_request(request("/echo", body)).await.unwrap();
    let uploading = tokio::spawn(async move {
        while upload.send(Frame::data(vec![0; 64 << 10].into())).await.is_ok() {}
    });
    let began = clock::monotonic();
    let mut other = sender.clone();
    while !uploading.is_finished() {
        assert_eq!(get(&mut other, "/hello").await.0, 200);
        assert!(clock::monotonic() - began < TEST_TIMEOUT, "never given up");
        tokio::time::sleep(IDLE / 10).await;
    }
    assert!(clock::monotonic() - began >= IDLE);
    // What had arrived is delivered, then the reset.
    assert!(reply.into_body().collect().await.is_err());
    assert_eq!(get(&mut other, "/hello").await.0, 200);
}

#[tokio::test]
async fn a_connection_whose_client_reads_nothing_is_given_up() {
    let server = start(ConnectionSettings { send_idle: Duration::from_millis(300), ..settings() });
    let mut raw = flood::Raw::connect(&server).await;
    // The widest windows, and then not a byte is read.
    raw.send(4, 0, 0, &[0, 4, 0x7f, 0xff, 0xff, 0xff]).await;
    raw.send(8, 0, 0, &[0x7f, 0xff, 0, 0]).await;
    raw.request(1, "/long").await;
    server.await_shown("weir_connection_errors_total{cause=\"send_timeout\"} 1").await;
    server.await_shown("weir_connections_open 0").await;
}

/// A client that sees interim replies.
async fn plain_h2(server: &TestServer) -> h2::client::SendRequest<Bytes> {
    let stream = TcpStream::connect(server.address).await.unwrap();
    let (client, connection) = h2::client::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    client
}

/// The statuses and `link` fields of the interim replies that come before the reply.
async fn interim(reply: &mut h2::client::ResponseFuture) -> Vec<(u16, String)> {
    let mut seen = Vec::new();
    let all = async {
        while let Some(head) = std::future::poll_fn(|cx| reply.poll_informational(cx)).await {
            let head = head.unwrap();
            let link = head.headers().get("link").map(|link| link.to_str().unwrap().to_owned());
            seen.push((head.status().as_u16(), link.unwrap_or_default()));
        }
    };
    tokio::time::timeout(TEST_TIMEOUT, all).await.expect("no reply");
    seen
}

fn post(path: &str, expects: bool) -> http::Request<()> {
    let mut request = http::Request::post(format!("http://api.example{path}"));
    if expects {
        request = request.header("expect", "100-Continue");
    }
    request.body(()).unwrap()
}

#[tokio::test]
async fn a_client_that_waits_for_a_100_gets_it_when_its_body_is_wanted() {
    let server = start(settings());
    let mut client = plain_h2(&server).await;
    let (mut reply, mut upload) = client.send_request(post("/upload", true), false).unwrap();
    let continued = std::future::poll_fn(|cx| reply.poll_informational(cx));
    let continued = tokio::time::timeout(TEST_TIMEOUT, continued).await.expect("never asked for");
    assert_eq!(continued.unwrap().unwrap().status(), 100);
    upload.send_data("a body".into(), true).unwrap();
    assert_eq!(interim(&mut reply).await, []);
    assert_eq!(reply.await.unwrap().status(), 200);
    // One that does not wait gets none, nor one that has sent its body already.
    for expects in [false, true] {
        let (mut reply, mut upload) =
            client.send_request(post("/upload-later", expects), false).unwrap();
        server.handler.0.begun.notified().await;
        upload.send_data("a body".into(), true).unwrap();
        get_with(&mut client, "/hello").await;
        server.handler.0.go.notify_one();
        assert_eq!(interim(&mut reply).await, []);
        assert_eq!(reply.await.unwrap().status(), 200);
    }
}

/// The status of a request on a connection of h2's own.
async fn get_with(client: &mut h2::client::SendRequest<Bytes>, path: &str) -> u16 {
    let request = http::Request::get(format!("http://api.example{path}")).body(()).unwrap();
    let (reply, _) = client.send_request(request, true).unwrap();
    tokio::time::timeout(TEST_TIMEOUT, reply).await.expect("no reply").unwrap().status().as_u16()
}

#[tokio::test]
async fn a_refused_client_that_waits_for_a_100_gets_the_refusal_alone() {
    let server = start(settings());
    let mut client = plain_h2(&server).await;
    let (mut reply, mut upload) = client.send_request(post("/refused", true), false).unwrap();
    assert_eq!(interim(&mut reply).await, []);
    let mut reply = reply.await.unwrap().into_parts().1;
    assert_eq!(reply.data().await.unwrap().unwrap(), "no");
    // curl takes a reset after the reply for a failure. It would have come by now.
    assert_eq!(get_with(&mut client, "/hello").await, 200);
    let reset = std::future::poll_fn(|cx| Poll::Ready(upload.poll_reset(cx))).await;
    assert!(reset.is_pending(), "{reset:?}");
}

#[tokio::test]
async fn a_reply_that_is_not_read_keeps_no_other_stream_from_its_end() {
    let server = start(settings());
    let stream = TcpStream::connect(server.address).await.unwrap();
    let opening =
        h2::client::Builder::new().initial_window_size(1).handshake::<_, Bytes>(stream).await;
    let (mut client, connection) = opening.unwrap();
    tokio::spawn(connection);
    let request = http::Request::get("http://api.example/hello").body(()).unwrap();
    let _unread = client.send_request(request, true).unwrap().0.await.unwrap();
    // An upload that is refused is read on for a while, and then reset.
    let (reply, mut upload) = client.send_request(post("/refused", false), false).unwrap();
    let mut body = reply.await.unwrap().into_body();
    while let Some(data) = body.data().await {
        body.flow_control().release_capacity(data.unwrap().len()).unwrap();
    }
    let reset = std::future::poll_fn(|cx| {
        upload.reserve_capacity(16 << 10);
        while let Poll::Ready(Some(Ok(bytes))) = upload.poll_capacity(cx) {
            let piece = vec![0; bytes.min(16 << 10)];
            if upload.send_data(piece.into(), false).is_err() {
                break;
            }
            upload.reserve_capacity(16 << 10);
        }
        upload.poll_reset(cx)
    });
    let reset = tokio::time::timeout(TEST_TIMEOUT, reset).await.expect("the upload hangs");
    assert_eq!(reset.unwrap(), h2::Reason::NO_ERROR);
}

#[tokio::test]
async fn interim_replies_come_before_the_reply_as_many_as_fit() {
    let server = start(settings());
    let mut client = plain_h2(&server).await;
    let (mut reply, _) = client.send_request(post("/hints", false), true).unwrap();
    let hints = interim(&mut reply).await;
    // Each has a field of 1,000 bytes, and 16 KiB are taken.
    assert_eq!(hints.len(), 15, "{hints:?}");
    let expected = |(number, hint): (usize, &(u16, String))| {
        hint.0 == 103 && hint.1.trim_end_matches('x') == format!("<{number}>; ")
    };
    assert!(hints.iter().enumerate().all(expected), "{hints:?}");
    assert_eq!(reply.await.unwrap().status(), 200);
}

#[tokio::test]
async fn a_reply_has_a_date_and_a_length_and_nothing_of_its_connection() {
    let server = start(settings());
    let (mut sender, _connection) = connect(&server).await;
    let reply = sender.send_request(request("/hop", empty())).await.unwrap();
    let date = reply.headers()["date"].to_str().unwrap();
    assert!(httpdate::parse_http_date(date).is_ok(), "{date}");
    assert_eq!(reply.headers()["content-length"], "3");
    let mut names: Vec<&str> = reply.headers().keys().map(|name| name.as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["content-length", "date", "x-kept"]);
    let reply = sender.send_request(request("/dated", empty())).await.unwrap();
    assert_eq!(reply.headers()["date"], "then");
    let mut head = request("/hello", empty());
    *head.method_mut() = http::Method::HEAD;
    let reply = sender.send_request(head).await.unwrap();
    assert_eq!(reply.headers()["content-length"], "5");
    assert_eq!(reply.into_body().collect().await.unwrap().to_bytes(), "");
}

#[tokio::test]
async fn a_reply_without_a_body_has_none_whatever_it_was_given() {
    let server = start(settings());
    let (mut sender, _connection) = connect(&server).await;
    let reply = sender.send_request(request("/no-content", empty())).await.unwrap();
    assert_eq!(reply.status(), 204);
    assert!(!reply.headers().contains_key("content-length"), "{reply:?}");
    assert_eq!(reply.into_body().collect().await.unwrap().to_bytes(), "");
    // The body of this one breaks off.
    let mut head = request("/cut", empty());
    *head.method_mut() = http::Method::HEAD;
    let reply = sender.send_request(head).await.unwrap();
    assert_eq!(reply.status(), 200);
    assert_eq!(reply.into_body().collect().await.unwrap().to_bytes(), "");
}

#[tokio::test]
async fn a_length_that_is_declared_twice_is_one_field() {
    let server = start(settings());
    let mut client = plain_h2(&server).await;
    let mut request = post("/lengths", false);
    for _ in 0..2 {
        request.headers_mut().append("content-length", "6".parse().unwrap());
    }
    let (reply, mut upload) = client.send_request(request, false).unwrap();
    upload.send_data("a body".into(), true).unwrap();
    let mut body = reply.await.unwrap().into_body();
    assert_eq!(body.data().await.unwrap().unwrap(), "1");
}

#[tokio::test]
async fn a_reply_whose_body_breaks_off_is_reset() {
    let server = start(settings());
    let mut client = plain_h2(&server).await;
    let request = http::Request::get("http://api.example/cut").body(()).unwrap();
    let (reply, _) = client.send_request(request, true).unwrap();
    // What was not sent yet is lost, and that may be all of it.
    let read = async {
        let mut body = reply.await?.into_body();
        while let Some(data) = body.data().await {
            data?;
        }
        Ok(())
    };
    let read: Result<(), h2::Error> = read.await;
    let error = read.expect_err("it looks whole");
    assert_eq!(error.reason(), Some(h2::Reason::INTERNAL_ERROR));
    assert_eq!(get_with(&mut client, "/hello").await, 200);
}

/// An extended CONNECT for the protocol that the handler echoes.
async fn tunnel(
    client: &mut h2::client::SendRequest<Bytes>,
    path: &str,
) -> (h2::SendStream<Bytes>, h2::RecvStream) {
    while !client.is_extended_connect_protocol_enabled() {
        tokio::task::yield_now().await;
    }
    let mut request = http::Request::connect(format!("http://api.example{path}")).body(()).unwrap();
    request.extensions_mut().insert(h2::ext::Protocol::from_static("echo"));
    let (reply, send) = client.send_request(request, false).unwrap();
    let reply = reply.await.unwrap();
    assert_eq!(reply.status(), 200);
    assert!(!reply.headers().contains_key("content-length"), "{reply:?}");
    (send, reply.into_body())
}

#[tokio::test]
async fn a_tunnel_echoes_more_than_it_buffers_and_ends_with_either_side() {
    const BYTES: usize = 4 << 20;
    let server = start(settings());
    let mut client = plain_h2(&server).await;
    let (mut send, mut receive) = tunnel(&mut client, "/upgrade").await;
    let sending = tokio::spawn(async move {
        for _ in 0..BYTES / (64 << 10) {
            send.reserve_capacity(64 << 10);
            while send.capacity() < 64 << 10 {
                std::future::poll_fn(|cx| send.poll_capacity(cx)).await.unwrap().unwrap();
            }
            send.send_data(vec![7; 64 << 10].into(), false).unwrap();
        }
        send.send_data(Bytes::new(), true).unwrap();
    });
    let mut received = 0;
    while let Some(data) = receive.data().await {
        let bytes = data.unwrap().len();
        receive.flow_control().release_capacity(bytes).unwrap();
        received += bytes;
    }
    assert_eq!(received, BYTES);
    sending.await.unwrap();
    server.handler.0.dropped.notified().await;
    // One that the client resets ends too.
    let (mut send, _receive) = tunnel(&mut client, "/upgrade").await;
    send.send_reset(h2::Reason::CANCEL);
    tokio::time::timeout(TEST_TIMEOUT, server.handler.0.dropped.notified())
        .await
        .expect("the tunnel lives on");
    drop(client);
    server.await_shown("weir_connections_open 0").await;
}

#[tokio::test]
async fn what_a_tunnel_has_written_is_sent_although_it_is_dropped() {
    let server = start(settings());
    let mut client = plain_h2(&server).await;
    let (_send, mut receive) = tunnel(&mut client, "/last-words").await;
    assert_eq!(receive.data().await.unwrap().unwrap(), "goodbye");
    while let Some(end) = receive.data().await {
        assert_eq!(end.expect("no reset"), "");
    }
}

#[tokio::test]
async fn what_a_tunnel_has_written_keeps_the_connection_open_until_it_is_read() {
    let short = Duration::from_millis(50);
    let server = start(ConnectionSettings { keep_alive: short, ..settings() });
    let stream = TcpStream::connect(server.address).await.unwrap();
    let builder = h2::client::Builder::new().initial_window_size(1).handshake(stream).await;
    let (mut client, connection) = builder.unwrap();
    tokio::spawn(connection);
    let (_send, mut receive) = tunnel(&mut client, "/last-words").await;
    let mut text = Vec::new();
    while let Some(data) = receive.data().await {
        let data = data.expect("no reset");
        text.extend_from_slice(&data);
        // Longer than a connection may be idle.
        tokio::time::sleep(2 * short).await;
        if text == b"goodby" {
            assert_eq!(get_with(&mut client, "/empty").await, 200, "no GOAWAY has come");
        }
        receive.flow_control().release_capacity(data.len()).unwrap();
    }
    assert_eq!(text, b"goodbye");
}
