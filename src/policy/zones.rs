//! Time zones in a policy's configuration: a limits table's `time_zone` is checked here, because guests have no database of zones.
//!
//! Otherwise a misspelt zone would be an error of each request rather than a mistake at its line. Only what the SDK reads as a limit is looked at:
//! a table with `algorithm = "quota"`.

use serde_json::Value;

use super::error::one_line;
use crate::plan::TimeZone;
use crate::telemetry::Mistake;

/// Mistakes that are reported.
const MISTAKES_MAX: usize = 32;

/// The zones of quotas that nobody knows; `at` is the setting that `config_json` stands in.
pub(super) fn unknown(at: &str, config_json: &str) -> Vec<Mistake> {
    let mut mistakes = Vec::new();
    // Mostly there is none, and a large table is not read twice.
    if config_json.contains("\"time_zone\"")
        && let Ok(config) = serde_json::from_str(config_json)
    {
        walk(at, &config, &mut mistakes);
    }
    mistakes
}

fn walk(at: &str, value: &Value, mistakes: &mut Vec<Mistake>) {
    if mistakes.len() >= MISTAKES_MAX {
        return;
    }
    match value {
        Value::Array(items) => items.iter().enumerate().for_each(|(index, item)| walk(&format!("{at}[{index}]"), item, mistakes)),
        Value::Object(table) => {
            let zone = table.get("time_zone").and_then(Value::as_str).filter(|zone| TimeZone::named(zone).is_none());
            if let Some(zone) = zone.filter(|_| table.get("algorithm").and_then(Value::as_str) == Some("quota")) {
                let near = TimeZone::nearest(zone).map(|near| format!("; {near:?} is near")).unwrap_or_default();
                let expected = format!("a name of the IANA database, such as \"Europe/Berlin\"{near}");
                mistakes.push(Mistake::new(format!("{at}.time_zone"), format!("{:?}", one_line(zone)), expected));
            }
            table.iter().for_each(|(key, member)| walk(&format!("{at}.{key}"), member, mistakes));
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(config: &str) -> Vec<(String, String)> {
        unknown("c", config).into_iter().map(|mistake| (mistake.setting, mistake.expected)).collect()
    }

    #[test]
    fn each_quota_in_a_zone_that_nobody_knows_is_a_mistake_at_its_place() {
        let limits = |zone: &str| format!(r#"[{{"algorithm": "quota", "time_zone": "{zone}"}}]"#);
        let text = format!(r#"{{"limits": {}, "plans": {{"gold": {}}}}}"#, limits("Europe/Berln"), limits("Mars/Olympus_Mons_and_beyond"));
        let all = found(&text);
        assert_eq!(all.len(), 2, "{all:?}");
        assert_eq!((all[0].0.as_str(), all[1].0.as_str()), ("c.limits[0].time_zone", "c.plans.gold[0].time_zone"));
        assert!(all[0].1.ends_with("such as \"Europe/Berlin\"; \"Europe/Berlin\" is near"), "{all:?}");
        assert!(all[1].1.ends_with("such as \"Europe/Berlin\""), "{all:?}");
    }

    #[test]
    fn known_zones_and_what_is_no_quota_are_left_alone() {
        for config in [
            r#"{"limits": [{"algorithm": "quota", "time_zone": "Europe/Berlin"}, {"algorithm": "quota", "time_zone": "UTC"}]}"#,
            r#"{"time_zone": "theirs", "x": {"algorithm": "mine", "time_zone": "theirs"}, "y": {"algorithm": "quota", "time_zone": 7}}"#,
            "\"time_zone\"",
        ] {
            assert_eq!(found(config), [], "{config}");
        }
    }
}
