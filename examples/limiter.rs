//! The limiter without the proxy: a worker that sends at most 100 mails an hour, whoever else sends with it.
//!
//!     cargo run --example limiter                                 counted in this process
//!     cargo run --example limiter -- --redis 127.0.0.1:6379       counted on Redis, by all processes that say so together
//!
//! Three rooms are enough: `plan` says what is asked for, `limit` asks for it, `engine` counts. None of them knows HTTP.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use weir::clock::Clock;
use weir::engine::{EmbeddedSettings, Engine, RedisMode, RedisSettings, Settings as Store};
use weir::limit::{Ending, Limiter, Scope, Settings, Take};
use weir::plan::{Algorithm, Alignment, Fallback, Limit, Plan, Rate, Refund};
use weir::telemetry::Metrics;

/// What came of a worker's outbox.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Mails that went out: these are what the limit counts.
    pub sent: usize,
    /// Mails that the server did not take.
    pub failed: usize,
    /// How long the first mail that was not tried has to wait.
    pub wait: Option<Duration>,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let store = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => in_memory(),
        ["--redis", address] => on_redis(address),
        _ => return Err("usage: limiter [--redis HOST:PORT]".into()),
    };
    let outbox: Vec<String> = (0..105).map(|number| format!("customer-{number}@example.org")).collect();
    println!("{:?}", work(&store, &outbox).await?);
    Ok(())
}

/// Counters that end with this process.
pub fn in_memory() -> Store {
    Store::Embedded(EmbeddedSettings { keys_max: 1_000 })
}

/// Counters on the Redis server at `address`, shared by all who name it.
pub fn on_redis(address: &str) -> Store {
    let (nodes, key_prefix) = (vec![address.to_owned()], "mail".to_owned());
    let deadline = Duration::from_millis(250);
    Store::Redis(RedisSettings { nodes, mode: RedisMode::Single, username: None, password: None, key_prefix, deadline })
}

/// Sends what the limit lets through.
pub async fn work(store: &Store, outbox: &[String]) -> Result<Report, Box<dyn Error>> {
    let metrics = Metrics::new(1);
    let engine = Arc::new(Engine::build(store, Clock::system(), &metrics)?);
    let limiter = Limiter::new(Settings { deadline: Duration::from_millis(250), ..Settings::default() }, engine, metrics);

    // Whose counters these are, and what to do when the store can't be reached: rather send nothing than too much.
    let scope = Arc::new(Scope { name: "mail".into(), policy: "mail".into(), on_store_error: Fallback::Deny, limit_decides: false });
    // One counter for the whole company; a key for each customer would give each an hour's allowance. What was not sent is given back.
    let hour = Algorithm::FixedWindow { rate: Rate { amount: 100, per_ms: 3_600_000 }, alignment: Alignment::FirstRequest };
    let plan = Arc::new(Plan::new(vec![Limit { refund: Refund::Unsent, ..Limit::new("hourly", "everybody", hour) }])?);

    let mut report = Report::default();
    for address in outbox {
        match limiter.take(&scope, &plan).await {
            Take::Granted(_, grant) => {
                let sent = send(address);
                grant.settle(if sent { Ending::Completed } else { Ending::Unsent }, &[]);
                *(if sent { &mut report.sent } else { &mut report.failed }) += 1;
            }
            Take::Refused(outcome) => {
                report.wait = outcome.retry_after_us(plan.limits()).map(Duration::from_micros);
                break;
            }
            Take::Unavailable => return Err("the store can't be reached".into()),
        }
    }
    // On Redis, what is given back is on its way yet.
    limiter.drain(Duration::from_secs(1)).await;
    Ok(report)
}

/// Stands for a mail server, which knows nobody called `nobody`.
fn send(address: &str) -> bool {
    !address.starts_with("nobody@")
}
