//! Replies that end where their budget does (`hard_cut`), and what a request that may take less
//! than it asks for is told.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc::{self, Sender};

use crate::harness::client::raw;
use crate::harness::redis::Redis;
use crate::harness::toml::Toml;
use crate::harness::upstream::{Upstream, listener};
use crate::harness::weir::Weir;
use crate::harness::{TIMEOUT, eventually};

const HEAD: &str =
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n";
/// An event whose text is three tokens.
const TEXT: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"tok\"}}]}\n\n";
const DONE: &str = "data: [DONE]\n\n";

fn config(url: &str, limit: &str, more: &str) -> Toml {
    let policy = format!(
        "[policies.llm]\nuse = \"llm-budget\"\n[policies.llm.config]\napi = \"openai\"\nbytes_per_token = 1\n{more}\n\
         tokens = [{{ name = \"tokens\", {limit}, key = \"{{authority}}\" }}]\n"
    );
    Toml::new()
        .upstream("model", url, "")
        .more(&policy)
        .route("path = \"/*\"\nupstream = \"model\"\npolicy = \"llm\"")
}

fn day(quota: u64) -> String {
    format!("algorithm = \"fixed_window\", quota = {quota}, period = \"1d\"")
}

fn request(stream: bool, output: u64) -> String {
    let body = format!("{{\"model\":\"m\",\"max_tokens\":{output},\"stream\":{stream}}}");
    format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
}

fn usage(output: u64) -> String {
    format!(
        "data: {{\"choices\":[],\"usage\":{{\"prompt_tokens\":9,\"completion_tokens\":{output}}}}}\n\n"
    )
}

fn streaming(events: &str) -> Upstream {
    let upstream = Upstream::start();
    upstream.answer(200, &[("content-type", "text/event-stream")], events.to_owned());
    upstream
}

#[test]
fn a_complete_reply_is_not_cut_for_what_was_told_at_its_end() {
    let events = format!("{TEXT}{}{DONE}", usage(1_100));
    let upstream = streaming(&events);
    let weir = Weir::start(&config(&upstream.url(), &day(1_000), "hard_cut = 8").text());
    let reply = raw(weir.http, request(true, 5_000).as_bytes(), TIMEOUT);
    assert!(reply.contains(&usage(1_100)) && reply.contains(DONE), "{reply}");
    eventually("all of it is charged", || {
        let page = weir.admin_page("/counters?policy=llm&limit=tokens&key=a").text();
        if page.contains("1000 of 1000") { Ok(()) } else { Err(page) }
    });
    // What uses more after that is cut.
    let more = format!("{TEXT}{}{TEXT}{TEXT}{DONE}", usage(1_100));
    let upstream = streaming(&more);
    let weir = Weir::start(&config(&upstream.url(), &day(1_000), "hard_cut = 8").text());
    let reply = raw(weir.http, request(true, 5_000).as_bytes(), TIMEOUT);
    assert!(reply.contains("budget_exhausted") && !reply.contains(DONE), "{reply}");
    assert_eq!(reply.matches("\"tok\"").count(), 2, "{reply}");
}

#[test]
fn steps_that_are_missing_are_taken_at_once() {
    let events = format!("{TEXT}{}{DONE}", usage(100_000));
    let (redis, upstream) = (Redis::start(), streaming(&events));
    let config = config(&upstream.url(), &day(10_000_000), "hard_cut = 1");
    let weir = Weir::start(&config.redis("single", &[redis.address]).text());
    let reply = raw(weir.http, request(true, 200_000).as_bytes(), TIMEOUT);
    assert!(reply.contains(DONE), "{reply}");
    eventually("it is settled", || {
        let page = weir.admin_page("/counters?policy=llm&limit=tokens&key=a").text();
        if page.contains("100009 of 10000000") { Ok(()) } else { Err(page) }
    });
    let calls = redis.connect().calls("evalsha");
    assert!(calls < 40, "{calls}");
}

/// Sends what it is told, one piece after another.
fn told() -> (SocketAddr, Sender<&'static str>) {
    let listener = listener();
    let address = listener.local_addr().expect("an address");
    let (sender, pieces) = mpsc::channel::<&'static str>();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a connection");
        let mut head = [0; 64 << 10];
        let _ = stream.read(&mut head).expect("a request");
        for piece in pieces {
            if stream.write_all(piece.as_bytes()).is_err() {
                return;
            }
        }
    });
    (address, sender)
}

#[test]
fn without_its_store_a_reply_goes_on_for_less_than_a_step() {
    let (redis, (address, pieces)) = (Redis::start(), told());
    let url = format!("http://{address}");
    let config = config(&url, &day(1_000_000), "hard_cut = 16").redis("single", &[redis.address]);
    let weir = Weir::start(&config.text().replace("access = \"off\"", "access = \"all\""));
    let mut client = TcpStream::connect(weir.http).expect("a connection");
    client.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
    client.write_all(request(true, 5_000).as_bytes()).expect("a request");
    pieces.send(HEAD).expect("it is sent");
    pieces.send(TEXT).expect("it is sent");
    let (mut reply, mut piece) = (Vec::new(), [0; 1 << 10]);
    while !reply.ends_with(TEXT.as_bytes()) {
        let count = client.read(&mut piece).expect("a piece");
        assert!(count > 0, "{}", String::from_utf8_lossy(&reply));
        reply.extend_from_slice(&piece[..count]);
        if memchr::memmem::find(&reply, b"tok").is_some() {
            break;
        }
    }
    drop(redis);
    for _ in 0..20 {
        let _ = pieces.send(TEXT);
    }
    client.read_to_end(&mut reply).expect("its end");
    let reply = String::from_utf8(reply).expect("text");
    // 16 tokens of output were taken, and less than 16 more are passed on: one event beyond each,
    // at most.
    let events = reply.matches("\"tok\"").count();
    assert!((6..=11).contains(&events), "{events}: {reply}");
    assert!(reply.contains("store_unavailable") && !reply.contains("budget_exhausted"), "{reply}");
    let line = eventually("its access line", || {
        let lines = weir.output().lines();
        let is_it = |line: &&String| line.contains("\"failure\":\"store-cut\"");
        lines.iter().find(is_it).cloned().ok_or_else(|| lines.join("\n"))
    });
    assert!(line.contains("\"store_failure\":\""), "{line}");
}

#[test]
fn who_may_take_less_is_told_when_the_least_is_there() {
    let upstream = Upstream::start();
    let answer = r#"{"choices":[{"message":{"content":"hi"}}],"usage":{"prompt_tokens":100,"completion_tokens":59900}}"#;
    upstream.answer(200, &[("content-type", "application/json")], answer);
    let bucket = "algorithm = \"token_bucket\", quota = 60_000, period = \"1h\"";
    let weir = Weir::start(&config(&upstream.url(), bucket, "least_output = 100").text());
    let ask = || raw(weir.http, request(false, 59_000).as_bytes(), TIMEOUT);
    assert!(ask().starts_with("HTTP/1.1 200 "));
    let refused = eventually("the bucket is empty", || {
        let reply = ask();
        if reply.starts_with("HTTP/1.1 429 ") { Ok(reply) } else { Err(reply) }
    });
    // 16.7 tokens come back in a second: the input, and 100 tokens of output.
    let (_, wait) = refused.split_once("\r\nretry-after: ").expect("a time");
    let wait: u64 = wait.split_once('\r').expect("its end").0.parse().expect("seconds");
    assert!((5..=12).contains(&wait), "{refused}");
}
