//! Budgets in tokens: what stands when a proxy dies, what a refused client is told, and that a
//! reply of any size is read without being kept.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};

use rustix::process::Signal;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::harness::client::raw;
use crate::harness::redis::Redis;
use crate::harness::toml::Toml;
use crate::harness::upstream::{Upstream, listener};
use crate::harness::weir::Weir;
use crate::harness::{TIMEOUT, eventually_async};

const QUOTA: u64 = 10_000_000;
/// What each request may generate.
const OUTPUT: u64 = 1_000;

fn policy(quota: u64, more: &str) -> String {
    format!(
        "[policies.llm]\nuse = \"llm-budget\"\n[policies.llm.config]\napi = \"openai\"\nbytes_per_token = 1\n{more}\n\
         tokens = [{{ name = \"tokens\", algorithm = \"fixed_window\", quota = {quota}, period = \"1d\", key = \"{{authority}}\" }}]\n"
    )
}

fn config(url: &str, policy: &str) -> Toml {
    Toml::new()
        .upstream("model", url, "")
        .more(policy)
        .route("path = \"/*\"\nupstream = \"model\"\npolicy = \"llm\"")
}

fn body(output: u64) -> String {
    format!("{{\"model\":\"m\",\"max_tokens\":{output},\"stream\":false}}")
}

fn request(body: &str) -> String {
    format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
}

/// What a request takes first: a byte of its body is a token here.
fn reserved(output: u64) -> u64 {
    body(output).len() as u64 + output
}

/// The tokens left, as `/counters` reports them.
fn left(weir: &Weir, quota: u64) -> u64 {
    let page = weir.admin_page("/counters?policy=llm&limit=tokens&key=a").text();
    let used = page.split_once(" of ").map(|(before, _)| before);
    let used = used.and_then(|text| text.rsplit(|char: char| !char.is_ascii_digit()).next());
    let used: Option<u64> = used.and_then(|digits| digits.parse().ok());
    let used = used.unwrap_or_else(|| panic!("{page}"));
    quota - used
}

#[tokio::test]
async fn a_thousand_reservations_of_a_killed_proxy_stand_and_nothing_drifts() {
    const REQUESTS: u64 = 1_000;
    let (redis, upstream) = (Redis::start(), Upstream::start());
    upstream.hold();
    // A thousand at once may keep a worker of a busy machine from its queue for a while.
    let config = config(&upstream.url(), &policy(QUOTA, ""))
        .redis("single", &[redis.address])
        .limit("worker_lag = \"10s\"");
    let weir = Weir::start(&config.text());
    let address = weir.http;
    let mut clients = Vec::new();
    for _ in 0..REQUESTS {
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        stream.write_all(request(&body(OUTPUT)).as_bytes()).await.unwrap();
        clients.push(stream);
    }
    eventually_async("all are at the upstream", async || {
        let count = upstream.count();
        if count == REQUESTS { Ok(()) } else { Err(count.to_string()) }
    })
    .await;
    let weir = weir.restart(Signal::KILL);
    for mut client in clients {
        // No reply, only the end of the connection.
        let mut reply = Vec::new();
        let _ = client.read_to_end(&mut reply).await;
        assert!(reply.is_empty(), "{}", String::from_utf8_lossy(&reply));
    }
    upstream.release();
    assert_eq!(left(&weir, QUOTA), QUOTA - REQUESTS * reserved(OUTPUT));
    // The next one is settled as ever: nothing is given back for the others.
    let usage = r#"{"choices":[{"message":{"content":"hi"}}],"usage":{"prompt_tokens":7,"completion_tokens":5,"total_tokens":12}}"#;
    upstream.answer(200, &[("content-type", "application/json")], usage);
    let reply = raw(weir.http, request(&body(OUTPUT)).as_bytes(), TIMEOUT);
    assert!(reply.starts_with("HTTP/1.1 200 "), "{reply}");
    eventually_async("it is settled", async || {
        let left = left(&weir, QUOTA);
        let expected = QUOTA - REQUESTS * reserved(OUTPUT) - 12;
        if left == expected { Ok(()) } else { Err(format!("{left} instead of {expected}")) }
    })
    .await;
}

