//! What a decision costs Redis: each algorithm compared with the plain script that an article would
//! show for it, on one real server, pipelined.
//!
//!     cargo bench --bench redis
//!
//! Measures the time inside EVALSHA as Redis counts it (INFO commandstats), in interleaved rounds,
//! and takes the median. See benches/README.md.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a benchmark may fail loudly"
)]

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use weir::clock::Clock;
use weir::engine::{Engine, RedisMode, RedisSettings};
use weir::limit::{Limiter, Scope, Settings, Take};
use weir::plan::{
    Algorithm, Alignment, Calendar, Concurrency, Debt, FixedWindow, Gcra, LeakyBucket, Limit,
    OnStoreError, Plan, Quota, Rate, SlidingWindowBuckets, SlidingWindowCounter, SlidingWindowLog,
    TimeZone, TokenBucket,
};
use weir::telemetry::Metrics;

const ROUNDS: usize = 7;
/// Decisions per case and round.
const DECISIONS: usize = 20_000;
/// Calls in flight: the pipeline.
const IN_FLIGHT: usize = 64;
const KEYS: usize = 100;
/// Never reached in the cases that admit.
const PLENTY: u64 = 1 << 31;

/// Counts with INCR, and sets the expiry with the first.
const WINDOW: &str = "local count = redis.call('INCR', KEYS[1])
if count == 1 then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
if count > tonumber(ARGV[1]) then return 0 end
return 1";

/// A bucket in a hash. The time comes from Redis, as in ours.
const BUCKET: &str = "local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
local capacity, rate = tonumber(ARGV[1]), tonumber(ARGV[1]) * 1000 / tonumber(ARGV[2])
local state = redis.call('HMGET', KEYS[1], 'tokens', 'last')
local tokens, last = tonumber(state[1]) or capacity, tonumber(state[2]) or now
tokens = math.min(capacity, tokens + math.max(0, now - last) * rate)
local allowed = tokens >= 1
if allowed then tokens = tokens - 1 end
redis.call('HSET', KEYS[1], 'tokens', tokens, 'last', now)
redis.call('PEXPIRE', KEYS[1], ARGV[2] * 2)
return allowed and 1 or 0";

/// Two counters, with the previous window's weighted.
const TWO_WINDOWS: &str = "local time = redis.call('TIME')
local now, length = time[1] * 1000 + math.floor(time[2] / 1000), tonumber(ARGV[2])
local window = math.floor(now / length)
local this, last = KEYS[1] .. window, KEYS[1] .. (window - 1)
local current, previous = tonumber(redis.call('GET', this) or 0), tonumber(redis.call('GET', last) or 0)
if previous * (1 - (now % length) / length) + current >= tonumber(ARGV[1]) then return 0 end
redis.call('INCR', this)
redis.call('PEXPIRE', this, length * 2)
return 1";

/// A member for each request.
const LOG: &str = "local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
redis.call('ZREMRANGEBYSCORE', KEYS[1], 0, string.format('%.0f', now - ARGV[2] * 1000))
if redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[1]) then return 0 end
redis.call('ZADD', KEYS[1], string.format('%.0f', now), ARGV[3])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 1";

struct Server {
    child: Child,
    port: u16,
}

