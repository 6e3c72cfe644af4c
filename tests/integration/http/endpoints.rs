//! Upstreams with several endpoints, over TLS and HTTP/2: real processes that are killed,
//! certificates that are replaced.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use rustix::process::Signal;

use crate::harness::client::{Client, Tally, get};
use crate::harness::pki::Pki;
use crate::harness::tls::HOST;
use crate::harness::toml::Toml;
use crate::harness::weir::{Weir, replace};
use crate::harness::{eventually_async, free_address};

const SPREAD: &str = "[[routes]]\npath = \"/*\"\nupstream = \"api\"\n";

/// A process that answers every request with `text`.
fn answering(text: &str) -> Weir {
    Weir::start(&answers(text).text())
}

fn answers(text: &str) -> Toml {
    Toml::new().route(&format!("path = \"/*\"\nrespond = {{ status = 200, body = \"{text}\" }}"))
}

/// A proxy in front of these processes.
fn proxy(endpoints: &[&Weir], more: &str) -> Weir {
    let endpoints: Vec<String> =
        endpoints.iter().map(|weir| format!("\"http://{}\"", weir.http)).collect();
    Weir::start(
        &Toml::new()
            .more(&format!(
                "[upstreams.api]\nendpoints = [{}]\n{more}\n{SPREAD}",
                endpoints.join(", ")
            ))
            .text(),
    )
}

/// Clients that send one `GET` after the other until told to stop.
async fn load(
    weir: &Weir,
    clients: usize,
    stop: &Arc<AtomicBool>,
    answered: &Arc<AtomicU64>,
) -> tokio::task::JoinSet<Tally> {
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..clients {
        let mut client = Client::connect(weir.http).await.unwrap();
        let (stop, answered) = (Arc::clone(stop), Arc::clone(answered));
        tasks.spawn(async move {
            let mut tally = Tally::default();
            while !stop.load(Ordering::Relaxed) {
                tally.add(&client.get("/", &[]).await);
                answered.fetch_add(1, Ordering::Relaxed);
            }
            tally
        });
    }
    tasks
}

async fn until_more(answered: &AtomicU64, more: u64) {
    let goal = answered.load(Ordering::Relaxed) + more;
    eventually_async("requests are answered", async || {
        let now = answered.load(Ordering::Relaxed);
        if now >= goal { Ok(()) } else { Err(format!("{now} of {goal}")) }
    })
    .await;
}

#[tokio::test]
async fn one_of_two_endpoints_is_killed_under_load_and_not_one_get_fails() {
    not_one_get_fails("h1").await;
}

#[tokio::test]
async fn over_http2_neither() {
    not_one_get_fails("h2").await;
}

