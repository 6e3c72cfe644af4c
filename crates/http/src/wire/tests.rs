//! Bodies from real connections of hyper and h2, over a pipe in memory.

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body::{Body as _, Frame};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncWriteExt, DuplexStream, duplex};
use tokio::sync::mpsc;

use super::*;
use crate::clock;

/// The body of a request that begins with `text`, and the client's end of its connection.
pub(crate) async fn incoming(text: &str) -> (DuplexStream, Incoming) {
    let (mut client, server) = duplex(64 << 10);
    let (bodies, mut body) = mpsc::channel(1);
    let service = hyper::service::service_fn(move |request: http::Request<Incoming>| {
        let bodies = bodies.clone();
        async move {
            bodies.send(request.into_body()).await.unwrap();
            // Never replies, so that the connection stays with this request.
            std::future::pending::<Result<http::Response<Body>, std::convert::Infallible>>().await
        }
    });
    tokio::spawn(
        hyper::server::conn::http1::Builder::new()
            .half_close(true)
            .serve_connection(TokioIo::new(server), service),
    );
    client.write_all(text.as_bytes()).await.unwrap();
    let body = body.recv().await.unwrap();
    (client, body)
}

pub(crate) const CHUNKED: &str = "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n";

/// Records each end that it is called with.
#[derive(Clone, Default)]
pub(crate) struct EndRecorder(Arc<Mutex<Vec<BodyEnd>>>);

impl EndRecorder {
    pub(crate) fn hook(&self) -> impl FnOnce(&BodyEnd) + Send + 'static {
        let ends = self.clone();
        move |end: &BodyEnd| ends.0.lock().unwrap().push(*end)
    }

    pub(crate) fn ends(&self) -> Vec<BodyEnd> {
        self.0.lock().unwrap().clone()
    }
}

fn end(outcome: BodyOutcome, bytes: u64, trailers: bool) -> Vec<BodyEnd> {
    vec![BodyEnd { outcome, bytes, trailers, rest_read: false }]
}

#[tokio::test]
async fn a_whole_body_declares_its_length_and_an_empty_one_its_end() {
    assert!(Body::empty().is_end_stream());
    assert_eq!(Body::empty().size_hint().exact(), Some(0));
    assert!(Body::full(Bytes::new()).is_end_stream());
    let body = Body::full(Bytes::from_static(b"hello"));
    assert!(!body.is_end_stream());
    assert_eq!(body.size_hint().exact(), Some(5));
    assert_eq!(body.collect().await.unwrap().to_bytes(), "hello");
}

#[tokio::test]
async fn a_body_without_content_does_not_stream() {
    let (_client, incoming) =
        incoming("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n").await;
    let body = Body::incoming(incoming);
    assert!(body.is_end_stream() && !body.is_streaming());
}

#[tokio::test]
async fn a_declared_length_is_known_and_its_last_byte_ends_the_body() {
    let (_client, incoming) =
        incoming("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\nhello").await;
    let ends = EndRecorder::default();
    let mut body = Body::incoming(incoming).on_end(ends.hook());
    assert_eq!(body.size_hint().exact(), Some(5));
    assert_eq!(ends.ends(), []);
    assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "hello");
    // Called with the last frame: hyper would drop the body now without polling it again.
    assert!(body.is_end_stream());
    assert_eq!(ends.ends(), end(BodyOutcome::Complete, 5, false));
    assert!(body.frame().await.is_none());
    drop(body);
    assert_eq!(ends.ends().len(), 1);
}

#[tokio::test]
async fn trailers_pass_and_are_reported() {
    let (mut client, incoming) = incoming(CHUNKED).await;
    client.write_all(b"3\r\nabc\r\n0\r\nx-sum: 6\r\n\r\n").await.unwrap();
    let ends = EndRecorder::default();
    let collected = Body::incoming(incoming).on_end(ends.hook()).collect().await.unwrap();
    assert_eq!(collected.trailers().unwrap()["x-sum"], "6");
    assert_eq!(collected.to_bytes(), "abc");
    assert_eq!(ends.ends(), end(BodyOutcome::Complete, 3, true));
}

/// Records the trailers that a hook is given.
struct Shown(Arc<Mutex<Vec<String>>>);

impl OnEnd for Shown {
    fn on_trailers(&mut self, trailers: &http::HeaderMap) {
        self.0.lock().unwrap().extend(trailers.keys().map(ToString::to_string));
    }

    fn on_end(self: Box<Self>, _end: &BodyEnd) {
        self.0.lock().unwrap().push("end".into());
    }
}

