//! HTTP/2 frame by frame, as only a hostile client sends it.

use std::pin::Pin;

use super::*;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RESET: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const REFUSED_STREAM: u32 = 7;

/// A connection that sends raw frames.
pub(super) struct Raw(TcpStream);

pub(super) struct Frame {
    kind: u8,
    flags: u8,
    stream: u32,
    payload: Vec<u8>,
}

impl Frame {
    /// The error code of a GOAWAY or RST_STREAM.
    fn error(&self) -> u32 {
        let at = if self.kind == GOAWAY { 4 } else { 0 };
        u32::from_be_bytes(self.payload[at..at + 4].try_into().unwrap())
    }
}

pub(super) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut bytes = length[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// `GET path` in uncompressed HPACK.
pub(super) fn head(path: &str) -> Vec<u8> {
    let mut block = vec![0x82, 0x86, 0x01, 1, b'a', 0x04, u8::try_from(path.len()).unwrap()];
    block.extend(path.as_bytes());
    block
}

impl Raw {
    pub(super) async fn connect(server: &TestServer) -> Self {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
        stream.write_all(&frame(SETTINGS, 0, 0, &[])).await.unwrap();
        Self(stream)
    }

    pub(super) async fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        self.0.write_all(&frame(kind, flags, stream, payload)).await.unwrap();
    }

    pub(super) async fn request(&mut self, stream: u32, path: &str) {
        self.send(HEADERS, END_STREAM | END_HEADERS, stream, &head(path)).await;
    }

    /// The next frame of this kind. `None` if the connection ends first.
    async fn next(&mut self, kind: u8) -> Option<Frame> {
        loop {
            let mut head = [0; 9];
            let read = tokio::time::timeout(TEST_TIMEOUT, self.0.read_exact(&mut head))
                .await
                .expect("no frame");
            if read.is_err() {
                return None;
            }
            let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
            self.0.read_exact(&mut payload).await.ok()?;
            let stream = u32::from_be_bytes(head[5..].try_into().unwrap());
            if head[3] == kind {
                return Some(Frame { kind, flags: head[4], stream, payload });
            }
        }
    }
}

#[tokio::test]
async fn streams_above_the_maximum_are_refused_and_those_below_go_on() {
    let server = start(ConnectionSettings { streams_max: 2, ..settings() });
    let mut raw = Raw::connect(&server).await;
    let received = raw.next(SETTINGS).await.unwrap().payload;
    assert!(
        received.windows(6).any(|setting| setting == [0, 3, 0, 0, 0, 2]),
        "MAX_CONCURRENT_STREAMS: {received:?}"
    );
    for stream in [1, 3, 5] {
        raw.request(stream, "/wait").await;
    }
    let reset = raw.next(RESET).await.unwrap();
    assert_eq!((reset.stream, reset.error()), (5, REFUSED_STREAM));
    server.handler.0.begun.notified().await;
    server.handler.0.go.notify_one();
    let data = raw.next(DATA).await.unwrap();
    assert_eq!(data.payload, b"waited");
}

#[tokio::test]
async fn a_client_that_resets_each_stream_at_once_gains_nothing() {
    const STREAMS: u32 = 20_000;
    let server = start(settings());
    let raw = Raw::connect(&server).await;
    let (mut reading, mut writing) = raw.0.into_split();
    let flood = tokio::spawn(async move {
        for batch in 0..STREAMS / 100 {
            let mut bytes = Vec::new();
            for stream in (0..100).map(|n| (batch * 100 + n) * 2 + 1) {
                bytes.extend(frame(HEADERS, END_STREAM | END_HEADERS, stream, &head("/wait")));
                bytes.extend(frame(RESET, 0, stream, &8_u32.to_be_bytes()));
            }
            if writing.write_all(&bytes).await.is_err() {
                return;
            }
        }
        writing.shutdown().await.unwrap();
    });
    // Others are served meanwhile, and afterwards nothing is left of the flood.
    let mut other = server.connect().await;
    while !flood.is_finished() {
        other.get("/hello", "hello").await;
    }
    drop(other);
    let mut rest = Vec::new();
    let _ = tokio::time::timeout(TEST_TIMEOUT, reading.read_to_end(&mut rest))
        .await
        .expect("never closed");
    server.await_shown("weir_connections_open 0").await;
}

