//! What more masters and more processes bring, on keys that are spread over all of them: what
//! docs/scale.md reckons with.

use crate::case::{Case, PLENTY, PROCESSES, case};
use crate::run::run;

const KEYS: u64 = 10_000;
const MASTERS_MAX: usize = 6;

pub(crate) fn scale() {
    println!("\n{KEYS} keys, each as often as another; cores are those of this machine");
    println!(
        "{:<28} {:>7} {:>9} {:>10} {:>9} {:>9} {:>9} {:>6} {:>8}",
        "", "masters", "processes", "decisions", "us Redis", "us ours", "bytes", "cores", "busiest"
    );
    println!(
        "{:<28} {:>7} {:>9} {:>10} {:>9} {:>9} {:>9} {:>6} {:>8}",
        "", "", "", "per s", "each", "each", "each", "used", "master"
    );
    for (name, algorithm) in [("fixed_window", "fixed_window"), ("gcra", "gcra")] {
        let quota = if algorithm == "gcra" { 1 << 24 } else { PLENTY };
        let many = Case { keys: KEYS, ..case(name, algorithm, quota, quota.min(1 << 24), 0) };
        for masters in 1..=MASTERS_MAX {
            row(many, masters);
        }
        for processes in 1..PROCESSES {
            row(Case { processes, ..many }, 3);
        }
    }
    // Limits with tags of their own, on three masters. Few enough that each is asked for often.
    for tags in [1, 2, 3] {
        let name = ["gcra, one tag", "gcra, two tags", "gcra, three tags"][tags as usize - 1];
        let quota = 1 << 24;
        row(Case { keys: 100, tags, ..case(name, "gcra", quota, quota, 0) }, 3);
    }
    // One key on one master, as an order of magnitude beside them.
    row(case("fixed_window, 1 key, leased", "fixed_window", PLENTY, 0, 200), 1);
}

fn row(case: Case, masters: usize) {
    let (seen, _) = run(case, masters);
    let redis: f64 = seen.redis_cores.iter().sum();
    let busiest = seen.redis_cores.iter().copied().fold(0.0, f64::max);
    println!(
        "{:<28} {masters:>7} {:>9} {:>10.0} {:>9.2} {:>9.2} {:>9.0} {:>6.2} {busiest:>8.2}",
        case.name,
        case.processes,
        seen.decisions,
        redis * 1e6 / seen.decisions,
        seen.process_cores * 1e6 / seen.decisions,
        seen.bytes / seen.decisions,
        redis + seen.process_cores,
    );
}
