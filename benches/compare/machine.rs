//! The machine and its load: what a reader must know to judge the figures.

use std::fs;
use std::process::Command;

/// Ticks of all cores since boot: all of them, and those that the hypervisor gave to other guests.
#[derive(Clone, Copy, Debug)]
pub struct Ticks {
    all: f64,
    stolen: f64,
}

impl Ticks {
    pub fn now() -> Result<Self, String> {
        let stat =
            fs::read_to_string("/proc/stat").map_err(|error| format!("/proc/stat: {error}"))?;
        let line = stat.lines().next().unwrap_or_default();
        let ticks: Vec<f64> =
            line.split_whitespace().skip(1).filter_map(|ticks| ticks.parse().ok()).collect();
        // user nice system idle iowait irq softirq steal; the guests' ticks are part of `user`
        // already.
        let stolen =
            ticks.get(7).copied().ok_or_else(|| format!("/proc/stat has no steal: {line}"))?;
        Ok(Self { all: ticks.iter().take(8).sum(), stolen })
    }

    /// The share of time since `earlier` in which a core wanted to run and could not.
    pub fn stolen_since(&self, earlier: Self) -> f64 {
        (self.stolen - earlier.stolen) / (self.all - earlier.all).max(1.0)
    }
}

/// Running or runnable processes, averaged over the last minute.
pub fn load_average() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|number| number.parse().ok()).unwrap_or(f64::NAN)
}

/// Processor, cores, kernel.
pub fn description() -> String {
    let cpus = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpus
        .lines()
        .find_map(|line| line.strip_prefix("model name"))
        .and_then(|rest| rest.split(": ").nth(1));
    let cores = cpus.lines().filter(|line| line.starts_with("processor")).count();
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!("{cores} cores of {}, Linux {}", model.unwrap_or("an unknown processor"), kernel.trim())
}

/// The programs that took part, each with its version.
pub fn versions(weir: &std::path::Path) -> String {
    let weir = weir.to_string_lossy();
    let programs: [(&str, &str); 6] = [
        ("nginx", "-v"),
        ("haproxy", "-v"),
        ("redis-server", "--version"),
        ("wrk", "-v"),
        ("h2load", "--version"),
        (&weir, "--version"),
    ];
    let all: Vec<String> = programs.iter().map(|(program, flag)| version(program, flag)).collect();
    all.join(", ")
}

/// `nginx 1.22.1`: the program and the first word of its output that looks like a version.
fn version(program: &str, flag: &str) -> String {
    let name = program.rsplit('/').next().unwrap_or(program);
    let Ok(output) = Command::new(program).arg(flag).output() else { return format!("no {name}") };
    // Some programs print it to stdout, some to stderr.
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    let words = said.split([' ', '/', '=', '\n']);
    let found = words
        .map(|word| word.trim_start_matches('v'))
        .find(|word| word.starts_with(|c: char| c.is_ascii_digit()) && word.contains('.'));
    format!("{name} {}", found.unwrap_or("of an unknown version"))
}
