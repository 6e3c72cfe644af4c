//! Runs a case: starts servers and processes, and puts together what they saw.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::case::Case;
use crate::process::now_us;
use crate::servers::Servers;

/// What is measured, after as much to warm up.
pub(crate) const SECONDS: u64 = 4;

/// What all processes saw together.
pub(crate) struct Outcome {
    pub(crate) decisions: f64,
    /// Scripts that ran in a second, on all servers.
    pub(crate) calls: f64,
    /// Bytes in a second, to and from all servers.
    pub(crate) bytes: f64,
    /// Cores that the servers used, each, and those of all processes together.
    pub(crate) redis_cores: Vec<f64>,
    pub(crate) process_cores: f64,
    pub(crate) admitted_us: Vec<u64>,
    /// The same for each process.
    pub(crate) each_admitted_us: Vec<Vec<u64>>,
    /// The median and the 99th percentile, of the process where they are largest.
    pub(crate) local_ns: [u32; 2],
}

/// Runs the case on so many masters; returns what all saw, and when it began.
pub(crate) fn run(case: Case, masters: usize) -> (Outcome, u64) {
    let servers = Servers::start(masters);
    // They begin at a full second, which is the start of a window.
    let from = now_us() / 1_000_000 + 3;
    let (from, to) = (from * 1_000_000, (from + SECONDS) * 1_000_000);
    let children: Vec<Child> = (0..case.processes)
        .map(|number| {
            Command::new(std::env::current_exe().unwrap())
                .args(["process", &servers.ports(), &number.to_string()])
                .args([from.to_string(), to.to_string()])
                .args(case.arguments())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    let wait = |until_us: u64| {
        std::thread::sleep(Duration::from_micros(until_us.saturating_sub(now_us())));
    };
    wait(from);
    let before = servers.used();
    wait(to);
    let after = servers.used();
    let each = || before.iter().zip(&after);
    let per_second = |from: f64, to: f64| (to - from) / SECONDS as f64;
    let mut result = Outcome {
        decisions: 0.0,
        calls: each().map(|(from, to)| per_second(from.calls, to.calls)).sum(),
        bytes: each().map(|(from, to)| per_second(from.bytes, to.bytes)).sum(),
        redis_cores: each().map(|(from, to)| per_second(from.cpu_s, to.cpu_s)).collect(),
        process_cores: 0.0,
        admitted_us: Vec::new(),
        each_admitted_us: Vec::new(),
        local_ns: [0, 0],
    };
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success());
        let end = output.stdout.iter().position(|byte| *byte == b'\n').unwrap();
        let (line, admitted) = output.stdout.split_at(end);
        let numbers: Vec<u64> =
            String::from_utf8_lossy(line).split(' ').map(|word| word.parse().unwrap()).collect();
        result.decisions += numbers[0] as f64 / SECONDS as f64;
        result.process_cores += numbers[3] as f64 / 1e6 / SECONDS as f64;
        result.local_ns[0] = result.local_ns[0].max(numbers[1] as u32);
        result.local_ns[1] = result.local_ns[1].max(numbers[2] as u32);
        let admitted = admitted[1..].as_chunks::<8>().0.iter().map(|us| u64::from_le_bytes(*us));
        let mut admitted: Vec<u64> = admitted.filter(|us| *us < to).collect();
        admitted.sort_unstable();
        result.admitted_us.extend(&admitted);
        result.each_admitted_us.push(admitted);
    }
    result.admitted_us.sort_unstable();
    (result, from)
}