#[tokio::test]
async fn a_reply_of_which_one_byte_is_read_is_reset_and_the_others_go_on() {
    let send_idle = Duration::from_millis(60);
    let server = start(ConnectionSettings { send_idle, ..settings() });
    // Each stream's window has one byte: INITIAL_WINDOW_SIZE.
    let mut raw = Raw::connect(&server).await;
    raw.send(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 1]).await;
    // One stream is busy for as long as the client likes.
    raw.request(1, "/wait").await;
    server.handler.0.begun.notified().await;
    raw.request(3, "/hello").await;
    assert_eq!(raw.next(DATA).await.unwrap().payload, b"h");
    let reset = raw.next(RESET).await.unwrap();
    assert_eq!((reset.stream, reset.error()), (3, 8));
    server.await_shown("weir_connection_errors_total{cause=\"send_timeout\"} 1").await;
    raw.request(5, "/empty").await;
    assert_eq!(raw.next(HEADERS).await.unwrap().stream, 5);
    server.handler.0.go.notify_one();
    assert_eq!(raw.next(DATA).await.unwrap().payload, b"w");
    // Who reads may take as long for the next.
    let mut raw = Raw::connect(&server).await;
    raw.send(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 1]).await;
    raw.request(1, "/hello").await;
    assert_eq!(raw.next(DATA).await.unwrap().payload, b"h");
    raw.send(WINDOW_UPDATE, 0, 1, &4_u32.to_be_bytes()).await;
    assert_eq!(raw.next(DATA).await.unwrap().payload, b"ello");
    tokio::time::sleep(send_idle * 6).await;
    raw.request(3, "/hello").await;
    assert_eq!(raw.next(DATA).await.unwrap().payload, b"h");
}

/// Always readable, so that a pending read is the guard's.
struct Endless;

impl tokio::io::AsyncRead for Endless {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
        buf: &mut tokio::io::ReadBuf<'_>,
    ) -> std::task::Poll<std::io::Result<()>> {
        buf.put_slice(&[1]);
        std::task::Poll::Ready(Ok(()))
    }
}

#[tokio::test]
async fn a_connection_is_not_read_while_too_many_streams_have_not_ended() {
    let state = Arc::<state::ConnectionState>::default();
    let mut guard = super::super::http2::FloodGuard {
        stream: Endless,
        read_ahead: bytes::Bytes::new(),
        state: Arc::clone(&state),
        tasks_max: 2,
    };
    state.stream_opened();
    assert_eq!(guard.read(&mut [0; 1]).await.unwrap(), 1);
    state.stream_opened();
    let reading = tokio::spawn(std::future::poll_fn(move |cx| {
        state.set_waker(cx.waker());
        let mut piece = [0; 1];
        let polled = tokio::io::AsyncRead::poll_read(
            Pin::new(&mut guard),
            cx,
            &mut tokio::io::ReadBuf::new(&mut piece),
        );
        if polled.is_pending() {
            // The stream's task ends in another task.
            let state = Arc::clone(&state);
            tokio::spawn(async move { state.stream_ended() });
        }
        polled
    }));
    tokio::time::timeout(TEST_TIMEOUT, reading).await.expect("nobody wakes it").unwrap().unwrap();
}

#[tokio::test]
async fn a_head_without_end_is_cut_off() {
    let server = start(settings());
    let mut raw = Raw::connect(&server).await;
    raw.send(HEADERS, END_STREAM, 1, &head("/hello")).await;
    // A field of 100 bytes, again and again, without END_HEADERS.
    let field = [&[0x00, 1, b'x', 96][..], &[b'y'; 96]].concat();
    let (mut reading, mut writing) = raw.0.into_split();
    let flood = tokio::spawn(async move {
        let mut sent = 0;
        while writing.write_all(&frame(CONTINUATION, 0, 1, &field)).await.is_ok() {
            sent += 1;
            assert!(sent < 1_000_000, "it never ends");
        }
    });
    let mut received = Vec::new();
    let _ = tokio::time::timeout(TEST_TIMEOUT, reading.read_to_end(&mut received))
        .await
        .expect("never closed");
    drop(reading);
    flood.await.unwrap();
    assert_eq!(server.handler.0.calls.load(Ordering::SeqCst), 0);
    server.await_shown("weir_connections_open 0").await;
}

