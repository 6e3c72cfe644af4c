//! The limit on all buffers: clients that read nothing fill it, new requests are refused, and
//! requests in flight continue.

use std::net::SocketAddr;

use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::harness::client::{Reply, get};
use crate::harness::flood::{Flood, Speaks};
use crate::harness::tls::Http2;
use crate::harness::toml::Toml;
use crate::harness::upstream::Upstream;
use crate::harness::weir::Weir;
use crate::harness::{TIMEOUT, eventually_async};

/// Far more than everything between an upstream and its client can buffer.
const LARGE: u64 = 64 << 20;
const CAP: u64 = 8 << 20;
/// Stalled readers, at most, until the limit is reached.
const READERS_MAX: usize = 600;
/// Streams of one connection.
const STREAMS: usize = 50;

fn capped(upstream: &Upstream, flood: &Flood, protocol: &str) -> Weir {
    Weir::start(&config(upstream, flood, protocol).text())
}

fn config(upstream: &Upstream, flood: &Flood, protocol: &str) -> Toml {
    Toml::new()
        .server("workers = 1")
        .limit("buffered_bytes = \"8MiB\"")
        .upstream("api", &upstream.url(), "")
        .upstream("flood", &flood.url(), &format!("protocol = \"{protocol}\""))
        .more("[[routes]]\npath = \"/*\"\nupstream = \"api\"")
        .more(&format!("[[routes]]\npath = \"/{LARGE}\"\nupstream = \"flood\""))
}

/// The status of a new client's request. A refusal must be complete.
async fn newcomer(weir: &Weir) -> u16 {
    let reply: Reply = get(weir.http, "/", &[]).await;
    if reply.status != 200 {
        assert_eq!(
            (reply.status, reply.header("content-type").as_str()),
            (503, "application/problem+json"),
            "{reply:?}"
        );
        assert_eq!(reply.json()["status"], 503);
        assert_ne!(reply.header("x-request-id"), "");
    }
    reply.status
}

/// Checks what an operator sees while the limit is reached.
async fn the_operator_is_answered(weir: &Weir) {
    assert_eq!(weir.admin_page("/live").status, 200);
    eventually_async("the gauge shows it", async || {
        let held = weir.metric("weir_buffered_bytes");
        if held >= CAP { Ok(()) } else { Err(held.to_string()) }
    })
    .await;
    assert!(weir.metric("weir_requests_total{route=\"all\",code=\"503\"}") >= 1);
    println!("{} KiB at most", weir.peak_memory_kib());
    assert!(weir.peak_memory_kib() < (CAP >> 10) + (150 << 10), "{} KiB", weir.peak_memory_kib());
}

async fn served_again(weir: &Weir) {
    eventually_async("newcomers are served", async || match newcomer(weir).await {
        200 => Ok(()),
        status => Err(status.to_string()),
    })
    .await;
}

/// Requests a large response and reads nothing of it.
async fn stalled(address: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream
        .write_all(
            format!("GET /{LARGE} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").as_bytes(),
        )
        .await
        .unwrap();
    // Its head has arrived, so the request was admitted or refused.
    stream.readable().await.unwrap();
    stream
}

#[tokio::test]
async fn readers_that_stand_still_on_http1_have_newcomers_refused_and_finish() {
    let (upstream, flood) = (Upstream::start(), Flood::start(Speaks::Http1));
    let weir = capped(&upstream, &flood, "h1");
    let mut readers = Vec::new();
    while newcomer(&weir).await == 200 {
        assert!(readers.len() < READERS_MAX, "the cap is never reached");
        for _ in 0..10 {
            readers.push(stalled(weir.http).await);
        }
    }
    the_operator_is_answered(&weir).await;
    // The first were admitted, and get their whole responses.
    for mut reader in readers.drain(..2) {
        let mut reply = Vec::new();
        tokio::time::timeout(TIMEOUT, reader.read_to_end(&mut reply))
            .await
            .expect("in time")
            .unwrap();
        assert!(
            reply.starts_with(b"HTTP/1.1 200 ") && reply.len() as u64 > LARGE,
            "{} bytes",
            reply.len()
        );
    }
    drop(readers);
    served_again(&weir).await;
}

