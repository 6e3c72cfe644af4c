//! How many connections one client address may have, and which connections are closed when permits
//! run out.

use std::net::{IpAddr, Ipv4Addr};

use super::*;
use crate::listen::permits::{Connections, PermitError};
use crate::listen::state::ConnectionState;
use crate::telemetry::names;

/// Connects from another loopback address, as another client.
async fn connect_from(server: &TestServer, last: u8) -> Client {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind((Ipv4Addr::new(127, 0, 0, last), 0).into()).unwrap();
    Client(socket.connect(server.address).await.unwrap())
}

#[tokio::test]
async fn one_address_can_not_take_all_places() {
    let server = start(ConnectionSettings { connections_per_address_max: 3, ..settings() });
    let mut held = Vec::new();
    for _ in 0..3 {
        let mut client = connect_from(&server, 1).await;
        client.get("/hello", "hello").await;
        held.push(client);
    }
    // Closed at once, although 97 permits are left.
    assert_eq!(connect_from(&server, 1).await.read_all().await, "");
    server.await_shown("weir_connections_refused_total{cause=\"address\"} 1").await;
    assert!(
        server.shows("weir_connections_reclaimed_total{cause=\"limit\"} 0"),
        "{}",
        server.metrics.encode()
    );
    // Another address is served, and so is the first one after it has closed a connection.
    connect_from(&server, 2).await.get("/hello", "hello").await;
    held.pop();
    server.await_shown("weir_connections_open 2").await;
    connect_from(&server, 1).await.get("/hello", "hello").await;
}

#[tokio::test]
async fn a_trusted_proxys_connections_are_many_clients() {
    let trusted_proxies = vec!["127.0.0.1/32".parse().unwrap()];
    let server =
        start(ConnectionSettings { connections_per_address_max: 1, trusted_proxies, ..settings() });
    let mut held = Vec::new();
    for _ in 0..4 {
        let mut client = connect_from(&server, 1).await;
        client.get("/hello", "hello").await;
        held.push(client);
    }
    let mut other = connect_from(&server, 2).await;
    other.get("/hello", "hello").await;
    assert_eq!(connect_from(&server, 2).await.read_all().await, "");
}

#[tokio::test]
async fn a_tls_client_over_the_bound_is_closed_before_its_handshake() {
    let pki = crate::pki::Pki::new();
    let server = start_tls(
        ConnectionSettings { connections_per_address_max: 1, ..settings() },
        Some(tls::api(&pki)),
    );
    let _silent = connect_from(&server, 1).await;
    server.await_shown("weir_connections_open 1").await;
    assert_eq!(connect_from(&server, 1).await.read_all().await, "");
    assert!(
        server.shows("weir_connections_refused_total{cause=\"address\"} 1"),
        "{}",
        server.metrics.encode()
    );
}

