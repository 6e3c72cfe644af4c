//! The limits that the policy adds: how many strikes are too many, and how long a ban lasts.

use serde::Deserialize;
use weir_policy::{Json, Limits, Mistakes};

/// The names of these limits, and the settings that they are made of.
pub(crate) const STRIKES: &str = "strikes";
pub(crate) const BAN: &str = "ban";

/// Maximum number of strikes: each one is stored.
const STRIKES_MAX: u64 = 10_000;
/// Requests during a ban that may extend it, at most, until the first of them no longer counts.
const EXTENSIONS_MAX: u64 = 1_000_000;

/// How many strikes in which time are too many.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Strikes {
    quota: u64,
    period: Period,
}

/// A duration of strikes and bans.
pub(crate) type Period = weir_policy::Period<1_000, { 400 * 86_400_000 }>;

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
            {{"name": "{STRIKES}", "algorithm": "sliding_window_log", "quota": {}, "period": "{}ms",
              "cost": 0, "refund": "by_settle", "shadow": {shadow}}},
            {{"name": "{BAN}", "algorithm": "{algorithm}", "quota": 1, "period": "{}ms",
              "cost": 0, "shadow": {shadow}{debt}}}
        ]"#,
        strikes.quota,
        strikes.period.ms(),
        ban.ms()
    );
    Json::parse(&both).map_or_else(|_| Ok(Limits::default()), |both| Limits::read(&both))
}
