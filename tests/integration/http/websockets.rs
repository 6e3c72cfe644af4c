//! WebSockets whose messages are counted, and those that reach their upstream over HTTP/2.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use super::upgrades::{AGREED, MANY, Raw, ask, logged, open, open_now, over_http2};
use crate::harness::TIMEOUT;
use crate::harness::client::get;
use crate::harness::guest;
use crate::harness::redis::Redis;
use crate::harness::toml::{Toml, simple};
use crate::harness::weir::Weir;

/// The opcodes of frames that are whole messages, or none.
const TEXT: u8 = 0x81;
const PING: u8 = 0x89;

/// A frame of a client, with a mask that changes nothing.
fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![first];
    match payload.len() {
        length @ 0..126 => frame.push(0x80 | u8::try_from(length).unwrap()),
        length => {
            frame.push(0x80 | 126);
            frame.extend(u16::try_from(length).unwrap().to_be_bytes());
        }
    }
    frame.extend([0; 4]);
    [&frame, payload].concat()
}

/// Reads exactly what an echo sends back.
fn hears(stream: &mut TcpStream, frames: &[u8]) {
    let mut heard = vec![0; frames.len()];
    stream.read_exact(&mut heard).unwrap();
    assert!(heard == frames, "{:x?}", &heard[..heard.len().min(64)]);
}

/// The close frame that a server sends, to its connection's end.
fn closed(stream: &mut TcpStream) -> (u16, String) {
    let mut frame = Vec::new();
    stream.read_to_end(&mut frame).unwrap();
    let [0x88, length, code @ ..] = &frame[..4] else { panic!("{frame:x?}") };
    assert_eq!(usize::from(*length) + 2, frame.len(), "{frame:x?}");
    (u16::from_be_bytes([code[0], code[1]]), String::from_utf8(frame[4..].to_vec()).unwrap())
}

#[test]
fn a_client_beyond_its_limit_of_messages_is_closed_after_the_last_one_that_fits() {
    let redis = Redis::start();
    let limit = "name = \"messages\", algorithm = \"fixed_window\", quota = 4, period = \"1d\", messages = \"close\"";
    let in_memory = simple("http://127.0.0.1:9", &[limit]);
    let shared = in_memory.clone().redis("single", &[redis.address]);
    for config in [in_memory, shared] {
        let upstream = Raw::websocket();
        let weir = Weir::start(&logged(&config).replace("http://127.0.0.1:9", &upstream.url()));
        let (mut stream, answer) = ask(weir.http, "websocket");
        // The request itself takes one.
        assert!(answer.contains("ratelimit: \"messages\";r=3"), "{answer}");
        // One of two frames with a ping between them, and two whole ones: three messages.
        let fits = [
            frame(0x01, b"begun, "),
            frame(PING, b"there?"),
            frame(0x80, b"ended"),
            frame(TEXT, &[b'x'; 30_000]),
            frame(TEXT, b""),
        ]
        .concat();
        let beyond = frame(TEXT, b"too much").repeat(9);
        // In pieces that end within frames.
        for piece in fits.chunks(9_999) {
            stream.write_all(piece).unwrap();
        }
        hears(&mut stream, &fits);
        stream.write_all(&beyond).unwrap();
        assert_eq!(closed(&mut stream), (1008, "too many messages".into()));
        drop(stream);
        open(&weir, 0);
        assert_eq!(weir.metric("weir_tunnels_total{ending=\"limited\"}"), 1);
        let line = &weir.output().await_events("request", 1)[0];
        assert_eq!(
            (&line["failure"], &line["bytes_up"]),
            (&"tunnel-limited".into(), &fits.len().into()),
            "{line}"
        );
        let (_, refused) = ask(weir.http, "websocket");
        assert!(refused.starts_with("http/1.1 429 "), "{refused}");
    }
}

