//! Decisions in words.

use std::fmt::Write as _;
use std::time::Duration;

use super::shell;
use crate::plan::{Enforcement, Limit, LimitOutcome, Role};
pub(super) use crate::plan::{
    algorithm_text as algorithm, duration_text as time, wait_text as wait,
};
use crate::policy;
use crate::proxy::account::{Account, Cause, LimitAccount, Verdict};
use crate::proxy::trial::TrialRequest;

/// `admitted`, `denied 403`.
pub(super) fn verdict(verdict: Option<Verdict>, status: Option<u16>) -> String {
    let word = verdict.map_or("rejected", Verdict::word);
    let tells = matches!(verdict, Some(Verdict::Denied) | None);
    match status.filter(|_| tells) {
        Some(status) => format!("{word} {status}"),
        None => word.to_owned(),
    }
}

/// What became of a request: `admitted`, `denied 403`, `308 redirected to https`.
pub(super) fn outcome(account: &Account) -> String {
    match (&account.to_https, account.status) {
        (Some(_), Some(status)) => format!("{status} redirected to https"),
        _ => verdict(account.verdict, account.status),
    }
}

/// `GET /search from 203.0.113.7`.
pub(super) fn request(request: &TrialRequest) -> String {
    format!("{} {} from {}", request.method, request.target, request.from)
}

/// A text from outside, on one line.
pub(super) fn quoted(text: &str) -> String {
    format!("{text:?}")
}

/// Who decided, in one line: for a difference.
pub(super) fn reason(account: &Account) -> String {
    let limits: Vec<String> = account.limits.iter().map(short).collect();
    if !limits.is_empty() {
        return limits.join("; ");
    }
    match (account.verdict, account.decision.as_ref().map(|decision| &decision.verdict)) {
        (Some(Verdict::Denied), Some(policy::Verdict::Deny(denial))) => {
            format!("the policy denied it: {}", quoted(&denial.reason))
        }
        (Some(Verdict::Failed), _) => failed(account),
        (Some(Verdict::Uncounted), _) => {
            format!("{}; on_policy_error let it through", failed(account))
        }
        (None, _) => match &account.to_https {
            Some(url) => {
                format!("its listener redirects to {}, before a route is looked for", quoted(url))
            }
            None => rejected(account),
        },
        _ if account.route.is_none() => "Weir answers it itself".to_owned(),
        _ if account.policy.is_none() => "the route has no policy".to_owned(),
        _ => "the policy asked no limit".to_owned(),
    }
}

/// That the policy failed, and why.
fn failed(account: &Account) -> String {
    let why = account.policy_error.as_deref().map(|why| format!(": {why}"));
    format!("the policy failed{}", why.unwrap_or_default())
}

/// Why it was rejected, before or after the policy was asked. No limit was.
fn rejected(account: &Account) -> String {
    let status = account.status.map(|status| format!(" with {status}"));
    let when = match account.decision {
        None => "before the policy was asked",
        Some(_) => "before its limits were asked",
    };
    let mut text = format!("refused{} {when}", status.unwrap_or_default());
    let _ = match (&account.rejection, account.cause) {
        (Some(rejection), _) => write!(text, ", {rejection}"),
        (None, Some(Cause::Maintenance)) => {
            write!(text, ", since the route is being worked on (maintenance)")
        }
        (None, Some(cause)) => write!(text, ", for the cause `{}`", cause.word()),
        (None, None) => Ok(()),
    };
    text
}

fn short(of: &LimitAccount) -> String {
    let LimitAccount { limit, outcome, .. } = of;
    let mut text =
        format!("{} {}: had {}, asked {}", limit.name, counter(limit), of.had(), limit.cost);
    if !outcome.fits {
        let _ = write!(text, ", {}", would_pass(limit, outcome));
    }
    text
}

/// Key and tag, as `weir key` takes them.
fn counter(limit: &Limit) -> String {
    let key = shell::key(&limit.key);
    match &limit.tag {
        Some(tag) => format!("{key} tag {}", shell::key(tag)),
        None => key,
    }
}

fn would_pass(limit: &Limit, outcome: &LimitOutcome) -> String {
    if limit.role == Role::Assured {
        return "borrows from its parent".to_owned();
    }
    let refused =
        if limit.enforcement == Enforcement::Shadow { "would refuse (shadow)" } else { "refuses" };
    match outcome.retry_after_us {
        Some(us) => format!("{refused}, passes in {}", wait(Duration::from_micros(us))),
        None => format!("{refused}, and waiting does not help"),
    }
}

/// What the policy was shown and what it answered, a line each, and a line for each limit. `left`
/// is what the limits have after the request.
pub(super) fn account(account: &Account, left: &[(String, LimitOutcome)]) -> String {
    let mut lines = Vec::new();
    match (&account.policy, &account.route) {
        (Some(policy), Some(route)) => lines.push(format!("policy {policy}, route {route}")),
        (None, Some(route)) => lines.push(format!("route {route}, which has no policy")),
        (_, None) if account.verdict == Some(Verdict::Admitted) => lines.push(reason(account)),
        (_, None) => {}
    }
    if !account.facts.is_empty() {
        let facts = account.facts.iter().map(|(name, value)| format!("{name}={}", quoted(value)));
        lines.push(format!("sees {}", facts.collect::<Vec<_>>().join(", ")));
    }
    let is_uncounted = account.policy.is_none() && account.verdict == Some(Verdict::Admitted);
    if account.limits.is_empty() && !is_uncounted {
        lines.push(reason(account));
    }
    for of in &account.limits {
        let now = left.iter().find(|(name, _)| *name == of.limit.name).map(|(_, now)| now);
        lines.push(limit(of, now));
    }
    if !account.delay.is_zero() {
        lines.push(format!("waits {}", time(account.delay)));
    }
    let decision = account.decision.as_deref();
    let set = |what: &str, pairs: &[(String, String)]| {
        let pairs: Vec<String> =
            pairs.iter().map(|(name, value)| format!("{name}={}", quoted(value))).collect();
        (!pairs.is_empty()).then(|| format!("{what} {}", pairs.join(", ")))
    };
    lines.extend(decision.and_then(|it| set("labels", &it.labels)));
    lines.extend(decision.and_then(|it| set("sets for the upstream", &it.upstream_headers)));
    lines.extend(decision.and_then(|it| set("sets for the client", &it.response_headers)));
    lines.iter().map(|line| format!("    {line}\n")).collect()
}

fn limit(of: &LimitAccount, now: Option<&LimitOutcome>) -> String {
    let LimitAccount { limit, outcome, took } = of;
    let mut text = format!(
        "{} ({}) key {}: had {}, ",
        limit.name,
        algorithm(&limit.algorithm),
        counter(limit),
        of.had()
    );
    if outcome.fits {
        let taken = if *took == limit.cost {
            format!("took {took}")
        } else {
            format!("asked {}, took {took}", limit.cost)
        };
        text.push_str(&taken);
    } else {
        let _ = write!(text, "asked {}, {}", limit.cost, would_pass(limit, outcome));
    }
    if let Some(now) = now {
        let _ = write!(text, "; {} left", now.remaining);
        if now.remaining != outcome.remaining {
            let _ = write!(text, " (before it was settled {})", outcome.remaining);
        }
        if now.reset_us > 0 {
            let _ = write!(text, ", all back in {}", wait(Duration::from_micros(now.reset_us)));
        }
    }
    text
}
