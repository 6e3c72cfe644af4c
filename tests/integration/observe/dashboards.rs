//! docs/grafana/weir.json and docs/prometheus/alerts.yml: their expressions name metrics and labels
//! that exist. That a real Prometheus evaluates them is shown in `tests/interop/prometheus.rs`.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use weir::telemetry::names::{self, Kind};

use crate::harness::dashboards::{DASHBOARD, Expression, OPERATIONS, alerts, dashboard};

/// What an expression may contain besides metrics and labels.
const WORDS: &[&str] = &[
    "by",
    "changes",
    "count",
    "count_values",
    "histogram_quantile",
    "increase",
    "or",
    "rate",
    "sum",
    "time",
    "unless",
];

/// The names of series that `/metrics` has, with their labels.
fn series() -> BTreeMap<String, BTreeSet<&'static str>> {
    let mut series = BTreeMap::new();
    for name in names::ALL {
        let mut labels: BTreeSet<&str> = name.labels.iter().copied().collect();
        // What Prometheus adds.
        labels.extend(["instance", "job"]);
        match name.kind {
            Kind::Counter | Kind::MeasuredCounter => {
                series.insert(format!("{}_total", name.name), labels);
            }
            Kind::Histogram => {
                series.insert(format!("{}_sum", name.name), labels.clone());
                series.insert(format!("{}_count", name.name), labels.clone());
                labels.insert("le");
                series.insert(format!("{}_bucket", name.name), labels);
            }
            _ => drop(series.insert(name.name.to_owned(), labels)),
        }
    }
    series.insert("up".to_owned(), ["instance", "job"].into());
    series
}

/// The metrics that an expression names, and the labels that it selects or groups by.
fn named(expression: &Expression) -> (BTreeSet<String>, BTreeSet<String>) {
    let (mut metrics, mut labels) = (BTreeSet::new(), BTreeSet::new());
    let (mut selects, mut groups, mut after_by) = (false, false, false);
    let mut rest = expression.text.as_str();
    while let Some(first) = rest.chars().next() {
        let is_word = |c: char| c.is_ascii_alphanumeric() || "_$".contains(c);
        let word = &rest[..rest.find(|c| !is_word(c)).unwrap_or(rest.len())];
        if first == '"' {
            rest = &rest[1..];
            rest = &rest[rest.find('"').unwrap() + 1..];
            continue;
        }
        if first == '[' {
            rest = &rest[rest.find(']').unwrap() + 1..];
            continue;
        }
        if first.is_ascii_alphabetic() {
            if selects || groups {
                labels.insert(word.to_owned());
            } else if !WORDS.contains(&word) {
                metrics.insert(word.to_owned());
            }
            after_by = word == "by";
            rest = &rest[word.len()..];
            continue;
        }
        match first {
            '{' => selects = true,
            '}' => selects = false,
            '(' => groups = after_by,
            ')' => groups = false,
            _ => {}
        }
        after_by &= first == ' ';
        rest = &rest[word.len().max(first.len_utf8())..];
    }
    (metrics, labels)
}

#[test]
fn dashboard_and_alerts_name_metrics_and_labels_that_exist() {
    let series = series();
    let mut used = BTreeSet::new();
    for expression in dashboard().iter().chain(&alerts()) {
        let Expression { place, text } = expression;
        let (metrics, labels) = named(expression);
        assert!(!metrics.is_empty(), "{place}: {text}");
        for metric in &metrics {
            let known = series.get(metric).unwrap_or_else(|| panic!("{place}: {metric}: {text}"));
            for label in &labels {
                assert!(known.contains(label.as_str()), "{place}: {metric} has no {label}: {text}");
            }
        }
        used.extend(metrics);
    }
    let unused: Vec<_> = names::ALL
        .iter()
        .filter(|name| !used.iter().any(|used| used.starts_with(name.name)))
        .map(|name| name.name)
        .collect();
    assert_eq!(unused, [""; 0], "neither the dashboard nor an alert shows these");
}

#[test]
fn the_legends_of_the_dashboard_use_labels_that_their_queries_keep() {
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    let mut seen = 0;
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().into_iter().flatten() {
            let expression = target["expr"].as_str().unwrap();
            let legend = target["legendFormat"].as_str().unwrap();
            for label in legend.split("{{").skip(1).map(|rest| rest.split("}}").next().unwrap()) {
                let grouped = expression.split(" by (").skip(1);
                let kept = grouped.map(|rest| rest.split(')').next().unwrap());
                let kept: Vec<&str> = kept.flat_map(|list| list.split(", ")).collect();
                let kept_all = kept.is_empty() && label == "instance";
                assert!(kept_all || kept.contains(&label), "{legend}: {expression}");
                seen += 1;
            }
        }
    }
    assert!(seen > 40, "{seen}");
}

#[test]
fn there_is_an_alert_for_everything_that_the_guide_says_to_watch() {
    let alerts = alerts();
    let table = OPERATIONS.split("| alert on |").nth(1).unwrap().split("\n\n").next().unwrap();
    let mut seen = 0;
    for row in table.lines().skip(2) {
        let asked = row.split('|').nth(1).unwrap();
        let watched = asked.split("weir_").skip(1).map(|rest| {
            let end = rest.find(|c: char| !c.is_ascii_lowercase() && c != '_').unwrap();
            format!("weir_{}", &rest[..end])
        });
        for metric in watched {
            let found = alerts.iter().any(|alert| alert.text.contains(&metric));
            assert!(found, "no alert on {metric}: {row}");
            seen += 1;
        }
    }
    assert!(seen >= 14, "{seen}");
}
