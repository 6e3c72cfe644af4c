//! The table of settings, and what must agree with it: the readers, `proxy.toml`, docs/settings.md,
//! and what modules take for granted where no file is read.

use std::collections::BTreeSet;

use toml::{Table, Value};

use super::super::settings::{Row, SECTIONS, Section, needs_restart, reference};
use super::*;

const EXAMPLE: &str = include_str!("../../../proxy.toml");
/// Where the table has a name that the operator chooses.
const CHOSEN: [&str; 2] = ["NAME", "MEMBER"];
/// Tables that are elements of arrays.
const ELEMENTS: [&str; 6] =
    ["listeners", "certificates", "endpoints", "routes", "refusals", "tokens"];

/// `written` as a value of TOML, if it is one.
fn literal(written: &str) -> Option<Value> {
    let mut table: Table = format!("value = {written}").parse().ok()?;
    table.remove("value")
}

/// A file with nothing but this table at `path`.
fn file_with(path: &str, members: Table) -> String {
    let place = |below: Value, segment: &str| {
        let below = if ELEMENTS.contains(&segment) { Value::Array(vec![below]) } else { below };
        Value::Table(Table::from_iter([(segment.to_owned(), below)]))
    };
    let mut file = Table::new();
    if let Value::Table(sections) = path.rsplit('.').fold(Value::Table(members), place) {
        file.extend(sections);
    }
    file.to_string()
}

/// All settings of a section, each with its default or with something of its type.
fn members(section: &Section, path: &str) -> Table {
    let sections: BTreeSet<String> =
        SECTIONS.iter().flat_map(|other| other.plain_paths()).collect();
    let is_section = |key: &str| sections.iter().any(|other| *other == format!("{path}.{key}"));
    let value = |row: &&dyn Row| match row.form() {
        _ if literal(&row.default()).is_some() => literal(&row.default()).unwrap(),
        form if form.starts_with("array") => Value::Array(Vec::new()),
        form if form.contains("table") => Value::Table(Table::new()),
        _ => Value::String("x".into()),
    };
    let rows = section.rows.iter().filter(|row| !is_section(row.key()));
    rows.map(|row| (row.key().to_owned(), value(row))).collect()
}

#[test]
fn every_setting_of_the_table_is_read_and_no_other() {
    for section in SECTIONS {
        for path in section.plain_paths() {
            let mut members = members(section, &path);
            members.insert("no_such_setting".into(), Value::Boolean(true));
            let text = file_with(&path, members);
            let errors = parse(&text).expect_err(&text);
            let unknown: Vec<_> =
                errors.each.iter().filter(|one| one.text.contains("the unknown key")).collect();
            let named = |key: &str| unknown.iter().any(|one| one.text.contains(key));
            assert!(unknown.len() == 1 && named("no_such_setting"), "{text}\n{errors}");
        }
    }
}

/// A setting that `proxy.toml` shows.
struct Shown {
    path: Vec<String>,
    value: Value,
    /// It has no effect.
    is_comment: bool,
}

/// All settings that the file shows, those in comments too.
fn shown() -> Vec<Shown> {
    let mut all = Vec::new();
    let mut section = Vec::new();
    for line in EXAMPLE.lines() {
        let (line, is_comment) = line.strip_prefix("# ").map_or((line, false), |line| (line, true));
        if let Some(header) = line.strip_prefix('[').and_then(|line| line.split_once(']')) {
            let header = header.0.trim_start_matches('[');
            section = header.split('.').map(str::to_owned).collect();
            continue;
        }
        let Ok(table) = line.parse::<Table>() else { continue };
        for (key, value) in table {
            let path = section.iter().cloned().chain([key]).collect();
            all.push(Shown { path, value, is_comment });
        }
    }
    all
}