impl Server {
    fn start() -> Self {
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let child = Command::new("redis-server")
            .args([
                "--port",
                &port.to_string(),
                "--bind",
                "127.0.0.1",
                "--save",
                "",
                "--appendonly",
                "no",
            ])
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

    /// Microseconds in EVALSHA, and the number of calls, since the last reset.
    fn evalsha(&self) -> (f64, f64) {
        let info: String = redis::cmd("INFO")
            .arg("commandstats")
            .query(&mut self.client().get_connection().unwrap())
            .unwrap();
        let line = info
            .lines()
            .find_map(|line| line.strip_prefix("cmdstat_evalsha:"))
            .expect("scripts ran");
        let of = |name: &str| {
            line.split(',')
                .find_map(|part| part.strip_prefix(name))
                .unwrap()
                .parse::<f64>()
                .unwrap()
        };
        (of("usec="), of("calls="))
    }

    fn forget(&self) {
        let mut conn = self.client().get_connection().unwrap();
        let () = redis::cmd("FLUSHALL").query(&mut conn).unwrap();
        let () = redis::cmd("CONFIG").arg("RESETSTAT").query(&mut conn).unwrap();
    }

    /// The memory of one key with its value.
    fn memory(&self) -> f64 {
        let mut conn = self.client().get_connection().unwrap();
        let keys: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut conn).unwrap();
        let bytes = |key: &String| {
            redis::cmd("MEMORY")
                .arg("USAGE")
                .arg(key)
                .arg("SAMPLES")
                .arg(0)
                .query::<f64>(&mut conn)
                .unwrap()
        };
        let all: Vec<f64> = keys.iter().map(bytes).collect();
        all.iter().sum::<f64>() / all.len().max(1) as f64
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Both fail only if it has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

enum Script {
    Ours(Box<Algorithm>),
    Article(&'static str, u64, u64),
}

struct Case {
    name: &'static str,
    admits: bool,
    script: Script,
}

fn cases() -> Vec<Case> {
    let (mut cases, debt) = (Vec::new(), Debt::None);
    let minute = |amount| Rate { amount, per_ms: 60_000 };
    for (admits, quota) in [(true, PLENTY / 64), (false, 1)] {
        let ours =
            |name, algorithm| Case { name, admits, script: Script::Ours(Box::new(algorithm)) };
        let article = |name, script, quota, per_ms| Case {
            name,
            admits,
            script: Script::Article(script, quota, per_ms),
        };
        // A log that is steadily full holds as many units as arrive in its period. Ours and the
        // article's hold the same number.
        let log = Rate {
            amount: if admits { 10_000 } else { 1 },
            per_ms: if admits { 1_000 } else { 60_000 },
        };
        let day = Calendar::Day(TimeZone::utc());
        cases.extend([
            article("article: INCR, PEXPIRE", WINDOW, quota, 60_000),
            ours(
                "fixed_window",
                Algorithm::FixedWindow(FixedWindow {
                    rate: minute(quota),
                    alignment: Alignment::Clock,
                    debt,
                }),
            ),
            ours(
                "quota",
                Algorithm::Quota(Quota { amount: quota, calendar: day, conditional: true, debt }),
            ),
            article("article: HMGET, HSET, PEXPIRE bucket", BUCKET, quota, 60_000),
            ours(
                "token_bucket",
                Algorithm::TokenBucket(TokenBucket { burst: quota, rate: minute(quota), debt }),
            ),
            ours("gcra", Algorithm::Gcra(Gcra { burst: quota, rate: minute(quota), debt })),
            ours(
                "leaky_bucket",
                Algorithm::LeakyBucket(LeakyBucket {
                    burst: quota,
                    rate: minute(quota),
                    max_delay_ms: 0,
                }),
            ),
            article("article: two GETs, INCR, PEXPIRE", TWO_WINDOWS, quota, 60_000),
            ours(
                "sliding_window_counter",
                Algorithm::SlidingWindowCounter(SlidingWindowCounter { rate: minute(quota), debt }),
            ),
            ours(
                "sliding_window_buckets",
                Algorithm::SlidingWindowBuckets(SlidingWindowBuckets {
                    rate: minute(quota),
                    buckets: 60,
                    debt,
                }),
            ),
            article("article: ZSET log", LOG, log.amount, log.per_ms),
            ours(
                "sliding_window_log",
                Algorithm::SlidingWindowLog(SlidingWindowLog { rate: log, debt }),
            ),
            ours(
                "concurrency",
                Algorithm::Concurrency(Concurrency { amount: if admits { 10_000 } else { 1 } }),
            ),
        ]);
    }
    cases
}

/// Makes decisions, and returns how many were admitted. Uses a runtime of its own; when it ends,
/// leases are no longer renewed.
fn decide(server: &Server, case: &Case, decisions: usize) -> usize {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        match &case.script {
            Script::Ours(algorithm) => ours(server, algorithm, decisions).await,
            Script::Article(script, quota, per_ms) => {
                article(server, script, *quota, *per_ms, decisions)
            }
        }
    })
}

async fn ours(server: &Server, algorithm: &Algorithm, decisions: usize) -> usize {
    let settings = RedisSettings {
        deadline: Duration::from_secs(5),
        ..RedisSettings::new(vec![format!("127.0.0.1:{}", server.port)], RedisMode::Single)
    };
    let metrics = Metrics::new(1);
    let engine = Arc::new(Engine::build(&settings.into(), Clock::system(), &metrics).unwrap());
    let limiter = Arc::new(Limiter::new(
        Settings { deadline: Duration::from_secs(5), ..Settings::default() },
        engine,
        Clock::system(),
        metrics,
    ));
    let scope = Arc::new(Scope::new("bench".into(), "bench".into(), OnStoreError::Deny, false));
    let plan = |key: usize| {
        Arc::new(Plan::new(vec![Limit::new("bench", key.to_string(), algorithm.clone())]).unwrap())
    };
    let plans: Arc<Vec<_>> = Arc::new((0..KEYS).map(plan).collect());
    let asking = (0..IN_FLIGHT).map(|lane| {
        let (limiter, scope, plans) =
            (Arc::clone(&limiter), Arc::clone(&scope), Arc::clone(&plans));
        tokio::spawn(async move {
            let (mut admitted, mut held) = (0, Vec::new());
            for turn in (lane..decisions).step_by(IN_FLIGHT) {
                match limiter.take(&scope, &plans[turn % KEYS]).await {
                    Take::Granted(_, grant) => {
                        admitted += 1;
                        // Leases are held until everything is measured.
                        held.push(grant);
                    }
                    Take::Refused(_) => {}
                    Take::Unavailable(_) => panic!("Redis did not answer"),
                }
            }
            // Forgotten, so that nothing is given back: that would be measured together with the
            // takes.
            held.into_iter().for_each(std::mem::forget);
            admitted
        })
    });
    let mut admitted = 0;
    for asking in asking.collect::<Vec<_>>() {
        admitted += asking.await.unwrap();
    }
    admitted
}

fn article(
    server: &Server,
    script: &'static str,
    quota: u64,
    per_ms: u64,
    decisions: usize,
) -> usize {
    let mut conn = server.client().get_connection().unwrap();
    let sha: String = redis::cmd("SCRIPT").arg("LOAD").arg(script).query(&mut conn).unwrap();
    let mut admitted = 0;
    for turns in (0..decisions).collect::<Vec<_>>().chunks(IN_FLIGHT) {
        let mut calls = redis::pipe();
        for turn in turns {
            // As long as ours, which are digests.
            let key = turn % KEYS;
            let key = format!("weir:1:{{{key:032x}}}:bench/bench/article:{key:032x}");
            let call = calls.cmd("EVALSHA").arg(&sha).arg(1).arg(key).arg(quota).arg(per_ms);
            call.arg(format!("{turn:016}"));
        }
        admitted += calls.query::<Vec<usize>>(&mut conn).unwrap().iter().sum::<usize>();
    }
    admitted
}

fn main() {
    let server = Server::start();
    let cases = cases();
    let mut found: Vec<(Vec<f64>, f64)> = cases.iter().map(|_| (Vec::new(), 0.0)).collect();
    for round in 0..ROUNDS {
        for (case, (times, bytes)) in cases.iter().zip(&mut found) {
            server.forget();
            // Warm-up: afterwards the script is loaded and each key exists.
            decide(&server, case, KEYS * 2);
            let (before_us, before) = server.evalsha();
            let admitted = decide(&server, case, DECISIONS);
            let (after_us, after) = server.evalsha();
            assert_eq!(
                admitted > 0,
                case.admits,
                "{}: {admitted} of {DECISIONS} admitted",
                case.name
            );
            assert!(
                !case.admits || admitted == DECISIONS,
                "{}: {admitted} of {DECISIONS} admitted",
                case.name
            );
            times.push((after_us - before_us) / (after - before));
            *bytes = server.memory();
        }
        eprintln!("round {} of {ROUNDS}", round + 1);
    }
    println!("| | outcome | us in Redis | to the article's | bytes a key |\n|---|---|---|---|---|");
    let mut theirs = f64::NAN;
    for (case, (times, bytes)) in cases.iter().zip(&mut found) {
        times.sort_by(f64::total_cmp);
        let median = times[times.len() / 2];
        let outcome = if case.admits { "admitted" } else { "refused" };
        let ratio = match case.script {
            Script::Article(..) => {
                theirs = median;
                String::new()
            }
            Script::Ours(_) => format!("{:.2}", median / theirs),
        };
        println!("| {} | {outcome} | {median:.2} | {ratio} | {bytes:.0} |", case.name);
    }
}