#[tokio::test]
async fn trailers_are_sifted_and_shown_to_the_hooks_before_the_end() {
    let (mut client, incoming) = incoming(CHUNKED).await;
    client.write_all(b"0\r\nx-sum: 6\r\nx-bad: 1\r\n\r\n").await.unwrap();
    let shown = Arc::new(Mutex::new(Vec::new()));
    let filter = |trailers: &mut http::HeaderMap| drop(trailers.remove("x-bad"));
    let body = Body::incoming(incoming)
        .filter_trailers(TrailerFilter::With(filter))
        .on_end_boxed(Box::new(Shown(Arc::clone(&shown))));
    assert_eq!(body.collect().await.unwrap().trailers().unwrap().len(), 1);
    assert_eq!(*shown.lock().unwrap(), ["x-sum", "end"]);
}

#[tokio::test]
async fn a_declared_length_above_the_limit_fails_before_anything_is_read() {
    let (_client, incoming) =
        incoming("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 6\r\n\r\n").await;
    let ends = EndRecorder::default();
    let mut body = Body::incoming(incoming).limit(5).on_end(ends.hook());
    assert!(body.is_declared_too_large());
    let error = body.frame().await.unwrap().unwrap_err();
    assert!(matches!(error, BodyError::TooLarge { limit_bytes: 5 }), "{error}");
    assert_eq!(ends.ends(), end(BodyOutcome::Failed(BodyFailure::TooLarge), 0, false));
    assert!(body.frame().await.is_none());
}

#[tokio::test]
async fn an_undeclared_length_fails_at_the_byte_above_the_limit_and_not_before() {
    let (mut client, incoming) = incoming(CHUNKED).await;
    let ends = EndRecorder::default();
    let mut body = Body::incoming(incoming).limit(5).on_end(ends.hook());
    client.write_all(b"5\r\nhello\r\n").await.unwrap();
    assert!(body.frame().await.unwrap().is_ok());
    client.write_all(b"1\r\n!\r\n").await.unwrap();
    assert!(matches!(
        body.frame().await.unwrap().unwrap_err(),
        BodyError::TooLarge { limit_bytes: 5 }
    ));
    assert_eq!(ends.ends(), end(BodyOutcome::Failed(BodyFailure::TooLarge), 5, false));
}

#[tokio::test]
async fn a_peer_that_stands_still_fails_after_the_idle_timeout_and_only_while_it_is_read() {
    const IDLE: Duration = Duration::from_millis(60);
    let (mut client, incoming) = incoming(CHUNKED).await;
    let ends = EndRecorder::default();
    let mut body = Body::incoming(incoming).idle_timeout(IDLE).on_end(ends.hook());
    for _ in 0..2 {
        client.write_all(b"1\r\na\r\n").await.unwrap();
        assert!(body.frame().await.unwrap().is_ok());
        // Starts to wait, so that the timer is armed.
        assert!(futures_poll(&mut body).is_none());
        client.write_all(b"1\r\na\r\n").await.unwrap();
        // Then nobody reads for longer than the timeout.
        tokio::time::sleep(IDLE * 2).await;
        assert!(body.frame().await.unwrap().is_ok());
    }
    let began = clock::monotonic();
    assert!(matches!(body.frame().await.unwrap().unwrap_err(), BodyError::Idle));
    assert!(clock::monotonic() - began >= IDLE - Duration::from_millis(2));
    assert_eq!(ends.ends(), end(BodyOutcome::Failed(BodyFailure::Idle), 4, false));
}

fn futures_poll(body: &mut Body) -> Option<Option<Result<Frame<Bytes>, BodyError>>> {
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    match Pin::new(body).poll_frame(&mut cx) {
        std::task::Poll::Ready(item) => Some(item),
        std::task::Poll::Pending => None,
    }
}

#[tokio::test]
async fn a_peer_that_goes_away_is_a_cut_and_a_reader_that_goes_away_a_drop() {
    let (mut client, body) = incoming(CHUNKED).await;
    let ends = EndRecorder::default();
    let mut body = Body::incoming(body).on_end(ends.hook());
    client.write_all(b"5\r\nhe").await.unwrap();
    assert!(body.frame().await.unwrap().is_ok());
    drop(client);
    let error = body.frame().await.unwrap().unwrap_err();
    assert!(matches!(error, BodyError::Cut(_)), "{error}");
    assert_eq!(ends.ends(), end(BodyOutcome::Failed(BodyFailure::Cut), 2, false));

    let (_client, body) = incoming(CHUNKED).await;
    let ends = EndRecorder::default();
    drop(Body::incoming(body).on_end(ends.hook()));
    assert_eq!(ends.ends(), end(BodyOutcome::Dropped, 0, false));
}

#[tokio::test]
async fn every_hook_is_told_once_and_in_order() {
    let order = Arc::new(Mutex::new(Vec::new()));
    let hook = |number: u8| {
        let order = Arc::clone(&order);
        move |end: &BodyEnd| order.lock().unwrap().push((number, end.outcome))
    };
    drop(Body::full(Bytes::from_static(b"x")).on_end(hook(1)).on_end(hook(2)));
    drop(Body::empty().on_end(hook(3)));
    assert_eq!(
        *order.lock().unwrap(),
        [(1, BodyOutcome::Dropped), (2, BodyOutcome::Dropped), (3, BodyOutcome::Complete)]
    );
}

