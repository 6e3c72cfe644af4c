//! What became of a request, in the words that every observer uses: metrics, access lines, traces,
//! what is remembered, trials and replays. Knows nothing of how it came about.

use std::borrow::Cow;
use std::fmt;

use crate::telemetry::{Label as _, labels};

labels! {
    /// What a policy and its limits decided about a request.
    pub enum Verdict {
        /// All limits fitted.
        Admitted = "admitted",
        /// A limit refused.
        Refused = "refused",
        /// The policy counts nothing for it.
        Bypassed = "bypassed",
        /// The policy refused without asking a limit.
        Denied = "denied",
        /// Let through uncounted, because a counter could not be reached.
        Degraded = "degraded",
        /// Admitted by this proxy's share of a limit, because its counter could not be reached.
        Local = "local",
        /// Refused, because a counter could not be reached.
        Unavailable = "unavailable",
        /// Refused, because the policy itself failed.
        Failed = "failed",
        /// Let through although the policy failed: `on_policy_error = "allow"`.
        Uncounted = "uncounted",
    }
}

labels! {
    /// Why a request was refused.
    pub enum Cause {
        /// A limit refused.
        Limit = "limit",
        /// The policy refused.
        Denial = "denial",
        /// A counter could not be reached.
        Store = "store",
        /// The policy failed.
        PolicyError = "policy_error",
        /// This process, or the client at one of its upstreams, has as much under way as it may.
        Overload = "overload",
        /// The route is being worked on.
        Maintenance = "maintenance",
        /// The upstream failed.
        Upstream = "upstream",
        /// The request itself: it is malformed or too large, or nothing is served there.
        Request = "request",
    }
}

impl Verdict {
    /// Its word, for people and for metrics.
    #[must_use]
    pub fn word(self) -> &'static str {
        self.label()
    }

    /// Whether the request was let through.
    #[must_use]
    pub fn lets_through(self) -> bool {
        match self {
            Self::Admitted | Self::Bypassed | Self::Degraded | Self::Local | Self::Uncounted => {
                true
            }
            Self::Refused | Self::Denied | Self::Unavailable | Self::Failed => false,
        }
    }
}

impl Cause {
    /// Its word, for people and for metrics.
    #[must_use]
    pub fn word(self) -> &'static str {
        self.label()
    }

    /// Whether a policy or its limits refused.
    pub(super) fn is_of_policy(self) -> bool {
        match self {
            Self::Limit | Self::Denial | Self::Store | Self::PolicyError => true,
            Self::Overload | Self::Maintenance | Self::Upstream | Self::Request => false,
        }
    }

    /// Whether Weir itself refused, and not because the request could not be served by anybody.
    pub(super) fn is_of_weir(self) -> bool {
        match self {
            Self::Limit
            | Self::Denial
            | Self::Store
            | Self::PolicyError
            | Self::Overload
            | Self::Maintenance => true,
            Self::Upstream | Self::Request => false,
        }
    }
}

/// Why the request itself was rejected, whatever a policy answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// What of it was looked at: its head, method, target, host, path, route, body or facts.
    pub check: &'static str,
    /// What was found.
    pub found: Cow<'static, str>,
    /// What was expected.
    pub expected: &'static str,
}

impl fmt::Display for Rejection {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { check, found, expected } = self;
        write!(out, "by the check of its {check}: {found}; expected {expected}")
    }
}
