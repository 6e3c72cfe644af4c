//! Checks what no guest can check in its configuration: the names of time zones and of the
//! operator's scripts. Also finds what a guest accepts but was probably not intended: methods in
//! lower case.
//!
//! These are checked here, with their line, because a misspelt name would otherwise be an error of
//! each request. Only what the SDK reads as a limit is checked: a table with `algorithm = "quota"`
//! and a `time_zone`, or with `algorithm = "script"` and a `script`.

use serde_json::Value;

use super::error::one_line;
use crate::plan::TimeZone;
use crate::telemetry::SettingError;

/// Maximum number of errors that are reported.
const ERRORS_MAX: usize = 32;
/// The methods of RFC 9110 and RFC 5789.
const METHODS: [&str; 9] =
    ["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"];
/// The settings whose values are conditions on requests.
const CONDITIONS: [&str; 3] = ["when", "unless", "bypass"];
/// Families of facts. Their members may have any name, even `method`.
const FAMILIES: [&str; 4] = ["header", "cookie", "query", "path"];

/// The unknown names. `at` is the setting whose value is `config_json`, `scripts` are the existing
/// scripts.
pub(super) fn unknown(at: &str, config_json: &str, scripts: &[String]) -> Vec<SettingError> {
    let mut errors = Vec::new();
    // Most configurations have neither: a large table is then not parsed a second time.
    let may_name = ["\"time_zone\"", "\"script\""].iter().any(|key| config_json.contains(key));
    if may_name && let Ok(config) = serde_json::from_str(config_json) {
        walk(at, &config, scripts, &mut errors);
    }
    errors
}

fn walk(at: &str, value: &Value, scripts: &[String], errors: &mut Vec<SettingError>) {
    if errors.len() >= ERRORS_MAX {
        return;
    }
    match value {
        Value::Array(items) => items
            .iter()
            .enumerate()
            .for_each(|(index, item)| walk(&format!("{at}[{index}]"), item, scripts, errors)),
        Value::Object(table) => {
            let text = |key: &str| table.get(key).and_then(Value::as_str);
            let wrong = match text("algorithm") {
                Some("quota") => {
                    text("time_zone").and_then(zone).map(|expected| ("time_zone", expected))
                }
                Some("script") => text("script")
                    .and_then(|name| script(name, scripts))
                    .map(|expected| ("script", expected)),
                _ => None,
            };
            if let Some((key, expected)) = wrong {
                let found = format!("{:?}", one_line(text(key).unwrap_or_default()));
                errors.push(SettingError::new(format!("{at}.{key}"), found, expected));
            }
            table
                .iter()
                .for_each(|(key, member)| walk(&format!("{at}.{key}"), member, scripts, errors));
        }
        _ => {}
    }
}

/// Conditions on a method that differs only in case from one that clients send. `at` is the setting
/// whose value is `config_json`.
pub(super) fn suspicious(at: &str, config_json: &str) -> Vec<SettingError> {
    let mut lints = Vec::new();
    if config_json.contains("\"method\"")
        && let Ok(config) = serde_json::from_str(config_json)
    {
        conditions(at, &config, false, &mut lints);
    }
    lints
}

/// `inside` is true within a setting whose value is conditions.
fn conditions(at: &str, value: &Value, inside: bool, lints: &mut Vec<SettingError>) {
    if lints.len() >= ERRORS_MAX {
        return;
    }
    match value {
        Value::Array(items) => items
            .iter()
            .enumerate()
            .for_each(|(index, item)| conditions(&format!("{at}[{index}]"), item, inside, lints)),
        Value::Object(table) => {
            for (key, member) in table {
                let at = format!("{at}.{key}");
                if inside && key == "method" {
                    method(&at, member, lints);
                } else if !inside || !FAMILIES.contains(&key.as_str()) {
                    conditions(&at, member, inside || CONDITIONS.contains(&key.as_str()), lints);
                }
            }
        }
        _ => {}
    }
}

