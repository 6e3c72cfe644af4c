//! Active health checks: who gets requests, and what is asked.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU16, AtomicU64};

use super::*;
use crate::upstream::{CheckMethod, HealthCheck, Probe};

/// A server whose health the test decides, and what it was asked.
struct Server {
    scripted: ScriptedUpstream,
    status: Arc<AtomicU16>,
    served: Arc<AtomicU64>,
    checks: Arc<Mutex<Vec<String>>>,
}

impl Server {
    async fn start() -> Self {
        let (status, served) = (Arc::new(AtomicU16::new(200)), Arc::new(AtomicU64::new(0)));
        let checks: Arc<Mutex<Vec<String>>> = Arc::default();
        let all = (Arc::clone(&status), Arc::clone(&served), Arc::clone(&checks));
        let scripted = ScriptedUpstream::new(move |mut stream, _| {
            let (status, served, checks) = all.clone();
            async move {
                while let Some(head) = stream.head().await {
                    if !head.contains(" /health") {
                        served.fetch_add(1, Ordering::SeqCst);
                        stream.send(OK).await;
                        continue;
                    }
                    checks.lock().unwrap().push(head);
                    let status = status.load(Ordering::SeqCst);
                    if status == 0 {
                        // It hangs.
                        stream.closed().await;
                        return;
                    }
                    stream.send(&format!("HTTP/1.1 {status} X\r\ncontent-length: 0\r\n\r\n")).await;
                }
            }
        })
        .await;
        Self { scripted, status, served, checks }
    }

    fn says(&self, status: u16) {
        self.status.store(status, Ordering::SeqCst);
    }

    fn checks(&self) -> usize {
        self.checks.lock().unwrap().len()
    }
}

fn check() -> HealthCheck {
    HealthCheck {
        probe: Probe::Http {
            method: CheckMethod::Get,
            path: "/health?full".into(),
            statuses: vec![200..=299],
        },
        host: None,
        interval: Duration::from_millis(20),
        timeout: Duration::from_millis(500),
        rise: 2,
        fall: 3,
        healthy_min: 0,
        slow_start: None,
    }
}

/// An upstream of these servers that is checked for as long as it lives.
struct Checked {
    upstream: Arc<Upstream>,
    metrics: Metrics,
    task: tokio::task::JoinHandle<()>,
}

impl Checked {
    fn start(servers: &[&Server], check: HealthCheck) -> Self {
        let addresses: Vec<SocketAddr> =
            servers.iter().map(|server| server.scripted.address).collect();
        Self::with(Settings { health: Some(check), ..settings(&addresses) })
    }

    fn with(settings: Settings) -> Self {
        let metrics = Metrics::new(1);
        let upstream = Arc::new(Upstream::build(&settings, &metrics).unwrap());
        let asked = Arc::clone(&upstream);
        let task = tokio::spawn(async move { asked.check_health().await });
        Self { upstream, metrics, task }
    }

    fn healthy(&self) -> Vec<bool> {
        self.upstream.status().into_iter().map(|host| host.healthy.unwrap()).collect()
    }

    /// Sends requests and returns how many of them each server got.
    async fn spread(&self, servers: &[&Server], requests: u64) -> Vec<u64> {
        let served = |server: &&Server| server.served.load(Ordering::SeqCst);
        let before: Vec<u64> = servers.iter().map(served).collect();
        for _ in 0..requests {
            let reply = in_time(self.upstream.send(get())).await.unwrap();
            assert_eq!(text(reply).await, "ok");
        }
        servers.iter().map(served).zip(before).map(|(now, before)| now - before).collect()
    }
}

