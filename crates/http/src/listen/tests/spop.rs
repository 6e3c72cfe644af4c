//! SPOP as HAProxy speaks it. `tests/interop` has HAProxy itself.

use super::*;
use crate::listen::spop::frame::tests::{asked, ended, greeted, id, number, text, usual};
use crate::listen::spop::frame::{Fault, Hello, Variable, answer, disconnect, greeting};

const HELLO: Hello = Hello { frame_bytes_max: 16_380, pipelines: true, is_check: false };

fn start_agent(settings: ConnectionSettings) -> TestServer {
    let server = start(settings);
    server.handler.0.speaks_spop.store(true, Ordering::SeqCst);
    server
}

/// HAProxy's end of a connection.
struct Engine(TcpStream);

impl Engine {
    async fn connect(server: &TestServer) -> Self {
        let mut engine = Self(TcpStream::connect(server.address).await.unwrap());
        engine.send(&greeted(&usual())).await;
        assert_eq!(engine.next().await, Some(greeting(HELLO)));
        engine
    }

    async fn send(&mut self, frame: &[u8]) {
        let length = (frame.len() as u32).to_be_bytes();
        self.0.write_all(&[&length[..], frame].concat()).await.unwrap();
    }

    async fn ask(&mut self, number: u64, target: &str) {
        self.send(&asked(number, &about(target, "host: a.example\r\n\r\n"))).await;
    }

    /// The next frame with its length; `None` at the end.
    async fn next(&mut self) -> Option<Vec<u8>> {
        let read = async {
            let mut frame = vec![0; 4];
            self.0.read_exact(&mut frame).await.ok()?;
            let length = u32::from_be_bytes(frame[..4].try_into().unwrap()) as usize;
            frame.resize(4 + length, 0);
            self.0.read_exact(&mut frame[4..]).await.unwrap();
            Some(frame)
        };
        tokio::time::timeout(TEST_TIMEOUT, read).await.expect("a frame, or the end")
    }
}

fn about(target: &str, fields: &str) -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("method", text("GET")),
        ("uri", text(target)),
        ("headers", text(fields)),
        ("src", vec![6, 192, 0, 2, 1]),
        ("tls", vec![0x11]),
    ]
}

fn answered(number: u64, status: u64, body: &str) -> Vec<u8> {
    let status = ("status".to_owned(), Variable::Number(status));
    let body = ("body".to_owned(), Variable::Text(body.into()));
    answer(id(number), &[status, body], 16_380)
}

#[tokio::test]
async fn each_question_has_its_answer_however_long_another_takes() {
    let server = start_agent(settings());
    let mut engine = Engine::connect(&server).await;
    engine.ask(1, "/wait").await;
    engine.ask(2, "/hello").await;
    assert_eq!(engine.next().await, Some(answered(2, 200, "hello")));
    engine.ask(3, "/no").await;
    assert_eq!(engine.next().await, Some(answered(3, 429, "no")));
    server.handler.0.go.notify_one();
    assert_eq!(engine.next().await, Some(answered(1, 200, "waited")));
    engine.send(&ended()).await;
    assert_eq!(engine.next().await, Some(disconnect(Fault::Normal)));
    assert_eq!(engine.next().await, None);
}

#[tokio::test]
async fn the_client_is_whom_haproxy_names() {
    let server = start_agent(settings());
    let mut engine = Engine::connect(&server).await;
    let fields = "Host: a.example\r\nX-Forwarded-For: 198.51.100.9\r\nX-Forwarded-Proto: gopher\r\n\
        Accept: a/b\r\nAccept: c/d\r\n";
    engine.send(&asked(1, &about("/fields", fields))).await;
    let variables = [
        ("status".to_owned(), Variable::Number(200)),
        ("h_x_host".to_owned(), Variable::Text(b"a.example".to_vec())),
        ("h_x_x_forwarded_for".to_owned(), Variable::Text(b"192.0.2.1".to_vec())),
        ("h_x_x_forwarded_proto".to_owned(), Variable::Text(b"https".to_vec())),
        ("h_x_accept".to_owned(), Variable::Text(b"a/b, c/d".to_vec())),
    ];
    assert_eq!(engine.next().await, Some(answer(id(1), &variables, 16_380)));
}

