//! Draws what each algorithm admits of the same traffic, into docs/pictures/. The limiter is the
//! real one, in memory; only its clock is virtual.
//!
//!     cargo run --example pictures
//!
//! The limit is always ten in ten seconds (quota: ten a day; concurrency: five in flight, each for
//! four seconds). The traffic: two a second, which is twice the limit; nothing for a while; ten
//! just before and ten just after the half minute, which is the boundary of two windows;
//! twenty-five at once.

use std::error::Error;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

use weir::clock::Clock;
use weir::engine::{EmbeddedSettings, Engine, Settings as Store};
use weir::limit::{Limiter, Scope, Settings, Take};
use weir::plan::{
    Algorithm, Alignment, Calendar, Concurrency, Debt, FixedWindow, Gcra, LeakyBucket, Limit,
    OnStoreError, Plan, Quota, Rate, SlidingWindowBuckets, SlidingWindowCounter, SlidingWindowLog,
    TimeZone, TokenBucket,
};
use weir::telemetry::Metrics;

/// A second of the picture in the limiter's microseconds. Short, because requests that wait really
/// wait.
const SECOND_US: i64 = 10_000;
/// The same for `quota`, whose ten seconds are a day.
const TENTH_OF_A_DAY_US: i64 = 8_640_000_000;
/// Midnight, and a boundary of all windows that are used here.
const START_US: i64 = 1_767_225_600_000_000;
/// Seconds that are drawn.
const SPAN: f64 = 56.0;
const WINDOW: f64 = 10.0;
const LIMIT: u64 = 10;
const IN_FLIGHT: u64 = 5;
const WORK: f64 = 4.0;

/// A request and its outcome.
struct Sample {
    at: f64,
    /// When it passed, if it did.
    passed: Option<f64>,
}

/// The algorithms, each with its limit.
pub fn algorithms() -> Vec<(&'static str, Algorithm)> {
    let rate = Rate { amount: LIMIT, per_ms: (WINDOW * SECOND_US as f64) as u64 / 1_000 };
    let day = Calendar::Day(TimeZone::utc());
    vec![
        (
            "fixed_window",
            Algorithm::FixedWindow(FixedWindow {
                rate,
                alignment: Alignment::Clock,
                debt: Debt::None,
            }),
        ),
        (
            "sliding_window_counter",
            Algorithm::SlidingWindowCounter(SlidingWindowCounter { rate, debt: Debt::None }),
        ),
        (
            "sliding_window_buckets",
            Algorithm::SlidingWindowBuckets(SlidingWindowBuckets {
                rate,
                buckets: 5,
                debt: Debt::None,
            }),
        ),
        (
            "sliding_window_log",
            Algorithm::SlidingWindowLog(SlidingWindowLog { rate, debt: Debt::None }),
        ),
        (
            "token_bucket",
            Algorithm::TokenBucket(TokenBucket { burst: LIMIT, rate, debt: Debt::None }),
        ),
        ("gcra", Algorithm::Gcra(Gcra { burst: 3, rate, debt: Debt::None })),
        (
            "leaky_bucket",
            Algorithm::LeakyBucket(LeakyBucket { burst: 3, rate, max_delay_ms: rate.per_ms / 2 }),
        ),
        ("concurrency", Algorithm::Concurrency(Concurrency { amount: IN_FLIGHT })),
        (
            "quota",
            Algorithm::Quota(Quota {
                amount: LIMIT,
                calendar: day,
                conditional: true,
                debt: Debt::None,
            }),
        ),
    ]
}

fn traffic() -> Vec<f64> {
    let steady = (0..40).map(|number| f64::from(number) * 0.5);
    let border = (0..20).map(|number| 28.0 + f64::from(number) * 0.2);
    let burst = (0..25).map(|number| 44.0 + f64::from(number) * 0.01);
    steady.chain(border).chain(burst).map(|at| at + 0.25).collect()
}

/// Sends the traffic through one limit.
async fn replay(algorithm: &Algorithm) -> Result<Vec<Sample>, Box<dyn Error>> {
    let unit_us =
        if matches!(algorithm, Algorithm::Quota(_)) { TENTH_OF_A_DAY_US } else { SECOND_US };
    let clock = Clock::virtual_at(START_US);
    let metrics = Metrics::new(1);
    let store = Store::Embedded(EmbeddedSettings::new(1_000));
    let limiter = Limiter::new(
        Settings::default(),
        Arc::new(Engine::build(&store, clock.clone(), &metrics)?),
        clock.clone(),
        metrics,
    );
    let scope = Scope::new("picture".into(), "picture".into(), OnStoreError::Deny, false);
    let (scope, plan) = (
        Arc::new(scope),
        Arc::new(Plan::new(vec![Limit::new("picture", "client", algorithm.clone())])?),
    );
    let (mut samples, mut under_way) = (Vec::new(), Vec::new());
    for at in traffic() {
        under_way.retain(|(until, _)| *until > at);
        clock.set(START_US + (at * unit_us as f64) as i64);
        let passed = match limiter.take(&scope, &plan).await {
            Take::Granted(outcome, grant) => {
                under_way.push((at + WORK, grant));
                Some(at + outcome.delay_us() as f64 / unit_us as f64)
            }
            Take::Refused(_) => None,
            Take::Unavailable(_) => return Err("the store in memory did not answer".into()),
        };
        samples.push(Sample { at, passed });
    }
    Ok(samples)
}

