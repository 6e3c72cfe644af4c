//! What a policy and the proxy say to each other: a decision about a request, and what became of it
//! for `settle`.

use std::sync::Arc;
use std::time::Duration;

use super::{MessageExcess, RefusalReply};
use crate::inspect::{Edit, Meters, Pointer};
use crate::plan::{Adjustment, Plan, Slot};

/// What a policy decided.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// What happens to the request.
    pub verdict: Verdict,
    /// Header fields to set on the request to the upstream. Names are in lower case; each character
    /// of a value stands for one byte (Latin-1).
    pub upstream_headers: Vec<(String, String)>,
    /// Header fields to set on the reply, in the same shape.
    pub response_headers: Vec<(String, String)>,
    /// Labels for the access log.
    pub labels: Vec<(String, String)>,
    /// When present, `settle` is called at the response's end and is given this back.
    pub settle_with: Option<String>,
    /// Whether `settle` is called even if a limit refuses the request.
    pub settle_on_refusal: bool,
    /// What is done with the bodies of the request and of the reply, if anything.
    pub bodies: Option<Box<Bodies>>,
    /// The time until which it is right, in milliseconds since 1970, if the policy says so.
    pub valid_until_ms: Option<u64>,
    /// How much the request matters where not all can be served, 0 to
    /// [`PRIORITY_MAX`](crate::plan::PRIORITY_MAX), if the policy says so.
    pub priority: Option<u8>,
    /// Whose request it is where senders share what there is. `None`: the limits' keys tell.
    pub fair_key: Option<String>,
    /// How a refusal by its limits is answered, if not as all others.
    pub refusal: Option<Box<RefusalReply>>,
    /// Limits that the messages of a WebSocket are charged to, and what happens beyond them.
    pub messages: Vec<(String, MessageExcess)>,
    /// What it means for the other descriptors of its call, if it is about one of several.
    pub joining: Joining,
    /// Where consumers of the decision keep what they derive from it.
    pub slot: Slot,
}

/// What a decision about one of a call's descriptors means for those about the others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Joining {
    /// The names of limits of other descriptors that are not taken.
    pub replaces: Vec<String>,
    /// Of the descriptors that have this, one with room is enough.
    pub quota_mode: bool,
    /// What the caller is told of a descriptor that has room: the text of a JSON object.
    pub metadata: Option<Arc<str>>,
}

/// What a policy wants done with bodies.
#[derive(Clone, Debug, PartialEq)]
pub struct Bodies {
    /// Values to set in the request's JSON body.
    pub edits: Vec<Edit>,
    /// What to read from the reply's.
    pub meters: Arc<Meters>,
    /// How long the reply is read after the client has left.
    pub read_on: Duration,
    /// What to take if less is left than the cost.
    pub partial: Option<Partial>,
    /// When to end a reply that uses more than was taken.
    pub hard_cut: Option<HardCut>,
}

/// How less is taken of some limits than their cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partial {
    /// The names of the limits.
    pub limits: Vec<String>,
    /// The fewest units with which the request is not refused.
    pub least: u64,
    /// The numbers in the request's body that tell the upstream how much it may use.
    pub tell: Vec<Pointer>,
    /// What of the units taken is not for the upstream to use.
    pub base: u64,
}

/// How far a reply may go beyond the units that were taken for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HardCut {
    /// The names of the limits of which more is taken.
    pub limits: Vec<String>,
    /// The units that the request has taken.
    pub taken: u64,
    /// The units that are taken at once.
    pub step: u64,
    /// The units used, as far as the reply has come: this many,
    pub base: u64,
    /// and the largest group of these, added up.
    pub terms: Vec<Term>,
}

/// What a meter has read, in units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Term {
    /// Its group: terms of one group are added.
    pub group: u32,
    /// The meter's index.
    pub meter: usize,
    /// Multiplied by this,
    pub units: u64,
    /// and divided by this, rounded up.
    pub per: u64,
}

/// What happens to a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// Let it through and count nothing.
    Bypass,
    /// Charge every limit or none.
    Check(Arc<Plan>),
    /// Refuse it without checking any limit.
    Deny(Denial),
}

/// A policy's own refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denial {
    /// The status, 400 to 599.
    pub status: u16,
    /// The reason in the problem document.
    pub reason: String,
    /// `Retry-After`, where waiting helps.
    pub retry_after_ms: Option<u64>,
    /// Header fields to set on the reply, in the shape of [`Decision::upstream_headers`].
    pub headers: Vec<(String, String)>,
    /// The media type and text of the reply's body; without them it is a problem document.
    pub body: Option<(String, String)>,
}

/// What `settle` answered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settlement {
    /// Changes of what the limits took.
    pub adjustments: Vec<Adjustment>,
    /// Labels for the access log, in addition to those of the decision.
    pub labels: Vec<(String, String)>,
    /// Units that the request used, by name.
    pub amounts: Vec<(String, u64)>,
}

/// How a request ended, for `settle`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResponseView {
    /// How it ended.
    pub outcome: ResponseOutcome,
    /// The reply's status.
    pub status: u16,
    /// Whether the status is the upstream's, and not of the proxy's own.
    pub by_upstream: bool,
    /// The response facts that the manifest named.
    pub facts: Vec<(String, String)>,
    /// The result of each limit.
    pub limits: Vec<LimitResult>,
}

/// What became of a limit, for `settle`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitResult {
    /// Its name.
    pub name: String,
    /// Whether the cost fitted.
    pub fits: bool,
    /// What remained.
    pub remaining: u64,
    /// When the whole allowance was back, in milliseconds from the decision; `None` if the counter
    /// could not be reached.
    pub resets_ms: Option<u64>,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "each variant is the word in policy.wit")]
pub enum ResponseOutcome {
    Completed,
    Unsent,
    TimedOut,
    UpstreamFailed,
    ClientGone,
    Overdue,
    Refused,
}
