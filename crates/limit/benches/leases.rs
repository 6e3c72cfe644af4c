//! One key that everybody shares: how many decisions a second three processes make on one Redis
//! server with and without leases, and whether the limit is kept and used.
//!
//!     cargo bench --workspace --bench leases [one-key] [shares] [picture]
//!
//! The processes are this program again. Each has one thread with clients that ask again as soon as
//! they are answered, and writes down when it admitted each request. benches/README.md has the
//! figures.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a benchmark may fail loudly"
)]

use std::cell::RefCell;
use std::io::Write as _;
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use weir_clock::Clock;
use weir_limit::engine::{Engine, RedisMode, RedisSettings};
use weir_limit::limit::{Limiter, Scope, Settings, Take};
use weir_limit::plan::{
    Algorithm, Alignment, Debt, FixedWindow, Gcra, Lease, Limit, OnStoreError, Plan, Rate,
    SlidingWindowLog,
};
use weir_telemetry::Metrics;

const PROCESSES: usize = 3;
/// Requests in flight of each process.
const CLIENTS: usize = 256;
/// What is measured, after as much to warm up.
const SECONDS: u64 = 4;
const PLENTY: u64 = 1 << 31;

/// A limit under load.
#[derive(Clone, Copy)]
struct Case {
    name: &'static str,
    algorithm: &'static str,
    /// Units in a second.
    quota: u64,
    burst: u64,
    /// How long a lease lives, in milliseconds; 0 for none.
    life_ms: u64,
    /// Keys that clients choose from, one as often as another.
    keys: u64,
    processes: usize,
    /// Requests that each process sends in a second; 0 for clients that ask again as soon as they
    /// are answered.
    demand: [u64; 3],
}

impl Case {
    fn limit(&self) -> Limit {
        let rate = Rate { amount: self.quota, per_ms: 1_000 };
        let algorithm: Algorithm = match self.algorithm {
            "gcra" => Gcra { burst: self.burst, rate, debt: Debt::None }.into(),
            "sliding_window_log" => SlidingWindowLog { rate, debt: Debt::None }.into(),
            _ => FixedWindow { rate, alignment: Alignment::Clock, debt: Debt::None }.into(),
        };
        let lease = (self.life_ms > 0).then(|| Lease::of_ms(self.life_ms));
        Limit { lease, ..Limit::new("everybody", "all", algorithm) }
    }

    /// A plan for each key.
    fn plans(&self) -> Vec<Arc<Plan>> {
        let of = |key: u64| Limit { key: key.to_string(), ..self.limit() };
        (0..self.keys).map(|key| Arc::new(Plan::new(vec![of(key)]).unwrap())).collect()
    }

    fn arguments(&self) -> Vec<String> {
        let numbers = [self.quota, self.burst, self.life_ms, self.keys].into_iter();
        let numbers = numbers.chain(self.demand).map(|number| number.to_string());
        std::iter::once(self.algorithm.to_owned()).chain(numbers).collect()
    }

    fn of_arguments(words: &[String]) -> Self {
        let numbers: Vec<u64> = words[1..].iter().map(|word| word.parse().unwrap()).collect();
        Self {
            name: "",
            algorithm: Box::leak(words[0].clone().into_boxed_str()),
            quota: numbers[0],
            burst: numbers[1],
            life_ms: numbers[2],
            keys: numbers[3],
            processes: PROCESSES,
            demand: numbers[4..].try_into().unwrap(),
        }
    }
}

// ---- One process -------------------------------------------------------------------------------

/// What a process saw.
#[derive(Default)]
struct Seen {
    decisions: u64,
    /// When each request was admitted, in microseconds since 1970.
    admitted_us: Vec<u64>,
    /// How long the decisions took that needed nothing but what was at hand, in nanoseconds.
    local_ns: Vec<u32>,
}

fn now_us() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros() as u64
}

fn scope() -> Arc<Scope> {
    Arc::new(Scope::new("bench".into(), "bench".into(), OnStoreError::Deny, false))
}

