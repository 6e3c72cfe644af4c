//! Binding, requests, limits and timeouts.

use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::duplex;

use super::super::state::ConnectionState;
use super::super::stream::{ClientStream, LINGER_MS};
use super::*;
use crate::clock;

#[tokio::test]
async fn a_connection_is_kept_and_pipelined_requests_are_answered_in_order() {
    let server = start(settings());
    let mut client = server.connect().await;
    let reply = client.get("/hello", "hello").await;
    assert!(
        reply.starts_with("HTTP/1.1 200 OK\r\n") && reply.contains("content-length: 5\r\n"),
        "{reply}"
    );
    client
        .send("GET /empty HTTP/1.1\r\nhost: a\r\n\r\nGET /peer HTTP/1.1\r\nhost: a\r\n\r\n")
        .await;
    let both = client.read_to(&client.0.local_addr().unwrap().to_string()).await;
    assert!(both.contains("content-length: 0\r\n") && !both.contains("chunked"), "{both}");
    assert_eq!(both.matches("HTTP/1.1 200 OK").count(), 2, "{both}");
    assert!(
        server.shows("weir_connections_total 1") && server.shows("weir_connections_open 1"),
        "{}",
        server.metrics.encode()
    );
    drop(client);
    server.await_shown("weir_connections_open 0").await;
}

#[tokio::test]
async fn an_old_client_is_answered_in_its_version_and_closed_unless_it_asks() {
    let server = start(settings());
    let mut client = server.connect().await;
    client.send("GET /hello HTTP/1.0\r\n\r\n").await;
    let reply = client.read_all().await;
    assert!(
        reply.starts_with("HTTP/1.0 200 OK\r\n") && reply.ends_with("\r\n\r\nhello"),
        "{reply}"
    );
    let mut client = server.connect().await;
    for _ in 0..2 {
        client.send("GET /hello HTTP/1.0\r\nconnection: keep-alive\r\n\r\n").await;
        let reply = client.read_to("hello").await;
        assert!(reply.contains("connection: keep-alive"), "{reply}");
    }
}

#[tokio::test]
async fn chunks_and_trailers_pass_both_ways() {
    let server = start(settings());
    let mut client = server.connect().await;
    client.send("POST /echo HTTP/1.1\r\nhost: a\r\nte: trailers\r\ntrailer: x-sum\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n").await;
    let begun = client.read_to("3\r\nabc\r\n").await;
    assert!(begun.contains("transfer-encoding: chunked"), "{begun}");
    client.send("2\r\nde\r\n0\r\nx-sum: 5\r\n\r\n").await;
    assert_eq!(client.read_to("\r\n\r\n").await, "2\r\nde\r\n0\r\nx-sum: 5\r\n\r\n");
    assert!(client.get("/hello", "hello").await.contains("200"));
}

