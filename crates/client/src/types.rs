//! What is asked, and what is answered.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What Weir decides about.
#[derive(Debug, Clone)]
pub struct Question {
    /// Whose policy decides.
    pub domain: String,
    /// What the policy reads, e.g. `client-ip`, `path`, `header.x-api-key`.
    pub facts: BTreeMap<String, Vec<String>>,
    /// Names and values to count by. Their order matters.
    pub entries: Vec<(String, String)>,
    /// Limits of the caller's own, in JSON. Only take and look use them.
    pub limits: Vec<Value>,
    /// Units to take: 1 if not set otherwise. A look takes none.
    pub hits: u64,
    /// How long the decision stays open to be settled: up to an hour. A part of a millisecond is
    /// one.
    pub hold: Option<Duration>,
    /// Makes repetitions within ten minutes free: 1 to 255 printable ASCII characters. If there is
    /// none, a random one is sent, and one for all of a batch.
    pub idempotency_key: Option<String>,
}

impl Question {
    /// A question to the policy of `domain`, for one unit.
    pub fn new(domain: impl Into<String>) -> Self {
        Self {
            domain: domain.into(),
            facts: BTreeMap::new(),
            entries: Vec::new(),
            limits: Vec::new(),
            hits: 1,
            hold: None,
            idempotency_key: None,
        }
    }

    /// Adds a value of a fact.
    #[must_use]
    pub fn fact(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.facts.entry(name.into()).or_default().push(value.into());
        self
    }

    /// Adds an entry to count by.
    #[must_use]
    pub fn entry(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.entries.push((name.into(), value.into()));
        self
    }

    pub(crate) fn to_call(&self, kind: Kind) -> Call<'_> {
        let takes = kind != Kind::Look;
        let whole = |hold: Duration| hold.as_nanos().div_ceil(1_000_000);
        let hold_ms = self.hold.map(|hold| u64::try_from(whole(hold)).unwrap_or(u64::MAX));
        Call {
            domain: &self.domain,
            facts: &self.facts,
            entries: &self.entries,
            limits: if kind == Kind::Decide { &[] } else { &self.limits },
            hits: takes.then_some(self.hits),
            hold_ms: hold_ms.filter(|_| takes),
        }
    }
}

/// What a batch of questions is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// As [`Client::decide`](crate::Client::decide).
    Decide,
    /// As [`Client::take`](crate::Client::take).
    Take,
    /// As [`Client::look`](crate::Client::look).
    Look,
}

impl Kind {
    pub(crate) fn path(self) -> &'static str {
        match self {
            Self::Decide => "/v1/decide",
            Self::Take => "/v1/take",
            Self::Look => "/v1/look",
        }
    }
}

#[derive(Serialize)]
pub(crate) struct Call<'a> {
    domain: &'a str,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    facts: &'a BTreeMap<String, Vec<String>>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    entries: &'a [(String, String)],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    limits: &'a [Value],
    #[serde(skip_serializing_if = "Option::is_none")]
    hits: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hold_ms: Option<u64>,
}

/// What to do with a request. If it is refused, answer with `status`, `fields` and `body`; if it is
/// allowed, add `fields` to the answer and set `request_fields` on the request passed on.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct Decision {
    /// Whether the request may be served.
    pub allowed: bool,
    /// HTTP status: 200 if allowed.
    pub status: u16,
    /// Names and values for the answer.
    #[serde(default)]
    pub fields: Vec<(String, String)>,
    /// Names and values for the request.
    #[serde(default)]
    pub request_fields: Vec<(String, String)>,
    /// Of the answer, if refused.
    pub body: Option<String>,
    /// How each limit stands.
    #[serde(default)]
    pub limits: Vec<Limit>,
    /// The limits that do not fit.
    #[serde(default)]
    pub refused_by: Vec<String>,
    /// To settle it by, if it is held.
    pub id: Option<String>,
    /// If refused, when to try again, in milliseconds.
    pub retry_after_ms: Option<u64>,
    /// Why not all was checked: `unreachable`, `bad answer`, the text of an HTTP status, or what
    /// Weir itself says, e.g. `store`.
    pub degraded: Option<String>,
}

/// How one limit stands.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Limit {
    /// As the policy names it.
    pub name: String,
    /// Whether the hits fit.
    pub fits: bool,
    /// Units per window.
    pub quota: Option<u64>,
    /// The window, in seconds.
    pub window_s: Option<u64>,
    /// Units left.
    pub remaining: Option<u64>,
    /// When the quota is whole again, in milliseconds from now.
    pub resets_ms: Option<u64>,
    /// When the hits would fit, in milliseconds from now.
    pub retry_after_ms: Option<u64>,
}

/// How a held decision ends.
#[derive(Debug, Clone, Serialize)]
pub struct Settlement {
    /// Of the decision.
    pub id: String,
    /// What became of the request.
    pub outcome: Outcome,
    /// HTTP status of its answer, if there was one. Without it, [`Outcome::Completed`] means 200.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// Further facts for the policy.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub facts: BTreeMap<String, Vec<String>>,
}

impl Settlement {
    /// The request was completed, with status 200.
    pub fn new(id: impl Into<String>) -> Self {
        Self { id: id.into(), outcome: Outcome::Completed, status: None, facts: BTreeMap::new() }
    }
}

/// What became of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// It was answered.
    Completed,
    /// It was not passed on.
    Unsent,
    /// What it was passed on to failed.
    UpstreamFailed,
    /// No answer came in time.
    TimedOut,
    /// Whoever asked went away.
    ClientGone,
}
