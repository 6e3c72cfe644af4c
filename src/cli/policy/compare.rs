//! What became of a request, compared with what a file says should.

use std::time::Duration;

use super::words;
use crate::config::{Difference, Entry};
use crate::plan::{Limit, LimitOutcome};
use crate::proxy::account::{Account, Verdict};

/// An entry of a file, and one of its requests.
#[derive(Clone, Copy)]
pub(super) struct RequestPlace<'a> {
    pub(super) index: usize,
    pub(super) entry: &'a Entry,
    /// The request's number, from 1.
    pub(super) nth: u64,
}

impl RequestPlace<'_> {
    /// `GET /search at 12 s, 3 of 5`.
    pub(super) fn of(&self) -> String {
        let Entry { at, request, times, .. } = self.entry;
        let nth = if *times == 1 { String::new() } else { format!(", {} of {times}", self.nth) };
        format!("{} {} at {}{nth}", request.method, request.target, words::time(*at))
    }

    pub(super) fn difference(
        &self,
        key: &str,
        found: &str,
        expected: impl Into<String>,
        help: Option<String>,
    ) -> Difference {
        Difference {
            setting: format!("requests[{}].{key}", self.index),
            found: format!("{found} ({})", self.of()),
            expected: expected.into(),
            help,
        }
    }
}

/// The differences that show when a request is decided. `left` is what its limits have after it.
pub(super) fn decided(
    place: RequestPlace<'_>,
    account: &Account,
    left: &[(String, LimitOutcome)],
) -> Vec<Difference> {
    let expected = &place.entry.expected;
    let help = || Some(words::reason(account));
    let mut found = Vec::new();
    if let Some((verdict, status)) = expected.verdict {
        let same = verdict == account.verdict
            && status.is_none_or(|status| Some(status) == account.status);
        if !same {
            let is = words::outcome(account);
            found.push(place.difference("expect", &is, words::verdict(verdict, status), help()));
            // What else differs follows from that.
            return found;
        }
    }
    if let Some(limit) = &expected.limit {
        let refusing: Vec<&str> = account.refusing().map(|of| of.limit.name.as_str()).collect();
        if !refusing.contains(&limit.as_str()) {
            let is_asked = account.limits.iter().any(|of| of.limit.name == *limit);
            let is = match (is_asked || account.limits.is_empty(), refusing.is_empty()) {
                (false, _) => no_limit(account),
                (true, true) => "no limit that refused".to_owned(),
                (true, false) => refusing.join(" and "),
            };
            found.push(place.difference("limit", &is, format!("{limit} to refuse"), help()));
        }
    }
    if let Some(wait) = expected.retry_after
        && account.retry_after.map(whole_ms) != Some(wait.as_millis())
    {
        let is = match (account.verdict, account.retry_after) {
            (Some(Verdict::Refused | Verdict::Denied), None) => {
                "no time after which it passes".to_owned()
            }
            (_, None) => words::outcome(account),
            (_, Some(is)) => words::time(is),
        };
        found.push(place.difference("retry_after", &is, words::time(wait), help()));
    }
    if let Some(delay) = expected.delay
        && whole_ms(account.delay) != delay.as_millis()
    {
        found.push(place.difference(
            "delay",
            &words::time(account.delay),
            words::time(delay),
            help(),
        ));
    }
    asked(place, account, &mut found);
    if place.nth == place.entry.times {
        for (name, units) in &expected.remaining {
            let now = left.iter().find(|(limit, _)| limit == name).map(|(_, now)| now.remaining);
            if now != Some(*units) {
                let is = now.map_or_else(|| no_limit(account), |now| now.to_string());
                let key = format!("remaining.{name}");
                found.push(place.difference(&key, &is, units.to_string(), help()));
            }
        }
    }
    found
}

/// What the policy asked for.
fn asked(place: RequestPlace<'_>, account: &Account, found: &mut Vec<Difference>) {
    let expected = &place.entry.expected;
    let limit = |name: &str| -> Option<&Limit> {
        account.limits.iter().map(|of| &of.limit).find(|limit| limit.name == name)
    };
    for (name, cost) in &expected.costs {
        let is = limit(name).map(|limit| limit.cost);
        if is != Some(*cost) {
            let is = is.map_or_else(|| no_limit(account), |is| is.to_string());
            found.push(place.difference(&format!("costs.{name}"), &is, cost.to_string(), None));
        }
    }
    for (name, key) in &expected.keys {
        let is = limit(name).map(|limit| &limit.key);
        if is != Some(key) {
            let is = is.map_or_else(|| no_limit(account), |is| words::quoted(is));
            found.push(place.difference(&format!("keys.{name}"), &is, words::quoted(key), None));
        }
    }
    let decision = account.decision.as_deref();
    let empty = &Vec::new();
    let labels = decision.map_or(empty, |decision| &decision.labels);
    pairs(place, "labels", &expected.labels, labels, found);
    let sent = decision.map_or(empty, |decision| &decision.upstream_headers);
    pairs(place, "to_upstream", &expected.to_upstream, sent, found);
}

/// The differences that show when a request has ended.
pub(super) fn ended(place: RequestPlace<'_>, account: &Account) -> Vec<Difference> {
    let expected = &place.entry.expected;
    let mut found = Vec::new();
    if let Some(status) = expected.status
        && account.status != Some(status)
    {
        let is = account.status.map_or_else(|| "no reply".to_owned(), |is| is.to_string());
        let help = Some(words::reason(account));
        found.push(place.difference("status", &is, status.to_string(), help));
    }
    pairs(place, "to_client", &expected.to_client, &account.headers, &mut found);
    found
}

/// Header names are compared without their case.
fn pairs(
    place: RequestPlace<'_>,
    key: &str,
    expected: &[(String, String)],
    is: &[(String, String)],
    found: &mut Vec<Difference>,
) {
    for (name, value) in expected {
        let values: Vec<&String> = is
            .iter()
            .filter(|(is, _)| is.eq_ignore_ascii_case(name))
            .map(|(_, value)| value)
            .collect();
        if !values.contains(&value) {
            let is: Vec<String> = values.iter().map(|value| words::quoted(value)).collect();
            let is = if is.is_empty() { "nothing".to_owned() } else { is.join(", ") };
            found.push(place.difference(&format!("{key}.{name}"), &is, words::quoted(value), None));
        }
    }
}

fn no_limit(account: &Account) -> String {
    let names: Vec<&str> = account.limits.iter().map(|of| of.limit.name.as_str()).collect();
    if names.is_empty() {
        format!("no limit, as it was {}", words::outcome(account))
    } else {
        format!("no such limit, only {}", names.join(", "))
    }
}

/// Milliseconds as a file writes them. Rounded up, since a shorter wait would be refused.
fn whole_ms(duration: Duration) -> u128 {
    duration.as_micros().div_ceil(1_000)
}
