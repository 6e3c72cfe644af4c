//! A real Prometheus: promtool accepts the alerts, and a server that scrapes a real Weir evaluates
//! them and what the dashboard asks. Grafana is in no distribution that these tests install from,
//! so that it shows the dashboard is not tested.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::process::Command;

use serde_json::Value;

use crate::harness::client::{Client, get_blocking};
use crate::harness::dashboards::{ALERTS, Expression, OPERATIONS, alerts, dashboard};
use crate::harness::process::{Service, run};
use crate::harness::quotas::Stream;
use crate::harness::toml::simple;
use crate::harness::upstream::Upstream;
use crate::harness::weir::Weir;
use crate::harness::{eventually, free_address};

const LIMIT: &str = "name = \"day\", algorithm = \"fixed_window\", quota = 2, period = \"1d\"";
/// A listener for Envoy's quotas, without limits.
const DECISIONS: &str = "
[[listeners]]
address = \"127.0.0.1:0\"
serves = \"decisions\"
[[policies.edge.config.rules]]
descriptor = [\"user\"]
unlimited = true
[policies.edge]
use = \"rls\"
[[routes]]
domain = \"edge\"
policy = \"edge\"
";

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
    let watched = "concurrency = { max = 64 }\nhealth = { path = \"/\", interval = \"100ms\" }\nendpoints = [";
    let mirrored = "policy = \"public\"\nmirror = { upstream = \"api\" }";
    let config = simple(&upstream.url(), &[LIMIT]).text();
    let config = config.replacen("endpoints = [", watched, 1);
    let config = config.replacen("policy = \"public\"", mirrored, 1);
    assert!(config.contains(watched) && config.contains(mirrored), "{config}");
    let config = format!("{config}{DECISIONS}");
    let weir = Weir::start(&config);
    let decisions = weir.listeners().into_iter().find(|address| *address != weir.http).unwrap();
    let mut quotas = Stream::open(decisions, "edge").await;
    quotas.report(&[(&[("user", "a")], 1, 0)]);
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