#[tokio::test]
async fn the_longest_idle_connection_is_closed_first_when_places_run_out() {
    let server = start(ConnectionSettings { connections_max: 3, ..settings() });
    let (mut oldest, mut waiting, mut idle) =
        (server.connect().await, server.connect().await, server.connect().await);
    for client in [&mut oldest, &mut waiting, &mut idle] {
        client.get("/hello", "hello").await;
        // So that the idle times differ.
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    waiting.send("GET /wait HTTP/1.1\r\nhost: a\r\n\r\n").await;
    server.handler.0.begun.notified().await;
    let mut fourth = server.connect().await;
    fourth.get("/hello", "hello").await;
    assert_eq!(oldest.read_all().await, "");
    assert!(
        server.shows("weir_connections_reclaimed_total{cause=\"limit\"} 1"),
        "{}",
        server.metrics.encode()
    );
    // The next connection replaces the other idle one. The request in progress is answered.
    tokio::time::sleep(Duration::from_millis(5)).await;
    let mut fifth = server.connect().await;
    fifth.get("/hello", "hello").await;
    assert_eq!(idle.read_all().await, "");
    server.handler.0.go.notify_one();
    assert!(waiting.read_to("waited").await.starts_with("HTTP/1.1 200"));
    assert!(
        server.shows("weir_connections_refused_total{cause=\"limit\"} 0"),
        "{}",
        server.metrics.encode()
    );
}

#[tokio::test]
async fn a_client_that_has_sent_nothing_yet_gives_way_too() {
    let server = start(ConnectionSettings { connections_max: 2, ..settings() });
    let mut first = server.connect().await;
    server.await_shown("weir_connections_open 1").await;
    // So that the idle times differ.
    tokio::time::sleep(Duration::from_millis(5)).await;
    let second = server.connect().await;
    server.await_shown("weir_connections_open 2").await;
    server.connect().await.get("/hello", "hello").await;
    assert_eq!(first.read_all().await, "");
    drop(second);
}

#[tokio::test]
async fn a_tls_client_that_has_not_begun_its_handshake_gives_way_too() {
    let pki = crate::pki::Pki::new();
    let server =
        start_tls(ConnectionSettings { connections_max: 1, ..settings() }, Some(tls::api(&pki)));
    let mut silent = server.connect().await;
    server.await_shown("weir_connections_open 1").await;
    let mut client = tls::Client::connect(&server, &pki.ca, "api.example").await;
    assert!(client.get("/hello", "hello").await.starts_with("HTTP/1.1 200"));
    assert_eq!(silent.read_all().await, "");
}

#[tokio::test]
async fn an_idle_http2_connection_gives_way_too() {
    let server = start(ConnectionSettings { connections_max: 1, ..settings() });
    let stream = TcpStream::connect(server.address).await.unwrap();
    let (client, connection) = h2::client::handshake(stream).await.unwrap();
    let gone = tokio::spawn(connection);
    let mut client = client.ready().await.unwrap();
    let request = http::Request::get("http://a/hello").body(()).unwrap();
    let (reply, _) = client.send_request(request, true).unwrap();
    assert_eq!(reply.await.unwrap().status(), 200);
    // It is told to close. Until it has, the new connection may still find no permit.
    drop(server.connect().await);
    tokio::time::timeout(TEST_TIMEOUT, gone).await.expect("told to go").unwrap().unwrap();
    assert!(
        server.shows("weir_connections_reclaimed_total{cause=\"limit\"} 1"),
        "{}",
        server.metrics.encode()
    );
    server.await_shown("weir_connections_open 0").await;
    server.connect().await.get("/hello", "hello").await;
}

#[test]
fn the_longest_idle_connection_is_found_among_all_workers() {
    let settings = ConnectionSettings { connections_max: 4, ..settings() };
    let permits = Arc::default();
    let gauge = Metrics::new(1).gauge(names::CONNECTIONS_OPEN);
    let workers = [Connections::new(&permits, gauge.clone()), Connections::new(&permits, gauge)];
    let client = IpAddr::from([127, 0, 0, 1]);
    let now = crate::clock::monotonic();
    let states: Vec<Arc<ConnectionState>> = (0..4).map(|_| Arc::default()).collect();
    let mut held = Vec::new();
    for (index, state) in states.iter().enumerate() {
        held.push(workers[index % 2].acquire(state, client, &settings, &mut 0).unwrap());
        // The third one has been idle longest; the second is busy.
        if index != 1 {
            state.mark_idle(now + Duration::from_secs([20, 0, 10, 30][index]));
        }
    }
    let mut reclaimed = 0;
    let refused = workers[1].acquire(&Arc::default(), client, &settings, &mut reclaimed);
    assert_eq!((refused.err(), reclaimed), (Some(PermitError::Full { reclaimed: 1 }), 1));
    assert_eq!(
        states.iter().map(|state| state.is_draining()).collect::<Vec<_>>(),
        [false, false, true, false]
    );
    held.remove(2);
    assert!(workers[1].acquire(&Arc::default(), client, &settings, &mut 0).is_ok());
}
