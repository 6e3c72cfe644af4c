//! Connections that are upgraded to another protocol.

use super::*;

const ASK: &str =
    "GET /upgrade HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n";

async fn upgraded(server: &TestServer) -> Client {
    let mut client = server.connect().await;
    // The first bytes of the new protocol arrive with the request.
    client.send(&format!("{ASK}early")).await;
    let reply = client.read_to("early").await;
    assert!(reply.starts_with("HTTP/1.1 101 "), "{reply}");
    client
}

#[tokio::test]
async fn an_upgraded_connection_is_a_stream_of_bytes_and_counts_as_open() {
    let server = start(settings());
    let mut client = upgraded(&server).await;
    client.send("later").await;
    assert_eq!(client.read_to("later").await, "later");
    assert!(server.shows("weir_connections_open 1"));
    client.0.shutdown().await.unwrap();
    assert_eq!(client.read_all().await, "");
    server.await_shown("weir_connections_open 0").await;
}

#[tokio::test]
async fn a_drain_lets_it_go_on_until_the_grace_is_over() {
    let server = start(settings());
    let mut client = upgraded(&server).await;
    server.drain.start();
    client.send("later").await;
    assert_eq!(client.read_to("later").await, "later");
    assert!(!server.serving.is_finished());
    server.drain.cut();
    tokio::time::timeout(TEST_TIMEOUT, server.serving)
        .await
        .expect("serve() does not return")
        .unwrap();
    tokio::time::timeout(TEST_TIMEOUT, server.handler.0.dropped.notified())
        .await
        .expect("the tunnel lives on");
    assert_eq!(client.read_all().await, "");
}

#[tokio::test]
async fn it_works_behind_tls_and_a_half_that_is_closed_leaves_the_other() {
    let pki = crate::pki::Pki::new();
    let listener = super::certificates::listener(&[pki.server(&["api.example"])]);
    let server = start_tls(settings(), Some(super::certificates::tls(&listener)));
    let mut client = super::tls::Client::connect(&server, &pki.ca, "api.example").await.0;
    client.write_all(format!("{ASK}early").as_bytes()).await.unwrap();
    let mut text = String::new();
    while !text.ends_with("early") {
        let mut piece = [0; 4096];
        let read = tokio::time::timeout(TEST_TIMEOUT, client.read(&mut piece))
            .await
            .expect("no answer")
            .unwrap();
        assert!(read > 0, "closed after {text:?}");
        text.push_str(std::str::from_utf8(&piece[..read]).unwrap());
    }
    assert!(text.starts_with("HTTP/1.1 101 "), "{text}");
    // More than the buffers hold, followed by a shutdown: all of it is echoed.
    let (mut reading, mut writing) = tokio::io::split(client);
    let sending = tokio::spawn(async move {
        writing.write_all(&vec![7; 8 << 20]).await.unwrap();
        writing.shutdown().await.unwrap();
    });
    let mut all = Vec::new();
    tokio::time::timeout(TEST_TIMEOUT, reading.read_to_end(&mut all))
        .await
        .expect("never ends")
        .unwrap();
    assert_eq!(all.len(), 8 << 20);
    sending.await.unwrap();
    server.await_shown("weir_connections_open 0").await;
}
