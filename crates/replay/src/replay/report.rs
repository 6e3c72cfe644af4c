//! All that a replay found, with the types that it consists of, and its form as JSON. `text` writes
//! it for a terminal, `page` for a browser.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use serde::Serialize;
use serde_json::{Value, json};

use super::difference::Difference;
use super::read::Summary;
use super::record::{CLIENTS_MAX, Client, Record};
use super::tally::{DecidedRequest, LimitTally, Rejection, Tally, VERDICTS};
use super::time::stamp;
use crate::plan::algorithm_text;

pub use super::read::{BrokenLine, DamagedFile};
pub use super::suggest::{Point, Quotas, Suggestion};
pub use super::tally::{
    ClientTally, Counts, FactTally, KeyTally, PolicyTally, Refusal, Row, Timeline,
};

/// Maximum number of clients and keys that a report lists.
pub(super) const LISTED_MAX: usize = 20;

/// What a replay found.
#[derive(Debug, Default)]
pub struct ReplayReport {
    /// What was read.
    pub summary: Summary,
    /// The clients, by number.
    pub clients: Vec<Client>,
    /// Whether the candidate has routes of hosts.
    pub has_hosts: bool,
    /// The candidate's file.
    pub config: String,
    /// What became of the requests under it.
    pub candidate: Tally,
    /// The file that it is compared with.
    pub against_config: Option<String>,
    /// What became of them there, and what differs.
    pub against: Option<(Tally, Difference)>,
    /// What the quota of each limit of the candidate could be; none where it has no quota.
    pub quotas: Vec<Option<Quotas>>,
    /// The share of keys for which quotas are suggested, in percent.
    pub percent: f64,
}

impl ReplayReport {
    /// A client's text, by its number.
    pub(super) fn client(&self, number: u32) -> &str {
        self.clients.get(number as usize).map_or("", |client| &client.text)
    }

    /// A key as people know it: of an address that stands for a name, that name.
    pub(super) fn key(&self, key: &str) -> String {
        let reserved = key.parse().ok().filter(|address: &Ipv4Addr| address.to_bits() >> 28 == 0xf);
        let named = reserved.and_then(|address| {
            self.clients.iter().find(|client| client.address == IpAddr::V4(address))
        });
        named.map_or_else(|| key.to_owned(), |client| client.text.to_string())
    }

    /// The clients that were stopped most: number, requests, stopped, first.
    pub(super) fn stopped_clients(&self) -> Vec<(u32, u64, u64, i64)> {
        let all = self.candidate.clients.iter().zip(0_u32..);
        let stopped = all.filter(|(client, _)| client.stopped > 0).map(|(client, number)| {
            (number, client.requests, client.stopped, client.first_stopped_us)
        });
        let mut stopped: Vec<_> = stopped.collect();
        stopped.sort_unstable_by_key(|(number, _, count, _)| (std::cmp::Reverse(*count), *number));
        stopped.truncate(LISTED_MAX);
        stopped
    }

    /// How many clients there are, and how many of them were stopped at least once.
    pub(super) fn clients_counted(&self) -> (usize, usize) {
        let seen = self.candidate.clients.iter().filter(|client| client.requests > 0);
        let stopped = self.candidate.clients.iter().filter(|client| client.stopped > 0);
        (seen.count(), stopped.count())
    }

    /// What the log does not record, one sentence each.
    pub(super) fn gaps(&self) -> Vec<String> {
        let Self { candidate, summary, .. } = self;
        let mut gaps = Vec::new();
        for policy in &candidate.policies {
            let all = policy.counts.all();
            for fact in &policy.facts {
                let FactTally { name, of_reply, missing, digests, .. } = fact;
                let of = if *of_reply { "`settle` reads of replies" } else { "reads" };
                let read = format!("policy {} {of} {name}", policy.name);
                if *missing > 0 {
                    gaps.push(format!(
                        "{read}: the log does not record it for {missing} of {all} requests"
                    ));
                }
                if *digests > 0 {
                    gaps.push(format!(
                        "{read}: the log has only its digest for {digests} of {all} requests. That distinguishes values, but does not say which of them a configuration names"
                    ));
                }
            }
        }
        let mut count = |count: u64, text: &str| {
            if count > 0 {
                gaps.push(format!("{count} {text}"));
            }
        };
        count(
            u64::from(summary.names),
            "clients are names: each counts as a client with an address of its own, of 240.0.0.0/4",
        );
        count(
            if self.has_hosts { candidate.without_host } else { 0 },
            "requests do not say which host they asked for: --host names it",
        );
        count(
            candidate.without_status,
            "requests have no status: their upstream is assumed to have answered 200",
        );
        count(
            candidate.were_refused,
            "requests were refused by a limiter when they were logged: their upstream is assumed to have answered 200",
        );
        count(
            summary.late,
            "requests were further out of order than can be sorted: they are taken at the time of the request before them",
        );
        count(
            candidate.other_limits,
            "limits beyond the first 256 were asked as well: they are not listed",
        );
        if summary.left_out > 0 {
            gaps.push(format!(
                "{} requests of clients beyond the first {CLIENTS_MAX} were left out",
                summary.left_out
            ));
        }
        for limit in candidate.limits.iter().filter(|limit| limit.settled && !limit.free) {
            gaps.push(format!(
                "limit {}: what its policy charges or gives back when a request has ended is not taken into account in the suggested quota, which may be too small or too large",
                limit.name
            ));
        }
        gaps
    }