fn method(at: &str, value: &Value, lints: &mut Vec<SettingError>) {
    match value {
        Value::Array(items) => items
            .iter()
            .enumerate()
            .for_each(|(index, item)| method(&format!("{at}[{index}]"), item, lints)),
        Value::String(written) => {
            let meant = METHODS
                .iter()
                .find(|method| method.eq_ignore_ascii_case(written) && *method != written);
            lints.extend(meant.map(|meant| {
                SettingError::new(
                    at,
                    format!("the method {written:?}"),
                    format!("{meant:?}: methods are case-sensitive, and this one is never sent"),
                )
            }));
        }
        _ => {}
    }
}

/// What was expected instead of an unknown zone.
fn zone(name: &str) -> Option<String> {
    if TimeZone::named(name).is_some() {
        return None;
    }
    let near =
        TimeZone::nearest(name).map(|near| format!("; {near:?} is near")).unwrap_or_default();
    Some(format!("a name of the IANA database, such as \"Europe/Berlin\"{near}"))
}

/// What was expected instead of a script that does not exist.
fn script(name: &str, scripts: &[String]) -> Option<String> {
    if scripts.iter().any(|known| known == name) {
        return None;
    }
    let distance = |known: &&String| strsim::damerau_levenshtein(&one_line(name), known);
    let near = scripts
        .iter()
        .min_by_key(distance)
        .map(|near| format!("; the nearest is {near:?}"))
        .unwrap_or_default();
    Some(format!("the name of a file in `store.scripts`, without `.lua`{near}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(config: &str) -> Vec<(String, String)> {
        unknown("c", config, &["mine".to_owned()])
            .into_iter()
            .map(|error| (error.setting, error.expected))
            .collect()
    }

    #[test]
    fn each_quota_in_a_zone_that_nobody_knows_is_an_error_at_its_place() {
        let limits = |zone: &str| format!(r#"[{{"algorithm": "quota", "time_zone": "{zone}"}}]"#);
        let text = format!(
            r#"{{"limits": {}, "plans": {{"gold": {}}}}}"#,
            limits("Europe/Berln"),
            limits("Mars/Olympus_Mons_and_beyond")
        );
        let all = found(&text);
        assert_eq!(all.len(), 2, "{all:?}");
        assert_eq!(
            (all[0].0.as_str(), all[1].0.as_str()),
            ("c.limits[0].time_zone", "c.plans.gold[0].time_zone")
        );
        assert!(
            all[0].1.ends_with("such as \"Europe/Berlin\"; \"Europe/Berlin\" is near"),
            "{all:?}"
        );
        assert!(all[1].1.ends_with("such as \"Europe/Berlin\""), "{all:?}");
    }

    #[test]
    fn a_script_that_is_not_there_is_an_error_at_its_place() {
        let all = found(
            r#"{"limits": [{"algorithm": "script", "script": "mime"}, {"algorithm": "script", "script": "mine"}, {"script": "x"}]}"#,
        );
        assert_eq!(all.len(), 1, "{all:?}");
        assert_eq!(all[0].0, "c.limits[0].script");
        assert!(all[0].1.ends_with("without `.lua`; the nearest is \"mine\""), "{all:?}");
        assert_eq!(unknown("c", r#"{"algorithm": "script", "script": "mine"}"#, &[]).len(), 1);
    }

    #[test]
    fn a_condition_on_a_method_in_lower_case_is_reported() {
        let config = r#"{"limits": [{"when": {"method": "get"}}, {"when": {"method": ["POST", "Put"]}}, {"when": {"method": "PATCH"}}],
                         "bypass": ["10.0.0.0/8", {"method": "head", "header": {"method": "get"}}], "method": "get", "when": {"method": "purge"}}"#;
        let lints: Vec<String> = suspicious("c", config).iter().map(ToString::to_string).collect();
        let told = |at: &str, found: &str, meant: &str| {
            format!(
                "c.{at}: found the method {found:?}, expected {meant:?}: methods are case-sensitive, and this one is never sent"
            )
        };
        let expected = [
            told("bypass[1].method", "head", "HEAD"),
            told("limits[0].when.method", "get", "GET"),
            told("limits[1].when.method[1]", "Put", "PUT"),
        ];
        assert_eq!(lints, expected);
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
