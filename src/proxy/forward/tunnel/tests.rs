//! Tunnels between in-memory connections, and which requests become one.

use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::task::JoinHandle;

use super::*;

/// Both far ends of a tunnel whose connections buffer `bytes`.
fn tunnel(
    bytes: usize,
    idle: Duration,
) -> (DuplexStream, DuplexStream, JoinHandle<(TunnelEnd, Transferred)>) {
    let (client, near) = duplex(bytes);
    let (upstream, far) = duplex(bytes);
    let joined = tokio::spawn(async move {
        let mut transferred = Transferred::default();
        (join(near, far, Watch::Nothing, idle, &mut transferred).await, transferred)
    });
    (client, upstream, joined)
}

const LONG: Duration = Duration::from_secs(20);

#[test]
fn a_request_with_a_body_is_not_upgraded() {
    let upgrades = Upgrades { protocols: vec!["websocket".to_owned()], idle: LONG };
    let request = http::Request::get("/").body(Body::empty()).unwrap().into();
    let allows = |body| upgrades.allowed(&request, &body, b"WebSocket").is_some();
    assert!(allows(Body::empty()));
    // As a policy has it that reads bodies.
    assert!(!allows(Body::full(wire::counted(bytes::Bytes::from_static(b"x")))));
}

#[tokio::test]
async fn bytes_pass_both_ways_and_an_end_is_passed_on_alone() {
    let (mut client, mut upstream, joined) = tunnel(7, LONG);
    let large = vec![b'x'; 3 * PIECE_BYTES + 1];
    let sent = large.clone();
    let asking = tokio::spawn(async move {
        client.write_all(&sent).await.unwrap();
        client.shutdown().await.unwrap();
        let mut got = String::new();
        client.read_to_string(&mut got).await.unwrap();
        got
    });
    let mut got = Vec::new();
    upstream.read_to_end(&mut got).await.unwrap();
    assert!(got == large);
    // The client has ended and still reads.
    upstream.write_all(b"answer").await.unwrap();
    drop(upstream);
    assert_eq!(asking.await.unwrap(), "answer");
    assert_eq!(
        joined.await.unwrap(),
        (TunnelEnd::Closed, Transferred { up: large.len() as u64, down: 6, messages: None })
    );
}

#[tokio::test]
async fn silence_in_both_directions_ends_it_and_in_one_does_not() {
    let idle = Duration::from_millis(200);
    let (mut client, mut upstream, joined) = tunnel(64, idle);
    let began = std::time::Instant::now();
    let mut piece = [0; 1];
    // For longer than `idle`, only one side sends.
    while began.elapsed() < 2 * idle {
        upstream.write_all(b"x").await.unwrap();
        client.read_exact(&mut piece).await.unwrap();
        tokio::time::sleep(idle / 20).await;
    }
    assert!(!joined.is_finished());
    let (end, transferred) = joined.await.unwrap();
    assert!(
        end == TunnelEnd::Idle && transferred.up == 0 && transferred.down > 1,
        "{end:?} {transferred:?}"
    );
}

/// Fails like a socket that was reset by its peer.
struct Reset;

impl AsyncRead for Reset {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        _: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()))
    }
}

impl AsyncWrite for Reset {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, _: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[tokio::test]
async fn a_side_that_fails_ends_it_under_its_name() {
    let (_far, near) = duplex(64);
    assert_eq!(
        join(Reset, near, Watch::Nothing, LONG, &mut Transferred::default()).await,
        TunnelEnd::Client
    );
    let (_far, near) = duplex(64);
    assert_eq!(
        join(near, Reset, Watch::Nothing, LONG, &mut Transferred::default()).await,
        TunnelEnd::Upstream
    );
}