impl Drop for Checked {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[tokio::test]
async fn a_server_that_is_slow_to_answer_delays_no_other_check() {
    let (quick, slow) = (Server::start().await, Server::start().await);
    slow.says(0);
    let patient = HealthCheck { timeout: Duration::from_secs(3_600), ..check() };
    let checked = Checked::start(&[&quick, &slow], patient);
    until(|| quick.checks() > 20).await;
    assert_eq!(slow.checks(), 1);
    // Nor does it delay what they change.
    quick.says(503);
    until(|| checked.healthy() == [false, true]).await;
}

#[tokio::test]
async fn an_unhealthy_server_gets_no_requests_until_it_is_well_again() {
    let (one, two) = (Server::start().await, Server::start().await);
    let checked = Checked::start(&[&one, &two], check());
    until(|| one.checks() > 1 && two.checks() > 1).await;
    let both = checked.spread(&[&one, &two], 100).await;
    assert!(both.iter().all(|share| *share > 10), "{both:?}");
    for status in [503, 302, 0] {
        two.says(status);
        until(|| checked.healthy() == [true, false]).await;
        assert_eq!(checked.spread(&[&one, &two], 50).await, [50, 0], "{status}");
        let why = checked.upstream.status().remove(1).check_failed.unwrap();
        let expected =
            if status == 0 { "no answer in time".into() } else { format!("status {status}") };
        assert_eq!(why, expected);
        two.says(204);
        until(|| checked.healthy() == [true, true]).await;
        assert!(checked.spread(&[&one, &two], 100).await[1] > 10, "{status}");
    }
    let endpoint = format!("http://{}", two.scripted.address);
    let count = |name, label| checked.metrics.counter(name, &["api", &endpoint, label]).get();
    assert_eq!(count(names::UPSTREAM_HEALTH_CHANGES, "unhealthy"), 3);
    assert_eq!(count(names::UPSTREAM_HEALTH_CHANGES, "healthy"), 3);
    assert!(count(names::UPSTREAM_HEALTH_CHECKS, "failed") >= 9);
    assert!(count(names::UPSTREAM_HEALTH_CHECKS, "passed") >= 6);
}

#[tokio::test]
async fn a_check_is_a_request_of_its_own_with_the_endpoints_host() {
    let server = Server::start().await;
    let host = Some("health.example".to_owned());
    for (host, expected) in
        [(None, server.scripted.address.to_string()), (host, "health.example".to_owned())]
    {
        server.checks.lock().unwrap().clear();
        let checked = Checked::start(&[&server], HealthCheck { host, ..check() });
        until(|| server.checks() > 3).await;
        let heads = server.checks.lock().unwrap().clone();
        for head in heads {
            assert!(head.starts_with("GET /health?full HTTP/1.1\r\n"), "{head}");
            let head = head.to_ascii_lowercase();
            assert!(head.contains(&format!("host: {expected}\r\n")), "{head}");
            assert!(head.contains("user-agent: weir-health\r\n"), "{head}");
        }
        drop(checked);
    }
    // Each time one connection, which is used again.
    assert_eq!(server.scripted.accepted(), 2);
}

#[tokio::test]
async fn one_failed_check_changes_nothing_and_nor_does_one_that_passes() {
    let (one, two) = (Server::start().await, Server::start().await);
    let checked = Checked::start(&[&one, &two], HealthCheck { fall: 1_000_000, ..check() });
    two.says(500);
    until(|| two.checks() > 10).await;
    assert_eq!(checked.healthy(), [true, true]);
    drop(checked);
    let slow = HealthCheck { rise: 1_000_000, ..check() };
    let checked = Checked::start(&[&one, &two], slow);
    until(|| checked.healthy() == [true, false]).await;
    two.says(200);
    let before = two.checks();
    until(|| two.checks() > before + 10).await;
    assert_eq!(checked.healthy(), [true, false]);
}

#[tokio::test]
async fn where_too_few_are_healthy_all_get_requests() {
    let servers = [Server::start().await, Server::start().await, Server::start().await];
    let all: Vec<&Server> = servers.iter().collect();
    let checked = Checked::start(&all, HealthCheck { healthy_min: 50, ..check() });
    servers[0].says(503);
    until(|| checked.healthy() == [false, true, true]).await;
    assert_eq!(checked.spread(&all, 50).await[0], 0);
    servers[1].says(503);
    until(|| checked.healthy() == [false, false, true]).await;
    until(|| checked.upstream.0.hosts.ignores_health()).await;
    let shares = checked.spread(&all, 200).await;
    assert!(shares.iter().all(|share| *share > 10), "{shares:?}");
    servers[0].says(200);
    until(|| !checked.upstream.0.hosts.ignores_health()).await;
    assert_eq!(checked.spread(&all, 50).await[1], 0);
}

#[tokio::test]
async fn the_only_server_gets_all_requests_whatever_its_health() {
    let server = Server::start().await;
    let checked = Checked::start(&[&server], check());
    server.says(503);
    until(|| checked.healthy() == [false]).await;
    assert_eq!(checked.spread(&[&server], 5).await, [5]);
}

#[tokio::test]
async fn a_server_that_is_well_again_starts_slowly() {
    let (one, two) = (Server::start().await, Server::start().await);
    two.says(503);
    let slow_start = Some(Duration::from_secs(3_600));
    let checked = Checked::start(&[&one, &two], HealthCheck { slow_start, ..check() });
    until(|| checked.healthy() == [true, false]).await;
    two.says(200);
    until(|| checked.healthy() == [true, true]).await;
    let shares = checked.spread(&[&one, &two], 400).await;
    // A twentieth of what it would get, which is half.
    assert!((1..60).contains(&shares[1]), "{shares:?}");
}

#[tokio::test]
async fn a_server_that_does_not_listen_is_unhealthy_without_a_request() {
    let one = Server::start().await;
    let health = Some(check());
    let addresses = [one.scripted.address, nobody().await];
    let checked = Checked::with(Settings { health, ..settings(&addresses) });
    until(|| checked.healthy() == [true, false]).await;
    assert_eq!(checked.spread(&[&one], 50).await, [50]);
    let why = checked.upstream.status().remove(1).check_failed.unwrap();
    assert_eq!(why, "no reply (connect)");
    assert!(checked.upstream.status().iter().all(|host| !host.ejected));
}

/// A path and a body.
type Asked = (String, Vec<u8>);

/// gRPC's health protocol, from a server that says what the test wants.
#[tokio::test]
async fn grpc_servers_are_asked_by_the_protocol_of_grpc() {
    let status = Arc::new(AtomicU16::new(1));
    let asked: Arc<Mutex<Vec<Asked>>> = Arc::default();
    let shared = (Arc::clone(&status), Arc::clone(&asked));
    let scripted = ScriptedUpstream::new(move |stream, _| {
        let (status, asked) = shared.clone();
        async move {
            let Ok(mut connection) = h2::server::handshake(stream.0).await else { return };
            while let Some(Ok((request, mut respond))) = connection.accept().await {
                let (status, asked) = (Arc::clone(&status), Arc::clone(&asked));
                tokio::spawn(async move {
                    let path = request.uri().path().to_owned();
                    let body = request.into_body().into_inner_body().await;
                    asked.lock().unwrap().push((path, body));
                    let reply = http::Response::builder()
                        .header("content-type", "application/grpc")
                        .body(())
                        .unwrap();
                    let mut stream = respond.send_response(reply, false).unwrap();
                    let status = status.load(Ordering::SeqCst) as u8;
                    let message = [&[0, 0, 0, 0, 2, 8][..], &[status]].concat();
                    stream.send_data(message.into(), false).unwrap();
                    let ok = http::HeaderMap::from_iter([(
                        http::HeaderName::from_static("grpc-status"),
                        http::HeaderValue::from_static("0"),
                    )]);
                    stream.send_trailers(ok).unwrap();
                });
            }
        }
    })
    .await;
    let check = HealthCheck { probe: Probe::Grpc { service: "shop.Cart".into() }, ..check() };
    let settings =
        Settings { protocol: Protocol::H2, health: Some(check), ..settings(&[scripted.address]) };
    let checked = Checked::with(settings);
    until(|| asked.lock().unwrap().len() > 3).await;
    assert_eq!(checked.healthy(), [true]);
    let (path, body) = asked.lock().unwrap()[0].clone();
    assert_eq!(path, "/grpc.health.v1.Health/Check");
    assert_eq!(body, b"\0\0\0\0\x0b\x0a\x09shop.Cart");
    status.store(2, Ordering::SeqCst);
    until(|| checked.healthy() == [false]).await;
    assert_eq!(checked.upstream.status()[0].check_failed.as_deref(), Some("it says NOT_SERVING"));
}

/// Reads a stream's body to its end.
trait WholeBody {
    async fn into_inner_body(self) -> Vec<u8>;
}

impl WholeBody for h2::RecvStream {
    async fn into_inner_body(mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        while let Some(Ok(data)) = self.data().await {
            bytes.extend_from_slice(&data);
        }
        bytes
    }
}
