//! What the live page lists: routes, limits, policies, upstreams and the store.

use std::collections::BTreeSet;

use super::Store;
use super::history::{Growth, History, Sum};
use super::html::{Cell, Column, Kind, NOTHING, Severity, Table, badge, moment, span, thousands};
use crate::app::build::ConfigBuild;
use crate::chart::{escaped, spark};
use crate::engine::{Settings, SnapshotSettings};
use crate::policy::Module;
use crate::telemetry::{Metrics, names};
use crate::upstream::{ConcurrencyStatus, EndpointSettings, EndpointStatus};

/// Maximum number of rows of a table. Those with the most refusals are shown.
const ROWS_MAX: usize = 50;

const ROUTES: &[Column] = &[
    Column { title: "Route", kind: Kind::Name },
    Column { title: "Policy", kind: Kind::Text },
    Column { title: "Requests/s, 1 min", kind: Kind::Number },
    Column { title: "Refused/s, 1 min", kind: Kind::Number },
    Column { title: "Refused, 10 min", kind: Kind::Number },
    Column { title: "Refusals", kind: Kind::Chart },
];

/// Each route, and what was refused on it.
pub(super) fn routes(built: &ConfigBuild, history: &History) -> String {
    let mut rows: Vec<_> = built
        .routes
        .iter()
        .map(|route| {
            let of = |growth: &Growth| growth.sum(&route.name);
            (route, of(&history.requests), of(&history.route_refusals))
        })
        .collect();
    rows.sort_by_key(|(_, requests, refused)| std::cmp::Reverse((refused.all, requests.all)));
    let mut table = Table::new("Requests and refusals by route", ROUTES);
    let left_off = rows.len().saturating_sub(ROWS_MAX);
    for (route, requests, refused) in rows.into_iter().take(ROWS_MAX) {
        let policy = match &route.policy {
            Some(policy) => Cell::text(policy),
            None => Cell::Quiet("none".into()),
        };
        table.row(vec![
            Cell::text(&route.name),
            policy,
            Cell::rate(per_second(&requests, history)),
            Cell::rate(per_second(&refused, history)),
            Cell::count(refused.all),
            Cell::Html(spark(&refused.slots)),
        ]);
    }
    table.html("No routes.") + &more(left_off)
}

const LIMITS: &[Column] = &[
    Column { title: "Limit", kind: Kind::Name },
    Column { title: "Policy", kind: Kind::Text },
    Column { title: "Refused/s, 1 min", kind: Kind::Number },
    Column { title: "Refused, 10 min", kind: Kind::Number },
    Column { title: "Would refuse, 10 min", kind: Kind::Number },
    Column { title: "Refusals", kind: Kind::Chart },
];

/// Each limit that has refused a request, or would have.
pub(super) fn limits(history: &History) -> String {
    let known: BTreeSet<&[String]> =
        history.limit_refusals.labels().chain(history.would_refuse.labels()).collect();
    let mut rows: Vec<_> = known
        .into_iter()
        .map(|labels| {
            let of = |growth: &Growth| growth.of(labels);
            (labels, of(&history.limit_refusals), of(&history.would_refuse))
        })
        .collect();
    rows.sort_by_key(|(_, refused, would)| std::cmp::Reverse((refused.all, would.all)));
    let mut table = Table::new("Refusals by limit", LIMITS);
    let left_off = rows.len().saturating_sub(ROWS_MAX);
    for (labels, refused, would) in rows.into_iter().take(ROWS_MAX) {
        let [policy, limit] = labels else { continue };
        table.row(vec![
            Cell::text(limit),
            Cell::text(policy),
            Cell::rate(per_second(&refused, history)),
            Cell::count(refused.all),
            Cell::count(would.all),
            Cell::Html(spark(&refused.slots)),
        ]);
    }
    table.html("No limit has refused a request.") + &more(left_off)
}

