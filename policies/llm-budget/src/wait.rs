//! Reads `read_on`: a duration such as "30s". The SDK keeps its own parser to itself.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

/// The longest that the proxy reads a reply on, in milliseconds: ten minutes.
const WAIT_MS_MAX: u64 = 600_000;
const EXPECTED: &str = "a duration from \"0s\" to \"10m\", such as \"30s\" or \"1m30s\"";

/// A duration, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wait {
    pub(crate) ms: u64,
}

impl Wait {
    fn parse(text: &str) -> Option<Self> {
        let mut rest = text;
        let mut ms: u64 = 0;
        let mut smallest = u64::MAX;
        while !rest.is_empty() {
            let (digits, after) = rest.split_at(rest.find(|next: char| !next.is_ascii_digit())?);
            let end = after.find(|next: char| next.is_ascii_digit()).unwrap_or(after.len());
            let (unit, after) = after.split_at(end);
            let unit_ms = match unit.trim() {
                "ms" => 1,
                "s" => 1_000,
                "m" | "min" => 60_000,
                _ => return None,
            };
            // Units descend, as in the limits' periods: "30s1m" is probably a typing error.
            if unit_ms >= smallest {
                return None;
            }
            smallest = unit_ms;
            ms = ms.checked_add(digits.parse::<u64>().ok()?.checked_mul(unit_ms)?)?;
            rest = after;
        }
        (!text.is_empty() && ms <= WAIT_MS_MAX).then_some(Self { ms })
    }
}

impl<'de> Deserialize<'de> for Wait {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = serde_json::Value::deserialize(deserializer)?;
        let wait = value.as_str().and_then(Self::parse);
        wait.ok_or_else(|| D::Error::custom(format_args!("found {value}, expected {EXPECTED}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read() {
        for (text, ms) in [
            ("0s", 0),
            ("250ms", 250),
            ("30s", 30_000),
            ("1m 30s", 90_000),
            ("2min", 120_000),
            ("10m", 600_000),
        ] {
            assert_eq!(Wait::parse(text), Some(Wait { ms }), "{text}");
        }
    }

    #[test]
    fn what_is_no_duration_or_too_long_is_refused() {
        for text in [
            "",
            "30",
            "s",
            "-1s",
            "1.5s",
            "30s1m",
            "1s1s",
            "1d",
            "1h",
            "10m1ms",
            "99999999999999999999s",
        ] {
            assert_eq!(Wait::parse(text), None, "{text}");
        }
    }
}