    /// One JSON object.
    #[must_use]
    pub fn json(&self) -> Value {
        let Summary {
            files,
            lines,
            blank,
            skipped,
            calls,
            to_https,
            rejected,
            broken,
            broken_shown,
            damaged,
            left_out,
            out_of_order,
            late,
            names,
        } = &self.summary;
        let files = files.iter().map(|(name, format)| json!({ "name": name, "format": format }));
        let shown_broken = broken_shown
            .iter()
            .map(|it| json!({ "file": it.file, "line": it.line, "why": it.why }));
        let damaged = damaged.iter().map(|it| {
            json!({ "file": it.file, "byte": it.bytes, "lines_before": it.lines, "ends_there": it.ends })
        });
        let clients = self.clients_counted();
        let stopped = self.stopped_clients();
        let stopped = stopped.iter().map(|(number, requests, stopped, first_us)| {
            json!({
                "client": self.client(*number),
                "requests": requests,
                "stopped": stopped,
                "first": stamp(*first_us),
            })
        });
        let mut all = json!({
            "config": self.config,
            "log": {
                "files": list(files),
                "lines": lines,
                "blank": blank,
                "not_requests": skipped,
                "calls": calls,
                "to_https": to_https,
                "rejected": rejected,
                "broken": broken,
                "broken_lines": list(shown_broken),
                "damaged": list(damaged),
                "left_out": left_out,
                "out_of_order": out_of_order,
                "late": late,
                "clients_with_names": names,
            },
            "clients": { "all": clients.0, "stopped": clients.1, "most_stopped": list(stopped) },
            "limits": list(self.candidate.limits.iter().zip(&self.quotas).map(|it| self.limit(it))),
            "percent": self.percent,
            "refusals": list(self.candidate.refusals.iter().map(|one| self.refusal(one))),
            "not_in_the_log": self.gaps(),
        });
        let mut insert = |name: &str, value: Value| {
            if let Some(members) = all.as_object_mut() {
                members.insert(name.to_owned(), value);
            }
        };
        insert("requests", tally(&self.candidate));
        let against = self.against.as_ref().map(|(against, difference)| {
            json!({
                "config": self.against_config,
                "requests": tally(against),
                "difference": self.difference(difference),
            })
        });
        insert("against", json!(against));
        all
    }

    fn refusal(&self, refusal: &Refusal) -> Value {
        let by = refusal.by.iter();
        let by = by.map(|(limit, key)| json!({ "limit": limit, "key": self.key(key) }));
        json!({
            "at": stamp(refusal.at_us),
            "client": self.client(refusal.client),
            "request": refusal.request,
            "verdict": refusal.verdict.word(),
            "by": list(by),
            "passes_in_s": refusal.passes_in_us.map(seconds),
            "cause": refusal.cause,
            "rejection": refusal.rejection.as_ref().map(rejection),
        })
    }

    fn difference(&self, difference: &Difference) -> Value {
        let clients = difference.top_clients(LISTED_MAX);
        let clients = clients.iter().map(|(number, stopped, passed)| {
            json!({ "client": self.client(*number), "newly_stopped": stopped, "newly_passed": passed })
        });
        let routes = difference.routes.iter().map(|(route, (stopped, passed))| {
            json!({ "route": route, "newly_stopped": stopped, "newly_passed": passed })
        });
        json!({
            "pass_both": difference.pass_both,
            "stopped_both": difference.stopped_both,
            "newly_stopped": difference.newly_stopped,
            "newly_passed": difference.newly_passed,
            "clients_changed": difference.clients.len(),
            "clients": list(clients),
            "routes": list(routes),
            "first_newly_stopped": list(difference.first.iter().map(|one| self.refusal(one))),
        })
    }

