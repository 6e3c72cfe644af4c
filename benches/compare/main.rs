//! `make bench`: Weir compared with nginx, HAProxy and nginx + Lua + Redis, in interleaved rounds,
//! each proxy alone on one core. benches/README.md explains the figures.
//!
//! In reading order: `cases` is what is measured, as data. `stage` runs one case. `proxies` and
//! `conf/` configure the proxies. `load` and `reading` put load on them and read the results.
//! `process` reads CPU time and memory. `figures`, `table`, `picture` and `machine` write the
//! report, `profile` reports where the time goes. Upstream, Redis and certificates are those of the
//! integration tests, or similar.
//!
//! The environment variables ROUNDS, SECONDS_EACH, CASES, PROXY_CORE, LOAD_CORE, WEIR, RECORD and
//! PROFILE control it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    unreachable_pub,
    reason = "not part of the product"
)]

mod cases;
mod figures;
mod load;
mod machine;
mod picture;
mod process;
mod profile;
mod proxies;
mod reading;
mod stage;
mod table;

#[path = "../../tests/harness/mod.rs"]
#[allow(dead_code, reason = "the tests use the rest")]
mod harness;

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::atomic::Ordering;

use cases::Case;
use figures::Row;
use stage::{Settings, Stage};
use table::Circumstances;

fn main() -> ExitCode {
    // `cargo test --benches` starts benchmarks too, without this argument. A measurement of minutes
    // is not a test.
    if !env::args().any(|argument| argument == "--bench") {
        println!("nothing is measured without --bench: `make bench`");
        return ExitCode::SUCCESS;
    }
    give_up_on_signals();
    match bench() {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("bench: {why}");
            ExitCode::FAILURE
        }
    }
}

fn bench() -> Result<(), String> {
    let words: Vec<String> = env::var("CASES")
        .unwrap_or_default()
        .split([' ', ','])
        .filter(|word| !word.is_empty())
        .map(str::to_owned)
        .collect();
    let cases = cases::chosen(&words)?;
    let (rounds, seconds_each): (u32, u32) = (setting("ROUNDS", 5)?, setting("SECONDS_EACH", 2)?);
    if rounds == 0 || seconds_each == 0 {
        return Err("ROUNDS and SECONDS_EACH are 1 at least".into());
    }
    let record = env::var("RECORD").is_ok_and(|value| value == "yes");
    let profile = env::var("PROFILE").is_ok_and(|value| value == "yes");
    if record && !profile && !words.is_empty() {
        return Err("RECORD=yes records all cases: leave CASES out".into());
    }
    // The binary that cargo gives to a benchmark is built with the tests' dependencies, with other
    // features than the shipped one.
    let weir = env::var_os("WEIR")
        .map(PathBuf::from)
        .ok_or("WEIR: the binary to measure; `make bench` builds it and says which")?;
    let settings = Settings {
        proxy_core: setting("PROXY_CORE", 1)?,
        load_core: setting("LOAD_CORE", 0)?,
        weir: weir.clone(),
    };
    if settings.proxy_core == settings.load_core {
        return Err("PROXY_CORE and LOAD_CORE must be two cores".into());
    }

    let (load_before, ticks_before) = (machine::load_average(), machine::Ticks::now()?);
    let stage = Stage::set(settings, &cases)?;
    if profile {
        let report = profile::run(&stage, &cases, seconds_each)?;
        println!("{report}");
        return if record { into_readme("profile", &report) } else { Ok(()) };
    }
    let rows = measure(&stage, cases, rounds, seconds_each)?;
    drop(stage);

    let stolen = machine::Ticks::now()?.stolen_since(ticks_before);
    let about = Circumstances {
        machine: machine::description(),
        versions: machine::versions(&weir),
        rounds,
        seconds_each,
        load_before,
        stolen,
    };
    write(&rows, &about, record)
}

/// Runs each case once per round, so that a slow minute of the machine affects all of them.
fn measure(
    stage: &Stage,
    cases: Vec<Case>,
    rounds: u32,
    seconds_each: u32,
) -> Result<Vec<Row>, String> {
    let mut rows: Vec<Row> =
        cases.into_iter().map(|case| Row { case, rounds: Vec::new() }).collect();
    for round in 1..=rounds {
        for row in &mut rows {
            let name = row.case.name();
            let figure =
                stage.run(&row.case, seconds_each).map_err(|why| format!("{name}: {why}"))?;
            eprintln!(
                "round {round} of {rounds}: {name}: {:.1} us ({:.1} user, {:.1} kernel), {:.0} requests/s",
                figure.cpu_us(),
                figure.user_us,
                figure.kernel_us,
                figure.requests_a_second
            );
            row.rounds.push(figure);
        }
    }
    Ok(rows)
}

/// Prints the tables, and writes them, the picture and every single figure to
/// `target/bench-compare`, and with `record` also into the repository.
fn write(rows: &[Row], about: &Circumstances, record: bool) -> Result<(), String> {
    let report = table::report(rows, about);
    println!("{report}");
    let picture = picture::draw(
        rows,
        &format!(
            "{}; medians of {} rounds of {} s",
            about.machine, about.rounds, about.seconds_each
        ),
    );
    let mut folders = vec![Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("bench-compare")];
    if record {
        folders.push(benches().join("results"));
        into_readme(
            "figures",
            &format!("![The figures as bars](results/picture.svg)\n\n{report}"),
        )?;
    }
    for folder in folders {
        fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        for (name, text) in
            [("table.md", &report), ("picture.svg", &picture), ("rounds.tsv", &table::raw(rows))]
        {
            fs::write(folder.join(name), text).map_err(|error| format!("{name}: {error}"))?;
        }
        eprintln!("written: table.md, picture.svg and rounds.tsv in {}", folder.display());
    }
    Ok(())
}

fn benches() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("benches")
}

fn into_readme(name: &str, text: &str) -> Result<(), String> {
    let path = benches().join("README.md");
    let failed = |why: String| format!("{}: {why}", path.display());
    let readme = fs::read_to_string(&path).map_err(|error| failed(error.to_string()))?;
    let new = table::put_into(&readme, name, text).map_err(failed)?;
    fs::write(&path, new).map_err(|error| failed(error.to_string()))
}

fn setting<T: FromStr>(name: &str, default: T) -> Result<T, String> {
    match env::var(name) {
        Err(_) => Ok(default),
        Ok(text) => text.parse().map_err(|_| format!("{name}={text}: expected a whole number")),
    }
}

/// Makes the benchmark, on a signal, still stop what it started and removes its folder.
fn give_up_on_signals() {
    use tokio::signal::unix::{SignalKind, signal};
    std::thread::spawn(|| {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let mut interrupt = signal(SignalKind::interrupt()).expect("a signal's handler");
            let mut terminate = signal(SignalKind::terminate()).expect("a signal's handler");
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            load::INTERRUPTED.store(true, Ordering::Relaxed);
        });
    });
}
