//! The limits that a policy's configuration lists, for a person who asks about a counter. A guest
//! reads its own configuration; here a table counts as a limit where the SDK would read one: it has
//! a `name` and an `algorithm`. Decides nothing.

use std::time::Duration;

use serde_json::{Map, Value};

use crate::plan::{Algorithm, Alignment, Calendar, Rate, TimeZone};

/// Limits that are looked at, at most.
const LISTED_MAX: usize = 1_024;
/// The SDK's defaults.
const BUCKETS_DEFAULT: u64 = 60;
const LEAKY_BURST_DEFAULT: u64 = 1;

/// A limit as it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedLimit {
    /// The key of the list that it stands in: `limits`, or a plan's name.
    pub list: String,
    /// Its name.
    pub name: String,
    /// What it says; `None` where that is not understood here.
    pub algorithm: Option<Algorithm>,
}

/// All limits of a configuration, in its order.
pub(super) fn limits(config_json: &str) -> Vec<ListedLimit> {
    let mut listed = Vec::new();
    if let Ok(config) = serde_json::from_str(config_json) {
        walk("", &config, &mut listed);
    }
    listed
}

fn walk(list: &str, value: &Value, listed: &mut Vec<ListedLimit>) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| walk(list, item, listed)),
        Value::Object(table) => {
            let name = table
                .get("name")
                .and_then(Value::as_str)
                .filter(|_| table.contains_key("algorithm"));
            if let Some(name) = name.filter(|_| listed.len() < LISTED_MAX) {
                listed.push(ListedLimit {
                    list: list.to_owned(),
                    name: name.to_owned(),
                    algorithm: algorithm(table),
                });
            }
            table.iter().for_each(|(key, member)| walk(key, member, listed));
        }
        _ => {}
    }
}

fn algorithm(table: &Map<String, Value>) -> Option<Algorithm> {
    let text = |key: &str| table.get(key).and_then(Value::as_str);
    let number = |key: &str| table.get(key).and_then(Value::as_u64);
    let ms = |key: &str| {
        humantime::parse_duration(text(key)?)
            .ok()
            .and_then(|period: Duration| u64::try_from(period.as_millis()).ok())
    };
    let amount = number("quota")?;
    let rate = || Some(Rate { amount, per_ms: ms("period").filter(|per_ms| *per_ms > 0)? });
    let burst = number("burst");
    Some(match text("algorithm")? {
        "fixed_window" => {
            let alignment = if text("alignment") == Some("clock") {
                Alignment::Clock
            } else {
                Alignment::FirstRequest
            };
            Algorithm::FixedWindow { rate: rate()?, alignment }
        }
        "sliding_window_counter" => Algorithm::SlidingWindowCounter { rate: rate()? },
        "sliding_window_log" => Algorithm::SlidingWindowLog { rate: rate()? },
        "sliding_window_buckets" => {
            let buckets = u32::try_from(number("buckets").unwrap_or(BUCKETS_DEFAULT)).ok()?;
            Algorithm::SlidingWindowBuckets { rate: rate()?, buckets }
        }
        "token_bucket" => Algorithm::TokenBucket { burst: burst.unwrap_or(amount), rate: rate()? },
        "gcra" => Algorithm::Gcra { burst: burst.unwrap_or(amount), rate: rate()? },
        "leaky_bucket" => Algorithm::LeakyBucket {
            burst: burst.unwrap_or(LEAKY_BURST_DEFAULT),
            rate: rate()?,
            max_delay_ms: ms("max_delay")?,
        },
        "concurrency" => Algorithm::Concurrency { amount },
        "quota" => {
            let zone = || TimeZone::named(text("time_zone").unwrap_or("UTC"));
            let calendar = match text("calendar")? {
                "hour" => Calendar::Hour(zone()?),
                "day" => Calendar::Day(zone()?),
                "week" => Calendar::Week(zone()?),
                "month" => {
                    let anchor_day = u8::try_from(number("anchor_day").unwrap_or(1)).ok()?;
                    Calendar::Month { time_zone: zone()?, anchor_day }
                }
                "forever" => Calendar::Forever,
                _ => return None,
            };
            Algorithm::Quota { amount, calendar, conditional: true }
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_listed_wherever_they_stand() {
        let config = r#"{"limits": [{"name": "a", "algorithm": "gcra", "quota": 3, "period": "1h30m"}, {"name": "no limit"},
                                    {"name": "b", "algorithm": "script", "script": "mine"}],
                         "plans": {"gold": [{"name": "a", "algorithm": "quota", "quota": 9, "calendar": "month", "anchor_day": 15}]}}"#;
        let gcra = Algorithm::Gcra { burst: 3, rate: Rate { amount: 3, per_ms: 5_400_000 } };
        let calendar = Calendar::Month { time_zone: TimeZone::utc(), anchor_day: 15 };
        let quota = Algorithm::Quota { amount: 9, calendar, conditional: true };
        let one = |list: &str, name: &str, algorithm| ListedLimit {
            list: list.into(),
            name: name.into(),
            algorithm,
        };
        assert_eq!(
            limits(config),
            [
                one("limits", "a", Some(gcra)),
                one("limits", "b", None),
                one("gold", "a", Some(quota))
            ]
        );
        assert_eq!(limits("nonsense"), []);
    }

    #[test]
    fn defaults_are_the_sdks() {
        let read = |text: &str| {
            limits(&format!(r#"[{{"name": "a", "quota": 2, "period": "1s", {text}}}]"#))
                .remove(0)
                .algorithm
                .unwrap()
        };
        assert_eq!(
            read(r#""algorithm": "leaky_bucket", "max_delay": "500ms""#).capacity(),
            Some(1)
        );
        assert_eq!(read(r#""algorithm": "token_bucket", "burst": 5"#).capacity(), Some(5));
        let Algorithm::SlidingWindowBuckets { buckets, .. } =
            read(r#""algorithm": "sliding_window_buckets""#)
        else {
            panic!()
        };
        assert_eq!(buckets, 60);
        let Algorithm::FixedWindow { alignment, .. } = read(r#""algorithm": "fixed_window""#)
        else {
            panic!()
        };
        assert_eq!(alignment, Alignment::FirstRequest);
    }
}