const POLICIES: &[Column] = &[
    Column { title: "Policy", kind: Kind::Name },
    Column { title: "State", kind: Kind::Text },
    Column { title: "Decisions/s, 1 min", kind: Kind::Number },
    Column { title: "Refused/s, 1 min", kind: Kind::Number },
    Column { title: "Failed, 10 min", kind: Kind::Number },
    Column { title: "One call", kind: Kind::Number },
    Column { title: "Module", kind: Kind::Detail },
];

/// Each policy, and how it fares.
pub(super) fn policies(built: &ConfigBuild, history: &History) -> String {
    let mut table = Table::new("Policies", POLICIES);
    let mut all: Vec<_> = built.policies.iter().collect();
    all.sort_by_key(|(name, _)| *name);
    for (name, (settings, policy)) in all {
        let of = |growth: &Growth| growth.sum(name);
        let refused = history.decisions.sum_of(name, |labels| {
            labels.get(1).is_some_and(|decision| matches!(decision.as_str(), "refused" | "denied"))
        });
        let stats = policy.stats();
        let state = if stats.stopped {
            badge(Severity::Bad, "stopped: it keeps failing")
        } else {
            badge(Severity::Good, "serves")
        };
        let module = match &settings.module {
            Module::Shipped(name) => format!("{name} (built in)"),
            Module::File { path, .. } => path.display().to_string(),
        };
        let each = (stats.calls > 0).then(|| stats.time_us as f64 / stats.calls as f64 / 1e6);
        table.row(vec![
            Cell::text(name),
            Cell::Html(state),
            Cell::rate(per_second(&of(&history.decisions), history)),
            Cell::rate(per_second(&refused, history)),
            Cell::count(of(&history.policy_errors).all),
            Cell::time(each.filter(|each| *each > 0.0)),
            Cell::text(module),
        ]);
    }
    table.html("No policies.")
}

const UPSTREAMS: &[Column] = &[
    Column { title: "Host", kind: Kind::Name },
    Column { title: "Upstream", kind: Kind::Text },
    Column { title: "State", kind: Kind::Text },
    Column { title: "Under way", kind: Kind::Text },
    Column { title: "p50", kind: Kind::Number },
    Column { title: "p99", kind: Kind::Number },
    Column { title: "Failed, 10 min", kind: Kind::Number },
];

/// Each host of each upstream. Times and failures are those of the upstream, in its first row.
pub(super) fn upstreams(built: &ConfigBuild, history: &History) -> String {
    let mut table = Table::new("Upstream hosts", UPSTREAMS);
    let mut all: Vec<_> = built.upstreams.iter().collect();
    all.sort_by_key(|(name, _)| *name);
    for (name, (settings, upstream)) in all {
        let times = history.upstream_times(name);
        let failed = history.upstream_errors.sum(name);
        let under_way = upstream.concurrency().map_or_else(String::new, |now| {
            let ConcurrencyStatus { limit, in_flight, waiting, .. } = now;
            match waiting {
                0 => format!("{in_flight} of {limit}"),
                waiting => format!("{in_flight} of {limit}, {waiting} waiting"),
            }
        });
        let mut hosts: Vec<(String, String)> = upstream
            .status()
            .into_iter()
            .map(|host| {
                let address = host.address.to_string();
                let known = host.endpoint.contains(&address);
                let shown =
                    if known { host.endpoint } else { format!("{} at {address}", host.endpoint) };
                let state = if host.healthy == Some(false) {
                    let why = host.check_failed.unwrap_or_default();
                    badge(Severity::Bad, &format!("unhealthy: {why}"))
                } else if host.ejected {
                    badge(Severity::Bad, "ejected: it failed")
                } else {
                    badge(Severity::Good, "serves")
                };
                (shown, state)
            })
            .collect();
        if hosts.is_empty() {
            let unused = |endpoint: &EndpointSettings| {
                (endpoint.url.clone(), badge(Severity::Neutral, "not used yet"))
            };
            hosts.extend(settings.endpoints.iter().map(unused));
        }
        for (index, (host, state)) in hosts.into_iter().enumerate() {
            let of_all = |cell: Cell| if index == 0 { cell } else { Cell::text("") };
            table.row(vec![
                Cell::text(host),
                Cell::text(name),
                Cell::Html(state),
                of_all(Cell::text(under_way.as_str())),
                of_all(Cell::time(times.quantile_s(0.5))),
                of_all(Cell::time(times.quantile_s(0.99))),
                of_all(Cell::count(failed.all)),
            ]);
        }
    }
    table.html("No upstreams: all routes answer by themselves.")
}