#[test]
fn a_call_is_known_by_the_path_after_rewriting() {
    let upstream = Upstream::start();
    let config = Toml::new()
        .upstream("model", &upstream.url(), "")
        .more(&policy(QUOTA, ""))
        .route("path = \"/ask/*\"\nupstream = \"model\"\npolicy = \"llm\"\nrewrite = { strip_prefix = \"/ask\", add_prefix = \"/v1\" }")
        .route("path = \"/own/batches\"\nupstream = \"model\"\npolicy = \"llm\"\nrewrite = \"/v1/chat/completions\"");
    let weir = Weir::start(&config.text());
    let status = |path: &str| {
        let request = request(&body(OUTPUT)).replace("/v1/chat/completions", path);
        raw(weir.http, request.as_bytes(), TIMEOUT).get(9..12).unwrap_or_default().to_owned()
    };
    assert_eq!(status("/ask/chat/completions"), "200");
    assert_eq!(status("/ask/fine_tuning/jobs"), "403", "nothing tells what it uses");
    assert_eq!(status("/own/batches"), "200", "it is none");
}

#[tokio::test]
async fn requests_with_references_have_a_number_at_the_same_time() {
    const REFERS: &str = r#"{"model":"m","max_tokens":9,"messages":[{"role":"user","content":[{"type":"file","file":{"file_id":"f"}}]}]}"#;
    let upstream = Upstream::start();
    upstream.hold();
    let weir = Weir::start(&config(&upstream.url(), &policy(QUOTA, "in_flight = 2")).text());
    let mut held = Vec::new();
    for _ in 0..2 {
        let mut stream = tokio::net::TcpStream::connect(weir.http).await.unwrap();
        stream.write_all(request(REFERS).as_bytes()).await.unwrap();
        held.push(stream);
    }
    eventually_async("both are at the upstream", async || match upstream.count() {
        2 => Ok(()),
        count => Err(count.to_string()),
    })
    .await;
    // A byte of the body is a token here, and a file 20,000 of them.
    let expected = 2 * (REFERS.len() as u64 + 9 + 20_000);
    assert_eq!(left(&weir, QUOTA), QUOTA - expected);
    let third = raw(weir.http, request(REFERS).as_bytes(), TIMEOUT);
    assert!(third.starts_with("HTTP/1.1 429 "), "{third}");
    assert!(third.contains("in-flight"), "{third}");
    upstream.release();
}

#[tokio::test]
async fn a_client_is_told_whether_the_allowance_is_in_use_or_spent() {
    let quota = reserved(OUTPUT) + 200;
    let upstream = Upstream::start();
    let usage = r#"{"choices":[{"message":{"content":"hi"}}],"usage":{"prompt_tokens":100,"completion_tokens":1000,"total_tokens":1100}}"#;
    upstream.answer(200, &[("content-type", "application/json")], usage);
    upstream.hold();
    let weir = Weir::start(&config(&upstream.url(), &policy(quota, "partial = false")).text());
    let mut first = tokio::net::TcpStream::connect(weir.http).await.unwrap();
    first.write_all(request(&body(OUTPUT)).as_bytes()).await.unwrap();
    eventually_async("it is at the upstream", async || {
        if upstream.count() == 1 { Ok(()) } else { Err("not yet".to_owned()) }
    })
    .await;
    let ask = || raw(weir.http, request(&body(OUTPUT)).as_bytes(), TIMEOUT);
    let in_use = ask();
    assert!(in_use.starts_with("HTTP/1.1 429 "), "{in_use}");
    let held = format!("\"tokens\";r=200;t=1;weir-held={}", reserved(OUTPUT));
    assert!(in_use.contains(&held) && in_use.contains("retry-after: 1\r\n"), "{in_use}");
    assert!(in_use.contains("reserved by requests in flight"), "{in_use}");
    upstream.release();
    let mut reply = String::new();
    first.read_to_string(&mut reply).await.unwrap();
    assert!(reply.starts_with("HTTP/1.1 200 "), "{reply}");
    let left = quota - 1_100;
    eventually_async("it is settled", async || {
        let spent = ask();
        let told = spent.contains(&format!("\"tokens\";r={left};t=")) && !spent.contains("held");
        let says = format!("of which {left} is left");
        let waits = !spent.contains("retry-after: 1\r\n") && spent.contains(&says);
        if told && waits { Ok(()) } else { Err(spent) }
    })
    .await;
    let page = weir.admin_page("/metrics").text();
    let refusals = "weir_limit_refusals_held_total{policy=\"llm\",limit=\"tokens\"}";
    assert!(weir.metric(refusals) >= 1, "{page}");
}

