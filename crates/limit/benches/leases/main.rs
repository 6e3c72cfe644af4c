//! What a limiter on Redis decides in a second: on one key that everybody shares, with and without
//! leases, and on many keys over one to six masters.
//!
//!     cargo bench --workspace --bench leases [one-key] [shares] [scale] [picture]
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

mod case;
mod chart;
mod process;
mod run;
mod scale;
mod servers;

use std::time::{Duration, Instant};

use case::{Case, PLENTY, PROCESSES, case};
use chart::picture;
use process::{CLIENTS, process};
use run::{SECONDS, run};
use servers::Servers;

/// One key for all, with a line of what came of it.
fn one_key(case: Case) {
    let (result, from) = run(case, 1);
    println!(
        "{:<34} {:>9.0} {:>9.0} {:>6.2} {:>7} {:>7}  {}",
        case.name,
        result.decisions,
        result.calls,
        result.redis_cores.iter().sum::<f64>(),
        result.local_ns[0],
        result.local_ns[1],
        kept(case, &result.admitted_us, from),
    );
}

/// How a limit at half of the demand is shared: what each process got of what it asked for, and the
/// longest time in which it got nothing.
fn shared(case: Case) {
    let (result, from) = run(case, 1);
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
    let server = Servers::start(1);
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
    if wanted("scale") {
        scale::scale();
    }
    if wanted("picture") {
        let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
        picture(&folder.join("leases.svg"), case("", "fixed_window", PLENTY, 0, 0));
    }
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
