//! A process that may open only few files: it says so, serves as many clients as it can, and does
//! not blame upstreams for it.

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::harness::client::{Client, connect_from};
use crate::harness::eventually_async;
#[cfg(target_os = "linux")]
use crate::harness::held::HeldCalls;
use crate::harness::toml::Toml;
use crate::harness::upstream::Upstream;
use crate::harness::weir::Weir;

/// The value of `ulimit -n`: enough for one worker and a few connections.
const FILES: u64 = 64;
/// Far more clients than that, each with its own address.
const CLIENTS: u8 = 192;

fn config(upstreams: &[&Upstream]) -> Toml {
    let endpoints: Vec<String> =
        upstreams.iter().map(|upstream| format!("\"{}\"", upstream.url())).collect();
    Toml::new()
        .server("workers = 1")
        .more(&format!("[upstreams.api]\nendpoints = [{}]", endpoints.join(", ")))
        .route("name = \"api\"\npath = \"/*\"\nupstream = \"api\"")
}

/// Files that the process has open.
fn open_files(weir: &Weir) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", weir.pid().as_raw_nonzero()))
        .expect("a running process")
        .count()
}

#[tokio::test]
async fn started_with_few_descriptors_it_says_how_many_it_has_and_wants() {
    let upstream = Upstream::start();
    let weir = Weir::build(&config(&[&upstream]).text()).files(FILES).start();
    let events = weir.output().events();
    let said = events
        .iter()
        .find(|event| event["wanted"].is_u64())
        .unwrap_or_else(|| panic!("{}", weir.output().tail(20)));
    assert_eq!(
        (said["level"].as_str(), said["have"].as_u64()),
        (Some("WARN"), Some(FILES)),
        "{said}"
    );
    assert!(said["wanted"].as_u64() > Some(40_000), "{said}");
    let message = said["message"].as_str().unwrap();
    assert!(
        message.contains("server.limits.connections = 20000") && message.contains("ulimit -n"),
        "{message}"
    );
    println!("{} files are open at rest", open_files(&weir));
}

#[tokio::test]
async fn with_enough_descriptors_nothing_is_said_and_the_soft_limit_does_not_count() {
    let upstream = Upstream::start();
    let weir =
        Weir::build(&config(&[&upstream]).limit("connections = 20").text()).soft_files(40).start();
    assert!(
        weir.output().events().iter().all(|event| !event["wanted"].is_u64()),
        "{}",
        weir.output().tail(20)
    );
    let limits =
        std::fs::read_to_string(format!("/proc/{}/limits", weir.pid().as_raw_nonzero())).unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let numbers: Vec<&str> =
        line.split_whitespace().filter(|word| word.parse::<u64>().is_ok()).collect();
    assert!(numbers.len() == 2 && numbers[0] == numbers[1], "{line}");
}

#[tokio::test]
async fn idle_connections_give_way_and_every_new_client_is_served() {
    let (one, other) = (Upstream::start(), Upstream::start());
    let weir = Weir::build(&config(&[&one, &other]).text()).files(FILES).start();
    let mut idle = Vec::new();
    let ask = format!("GET / HTTP/1.1\r\nHost: {}\r\n\r\n", weir.http);
    for number in 1..=CLIENTS {
        let mut stream = connect_from(number, weir.http).await;
        stream.write_all(ask.as_bytes()).await.unwrap();
        let mut reply = String::new();
        while !reply.ends_with("from upstream\n") {
            let mut piece = [0; 4096];
            let read = stream.read(&mut piece).await.unwrap();
            assert!(read > 0, "closed after {reply:?}");
            reply.push_str(std::str::from_utf8(&piece[..read]).unwrap());
        }
        assert!(reply.starts_with("HTTP/1.1 200 "), "{reply}");
        idle.push(stream);
    }
    assert!(open_files(&weir) <= FILES as usize);
    assert!(weir.metric("weir_connections_reclaimed_total{cause=\"limit\"}") > 0);
    unharmed(&weir);
}

