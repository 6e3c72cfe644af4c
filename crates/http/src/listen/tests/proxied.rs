//! Listeners with `proxy_protocol`.

use super::*;

/// A server that reads headers, from loopback if that is trusted.
fn start_proxied(trusted: bool, settings: ConnectionSettings) -> TestServer {
    let trusted_proxies = if trusted { vec!["127.0.0.0/8".parse().unwrap()] } else { Vec::new() };
    let server = start(ConnectionSettings { trusted_proxies, ..settings });
    let config = (*server.config.load_full()).clone();
    server.config.store(Arc::new(ListenConfig { proxy_protocol: vec![true], ..config }));
    server
}

const PEER: &str = "GET /peer HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";

#[tokio::test]
async fn the_client_is_who_a_trusted_proxy_says() {
    let server = start_proxied(true, ConnectionSettings::default());
    let mut client = server.connect().await;
    client.send("PROXY TCP4 192.0.2.7 198.51.100.1 5555 80\r\n").await;
    client.send(PEER).await;
    let reply = client.read_all().await;
    assert!(reply.ends_with("\r\n\r\n192.0.2.7:5555"), "{reply}");
}

#[tokio::test]
async fn a_header_that_comes_in_pieces_together_with_the_request_is_cut_off_exactly() {
    let server = start_proxied(true, ConnectionSettings::default());
    let text = format!("PROXY TCP6 2001:db8::7 2001:db8::1 5555 80\r\n{PEER}");
    for cut in [1, 5, 6, 20, 43, 44, 45, 60] {
        let mut client = server.connect().await;
        let (first, rest) = text.split_at(cut);
        client.send(first).await;
        tokio::task::yield_now().await;
        client.send(rest).await;
        let reply = client.read_all().await;
        assert!(reply.ends_with("\r\n\r\n[2001:db8::7]:5555"), "{cut}: {reply}");
    }
}

#[tokio::test]
async fn a_header_from_anybody_else_is_no_header() {
    let server = start_proxied(false, ConnectionSettings::default());
    let mut client = server.connect().await;
    client.send("PROXY TCP4 192.0.2.7 198.51.100.1 5555 80\r\n").await;
    client.send(PEER).await;
    let reply = client.read_all().await;
    assert!(reply.starts_with("HTTP/1.1 400 "), "{reply}");
    let mut client = server.connect().await;
    client.send(PEER).await;
    let reply = client.read_all().await;
    assert!(reply.contains("\r\n\r\n127.0.0.1:"), "{reply}");
}

#[tokio::test]
async fn a_trusted_proxy_that_sends_no_header_is_closed() {
    let server = start_proxied(true, ConnectionSettings::default());
    let mut client = server.connect().await;
    client.send(PEER).await;
    let mut rest = Vec::new();
    // The unread request may reset the connection.
    let _ = client.0.read_to_end(&mut rest).await;
    assert_eq!(rest, b"");
    server.await_shown("weir_connection_errors_total{cause=\"proxy_header\"} 1").await;
    let slow = ConnectionSettings {
        request_header: Duration::from_millis(50),
        ..ConnectionSettings::default()
    };
    let server = start_proxied(true, slow);
    let mut client = server.connect().await;
    client.send("PROXY").await;
    assert_eq!(client.read_all().await, "");
    server.await_shown("weir_connection_errors_total{cause=\"head_timeout\"} 1").await;
}

#[tokio::test]
async fn connections_count_as_those_of_the_client() {
    let settings =
        ConnectionSettings { connections_per_address_max: 1, ..ConnectionSettings::default() };
    let server = start_proxied(true, settings);
    let hello = "GET /hello HTTP/1.1\r\nhost: a\r\n\r\n";
    let connect = async |last: u8| {
        let mut client = server.connect().await;
        client.send(&format!("PROXY TCP4 192.0.2.{last} 198.51.100.1 5555 80\r\n{hello}")).await;
        client
    };
    let mut first = connect(1).await;
    first.read_to("hello").await;
    let mut second = connect(1).await;
    let mut rest = Vec::new();
    let _ = second.0.read_to_end(&mut rest).await;
    assert_eq!(rest, b"");
    server.await_shown("weir_connection_errors_total{cause=\"address\"} 1").await;
    connect(2).await.read_to("hello").await;
    // So it does as what it becomes.
    let upgrade =
        "GET /upgrade HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n";
    first.send(upgrade).await;
    first.read_to("\r\n\r\n").await;
    first.send("echo").await;
    first.read_to("echo").await;
    let mut third = connect(1).await;
    let _ = third.0.read_to_end(&mut rest).await;
    assert_eq!(rest, b"");
    drop(first);
    tokio::time::timeout(TEST_TIMEOUT, async {
        loop {
            let mut again = connect(1).await;
            let mut piece = [0; 64];
            if again.0.read(&mut piece).await.is_ok_and(|read| read > 0) {
                return;
            }
        }
    })
    .await
    .unwrap();
}