/// Sends an event that never ends, and whose texts have `bytes` in all.
fn endless(bytes: usize) -> SocketAddr {
    let listener = listener();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut head = [0; 64 << 10];
        let _ = stream.read(&mut head).unwrap();
        let begin = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\ndata: {\"choices\":[";
        stream.write_all(begin.as_bytes()).unwrap();
        let text = "x".repeat(1 << 20);
        let choice = format!("{{\"delta\":{{\"content\":\"{text}\"}}}},");
        for _ in 0..bytes >> 20 {
            stream.write_all(choice.as_bytes()).unwrap();
        }
    });
    address
}

#[tokio::test]
async fn an_event_of_a_gibibyte_is_read_and_not_kept() {
    const BYTES: u64 = 1 << 30;
    let url = format!("http://{}", endless(BYTES as usize));
    let quota = 4 * BYTES;
    let weir = Weir::start(&config(&url, &policy(quota, "")).text());
    let before = weir.memory_kib();
    let received = tokio::task::spawn_blocking(move || {
        let mut stream = TcpStream::connect(weir.http).unwrap();
        stream.write_all(request(&body(OUTPUT)).as_bytes()).unwrap();
        let mut piece = vec![0; 1 << 20];
        let mut received = 0;
        loop {
            match stream.read(&mut piece).unwrap() {
                0 => return (weir, received),
                count => received += count as u64,
            }
        }
    });
    let (weir, received) = received.await.unwrap();
    assert!(received > BYTES, "{received}");
    let grown = weir.peak_memory_kib().saturating_sub(before);
    assert!(grown < 32 << 10, "{grown} KiB more");
    // Its texts are charged: a byte of text is a token here.
    eventually_async("it is settled", async || {
        let used = quota - left(&weir, quota);
        let expected = BYTES + body(OUTPUT).len() as u64;
        if used == expected { Ok(()) } else { Err(format!("{used} instead of {expected}")) }
    })
    .await;
}

/// Sends three texts of three bytes and a usage of 20 and 11 tokens, and then nothing until it is
/// left.
fn pausing() -> SocketAddr {
    let listener = listener();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut head = [0; 64 << 10];
        let _ = stream.read(&mut head).unwrap();
        let begin =
            "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n";
        let event = "data: {\"choices\":[{\"delta\":{\"content\":\"tok\"}}]}\n\n";
        let usage =
            "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":20,\"completion_tokens\":11}}\n\n";
        let reply = format!("{begin}{}{usage}", event.repeat(3));
        stream.write_all(reply.as_bytes()).unwrap();
        while stream.read(&mut head).is_ok_and(|count| count > 0) {}
    });
    address
}