async fn not_one_get_fails(protocol: &str) {
    let (stays, mut killed) = (answering("stays"), answering("killed"));
    let weir = proxy(&[&stays, &killed], &format!("protocol = \"{protocol}\""));
    let (stop, answered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let mut clients = load(&weir, 32, &stop, &answered).await;
    until_more(&answered, 1_000).await;
    let shares =
        [&stays, &killed].map(|one| one.metric("weir_requests_total{route=\"all\",code=\"200\"}"));
    assert!(shares.iter().all(|share| *share > 200), "{shares:?}");
    killed.signal(Signal::KILL);
    killed.exit();
    until_more(&answered, 2_000).await;
    stop.store(true, Ordering::Relaxed);
    while let Some(tally) = clients.join_next().await {
        tally.unwrap().only(&[200]);
    }
    let endpoint = format!(
        "weir_upstream_ejections_total{{upstream=\"api\",endpoint=\"http://{}\"}}",
        killed.http
    );
    assert!(weir.metric(&endpoint) >= 1);
    weir.output().await_events("an endpoint is ejected after repeated failures", 1);
    let status = weir.admin_page("/status").json();
    let left_alone: Vec<(&str, bool)> = status["upstreams"]["api"]
        .as_array()
        .unwrap()
        .iter()
        .map(|endpoint| {
            (endpoint["endpoint"].as_str().unwrap(), endpoint["ejected"].as_bool().unwrap())
        })
        .collect();
    assert_eq!(
        left_alone,
        [
            (format!("http://{}", stays.http).as_str(), false),
            (format!("http://{}", killed.http).as_str(), true)
        ]
    );
}

#[tokio::test]
async fn the_only_endpoint_is_killed_and_502_comes_at_once() {
    let mut killed = answering("killed");
    let weir = proxy(&[&killed], "");
    let mut client = Client::connect(weir.http).await.unwrap();
    assert_eq!(client.get("/", &[]).await.unwrap().status, 200);
    killed.signal(Signal::KILL);
    killed.exit();
    for _ in 0..20 {
        let began = Instant::now();
        let reply = client.get("/", &[]).await.unwrap();
        assert_eq!(reply.status, 502, "{reply:?}");
        // The connect timeout is one second.
        assert!(began.elapsed() < Duration::from_millis(900), "{:?}", began.elapsed());
    }
}

#[tokio::test]
async fn an_endpoint_that_is_frozen_is_left_alone_and_comes_back() {
    let (stays, frozen) = (answering("stays"), answering("frozen"));
    let weir = proxy(
        &[&stays, &frozen],
        "timeouts = { connect = \"500ms\", response_header = \"500ms\" }\nejection = { failures = 1, time = \"1s\", time_max = \"1s\" }",
    );
    frozen.signal(Signal::STOP);
    let mut client = Client::connect(weir.http).await.unwrap();
    let mut slow = 0;
    for _ in 0..200 {
        let reply = client.get("/", &[]).await.unwrap();
        assert!([200, 504].contains(&reply.status), "{reply:?}");
        slow += usize::from(reply.status == 504);
    }
    // Fewer than half of them.
    assert!((1..10).contains(&slow), "{slow}");
    frozen.signal(Signal::CONT);
    eventually_async("it answers again", async || {
        let reply = get(weir.http, "/", &[]).await.text();
        if reply == "frozen" { Ok(()) } else { Err(reply) }
    })
    .await;
}

/// An upstream that never answers `/slow/*`, answers `/events` with the head of an event stream,
/// and everything else at once.
fn moody() -> SocketAddr {
    use std::io::{Read, Write};
    let listener = crate::harness::upstream::listener();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || {
                let (mut head, mut byte) = (Vec::new(), [0]);
                while stream.read(&mut byte).is_ok_and(|read| read > 0) {
                    head.push(byte[0]);
                    if !head.ends_with(b"\r\n\r\n") {
                        continue;
                    }
                    let reply: &[u8] = match () {
                        () if head.starts_with(b"GET /slow/") => continue,
                        () if head.starts_with(b"GET /events") => {
                            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
                        }
                        () => b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nmoody",
                    };
                    stream.write_all(reply).unwrap();
                    head.clear();
                }
            });
        }
    });
    address
}

