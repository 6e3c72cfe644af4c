//! Hundreds of clients that are slow on purpose, on one worker: each sends or reads a byte now and
//! then, and no other client has to wait for them.

use std::net::SocketAddr;

use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::harness::client::{Client, Tally};
use crate::harness::flood::{Flood, Speaks};
use crate::harness::toml::Toml;
use crate::harness::upstream::Upstream;
use crate::harness::weir::Weir;
use crate::harness::{TIMEOUT, eventually_async};

/// Slow clients of each kind.
const SLOW: usize = 150;
/// Bytes that each of them sends or reads, one by one.
const ROUNDS: usize = 25;
/// Requests of other clients between two such bytes.
const OTHERS: usize = 20;
/// The size of what is downloaded slowly: far more than anything between the two sides can buffer.
const LARGE: u64 = 64 << 20;
/// How much of a slow download Weir may hold.
const HELD_KIB_MAX: u64 = 512;

fn config(upstream: &Upstream, flood: &Flood) -> Toml {
    Toml::new()
        .server("workers = 1")
        .limit("body_rate = \"0B\"\nsend_rate = \"0B\"")
        .timeout("request_header = \"5m\"\nbody_idle = \"5m\"")
        .upstream("api", &upstream.url(), "")
        .upstream("flood", &flood.url(), "")
        .policy(
            "public",
            &["name = \"day\", algorithm = \"fixed_window\", quota = 1000000, period = \"1d\""],
        )
        .route("name = \"api\"\npath = \"/*\"\nupstream = \"api\"\npolicy = \"public\"")
        .route(&format!(
            "name = \"flood\"\npath = \"/{LARGE}\"\nupstream = \"flood\"\npolicy = \"public\""
        ))
}

/// A slow client, by what it does with its connection.
enum Slow {
    /// Sends a head that is not complete before the end.
    Head(TcpStream),
    /// Sends a body.
    Body(TcpStream),
    /// Reads a response.
    Reader(TcpStream),
}

impl Slow {
    async fn start(kind: usize, address: SocketAddr) -> Self {
        let mut stream = TcpStream::connect(address).await.expect("a connection");
        stream.set_nodelay(true).expect("an option");
        match kind {
            0 => {
                stream
                    .write_all(
                        format!("GET /head HTTP/1.1\r\nHost: {address}\r\nX-Slow: ").as_bytes(),
                    )
                    .await
                    .expect("sent");
                Self::Head(stream)
            }
            1 => {
                let head = format!(
                    "POST /body HTTP/1.1\r\nHost: {address}\r\nContent-Length: {ROUNDS}\r\n\r\n"
                );
                stream.write_all(head.as_bytes()).await.expect("sent");
                Self::Body(stream)
            }
            _ => {
                stream
                    .write_all(
                        format!("GET /{LARGE} HTTP/1.1\r\nHost: {address}\r\n\r\n").as_bytes(),
                    )
                    .await
                    .expect("sent");
                Self::Reader(stream)
            }
        }
    }

    async fn one_byte(&mut self) {
        match self {
            Self::Head(stream) | Self::Body(stream) => stream.write_all(b"x").await.expect("sent"),
            Self::Reader(stream) => drop(stream.read_u8().await.expect("a byte")),
        }
    }

    /// Sends or reads the rest at once, and returns the status.
    async fn end(self) -> Option<u16> {
        let mut stream = match self {
            Self::Head(mut stream) => {
                stream.write_all(b"\r\n\r\n").await.expect("sent");
                stream
            }
            Self::Body(stream) => stream,
            // Goes away in the middle.
            Self::Reader(_) => return None,
        };
        let mut line = [0; 12];
        tokio::time::timeout(TIMEOUT, stream.read_exact(&mut line))
            .await
            .expect("in time")
            .expect("a reply");
        std::str::from_utf8(&line).ok()?.rsplit(' ').next()?.parse().ok()
    }
}