    fn limit(&self, (limit, quotas): (&LimitTally, &Option<Quotas>)) -> Value {
        let keys = limit.refused_keys(LISTED_MAX);
        let keys = keys
            .iter()
            .map(|(key, tally)| json!({ "key": self.key(key), "asked": tally.asked, "refused": tally.refused }));
        let suggestion = quotas.as_ref().map(|Quotas { suggestion, .. }| {
            json!({
                "quota": suggestion.quota,
                "never_refused": suggestion.never_refused,
                "never_refused_now": suggestion.never_refused_now,
                "keys": suggestion.keys,
                "complete": !limit.demands_cut,
            })
        });
        let point = |point: &Point| json!({ "quota": point.quota, "requests_refused": point.requests, "keys_refused": point.keys });
        let curve = quotas.as_ref().and_then(|quotas| quotas.curve.as_ref());
        let curve = curve.map(|points| list(points.iter().map(point)));
        json!({
            "scope": limit.scope,
            "name": limit.name,
            "algorithm": algorithm_text(&limit.algorithm),
            "quota": limit.algorithm.amount(),
            "shadow": limit.shadow,
            "asked": limit.asked,
            "refused": limit.refused,
            "keys": limit.keys.len(),
            "keys_refused": limit.keys_refused(),
            "first_refused": limit.first_refused_us.map(stamp),
            "longest_wait_s": seconds(limit.longest_wait_us),
            "most_refused": list(keys),
            "suggestion": suggestion,
            "curve": curve,
        })
    }
}

/// A request that does not reach its upstream, on a line of its own: file, line, time, client,
/// limit, key.
#[must_use]
pub fn stopped_line(
    record: &Record,
    client: &Client,
    file: &str,
    seen: &DecidedRequest<'_>,
) -> Value {
    // A client that is a name is counted under an address that stands for it.
    let is_name = client.text.parse::<IpAddr>().is_err();
    let invented = is_name.then(|| client.address.to_string());
    let by = seen.refusing().map(|(limit, outcome)| {
        json!({
            "limit": limit.name,
            "key": if Some(&limit.key) == invented.as_ref() { &client.text } else { limit.key.as_str() },
            "had": outcome.remaining,
            "asked": limit.cost,
            "passes_in_s": outcome.retry_after_us.map(seconds),
        })
    });
    json!({
        "file": file,
        "line": record.line,
        "at": stamp(record.at_us),
        "client": client.text,
        "method": record.method(),
        "target": record.target(),
        "route": seen.route,
        "policy": seen.policy.map(|policy| policy.name),
        "verdict": seen.verdict.word(),
        "by": list(by),
        "passes_in_s": seen.passes_in_us.map(seconds),
        "cause": seen.cause,
        "rejection": seen.rejection.as_ref().map(rejection),
    })
}

fn rejection<Text: Serialize>(rejected: &Rejection<Text>) -> Value {
    let Rejection { check, found, expected } = rejected;
    json!({ "check": check, "found": found, "expected": expected })
}

fn list(values: impl Iterator<Item = Value>) -> Value {
    Value::Array(values.collect())
}

fn seconds(us: u64) -> f64 {
    Duration::from_micros(us).as_secs_f64()
}

fn counts(counts: &Counts) -> Value {
    let each =
        VERDICTS.iter().map(|(verdict, word)| ((*word).to_owned(), counts.of(*verdict).into()));
    let mut all: serde_json::Map<String, Value> = each.collect();
    all.insert("all".to_owned(), counts.all().into());
    Value::Object(all)
}

fn tally(of: &Tally) -> Value {
    let routes =
        of.routes.iter().map(|row| json!({ "route": row.name, "requests": counts(&row.counts) }));
    let policies = of
        .policies
        .iter()
        .map(|policy| json!({ "policy": policy.name, "requests": counts(&policy.counts) }));
    let timeline = of.timeline.as_ref();
    let spans = timeline.map(|line| {
        let spans = line.spans.iter().map(|(passed, stopped)| json!([passed, stopped]));
        json!({
            "from": stamp(line.start_us),
            "span_s": seconds(line.span_us.unsigned_abs()),
            "passed_stopped": list(spans),
        })
    });
    json!({
        "counts": counts(&of.counts),
        "last": stamp(of.last_us),
        "routes": list(routes),
        "policies": list(policies),
        "over_time": spans,
    })
}