#[tokio::test]
async fn slow_urls_and_quiet_streams_of_one_client_take_no_endpoint_from_others() {
    let (moody, frozen) = (moody(), answering("frozen"));
    let timeouts =
        "timeouts = { connect = \"500ms\", response_header = \"500ms\", idle = \"500ms\" }";
    let ejection = "ejection = { failures = 2, time = \"10m\", time_max = \"10m\" }";
    let more = format!(
        "[upstreams.api]\nendpoints = [\"http://{moody}\", \"http://{}\"]\n{timeouts}\n{ejection}\n{SPREAD}",
        frozen.http
    );
    let weir = Weir::start(&Toml::new().more(&more).text());
    frozen.signal(Signal::STOP);
    let ejected = || {
        let status = weir.admin_page("/status").json();
        let endpoints = status["upstreams"]["api"].as_array().unwrap().clone();
        endpoints.iter().map(|endpoint| endpoint["ejected"].as_bool().unwrap()).collect::<Vec<_>>()
    };
    // An endpoint that is really down is detected ...
    eventually_async("the frozen one is left alone", async || {
        let _ = get(weir.http, "/", &[]).await;
        if ejected() == [false, true] { Ok(()) } else { Err(format!("{:?}", ejected())) }
    })
    .await;
    // ... and the other one serves other clients, whatever one client requests from it.
    for _ in 0..3 {
        let mut slow = tokio::task::JoinSet::new();
        for number in 0..30 {
            let target =
                if number % 3 == 0 { "/events".to_owned() } else { format!("/slow/{number}") };
            let address = weir.http;
            slow.spawn(async move {
                Client::connect(address)
                    .await
                    .unwrap()
                    .get(&target, &[])
                    .await
                    .map(|reply| reply.status)
            });
        }
        while let Some(status) = slow.join_next().await {
            // A stream is cut off where it stalled; a slow URL gets a 504.
            assert!(status.unwrap().map_or(true, |status| status == 504));
        }
        assert_eq!(ejected(), [false, true]);
        for _ in 0..20 {
            let reply = get(weir.http, "/", &[]).await;
            assert_eq!((reply.status, reply.text().as_str()), (200, "moody"), "{reply:?}");
        }
    }
}

/// An upstream process that serves TLS and HTTP/2.
fn secured(pki: &Pki, clients: Option<&Pki>) -> Weir {
    let mut config = answers("secret").secured(&["api"]);
    if clients.is_some() {
        config = config.listener("client_ca = \"clients.pem\"\nclient_certificates = \"required\"");
    }
    let build = Weir::build(&config.text()).identity("api", &pki.server(&[HOST]));
    let ca = clients.map_or("", |clients| &clients.ca);
    build.file("clients.pem", ca.as_bytes()).start()
}

fn secured_proxy(upstream: &Weir, protocol: &str, tls: &str) -> Toml {
    let lines = format!("endpoints = [\"https://{}\"]\nprotocol = \"{protocol}\"", upstream.http);
    Toml::new().more(&format!(
        "[upstreams.api]\n{lines}\n[upstreams.api.tls]\nserver_name = \"{HOST}\"\n{tls}\n{SPREAD}"
    ))
}

#[tokio::test]
async fn upstreams_speak_tls_with_either_protocol_and_ask_who_we_are() {
    let (pki, clients) = (Pki::new(), Pki::new());
    let upstream = secured(&pki, None);
    for protocol in ["h1", "h2"] {
        let weir = Weir::build(&secured_proxy(&upstream, protocol, "ca = \"ca.pem\"").text())
            .file("ca.pem", pki.ca.as_bytes())
            .start();
        for _ in 0..5 {
            let reply = get(weir.http, "/", &[]).await;
            assert_eq!((reply.status, reply.text().as_str()), (200, "secret"), "{reply:?}");
        }
        // And with the system's authorities, which do not include ours ...
        let system = secured_proxy(&upstream, protocol, "").text();
        let stranger = Weir::build(&system).file("ca.pem", Pki::new().ca.as_bytes());
        let file = stranger.folder().join("ca.pem").display().to_string();
        let stranger = stranger.environment("SSL_CERT_FILE", &file).start();
        assert_eq!(get(stranger.http, "/", &[]).await.status, 502);
        assert_eq!(
            stranger.metric("weir_upstream_errors_total{upstream=\"api\",cause=\"tls\"}"),
            1
        );
        // ... until it is added.
        let friend = Weir::build(&system).file("ca.pem", pki.ca.as_bytes());
        let file = friend.folder().join("ca.pem").display().to_string();
        assert_eq!(
            get(friend.environment("SSL_CERT_FILE", &file).start().http, "/", &[]).await.status,
            200
        );
    }
    let careful = secured(&pki, Some(&clients));
    let known = secured_proxy(
        &careful,
        "h2",
        "ca = \"ca.pem\"\ncertificate = \"weir.pem\"\nkey = \"weir.key\"",
    );
    let known = Weir::build(&known.text())
        .file("ca.pem", pki.ca.as_bytes())
        .identity("weir", &clients.client("weir"))
        .start();
    assert_eq!(get(known.http, "/", &[]).await.status, 200);
    let unknown = Weir::build(&secured_proxy(&careful, "h2", "ca = \"ca.pem\"").text())
        .file("ca.pem", pki.ca.as_bytes())
        .start();
    assert_eq!(get(unknown.http, "/", &[]).await.status, 502);
}