#[tokio::test]
async fn a_head_above_the_limit_is_answered_431() {
    let server = start(ConnectionSettings { header_bytes_max: 8 << 10, ..settings() });
    let mut raw = Raw::connect(&server).await;
    let field = [&[0x00, 1, b'x', 127, 0x91, 0x4d][..], &vec![b'y'; 10_000]].concat();
    raw.send(HEADERS, END_STREAM | END_HEADERS, 1, &[head("/hello"), field].concat()).await;
    let reply = raw.next(HEADERS).await.unwrap();
    // "431" in HPACK's Huffman coding.
    assert!(
        reply.payload.windows(3).any(|digits| digits == [0x69, 0x90, 0xff]),
        "{:?}",
        reply.payload
    );
    assert_eq!((reply.stream, reply.flags & END_STREAM), (1, END_STREAM));
    raw.request(3, "/hello").await;
    assert_eq!(raw.next(DATA).await.unwrap().payload, b"hello");
    assert_eq!(server.handler.0.calls.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn pings_that_nobody_reads_the_answers_of_hold_no_memory_for_long() {
    let server = start(ConnectionSettings { send_idle: Duration::from_millis(300), ..settings() });
    let mut raw = Raw::connect(&server).await;
    let pings: Vec<u8> = (0..1_000).flat_map(|_| frame(PING, 0, 0, &[0; 8])).collect();
    let flood = async { while raw.0.write_all(&pings).await.is_ok() {} };
    // The server stops reading when its answers are not taken, and then gives up.
    tokio::time::timeout(TEST_TIMEOUT, flood).await.expect("never cut off");
    server.await_shown("weir_connections_open 0").await;
}

#[tokio::test]
async fn a_slow_reader_gets_the_rest_of_a_connection_that_was_closed() {
    let server = start(settings());
    let mut raw = Raw::connect(&server).await;
    raw.send(SETTINGS, 0, 0, &[0, 4, 0x7f, 0xff, 0xff, 0xff]).await;
    raw.send(WINDOW_UPDATE, 0, 0, &[0x7f, 0xff, 0, 0]).await;
    raw.request(1, "/wait-much").await;
    server.handler.0.begun.notified().await;
    server.drain.start();
    let ping = raw.next(PING).await.unwrap();
    raw.send(PING, 1, 0, &ping.payload).await;
    server.handler.0.go.notify_one();
    // The whole reply is in the socket buffers and the server has closed its side. The client does
    // not read yet, but still sends.
    for _ in 0..25 {
        tokio::time::sleep(Duration::from_millis(20)).await;
        raw.send(WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1]).await;
    }
    let mut read = 0;
    while read < MUCH {
        read += raw.next(DATA).await.expect("the rest is lost").payload.len();
    }
    drop(raw);
    tokio::time::timeout(TEST_TIMEOUT, server.serving)
        .await
        .expect("serve() does not return")
        .unwrap();
}

#[tokio::test]
async fn a_client_that_does_not_answer_a_goodbye_does_not_hold_a_drain() {
    let server = start(settings());
    let mut raw = Raw::connect(&server).await;
    raw.request(1, "/hello").await;
    assert_eq!(raw.next(DATA).await.unwrap().payload, b"hello");
    server.drain.start();
    assert_eq!(raw.next(GOAWAY).await.unwrap().error(), 0);
    // An honest client would answer the PING that follows the GOAWAY.
    let began = crate::clock::monotonic();
    tokio::time::timeout(TEST_TIMEOUT, server.serving)
        .await
        .expect("serve() does not return")
        .unwrap();
    let lasted = crate::clock::monotonic() - began;
    assert!(
        lasted >= Duration::from_millis(super::super::http2::CLOSE_TIMEOUT_MS - 500)
            && lasted < Duration::from_secs(10),
        "{lasted:?}"
    );
}

#[tokio::test]
async fn frames_that_break_the_protocol_end_the_connection_with_the_reason() {
    let server = start(settings());
    let mut raw = Raw::connect(&server).await;
    // DATA on stream 0.
    raw.send(DATA, 0, 0, b"x").await;
    let goaway = raw.next(GOAWAY).await.unwrap();
    assert_eq!(goaway.error(), 1, "PROTOCOL_ERROR");
    assert!(raw.next(GOAWAY).await.is_none(), "closed");
    server.await_shown("weir_connections_open 0").await;
}

#[tokio::test]
async fn a_stream_that_is_reset_at_once_gets_no_interim_reply() {
    let server = start(settings());
    let mut raw = Raw::connect(&server).await;
    let mut bytes = frame(HEADERS, END_STREAM | END_HEADERS, 1, &head("/hints"));
    bytes.extend(frame(RESET, 0, 1, &8_u32.to_be_bytes()));
    bytes.extend(frame(HEADERS, END_STREAM | END_HEADERS, 3, &head("/hello")));
    raw.0.write_all(&bytes).await.unwrap();
    assert_eq!(raw.next(HEADERS).await.unwrap().stream, 3);
    assert_eq!(server.handler.0.calls.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn a_reply_with_trailers_that_nobody_reads_is_given_up_while_another_stream_is_open() {
    let server = start(ConnectionSettings { send_idle: Duration::from_millis(50), ..settings() });
    let mut raw = Raw::connect(&server).await;
    // A stream may send a byte: h2 takes all of a reply that is larger.
    raw.send(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 1]).await;
    raw.request(1, "/wait").await;
    server.handler.0.begun.notified().await;
    let mut post = head("/echo");
    post[0] = 0x83;
    raw.send(HEADERS, END_HEADERS, 3, &post).await;
    raw.send(DATA, 0, 3, b"unread").await;
    raw.send(HEADERS, END_STREAM | END_HEADERS, 3, &[0, 1, b'x', 1, b'y']).await;
    let reset = raw.next(RESET).await.unwrap();
    assert_eq!((reset.stream, reset.error()), (3, 8));
    server.await_shown("weir_connection_errors_total{cause=\"send_timeout\"} 1").await;
    // The others go on.
    raw.request(5, "/empty").await;
    assert_eq!(raw.next(HEADERS).await.unwrap().stream, 5);
}

#[tokio::test]
async fn a_client_that_never_asked_does_not_hold_a_drain() {
    let long = Duration::from_secs(600);
    let server = start(ConnectionSettings { request_header: long, ..settings() });
    let mut silent = Raw::connect(&server).await;
    assert!(silent.next(SETTINGS).await.is_some());
    // Not even its preface has arrived.
    let mut half = TcpStream::connect(server.address).await.unwrap();
    half.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0").await.unwrap();
    server.await_shown("weir_connections_open 2").await;
    server.drain.start();
    tokio::time::timeout(TEST_TIMEOUT, server.serving)
        .await
        .expect("serve() does not return")
        .unwrap();
}
