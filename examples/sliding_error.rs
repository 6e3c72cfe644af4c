//! How wrong the two counters of `sliding_window_counter` are on real traffic, decision by
//! decision.
//!
//!     cargo run --example sliding_error -- access.log [more logs in the common format]
//!
//! Each client's requests go through the limiter at the log's own times (and 100 times faster).
//! Requests of the same second are spread over it. A decision is wrong if it differs from the one
//! that follows from the true number of requests admitted in the trailing window.

use std::collections::{BTreeMap, VecDeque};
use std::error::Error;
use std::sync::Arc;

use weir::clock::Clock;
use weir::engine::{EmbeddedSettings, Engine, Settings as Store};
use weir::limit::{Limiter, Scope, Settings, Take};
use weir::plan::{Algorithm, Debt, Limit, OnStoreError, Plan, Rate, SlidingWindowCounter};
use weir::telemetry::Metrics;

const SECOND_US: i64 = 1_000_000;
/// Units and milliseconds. Small enough for the clients of a log to exceed, so that a few per cent
/// are refused.
const LIMITS: [(u64, u64); 4] = [(5, 7_000), (10, 10_000), (20, 60_000), (100, 600_000)];
const SPEEDS: [i64; 2] = [1, 100];

/// The results for a log.
#[derive(Debug, Default)]
pub struct Found {
    /// Requests.
    pub decisions: u64,
    /// Refused, rightly or not.
    pub refused: u64,
    /// Admitted although the window held the quota.
    pub wrongly_admitted: u64,
    /// Refused although it did not.
    pub wrongly_refused: u64,
    /// The sum of |estimate - true count| / true count, and the number of terms.
    pub error: (f64, u64),
    /// The largest number in any trailing window.
    pub most: usize,
}

/// A log's requests: microseconds since 1970 and the client, in order of time.
pub fn requests(log: &str) -> Vec<(i64, String)> {
    let mut all: Vec<(i64, String)> = log
        .lines()
        .filter_map(|line| {
            let client = line.split(' ').next()?;
            let stamp = line.split_once('[')?.1.split_once(']')?.0;
            Some((seconds(stamp)? * SECOND_US, client.to_owned()))
        })
        .collect();
    all.sort_by_key(|(at, _)| *at);
    // A timestamp is a whole second. Requests of the same second are spread over it.
    let mut held: BTreeMap<i64, i64> = BTreeMap::new();
    all.iter().for_each(|(at, _)| *held.entry(*at).or_default() += 1);
    let mut turn: BTreeMap<i64, i64> = BTreeMap::new();
    for (at, _) in &mut all {
        let turn = turn.entry(*at).or_default();
        let of = held.get(at).copied().unwrap_or(1);
        *at += *turn * SECOND_US / of;
        *turn += 1;
    }
    all
}

/// `17/May/2015:10:05:03 +0000` as seconds since 1970. The zone only shifts the whole log.
fn seconds(stamp: &str) -> Option<i64> {
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let mut parts = stamp.split(['/', ':', ' ']);
    let day: i64 = parts.next()?.parse().ok()?;
    let name = parts.next()?;
    let month = MONTHS.iter().position(|month| *month == name)? as i64 + 1;
    let year: i64 = parts.next()?.parse().ok()?;
    let mut clock = parts.map_while(|part| part.parse::<i64>().ok());
    let (hour, minute, second) = (clock.next()?, clock.next()?, clock.next()?);
    // Days from the civil calendar: years begin in March, so that a leap day is the last of its
    // year.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days =
        365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1 - 719_468;
    Some(days * 86_400 + hour * 3_600 + minute * 60 + second)
}

/// Sends a log through the limiter, `speed` times as fast as it was.
///
/// # Errors
/// When the limiter can't be made.
pub async fn replay(
    requests: &[(i64, String)],
    rate: Rate,
    speed: i64,
) -> Result<Found, Box<dyn Error>> {
    let clock = Clock::virtual_at(0);
    let metrics = Metrics::new(1);
    let store = Store::Embedded(EmbeddedSettings::new(100_000));
    let limiter = Limiter::new(
        Settings::default(),
        Arc::new(Engine::build(&store, clock.clone(), &metrics)?),
        clock.clone(),
        metrics,
    );
    let scope = Scope::new("error".into(), "error".into(), OnStoreError::Deny, false);
    let scope = Arc::new(scope);
    let window_us = rate.per_ms as i64 * 1_000;
    let mut admitted: BTreeMap<&str, VecDeque<i64>> = BTreeMap::new();
    let mut found = Found::default();
    for (at, client) in requests {
        let at = at / speed;
        clock.set(at);
        let plan = Arc::new(Plan::new(vec![Limit::new(
            "error",
            client,
            Algorithm::SlidingWindowCounter(SlidingWindowCounter { rate, debt: Debt::None }),
        )])?);
        let truth = admitted.entry(client).or_default();
        while truth.front().is_some_and(|first| *first <= at - window_us) {
            truth.pop_front();
        }
        let (fits, remaining) = match limiter.take(&scope, &plan).await {
            Take::Granted(outcome, _) => {
                (true, outcome.limits.first().map_or(0, |limit| limit.remaining + 1))
            }
            Take::Refused(outcome) => {
                (false, outcome.limits.first().map_or(0, |limit| limit.remaining))
            }
            Take::Unavailable(_) => return Err("the store in memory did not answer".into()),
        };
        let room = (truth.len() as u64) < rate.amount;
        found.decisions += 1;
        found.refused += u64::from(!fits);
        found.wrongly_admitted += u64::from(fits && !room);
        found.wrongly_refused += u64::from(!fits && room);
        if !truth.is_empty() {
            let estimate = rate.amount.saturating_sub(remaining) as f64;
            found.error.0 += (estimate - truth.len() as f64).abs() / truth.len() as f64;
            found.error.1 += 1;
        }
        if fits {
            truth.push_back(at);
            found.most = found.most.max(truth.len());
        }
    }
    Ok(found)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    println!(
        "| log | limit | speed | decisions | refused | wrongly admitted | wrongly refused | wrong | mean error of the count | most in a window |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|");
    for file in std::env::args().skip(1) {
        let requests = requests(&std::fs::read_to_string(&file)?);
        let name = std::path::Path::new(&file)
            .file_name()
            .map_or(file.clone(), |name| name.to_string_lossy().into_owned());
        for (amount, per_ms) in LIMITS {
            for speed in SPEEDS {
                let found = replay(&requests, Rate { amount, per_ms }, speed).await?;
                let Found { decisions, refused, wrongly_admitted, wrongly_refused, error, most } =
                    found;
                let wrong =
                    100.0 * (wrongly_admitted + wrongly_refused) as f64 / decisions.max(1) as f64;
                let mean = 100.0 * error.0 / error.1.max(1) as f64;
                println!(
                    "| {name} | {amount} in {} s | {speed}x | {decisions} | {refused} | {wrongly_admitted} | {wrongly_refused} | {wrong:.2} % | {mean:.1} % | {most} |",
                    per_ms / 1_000
                );
            }
        }
    }
    Ok(())
}
