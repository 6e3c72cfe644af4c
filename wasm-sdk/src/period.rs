//! Durations as operators write them: "250ms", "10s", "1m", "1h30m" and "7d". Kept small, because
//! it is part of every policy's module.

use std::time::Duration;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use crate::Json;
use crate::mistakes::message;

/// Each unit with its milliseconds, the largest first.
const UNITS: [(&str, u64); 5] =
    [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];
/// Examples in messages: the first two that are within the bounds.
const EXAMPLES: [(&str, u64); 5] = [
    ("30s", 30_000),
    ("1m30s", 90_000),
    ("250ms", 250),
    ("12h", 43_200_000),
    ("30d", 2_592_000_000),
];

/// A duration from `MIN_MS` to `MAX_MS` milliseconds, written as `"30s"` or `"1h30m"`. Use it as
/// the type of a setting.
///
/// ```
/// use weir_policy::Period;
///
/// #[derive(serde::Deserialize)]
/// struct Config {
///     /// How long to wait: up to ten minutes.
///     wait: Period<0, 600_000>,
/// }
///
/// let config: Config = serde_json::from_str(r#"{"wait": "1m30s"}"#).unwrap();
/// assert_eq!(config.wait.ms(), 90_000);
/// let wrong = serde_json::from_str::<Config>(r#"{"wait": "1h"}"#).err().unwrap().to_string();
/// assert!(wrong.starts_with(r#"found "1h", expected a duration from "0s" to "10m", such as "30s""#));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Period<const MIN_MS: u64, const MAX_MS: u64>(u64);

impl<const MIN_MS: u64, const MAX_MS: u64> Period<MIN_MS, MAX_MS> {
    /// This many milliseconds, or the bound that is nearest to them: for a setting's default.
    #[must_use]
    pub const fn from_ms(ms: u64) -> Self {
        Self(if ms < MIN_MS {
            MIN_MS
        } else if ms > MAX_MS {
            MAX_MS
        } else {
            ms
        })
    }

    /// Its milliseconds.
    #[must_use]
    pub const fn ms(self) -> u64 {
        self.0
    }

    /// The same as a [`Duration`].
    #[must_use]
    pub const fn duration(self) -> Duration {
        Duration::from_millis(self.0)
    }

    fn expected() -> String {
        let within = |example: &&(&str, u64)| (MIN_MS..=MAX_MS).contains(&example.1);
        let examples: Vec<String> =
            EXAMPLES.iter().filter(within).take(2).map(|(text, _)| format!("\"{text}\"")).collect();
        let such_as = if examples.is_empty() { "" } else { ", such as " };
        let (min, max) = (written(MIN_MS), written(MAX_MS));
        format!("a duration from \"{min}\" to \"{max}\"{such_as}{}", examples.join(" or "))
    }
}

impl<'de, const MIN_MS: u64, const MAX_MS: u64> Deserialize<'de> for Period<MIN_MS, MAX_MS> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Json::deserialize(deserializer)?;
        let ms = read(&value, &Self::expected()).map_err(D::Error::custom)?;
        if (MIN_MS..=MAX_MS).contains(&ms) {
            return Ok(Self(ms));
        }
        Err(D::Error::custom(message(&value, &Self::expected())))
    }
}

/// The milliseconds of a duration that is written in a configuration.
pub(crate) fn read(value: &Json<'_>, expected: &str) -> Result<u64, String> {
    if let Some(text) = value.as_str() {
        return parse(&text).ok_or_else(|| message(&format_args!("{text:?}"), &expected));
    }
    Err(match value.as_u64() {
        Some(number) => {
            let unit = format_args!("it has a unit, as in \"{number}s\" or \"{number}ms\"");
            message(&number, &format_args!("{expected}: {unit}"))
        }
        None => message(&value.kind_text(), &expected),
    })
}

fn parse(text: &str) -> Option<u64> {
    let mut rest = text;
    let mut ms: u64 = 0;
    let mut smallest = u64::MAX;
    while !rest.is_empty() {
        let (digits, after) = rest.split_at(rest.find(|next: char| !next.is_ascii_digit())?);
        let end = after.find(|next: char| next.is_ascii_digit()).unwrap_or(after.len());
        let (unit, after) = after.split_at(end);
        let unit = if unit.trim() == "min" { "m" } else { unit.trim() };
        let (_, unit) = *UNITS.iter().find(|(known, _)| *known == unit)?;
        // Units must descend: "30m1h" and "1s1s" are probably typing errors.
        if unit >= smallest {
            return None;
        }
        smallest = unit;
        ms = ms.checked_add(digits.parse::<u64>().ok()?.checked_mul(unit)?)?;
        rest = after;
    }
    (!text.is_empty()).then_some(ms)
}

/// With a single unit, the largest that it is a multiple of.
fn written(ms: u64) -> String {
    if ms == 0 {
        return "0s".to_owned();
    }
    let whole = |(_, unit): &&(&str, u64)| ms >= *unit && ms.is_multiple_of(*unit);
    let (name, unit) = UNITS.iter().find(whole).unwrap_or(&("ms", 1));
    format!("{}{name}", ms / unit)
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
            ("2min", 120_000),
            ("1h30m", 5_400_000),
            ("1d 12h", 129_600_000),
            ("0s", 0),
        ] {
            assert_eq!(parse(text), Some(ms), "{text}");
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
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_duration_out_of_its_bounds_is_an_error_that_names_them() {
        type Wait = Period<1_000, 600_000>;
        let read = |json: &str| serde_json::from_str::<Wait>(json).map_err(|e| e.to_string());
        assert_eq!(read("\"10m\""), Ok(Wait::from_ms(600_000)));
        assert_eq!(read("\"1s\"").unwrap().duration(), Duration::from_secs(1));
        let expected = "expected a duration from \"1s\" to \"10m\", such as \"30s\" or \"1m30s\"";
        for (json, found) in [
            ("\"999ms\"", "found \"999ms\""),
            ("\"10m1ms\"", "found \"10m1ms\""),
            ("\"soon\"", "found \"soon\""),
            ("30", "found 30"),
            ("true", "found true or false"),
        ] {
            let wrong = read(json).unwrap_err();
            assert!(wrong.starts_with(&format!("{found}, {expected}")), "{wrong}");
        }
        assert_eq!((Wait::from_ms(0).ms(), Wait::from_ms(u64::MAX).ms()), (1_000, 600_000));
    }

    #[test]
    fn bounds_are_written_as_operators_write_them() {
        for (ms, text) in
            [(0, "0s"), (1, "1ms"), (90_000, "90s"), (600_000, "10m"), (34_560_000_000, "400d")]
        {
            assert_eq!(written(ms), text);
        }
        let none = serde_json::from_str::<Period<1, 2>>("\"1s\"").unwrap_err().to_string();
        assert_eq!(none, "found \"1s\", expected a duration from \"1ms\" to \"2ms\"");
    }
}
