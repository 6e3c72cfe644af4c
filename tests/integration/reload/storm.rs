//! Reloads of all kinds under load, each tenth one broken: no request fails, none is decided
//! wrongly, and counters stay exact.
//!
//! `make test` runs forty. `benches/reloads.sh` runs 200 within a minute on a release, and compares
//! latencies and memory with the same load without reloads. `WEIR_RELOADS`, `WEIR_RELOADS_SECONDS`
//! and `WEIR` (a binary) choose the form.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

use crate::harness::client::{Client, Failure, Reply, get_blocking, raw, statuses};
use crate::harness::mount::Mount;
use crate::harness::pki::{IssuedCertificate, Pki};
use crate::harness::tls::{HOST, Http2, shown};
use crate::harness::toml::Toml;
use crate::harness::upstream::Upstream;
use crate::harness::weir::{Weir, replace};
use crate::harness::{TIMEOUT, eventually};

/// Reloads, by default.
const RELOADS: u64 = 40;
/// Clients of each protocol: HTTP/1.1, HTTP/2 without and with TLS.
const CLIENTS: usize = 4;
/// How long a client waits between two requests.
const PAUSE: Duration = Duration::from_millis(15);
/// Requests of each key that are admitted, and as many refused, whatever is reloaded meanwhile.
const ADMITTED: u64 = 20;
const REFUSED: u64 = 5;
/// The daily limit's quota; each edit adds one.
const START: u64 = 10_000_000;
/// Memory that reloads may add to what the process had after the first quarter of them.
const GROWTH_KIB_MAX: u64 = 48 << 10;

const SCRIPT: &str = include_str!("../../../examples/scripts/lockout.lua");

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name}: {text}")))
}

/// The SHA-256 of `alice`, who is on this plan.
fn customers(more: u64) -> String {
    format!(
        "\"sha256:2bd806c97f0e00af1a1fc3328fa763a9269723c8db8fac4f93af71db186d6e90\" = \"gold\"\n\
         \"sha256:{more:064x}\" = \"gold\"\n"
    )
}

/// What the files say now.
struct Edited {
    quota: u64,
    routes: u64,
    endpoints: Vec<String>,
}

impl Edited {
    fn config(&self) -> String {
        let limit = |name: &str, quota: u64| {
            format!(
                "{{ name = \"{name}\", algorithm = \"fixed_window\", quota = {quota}, period = \"1d\" }}"
            )
        };
        let endpoints: Vec<String> =
            self.endpoints.iter().map(|url| format!("\"{url}\"")).collect();
        let mut toml = Toml::new()
            .more(&format!("[upstreams.api]\nendpoints = [{}]", endpoints.join(", ")))
            .more(&format!("[policies.day]\nuse = \"client-ip\"\nconfig.limits = [{}]\nconfig_files = {{ bypass = \"bypass.json\" }}", limit("day", self.quota)))
            .policy("script", &["name = \"script\", algorithm = \"script\", script = \"lockout\", arguments = [1_000_000_000, 60_000_000, 60_000_000]"])
            .more(&format!("[policies.keys]\nwasm = \"policy.wasm\"\nconfig.limits = [{}]", limit("key", ADMITTED)))
            .more(&format!(
                "[policies.plans]\nuse = \"plans\"\nconfig_files = {{ assign = \"mount/customers.toml\" }}\n\
                 config.key = \"{{header.x-api-key}}\"\nconfig.unknown = \"deny\"\nconfig.plans.gold = [{}]",
                limit("gold", START)
            ))
            .more("[[listeners]]\naddress = \"127.0.0.1:0\"\ncertificates = [{ certificate = \"api.pem\", key = \"api.key\" }]");
        toml.store = "[store]\nscripts = \"lua\"\n".into();
        for name in ["day", "script", "keys", "plans"] {
            toml =
                toml.route(&format!("path = \"/{name}\"\nupstream = \"api\"\npolicy = \"{name}\""));
        }
        for extra in 0..self.routes {
            toml = toml
                .route(&format!("path = \"/extra/{extra}\"\nupstream = \"api\"\npolicy = \"day\""));
        }
        toml.text()
    }
}

/// The operator: edits one thing after the other.
struct Operator<'a> {
    weir: &'a Weir,
    pki: &'a Pki,
    mount: &'a Mount,
    folder: PathBuf,
    module: Vec<u8>,
    edited: Edited,
    upstreams: [String; 2],
    identity: IssuedCertificate,
}

