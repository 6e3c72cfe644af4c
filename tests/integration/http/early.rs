//! Responses that come before the upload has ended: the client sees the status, however it and the
//! upstream are connected, even if it reads only after it has sent everything.

use std::net::SocketAddr;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;

use crate::harness::TIMEOUT;
use crate::harness::flood::{self, Speaks};
use crate::harness::pki::Pki;
use crate::harness::tls::{HOST, Http2, config, connect};
use crate::harness::toml::Toml;
use crate::harness::weir::Weir;

/// Far more than all buffers between a client and its upstream.
const UPLOAD_BYTES: usize = 32 << 20;
const PIECE: &[u8] = &[b'x'; 64 << 10];

/// An upstream on a thread of its own that serves each connection with `serve`.
fn serving<F, R>(serve: F) -> SocketAddr
where
    F: Fn(TcpStream) -> R + Send + 'static,
    R: Future<Output = ()> + Send + 'static,
{
    let listener = crate::harness::upstream::listener();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async move {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                tokio::spawn(serve(stream));
            }
        });
    });
    address
}

/// An upstream that reads only the head of an upload, refuses it and closes.
fn refusing(tls: Option<TlsAcceptor>, reply: &'static str) -> SocketAddr {
    serving(move |stream| {
        let tls = tls.clone();
        async move {
            match tls {
                Some(tls) => refuse(tls.accept(stream).await.unwrap(), reply).await,
                None => refuse(stream, reply).await,
            }
        }
    })
}

async fn refuse(mut stream: impl AsyncRead + AsyncWrite + Unpin, reply: &str) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let Ok(byte) = stream.read_u8().await else { return };
        head.push(byte);
    }
    let _ = stream.write_all(reply.as_bytes()).await;
    // Most of the upload is unread, so the kernel resets the connection.
    let _ = stream.shutdown().await;
}

/// An upstream that refuses an upload over HTTP/2: the connection continues, and the rest of the
/// upload is not read.
fn refusing_over_http2() -> SocketAddr {
    serving(|stream| async move {
        let mut connection = h2::server::handshake(stream).await.unwrap();
        while let Some(Ok((request, mut respond))) = connection.accept().await {
            let refusal = http::Response::builder().status(413).body(()).unwrap();
            let mut body = respond.send_response(refusal, false).unwrap();
            let _ = body.send_data(Bytes::from_static(b"big"), true);
            // Resets the stream, without an error.
            drop(request);
        }
    })
}

/// Sends a whole upload, and reads the response only then.
async fn upload(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> (usize, String) {
    let head = format!(
        "POST /upload HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: {UPLOAD_BYTES}\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut sent = 0;
    while sent < UPLOAD_BYTES && stream.write_all(PIECE).await.is_ok() {
        sent += PIECE.len();
    }
    let _ = stream.flush().await;
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    (sent, String::from_utf8_lossy(&answer).into_owned())
}

/// The status that each kind of client sees.
async fn seen_by_all(plain: &Weir, secured: &Weir, ca: &str, status: u16, how: &str) {
    let check = |who: &str, (sent, answer): (usize, String)| {
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status} ")),
            "{how}, {who}: {sent} bytes sent, then {answer:?}"
        );
        assert_eq!(
            sent, UPLOAD_BYTES,
            "{how}, {who}: everything sent must be read, or the sender may never read the answer"
        );
    };
    let stream = TcpStream::connect(plain.http).await.unwrap();
    check("HTTP/1.1", tokio::time::timeout(TIMEOUT, upload(stream)).await.expect("in time"));
    let stream = connect(secured.http, &config(ca, &[b"http/1.1"])).await.unwrap();
    check(
        "HTTP/1.1 over TLS",
        tokio::time::timeout(TIMEOUT, upload(stream)).await.expect("in time"),
    );
    for (who, client) in [
        ("HTTP/2", Http2::plain(plain.http).await),
        ("HTTP/2 over TLS", Http2::secured(secured.http, ca).await),
    ] {
        let body = Bytes::from(vec![b'x'; UPLOAD_BYTES]);
        let reply = client.unwrap().send("POST", "/upload", &[], body).await;
        let reply = reply.unwrap_or_else(|error| panic!("{how}, {who}: {error}"));
        assert_eq!(reply.status, status, "{how}, {who}: {reply:?}");
    }
}

async fn served(config: Toml, pki: &Pki, status: u16, how: &str) {
    let ca = pki.ca.as_bytes();
    let plain = Weir::build(&config.text()).file("ca.pem", ca).start();
    let secured = Weir::build(&config.secured(&["api"]).text())
        .file("ca.pem", ca)
        .identity("api", &pki.server(&[HOST]))
        .start();
    seen_by_all(&plain, &secured, &pki.ca, status, how).await;
}

#[tokio::test]
async fn an_upstreams_answer_to_half_an_upload_reaches_every_client() {
    let pki = Pki::new();
    for (status, reply) in [
        (
            413,
            "HTTP/1.1 413 Content Too Large\r\nconnection: close\r\ncontent-length: 3\r\n\r\nbig",
        ),
        (401, "HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\n\r\n"),
    ] {
        let upstream = refusing(None, reply);
        let route = "[[routes]]\npath = \"/*\"\nupstream = \"api\"\n";
        served(
            Toml::new().upstream("api", &format!("http://{upstream}"), "").more(route),
            &pki,
            status,
            "a plain upstream",
        )
        .await;
        let upstream = refusing(Some(flood::acceptor(Speaks::Http1, &pki.server(&[HOST]))), reply);
        let tls = format!("[upstreams.api.tls]\nca = \"ca.pem\"\nserver_name = \"{HOST}\"");
        served(
            Toml::new().upstream("api", &format!("https://{upstream}"), &tls).more(route),
            &pki,
            status,
            "TLS to the upstream",
        )
        .await;
    }
}

#[tokio::test]
async fn an_answer_over_http2_to_half_an_upload_reaches_every_client() {
    let url = format!("http://{}", refusing_over_http2());
    let config = Toml::new()
        .upstream("api", &url, "protocol = \"h2\"")
        .more("[[routes]]\npath = \"/*\"\nupstream = \"api\"\n");
    served(config, &Pki::new(), 413, "HTTP/2 to the upstream").await;
}

#[tokio::test]
async fn weirs_own_refusal_of_an_upload_reaches_every_client() {
    let pki = Pki::new();
    let config = Toml::new().more("[[routes]]\npath = \"/*\"\nrespond = { status = 200, body = \"ok\" }\nbody_bytes = \"1KiB\"\n");
    served(config, &pki, 413, "refused by Weir").await;
}
