//! What is known about this process as a whole: its CPU time, memory, open files and start, and
//! what its log has lost. Read when somebody scrapes the metrics, and at no other time. Knows no
//! connection and no request.
//!
//! What a system does not report is left out: without `/proc` (macOS), the memory, the number of
//! open files and the start.

use std::fs;

use rustix::param::clock_ticks_per_second;
use rustix::process::{Resource, getrlimit};

use crate::clock;
use crate::telemetry::{self, Name, names};

/// Calls `tell` with each number that the system has.
pub(super) fn measure(tell: &mut dyn FnMut(Name, f64)) {
    tell(names::LOG_LINES_DROPPED, float(telemetry::log_lines_dropped()));
    if let Some(used) = clock::process_cpu() {
        tell(names::PROCESS_CPU, used.as_secs_f64());
    }
    let status = fs::read_to_string("/proc/self/status").ok();
    if let Some(bytes) = status.as_deref().and_then(resident_bytes) {
        tell(names::PROCESS_MEMORY, bytes);
    }
    // The folder itself is open while it is read.
    if let Some(open) = fs::read_dir("/proc/self/fd").ok().map(|files| files.count()) {
        tell(names::PROCESS_FILES, float(open.saturating_sub(1)));
    }
    if let Some(most) = getrlimit(Resource::Nofile).current {
        tell(names::PROCESS_FILES_MAX, float(most));
    }
    let (own, system) = (fs::read_to_string("/proc/self/stat"), fs::read_to_string("/proc/stat"));
    if let (Ok(own), Ok(system)) = (own, system)
        && let Some(start_s) = start_s(&own, &system, clock_ticks_per_second())
    {
        tell(names::PROCESS_START, start_s);
    }
}

/// The line `VmRSS:   12345 kB` of `/proc/self/status`.
fn resident_bytes(status: &str) -> Option<f64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(float(kib.checked_mul(1_024)?))
}

/// When the process started, in Unix seconds: the 22nd number of its line (proc_pid_stat(5)), in
/// ticks since the system did, whose time is in `/proc/stat`.
fn start_s(own: &str, system: &str, ticks_per_second: u64) -> Option<f64> {
    // The second field is the program's name in parentheses, which may contain anything.
    let (_, after_name) = own.rsplit_once(')')?;
    let ticks: u64 = after_name.split_ascii_whitespace().nth(22 - 3)?.parse().ok()?;
    let boot_s: u64 = system.lines().find_map(|line| line.strip_prefix("btime "))?.parse().ok()?;
    Some(float(boot_s) + float(ticks) / float(ticks_per_second.max(1)))
}

#[expect(clippy::cast_precision_loss, reason = "numbers for a graph: a double is the format")]
fn float(number: impl TryInto<u64>) -> f64 {
    number.try_into().unwrap_or(u64::MAX) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_tells_plausible_numbers_of_this_process() {
        let mut found = Vec::new();
        measure(&mut |name, value| found.push((name.name, value)));
        let of =
            |wanted: Name| found.iter().find(|(name, _)| *name == wanted.name).map(|(_, n)| *n);
        assert!(of(names::PROCESS_CPU).unwrap() > 0.0, "{found:?}");
        assert!(of(names::PROCESS_FILES_MAX).unwrap() >= 3.0, "{found:?}");
        if cfg!(target_os = "linux") {
            assert!(of(names::PROCESS_MEMORY).unwrap() > 1e6, "{found:?}");
            assert!(of(names::PROCESS_FILES).unwrap() >= 3.0, "{found:?}");
            #[expect(clippy::cast_precision_loss, reason = "seconds")]
            let now_s = clock::Clock::system().wall_us() as f64 / 1e6;
            let age_s = now_s - of(names::PROCESS_START).unwrap();
            assert!((-2.0..86_400.0).contains(&age_s), "{age_s}");
        }
    }

    #[test]
    fn a_name_with_spaces_and_parentheses_does_not_shift_the_fields() {
        let own = "7 (we (x) ir) S 1 7 7 0 -1 4194560 9 0 0 0 1 2 0 0 20 0 5 0 250 1000 10\n";
        assert_eq!(start_s(own, "cpu 1 2\nbtime 1000\nprocesses 5\n", 100), Some(1_002.5));
        assert_eq!(start_s(own, "cpu 1 2\n", 100), None);
        assert_eq!(resident_bytes("Name:\tweir\nVmRSS:\t    2048 kB\n"), Some(2_097_152.0));
        assert_eq!(resident_bytes("Name:\tweir\n"), None);
    }
}
