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
}