#[tokio::test]
async fn a_head_above_the_limit_is_answered_431_even_while_the_client_still_sends() {
    let server = start(ConnectionSettings { header_bytes_max: 4 << 10, ..settings() });
    let mut client = server.connect().await;
    // Exactly as large as allowed.
    let head = "GET /hello HTTP/1.1\r\nhost: a\r\nx: ";
    client.send(&format!("{head}{}\r\n\r\n", "y".repeat((4 << 10) - head.len() - 4))).await;
    assert!(client.read_to("hello").await.starts_with("HTTP/1.1 200"));
    client.send(&format!("{head}{}\r\n\r\n", "y".repeat((4 << 10) - head.len() - 3))).await;
    let reply = client.read_all().await;
    assert!(reply.starts_with("HTTP/1.1 431 Request Header Fields Too Large\r\n"), "{reply}");
    assert!(
        reply.contains("connection: close\r\n")
            && reply.ends_with("unreadable: 431 Request Header Fields Too Large"),
        "{reply}"
    );
    assert_eq!(reply.matches("content-length: ").count(), 1, "{reply}");

    let mut client = server.connect().await;
    client.send(&format!("{head}{}", "y".repeat(1 << 20))).await;
    let reply = client.read_all().await;
    assert!(reply.starts_with("HTTP/1.1 431 "), "{reply}");
    assert_eq!(server.handler.0.calls.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_head_that_follows_a_large_body_has_the_same_limit() {
    let server = start(ConnectionSettings { header_bytes_max: 4 << 10, ..settings() });
    let mut client = server.connect().await;
    // In one write, so that both are in the large buffer of a body.
    let body = "b".repeat(256 << 10);
    let first =
        format!("POST /echo HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    let fields = "y".repeat(100 << 10);
    let second = format!("GET /hello HTTP/1.1\r\nhost: a\r\nx: {fields}\r\n\r\n");
    client.send(&(first + &second)).await;
    let replies = client.read_all().await;
    assert!(replies.contains("HTTP/1.1 431 "), "{} bytes", replies.len());
    assert!(server.handler.0.calls.load(Ordering::SeqCst) <= 1);
}

#[tokio::test]
async fn too_many_fields_are_431_and_what_is_not_http_is_400() {
    let server = start(settings());
    let mut client = server.connect().await;
    client.send(&format!("GET /hello HTTP/1.1\r\nhost: a\r\n{}\r\n", "x: y\r\n".repeat(100))).await;
    assert!(client.read_all().await.starts_with("HTTP/1.1 431 "));
    let mut client = server.connect().await;
    client.send("this is not HTTP\r\n\r\n").await;
    let reply = client.read_all().await;
    assert!(
        reply.starts_with("HTTP/1.1 400 ") && reply.ends_with("unreadable: 400 Bad Request"),
        "{reply}"
    );
    server.await_shown("weir_connection_errors_total{cause=\"malformed\"} 1").await;
    // After a valid request, and in one piece with it.
    let mut client = server.connect().await;
    client.send("GET /hello HTTP/1.1\r\nhost: a\r\n\r\nthis is not HTTP\r\n\r\n").await;
    let both = client.read_all().await;
    assert!(
        both.starts_with("HTTP/1.1 200 ")
            && both.contains("helloHTTP/1.1 400 ")
            && both.ends_with("unreadable: 400 Bad Request"),
        "{both}"
    );
}

#[tokio::test]
async fn a_handlers_own_bare_reply_stays_as_it_is() {
    let server = start(settings());
    let mut client = server.connect().await;
    client.send("GET /bare HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await;
    let reply = client.read_all().await;
    assert!(
        reply.starts_with("HTTP/1.1 404 ")
            && reply.contains("content-length: 0\r\n")
            && reply.ends_with("\r\n\r\n"),
        "{reply}"
    );
}

#[tokio::test]
async fn a_client_gets_what_came_of_a_reply_before_it_was_cut() {
    let server = start(settings());
    let mut client = server.connect().await;
    client.send("GET /cut HTTP/1.1\r\nhost: a\r\n\r\n").await;
    let reply = client.read_all().await;
    assert!(reply.starts_with("HTTP/1.1 200 "), "{reply:?}");
    assert!(reply.ends_with("\r\n\r\n5\r\nbegun\r\n"), "{reply:?}");
    // To whom the end of the connection is the end of the reply, it would look complete.
    let mut old = server.connect().await;
    old.send("GET /cut HTTP/1.0\r\n\r\n").await;
    assert_eq!(old.read_all().await, "");
}

#[tokio::test]
async fn what_came_of_a_cut_reply_arrives_although_its_client_still_uploads() {
    let server = start(settings());
    let mut client = server.connect().await;
    let head = format!("POST /cut HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n\r\n", 4 << 20);
    client.send(&head).await;
    client.send(&"z".repeat(4 << 20)).await;
    let reply = client.read_all().await;
    assert!(reply.starts_with("HTTP/1.1 200 "), "{reply:?}");
    assert!(reply.ends_with("\r\n\r\n5\r\nbegun\r\n"), "{reply:?}");
}

#[tokio::test]
async fn a_reply_to_an_upload_that_nobody_reads_arrives_all_the_same() {
    let server = start(settings());
    let mut client = server.connect().await;
    client
        .send(&format!("POST /refused HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n\r\n", 4 << 20))
        .await;
    // More than the sockets' buffers hold. The server has to read it, or its close would reset the
    // connection.
    client.send(&"z".repeat(4 << 20)).await;
    let reply = client.read_all().await;
    assert!(reply.starts_with("HTTP/1.1 429 ") && reply.ends_with("no"), "{reply}");
}

#[tokio::test]
async fn a_closing_connection_waits_for_a_silent_client_no_longer_than_the_named_time() {
    let server = start(settings());
    let mut client = server.connect().await;
    client.send("POST /refused HTTP/1.1\r\nhost: a\r\ncontent-length: 10\r\n\r\n").await;
    let began = clock::monotonic();
    assert!(client.read_all().await.starts_with("HTTP/1.1 429 "));
    server.await_shown("weir_connections_open 0").await;
    assert!(clock::monotonic() - began >= Duration::from_millis(LINGER_MS - 5));
}

#[tokio::test]
async fn a_head_that_trickles_in_is_cut_off() {
    const HEAD: Duration = Duration::from_millis(150);
    let server = start(ConnectionSettings {
        request_header: HEAD,
        keep_alive: Duration::from_secs(600),
        ..settings()
    });
    // The first request of a connection, and a later one: the longer wait ends with the first byte
    // of the next head.
    for warm in [false, true] {
        let mut client = server.connect().await;
        if warm {
            client.get("/hello", "hello").await;
            tokio::time::sleep(HEAD * 2).await;
        }
        let began = clock::monotonic();
        client.send("GET /hello HTTP/1.1\r\n").await;
        let (mut reading, mut writing) = client.0.into_split();
        let trickle = tokio::spawn(async move {
            while writing.write_all(b"x: y\r\n").await.is_ok() {
                tokio::time::sleep(HEAD / 10).await;
            }
        });
        let mut rest = Vec::new();
        // Closed, or reset since data was still arriving, but not answered.
        let _ = tokio::time::timeout(TEST_TIMEOUT, reading.read_to_end(&mut rest))
            .await
            .expect("never cut off");
        assert_eq!(rest, b"", "{warm}");
        assert!(clock::monotonic() - began >= HEAD - Duration::from_millis(5));
        trickle.await.unwrap();
    }
}

#[tokio::test]
async fn an_idle_connection_is_kept_for_keep_alive_and_not_for_the_heads_time() {
    const KEEP: Duration = Duration::from_millis(400);
    let server = start(ConnectionSettings {
        request_header: Duration::from_millis(100),
        keep_alive: KEEP,
        ..settings()
    });
    let mut client = server.connect().await;
    for _ in 0..3 {
        client.get("/hello", "hello").await;
        tokio::time::sleep(KEEP / 2).await;
    }
    client.get("/hello", "hello").await;
    let began = clock::monotonic();
    assert_eq!(client.read_all().await, "");
    let lasted = clock::monotonic() - began;
    assert!(lasted >= KEEP - Duration::from_millis(5), "{lasted:?}");
}

#[tokio::test]
async fn a_request_that_takes_long_is_not_cut_by_the_waits_for_heads() {
    let short = Duration::from_millis(40);
    let server =
        start(ConnectionSettings { request_header: short, keep_alive: short, ..settings() });
    let mut client = server.connect().await;
    client.send("GET /wait HTTP/1.1\r\nhost: a\r\n\r\n").await;
    server.handler.0.begun.notified().await;
    tokio::time::sleep(short * 4).await;
    server.handler.0.go.notify_one();
    assert!(client.read_to("waited").await.starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn connections_above_the_maximum_are_closed_at_once_and_counted() {
    let server = start(ConnectionSettings { connections_max: 2, ..settings() });
    let (mut first, mut second) = (server.connect().await, server.connect().await);
    // Each begins another request, so that it is not idle.
    for client in [&mut first, &mut second] {
        client.send("GET /hello HTTP/1.1\r\nhost: a\r\n\r\nGET /hello HTTP/1.1\r\n").await;
        client.read_to("hello").await;
    }
    let mut third = server.connect().await;
    assert_eq!(third.read_all().await, "");
    assert!(
        server.shows("weir_connections_refused_total{cause=\"limit\"} 1"),
        "{}",
        server.metrics.encode()
    );
    // A reload changes the limit for the next connection.
    server.set(ConnectionSettings { connections_max: 3, ..settings() });
    server.connect().await.get("/hello", "hello").await;
    server.set(ConnectionSettings { connections_max: 2, ..settings() });
    drop(first);
    server.await_shown("weir_connections_open 1").await;
    server.connect().await.get("/hello", "hello").await;
}

#[tokio::test]
async fn a_client_that_goes_away_ends_its_handler() {
    let server = start(settings());
    let mut client = server.connect().await;
    client.send("GET /wait HTTP/1.1\r\nhost: a\r\n\r\n").await;
    server.handler.0.begun.notified().await;
    drop(client);
    tokio::time::timeout(TEST_TIMEOUT, server.handler.0.dropped.notified())
        .await
        .expect("the handler lives on");
}

#[tokio::test]
async fn a_client_that_closes_its_sending_side_gets_its_reply_within_the_time_for_it() {
    let server = start(settings());
    let mut client = server.connect().await;
    client.send("GET /hello HTTP/1.1\r\nhost: a\r\n\r\n").await;
    client.0.shutdown().await.unwrap();
    let reply = client.read_all().await;
    assert!(reply.starts_with("HTTP/1.1 200 OK\r\n") && reply.ends_with("hello"), "{reply}");

    let mut client = server.connect().await;
    client.send("GET /wait HTTP/1.1\r\nhost: a\r\n\r\n").await;
    server.handler.0.begun.notified().await;
    client.0.shutdown().await.unwrap();
    server.handler.0.go.notify_one();
    let reply = client.read_all().await;
    assert!(reply.ends_with("waited"), "{reply}");

    // A reply that takes longer is abandoned.
    let mut client = server.connect().await;
    client.send("GET /wait HTTP/1.1\r\nhost: a\r\n\r\n").await;
    server.handler.0.begun.notified().await;
    let began = clock::monotonic();
    client.0.shutdown().await.unwrap();
    assert_eq!(client.read_all().await, "");
    assert!(clock::monotonic() - began >= settings().half_close);
}

#[tokio::test]
async fn pipelined_bytes_wait_for_their_turn_within_the_bound_of_a_head() {
    let server = start(ConnectionSettings { header_bytes_max: 8 << 10, ..settings() });
    let mut client = server.connect().await;
    client.send("GET /wait HTTP/1.1\r\nhost: a\r\n\r\n").await;
    server.handler.0.begun.notified().await;
    // More than is read ahead, and far less than the sockets' buffers hold.
    let ahead = "GET /hello HTTP/1.1\r\nhost: a\r\n\r\n".repeat(1_000);
    client.send(&ahead).await;
    server.handler.0.go.notify_one();
    let mut read = String::new();
    while read.matches("hello").count() < 1_000 {
        read.push_str(&client.read_to("hello").await);
    }
    assert!(read.contains("waited"), "{read}");
    assert_eq!(server.handler.0.calls.load(Ordering::SeqCst), 1_001);
}

#[tokio::test]
async fn a_client_that_takes_nothing_is_given_up() {
    let (near, _far) = duplex(16);
    let mut stream =
        ClientStream::new(near, Arc::<ConnectionState>::default(), Duration::from_millis(50));
    let error = tokio::time::timeout(TEST_TIMEOUT, stream.write_all(&[0; 64]))
        .await
        .expect("waits for ever")
        .unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
}

/// Never finishes a flush or a shutdown.
struct NeverFlushes;

impl tokio::io::AsyncRead for NeverFlushes {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        _: &mut tokio::io::ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        Poll::Pending
    }
}

impl tokio::io::AsyncWrite for NeverFlushes {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Pending
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Pending
    }
}

#[tokio::test]
async fn nor_does_a_flush_or_a_goodbye_wait_for_ever() {
    let mut stream = ClientStream::new(
        NeverFlushes,
        Arc::<ConnectionState>::default(),
        Duration::from_millis(50),
    );
    stream.write_all(b"into a buffer").await.unwrap();
    let flushed = tokio::time::timeout(TEST_TIMEOUT, stream.flush()).await.expect("waits for ever");
    assert_eq!(flushed.unwrap_err().kind(), std::io::ErrorKind::TimedOut);
    let shut = tokio::time::timeout(TEST_TIMEOUT, stream.shutdown()).await.expect("waits for ever");
    assert_eq!(shut.unwrap_err().kind(), std::io::ErrorKind::TimedOut);
}

#[tokio::test]
async fn workers_share_a_port_and_a_second_weir_is_refused() {
    let any = Settings::plain(([127, 0, 0, 1], 0).into());
    let sockets = Listener::bind(&any, 3).unwrap();
    let addresses: Vec<_> = sockets.iter().map(Listener::address).collect();
    assert!(
        addresses[0].port() != 0 && addresses.iter().all(|address| *address == addresses[0]),
        "{addresses:?}"
    );
    let taken = Listener::bind(&Settings::plain(addresses[0]), 1).unwrap_err();
    assert_eq!(taken.kind(), std::io::ErrorKind::AddrInUse);
    drop(sockets);
    assert_eq!(Listener::bind(&Settings::plain(addresses[0]), 2).unwrap().len(), 2);
}

#[tokio::test]
async fn a_socket_that_the_caller_bound_is_served() {
    let listener = Listener::from_std(std::net::TcpListener::bind("127.0.0.1:0").unwrap()).unwrap();
    let address = listener.address();
    let settings = Arc::new(ArcSwap::from_pointee(ListenConfig::from(settings())));
    let serving = tokio::spawn(listener.serve(
        TestHandler::default(),
        settings,
        Drain::new(),
        Metrics::new(1),
    ));
    let mut client = Client(TcpStream::connect(address).await.unwrap());
    assert!(client.get("/hello", "hello").await.starts_with("HTTP/1.1 200"));
    serving.abort();
}
