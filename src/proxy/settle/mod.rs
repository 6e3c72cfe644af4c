//! The sixth phase, the end of a request: settles its grant and calls the policy's `settle`. Knows
//! no connection.
//!
//! `settle` is called if the policy asked for it and the request was let through. After a refusal,
//! of which nothing was taken, it is called only if the policy asked for that, too. If it fails,
//! the refunds that the limits declare apply, as if it had returned nothing.

pub(super) mod cut;
mod messages;
pub(super) mod usage;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use http::HeaderMap;

use self::usage::Usage;
use crate::limit::{Ending, Grant};
use crate::plan::{Adjustment, Limit};
use crate::policy::{FactNames, LimitResult, Member, ResponseOutcome, ResponseView, Settlement};
use crate::proxy::decide::keys::{self, ComesBack};
use crate::proxy::decide::{Decided, facts};
use crate::proxy::forward::sent::{BYTES_UNKNOWN, REQUEST_BYTES, REQUEST_TIMEOUT, Sent};
use crate::proxy::forward::tunnel::{MESSAGES, MessageCounts};
use crate::proxy::handle::RouteHandle;
use crate::proxy::receive::Received;
use crate::proxy::receive::text::latin1;
use crate::proxy::reply::Answer;
use crate::proxy::route::Routed;
use crate::proxy::verdict::Verdict;
use crate::telemetry::Label as _;
use crate::upstream::Cause;
use crate::wire::Fields;

/// What is kept of a reply for the policy's `settle`.
#[derive(Debug, Default)]
pub(super) struct ReplyNotes {
    /// Facts of its head and of its trailers.
    pub(super) facts: Vec<(String, String)>,
    /// What the request uses, if its policy wants to know.
    pub(super) usage: Option<Box<Usage>>,
    /// The reply was somebody else's: what they say of it.
    pub(super) reported: Option<ReportedReply>,
}

/// A reply of somebody else's.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReportedReply {
    pub(super) status: u16,
    /// Whether it was their upstream's.
    pub(super) by_upstream: bool,
}

/// A request that has ended.
#[derive(Clone, Copy)]
pub(super) struct Ended<'a> {
    pub(super) received: &'a Received,
    pub(super) routed: &'a Routed,
    pub(super) decided: &'a Decided,
    pub(super) sent: Option<&'a Sent>,
    pub(super) answer: &'a Answer,
    pub(super) notes: &'a ReplyNotes,
    pub(super) ending: Ending,
    /// The bytes of the reply's body.
    pub(super) bytes: u64,
    /// The messages of the WebSocket that it became, if they were counted.
    pub(super) messages: Option<MessageCounts>,
    pub(super) took: Duration,
}

/// What a policy said of a request when it had ended.
#[derive(Debug)]
pub(super) struct SettlementReport {
    pub(super) labels: Vec<(String, String)>,
    pub(super) amounts: Vec<(String, u64)>,
}

impl SettlementReport {
    /// None if there is nothing to report.
    pub(super) fn of(labels: Vec<(String, String)>, amounts: Vec<(String, u64)>) -> Option<Self> {
        (!labels.is_empty() || !amounts.is_empty()).then_some(Self { labels, amounts })
    }
}