/// How many hosts of upstreams can't be used, if any.
pub(super) fn hosts_out(built: &ConfigBuild) -> Option<String> {
    let (mut all, mut out) = (0, 0);
    for (settings, upstream) in built.upstreams.values() {
        let hosts = upstream.status();
        // One that was not used yet does not know its hosts.
        all += if hosts.is_empty() { settings.endpoints.len() } else { hosts.len() };
        let is_out = |host: &&EndpointStatus| host.ejected || host.healthy == Some(false);
        out += hosts.iter().filter(is_out).count();
    }
    (out > 0).then(|| format!("{out} of {all} upstream hosts out"))
}

const SHARDS: &[Column] = &[
    Column { title: "Shard", kind: Kind::Name },
    Column { title: "State", kind: Kind::Text },
    Column { title: "Reason", kind: Kind::Text },
];

/// Where counters are: the shards of Redis, or how many there are in memory.
pub(super) fn store(built: &ConfigBuild, store: &Store, metrics: &Metrics) -> String {
    let settings = match &built.engine_settings {
        Settings::Redis(_) => return shards(store),
        Settings::Embedded(settings) => settings,
    };
    let keys = u64::try_from(metrics.gauge(names::EMBEDDED_KEYS).get()).unwrap_or(0);
    let most = thousands(settings.keys_max as u64);
    let saved = match &settings.snapshot {
        None => "not saved: a restart forgets them".to_owned(),
        Some(SnapshotSettings { path, every }) => {
            let at = metrics
                .gauge_value(names::SNAPSHOT_SAVED)
                .map_or_else(|| "not yet".to_owned(), moment);
            format!(
                "{at}, to {}, every {}",
                escaped(&path.display().to_string()),
                escaped(&span(every.as_secs()))
            )
        }
    };
    format!(
        "<dl class=\"facts\"><div><dt>Counters in memory</dt><dd>{} of {most} keys</dd></div><div><dt>Last saved</dt><dd>{saved}</dd></div></dl>",
        thousands(keys)
    )
}

fn shards(store: &Store) -> String {
    let mut table = Table::new("Redis shards", SHARDS);
    let reason = |node: &str| {
        store.unreached.iter().find(|(other, _)| other == node).map(|(_, why)| why.clone())
    };
    for node in &store.nodes {
        let failing = store.failing.iter().find(|(other, _)| other == node);
        let state = match (failing, &store.error, store.is_asked) {
            (_, _, false) => badge(Severity::Neutral, "being asked"),
            (Some((_, cause)), ..) => badge(Severity::Bad, &format!("fails: {cause}")),
            (None, Some(error), _) => badge(Severity::Bad, &format!("fails: {error}")),
            (None, None, _) => badge(Severity::Good, "serves"),
        };
        // What went wrong on the way to it is over when it serves.
        let fails = failing.is_some() || store.error.is_some();
        let reason = match reason(node).filter(|_| fails) {
            Some(why) => Cell::Text(why),
            None => Cell::Quiet(NOTHING.into()),
        };
        table.row(vec![Cell::text(node), Cell::Html(state), reason]);
    }
    // Such as slots without a master.
    for (what, cause) in store.failing.iter().filter(|(node, _)| !store.nodes.contains(node)) {
        let state = badge(Severity::Bad, &format!("fails: {cause}"));
        table.row(vec![Cell::text(what), Cell::Html(state), Cell::Quiet(NOTHING.into())]);
    }
    table.html("No shard is known yet.")
}

const CERTIFICATES: &[Column] = &[
    Column { title: "Names", kind: Kind::Name },
    Column { title: "State", kind: Kind::Text },
    Column { title: "Until", kind: Kind::Text },
    Column { title: "Listener", kind: Kind::Text },
    Column { title: "File", kind: Kind::Detail },
];
/// A certificate that expires within this many days is marked.
const SOON_DAYS: i64 = 21;
const DAY_S: i64 = 86_400;