/// A reply that is being read on, as its client has left, when the proxy is told to stop.
#[tokio::test]
async fn a_shutdown_settles_what_is_read_on() {
    let redis = Redis::start();
    let config = config(&format!("http://{}", pausing()), &policy(QUOTA, ""))
        .redis("single", &[redis.address])
        .server("shutdown_grace = \"1s\"");
    let mut weir = Weir::start(&config.text());
    let mut stream = tokio::net::TcpStream::connect(weir.http).await.unwrap();
    stream.write_all(request(&body(OUTPUT)).as_bytes()).await.unwrap();
    let mut read = Vec::new();
    while memchr::memmem::find_iter(&read, b"tok").count() < 3 {
        assert!(stream.read_buf(&mut read).await.unwrap() > 0);
    }
    assert_eq!(left(&weir, QUOTA), QUOTA - reserved(OUTPUT));
    drop(stream);
    weir.signal(Signal::TERM);
    // The grace is used up by the reply, which is then cut.
    assert_eq!(weir.exit().code(), Some(1));
    let weir = Weir::start(&config.text());
    assert_eq!(left(&weir, QUOTA), QUOTA - 20 - 11);
}

/// What a client itself limited to less stays as it is.
#[test]
fn a_lowered_maximum_is_never_a_raised_one() {
    let upstream = Upstream::start();
    let usage = r#"{"choices":[{"message":{"content":"hi"}}],"usage":{"prompt_tokens":9,"completion_tokens":1,"total_tokens":10}}"#;
    upstream.answer(200, &[("content-type", "application/json")], usage);
    let weir = Weir::start(&config(&upstream.url(), &policy(1_000, "")).text());
    let body = "{\"model\":\"m\",\"max_tokens\":50,\"max_completion_tokens\":5000}";
    let reply = raw(weir.http, request(body).as_bytes(), TIMEOUT);
    assert!(reply.starts_with("HTTP/1.1 200 "), "{reply}");
    let lowered = 1_000 - body.len();
    let expected = body.replace("5000", &lowered.to_string());
    assert_eq!(upstream.last().body, expected.as_bytes());
}

/// The page's own configuration, with a smaller limit: what is refused looks as OpenAI's.
#[test]
fn the_configuration_of_the_page_refuses_as_openai_does() {
    const PAGE: &str = include_str!("../../../docs/budgets.md");
    let upstream = Upstream::start();
    let usage = r#"{"choices":[{"message":{"content":"hi"}}],"usage":{"prompt_tokens":50,"completion_tokens":50,"total_tokens":100}}"#;
    upstream.answer(200, &[("content-type", "application/json")], usage);
    let (_, rest) = PAGE.split_once("```toml\n").expect("a configuration");
    let (page, _) = rest.split_once("```").expect("its end");
    let config = page
        .replace("https://api.openai.com", &upstream.url())
        .replace("quota = 100_000, period = \"1m\"", "quota = 100, period = \"30d\"");
    let free = "127.0.0.1:0";
    let weir = Weir::start(&format!(
        "{config}\n[[listeners]]\naddress = \"{free}\"\n[admin]\naddress = \"{free}\"\n"
    ));
    let ask = |key: &str| {
        let body = "{\"model\":\"gpt-4o\",\"max_tokens\":20}";
        let fields = format!("Authorization: Bearer {key}\r\nContent-Type");
        raw(weir.http, request(body).replace("Content-Type", &fields).as_bytes(), TIMEOUT)
    };
    assert!(ask("a").starts_with("HTTP/1.1 200 "));
    let refused = crate::harness::eventually("what the reply used is charged", || {
        let reply = ask("a");
        if reply.starts_with("HTTP/1.1 429 ") { Ok(reply) } else { Err(reply) }
    });
    let (head, body) = refused.split_once("\r\n\r\n").expect("a body");
    assert!(head.contains("application/json"), "{head}");
    let error: serde_json::Value = serde_json::from_str(body).expect("JSON");
    assert_eq!(error["error"]["code"], "rate_limit_exceeded", "{error}");
    assert_eq!(error["error"]["param"], serde_json::Value::Null);
    let message = error["error"]["message"].as_str().expect("a message");
    assert!(message.contains("used up") && message.contains("Try again in "), "{message}");
    // Another key is not touched.
    assert!(ask("b").starts_with("HTTP/1.1 200 "));
}