#[test]
fn what_the_upstream_is_sending_is_ended_before_a_client_is_closed() {
    // The upstream sends the rest of its frame when it has a part of the first message.
    let upstream = Raw::websocket_then(|mut stream| {
        stream.write_all(&[0x82, 9, b'b', b'e']).unwrap();
        stream.read_exact(&mut [0; 4]).unwrap();
        stream.write_all(b"fore it").unwrap();
        stream.write_all(&[0x82, 3, b'n', b'e', b'w']).unwrap();
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).unwrap();
        // The rest of the message, and a close with a code that a client masks.
        assert_eq!(rest.len(), 7 + 8, "{rest:x?}");
        assert_eq!(rest[7..9], [0x88, 0x82], "{rest:x?}");
        stream.write_all(b"all of it").unwrap_or_default();
    });
    let limit = "name = \"messages\", algorithm = \"fixed_window\", quota = 2, period = \"1d\", messages = \"close\"";
    let weir = Weir::start(&simple(&upstream.url(), &[limit]).text());
    let (mut stream, _) = ask(weir.http, "websocket");
    stream.write_all(&frame(TEXT, b"hello").repeat(2)).unwrap();
    hears(&mut stream, b"\x82\x09before it");
    assert_eq!(closed(&mut stream), (1008, "too many messages".into()));
}

#[test]
fn messages_wait_for_their_units_where_the_limit_says_so() {
    let limit = "name = \"messages\", algorithm = \"gcra\", quota = 20, period = \"1s\", burst = 2, messages = \"wait\"";
    let upstream = Raw::websocket();
    let weir = Weir::start(&simple(&upstream.url(), &[limit]).text());
    let (mut stream, _) = ask(weir.http, "websocket");
    let began = Instant::now();
    let all: Vec<u8> = (0..16u8).flat_map(|nth| frame(TEXT, &[nth])).collect();
    stream.write_all(&all).unwrap();
    hears(&mut stream, &all);
    // One of the burst was left, and the others came one every 50 ms.
    assert!(began.elapsed() >= Duration::from_millis(14 * 50), "{:?}", began.elapsed());
    stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(stream.read(&mut [0; 1]).unwrap(), 0);
    open(&weir, 0);
    assert_eq!(weir.metric("weir_tunnels_total{ending=\"closed\"}"), 1);
}

/// Its last messages are on their way through Redis when its connection ends.
#[test]
fn a_client_that_ends_right_after_its_messages_loses_none() {
    let redis = Redis::start();
    let limit = "name = \"messages\", algorithm = \"fixed_window\", quota = 999, period = \"1d\", messages = \"close\"";
    let upstream = Raw::websocket();
    let config = simple(&upstream.url(), &[limit]).redis("single", &[redis.address]);
    let weir = Weir::start(&config.text());
    let (mut stream, _) = ask(weir.http, "websocket");
    let all: Vec<u8> = (0..200u8).flat_map(|nth| frame(TEXT, &[nth])).collect();
    stream.write_all(&all).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    hears(&mut stream, &all);
    open(&weir, 0);
    assert_eq!(weir.metric("weir_tunnels_total{ending=\"closed\"}"), 1);
}

#[test]
fn a_counter_that_is_away_closes_with_try_again_later() {
    let redis = Redis::start();
    let limit = "name = \"messages\", algorithm = \"fixed_window\", quota = 99, period = \"1d\", messages = \"close\", on_store_error = \"deny\"";
    let upstream = Raw::websocket();
    let config = simple(&upstream.url(), &[limit]).redis("single", &[redis.address]);
    let weir = Weir::start(&config.text());
    let (mut stream, _) = ask(weir.http, "websocket");
    let hello = frame(TEXT, b"hello");
    stream.write_all(&hello).unwrap();
    hears(&mut stream, &hello);
    drop(redis);
    stream.write_all(&hello).unwrap();
    assert_eq!(closed(&mut stream), (1013, "try again later".into()));
}