/// The certificates that listeners show, the first to expire first.
pub(super) fn certificates(built: &ConfigBuild, now_s: i64) -> String {
    let mut all: Vec<_> = built
        .listeners
        .iter()
        .zip(&built.tls)
        .filter_map(|(listener, tls)| Some((listener, tls.as_ref()?)))
        .flat_map(|(listener, tls)| tls.certificates().iter().map(move |one| (listener, one)))
        .collect();
    all.sort_by_key(|(_, one)| one.expires_s);
    let mut table = Table::new("Certificates", CERTIFICATES);
    for (listener, one) in all {
        let state = match one.expires_s {
            Some(expires_s) => validity((expires_s - now_s).div_euclid(DAY_S)),
            None => badge(Severity::Bad, "not issued yet"),
        };
        let names = match one.names.is_empty() {
            true => Cell::Quiet("no name: the default".into()),
            false => Cell::text(one.names.join(", ")),
        };
        table.row(vec![
            names,
            Cell::Html(state),
            one.expires_s
                .map_or(Cell::Quiet(String::new()), |expires_s| Cell::Html(moment(expires_s))),
            Cell::text(listener.address.to_string()),
            Cell::text(one.file.display().to_string()),
        ]);
    }
    table.html("No listener speaks TLS.")
}

/// A certificate with this many whole days left.
fn validity(days: i64) -> String {
    match days {
        ..0 => badge(Severity::Bad, "expired"),
        0..SOON_DAYS => badge(Severity::Doubtful, &format!("expires in {days} days")),
        _ => badge(Severity::Good, &format!("{days} days left")),
    }
}

fn per_second(sum: &Sum, history: &History) -> f64 {
    sum.minute as f64 / history.minute_s()
}

fn more(left_off: usize) -> String {
    if left_off == 0 { String::new() } else { format!("<p class=\"nothing\">{left_off} more.</p>") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_that_expires_soon_is_marked() {
        for (days, expected) in [
            (-1, "bad\">expired"),
            (0, "warning\">expires in 0 days"),
            (20, "warning\">expires in 20 days"),
            (21, "good\">21 days left"),
        ] {
            assert_eq!(validity(days), format!("<span class=\"badge {expected}</span>"));
        }
    }

    #[test]
    fn limits_are_listed_by_their_refusals() {
        let (metrics, mut history) = (Metrics::new(1), History::default());
        for (limit, count) in [("few", 1), ("many", 7), ("<b>", 3)] {
            metrics.counter(names::LIMIT_REFUSALS, &["public", limit]).add(count);
        }
        metrics.counter(names::LIMIT_WOULD_REFUSE, &["public", "shadow"]).add(2);
        history.note(&metrics, 1.0);
        let html = limits(&history);
        let order: Vec<&str> = html
            .split("<th scope=\"row\" class=\"name\">")
            .skip(1)
            .map(|rest| rest.split("</th>").next().unwrap())
            .collect();
        assert_eq!(order, ["many", "&lt;b&gt;", "few", "shadow"]);
    }

    #[test]
    fn a_shard_shows_what_it_answered() {
        let store = Store {
            is_asked: true,
            nodes: vec!["a:1".into(), "b:1".into()],
            failing: vec![("b:1".into(), "timeout"), ("slots without a master".into(), "cluster")],
            error: None,
            unreached: vec![("b:1".into(), "connection <refused>".into())],
        };
        let html = shards(&store);
        for part in [
            "a:1</th><td><span class=\"badge good\">serves",
            "b:1</th><td><span class=\"badge bad\">fails: timeout</span></td><td>connection &lt;refused&gt;",
            "slots without a master</th><td><span class=\"badge bad\">fails: cluster",
        ] {
            assert!(html.contains(part), "{part}: {html}");
        }
        assert!(shards(&Store::default()).contains("No shard is known yet."));
    }
}