#[tokio::test]
async fn hundreds_of_slow_clients_hold_nobody_else() {
    let (upstream, flood) = (Upstream::start(), Flood::start(Speaks::Http1));
    let weir = Weir::start(&config(&upstream, &flood).text());
    let mut slow = Vec::new();
    for number in 0..3 * SLOW {
        slow.push(Slow::start(number % 3, weir.http).await);
    }
    // The uploads have reached the upstream, and the downloads have filled all buffers.
    eventually_async("slow uploads arrive", async || {
        if upstream.count() == SLOW as u64 { Ok(()) } else { Err(upstream.count().to_string()) }
    })
    .await;

    let mut others = Client::connect(weir.http).await.unwrap();
    let mut tally = Tally::default();
    for _ in 0..ROUNDS {
        for client in &mut slow {
            client.one_byte().await;
        }
        for _ in 0..OTHERS {
            tally.add(&others.get("/others", &[]).await);
        }
        // New clients are served as well.
        tally.add(&Client::connect(weir.http).await.unwrap().get("/others", &[]).await);
    }
    tally.only(&[200]);
    assert_eq!(tally.count(200), (ROUNDS * (OTHERS + 1)) as u64);
    #[cfg(target_os = "linux")]
    {
        let (memory, idle) = (weir.peak_memory_kib(), 100 << 10);
        assert!(
            memory < idle + SLOW as u64 * HELD_KIB_MAX,
            "{memory} KiB with {SLOW} slow downloads of {LARGE} bytes"
        );
        println!(
            "{memory} KiB at most, with {SLOW} slow downloads; the upstream got rid of {} bytes",
            flood.sent()
        );
    }

    let mut served = 0;
    for client in slow {
        let expects = !matches!(client, Slow::Reader(_));
        let status = client.end().await;
        assert_eq!(status, expects.then_some(200));
        served += usize::from(status.is_some());
    }
    assert_eq!(served, 2 * SLOW);
    assert_eq!(upstream.count(), tally.count(200) + 2 * SLOW as u64, "each request came once");
}

/// Streams of each kind on one HTTP/2 connection.
const STREAMS: usize = 30;

#[tokio::test]
async fn slow_streams_hold_no_other_stream_of_their_connection() {
    let (upstream, flood) = (Upstream::start(), Flood::start(Speaks::Http1));
    let weir = Weir::start(&config(&upstream, &flood).text());
    let mut builder = h2::client::Builder::new();
    // On this side too, what one stream leaves unread must not affect the others.
    builder.initial_window_size(64 << 10).initial_connection_window_size(64 << 20);
    let stream = TcpStream::connect(weir.http).await.unwrap();
    let (client, connection) = builder.handshake::<_, Bytes>(stream).await.unwrap();
    tokio::spawn(connection);
    let mut client = client.ready().await.unwrap();
    let (mut uploads, mut downloads) = (Vec::new(), Vec::new());
    for _ in 0..STREAMS {
        let request = http::Request::post("http://api.example/body").body(()).unwrap();
        uploads.push(client.send_request(request, false).unwrap());
        let request = http::Request::get(format!("http://api.example/{LARGE}")).body(()).unwrap();
        let reply = client.send_request(request, true).unwrap().0.await.unwrap();
        assert_eq!(reply.status(), 200);
        // Kept without reading.
        downloads.push(reply.into_body());
        client = client.ready().await.unwrap();
    }
    for _ in 0..ROUNDS {
        for (_, body) in &mut uploads {
            body.send_data(Bytes::from_static(b"x"), false).unwrap();
        }
        for _ in 0..OTHERS {
            let request = http::Request::get("http://api.example/others").body(()).unwrap();
            let (reply, _) = client.send_request(request, true).unwrap();
            let mut reply = tokio::time::timeout(TIMEOUT, reply).await.expect("in time").unwrap();
            assert_eq!(reply.status(), 200);
            let piece = reply.body_mut().data().await.unwrap().unwrap();
            assert_eq!(&piece[..], b"from upstream\n");
            client = client.ready().await.unwrap();
        }
    }
    for (reply, mut body) in uploads {
        body.send_data(Bytes::new(), true).unwrap();
        assert_eq!(
            tokio::time::timeout(TIMEOUT, reply).await.expect("in time").unwrap().status(),
            200
        );
    }
    let seen = upstream.seen();
    assert_eq!(
        seen.iter().filter(|seen| seen.method == "POST" && seen.body.len() == ROUNDS).count(),
        STREAMS
    );
    assert_eq!(seen.len(), STREAMS + ROUNDS * OTHERS);
}