/// How a fact is found; `None` where it does not exist.
type Find = fn(&Ended<'_>) -> Option<u64>;

/// The facts of a response that are known at its end: the name in a manifest, and how the value is
/// found.
const AT_THE_END: &[(&str, Find)] = &[
    (REQUEST_BYTES, |end| {
        let bytes = end.sent?.request_bytes.as_ref()?.load(Ordering::Relaxed);
        (bytes != BYTES_UNKNOWN).then_some(bytes)
    }),
    ("response.bytes", |end| Some(end.bytes)),
    (MESSAGES[0], |end| Some(end.messages?.up)),
    (MESSAGES[1], |end| Some(end.messages?.down)),
    (DURATION, |end| u64::try_from(end.took.as_millis()).ok()),
];

pub(super) use messages::watch;

/// How the names of facts begin: fields of a reply's head, and of its trailers.
const HEADER: &str = "header.";
const TRAILER: &str = "trailer.";
/// What a reply uses.
const USAGE: &str = "usage.";
/// What is known of a reply that somebody else has sent.
const DURATION: &str = "duration-ms";

/// Checks that somebody may say this of a reply of theirs.
///
/// # Errors
/// What was found and what was expected.
pub(super) fn check_reported(name: &str) -> Result<(), String> {
    if name.starts_with(USAGE) {
        return Ok(());
    }
    match names().check("response fact", name) {
        Ok(_) if name != DURATION => Ok(()),
        Ok(_) => Err(format!("the fact {name:?}, which is measured here")),
        Err((found, expected)) => Err(format!("{found} in `facts`; expected {expected}")),
    }
}

/// The names of all facts of a response.
pub(super) fn names() -> FactNames {
    FactNames {
        single: AT_THE_END.iter().map(|(name, _)| *name).collect(),
        families: vec![(HEADER, Member::Token), (TRAILER, Member::Token)],
    }
}

impl ReplyNotes {
    /// Keeps what `settle` reads of the reply's head, since the head is gone when it is called.
    pub(super) fn note_head(&mut self, routed: &Routed, decided: Option<&Decided>, head: &Fields) {
        if let Some(names) = response_facts(routed, decided) {
            self.facts = of_fields(names, HEADER, head);
        }
    }

    /// Keeps what somebody else says of a reply of theirs.
    pub(super) fn note_report(
        &mut self,
        (routed, decided): (&Routed, Option<&Decided>),
        reply: ReportedReply,
        facts: &[(String, String)],
    ) {
        self.reported = Some(reply);
        let Some(names) = response_facts(routed, decided) else { return };
        for (given, value) in facts {
            let declared = names.iter().find(|name| facts::is_same_fact(given, name));
            // What meters would read is named by the decision and not by the policy's manifest.
            let metered = given.starts_with(USAGE).then_some(given);
            if let Some(name) = declared.or(metered) {
                self.facts.push((name.clone(), value.clone()));
            }
        }
    }

    /// The same of its trailers.
    pub(super) fn note_trailers(
        &mut self,
        routed: &Routed,
        decided: Option<&Decided>,
        trailers: &HeaderMap,
    ) {
        if let Some(names) = response_facts(routed, decided) {
            self.facts.extend(of_fields(names, TRAILER, &Fields::from(trailers)));
        }
    }
}

/// The response facts that the policy's `settle` reads, if it is to be called.
fn response_facts<'a>(routed: &'a Routed, decided: Option<&Decided>) -> Option<&'a [String]> {
    decided?.memo()?;
    Some(routed.handle.policy.as_ref()?.policy.response_facts())
}

/// The facts of a family, found in a head or in trailers. A repeated field is a repeated fact.
pub(super) fn of_fields(names: &[String], family: &str, fields: &Fields) -> Vec<(String, String)> {
    let names = names.iter().filter_map(|fact| Some((fact, fact.strip_prefix(family)?)));
    let values = names.flat_map(|(fact, name)| {
        fields.get_all(name).map(|value| (fact.clone(), latin1(value).into_owned()))
    });
    values.collect()
}

/// Calls the policy's `settle`, if the policy asked for that. If it fails, it is as if it had
/// returned nothing.
pub(super) fn ask(ended: &Ended<'_>) -> Settlement {
    let asked = ended.decided.memo().zip(ended.routed.handle.policy.as_ref());
    let Some((memo, scope)) = asked else { return Settlement::default() };
    let view = view(ended, scope.policy.response_facts());
    let id = &ended.received.id;
    match scope.policy.settle_for(Some(id.as_bytes()), memo, &view) {
        Ok(wanted) => wanted,
        Err(error) => {
            if let Some(held_back) = ended.routed.handle.tally.failure_due() {
                let request_id = id.as_str();
                tracing::warn!(request_id, %error, held_back, "settle failed: the declared refunds apply");
            }
            Settlement::default()
        }
    }
}