#[tokio::test]
async fn what_is_no_request_is_answered_as_one_that_can_not_be_read() {
    let server = start_agent(settings());
    let mut engine = Engine::connect(&server).await;
    let without = |name: &str| {
        let mut all = about("/hello", "host: a\r\n\r\n");
        all.retain(|(own, _)| *own != name);
        all
    };
    let wrong = [
        without("method"),
        without("uri"),
        without("headers"),
        without("src"),
        without("tls"),
        [about("/hello", "host: a\r\n\r\n"), vec![("src", text("192.0.2.1"))]].concat(),
        about("/hello#/../costly", "host: a\r\n\r\n"),
        about("http://b/hello", "host: a\r\n\r\n"),
        about("/hello HTTP/1.1\r\nx: y", "host: a\r\n\r\n"),
        about("/hello", "host: a\r\nno field\r\n\r\n"),
        about("/hello", "host: a\r\n\r\nGET / HTTP/1.1\r\n\r\n"),
    ];
    for (number, question) in (1..).zip(wrong) {
        engine.send(&asked(number, &question)).await;
        let expected = answered(number, 400, "unreadable: 400 Bad Request");
        assert_eq!(engine.next().await, Some(expected), "{question:?}");
    }
    assert_eq!(server.handler.0.calls.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn what_is_no_spop_ends_the_connection() {
    let server = start_agent(settings());
    let no_version = greeted(&usual()[1..]);
    let small = greeted(&[("supported-versions", text("2.0")), ("max-frame-size", number(100))]);
    for (sent, fault) in [
        (b"GET / HTTP/1.1\r\n\r\n".to_vec(), Fault::Invalid),
        (asked(1, &about("/hello", "")), Fault::Invalid),
        (no_version, Fault::NoVersion),
        (small, Fault::FrameSize),
    ] {
        let mut engine = Engine(TcpStream::connect(server.address).await.unwrap());
        engine.send(&sent).await;
        assert_eq!(engine.next().await, Some(disconnect(fault)));
        assert_eq!(engine.next().await, None);
    }
    // HTTP, whose first bytes are a length of a gigabyte.
    let mut engine = Engine(TcpStream::connect(server.address).await.unwrap());
    engine.0.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    assert_eq!(engine.next().await, Some(disconnect(Fault::TooBig)));
    let mut engine = Engine::connect(&server).await;
    engine.send(&greeted(&usual())).await;
    assert_eq!(engine.next().await, Some(disconnect(Fault::Invalid)), "greeted twice");
    server.await_shown("weir_connection_errors_total{cause=\"malformed\"} 6").await;
}

#[tokio::test]
async fn whoever_only_looks_is_greeted() {
    let server = start_agent(settings());
    let mut engine = Engine(TcpStream::connect(server.address).await.unwrap());
    engine.send(&greeted(&[usual(), vec![("healthcheck", vec![0x11])]].concat())).await;
    assert_eq!(engine.next().await, Some(greeting(HELLO)));
    assert_eq!(engine.next().await, None);
}

#[tokio::test]
async fn a_question_ends_with_its_connection() {
    let server = start_agent(settings());
    let mut engine = Engine::connect(&server).await;
    engine.ask(1, "/wait").await;
    server.handler.0.begun.notified().await;
    drop(engine);
    tokio::time::timeout(TEST_TIMEOUT, server.handler.0.dropped.notified()).await.unwrap();
}

#[tokio::test]
async fn a_drain_waits_for_answers() {
    let server = start_agent(settings());
    let mut idle = Engine::connect(&server).await;
    let mut busy = Engine::connect(&server).await;
    busy.ask(1, "/wait").await;
    server.handler.0.begun.notified().await;
    server.drain.start();
    assert_eq!(idle.next().await, Some(disconnect(Fault::Normal)));
    server.handler.0.go.notify_one();
    assert_eq!(busy.next().await, Some(answered(1, 200, "waited")));
    assert_eq!(busy.next().await, Some(disconnect(Fault::Normal)));
    assert_eq!((idle.next().await, busy.next().await), (None, None));
}

#[tokio::test]
async fn what_was_sent_before_a_drain_is_answered() {
    let server = start_agent(settings());
    let mut engine = Engine::connect(&server).await;
    // The worker has read neither when it is told.
    engine.ask(1, "/hello").await;
    server.drain.start();
    assert_eq!(engine.next().await, Some(answered(1, 200, "hello")));
    engine.ask(2, "/hello").await;
    assert_eq!(engine.next().await, Some(answered(2, 200, "hello")));
    assert_eq!(engine.next().await, Some(disconnect(Fault::Normal)));
}

#[tokio::test]
async fn no_more_questions_are_open_than_may_be() {
    let server = start_agent(settings());
    let mut engine = Engine::connect(&server).await;
    let mut all = Vec::new();
    for number in 0..300 {
        let frame = asked(number, &about("/wait", "host: a\r\n\r\n"));
        all.extend_from_slice(&(frame.len() as u32).to_be_bytes());
        all.extend_from_slice(&frame);
    }
    engine.0.write_all(&all).await.unwrap();
    let calls = || server.handler.0.calls.load(Ordering::SeqCst);
    while calls() < 256 {
        tokio::task::yield_now().await;
    }
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert_eq!(calls(), 256);
    for answered in 0..300 {
        server.handler.0.go.notify_one();
        assert!(engine.next().await.is_some(), "{answered}");
    }
    assert_eq!(calls(), 300);
}

#[tokio::test]
async fn whoever_says_nothing_is_not_waited_for() {
    let soon = Duration::from_millis(100);
    let server =
        start_agent(ConnectionSettings { request_header: soon, keep_alive: soon, ..settings() });
    let mut silent = Engine(TcpStream::connect(server.address).await.unwrap());
    assert_eq!(silent.next().await, None, "no greeting");
    let mut idle = Engine::connect(&server).await;
    assert_eq!(idle.next().await, Some(disconnect(Fault::Normal)));
    let mut slow = Engine::connect(&server).await;
    slow.0.write_all(&[0, 0, 0, 9, 3]).await.unwrap();
    assert_eq!(slow.next().await, None, "a part of a frame");
    // An answer that takes longer ends nothing.
    let mut busy = Engine::connect(&server).await;
    busy.ask(1, "/wait").await;
    server.handler.0.begun.notified().await;
    tokio::time::sleep(3 * soon).await;
    server.handler.0.go.notify_one();
    assert_eq!(busy.next().await, Some(answered(1, 200, "waited")));
}
