//! What Weir does while Redis fails: real clusters whose masters are killed, frozen and cut off,
//! under real proxies with a steady load.
//!
//! Plain `cargo test` runs the short form: every fault once and briefly, judged by counts alone,
//! with deadlines that a busy machine keeps. `make chaos` runs the long form with a release build,
//! judges times as well, and writes `docs/chaos.md`.
//!
//! With `--soak HOURS` it is `make soak`: hours of load with a fault now and then (`soak`).
//!
//! Read next: `rows` (the faults, one file for each family), `stage` (the cluster, the proxies and
//! the upstream of a row), `load` (the steady requests), `relay` and `partition` (delays and
//! silence between Weir and Redis), `report` and `page` (what was required and what was seen).
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    unreachable_pub,
    missing_docs,
    reason = "a test's helpers may fail the test"
)]

#[allow(dead_code, reason = "helpers that only the integration tests need")]
#[path = "../harness/mod.rs"]
mod harness;

mod load;
mod page;
mod partition;
mod relay;
mod report;
mod rows;
mod soak;
mod stage;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use report::{Line, Verdict};
use rows::{ROWS, Row};
use soak::Soak;

/// How the suite runs.
#[derive(Clone, Debug)]
pub struct Run {
    /// Longer faults, and times are judged.
    pub long: bool,
    /// Every random choice derives from it.
    pub seed: u64,
    /// The program under test, if it is not the one that was built with the suite.
    pub weir: Option<PathBuf>,
    /// Another version of it, which one of three proxies is.
    pub beside: Option<PathBuf>,
}

impl Run {
    /// One of two values, by form.
    pub fn pick<T>(&self, short: T, long: T) -> T {
        if self.long { long } else { short }
    }

    /// The random numbers of one row: the same ones whichever rows run besides.
    pub fn rng(&self, row: &str) -> fastrand::Rng {
        let mixed = row
            .bytes()
            .fold(self.seed, |seed, byte| (seed ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
        fastrand::Rng::with_seed(mixed)
    }
}

/// The command line.
struct Arguments {
    run: Run,
    /// Only rows with one of these numbers or names.
    only: Vec<String>,
    page: Option<PathBuf>,
    list: bool,
    /// The hours of a soak, if it is one, with the length of a piece and the file of its state.
    soak: Option<f64>,
    piece: Duration,
    state: PathBuf,
    /// The commit that the program is built from, for the soak's page.
    commit: String,
}

fn main() -> ExitCode {
    let arguments = match arguments(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(error) => {
            eprintln!("chaos: {error}");
            return ExitCode::from(2);
        }
    };
    let chosen: Vec<&Row> = ROWS.iter().filter(|row| row.chosen(&arguments.only)).collect();
    if arguments.list {
        ROWS.iter().for_each(|row| println!("{}: {}", row.number, row.name));
        return ExitCode::SUCCESS;
    }
    if chosen.is_empty() {
        return ExitCode::SUCCESS;
    }
    let run = &arguments.run;
    if let Some(hours) = arguments.soak {
        let Arguments { ref run, piece, state, commit, page, .. } = arguments;
        let met = soak::run(run, &Soak { hours, piece, state, commit, page });
        return if met { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    eprintln!("chaos: the {} form, seed {}", run.pick("short", "long"), run.seed);
    let lines = all(&chosen, run);
    if run.long {
        println!("{}", report::table(&lines));
    }
    // A page with some of the rows would look like one with all of them.
    if let Some(page) = arguments.page.as_ref().filter(|_| arguments.only.is_empty()) {
        std::fs::write(page, page::page(&lines, run)).expect("a page that can be written");
    }
    let missed: Vec<String> =
        lines.iter().filter(|line| line.verdict() == Verdict::Missed).map(Line::text).collect();
    if missed.is_empty() {
        return ExitCode::SUCCESS;
    }
    eprintln!("\nchaos: missed with seed {}:\n{}", run.seed, missed.join("\n"));
    ExitCode::FAILURE
}

/// Runs the rows and returns what each saw: two at a time in the short form, where most of the time
/// is spent waiting for Redis.
fn all(rows: &[&Row], run: &Run) -> Vec<Line> {
    let (next, seen) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    std::thread::scope(|scope| {
        for _ in 0..run.pick(2, 1) {
            scope.spawn(|| {
                while let Some((index, row)) = {
                    let index = next.fetch_add(1, Ordering::SeqCst);
                    rows.get(index).map(|row| (index, row))
                } {
                    let began = Instant::now();
                    let lines = of(row, run);
                    let took = began.elapsed().as_secs_f64();
                    let mut seen = seen.lock().expect("no panic while it is held");
                    eprintln!("chaos: {} {} took {took:.1} s", row.number, row.name);
                    lines.iter().for_each(|line| eprintln!("{}", line.text()));
                    seen.insert(index, lines);
                }
            });
        }
    });
    seen.into_inner().expect("no panic").into_values().flatten().collect()
}

/// Runs a row. One that panics, such as in a helper that waited in vain, is missed.
fn of(row: &Row, run: &Run) -> Vec<Line> {
    catch_unwind(AssertUnwindSafe(|| (row.run)(run))).unwrap_or_else(|panic| {
        let why = panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| panic.downcast_ref::<&str>().copied())
            .unwrap_or("it panicked");
        let mut line = Line::new(row.number, row.name, "the row runs to its end");
        line.judge(false, why.to_owned());
        vec![line]
    })
}

/// Reads the command line. `cargo test` passes the same words to every test program, so names that
/// no row has choose none, and the options of Rust's own test programs are ignored.
fn arguments(words: impl Iterator<Item = String>) -> Result<Arguments, String> {
    let run = Run { long: false, seed: fastrand::u64(..1_000_000), weir: None, beside: None };
    let (piece, state) = (Duration::from_secs(600), PathBuf::from("benches/results/soak.jsonl"));
    let (only, page, list, soak, commit) = (Vec::new(), None, false, None, String::new());
    let mut all = Arguments { run, only, page, list, soak, piece, state, commit };
    let mut words = words.peekable();
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or(format!("{word} needs a value"));
        match word.as_str() {
            "--long" => all.run.long = true,
            "--list" => all.list = true,
            "--seed" => {
                all.run.seed = value()?.parse().map_err(|error| format!("--seed: {error}"))?;
            }
            "--only" => all.only.push(value()?),
            "--page" => all.page = Some(value()?.into()),
            "--soak" => {
                let hours = value()?.parse().map_err(|error| format!("--soak: {error}"))?;
                all.soak = Some(hours);
            }
            "--piece" => {
                let seconds = value()?.parse().map_err(|error| format!("--piece: {error}"))?;
                all.piece = Duration::from_secs(seconds);
            }
            "--state" => all.state = value()?.into(),
            "--commit" => all.commit = value()?,
            "--weir" => all.run.weir = Some(program(&value()?)?),
            "--beside" => all.run.beside = Some(program(&value()?)?),
            // `cargo bench` of everything: nothing of this is a benchmark.
            "--bench" => all.only.push(word),
            "--skip" | "--test-threads" | "--format" | "--color" => drop(value()?),
            option if option.starts_with('-') => {}
            name => all.only.push(name.to_owned()),
        }
    }
    Ok(all)
}

/// A program's path from anywhere: it is started in a folder of its own.
fn program(path: &str) -> Result<PathBuf, String> {
    std::fs::canonicalize(path).map_err(|error| format!("{path}: {error}"))
}
