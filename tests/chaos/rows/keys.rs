//! Rows 9 and 10: what many keys leave behind, and what one refused key costs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::Run;
use crate::harness::client::{Client, storm};
use crate::report::{Line, s};
use crate::stage::{Route, Setting, Stage, WORKERS};

/// The algorithms whose counters a request has, with how many windows of idleness each of them may
/// be kept for according to its description in `lua/`, in quarters.
const PRECISE: [(&str, u32); 3] = [("fixed_window", 8), ("gcra", 8), ("token_bucket", 8)];
const SLIDING: [(&str, u32); 2] = [("sliding_window_log", 9), ("sliding_window_counter", 12)];
const CLIENTS: usize = 16;
/// A lifetime is rounded up by at most a second, and Redis looks for expired keys ten times a
/// second.
const SLACK: Duration = Duration::from_secs(2);
/// Calls a second that an attacker may cost.
const CALLS_A_SECOND: f64 = 10.0;
const QUOTA: u64 = 5;

pub fn idle(run: &Run) -> Vec<Line> {
    vec![left_behind(run, "9a", &PRECISE), left_behind(run, "9b", &SLIDING)]
}

/// Makes many keys, and waits until all are gone.
fn left_behind(run: &Run, number: &'static str, algorithms: &[(&str, u32)]) -> Line {
    let names: Vec<&str> = algorithms.iter().map(|(name, _)| *name).collect();
    let quarters = algorithms.iter().map(|(_, quarters)| *quarters).max().unwrap_or(0);
    let window = run.pick(Duration::from_secs(2), Duration::from_secs(20));
    let limit = |name: &&str| {
        format!("algorithm = \"{name}\", quota = 10, period = \"{}s\"", window.as_secs())
    };
    let route = Route { name: "all", limits: names.iter().map(limit).collect(), more: "" };
    let setting =
        Setting { replicas: false, routes: &[route], ..Setting::new(Duration::from_secs(5)) };
    let stage = Stage::start(run, &setting);
    let each = run.pick(10_000, 100_000) / names.len() / CLIENTS;
    let keys = each * names.len() * CLIENTS;
    let mut line = Line::new(
        number,
        format!(
            "{keys} keys of {} with windows of {}, then no request",
            names.join(", "),
            s(window)
        ),
        "after two windows, and at most two seconds for rounding, the store is empty",
    );
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let tally = runtime.block_on(storm(&stage.addresses(), CLIENTS, each, |client, turn| {
        vec![("x-tenant", format!("{client} {turn}"))]
    }));
    let filled = Instant::now();
    let most = stage.cluster.keys();
    line.judge(
        tally.count(200) == (CLIENTS * each) as u64 && tally.failed.is_empty(),
        format!("{} requests admitted, {most} keys then", tally.count(200)),
    );
    let (mut left, mut after) = (most, filled);
    while left > 0 && filled.elapsed() < window * quarters / 4 + SLACK {
        std::thread::sleep(Duration::from_millis(20));
        left = stage.cluster.keys();
        after = Instant::now();
    }
    let idle = after - filled;
    line.judge(left == 0, format!("{left} keys {} after the last request", s(idle)));
    if quarters > 8 {
        line.by_design(
            idle <= 2 * window + SLACK,
            format!("their algorithms keep them for up to {} windows", f64::from(quarters) / 4.0),
        );
    }
    line
}

pub fn attacker(run: &Run) -> Vec<Line> {
    let lasting = run.pick(Duration::from_secs(2), Duration::from_secs(20));
    let route = Route {
        name: "small",
        limits: vec![format!("algorithm = \"fixed_window\", quota = {QUOTA}, period = \"400d\"")],
        more: "",
    };
    let setting = Setting {
        replicas: false,
        routes: &[route],
        ..Setting::new(run.pick(Duration::from_secs(5), Duration::from_millis(50)))
    };
    let mut line = Line::new(
        "10",
        format!(
            "a client at full speed for {} on one refused key, at all proxies with {WORKERS} workers each",
            s(lasting)
        ),
        "all refused; Redis gets fewer than ten calls a second",
    );
    let stage = Stage::start(run, &setting);
    let calls = || -> u64 {
        let masters = stage.cluster.nodes.iter();
        masters
            .map(|node| {
                let mut connection = node.connect();
                connection.attempts("evalsha") + connection.attempts("eval")
            })
            .sum()
    };
    let (refused, other, before, took) = attack(&stage, lasting, &calls);
    let made = calls() - before;
    let rate = made as f64 / took.as_secs_f64();
    line.judge(
        other == 0 && refused > 0,
        format!("{refused} refused in {}, {other} answered otherwise", s(took)),
    );
    // A renewal that is late on a busy machine costs some calls; without renewals there would be
    // one for each request.
    let most = run.pick(100.0, CALLS_A_SECOND);
    line.judge(rate < most, format!("{made} calls, {rate:.1} a second"));
    vec![line]
}

/// Uses the limit up, and then sends as fast as it can. Returns how many requests were refused and
/// how many not, Redis' calls before, and how long it took.
fn attack(stage: &Stage, lasting: Duration, calls: &impl Fn() -> u64) -> (u64, u64, u64, Duration) {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let tenant = [("x-tenant", "attacker")];
    runtime.block_on(async {
        let mut clients = Vec::new();
        for address in stage.addresses().iter().cycle().take(CLIENTS) {
            let mut client = Client::connect(*address).await.expect("a connection");
            // Each worker is refused once.
            crate::harness::eventually_async("the client is refused", async || {
                let reply =
                    client.get("/small", &tenant).await.map_err(|error| error.to_string())?;
                if reply.status == 429 { Ok(()) } else { Err(format!("{reply:?}")) }
            })
            .await;
            clients.push(client);
        }
        let (before, began) = (calls(), Instant::now());
        let done = Arc::new(AtomicBool::new(false));
        let (refused, other) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let mut tasks = tokio::task::JoinSet::new();
        for mut client in clients {
            let (done, refused, other) =
                (Arc::clone(&done), Arc::clone(&refused), Arc::clone(&other));
            tasks.spawn(async move {
                while !done.load(Ordering::Relaxed) {
                    let reply = client.get("/small", &tenant).await;
                    let count = match reply {
                        Ok(reply) if reply.status == 429 => &refused,
                        _ => &other,
                    };
                    count.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        tokio::time::sleep(lasting).await;
        done.store(true, Ordering::Relaxed);
        tasks.join_all().await;
        let (refused, other) = (refused.load(Ordering::Relaxed), other.load(Ordering::Relaxed));
        (refused, other, before, began.elapsed())
    })
}