#[test]
fn a_body_is_small_and_can_move_between_threads() {
    fn is_send<T: Send + Unpin>() {}
    is_send::<Body>();
    // It is moved with every request, so growing it has a cost.
    assert!(size_of::<Body>() <= 160, "{}", size_of::<Body>());
}

async fn fires(timer: &mut Timer) {
    std::future::poll_fn(|cx| timer.poll(cx)).await;
}

#[tokio::test]
async fn an_alarm_rings_at_the_deadline_set_last_whether_later_or_earlier() {
    let ms = Duration::from_millis;
    let began: Instant = clock::monotonic();
    let mut timer = Timer::default();
    // Far enough away for a busy machine.
    timer.arm(began + ms(2_000));
    assert!(tokio::time::timeout(ms(5), fires(&mut timer)).await.is_err());
    timer.arm(began + ms(2_060));
    fires(&mut timer).await;
    assert!(clock::monotonic() - began >= ms(2_060));
    assert!(!timer.is_armed());

    let began = clock::monotonic();
    timer.arm(began + ms(600_000));
    assert!(tokio::time::timeout(ms(5), fires(&mut timer)).await.is_err());
    timer.arm(began + ms(20));
    fires(&mut timer).await;
    assert!(clock::monotonic() - began < ms(60_000));
}

/// A request of HTTP/2 that declares `length`, as it arrives, and the client's end of its stream.
/// Both connections are driven until the end of the test.
async fn uploading(length: Option<&str>) -> (http::Request<h2::RecvStream>, h2::SendStream<Bytes>) {
    let (near, far) = tokio::io::duplex(64 << 10);
    let (sender, mut requests) = mpsc::channel(1);
    tokio::spawn(async move {
        let mut server = h2::server::handshake(far).await.unwrap();
        while let Some(accepted) = server.accept().await {
            // What would reply is kept, so that the stream stays open.
            sender.send(accepted.unwrap()).await.unwrap();
        }
    });
    let (mut client, connection) = h2::client::handshake(near).await.unwrap();
    tokio::spawn(connection);
    let mut request = http::Request::post("http://h/");
    if let Some(length) = length {
        request = request.header("content-length", length);
    }
    let (reply, upload) = client.send_request(request.body(()).unwrap(), false).unwrap();
    let (request, replier) = requests.recv().await.unwrap();
    tokio::spawn(async move {
        let _kept = (client, reply, replier);
        std::future::pending::<()>().await;
    });
    (request, upload)
}

#[tokio::test]
async fn an_upload_that_is_reset_is_not_whole_whatever_the_reason() {
    for reason in [h2::Reason::NO_ERROR, h2::Reason::CANCEL, h2::Reason::INTERNAL_ERROR] {
        let (request, mut upload) = uploading(None).await;
        let mut body = Body::request(RequestStream::new(request.into_body(), None, None));
        upload.send_data(Bytes::from_static(b"half"), false).unwrap();
        assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "half");
        upload.send_reset(reason);
        let read = body.collect().await.map(|whole| whole.to_bytes());
        assert!(matches!(read, Err(BodyError::Reset)), "{reason}: {read:?}");
    }
}

#[tokio::test]
async fn what_is_left_of_a_declared_length_is_known_while_it_comes() {
    let (request, mut upload) = uploading(Some("5")).await;
    let length = declared_length(request.headers());
    assert_eq!(length, Some(5));
    let ends = EndRecorder::default();
    let stream = RequestStream::new(request.into_body(), length, None);
    let mut body = Body::request(stream).on_end(ends.hook());
    assert_eq!(body.size_hint().exact(), Some(5));
    upload.send_data(Bytes::from_static(b"hel"), false).unwrap();
    assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "hel");
    assert_eq!(body.size_hint().exact(), Some(2));
    upload.send_data(Bytes::from_static(b"lo"), true).unwrap();
    assert_eq!(body.collect().await.unwrap().to_bytes(), "lo");
    assert_eq!(ends.ends(), end(BodyOutcome::Complete, 5, false));
}

#[test]
fn a_length_is_declared_once_or_several_times_alike() {
    let declared = |lengths: &[&'static str]| {
        let of = |length: &&'static str| {
            (http::header::CONTENT_LENGTH, http::HeaderValue::from_static(length))
        };
        declared_length(&lengths.iter().map(of).collect())
    };
    assert_eq!(declared(&[]), None);
    assert_eq!(declared(&["7"]), Some(7));
    assert_eq!(declared(&["+7"]), None);
    assert_eq!(declared(&["x"]), None);
}