impl Operator<'_> {
    fn write(&self, name: &str, bytes: &[u8]) {
        replace(&self.folder.join(name), bytes);
    }

    fn write_config(&self) {
        self.weir.rewrite(&self.edited.config());
    }

    /// One edit of each kind in turn.
    fn edit(&mut self, turn: u64) {
        match turn % 8 {
            0 => {
                self.edited.quota = START + turn;
                self.write_config();
            }
            1 => {
                let note = u8::try_from(turn % 256).expect("a byte");
                let rebuilt = [&self.module, &b"\0\x06\x04note"[..], &[note]].concat();
                self.write("policy.wasm", &rebuilt);
            }
            2 => self.write("lua/lockout.lua", format!("-- {turn}\n{SCRIPT}").as_bytes()),
            3 => {
                self.write("bypass.json", format!("[\"192.0.2.{}\"]", turn % 256).as_bytes());
            }
            4 => {
                self.edited.routes = turn % 7;
                self.write_config();
            }
            5 => {
                let [one, other] = self.upstreams.clone();
                self.edited.endpoints = match turn % 3 {
                    0 => vec![one],
                    1 => vec![other],
                    _ => vec![one, other],
                };
                self.write_config();
            }
            6 => {
                self.identity = self.pki.server(&[HOST]);
                self.weir.renew("api", &self.identity);
            }
            _ => self.mount.publish(&[("customers.toml", customers(turn).as_bytes())]),
        }
    }

    /// Breaks something. What `mend` writes again is right.
    fn spoil(&self, turn: u64) {
        let good = self.edited.config();
        match turn / 10 % 8 {
            0 => self.weir.rewrite(&format!("{good}\n[[routes")),
            1 => self.write("policy.wasm", &self.module[..self.module.len() / 2]),
            2 => self.write("lua/lockout.lua", b"return {"),
            3 => self.write("api.key", self.pki.server(&[HOST]).key.as_bytes()),
            4 => self.mount.publish(&[("customers.toml", b"alice = \"gold\"\n")]),
            5 => self.write("bypass.json", b"[\"nowhere\"]"),
            6 => self.weir.rewrite(&good.replace("upstream = \"api\"", "upstream = \"apo\"")),
            _ => self.weir.rewrite(&good.replace("fixed_window", "fixed_widow")),
        }
    }

    fn mend(&self, turn: u64) {
        match turn / 10 % 8 {
            1 => self.write("policy.wasm", &self.module),
            2 => self.write("lua/lockout.lua", SCRIPT.as_bytes()),
            3 => self.weir.renew("api", &self.identity),
            4 => self.mount.publish(&[("customers.toml", customers(turn).as_bytes())]),
            5 => self.write("bypass.json", b"[]"),
            _ => self.write_config(),
        }
    }

    /// `POST /reload`.
    fn reload(&self) -> (u16, String) {
        let request = "POST /reload HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        let reply = raw(self.weir.admin.expect("an admin listener"), request.as_bytes(), TIMEOUT);
        (statuses(&reply)[0], reply)
    }

    /// One reload, and its result. Each fifth is left to the watcher, the others are asked for.
    fn turn(&mut self, turn: u64) {
        if turn.is_multiple_of(10) {
            self.spoil(turn);
            let (status, reply) = self.reload();
            assert!(status == 422 && reply.contains("\"errors\""), "{turn}: {reply}");
            self.mend(turn);
        } else if turn % 5 == 1 {
            let before = self.weir.reloads("applied");
            self.edit(turn);
            self.weir.await_reloads("applied", before + 1);
        } else {
            self.edit(turn);
            let (status, reply) = self.reload();
            assert!(status == 200 && reply.contains("\"applied\":true"), "{turn}: {reply}");
        }
    }
}

/// A connection of either protocol.
enum Connection {
    Http1(Client),
    Http2(Http2),
}

impl Connection {
    async fn get(&mut self, path: &str, key: &str) -> Result<Reply, Failure> {
        let fields = [("x-api-key", key)];
        match self {
            Self::Http1(client) => client.get(path, &fields).await,
            Self::Http2(client) => client.get(path, &fields).await,
        }
    }
}

/// What all clients saw.
#[derive(Default)]
struct Seen {
    admitted: u64,
    of_day: u64,
    wrong: Vec<String>,
    latencies_us: Vec<u64>,
}

/// What the load and its operator share.
#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    answered: AtomicU64,
}