/// The row of a setting. Names that the operator chooses may be any.
fn row(path: &[String]) -> Option<&'static dyn Row> {
    let is_same = |known: &str| {
        let known: Vec<&str> = known.split('.').collect();
        let mut pairs = known.iter().zip(path);
        known.len() == path.len()
            && pairs.all(|(known, segment)| CHOSEN.contains(known) || known == segment)
    };
    let rows = SECTIONS.iter().flat_map(|section| {
        let paths = section.plain_paths();
        paths.flat_map(|path| {
            section.rows.iter().map(move |row| (format!("{path}.{}", row.key()), *row))
        })
    });
    rows.into_iter().find(|(path, _)| is_same(path)).map(|(_, row)| row)
}

/// Checks one setting, or those in a table that is not a setting itself.
fn check_shown(Shown { path, value, is_comment }: Shown) -> usize {
    if path.len() > 2 && path[0] == "policies" && path[2] == "config" {
        return 0;
    }
    let Some(row) = row(&path) else {
        let tables = match value {
            Value::Array(tables) => tables,
            value => vec![value],
        };
        let members = tables.into_iter().flat_map(|table| match table {
            Value::Table(members) => members,
            _ => panic!("the table has no row for {path:?}"),
        });
        let below = |(key, value)| {
            let path = path.iter().cloned().chain([key]).collect();
            check_shown(Shown { path, value, is_comment })
        };
        return members.map(below).sum();
    };
    if let Some(default) = literal(&row.default()).filter(|_| !is_comment) {
        // `60s` is `1m`.
        let duration = |value: &Value| value.as_str().and_then(units::duration);
        let is_same = duration(&value).is_some() && duration(&value) == duration(&default);
        assert!(is_same || value == default, "{path:?}: {value}, not {default}");
    }
    1
}

#[test]
fn the_example_shows_settings_of_the_table_with_their_defaults() {
    let count: usize = shown().into_iter().map(check_shown).sum();
    assert!(count > 130, "{count}");
    for row in SECTIONS.iter().flat_map(|section| section.rows) {
        let is_word = |word: &str| word == row.key();
        let mut words = EXAMPLE.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        assert!(words.any(is_word), "proxy.toml does not mention `{}`", row.key());
    }
}

#[test]
fn the_reference_is_that_of_the_table() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/settings.md");
    if std::env::var_os("WEIR_BLESS").is_some() {
        std::fs::write(&path, reference()).unwrap();
    }
    let page = std::fs::read_to_string(&path).unwrap();
    assert!(page == reference(), "docs/settings.md is stale: run this test with WEIR_BLESS=1");
}

#[test]
fn a_section_needs_a_restart_where_one_of_its_settings_does() {
    for setting in ["server.workers", "server.policies", "server.policies.stack", "admin.address"] {
        assert!(needs_restart(setting), "{setting}");
    }
    assert!(needs_restart("listeners[127.0.0.1:8080]"));
    for setting in ["listeners[127.0.0.1:8080].name", "server.limits", "server.work", "store", "x"]
    {
        assert!(!needs_restart(setting), "{setting}");
    }
}

#[test]
fn modules_that_read_no_file_have_its_defaults() {
    let config = good(MINIMAL);
    assert_eq!(config.connections, listen::ConnectionSettings::default());
    let access_json = config.requests.access_json;
    assert_eq!(config.requests, proxy::Settings { access_json, ..proxy::Settings::default() });
    assert_eq!(config.insight, insight::Settings::default());
    assert_eq!(config.log, telemetry::Settings::default());
    assert_eq!(config.limiter, limit::Settings::default());
    // How many instances none keeps follows from the workers.
    let unkept_instances = config.policy_runtime.unkept_instances;
    let runtime = policy::RuntimeSettings { unkept_instances, ..Default::default() };
    assert_eq!(config.policy_runtime, runtime);
    assert_eq!(config.policies[0].caps, policy::Caps::default());
    assert_eq!(config.routes[0].inspect, Inspect::default());
    assert_eq!(config.routes[0].extras, Extras::default());
    let upstream = &config.upstreams[0];
    assert_eq!(
        *upstream,
        upstream::Settings::new(
            "api",
            upstream.endpoints.iter().map(|one| one.url.clone()).collect()
        )
    );
}