#[test]
fn a_policy_learns_how_many_messages_there_were() {
    let upstream = Raw::websocket();
    let module = std::fs::read(guest::shown()).unwrap();
    let config = Toml::new()
        .upstream("api", &upstream.url(), "")
        .more("[policies.shown]\nwasm = \"shown.wasm\"\nconfig = { fact = \"path\" }\n")
        .route("path = \"/*\"\nupstream = \"api\"\npolicy = \"shown\"");
    let weir = Weir::build(&logged(&config)).file("shown.wasm", &module).start();
    let (mut stream, answer) = ask(weir.http, "websocket");
    assert!(answer.contains("x-shown: "), "{answer}");
    let all = [frame(TEXT, b"one"), frame(PING, b""), frame(TEXT, b"two")].concat();
    stream.write_all(&all).unwrap();
    hears(&mut stream, &all);
    stream.shutdown(Shutdown::Write).unwrap();
    open(&weir, 0);
    let line = &weir.output().await_events("request", 1)[0];
    let counts = serde_json::json!({ "messages-down": 2, "messages-up": 2 });
    assert_eq!(line["amounts"], counts, "{line}");
}

/// Messages that can't be told apart are not let through uncounted.
#[test]
fn a_handshake_or_a_frame_of_another_protocol_is_no_way_past_the_limit() {
    let limit = "name = \"messages\", algorithm = \"fixed_window\", quota = 9, period = \"1d\", messages = \"close\"";
    // An upstream that does not know the key, as those before RFC 6455.
    let old = Raw::echo();
    let weir = Weir::start(&simple(&old.url(), &[limit]).text());
    let (_, answer) = ask(weir.http, "websocket");
    assert!(answer.starts_with("http/1.1 502 "), "{answer}");
    let upstream = Raw::websocket();
    let weir = Weir::start(&simple(&upstream.url(), &[limit]).text());
    for handshake in [
        "Sec-WebSocket-Key: k",
        "Sec-WebSocket-Version: 0\r\nSec-WebSocket-Key: k",
        "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Version: 0\r\nSec-WebSocket-Key: k",
        "Sec-WebSocket-Version: 13",
    ] {
        let request = format!(
            "GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade, close\r\nUpgrade: websocket\r\n{handshake}\r\n\r\n"
        );
        let answer = crate::harness::client::raw(weir.http, request.as_bytes(), TIMEOUT);
        assert!(answer.starts_with("HTTP/1.1 502 "), "{handshake}: {answer}");
        assert!(!upstream.last().contains("upgrade: "), "{handshake}: {}", upstream.last());
    }
    let (mut stream, answer) = ask(weir.http, "websocket");
    assert!(answer.starts_with("http/1.1 101 "), "{answer}");
    // Nothing is there to be continued.
    stream.write_all(&frame(0x80, b"uncounted")).unwrap();
    assert_eq!(closed(&mut stream), (1002, "protocol error".into()));
}

/// What a browser asks before a request passes the limits, and becomes no WebSocket.
#[test]
fn only_a_get_becomes_a_websocket() {
    let upstream = Raw::websocket();
    let behind = Weir::start(&simple(&upstream.url(), &[MANY]).text());
    let route = "path = \"/*\"\nupstream = \"api\"\npolicy = \"public\"\ncors = { origins = [\"https://a.example\"] }";
    let none = "name = \"none\", algorithm = \"fixed_window\", quota = 0, period = \"1d\"";
    for protocol in ["h1", "h2"] {
        let config = Toml::new()
            .upstream(
                "api",
                &format!("http://{}", behind.http),
                &format!("protocol = \"{protocol}\""),
            )
            .policy("public", &[none])
            .route(route);
        let weir = Weir::start(&config.text());
        for method in ["OPTIONS", "POST"] {
            let request = format!(
                "{method} / HTTP/1.1\r\nHost: a\r\nOrigin: https://a.example\r\nAccess-Control-Request-Method: GET\r\nConnection: upgrade, close\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: k\r\n\r\n"
            );
            let answer = crate::harness::client::raw(weir.http, request.as_bytes(), TIMEOUT);
            assert!(!answer.starts_with("HTTP/1.1 101 "), "{protocol} {method}: {answer}");
        }
        open(&behind, 0);
        assert_eq!(behind.metric("weir_tunnels_total{ending=\"client\"}"), 0, "{protocol}");
    }
}

