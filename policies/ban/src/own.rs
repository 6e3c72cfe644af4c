//! The limits that the policy adds: how many strikes are too many, and how long a ban lasts.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use weir_policy::{Json, Limits, Mistakes};

/// The names of these limits.
pub(crate) const STRIKES: &str = "strikes";
pub(crate) const BAN: &str = "ban";

/// Strikes, at most: each one is stored.
const STRIKES_MAX: u64 = 10_000;
/// Requests during a ban that may extend it, at most, until the first of them no longer counts.
const EXTENSIONS_MAX: u64 = 1_000_000;
const PERIOD_MS: std::ops::RangeInclusive<u64> = 1_000..=400 * 86_400_000;

/// How many strikes in which time are too many.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Strikes {
    quota: u64,
    period: Period,
}

/// A duration. Use it as the type of a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Period {
    ms: u64,
}

impl Strikes {
    pub(crate) fn check(self, mistakes: &mut Mistakes) {
        if !(1..=STRIKES_MAX).contains(&self.quota) {
            let expected = format_args!("1 to {STRIKES_MAX}");
            mistakes.add("strikes.quota", self.quota, expected);
        }
    }
}

/// Both limits. A window is not extended by what is charged in it. Sub-windows that move along are:
/// each charge leaves one period later.
pub(crate) fn limits(
    strikes: Strikes,
    ban: Period,
    extend: bool,
    shadow: bool,
) -> Result<Limits, Mistakes> {
    let (algorithm, debt) = match extend {
        true => ("sliding_window_buckets", format!(", \"debt\": {EXTENSIONS_MAX}")),
        false => ("fixed_window", String::new()),
    };
    let both = format!(
        r#"[
            {{"name": "{STRIKES}", "algorithm": "sliding_window_log", "quota": {}, "period": "{}",
              "cost": 0, "refund": "by_settle", "shadow": {shadow}}},
            {{"name": "{BAN}", "algorithm": "{algorithm}", "quota": 1, "period": "{}",
              "cost": 0, "shadow": {shadow}{debt}}}
        ]"#,
        strikes.quota,
        strikes.period.text(),
        ban.text()
    );
    Json::parse(&both).map_or_else(|_| Ok(Limits::default()), |both| Limits::read(&both))
}

impl Period {
    fn text(self) -> String {
        format!("{}ms", self.ms)
    }

    fn parse(text: &str) -> Option<Self> {
        let (mut rest, mut ms, mut smallest) = (text, 0_u64, u64::MAX);
        while !rest.is_empty() {
            let (digits, after) = rest.split_at(rest.find(|next: char| !next.is_ascii_digit())?);
            let end = after.find(|next: char| next.is_ascii_digit()).unwrap_or(after.len());
            let (unit, after) = after.split_at(end);
            let unit_ms = match unit.trim() {
                "s" => 1_000,
                "m" | "min" => 60_000,
                "h" => 3_600_000,
                "d" => 86_400_000,
                _ => return None,
            };
            // Units descend, as in the limits' periods: "30m1h" is probably a typing error.
            if unit_ms >= smallest {
                return None;
            }
            smallest = unit_ms;
            ms = ms.checked_add(digits.parse::<u64>().ok()?.checked_mul(unit_ms)?)?;
            rest = after;
        }
        PERIOD_MS.contains(&ms).then_some(Self { ms })
    }
}

impl<'de> Deserialize<'de> for Period {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Json::deserialize(deserializer)?;
        let expected = "a duration from \"1s\" to \"400d\", such as \"10m\" or \"1h30m\"";
        let period = value.as_str().and_then(|text| Self::parse(&text));
        period.ok_or_else(|| D::Error::custom(format!("found {value}, expected {expected}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read() {
        for (text, ms) in [
            ("1s", Some(1_000)),
            ("1h30m", Some(5_400_000)),
            ("400d", Some(34_560_000_000)),
            ("401d", None),
            ("0s", None),
            ("250ms", None),
            ("30m1h", None),
            ("1", None),
            ("s", None),
            ("", None),
        ] {
            assert_eq!(Period::parse(text).map(|period| period.ms), ms, "{text}");
        }
    }
}
