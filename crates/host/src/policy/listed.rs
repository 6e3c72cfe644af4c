//! Finds the limits in a policy's configuration, for `weir key` and for reporting what a reload
//! changes. Decides nothing: a guest reads its own configuration. Here a table counts as a limit if
//! it has a `name` and an `algorithm`, as the SDK's tables do. Beside these are the limits that
//! shipped policies make of other settings.

use serde_json::{Map, Value, json};

use weir_algorithms::{Every, Row, Setting, Written};

use super::Module;
use crate::plan::{Algorithm, Alignment, Debt};

/// Maximum number of limits listed.
const LISTED_MAX: usize = 1_024;

/// A limit as written in the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedLimit {
    /// The key of the list that contains it: `limits`, or a plan's name.
    pub list: String,
    /// Its name.
    pub name: String,
    /// Its algorithm; `None` if its settings are wrong.
    pub algorithm: Option<Algorithm>,
}

impl ListedLimit {
    /// The limit that a value in `list` is, if it is one.
    #[must_use]
    pub fn read(list: &str, value: &Value) -> Option<Self> {
        let table = value.as_object().filter(|table| table.contains_key("algorithm"))?;
        let name = table.get("name")?.as_str()?;
        Some(Self { list: list.to_owned(), name: name.to_owned(), algorithm: algorithm(table) })
    }

    /// Whether the member `key` of such a table says how it counts, as `quota` does.
    #[must_use]
    pub fn counts_by(key: &str) -> bool {
        key == "algorithm" || Setting::ALL.iter().any(|setting| setting.key() == key)
    }
}

/// All limits of a configuration, in order.
pub(super) fn limits(module: &Module, config_json: &str) -> Vec<ListedLimit> {
    let mut listed = Vec::new();
    if let Ok(config) = serde_json::from_str(config_json) {
        walk("", &config, &mut listed);
        if let Module::Shipped(name) = module {
            walk("", &made(name, &config), &mut listed);
        }
    }
    listed
}

/// The limits that a shipped policy makes of settings that are no limits, as it would write them.
fn made(policy: &str, config: &Value) -> Value {
    let has = |key: &str| config.get(key).is_some();
    match policy {
        "login-guard" if !["by_pair", "by_address", "by_account"].into_iter().any(has) => {
            let window = |name: &str, quota: u64| json!([{ "name": name, "algorithm": "fixed_window", "quota": quota, "period": "15m" }]);
            json!({ "by_pair": window("pair", 5), "by_address": window("address", 50) })
        }
        "ban" => {
            let extends = config.get("extend").and_then(Value::as_bool).unwrap_or(false);
            let ban = if extends { "sliding_window_buckets" } else { "fixed_window" };
            let strikes = |key: &str| config.get("strikes").and_then(|strikes| strikes.get(key));
            json!({ "own": [
                { "name": "strikes", "algorithm": "sliding_window_log", "quota": strikes("quota"), "period": strikes("period") },
                { "name": "ban", "algorithm": ban, "quota": 1, "period": config.get("ban") },
            ] })
        }
        _ => Value::Null,
    }
}

fn walk(list: &str, value: &Value, listed: &mut Vec<ListedLimit>) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| walk(list, item, listed)),
        Value::Object(table) => {
            let limit = ListedLimit::read(list, value);
            listed.extend(limit.filter(|_| listed.len() < LISTED_MAX));
            table.iter().for_each(|(key, member)| walk(key, member, listed));
        }
        _ => {}
    }
}

pub(super) fn algorithm(table: &Map<String, Value>) -> Option<Algorithm> {
    let text = |key: &str| table.get(key).and_then(Value::as_str);
    let number = |setting: Setting| table.get(setting.key()).and_then(Value::as_u64);
    let ms = |setting: Setting| {
        let period = humantime::parse_duration(text(setting.key())?).ok()?;
        u64::try_from(period.as_millis()).ok()
    };
    let arguments: Option<Vec<i64>> = table
        .get(Setting::Arguments.key())
        .and_then(Value::as_array)
        .map(|numbers| numbers.iter().filter_map(Value::as_i64).collect());
    let written = Written {
        quota: number(Setting::Quota),
        period_ms: ms(Setting::Period),
        burst: number(Setting::Burst),
        alignment: named(&Alignment::ALL, text(Setting::Alignment.key())),
        buckets: number(Setting::Buckets),
        max_delay_ms: ms(Setting::MaxDelay),
        calendar: named(&Every::ALL, text(Setting::Calendar.key())),
        time_zone: text(Setting::TimeZone.key()),
        anchor_day: number(Setting::AnchorDay),
        conditional: table.get(Setting::Conditional.key()).and_then(Value::as_bool),
        script: text(Setting::Script.key()),
        arguments: arguments.as_deref(),
        debt: match table.get(Setting::Debt.key()) {
            Some(Value::String(name)) => named(&Debt::NAMED, Some(name)),
            other => other.and_then(Value::as_u64).map(Debt::Units),
        },
    };
    let algorithm = (Row::named(text("algorithm")?)?.read)(&written)?;
    let located = match algorithm {
        Algorithm::Quota(quota) => quota.located().ok()?.into(),
        other => other,
    };
    located.breaches().is_empty().then_some(located)
}

fn named<T: Copy>(all: &[(&str, T)], name: Option<&str>) -> Option<T> {
    all.iter().find(|(known, _)| Some(*known) == name).map(|(_, value)| *value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{
        Calendar, FixedWindow, Gcra, Quota, Rate, Script, SlidingWindowBuckets, TimeZone,
    };

    fn limits(config: &str) -> Vec<ListedLimit> {
        super::limits(&Module::Shipped("keyed".into()), config)
    }

    #[test]
    fn limits_are_listed_at_any_depth() {
        let config = r#"{"limits": [{"name": "a", "algorithm": "gcra", "quota": 3, "period": "1h30m"}, {"name": "no limit"},
                                    {"name": "b", "algorithm": "script", "script": "mine"}],
                         "plans": {"gold": [{"name": "a", "algorithm": "quota", "quota": 9, "calendar": "month", "anchor_day": 15}]}}"#;
        let gcra = Algorithm::Gcra(Gcra {
            burst: 3,
            rate: Rate { amount: 3, per_ms: 5_400_000 },
            debt: Debt::None,
        });
        let calendar = Calendar::Month { time_zone: TimeZone::utc(), anchor_day: 15 };
        let quota =
            Algorithm::Quota(Quota { amount: 9, calendar, conditional: true, debt: Debt::None });
        let script =
            Algorithm::Script(Script { name: "mine".into(), arguments: [].into_iter().collect() });
        let one = |list: &str, name: &str, algorithm| ListedLimit {
            list: list.into(),
            name: name.into(),
            algorithm,
        };
        assert_eq!(
            limits(config),
            [
                one("limits", "a", Some(gcra)),
                one("limits", "b", Some(script)),
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
        let Algorithm::SlidingWindowBuckets(SlidingWindowBuckets { buckets, .. }) =
            read(r#""algorithm": "sliding_window_buckets""#)
        else {
            panic!()
        };
        assert_eq!(buckets, 60);
        let Algorithm::FixedWindow(FixedWindow { alignment, .. }) =
            read(r#""algorithm": "fixed_window""#)
        else {
            panic!()
        };
        assert_eq!(alignment, Alignment::FirstRequest);
    }
}