/// Sends `demand` requests a second, whatever becomes of them.
async fn sender(
    limiter: Rc<Limiter>,
    plan: Arc<Plan>,
    (times, demand): ((u64, u64), u64),
    seen: Rc<RefCell<Seen>>,
) {
    let (begin_us, scope) = (now_us(), scope());
    let mut sent = 0;
    while now_us() < times.1 {
        let due = (now_us() - begin_us) * demand / 1_000_000;
        for _ in sent..due {
            let (limiter, plan, seen) = (Rc::clone(&limiter), Arc::clone(&plan), Rc::clone(&seen));
            let scope = Arc::clone(&scope);
            tokio::task::spawn_local(async move {
                let granted = matches!(limiter.take(&scope, &plan).await, Take::Granted(..));
                let mut seen = seen.borrow_mut();
                seen.decisions += 1;
                if granted {
                    seen.admitted_us.push(now_us());
                }
            });
        }
        sent = due;
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

async fn client(
    limiter: Rc<Limiter>,
    plans: Rc<Vec<Arc<Plan>>>,
    times: (u64, u64),
    seen: Rc<RefCell<Seen>>,
) {
    let (scope, mut random) = (scope(), fastrand::Rng::new());
    loop {
        let plan = &plans[random.usize(..plans.len())];
        let began = Instant::now();
        let mut take = std::pin::pin!(limiter.take(&scope, plan));
        let (answer, local) = match futures_util::poll!(take.as_mut()) {
            std::task::Poll::Ready(answer) => (answer, Some(began.elapsed())),
            std::task::Poll::Pending => (take.await, None),
        };
        let at_us = now_us();
        if at_us >= times.1 {
            return;
        }
        {
            let mut seen = seen.borrow_mut();
            if matches!(answer, Take::Granted(..)) {
                seen.admitted_us.push(at_us);
            }
            if at_us >= times.0 {
                seen.decisions += 1;
                if let Some(local) = local.filter(|_| seen.decisions.is_multiple_of(16)) {
                    seen.local_ns.push(local.as_nanos() as u32);
                }
            }
        }
        drop(answer);
        // As a server does between two requests of a connection.
        tokio::task::yield_now().await;
    }
}

fn process(words: &[String]) {
    let (port, number): (u16, usize) = (words[0].parse().unwrap(), words[1].parse().unwrap());
    let times: (u64, u64) = (words[2].parse().unwrap(), words[3].parse().unwrap());
    let case = Case::of_arguments(&words[4..]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let local = tokio::task::LocalSet::new();
    let seen = Rc::new(RefCell::new(Seen::default()));
    let metrics = Metrics::new(1);
    let redis = RedisSettings::new(vec![format!("127.0.0.1:{port}")], RedisMode::Single);
    let redis = RedisSettings { deadline: Duration::from_secs(5), ..redis };
    let engine = Engine::build(&redis.into(), Clock::system(), &metrics).unwrap();
    let settings = Settings {
        deadline: Duration::from_secs(5),
        instance: format!("p{number}"),
        ..Settings::default()
    };
    let limiter = Rc::new(Limiter::new(settings, Arc::new(engine), Clock::system(), metrics));
    let (plans, demand) = (Rc::new(case.plans()), case.demand[number]);
    local.block_on(&runtime, async {
        if demand > 0 {
            let plan = Arc::clone(&plans[0]);
            sender(Rc::clone(&limiter), plan, (times, demand), Rc::clone(&seen)).await;
        } else {
            let clients = (0..CLIENTS).map(|_| {
                let (limiter, plans) = (Rc::clone(&limiter), Rc::clone(&plans));
                tokio::task::spawn_local(client(limiter, plans, times, Rc::clone(&seen)))
            });
            for client in clients.collect::<Vec<_>>() {
                client.await.unwrap();
            }
        }
        limiter.drain(Duration::from_secs(5)).await;
    });
    let mut seen = seen.borrow_mut();
    seen.local_ns.sort_unstable();
    let at = |part: f64| {
        let index = (seen.local_ns.len() as f64 * part) as usize;
        seen.local_ns.get(index).copied().unwrap_or(0)
    };
    let mut out = std::io::stdout().lock();
    writeln!(out, "{} {} {}", seen.decisions, at(0.5), at(0.99)).unwrap();
    let bytes: Vec<u8> = seen.admitted_us.iter().flat_map(|us| us.to_le_bytes()).collect();
    out.write_all(&bytes).unwrap();
}

// ---- All of them -------------------------------------------------------------------------------

struct Server {
    child: Child,
    port: u16,
}

impl Server {
    fn start() -> Self {
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let port_text = port.to_string();
        let child = Command::new("redis-server")
            .args(["--port", &port_text, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
            .stdout(Stdio::null())
            .spawn()
            .expect("redis-server is installed");
        let server = Self { child, port };
        let end = Instant::now() + Duration::from_secs(30);
        while server.client().get_connection().is_err() {
            assert!(Instant::now() < end, "redis-server did not start");
            std::thread::sleep(Duration::from_millis(20));
        }
        server
    }

    fn client(&self) -> redis::Client {
        redis::Client::open(format!("redis://127.0.0.1:{}", self.port)).unwrap()
    }

    /// The commands that were processed, and the seconds of CPU that it has used.
    fn used(&self) -> (f64, f64) {
        let mut conn = self.client().get_connection().unwrap();
        let info: String = redis::cmd("INFO").arg("everything").query(&mut conn).unwrap();
        let of = |name: &str| -> f64 {
            let line = info.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|value| value.trim().parse().ok()).unwrap_or(0.0)
        };
        let calls = info.lines().filter(|line| {
            ["cmdstat_evalsha:", "cmdstat_eval:"].iter().any(|name| line.starts_with(name))
        });
        let calls = calls
            .filter_map(|line| line.split_once("calls=")?.1.split(',').next()?.parse::<f64>().ok());
        (calls.sum(), of("used_cpu_user:") + of("used_cpu_sys:"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What all processes saw together.
struct Result {
    decisions: f64,
    calls: f64,
    redis_cpu: f64,
    admitted_us: Vec<u64>,
    /// The same for each process.
    each_admitted_us: Vec<Vec<u64>>,
    /// The median and the 99th percentile, of the process where they are largest.
    local_ns: [u32; 2],
}

/// Runs the case; returns what all saw, and when it began.
fn run(case: Case) -> (Result, u64) {
    let server = Server::start();
    // They begin at a full second, which is the start of a window.
    let from = now_us() / 1_000_000 + 3;
    let (from, to) = (from * 1_000_000, (from + SECONDS) * 1_000_000);
    let children: Vec<Child> = (0..case.processes)
        .map(|number| {
            Command::new(std::env::current_exe().unwrap())
                .args(["process", &server.port.to_string(), &number.to_string()])
                .args([from.to_string(), to.to_string()])
                .args(case.arguments())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    let wait = |until_us: u64| {
        std::thread::sleep(Duration::from_micros(until_us.saturating_sub(now_us())));
    };
    wait(from);
    let before = server.used();
    wait(to);
    let after = server.used();
    let mut result = Result {
        decisions: 0.0,
        calls: (after.0 - before.0) / SECONDS as f64,
        redis_cpu: (after.1 - before.1) / SECONDS as f64,
        admitted_us: Vec::new(),
        each_admitted_us: Vec::new(),
        local_ns: [0, 0],
    };
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success());
        let end = output.stdout.iter().position(|byte| *byte == b'\n').unwrap();
        let (line, admitted) = output.stdout.split_at(end);
        let numbers: Vec<u64> =
            String::from_utf8_lossy(line).split(' ').map(|word| word.parse().unwrap()).collect();
        result.decisions += numbers[0] as f64 / SECONDS as f64;
        result.local_ns[0] = result.local_ns[0].max(numbers[1] as u32);
        result.local_ns[1] = result.local_ns[1].max(numbers[2] as u32);
        let admitted = admitted[1..].as_chunks::<8>().0.iter().map(|us| u64::from_le_bytes(*us));
        let mut admitted: Vec<u64> = admitted.filter(|us| *us < to).collect();
        admitted.sort_unstable();
        result.admitted_us.extend(&admitted);
        result.each_admitted_us.push(admitted);
    }
    result.admitted_us.sort_unstable();
    (result, from)
}

/// One key for all, with a line of what came of it.
fn one_key(case: Case) {
    let (result, from) = run(case);
    println!(
        "{:<34} {:>9.0} {:>9.0} {:>6.2} {:>7} {:>7}  {}",
        case.name,
        result.decisions,
        result.calls,
        result.redis_cpu,
        result.local_ns[0],
        result.local_ns[1],
        kept(case, &result.admitted_us, from),
    );
}

/// How a limit at half of the demand is shared: what each process got of what it asked for, and the
/// longest time in which it got nothing.
fn shared(case: Case) {
    let (result, from) = run(case);
    let each = result.each_admitted_us.iter().zip(case.demand).map(|(admitted, demand)| {
        let counted: Vec<u64> = admitted.iter().copied().filter(|us| *us >= from).collect();
        let ends = [from, from + SECONDS * 1_000_000];
        let mut all: Vec<u64> = counted.iter().copied().chain(ends).collect();
        all.sort_unstable();
        let gap = all.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0);
        let part = counted.len() as f64 / (demand * SECONDS) as f64 * 100.0;
        format!("{demand:>6}/s: {part:>3.0} %, {:>4.0} ms", gap as f64 / 1_000.0)
    });
    let each: Vec<String> = each.collect();
    println!("{:<34} {}  {}", case.name, each.join("   "), kept(case, &result.admitted_us, from));
}

/// Decisions a second over processes and over keys, with leases and without, as a picture.
fn picture(path: &std::path::Path, case: Case) {
    println!("\n{:>9} {:>7} {:>12} {:>12}", "processes", "keys", "lease 200 ms", "without");
    let on_one_key = (1..=PROCESSES).map(|processes| (processes, 1));
    let on_many = [10, 100, 1_000, 10_000].map(|keys| (PROCESSES, keys));
    let rows = on_one_key.chain(on_many).map(|(processes, keys)| {
        let of = |life_ms| {
            let mut one = case;
            (one.life_ms, one.keys, one.processes) = (life_ms, keys, processes);
            run(one).0.decisions
        };
        let (leased, without) = (of(200), of(0));
        println!("{processes:>9} {keys:>7} {leased:>12.0} {without:>12.0}");
        let plural = |count: u64| if count == 1 { "" } else { "s" };
        let name = format!(
            "{processes} process{}, {keys} key{}",
            if processes == 1 { "" } else { "es" },
            plural(keys)
        );
        (name, leased, without)
    });
    let rows: Vec<(String, f64, f64)> = rows.collect();
    std::fs::write(path, bars(&rows)).unwrap();
    println!("written: {}", path.display());
}

/// Two bars for each row.
fn bars(rows: &[(String, f64, f64)]) -> String {
    let most = rows.iter().map(|(_, leased, without)| leased.max(*without)).fold(1.0, f64::max);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 640 {}\" font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n\
         <text x=\"16\" y=\"18\" font-size=\"13\" font-weight=\"bold\" fill=\"#1f2933\">decisions a second</text>\n\
         <text x=\"624\" y=\"18\" text-anchor=\"end\" fill=\"#3e6fb0\">lease of 200 ms</text>\n\
         <text x=\"530\" y=\"18\" text-anchor=\"end\" fill=\"#7b8794\">without</text>\n",
        36 + 34 * rows.len()
    );
    for (index, (name, leased, without)) in rows.iter().enumerate() {
        let top = 32 + 34 * index;
        svg += &format!(
            "<text x=\"160\" y=\"{}\" text-anchor=\"end\" fill=\"#52606d\">{name}</text>\n",
            top + 16
        );
        for (at, value, colour) in [(top, leased, "#3e6fb0"), (top + 13, without, "#7b8794")] {
            let width = value / most * 390.0;
            svg += &format!(
                "<rect x=\"170\" y=\"{at}\" width=\"{width:.1}\" height=\"11\" fill=\"{colour}\"/>\
                 <text x=\"{:.1}\" y=\"{}\" fill=\"#52606d\">{:.2} M</text>\n",
                176.0 + width,
                at + 10,
                value / 1e6
            );
        }
    }
    svg + "</svg>\n"
}

/// Whether the limit was kept, and how much of it was used from `from` on.
fn kept(case: Case, admitted_us: &[u64], from: u64) -> String {
    if case.quota >= PLENTY {
        return "never reached".into();
    }
    let counted = admitted_us.iter().filter(|us| **us >= from).count() as f64;
    let used = 100.0 * counted / (case.quota * SECONDS) as f64;
    let over: i64 = match case.algorithm {
        "gcra" => {
            // The most by which any span exceeds the rate, less the burst, in millionths of a unit.
            let first = admitted_us.first().copied().unwrap_or(0);
            let (mut level, mut last, mut most) = (0_i64, first, 0_i64);
            for us in admitted_us {
                level = (level - ((us - last) * case.quota) as i64).max(0) + 1_000_000;
                (last, most) = (*us, most.max(level));
            }
            (most - (case.burst * 1_000_000) as i64).div_euclid(1_000_000)
        }
        "sliding_window_log" => {
            let quota = case.quota as usize;
            let ends = admitted_us.iter().enumerate();
            let most = ends.map(|(end, us)| {
                end + 1 - admitted_us.partition_point(|first| *first + 1_000_000 <= *us)
            });
            most.max().unwrap_or(0) as i64 - quota as i64
        }
        _ => {
            let windows = admitted_us.chunk_by(|one, next| one / 1_000_000 == next / 1_000_000);
            let most = windows.map(<[u64]>::len).max().unwrap_or(0);
            most as i64 - case.quota as i64
        }
    };
    let over = over.max(0);
    format!("{over} over, {used:.1} % used")
}

/// The bare minimum: INCR, pipelined like our calls.
fn incr() {
    let server = Server::start();
    let until = Instant::now() + Duration::from_secs(SECONDS);
    let threads: Vec<_> = (0..PROCESSES)
        .map(|_| {
            let client = server.client();
            std::thread::spawn(move || {
                let mut conn = client.get_connection().unwrap();
                let mut pipe = redis::pipe();
                (0..CLIENTS).for_each(|_| _ = pipe.cmd("INCR").arg("all"));
                let mut count = 0;
                while Instant::now() < until {
                    let _: Vec<u64> = pipe.query(&mut conn).unwrap();
                    count += CLIENTS;
                }
                count
            })
        })
        .collect();
    let count: usize = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
    println!("{:<34} {:>9.0}", "Redis' own INCR", count as f64 / SECONDS as f64);
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.first().is_some_and(|word| word == "process") {
        return process(&words[1..]);
    }
    let wanted = |section: &str| {
        let mut sections = words.iter().filter(|word| !word.starts_with('-')).peekable();
        sections.peek().is_none() || sections.any(|word| word == section)
    };
    if wanted("one-key") {
        on_one_key();
    }
    if wanted("shares") {
        shares();
    }
    if wanted("picture") {
        let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
        picture(&folder.join("leases.svg"), case("", "fixed_window", PLENTY, 0, 0));
    }
}

fn case(name: &'static str, algorithm: &'static str, quota: u64, burst: u64, life_ms: u64) -> Case {
    let (keys, processes, demand) = (1, PROCESSES, [0; 3]);
    Case { name, algorithm, quota, burst, life_ms, keys, processes, demand }
}

fn on_one_key() {
    println!("{PROCESSES} processes with {CLIENTS} clients each, one key, one Redis server\n");
    println!(
        "{:<34} {:>9} {:>9} {:>6} {:>7} {:>7}  limit",
        "", "decisions", "calls", "Redis'", "local", "local"
    );
    println!(
        "{:<34} {:>9} {:>9} {:>6} {:>7} {:>7}",
        "", "per s", "per s", "cores", "p50 ns", "p99 ns"
    );
    incr();
    // Never used up.
    one_key(case("fixed_window", "fixed_window", PLENTY, 0, 0));
    one_key(case("gcra", "gcra", 1 << 24, 1 << 24, 0));
    one_key(case("fixed_window, lease 200 ms", "fixed_window", PLENTY, 0, 200));
    one_key(case("gcra, lease 200 ms", "gcra", 1 << 24, 1 << 24, 200));
    // A tenth of the demand or less. A log's rate is W / (W + D) of its quota, so D is short.
    one_key(case("fixed_window 40,000/s, 200 ms", "fixed_window", 40_000, 0, 200));
    one_key(case("gcra 40,000/s, 200 ms", "gcra", 40_000, 40_000, 200));
    one_key(case("log 10,000/s, 10 ms", "sliding_window_log", 10_000, 0, 10));
}

fn shares() {
    println!("\nA limit of 20,000 a second, and 40,000 asked for: what each process got, and the");
    println!("longest time without anything");
    for (name, life_ms) in [("gcra", 0), ("gcra, lease 50 ms", 50), ("gcra, lease 200 ms", 200)] {
        for demand in [[13_333; 3], [33_334, 3_333, 3_333]] {
            shared(Case { demand, ..case(name, "gcra", 20_000, 10_000, life_ms) });
        }
    }
}
