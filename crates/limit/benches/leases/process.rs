//! One process: its clients, and what they saw.

use std::cell::RefCell;
use std::io::Write as _;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use weir_clock::Clock;
use weir_limit::engine::{Engine, RedisMode, RedisSettings};
use weir_limit::limit::{Limiter, Scope, Settings, Take};
use weir_limit::plan::{OnStoreError, Plan};
use weir_telemetry::Metrics;

use crate::case::Case;

/// Requests in flight of each process.
pub(crate) const CLIENTS: usize = 256;

/// What a process saw.
#[derive(Default)]
struct Seen {
    decisions: u64,
    /// When each request was admitted, in microseconds since 1970.
    admitted_us: Vec<u64>,
    /// How long the decisions took that needed nothing but what was at hand, in nanoseconds.
    local_ns: Vec<u32>,
}

pub(crate) fn now_us() -> u64 {
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

/// The CPU time that this process uses between the two times, in microseconds. It has one thread.
async fn cpu_us_between((from, to): (u64, u64)) -> u64 {
    let at = async |us: u64| {
        tokio::time::sleep(Duration::from_micros(us.saturating_sub(now_us()))).await;
        let text = std::fs::read_to_string("/proc/self/schedstat").unwrap();
        text.split(' ').next().unwrap().parse::<u64>().unwrap() / 1_000
    };
    let before = at(from).await;
    at(to).await - before
}

/// Runs the clients of one process, and writes down what they saw.
pub(crate) fn process(words: &[String]) {
    let nodes: Vec<String> = words[0].split(',').map(|port| format!("127.0.0.1:{port}")).collect();
    let number: usize = words[1].parse().unwrap();
    let times: (u64, u64) = (words[2].parse().unwrap(), words[3].parse().unwrap());
    let case = Case::of_arguments(&words[4..]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let local = tokio::task::LocalSet::new();
    let seen = Rc::new(RefCell::new(Seen::default()));
    let metrics = Metrics::new(1);
    let mode = if nodes.len() > 1 { RedisMode::Cluster } else { RedisMode::Single };
    let redis = RedisSettings::new(nodes, mode);
    let redis = RedisSettings { deadline: Duration::from_secs(5), ..redis };
    let engine = Engine::build(&redis.into(), Clock::system(), &metrics).unwrap();
    let settings = Settings {
        deadline: Duration::from_secs(5),
        instance: format!("p{number}"),
        ..Settings::default()
    };
    let limiter = Rc::new(Limiter::new(settings, Arc::new(engine), Clock::system(), metrics));
    let (plans, demand) = (Rc::new(case.plans()), case.demand[number]);
    let cpu_us = local.block_on(&runtime, async {
        let cpu_us = tokio::task::spawn_local(cpu_us_between(times));
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
        cpu_us.await.unwrap()
    });
    let mut seen = seen.borrow_mut();
    seen.local_ns.sort_unstable();
    let at = |part: f64| {
        let index = (seen.local_ns.len() as f64 * part) as usize;
        seen.local_ns.get(index).copied().unwrap_or(0)
    };
    let mut out = std::io::stdout().lock();
    writeln!(out, "{} {} {} {cpu_us}", seen.decisions, at(0.5), at(0.99)).unwrap();
    let bytes: Vec<u8> = seen.admitted_us.iter().flat_map(|us| us.to_le_bytes()).collect();
    out.write_all(&bytes).unwrap();
}