/// Sends requests whose answers are known beforehand, until told to stop.
async fn client(name: &str, mut connection: Connection, shared: &Shared) -> Seen {
    let mut seen = Seen::default();
    let mut ticks = tokio::time::interval(PAUSE);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    for request in 0.. {
        ticks.tick().await;
        if shared.stop.load(Ordering::Relaxed) {
            break;
        }
        let (key_number, of_key) = (request / (ADMITTED + REFUSED), request % (ADMITTED + REFUSED));
        let key = format!("{name}-{key_number}");
        let others = [("/day", "alice"), ("/script", "alice"), ("/plans", "alice")];
        let mut all = vec![("/keys", key.as_str())];
        all.extend(others.get((request % 8) as usize));
        for (path, key) in all {
            let began = Instant::now();
            let reply = connection.get(path, key).await;
            seen.latencies_us.push(began.elapsed().as_micros() as u64);
            let expected = if path == "/keys" && of_key >= ADMITTED { 429 } else { 200 };
            let left = (path == "/keys").then(|| ADMITTED.saturating_sub(of_key + 1) as i64);
            match reply {
                Ok(reply)
                    if reply.status == expected
                        && left.is_none_or(|left| reply.remaining("key") == left) =>
                {
                    seen.admitted += u64::from(expected == 200);
                    seen.of_day += u64::from(path == "/day");
                }
                other => seen.wrong.push(format!("{path} {key} {of_key}: {other:?}")),
            }
            shared.answered.fetch_add(1, Ordering::Relaxed);
        }
        if !seen.wrong.is_empty() {
            break;
        }
    }
    seen
}

/// The load, on a thread of its own.
fn load(weir: &Weir, ca: &str, name: &str, shared: &Arc<Shared>) -> Seen {
    let (plain, secured) = (weir.http, weir.listeners()[1]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut clients = tokio::task::JoinSet::new();
        for number in 0..CLIENTS {
            let connections = [
                Connection::Http1(Client::connect(plain).await.unwrap()),
                Connection::Http2(Http2::plain(plain).await.unwrap()),
                Connection::Http2(Http2::secured(secured, ca).await.unwrap()),
            ];
            for (protocol, connection) in connections.into_iter().enumerate() {
                let (name, shared) = (format!("{name}-{number}-{protocol}"), Arc::clone(shared));
                clients.spawn(async move { client(&name, connection, &shared).await });
            }
        }
        let mut all = Seen::default();
        while let Some(seen) = clients.join_next().await {
            let seen = seen.expect("no panic in a client");
            all.admitted += seen.admitted;
            all.of_day += seen.of_day;
            all.wrong.extend(seen.wrong);
            all.latencies_us.extend(seen.latencies_us);
        }
        all.latencies_us.sort_unstable();
        all
    })
}

/// Runs the load while `work` runs.
fn under_load(weir: &Weir, ca: &str, name: &str, work: impl FnOnce()) -> Seen {
    let shared = Arc::new(Shared::default());
    std::thread::scope(|scope| {
        let runner = scope.spawn(|| load(weir, ca, name, &shared));
        let stop = StopWhenDropped(&shared.stop);
        let more = || {
            let wanted = shared.answered.load(Ordering::Relaxed) + 50;
            eventually("the load goes on", || match shared.answered.load(Ordering::Relaxed) {
                now if now >= wanted || runner.is_finished() => Ok(()),
                now => Err(format!("{now} of {wanted} answered")),
            });
        };
        more();
        work();
        more();
        drop(stop);
        runner.join().expect("no panic in the load")
    })
}

/// Ends the load even when an assertion fails.
struct StopWhenDropped<'a>(&'a AtomicBool);

impl Drop for StopWhenDropped<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Seen {
    fn percentile_us(&self, percent: usize) -> u64 {
        let all = &self.latencies_us;
        all[(all.len() * percent / 100).min(all.len() - 1)]
    }
}

impl std::fmt::Display for Seen {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (p50, p99) = (self.percentile_us(50), self.percentile_us(99));
        write!(out, "{} requests, p50 {p50} us, p99 {p99} us", self.latencies_us.len())
    }
}

/// A proxy, all that it reads, and what is behind it.
struct Stage {
    weir: Weir,
    pki: Pki,
    upstreams: [Upstream; 2],
    mount: Mount,
    module: Vec<u8>,
}

