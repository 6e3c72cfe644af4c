//! Limits in words, for operators.

use std::fmt::Write as _;
use std::time::Duration;

use super::Algorithm;

/// Exact to the microsecond, in the largest unit that is whole, or with decimals: `1.5 s`, `2 min`.
#[must_use]
pub fn duration_text(duration: Duration) -> String {
    let us = duration.as_micros();
    let units: [(u128, &str); 3] =
        [(86_400_000_000, "d"), (3_600_000_000, "h"), (60_000_000, "min")];
    let whole = units.into_iter().find(|(unit, _)| us > 0 && us.is_multiple_of(*unit));
    if let Some((unit, name)) = whole {
        return format!("{} {name}", us / unit);
    }
    let (value, name) = match us {
        1..1_000_000 => (duration.as_secs_f64() * 1e3, "ms"),
        _ => (duration.as_secs_f64(), "s"),
    };
    let text = format!("{value:.6}");
    format!("{} {name}", text.trim_end_matches('0').trim_end_matches('.'))
}

/// How long to wait, for a person: up to two minutes as [`duration_text`], and beyond that rounded
/// up, in the two largest units: `4 min 7 s`, `23 h 59 min`, `1 d`.
#[must_use]
pub fn wait_text(wait: Duration) -> String {
    const UNITS: [(u64, &str); 4] = [(86_400, "d"), (3_600, "h"), (60, "min"), (1, "s")];
    if wait <= Duration::from_secs(120) {
        return duration_text(wait);
    }
    let mut seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
    // Rounded up to the second of its two units, which may make it a whole one of the first.
    let first = UNITS.iter().position(|(unit, _)| seconds >= *unit).unwrap_or(0);
    let least = UNITS.get(first + 1).map_or(1, |(unit, _)| *unit);
    seconds = seconds.next_multiple_of(least);
    let mut parts = Vec::new();
    for (unit, name) in UNITS {
        if seconds >= unit {
            parts.push(format!("{} {name}", seconds / unit));
            seconds %= unit;
        }
    }
    parts.join(" ")
}

/// `fixed_window, 5 in 1 min`.
#[must_use]
pub fn algorithm_text(algorithm: &Algorithm) -> String {
    let mut text = algorithm.name().to_owned();
    match (algorithm.rate(), algorithm.amount()) {
        (Some(rate), _) => {
            let period = duration_text(Duration::from_millis(rate.per_ms));
            let _ = write!(text, ", {} in {period}", rate.amount);
            let burst = algorithm.capacity().filter(|most| *most != rate.amount);
            let _ = burst.map(|burst| write!(text, ", at most {burst} at once"));
        }
        (None, Some(amount)) => {
            let _ = write!(text, ", {amount}");
        }
        (None, None) => {}
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_exact_and_short() {
        let texts = [
            (0, "0 s"),
            (60_000_000, "1 min"),
            (90_000_000, "90 s"),
            (1_500_000, "1.5 s"),
            (10_000, "10 ms"),
            (1, "0.001 ms"),
        ];
        for (us, text) in texts {
            assert_eq!(duration_text(Duration::from_micros(us)), text);
        }
    }

    #[test]
    fn long_waits_are_rounded_up() {
        let texts = [
            (1_500, "1.5 s"),
            (120_000, "2 min"),
            (120_001, "2 min 1 s"),
            (247_000, "4 min 7 s"),
            (3_599_001, "1 h"),
            (3_600_001, "1 h 1 min"),
            (86_340_000, "23 h 59 min"),
            (86_391_380, "1 d"),
            (90_000_000, "1 d 1 h"),
            (863_999_000, "10 d"),
        ];
        for (ms, text) in texts {
            assert_eq!(wait_text(Duration::from_millis(ms)), text, "{ms} ms");
        }
    }
}
