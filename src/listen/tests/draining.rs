//! What happens to connections when the process is told to stop.

use super::super::places::Connections;
use super::*;

#[tokio::test]
async fn idle_connections_close_and_a_request_under_way_is_finished() {
    let house = house(settings());
    let (mut idle, mut busy) = (house.connect().await, house.connect().await);
    idle.get("/hello", "hello").await;
    busy.send("GET /wait HTTP/1.1\r\nhost: a\r\n\r\n").await;
    house.answers.0.begun.notified().await;
    assert!(!house.drain.started());
    house.drain.start();
    assert!(house.drain.started());
    assert_eq!(idle.read_all().await, "");
    house.await_shown("weir_connections_open 1").await;
    assert!(!house.serving.is_finished());
    // Nobody accepts any more.
    assert!(TcpStream::connect(house.address).await.is_err());
    house.answers.0.go.notify_one();
    let reply = busy.read_all().await;
    assert!(reply.contains("connection: close\r\n") && reply.ends_with("waited"), "{reply}");
    tokio::time::timeout(PATIENCE, house.serving).await.expect("serve() does not return").unwrap();
}

#[tokio::test]
async fn a_connection_that_the_kernel_had_accepted_is_answered_and_not_reset() {
    let house = house(settings());
    // This runtime has one thread: the accept loop runs only when this test awaits. A blocking
    // connect succeeds in the kernel before it does.
    let mut queued = std::net::TcpStream::connect(house.address).unwrap();
    std::io::Write::write_all(&mut queued, b"GET /hello HTTP/1.1\r\nhost: a\r\n\r\n").unwrap();
    house.drain.start();
    tokio::time::timeout(PATIENCE, house.serving).await.expect("serve() does not return").unwrap();
    let mut reply = String::new();
    std::io::Read::read_to_string(&mut queued, &mut reply).unwrap();
    assert!(reply.contains("connection: close\r\n") && reply.ends_with("hello"), "{reply}");
}

#[tokio::test]
async fn a_drain_that_began_before_is_obeyed() {
    let house = house(settings());
    house.drain.start();
    tokio::time::timeout(PATIENCE, house.serving).await.expect("serve() does not return").unwrap();
}

#[tokio::test]
async fn when_the_grace_is_over_connections_end_with_serve() {
    let house = house(settings());
    let mut busy = house.connect().await;
    busy.send("GET /wait HTTP/1.1\r\nhost: a\r\n\r\n").await;
    house.answers.0.begun.notified().await;
    house.drain.start();
    house.serving.abort();
    tokio::time::timeout(PATIENCE, house.answers.0.dropped.notified())
        .await
        .expect("the handler lives on");
    assert_eq!(busy.read_all().await, "");
}

#[tokio::test]
async fn a_cut_ends_what_is_under_way_and_serve_returns_when_it_has_ended() {
    let house = house(settings());
    let mut busy = house.connect().await;
    busy.send("GET /wait HTTP/1.1\r\nhost: a\r\n\r\n").await;
    house.answers.0.begun.notified().await;
    // Without a drain before it, as when the whole program is dropped.
    house.drain.cut();
    house.drain.start();
    assert!(house.drain.started());
    tokio::time::timeout(PATIENCE, house.serving).await.expect("serve() does not return").unwrap();
    tokio::time::timeout(PATIENCE, house.answers.0.dropped.notified())
        .await
        .expect("the handler lives on");
    assert!(
        house.metrics.encode().contains("weir_connections_open 0\n"),
        "{}",
        house.metrics.encode()
    );
    assert_eq!(busy.read_all().await, "");
}

#[tokio::test]
async fn listeners_count_together_under_the_same_settings_only() {
    let drain = Drain::new();
    let config =
        || -> ConfigSource { Arc::new(ArcSwap::from_pointee(ListenConfig::from(settings()))) };
    let (one, other) = (config(), config());
    let places = drain.places_under(&one);
    let gauge = Metrics::new(1).gauge(crate::telemetry::names::CONNECTIONS_OPEN);
    let (connections, client) = (Connections::new(&places, gauge), [127, 0, 0, 1].into());
    let _place = connections.enter(&Arc::default(), client, &settings(), &mut 0).unwrap();
    assert_eq!(drain.clone().places_under(&one).open(), 1);
    assert_eq!(drain.places_under(&other).open(), 0);
}