impl Stage {
    fn start(identity: &IssuedCertificate, pki: Pki) -> (Self, Edited) {
        let upstreams = [Upstream::start(), Upstream::start()];
        let edited = Edited { quota: START, routes: 0, endpoints: vec![upstreams[0].url()] };
        let module = std::fs::read(crate::harness::guest::api_key()).unwrap();
        let mut builder = Weir::build(&edited.config())
            .identity("api", identity)
            .file("policy.wasm", &module)
            .file("bypass.json", b"[]")
            .file("lua/lockout.lua", SCRIPT.as_bytes());
        if let Ok(program) = std::env::var("WEIR") {
            builder = builder.program(&std::fs::canonicalize(program).expect("WEIR is a binary"));
        }
        let mount = Mount::new(&builder.folder().join("mount"));
        mount.publish(&[("customers.toml", customers(0).as_bytes())]);
        (Self { weir: builder.start(), pki, upstreams, mount, module }, edited)
    }

    /// What all clients saw is what the upstreams, the counters and the listener say.
    fn agrees(&self, all: &[&Seen], operator: &Operator<'_>) {
        let of = |count: fn(&Seen) -> u64| all.iter().map(|seen| count(seen)).sum::<u64>();
        let reached: u64 = self.upstreams.iter().map(Upstream::count).sum();
        assert_eq!(reached, of(|seen| seen.admitted), "each that was admitted went out once");
        let last = get_blocking(self.weir.http, "/day").unwrap();
        let left = operator.edited.quota - of(|seen| seen.of_day) - 1;
        assert_eq!(last.remaining("day"), left as i64, "exact over all reloads: {last:?}");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let leaf = runtime.block_on(shown(self.weir.listeners()[1], &self.pki.ca)).unwrap();
        assert!(leaf == leaf_of(&operator.identity), "the last certificate is served");
    }
}

#[test]
fn reloads_of_all_kinds_under_load_each_tenth_one_broken_do_no_harm() {
    let reloads = number("WEIR_RELOADS").unwrap_or(RELOADS);
    let seconds = number("WEIR_RELOADS_SECONDS");
    let pki = Pki::new();
    let identity = pki.server(&[HOST]);
    let (stage, edited) = Stage::start(&identity, pki);
    let Stage { weir, pki, upstreams, mount, module } = &stage;
    // Without reloads, to compare with.
    let quiet = seconds.map(|seconds| {
        under_load(weir, &pki.ca, "quiet", || std::thread::sleep(Duration::from_secs(seconds)))
    });
    let mut operator = Operator {
        weir,
        pki,
        mount,
        folder: weir.folder().to_owned(),
        module: module.clone(),
        edited,
        upstreams: [upstreams[0].url(), upstreams[1].url()],
        identity,
    };
    let (mut warm_kib, mut took) = (0, Duration::ZERO);
    let seen = under_load(weir, &pki.ca, "storm", || {
        let began = Instant::now();
        for turn in 1..=reloads {
            operator.turn(turn);
            if turn == reloads / 4 {
                warm_kib = weir.memory_kib();
            }
            // Spread over the time that is given.
            let due =
                seconds.map(|all| Duration::from_secs(all).mul_f64(turn as f64 / reloads as f64));
            if let Some(rest) = due.and_then(|due| due.checked_sub(began.elapsed())) {
                std::thread::sleep(rest);
            }
        }
        took = began.elapsed();
    });
    let end_kib = weir.memory_kib();

    assert_eq!(seen.wrong, Vec::<String>::new(), "{}", weir.output().tail(40));
    let all: Vec<&Seen> = quiet.iter().chain([&seen]).collect();
    stage.agrees(&all, &operator);
    let (applied, refused) = (weir.reloads("applied"), weir.reloads("refused"));
    assert!(applied >= reloads - reloads / 10 && refused >= reloads / 10, "{applied}, {refused}");
    println!(
        "{reloads} reloads in {:.1} s ({applied} applied, {refused} refused); memory {} MiB after a quarter of them, {} MiB at the end",
        took.as_secs_f64(),
        warm_kib >> 10,
        end_kib >> 10
    );
    println!("with reloads: {seen}");
    if let Some(quiet) = &quiet {
        let times = seen.percentile_us(99) as f64 / quiet.percentile_us(99) as f64;
        println!("without: {quiet}\np99 is {times:.2} times as long with reloads");
    }
    assert!(
        end_kib <= warm_kib + GROWTH_KIB_MAX,
        "{warm_kib} KiB after a quarter of the reloads, {end_kib} KiB at the end"
    );
}

/// The certificate that a server with this identity shows.
fn leaf_of(issued: &IssuedCertificate) -> Vec<u8> {
    let mut chain = CertificateDer::pem_slice_iter(issued.certificate.as_bytes());
    chain.next().expect("a certificate").expect("in PEM").to_vec()
}