/// The picture of one algorithm.
///
/// # Errors
/// When the limiter can't be made.
pub async fn draw(name: &str, algorithm: &Algorithm) -> Result<String, Box<dyn Error>> {
    let samples = replay(algorithm).await?;
    let in_flight = matches!(algorithm, Algorithm::Concurrency(_));
    let (limit, span) = if in_flight { (IN_FLIGHT, WORK) } else { (LIMIT, WINDOW) };
    let x = |at: f64| 56.0 + at * 12.0;
    let y = |count: usize| 118.0 - count as f64 * 4.0;
    let mut passes: Vec<f64> = samples.iter().filter_map(|sample| sample.passed).collect();
    passes.sort_by(f64::total_cmp);
    let mut svg = String::new();
    let end = x(SPAN);
    writeln!(
        svg,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {:.0} 176\" font-family=\"sans-serif\" font-size=\"11\">",
        end + 12.0
    )?;
    writeln!(svg, "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>")?;
    let counted = if in_flight { "in flight" } else { "passed in the last period" };
    writeln!(
        svg,
        "<text x=\"56\" y=\"16\" font-size=\"13\" font-weight=\"bold\" fill=\"#1f2933\">{name}</text>"
    )?;
    writeln!(
        svg,
        "<text x=\"{end:.0}\" y=\"16\" text-anchor=\"end\" fill=\"#52606d\">{counted}: {} at most, the limit is {limit}</text>",
        most(&passes, span)
    )?;
    // The limit, the boundaries of windows, and how many passed in the period before each instant.
    for border in 0..=(SPAN / WINDOW) as u32 {
        let at = x(f64::from(border) * WINDOW);
        writeln!(
            svg,
            "<path d=\"M{at:.1} 24V150\" stroke=\"#e4e7eb\"/><text x=\"{at:.1}\" y=\"170\" text-anchor=\"middle\" fill=\"#7b8794\">{}</text>",
            label(algorithm, border)
        )?;
    }
    writeln!(
        svg,
        "<path d=\"M56 {0:.1}H{end:.1}\" stroke=\"#d64545\" stroke-dasharray=\"4 3\"/>",
        y(limit as usize)
    )?;
    writeln!(
        svg,
        "<text x=\"50\" y=\"{:.1}\" text-anchor=\"end\" fill=\"#d64545\">{limit}</text>",
        y(limit as usize) + 4.0
    )?;
    writeln!(
        svg,
        "<path d=\"{}\" fill=\"none\" stroke=\"#3e6fb0\" stroke-width=\"1.5\"/>",
        staircase(&passes, span, x, y)
    )?;
    for Sample { at, passed } in &samples {
        let at_x = x(*at);
        match passed {
            None => writeln!(svg, "<path d=\"M{at_x:.1} 140V150\" stroke=\"#d64545\"/>")?,
            Some(passed) => {
                if passed > at {
                    writeln!(
                        svg,
                        "<path d=\"M{at_x:.1} 139L{:.1} 136\" stroke=\"#e9b949\"/>",
                        x(*passed)
                    )?;
                }
                writeln!(
                    svg,
                    "<path d=\"M{0:.1} 126V136\" stroke=\"#2f8f5b\" stroke-width=\"1.5\"/>",
                    x(*passed)
                )?;
            }
        }
    }
    writeln!(svg, "<text x=\"50\" y=\"135\" text-anchor=\"end\" fill=\"#2f8f5b\">passed</text>")?;
    writeln!(svg, "<text x=\"50\" y=\"149\" text-anchor=\"end\" fill=\"#d64545\">429</text>")?;
    writeln!(svg, "</svg>")?;
    Ok(svg)
}

fn label(algorithm: &Algorithm, border: u32) -> String {
    if matches!(algorithm, Algorithm::Quota(_)) {
        format!("day {}", border + 1)
    } else {
        format!("{} s", border * 10)
    }
}

/// How many of `passes` are in the span that ends at `at` (inclusive).
fn within(passes: &[f64], span: f64, at: f64) -> usize {
    passes.iter().filter(|passed| **passed <= at && **passed > at - span).count()
}

fn most(passes: &[f64], span: f64) -> usize {
    passes.iter().map(|at| within(passes, span, *at)).max().unwrap_or(0)
}

fn staircase(
    passes: &[f64],
    span: f64,
    x: impl Fn(f64) -> f64,
    y: impl Fn(usize) -> f64,
) -> String {
    let mut turns: Vec<f64> =
        passes.iter().flat_map(|at| [*at, at + span]).filter(|at| *at <= SPAN).collect();
    turns.sort_by(f64::total_cmp);
    let mut path = format!("M56 {:.1}", y(0));
    for at in turns {
        // Writing to a String can't fail.
        let _ = write!(path, "H{:.1}V{:.1}", x(at), y(within(passes, span, at)));
    }
    let _ = write!(path, "H{:.1}", x(SPAN));
    path
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/pictures");
    std::fs::create_dir_all(&folder)?;
    for (name, algorithm) in algorithms() {
        std::fs::write(folder.join(format!("{name}.svg")), draw(name, &algorithm).await?)?;
    }
    Ok(())
}
