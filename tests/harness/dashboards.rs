//! The expressions of docs/grafana/weir.json and docs/prometheus/alerts.yml.

use serde_json::Value;

pub const ALERTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/prometheus/alerts.yml");
pub const DASHBOARD: &str = include_str!("../../docs/grafana/weir.json");
pub const OPERATIONS: &str = include_str!("../../docs/operations.md");

/// A panel's or an alert's expression, and where it is.
pub struct Expression {
    pub place: String,
    pub text: String,
}

/// The expressions of each panel, and of what is marked in all of them.
pub fn dashboard() -> Vec<Expression> {
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
pub fn alerts() -> Vec<Expression> {
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
