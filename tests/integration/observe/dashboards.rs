//! docs/grafana/weir.json and docs/prometheus/alerts.yml: their expressions name metrics and labels
//! that exist, and a real Prometheus that scrapes a real Weir evaluates all of them. Grafana is in
//! no distribution that these tests install from, so that it shows the dashboard is not tested:
//! only that the file is one object whose queries are right.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::process::Command;

use serde_json::Value;
use weir::telemetry::names::{self, Kind};

use crate::harness::client::{Client, get_blocking};
use crate::harness::process::{Service, run};
use crate::harness::toml::simple;
use crate::harness::upstream::Upstream;
use crate::harness::weir::Weir;
use crate::harness::{eventually, free_address};

const ALERTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/prometheus/alerts.yml");
const DASHBOARD: &str = include_str!("../../../docs/grafana/weir.json");
const OPERATIONS: &str = include_str!("../../../docs/operations.md");
const LIMIT: &str = "name = \"day\", algorithm = \"fixed_window\", quota = 2, period = \"1d\"";
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

/// A panel's or an alert's expression, and where it is.
struct Expression {
    place: String,
    text: String,
}

/// The expressions of each panel, and of what is marked in all of them.
fn dashboard() -> Vec<Expression> {
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    let expression = |place: &str, written: &Value| Expression {
        place: place.to_owned(),
        text: written["expr"].as_str().unwrap().to_owned(),
    };
    let mut all = Vec::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        let title = panel["title"].as_str().unwrap();
        let targets = panel["targets"].as_array().into_iter().flatten();
        all.extend(targets.map(|target| expression(title, target)));
    }
    for mark in dashboard["annotations"]["list"].as_array().unwrap() {
        all.push(expression(mark["name"].as_str().unwrap(), mark));
    }
    all
}

/// The expressions of all alerts. That these are all, and well written, is what promtool says.
fn alerts() -> Vec<Expression> {
    let text = std::fs::read_to_string(ALERTS).unwrap();
    // Each `expr:` is one line, or the more indented ones after `>-`.
    let mut found: Vec<Expression> = Vec::new();
    let mut name = "";
    let mut folded = false;
    for line in text.lines() {
        if let Some(alert) = line.trim_start().strip_prefix("- alert: ") {
            name = alert;
        } else if let Some(written) = line.strip_prefix("        expr: ") {
            folded = written == ">-";
            let text = if folded { String::new() } else { written.to_owned() };
            found.push(Expression { place: name.to_owned(), text });
        } else if folded && line.starts_with("          ") {
            found.last_mut().unwrap().text += &format!("{} ", line.trim());
        } else {
            folded = false;
        }
    }
    found
}

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

#[test]
fn promtool_accepts_the_alerts() {
    let checked = run(Command::new("promtool").args(["check", "rules", ALERTS]));
    assert_eq!(checked.code, 0, "{}{}", checked.out, checked.err);
    let count = alerts().len();
    assert!(checked.out.contains(&format!("{count} rules found")), "{}", checked.out);
}

#[test]
fn alerts_fire_when_they_should() {
    let cases = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/prometheus/alerts_test.yml");
    let tested = run(Command::new("promtool").args(["test", "rules", cases]));
    assert_eq!(tested.code, 0, "{}{}", tested.out, tested.err);
}

/// A Prometheus that scrapes one Weir twice a second.
struct Prometheus {
    address: SocketAddr,
    _folder: tempfile::TempDir,
    _service: Service,
}

