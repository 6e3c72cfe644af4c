//! What a drain does to connections.

use super::super::permits::Connections;
use super::*;

#[tokio::test]
async fn idle_connections_close_and_a_request_under_way_is_finished() {
    let server = start(settings());
    let (mut idle, mut busy) = (server.connect().await, server.connect().await);
    idle.get("/hello", "hello").await;
    busy.send("GET /wait HTTP/1.1\r\nhost: a\r\n\r\n").await;
    server.handler.0.begun.notified().await;
    assert!(!server.drain.started());
    server.drain.start();
    assert!(server.drain.started());
    assert_eq!(idle.read_all().await, "");
    server.await_shown("weir_connections_open 1").await;
    assert!(!server.serving.is_finished());
    // The listening socket is closed.
    assert!(TcpStream::connect(server.address).await.is_err());
    server.handler.0.go.notify_one();
    let reply = busy.read_all().await;
    assert!(reply.contains("connection: close\r\n") && reply.ends_with("waited"), "{reply}");
    tokio::time::timeout(TEST_TIMEOUT, server.serving)
        .await
        .expect("serve() does not return")
        .unwrap();
}

#[tokio::test]
async fn a_connection_that_the_kernel_had_accepted_is_answered_and_not_reset() {
    let server = start(settings());
    // This runtime has one thread, so the accept loop runs only when this test awaits. A blocking
    // connect completes in the kernel before that.
    let mut queued = std::net::TcpStream::connect(server.address).unwrap();
    std::io::Write::write_all(&mut queued, b"GET /hello HTTP/1.1\r\nhost: a\r\n\r\n").unwrap();
    server.drain.start();
    tokio::time::timeout(TEST_TIMEOUT, server.serving)
        .await
        .expect("serve() does not return")
        .unwrap();
    let mut reply = String::new();
    std::io::Read::read_to_string(&mut queued, &mut reply).unwrap();
    assert!(reply.contains("connection: close\r\n") && reply.ends_with("hello"), "{reply}");
}

#[tokio::test]
async fn a_drain_that_began_before_is_obeyed() {
    let server = start(settings());
    server.drain.start();
    tokio::time::timeout(TEST_TIMEOUT, server.serving)
        .await
        .expect("serve() does not return")
        .unwrap();
}

#[tokio::test]
async fn connections_end_with_serve_after_the_grace_period() {
    let server = start(settings());
    let mut busy = server.connect().await;
    busy.send("GET /wait HTTP/1.1\r\nhost: a\r\n\r\n").await;
    server.handler.0.begun.notified().await;
    server.drain.start();
    server.serving.abort();
    tokio::time::timeout(TEST_TIMEOUT, server.handler.0.dropped.notified())
        .await
        .expect("the handler lives on");
    assert_eq!(busy.read_all().await, "");
}

#[tokio::test]
async fn a_cut_ends_what_is_under_way_and_serve_returns_when_it_has_ended() {
    let server = start(settings());
    let mut busy = server.connect().await;
    busy.send("GET /wait HTTP/1.1\r\nhost: a\r\n\r\n").await;
    server.handler.0.begun.notified().await;
    // Without a drain first, as when the whole program is dropped.
    server.drain.cut();
    server.drain.start();
    assert!(server.drain.started());
    tokio::time::timeout(TEST_TIMEOUT, server.serving)
        .await
        .expect("serve() does not return")
        .unwrap();
    tokio::time::timeout(TEST_TIMEOUT, server.handler.0.dropped.notified())
        .await
        .expect("the handler lives on");
    assert!(
        server.metrics.encode().contains("weir_connections_open 0\n"),
        "{}",
        server.metrics.encode()
    );
    assert_eq!(busy.read_all().await, "");
}

#[tokio::test]
async fn listeners_count_together_under_the_same_settings_only() {
    let drain = Drain::new();
    let config =
        || -> ConfigSource { Arc::new(ArcSwap::from_pointee(ListenConfig::from(settings()))) };
    let (one, other) = (config(), config());
    let permits = drain.permits_under(&one);
    let gauge = Metrics::new(1).gauge(crate::telemetry::names::CONNECTIONS_OPEN);
    let (connections, client) = (Connections::new(&permits, gauge), [127, 0, 0, 1].into());
    let _permit = connections.acquire(&Arc::default(), client, &settings(), &mut 0).unwrap();
    assert_eq!(drain.clone().permits_under(&one).open(), 1);
    assert_eq!(drain.permits_under(&other).open(), 0);
}