/// A client that leaves while everything between it and the upstream is full.
#[test]
fn a_stream_of_http2_whose_client_has_left_ends() {
    let upstream = Raw::websocket();
    let (weir, behind) = chain(&upstream);
    for _ in 0..3 {
        let (mut stream, answer) = ask(weir.http, "websocket");
        assert!(answer.starts_with("http/1.1 101 "), "{answer}");
        stream.set_write_timeout(Some(Duration::from_millis(300))).unwrap();
        let piece = vec![b'x'; 1 << 20];
        while let Ok(1..) = stream.write(&piece) {}
        drop(stream);
        open(&weir, 0);
        open(&behind, 0);
    }
}

/// Two proxies, the first of which speaks HTTP/2 to the second.
fn chain(upstream: &Raw) -> (Weir, Weir) {
    let behind = Weir::start(&simple(&upstream.url(), &[MANY]).text());
    let config = Toml::new()
        .upstream("api", &format!("http://{}", behind.http), "protocol = \"h2\"")
        .policy("public", &[MANY])
        .route("path = \"/*\"\nupstream = \"api\"\npolicy = \"public\"");
    (Weir::start(&logged(&config)), behind)
}

#[test]
fn a_websocket_reaches_an_upstream_over_http2() {
    let upstream = Raw::websocket();
    let (weir, behind) = chain(&upstream);
    for nth in 1..=3 {
        let (mut stream, answer) = ask(weir.http, "websocket");
        assert!(answer.starts_with("http/1.1 101 "), "{answer}");
        for field in [
            "connection: upgrade",
            "upgrade: websocket",
            // Of the key "k", which the upstream never sees.
            "sec-websocket-accept: cai0hfwl7dehzkyhxdyv1pn3r6m=",
        ] {
            assert!(answer.contains(&format!("\r\n{field}\r\n")), "{field}: {answer}");
        }
        let seen = upstream.last();
        assert!(seen.contains("get /chat http/1.1\r\n") && seen.contains("host: a\r\n"), "{seen}");
        let text = frame(TEXT, &[b'x'; 60_000]).repeat(5);
        let mut far = stream.try_clone().unwrap();
        let sent = text.clone();
        let writer = std::thread::spawn(move || far.write_all(&sent).unwrap());
        hears(&mut stream, &text);
        writer.join().unwrap();
        open(&behind, 1);
        if nth < 3 {
            // Its client leaves, or closes.
            if nth == 1 {
                drop(stream)
            } else {
                stream.shutdown(Shutdown::Both).unwrap()
            }
            open(&behind, 0);
            open(&weir, 0);
        }
    }
}

#[tokio::test]
async fn a_websocket_is_http2_on_both_ends_where_both_know_it() {
    let upstream = Raw::websocket();
    let behind = Weir::start(&simple(&upstream.url(), &[MANY]).text());
    let config = Toml::new()
        .upstream("api", &format!("http://{}", behind.http), "protocol = \"h2\"")
        .route("path = \"/*\"\nupstream = \"api\"")
        .route("path = \"/\"\nmethods = [\"OPTIONS\"]\nrespond = { status = 204 }");
    let weir = Weir::start(&config.text());
    let mut client = over_http2(&weir).await;
    let (reply, stream) = client.tunnel("/chat", "websocket", &[]).await.unwrap();
    assert_eq!(reply.status, 200);
    let mut stream = stream.unwrap();
    stream.write_all(b"hello").await.unwrap();
    let mut heard = [0; 5];
    timeout(TIMEOUT, stream.read_exact(&mut heard)).await.unwrap().unwrap();
    assert_eq!(&heard, b"hello");
    stream.shutdown().await.unwrap();
    assert_eq!(timeout(TIMEOUT, stream.read(&mut heard)).await.unwrap().unwrap(), 0);
    open_now(&weir, 0).await;
}