#[tokio::test]
async fn an_authority_that_is_changed_on_the_disk_is_taken_over() {
    let pki = Pki::new();
    let upstream = secured(&pki, None);
    let weir = Weir::build(&secured_proxy(&upstream, "h1", "ca = \"ca.pem\"").text())
        .file("ca.pem", Pki::new().ca.as_bytes())
        .start();
    assert_eq!(get(weir.http, "/", &[]).await.status, 502);
    replace(&weir.folder().join("ca.pem"), pki.ca.as_bytes());
    weir.await_reloads("applied", 1);
    assert_eq!(get(weir.http, "/", &[]).await.status, 200);
    replace(&weir.folder().join("ca.pem"), b"no certificate at all");
    weir.await_reloads("refused", 1);
    assert_eq!(get(weir.http, "/", &[]).await.status, 200);
    let errors =
        weir.admin_page("/status").json()["last_reload"]["errors"].as_str().unwrap().to_owned();
    assert!(errors.contains("upstreams.api.tls.ca: found no certificate in"), "{errors}");
}

#[tokio::test]
async fn a_body_larger_than_all_windows_passes_over_http2_both_ways() {
    let echo = crate::harness::upstream::Upstream::start();
    let middle = Weir::start(
        &Toml::new()
            .more(&format!("[upstreams.api]\nendpoints = [\"{}\"]\n{SPREAD}", echo.url()))
            .text(),
    );
    let weir = proxy(&[&middle], "protocol = \"h2\"");
    let large = Bytes::from(vec![b'x'; 8 << 20]);
    echo.answer(200, &[], large.clone());
    let mut client = Client::connect(weir.http).await.unwrap();
    for _ in 0..3 {
        let reply = client.send("POST", "/", &[], large.clone()).await.unwrap();
        assert_eq!((reply.status, reply.body.len()), (200, large.len()));
        assert_eq!(echo.last().body.len(), large.len());
    }
}

/// A process that serves, and says with this status whether it is well.
fn with_health(text: &str, health: u16) -> String {
    let health = format!(
        "name = \"health\"\npath = \"/healthz\"\nrespond = {{ status = {health}, body = \"\" }}"
    );
    let all =
        format!("name = \"all\"\npath = \"/*\"\nrespond = {{ status = 200, body = \"{text}\" }}");
    Toml::new().route(&health).route(&all).text()
}

const HEALTH: &str = "health = { path = \"/healthz\", statuses = [200], interval = \"100ms\", rise = 2, fall = 2, healthy_min = 0 }";

fn health_of(weir: &Weir) -> Vec<Option<bool>> {
    let status = weir.admin_page("/status").json();
    let hosts = status["upstreams"]["api"].as_array().unwrap().clone();
    hosts.iter().map(|host| host["healthy"].as_bool()).collect()
}

async fn until_healthy_are(weir: &Weir, expected: [bool; 2]) {
    eventually_async("the checks find it", async || {
        let found = health_of(weir);
        if found == expected.map(Some) { Ok(()) } else { Err(format!("{found:?}")) }
    })
    .await;
}

