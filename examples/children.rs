//! Draws what three children of a limit get of it, into docs/pictures/. The limiter is the real
//! one, in memory; only its clock is virtual.
//!
//!     cargo run --example children
//!
//! The limit is 100 a second. Each child asks for 150 a second while it is active, and is sure of
//! 40, 20 and 10. First one is active, then two, then all, and then the first one stops.

use std::error::Error;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

use weir::clock::Clock;
use weir::engine::{EmbeddedSettings, Engine, Settings as Store};
use weir::limit::{Limiter, Scope, Settings, Take};
use weir::plan::{Algorithm, Debt, Gcra, Limit, OnStoreError, Plan, Rate, Role};
use weir::telemetry::Metrics;

const START_US: i64 = 1_767_225_600_000_000;
const SECOND_US: i64 = 1_000_000;
/// Seconds that are drawn.
const SPAN: u32 = 60;
/// What all have together, in a second.
pub const WHOLE: u64 = 100;
/// Requests of an active child in a second, on average.
const DEMAND: f64 = 150.0;

/// A child: what it is sure of in a second, when it is active, and its colour.
pub struct Child {
    name: &'static str,
    /// Requests in a second that it is sure of.
    pub assured: u64,
    /// The seconds in which it asks.
    pub active: std::ops::Range<u32>,
    colour: &'static str,
}

/// The children.
pub const CHILDREN: [Child; 3] = [
    Child { name: "a", assured: 40, active: 0..45, colour: "#3e6fb0" },
    Child { name: "b", assured: 20, active: 15..60, colour: "#2f8f5b" },
    Child { name: "c", assured: 10, active: 30..60, colour: "#c77c11" },
];

fn plan(child: &Child) -> Result<Arc<Plan>, Box<dyn Error>> {
    let limit = |name: &str, key: &str, amount, role| {
        // A tenth of a second at once.
        let rate = Rate { amount, per_ms: 1_000 };
        let gcra = Gcra { burst: amount / 10, rate, debt: Debt::None };
        let limit = Limit::new(name, key, Algorithm::Gcra(gcra));
        Limit { tag: Some("whole".into()), role, ..limit }
    };
    Ok(Arc::new(Plan::new(vec![
        limit("child", child.name, WHOLE, Role::Child { assured: 1, parent: 2 }),
        limit("child.assured", child.name, child.assured, Role::Assured),
        limit("whole", "whole", WHOLE, Role::Parent),
    ])?))
}

/// When requests come, in microseconds, and whose they are: at random, the same in each run.
fn arrivals() -> Vec<(i64, usize)> {
    let mut random = fastrand::Rng::with_seed(7);
    let mut all = Vec::new();
    for (index, child) in CHILDREN.iter().enumerate() {
        let [from, to] = [child.active.start, child.active.end].map(f64::from);
        let mut at = from;
        loop {
            at -= (1.0 - random.f64()).ln() / DEMAND;
            if at >= to {
                break;
            }
            all.push(((at * SECOND_US as f64) as i64, index));
        }
    }
    all.sort_unstable();
    all
}

/// How many requests of each child passed in each second.
///
/// # Errors
/// When the limiter can't be made.
pub async fn passed() -> Result<Vec<[u64; 3]>, Box<dyn Error>> {
    let clock = Clock::virtual_at(START_US);
    let metrics = Metrics::new(1);
    let store = Store::Embedded(EmbeddedSettings::new(1_000));
    let engine = Arc::new(Engine::build(&store, clock.clone(), &metrics)?);
    let limiter = Limiter::new(Settings::default(), engine, clock.clone(), metrics);
    let scope = Scope::new("picture".into(), "picture".into(), OnStoreError::Deny, false);
    let scope = Arc::new(scope);
    let plans = CHILDREN.iter().map(plan).collect::<Result<Vec<_>, _>>()?;
    let mut seconds = vec![[0; 3]; SPAN as usize];
    for (at_us, index) in arrivals() {
        clock.set(START_US + at_us);
        let (Some(plan), second) = (plans.get(index), at_us / SECOND_US) else { continue };
        let count = seconds.get_mut(second as usize).and_then(|counts| counts.get_mut(index));
        if let (Some(count), Take::Granted(_, _)) = (count, limiter.take(&scope, plan).await) {
            *count += 1;
        }
    }
    Ok(seconds)
}

/// The picture.
///
/// # Errors
/// When the limiter can't be made.
pub async fn draw() -> Result<String, Box<dyn Error>> {
    let seconds = passed().await?;
    let x = |at: f64| 56.0 + at * 11.2;
    let y = |count: f64| 166.0 - count * 1.2;
    let end = x(f64::from(SPAN));
    let mut svg = String::new();
    writeln!(
        svg,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {:.0} 196\" font-family=\"sans-serif\" font-size=\"11\">",
        end + 12.0
    )?;
    writeln!(svg, "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>")?;
    writeln!(
        svg,
        "<text x=\"56\" y=\"16\" font-size=\"13\" font-weight=\"bold\" fill=\"#1f2933\">requests that pass, a second</text>"
    )?;
    for count in (0..=120).step_by(20) {
        writeln!(
            svg,
            "<path d=\"M56 {0:.1}H{end:.1}\" stroke=\"#e4e7eb\"/><text x=\"50\" y=\"{1:.1}\" text-anchor=\"end\" fill=\"#7b8794\">{count}</text>",
            y(f64::from(count)),
            y(f64::from(count)) + 4.0
        )?;
    }
    for at in (0..=SPAN).step_by(15) {
        writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"186\" text-anchor=\"middle\" fill=\"#7b8794\">{at} s</text>",
            x(f64::from(at))
        )?;
    }
    let total: Vec<u64> = seconds.iter().map(|counts| counts.iter().sum()).collect();
    writeln!(
        svg,
        "<path d=\"{}\" fill=\"none\" stroke=\"#7b8794\" stroke-dasharray=\"4 3\"/>",
        steps(total.into_iter(), x, y)
    )?;
    for (index, child) in CHILDREN.iter().enumerate() {
        let counts = seconds.iter().filter_map(|counts| counts.get(index).copied());
        writeln!(
            svg,
            "<path d=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"1.5\"/>",
            steps(counts, x, y),
            child.colour
        )?;
        writeln!(
            svg,
            "<text x=\"{:.0}\" y=\"16\" text-anchor=\"end\" fill=\"{}\">{}: {} assured</text>",
            end - f64::from(2 - index as u32) * 90.0,
            child.colour,
            child.name,
            child.assured
        )?;
    }
    writeln!(svg, "</svg>")?;
    Ok(svg)
}

fn steps(
    counts: impl Iterator<Item = u64>,
    x: impl Fn(f64) -> f64,
    y: impl Fn(f64) -> f64,
) -> String {
    let mut path = String::new();
    for (second, count) in counts.enumerate() {
        let (from, to, height) = (x(second as f64), x(second as f64 + 1.0), y(count as f64));
        let how = if second == 0 { format!("M{from:.1} ") } else { "V".to_owned() };
        // Writing to a String can't fail.
        let _ = write!(path, "{how}{height:.1}H{to:.1}");
    }
    path
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/pictures");
    std::fs::write(folder.join("children.svg"), draw().await?)?;
    Ok(())
}