#[tokio::test]
async fn websockets_leave_requests_their_streams_over_http2() {
    let upstream = Raw::websocket();
    let config = Toml::new()
        .upstream("socket", &upstream.url(), "")
        .route("path = \"/socket\"\nupstream = \"socket\"")
        .route("path = \"/*\"\nrespond = { status = 204 }");
    let behind = Weir::start(&config.text());
    // One stream, with tunnels in it or requests.
    let narrow =
        "protocol = \"h2\"\nhttp2 = { connections_per_worker = 1, streams_per_connection = 1 }";
    let config = Toml::new()
        .upstream("api", &format!("http://{}", behind.http), narrow)
        .route("path = \"/*\"\nupstream = \"api\"")
        .server("workers = 1")
        .server("trusted_proxies = [\"127.0.0.0/8\"]");
    let weir = Weir::start(&config.text());
    let mut client = over_http2(&weir).await;
    // Clients of their own, as each has its share.
    let from = |client: &'static str| [("x-forwarded-for", client)];
    let (reply, stream) = client.tunnel("/socket", "websocket", &from("192.0.2.1")).await.unwrap();
    assert_eq!((reply.status, stream.is_some()), (200, true));
    assert_eq!(get(weir.http, "/", &from("192.0.2.2")).await.status, 204);
    let (reply, _) = client.tunnel("/socket", "websocket", &from("192.0.2.3")).await.unwrap();
    assert_eq!(reply.status, 503);
    assert_eq!(get(weir.http, "/", &from("192.0.2.4")).await.status, 204);
}

#[tokio::test]
async fn a_connection_whose_streams_are_all_websockets_goes_on() {
    let upstream = Raw::websocket();
    for streams in [1, 3] {
        let config = Toml::new()
            .upstream("socket", &upstream.url(), "")
            .route("path = \"/socket\"\nupstream = \"socket\"")
            .route("path = \"/*\"\nrespond = { status = 204 }")
            .more(&format!("[server.limits]\nstreams_per_connection = {streams}"));
        let weir = Weir::start(&config.text());
        let mut client = over_http2(&weir).await;
        let mut open = Vec::new();
        for _ in 0..streams {
            let (reply, stream) = client.tunnel("/socket", "websocket", &[]).await.unwrap();
            assert_eq!(reply.status, 200);
            open.push(stream.unwrap());
        }
        for _ in 0..3 {
            for stream in &mut open {
                stream.write_all(b"hello").await.unwrap();
                let mut heard = [0; 5];
                timeout(TIMEOUT, stream.read_exact(&mut heard)).await.unwrap().unwrap();
            }
        }
    }
}

#[test]
fn an_upstream_without_tunnels_over_http2_is_asked_over_http1() {
    // It speaks both, and its settings have no word of tunnels: an empty SETTINGS frame.
    let upstream = Raw::answering(
        |head| match head.starts_with("PRI * HTTP/2.0") {
            true => "\0\0\0\u{4}\0\0\0\0\0".to_owned(),
            false => AGREED.to_owned(),
        },
        |mut stream| {
            let mut piece = [0; 64];
            while let Ok(read @ 1..) = stream.read(&mut piece) {
                stream.write_all(&piece[..read]).unwrap();
            }
        },
    );
    let config = Toml::new()
        .upstream("api", &upstream.url(), "protocol = \"h2\"")
        .route("path = \"/*\"\nupstream = \"api\"");
    let weir = Weir::start(&config.text());
    for _ in 0..2 {
        let (mut stream, answer) = ask(weir.http, "websocket");
        assert!(answer.starts_with("http/1.1 101 "), "{answer}");
        stream.write_all(b"hello").unwrap();
        hears(&mut stream, b"hello");
    }
    // Not the last one: the rest of an HTTP/2 preface may come after it.
    assert!(upstream.saw("sec-websocket-key: k"), "{}", upstream.last());
}

#[test]
fn an_http2_upstream_may_refuse_a_websocket() {
    let refusing = "path = \"/*\"\nrespond = { status = 403, body = \"no\" }";
    let behind = Weir::start(&Toml::new().route(refusing).text());
    let config = Toml::new()
        .upstream("api", &format!("http://{}", behind.http), "protocol = \"h2\"")
        .route("path = \"/*\"\nupstream = \"api\"");
    let weir = Weir::start(&config.text());
    let (_, answer) = ask(weir.http, "websocket");
    assert!(answer.starts_with("http/1.1 403 "), "{answer}");
    open(&weir, 0);
}