#[tokio::test]
async fn busy_workers_blame_no_endpoint_and_the_operator_is_answered() {
    let (one, other) = (Upstream::start(), Upstream::start());
    let weir = Weir::build(&config(&[&one, &other]).text()).files(FILES).start();
    one.hold();
    other.hold();
    let ask = format!("GET / HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", weir.http);
    let mut busy = Vec::new();
    for number in 1..=CLIENTS {
        let mut stream = connect_from(number, weir.http).await;
        // The connection may have been closed at once.
        let _ = stream.write_all(ask.as_bytes()).await;
        busy.push(stream);
    }
    eventually_async("the others are refused", async || {
        let refused = weir.metric("weir_connections_refused_total{cause=\"limit\"}");
        if refused > FILES { Ok(()) } else { Err(refused.to_string()) }
    })
    .await;
    assert_eq!(weir.admin_page("/live").status, 200);
    one.release();
    other.release();
    let (mut served, mut closed) = (0, 0_usize);
    for mut stream in busy {
        let mut reply = String::new();
        // A connection that was closed with an unread request is reset.
        let _ = stream.read_to_string(&mut reply).await;
        match reply.get(9..12) {
            Some("200") => served += 1,
            Some("503") | None => closed += 1,
            Some(_) => panic!("{reply}"),
        }
    }
    assert!(served > 0 && closed > FILES as usize, "{served} {closed}");
    unharmed(&weir);
    // Afterwards everything works again.
    assert_eq!(Client::connect(weir.http).await.unwrap().get("/", &[]).await.unwrap().status, 200);
}

/// Where each accept fails, as at the limit, a line a second says so, with what to do.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn accepts_that_fail_are_said_once_a_second() {
    let (held, upstream) = (HeldCalls::new(), Upstream::start());
    let build = Weir::build(&config(&[&upstream]).text());
    let build = held
        .environment()
        .iter()
        .fold(build, |build, (name, value)| build.environment(name, value));
    let weir = build.start();
    held.fail("accept4");
    let mut waiting = Client::connect(weir.http).await.unwrap();
    let lines = weir.output().await_events("accepting failed", 2);
    assert!(lines[0]["remedy"].as_str().unwrap().contains("LimitNOFILE"), "{}", lines[0]);
    assert!(lines[1]["held_back"].as_u64() > Some(0), "{}", lines[1]);
    held.restore("accept4");
    assert_eq!(waiting.get("/", &[]).await.unwrap().status, 200);
}

/// A listener without places says so once a second, however many are turned away.
#[tokio::test]
async fn a_listener_that_is_full_says_so() {
    const PLACES: u8 = 4;
    let upstream = Upstream::start();
    let text = config(&[&upstream]).limit(&format!("connections = {PLACES}")).text();
    let weir = Weir::start(&text);
    upstream.hold();
    let mut busy = Vec::new();
    for number in 1..=PLACES {
        let mut stream = connect_from(number, weir.http).await;
        stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await.unwrap();
        eventually_async("the request arrives", async || {
            let count = upstream.count();
            if count == u64::from(number) { Ok(()) } else { Err(count.to_string()) }
        })
        .await;
        busy.push(stream);
    }
    for number in 100..120 {
        let mut turned_away = connect_from(number, weir.http).await;
        assert_eq!(turned_away.read(&mut [0; 1]).await.unwrap_or(0), 0, "it is closed");
    }
    const SAID: &str = "there are as many connections as may be: a new one is closed";
    let lines = weir.output().await_events(SAID, 1);
    assert!(lines.len() < 20, "{lines:?}");
    assert_eq!(lines[0]["listener"].as_str(), Some(&*weir.http.to_string()), "{}", lines[0]);
    assert_eq!(lines[0]["bound"].as_u64(), Some(PLACES.into()), "{}", lines[0]);
    upstream.release();
    for stream in &mut busy {
        let mut reply = String::new();
        stream.read_to_string(&mut reply).await.unwrap();
        assert!(reply.starts_with("HTTP/1.1 200 "), "{reply}");
    }
}

fn unharmed(weir: &Weir) {
    let page = weir.admin_page("/metrics").text();
    let total = |name: &str| -> f64 {
        let values = page
            .lines()
            .filter(|line| line.starts_with(name))
            .filter_map(|line| line.rsplit(' ').next());
        values.filter_map(|value| value.parse::<f64>().ok()).sum()
    };
    assert_eq!(total("weir_upstream_ejections_total"), 0.0, "{page}");
    assert_eq!(
        total("weir_upstream_errors_total{upstream=\"api\",cause=\"connect\"}"),
        0.0,
        "{page}"
    );
    assert_eq!(total("weir_connections_refused_total{cause=\"accept\"}"), 0.0, "{page}");
}