impl Prometheus {
    fn scraping(admin: SocketAddr) -> Self {
        let (folder, address) = (tempfile::tempdir().unwrap(), free_address());
        // As the guide writes it, but more often.
        let written = OPERATIONS.split("```yaml\n").nth(1).unwrap().split("```").next().unwrap();
        assert!(written.contains("[alerts.yml]") && written.contains("127.0.0.1:9901"));
        let config = format!(
            "global: {{ scrape_interval: 500ms, scrape_timeout: 500ms, evaluation_interval: 500ms }}\n{written}"
        )
        .replace("[alerts.yml]", &format!("[{ALERTS:?}]"))
        .replace("127.0.0.1:9901", &admin.to_string());
        let file = folder.path().join("prometheus.yml");
        std::fs::write(&file, config).unwrap();
        let mut command = Command::new("prometheus");
        command
            .arg(format!("--config.file={}", file.display()))
            .arg(format!("--storage.tsdb.path={}", folder.path().join("data").display()))
            .arg(format!("--web.listen-address={address}"));
        Self { address, _service: Service::spawn(&mut command), _folder: folder }
    }

    fn ask(&self, path: &str) -> Result<Value, String> {
        let reply = get_blocking(self.address, path).map_err(|error| format!("{error:?}"))?;
        let answer: Value =
            serde_json::from_slice(&reply.body).map_err(|error| error.to_string())?;
        if answer["status"] == "success" {
            Ok(answer["data"].clone())
        } else {
            Err(answer.to_string())
        }
    }

    /// How many series an expression has now.
    fn evaluate(&self, expression: &str) -> Result<usize, String> {
        let escaped: String = expression.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let data = self.ask(&format!("/api/v1/query?query={escaped}"))?;
        Ok(data["result"].as_array().map_or(0, Vec::len))
    }

    /// The alerts that fire, after each rule was evaluated without an error.
    fn firing(&self) -> Result<BTreeSet<String>, String> {
        let data = self.ask("/api/v1/rules")?;
        let mut firing = BTreeSet::new();
        for rule in data["groups"][0]["rules"].as_array().ok_or("no rules")? {
            if rule["health"] != "ok" {
                return Err(rule.to_string());
            }
            if rule["state"] == "firing" {
                firing.insert(rule["name"].as_str().unwrap_or_default().to_owned());
            }
        }
        Ok(firing)
    }
}

/// What Grafana puts into a query.
fn filled_in(expression: &str) -> String {
    expression.replace("$__rate_interval", "1m").replace("$instance", ".*")
}

#[tokio::test]
async fn a_real_prometheus_evaluates_all_of_them() {
    let upstream = Upstream::start();
    let config = simple(&upstream.url(), &[LIMIT]).text();
    let weir = Weir::start(&config);
    let prometheus = Prometheus::scraping(weir.admin.unwrap());
    eventually("Prometheus scrapes", || match prometheus.evaluate("up == 1")? {
        1 => Ok(()),
        _ => Err("not yet".to_owned()),
    });
    let mut client = Client::connect(weir.http).await.unwrap();
    for _ in 0..5 {
        client.get("/", &[]).await.unwrap();
    }
    // Shown only while they have a value, or once something happened that did not happen here.
    let absent = [
        "Answered with 5xx",
        "Labels that policies gave",
        "Amounts that requests used",
        "Certificates",
        "Configuration applied",
        "Snapshots",
        "Shadow limits",
        "Reserved, not spent",
        "Connections accepted and ended early",
        "Store errors",
    ];
    eventually("each panel has something to show", || {
        let mut empty = Vec::new();
        for Expression { place, text } in dashboard() {
            let found =
                prometheus.evaluate(&filled_in(&text)).map_err(|why| format!("{text}: {why}"))?;
            if found == 0 && !absent.contains(&place.as_str()) {
                empty.push(format!("{place}: {text}"));
            }
        }
        if empty.is_empty() { Ok(()) } else { Err(empty.join("\n")) }
    });
    let firing = eventually("rules are evaluated", || prometheus.firing());
    assert_eq!(firing, BTreeSet::new(), "nothing has failed yet");

    weir.reload(&config.replace("[[routes]]", "[[rotues]]"), "refused");
    eventually("the alert fires", || {
        let firing = prometheus.firing()?;
        if firing == ["WeirReloadRefused".to_owned()].into() {
            Ok(())
        } else {
            Err(format!("{firing:?}"))
        }
    });
}