#[tokio::test]
async fn streams_that_stand_still_on_http2_have_newcomers_refused_and_finish() {
    for (protocol, speaks) in [("h1", Speaks::Http1), ("h2", Speaks::Http2)] {
        let (upstream, flood) = (Upstream::start(), Flood::start(speaks));
        let weir = capped(&upstream, &flood, protocol);
        let mut connections = Vec::new();
        let mut bodies = Vec::new();
        while newcomer(&weir).await == 200 {
            assert!(bodies.len() < READERS_MAX, "the cap is never reached");
            let mut builder = h2::client::Builder::new();
            builder.initial_window_size(16 << 10).initial_connection_window_size(64 << 20);
            let (client, connection) = builder
                .handshake::<_, Bytes>(TcpStream::connect(weir.http).await.unwrap())
                .await
                .unwrap();
            tokio::spawn(connection);
            let mut client = client.ready().await.unwrap();
            for _ in 0..STREAMS {
                let request =
                    http::Request::get(format!("http://api.example/{LARGE}")).body(()).unwrap();
                let reply = client.send_request(request, true).unwrap().0.await.unwrap();
                if reply.status() == 200 {
                    bodies.push(reply.into_body());
                }
                client = client.ready().await.unwrap();
            }
            connections.push(client);
        }
        the_operator_is_answered(&weir).await;
        let mut body = bodies.remove(0);
        let mut bytes = 0;
        while let Some(piece) = tokio::time::timeout(TIMEOUT, body.data()).await.expect("in time") {
            let piece = piece.unwrap();
            bytes += piece.len() as u64;
            body.flow_control().release_capacity(piece.len()).unwrap();
        }
        assert_eq!(bytes, LARGE);
        drop((bodies, connections));
        served_again(&weir).await;
    }
}

/// The size of each upload: more than the kernel buffers.
const UPLOAD_BYTES: usize = 4 << 20;
/// Uploads whose windows together exceed the limit.
const UPLOADS: usize = 90;

/// An upstream that reads nothing until it may, and then answers complete uploads with 200.
async fn withholding(may: watch::Receiver<bool>) -> SocketAddr {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.set_recv_buffer_size(16 << 10).unwrap();
    socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    socket.listen(512).unwrap();
    socket.set_nonblocking(true).unwrap();
    let listener = TcpListener::from_std(socket.into()).unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut may = may.clone();
            tokio::spawn(async move {
                let _ = may.wait_for(|may| *may).await;
                let mut left = UPLOAD_BYTES;
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    head.push(stream.read_u8().await.unwrap());
                }
                let mut piece = vec![0; 64 << 10];
                while left > 0 {
                    let read = stream.read(&mut piece).await.unwrap();
                    assert!(read > 0, "{left} bytes are missing");
                    left -= read;
                }
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
            });
        }
    });
    address
}

#[tokio::test]
async fn uploads_that_an_upstream_does_not_take_have_newcomers_refused_and_finish() {
    let (upstream, flood) = (Upstream::start(), Flood::start(Speaks::Http1));
    let (go, may) = watch::channel(false);
    let config = config(&upstream, &flood, "h1")
        .upstream("withholding", &format!("http://{}", withholding(may).await), "")
        .more("[[routes]]\npath = \"/upload\"\nupstream = \"withholding\"");
    let weir = Weir::start(&config.text());
    let client = Http2::plain(weir.http).await.unwrap();
    let mut uploads = tokio::task::JoinSet::new();
    let body = Bytes::from(vec![b'x'; UPLOAD_BYTES]);
    for _ in 0..UPLOADS {
        let (mut client, body) = (client.clone(), body.clone());
        uploads.spawn(async move {
            client.send("POST", "/upload", &[], body).await.map(|reply| reply.status)
        });
    }
    eventually_async("newcomers are refused", async || match newcomer(&weir).await {
        503 => Ok(()),
        status => Err(status.to_string()),
    })
    .await;
    the_operator_is_answered(&weir).await;
    go.send_replace(true);
    let mut finished = 0;
    while let Some(status) = uploads.join_next().await {
        let status = status.unwrap().unwrap();
        assert!([200, 503].contains(&status), "{status}");
        finished += usize::from(status == 200);
    }
    assert!(finished > UPLOADS / 2, "{finished} were admitted");
    served_again(&weir).await;
}
