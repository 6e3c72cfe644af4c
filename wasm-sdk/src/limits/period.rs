//! Parses durations such as "250ms", "10s", "1m", "1h30m" and "7d". Kept small, because it is part
//! of every policy's module.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::config::kind;
use crate::mistakes::message;

/// The expected form of a period.
pub(super) const PERIOD: &str =
    "a duration from \"1ms\" to \"400d\", such as \"10s\", \"1m\" or \"1h30m\"";
/// The expected form of a delay.
pub(super) const DELAY: &str = "a duration from \"0ms\" to \"400d\", such as \"500ms\" or \"2s\"";

/// A duration, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Period {
    pub(super) ms: u64,
}

impl Period {
    fn parse(text: &str) -> Option<Self> {
        let mut rest = text;
        let mut ms: u64 = 0;
        let mut smallest = u64::MAX;
        while !rest.is_empty() {
            let (digits, after) = rest.split_at(rest.find(|next: char| !next.is_ascii_digit())?);
            let (unit, after) = after
                .split_at(after.find(|next: char| next.is_ascii_digit()).unwrap_or(after.len()));
            let unit = match unit.trim() {
                "ms" => 1,
                "s" => 1_000,
                "m" | "min" => 60_000,
                "h" => 3_600_000,
                "d" => 86_400_000,
                _ => return None,
            };
            // Units must descend: "30m1h" and "1s1s" are probably typing errors.
            if unit >= smallest {
                return None;
            }
            smallest = unit;
            ms = ms.checked_add(digits.parse::<u64>().ok()?.checked_mul(unit)?)?;
            rest = after;
        }
        (!text.is_empty()).then_some(Self { ms })
    }
}

/// Reads a `period`.
pub(super) fn period<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Period>, D::Error> {
    read(&Value::deserialize(deserializer)?, PERIOD).map(Some).map_err(D::Error::custom)
}

/// Reads a `max_delay`.
pub(super) fn delay<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Period>, D::Error> {
    read(&Value::deserialize(deserializer)?, DELAY).map(Some).map_err(D::Error::custom)
}

fn read(value: &Value, expected: &str) -> Result<Period, String> {
    match value {
        Value::String(text) => {
            Period::parse(text).ok_or_else(|| message(format_args!("{text:?}"), expected))
        }
        Value::Number(number) if number.is_u64() => Err(message(
            number,
            format_args!("{expected}: it has a unit, as in \"{number}s\" or \"{number}ms\""),
        )),
        other => Err(message(kind(other), expected)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read() {
        for (text, ms) in [
            ("250ms", 250),
            ("10s", 10_000),
            ("1m", 60_000),
            ("1h30m", 5_400_000),
            ("1d 12h", 129_600_000),
            ("0s", 0),
        ] {
            assert_eq!(Period::parse(text), Some(Period { ms }), "{text}");
        }
    }

    #[test]
    fn invalid_durations_are_refused() {
        for text in [
            "",
            "1",
            "s",
            "1x",
            "-1s",
            "1.5s",
            "30m1h",
            "1s1s",
            " 1s",
            "99999999999999999999s",
            "999999999999999d",
        ] {
            assert_eq!(Period::parse(text), None, "{text}");
        }
    }
}