/// Settles what was taken for a request that ended at `now`, as its policy said.
pub(super) fn settle(
    handle: &Arc<RouteHandle>,
    usage: Option<&Usage>,
    (grant, comes_back): (Option<Grant>, ComesBack),
    (ending, now): (Ending, Instant),
    adjustments: Vec<Adjustment>,
) {
    let adjustments = match usage {
        Some(usage) => {
            let handle = Arc::clone(handle);
            usage.settle_steps(adjustments, move |grant, adjustments| {
                let counted = CountedUnits::Nothing;
                settle_grant(&handle, (grant, counted), (ending, now), adjustments);
            })
        }
        None => adjustments,
    };
    if let Some(grant) = grant {
        let counted = CountedUnits::Decided(comes_back);
        settle_grant(handle, (grant, counted), (ending, now), &adjustments);
    }
}

/// Which units of a grant `keys` has counted already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CountedUnits {
    /// Those that can't come back, with the decision.
    Decided(ComesBack),
    /// None.
    Nothing,
}

impl CountedUnits {
    /// Whether those of a limit were counted.
    fn are_of(self, limit: &Limit) -> bool {
        match self {
            Self::Decided(comes_back) => !comes_back.may(limit),
            Self::Nothing => false,
        }
    }
}

/// Settles a grant, and has what it came to counted where that was not known before.
fn settle_grant(
    handle: &RouteHandle,
    (grant, counted): (Grant, CountedUnits),
    (ending, now): (Ending, Instant),
    adjustments: &[Adjustment],
) {
    let is_known =
        adjustments.is_empty() && grant.limits().iter().all(|limit| counted.are_of(limit));
    if is_known || !handle.insight.counts_keys() {
        return grant.settle(ending, adjustments);
    }
    grant.settle_with_report(ending, adjustments, |limit, identity, settled| {
        let taken = if counted.are_of(limit) {
            0
        } else {
            settled.taken.saturating_sub(settled.given_back)
        };
        keys::count_settled(handle, now, limit, identity, taken.saturating_add(settled.charged));
    });
}

/// The end of the request as the policy sees it.
pub(super) fn view(ended: &Ended<'_>, names: &[String]) -> ResponseView {
    let mut facts = ended.notes.facts.clone();
    let reported = ended.notes.reported;
    for name in names.iter().filter(|name| reported.is_none() || *name == DURATION) {
        let known = AT_THE_END.iter().find(|(known, _)| known == name);
        let value = known.and_then(|(_, find)| find(ended));
        facts.extend(value.map(|value| (name.clone(), value.to_string())));
    }
    facts.extend(usage::taken(ended.decided));
    facts.extend(ended.notes.usage.iter().flat_map(|usage| usage.facts()));
    let limits = ended.decided.limits().map(|(limits, outcome)| {
        limits
            .iter()
            .zip(&outcome.limits)
            .map(|(limit, outcome)| LimitResult {
                name: limit.name.clone(),
                fits: outcome.fits,
                remaining: outcome.remaining,
                resets_ms: outcome.unmeasured.is_none().then(|| outcome.reset_us.div_ceil(1_000)),
            })
            .collect()
    });
    ResponseView {
        outcome: outcome(ended),
        status: reported.map_or(ended.answer.status, |reply| reply.status),
        by_upstream: match reported {
            Some(reply) => reply.by_upstream,
            None => ended.sent.is_some_and(|sent| sent.by_upstream),
        },
        facts,
        limits: limits.unwrap_or_default(),
    }
}

/// What became of the request, in the words of the contract.
fn outcome(ended: &Ended<'_>) -> ResponseOutcome {
    if ended.decided.verdict == Some(Verdict::Refused) {
        return ResponseOutcome::Refused;
    }
    let late = [Cause::Timeout.label(), REQUEST_TIMEOUT];
    let is_late = ended.answer.failure(ended.sent).is_some_and(|failure| late.contains(&failure));
    match ended.ending {
        Ending::Completed => ResponseOutcome::Completed,
        Ending::Unsent | Ending::Withdrawn => ResponseOutcome::Unsent,
        Ending::UpstreamFailed if is_late => ResponseOutcome::TimedOut,
        Ending::UpstreamFailed => ResponseOutcome::UpstreamFailed,
        Ending::ClientGone if is_late => ResponseOutcome::Overdue,
        Ending::ClientGone => ResponseOutcome::ClientGone,
    }
}
