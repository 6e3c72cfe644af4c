//! Finds the limits in a policy's configuration, for reporting what a reload changes, and for
//! guests that declare none. Decides nothing: a guest reads its own configuration. Here a table
//! counts as a limit if it has a `name` and an `algorithm`, as the SDK's tables do.

use serde_json::{Map, Value};

use weir_algorithms::{Every, Row, Setting, Written};

use super::DeclaredLimit;
use crate::plan::{Algorithm, Alignment, Debt};

/// Maximum number of limits listed.
const LISTED_MAX: usize = 1_024;

/// A limit as written in the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedLimit {
    /// Its name.
    pub name: String,
    /// Its algorithm; `None` if its settings are wrong.
    pub algorithm: Option<Algorithm>,
}

impl ListedLimit {
    /// The limit that a value is, if it is one.
    #[must_use]
    pub fn read(value: &Value) -> Option<Self> {
        let table = value.as_object().filter(|table| table.contains_key("algorithm"))?;
        let name = table.get("name")?.as_str()?;
        Some(Self { name: name.to_owned(), algorithm: algorithm(table) })
    }

    /// Whether the member `key` of such a table says how it counts, as `quota` does.
    #[must_use]
    pub fn counts_by(key: &str) -> bool {
        ["algorithm", "lease"].contains(&key)
            || Setting::ALL.iter().any(|setting| setting.key() == key)
    }
}

/// The limits of a configuration that have this form, as a guest would declare them.
pub(super) fn limits(config_json: &str) -> Vec<DeclaredLimit> {
    let mut found = Vec::new();
    if let Ok(config) = serde_json::from_str(config_json) {
        walk(&Place::default(), &config, &mut found);
    }
    found
}

/// Where a value is.
#[derive(Default)]
struct Place {
    /// Its path.
    at: String,
    /// The key of the list that contains it: `limits`, or a plan's name.
    list: String,
    /// The path of the list whose item it is.
    item_of: Option<String>,
}

fn walk(place: &Place, value: &Value, found: &mut Vec<DeclaredLimit>) {
    match value {
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                let at = format!("{}[{index}]", place.at);
                let (list, item_of) = (place.list.clone(), Some(place.at.clone()));
                walk(&Place { at, list, item_of }, item, found);
            }
        }
        Value::Object(table) => {
            let limit = ListedLimit::read(value).and_then(|limit| declared(place, limit));
            found.extend(limit.filter(|_| found.len() < LISTED_MAX));
            for (key, member) in table {
                let at =
                    if place.at.is_empty() { key.clone() } else { format!("{}.{key}", place.at) };
                walk(&Place { at, list: key.clone(), item_of: None }, member, found);
            }
        }
        _ => {}
    }
}

fn declared(place: &Place, limit: ListedLimit) -> Option<DeclaredLimit> {
    let key_prefix = match place.list.as_str() {
        "" => String::new(),
        list => format!("{list}/"),
    };
    Some(DeclaredLimit {
        name: limit.name,
        at: place.at.clone(),
        algorithm: limit.algorithm?,
        key_facts: Vec::new(),
        key_prefix,
        together: place.item_of.clone(),
        cost_max: None,
        lease: None,
    })
}

fn algorithm(table: &Map<String, Value>) -> Option<Algorithm> {
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
        let one = |at: &str, prefix: &str, name: &str, algorithm| DeclaredLimit {
            name: name.into(),
            at: at.into(),
            algorithm,
            key_facts: Vec::new(),
            key_prefix: prefix.into(),
            together: at.split_once('[').map(|(list, _)| list.to_owned()),
            cost_max: None,
            lease: None,
        };
        assert_eq!(
            limits(config),
            [
                one("limits[0]", "limits/", "a", gcra),
                one("limits[2]", "limits/", "b", script),
                one("plans.gold[0]", "gold/", "a", quota)
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
