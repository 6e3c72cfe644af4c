//! `kill -9` of an upstream: requests in flight fail at once, and so do later ones, until it is
//! back.

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::harness::client::{Client, Tally};
use crate::harness::eventually_async;
use crate::harness::nginx::Nginx;
use crate::harness::toml::{Toml, simple};
use crate::harness::upstream::Upstream;
use crate::harness::weir::Weir;

const MANY: &str = "name = \"day\", algorithm = \"fixed_window\", quota = 1000000, period = \"1d\"";
/// "At once" on a busy machine; a timeout of Weir's own would be longer.
const AT_ONCE: Duration = Duration::from_secs(10);
/// Requests in flight when the upstream dies.
const UNDER_WAY: usize = 40;

fn page() -> &'static str {
    "location / { return 200 \"alive\"; }"
}

#[tokio::test]
async fn a_killed_upstream_is_a_502_at_once_and_a_200_when_it_is_back() {
    let mut nginx = Nginx::start(page());
    let weir = Weir::start(&simple(&nginx.url(), &[MANY]).text());
    let mut client = Client::connect(weir.http).await.unwrap();
    for _ in 0..3 {
        for _ in 0..20 {
            assert_eq!(client.get("/", &[]).await.unwrap().text(), "alive");
        }
        nginx.kill();
        for _ in 0..20 {
            let reply = tokio::time::timeout(AT_ONCE, client.get("/", &[]))
                .await
                .expect("at once")
                .unwrap();
            assert_eq!(
                (reply.status, reply.header("content-type").as_str()),
                (502, "application/problem+json"),
                "{reply:?}"
            );
        }
        nginx.start_again();
        eventually_async("it is served again", async || match client.get("/", &[]).await {
            Ok(reply) if reply.status == 200 => Ok(()),
            other => Err(format!("{other:?}")),
        })
        .await;
    }
}

#[tokio::test]
async fn requests_under_way_at_a_killed_upstream_are_answered_502_at_once() {
    let behind = Upstream::start();
    behind.hold();
    let mut nginx = Nginx::start(&format!("location / {{ proxy_pass {}; }}", behind.url()));
    let weir = Weir::start(&simple(&nginx.url(), &[MANY]).text());
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..UNDER_WAY {
        let address = weir.http;
        tasks.spawn(async move { Client::connect(address).await.unwrap().get("/", &[]).await });
    }
    eventually_async("all are under way", async || {
        if behind.count() == UNDER_WAY as u64 { Ok(()) } else { Err(behind.count().to_string()) }
    })
    .await;
    nginx.kill();
    let mut tally = Tally::default();
    while let Some(reply) = tokio::time::timeout(AT_ONCE, tasks.join_next()).await.expect("at once")
    {
        tally.add(&reply.unwrap());
    }
    tally.only(&[502]);
    assert_eq!(tally.count(502), UNDER_WAY as u64);
    assert_eq!(
        weir.metric("weir_upstream_errors_total{upstream=\"api\",cause=\"cut\"}"),
        UNDER_WAY as u64
    );
}

/// The size of a file that nginx sends slowly: it takes a hundred seconds.
const SIZE: usize = 10_000_000;

#[test]
fn a_reply_that_is_cut_in_the_middle_does_not_look_whole() {
    let mut nginx = Nginx::start("location / { limit_rate 100k; }");
    nginx.file("large", &vec![b'x'; SIZE]);
    let weir = Weir::start(&simple(&nginx.url(), &[MANY]).text());
    let mut stream = std::net::TcpStream::connect(weir.http).unwrap();
    stream.set_read_timeout(Some(AT_ONCE)).unwrap();
    stream
        .write_all(format!("GET /large HTTP/1.1\r\nHost: {}\r\n\r\n", weir.http).as_bytes())
        .unwrap();
    let mut reply = vec![0; 1000];
    stream.read_exact(&mut reply).unwrap();
    assert!(reply.starts_with(b"HTTP/1.1 200 "), "{}", String::from_utf8_lossy(&reply));
    nginx.kill();
    // Either a reset or an early end is acceptable; neither is a complete response.
    let _ = stream.read_to_end(&mut reply);
    assert!(reply.len() < SIZE, "{} bytes of a reply that was cut", reply.len());
}

/// Two nginx processes behind one upstream; `more` are further lines of the upstream.
fn both(one: &str, other: &str, more: &str) -> Toml {
    Toml::new()
        .more(&format!("[upstreams.api]\nendpoints = [\"{one}\", \"{other}\"]\n{more}"))
        .policy("public", &[MANY])
        .route("name = \"api\"\npath = \"/*\"\nupstream = \"api\"\npolicy = \"public\"")
}

#[tokio::test]
async fn while_one_of_two_upstreams_is_killed_and_comes_back_no_get_fails() {
    const CLIENTS: usize = 16;
    const TURNS: usize = 3;
    let (mut mortal, other) = (Nginx::start(page()), Nginx::start(page()));
    // Ejected for a moment only: it must be in use again before it dies the next time.
    let ejection = "ejection = { failures = 3, time = \"100ms\", time_max = \"100ms\" }";
    let weir = Weir::start(&both(&mortal.url(), &other.url(), ejection).text());
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let mut clients = tokio::task::JoinSet::new();
    let served = Arc::new(AtomicU64::new(0));
    for _ in 0..CLIENTS {
        let (address, stopped, served) = (weir.http, stopped.clone(), Arc::clone(&served));
        clients.spawn(async move {
            let (mut client, mut tally) =
                (Client::connect(address).await.unwrap(), Tally::default());
            while !*stopped.borrow() {
                tally.add(&client.get("/", &[]).await);
                served.fetch_add(1, Ordering::Relaxed);
            }
            tally
        });
    }
    // Requests before and after each change.
    let more = async || {
        let wanted = served.load(Ordering::Relaxed) + 400;
        eventually_async("more is served", async || {
            if served.load(Ordering::Relaxed) >= wanted { Ok(()) } else { Err(String::new()) }
        })
        .await;
    };
    for _ in 0..TURNS {
        more().await;
        mortal.kill();
        more().await;
        mortal.start_again();
    }
    more().await;
    stop.send_replace(true);
    while let Some(tally) = clients.join_next().await {
        tally.unwrap().only(&[200]);
    }
}

#[tokio::test]
async fn gets_under_way_at_a_killed_upstream_are_answered_by_the_other() {
    let (behind, other) = (Upstream::start(), Nginx::start(page()));
    behind.hold();
    let mut mortal = Nginx::start(&format!("location / {{ proxy_pass {}; }}", behind.url()));
    let weir = Weir::start(&both(&mortal.url(), &other.url(), "").text());
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..UNDER_WAY {
        let address = weir.http;
        tasks.spawn(async move { Client::connect(address).await.unwrap().get("/", &[]).await });
    }
    eventually_async("some wait at the one that will die", async || {
        if behind.count() > 0 { Ok(()) } else { Err("none".into()) }
    })
    .await;
    mortal.kill();
    let mut tally = Tally::default();
    while let Some(reply) = tokio::time::timeout(AT_ONCE, tasks.join_next()).await.expect("at once")
    {
        tally.add(&reply.unwrap());
    }
    tally.only(&[200]);
    assert_eq!(tally.count(200), UNDER_WAY as u64);
}