#[tokio::test]
async fn a_server_that_says_it_is_unwell_gets_no_requests_and_none_fails() {
    for protocol in ["h1", "h2"] {
        let stays = Weir::start(&with_health("stays", 200));
        let leaves = Weir::start(&with_health("leaves", 200));
        let weir = proxy(&[&stays, &leaves], &format!("protocol = \"{protocol}\"\n{HEALTH}"));
        let (stop, answered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let mut clients = load(&weir, 8, &stop, &answered).await;
        until_more(&answered, 500).await;
        // It goes on to serve, and says that it will not for long.
        replace(&leaves.folder().join("proxy.toml"), with_health("leaves", 503).as_bytes());
        until_healthy_are(&weir, [true, false]).await;
        let served = || leaves.metric("weir_requests_total{route=\"all\",code=\"200\"}");
        let before = served();
        until_more(&answered, 1_000).await;
        // At most those that were under way.
        assert!(served() <= before + 8, "{protocol}: {} after {before}", served());
        replace(&leaves.folder().join("proxy.toml"), with_health("leaves", 200).as_bytes());
        until_healthy_are(&weir, [true, true]).await;
        let before = served();
        until_more(&answered, 1_000).await;
        assert!(served() > before + 100, "{protocol}: {} after {before}", served());
        // Frozen, it gets what comes before two checks have failed.
        leaves.signal(Signal::STOP);
        until_healthy_are(&weir, [true, false]).await;
        let mut client = Client::connect(weir.http).await.unwrap();
        for _ in 0..50 {
            assert_eq!(client.get("/", &[]).await.unwrap().text(), "stays", "{protocol}");
        }
        leaves.signal(Signal::CONT);
        stop.store(true, Ordering::Relaxed);
        while let Some(tally) = clients.join_next().await {
            tally.unwrap().only(&[200]);
        }
        weir.output().await_events("an endpoint is unhealthy", 2);
        let changes = format!(
            "weir_upstream_health_changes_total{{upstream=\"api\",endpoint=\"http://{}\",to=\"unhealthy\"}}",
            leaves.http
        );
        assert_eq!(weir.metric(&changes), 2);
    }
}

/// Waits until the proxy finds the endpoint healthy, or not.
async fn until_healthy(weir: &Weir, endpoint: SocketAddr, expected: bool) {
    eventually_async("the health of an endpoint", async || {
        let status = weir.admin_page("/status").json();
        let all = status["upstreams"]["api"].as_array().unwrap().clone();
        let url = format!("http://{endpoint}");
        let found = all.iter().find(|one| one["endpoint"] == url.as_str());
        match found.and_then(|one| one["healthy"].as_bool()) {
            Some(healthy) if healthy == expected => Ok(()),
            other => Err(format!("{other:?}: {status}")),
        }
    })
    .await;
}

#[tokio::test]
async fn endpoints_are_deployed_one_after_the_other_and_not_one_request_fails() {
    // Each says that it is about to stop, and stops once nobody sends anything there.
    let start = |name: &str| {
        let config = answers(name)
            .route("path = \"/healthz\"\nrespond = { status = 200 }\nmaintenance = \"leaving\"")
            .text();
        let address = free_address();
        Weir::start(&config.replacen("127.0.0.1:0", &address.to_string(), 1))
    };
    let mut endpoints = vec![start("one"), start("two"), start("three")];
    let urls: Vec<String> =
        endpoints.iter().map(|weir| format!("\"http://{}\"", weir.http)).collect();
    let upstream = format!("[upstreams.api]\nendpoints = [{}]\n{HEALTH}", urls.join(", "));
    let weir = Weir::start(&Toml::new().more(&format!("{upstream}\n{SPREAD}")).text());
    let (stop, answered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let mut clients = load(&weir, 16, &stop, &answered).await;
    // Requests that may not be sent twice.
    for _ in 0..8 {
        let mut client = Client::connect(weir.http).await.unwrap();
        let (stop, answered) = (Arc::clone(&stop), Arc::clone(&answered));
        clients.spawn(async move {
            let mut tally = Tally::default();
            while !stop.load(Ordering::Relaxed) {
                tally.add(&client.send("POST", "/", &[], Bytes::from_static(b"order")).await);
                answered.fetch_add(1, Ordering::Relaxed);
            }
            tally
        });
    }
    for _ in 0..endpoints.len() {
        until_more(&answered, 300).await;
        let leaving = endpoints.remove(0);
        let address = leaving.http;
        std::fs::write(leaving.folder().join("leaving"), "").unwrap();
        until_healthy(&weir, address, false).await;
        until_more(&answered, 300).await;
        std::fs::remove_file(leaving.folder().join("leaving")).unwrap();
        let back = tokio::task::spawn_blocking(|| leaving.restart(Signal::TERM)).await.unwrap();
        assert_eq!(back.http, address);
        until_healthy(&weir, address, true).await;
        endpoints.push(back);
    }
    until_more(&answered, 300).await;
    stop.store(true, Ordering::Relaxed);
    while let Some(tally) = clients.join_next().await {
        tally.unwrap().only(&[200]);
    }
    // Each got its share again.
    for endpoint in &endpoints {
        assert!(endpoint.metric("weir_requests_total{route=\"all\",code=\"200\"}") > 0);
    }
}

#[tokio::test]
async fn health_checks_begin_change_and_end_with_a_reload() {
    let (one, two) = (Weir::start(&with_health("one", 200)), Weir::start(&with_health("two", 503)));
    let weir = proxy(&[&one, &two], "");
    // Known once there was a request.
    get(weir.http, "/", &[]).await;
    assert_eq!(health_of(&weir), [None, None]);
    let file = weir.folder().join("proxy.toml");
    let without = std::fs::read_to_string(&file).unwrap();
    let with = without.replacen("[upstreams.api]\n", &format!("[upstreams.api]\n{HEALTH}\n"), 1);
    replace(&file, with.as_bytes());
    until_healthy_are(&weir, [true, false]).await;
    replace(&file, with.replacen("[200]", "[\"200-299\", 503]", 1).as_bytes());
    until_healthy_are(&weir, [true, true]).await;
    replace(&file, without.as_bytes());
    eventually_async("the checks have ended", async || {
        get(weir.http, "/", &[]).await;
        let found = health_of(&weir);
        if found == [None, None] { Ok(()) } else { Err(format!("{found:?}")) }
    })
    .await;
}

#[test]
fn mistakes_in_health_checks_are_found_at_their_lines() {
    for (health, found, expected) in [
        ("{}", "health.path: found nothing", "what to ask for, such as"),
        ("{ path = \"healthz\" }", "health.path: found \"healthz\"", "a path that begins with /"),
        ("{ path = \"/\", host = \"a b\" }", "health.host: found \"a b\"", "a host name"),
        ("{ path = \"/\", grpc = \"\" }", "health.grpc: found \"\"", "one of `path` and `grpc`"),
        ("{ grpc = \"\" }", "health.grpc: found \"\"", "`protocol = \"h2\"` beside it"),
        ("{ path = \"/\", statuses = [99] }", "health.statuses[0]: found 99", "a status such as"),
        ("{ path = \"/\", statuses = [\"300-200\"] }", "found \"300-200\"", "or a range such as"),
        (
            "{ path = \"/\", interval = \"1s\", timeout = \"2s\" }",
            "a `timeout` that is longer",
            "or shorter",
        ),
        ("{ path = \"/\", fall = 0 }", "health.fall: found 0", "1 to 1000"),
        ("{ path = \"/\", intervall = \"1s\" }", "intervall", "`interval`"),
    ] {
        let config = Toml::new()
            .more(&format!(
                "[upstreams.api]\nendpoints = [\"http://127.0.0.1:1\"]\nhealth = {health}\n{SPREAD}"
            ))
            .text();
        let (code, _, errors) = Weir::check(Weir::build(&config));
        assert_eq!(code, 78, "{health}: {errors}");
        assert!(errors.contains(found) && errors.contains(expected), "{health}: {errors}");
    }
}
