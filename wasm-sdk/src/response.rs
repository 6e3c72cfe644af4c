//! The end of a request as `settle` sees it.

use crate::named;
use crate::{Gather, LimitResult, Origin, Outcome, ResponseView};

impl ResponseView {
    /// A reply of the upstream, without facts or limits: for tests.
    #[must_use]
    pub fn new(outcome: Outcome, status: u16) -> Self {
        Self {
            outcome,
            status,
            status_from: Origin::Upstream,
            facts: Vec::new(),
            limits: Vec::new(),
            options: Vec::new(),
        }
    }

    /// Adds a fact.
    #[must_use]
    pub fn with_fact(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.facts.push((name.into(), value.into()));
        self
    }

    /// Adds the result of a limit.
    #[must_use]
    pub fn with_limit(mut self, result: LimitResult) -> Self {
        self.limits.push(result);
        self
    }

    /// The status is the proxy's own.
    #[must_use]
    pub fn by_proxy(mut self) -> Self {
        self.status_from = Origin::Proxy;
        self
    }

    /// The result of the limit with this name.
    #[must_use]
    pub fn limit(&self, name: &str) -> Option<&LimitResult> {
        self.limits.iter().find(|limit| limit.name == name)
    }

    /// Whether the client left, or made the request last until its time was over. Nothing should be
    /// given back for that alone: otherwise clients could choose to be given back what they used.
    #[must_use]
    pub fn is_by_client(&self) -> bool {
        matches!(self.outcome, Outcome::ClientGone | Outcome::Overdue)
    }

    /// Whether the upstream may have done its work without a reply: it got the request, or a part
    /// of it, and the status is the proxy's own.
    #[must_use]
    pub fn is_unanswered(&self) -> bool {
        self.status_from == Origin::Proxy
            && !matches!(self.outcome, Outcome::Unsent | Outcome::Refused)
    }

    /// What the meter with this pointer and this way to gather has read; `None` if it found
    /// nothing.
    #[must_use]
    pub fn usage(&self, pointer: &str, gather: Gather) -> Option<u64> {
        let name = gather.fact(pointer);
        self.fact(&name)?.parse().ok()
    }

    /// Units that were taken instead of the cost, if
    /// [`Decision::partial`](crate::Decision::partial) took fewer.
    #[must_use]
    pub fn taken(&self) -> Option<u64> {
        self.fact("usage.taken").and_then(|units| units.parse().ok())
    }

    /// Units that were taken by [`Decision::hard_cut`](crate::Decision::hard_cut) in addition.
    #[must_use]
    pub fn extended(&self) -> u64 {
        self.fact("usage.extended").and_then(|units| units.parse().ok()).unwrap_or(0)
    }

    /// Whether the meters have read the whole reply: it is complete, or its client left and the
    /// rest was [read on](crate::Decision::read_on) to its end.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.outcome == Outcome::Completed || self.fact("usage.whole") == Some("true")
    }

    /// The first value of a response fact.
    #[must_use]
    pub fn fact(&self, name: &str) -> Option<&str> {
        let found = self.facts.iter().find(|(fact, _)| fact == name);
        if found.is_none() {
            named::check(name);
        }
        found.map(|(_, value)| value.as_str())
    }
}

impl LimitResult {
    /// Whether the cost fitted, and what is left: for tests.
    #[must_use]
    pub fn new(name: impl Into<String>, fits: bool, remaining: u64) -> Self {
        Self { name: name.into(), fits, remaining, resets_ms: None, options: Vec::new() }
    }
}
