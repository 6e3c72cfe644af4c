//! When units are given back, and the list of limits to which that applies.

use serde::{Deserialize, Deserializer};
use weir_policy::{Json, Limit, Limits, Mistakes, Outcome, Refund, ResponseView, Statuses};

/// What a limit with the policy's own rule says.
const BY_SETTLE: &str = "by_settle";
/// Algorithms whose units can't be given back.
const NOT_GIVEN_BACK: [&str; 3] = ["leaky_bucket", "concurrency", "script"];

/// What the policy does if a request was not sent.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Failed {
    /// Nothing is given back.
    Never,
    /// Given back if the upstream got nothing.
    Unsent,
    /// Given back if the upstream got nothing, failed, or answered 5xx.
    #[default]
    UpstreamError,
}

/// When units are given back.
#[derive(Clone, Debug)]
pub(crate) struct Rule {
    pub(crate) failed: Failed,
    /// Replies that say that nothing was sent.
    pub(crate) statuses: Statuses,
}

impl Rule {
    pub(crate) fn check(&self, mistakes: &mut Mistakes) {
        if (100..300).any(|status| self.statuses.contain(status)) {
            let expected = "statuses from 300 to 599: the others say that it was sent";
            mistakes.add("refund_statuses", "a status below 300", expected);
        }
        if self.failed == Failed::Unsent && !self.statuses.is_empty() {
            let expected = "`refund = \"upstream_error\"` or \"never\" beside `refund_statuses`";
            mistakes.add("refund", "\"unsent\"", expected);
        }
    }

    /// Whether the proxy itself can't apply it.
    pub(crate) fn settles(&self) -> bool {
        !self.statuses.is_empty()
    }

    /// Sets the refund of a limit that has none of its own.
    pub(crate) fn apply(&self, limit: &mut Limit) {
        if limit.refund == Refund::BySettle && !self.settles() {
            limit.refund = match self.failed {
                Failed::Never => Refund::Never,
                Failed::Unsent => Refund::Unsent,
                Failed::UpstreamError => Refund::UpstreamError,
            };
        }
    }

    /// Whether a request's units are given back at its end.
    pub(crate) fn gives_back(&self, response: &ResponseView) -> bool {
        use Outcome::{TimedOut, Unsent, UpstreamFailed};
        let failed = matches!(response.outcome, Unsent | TimedOut | UpstreamFailed);
        (failed && self.failed == Failed::UpstreamError) || self.statuses.ended(response)
    }
}

/// Limits that are charged what is sent, and to which the policy's rule applies unless they say
/// otherwise.
#[derive(Debug, Default)]
pub(crate) struct Units(pub(crate) Limits);

impl<'de> Deserialize<'de> for Units {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Json::deserialize(deserializer)?;
        let read = match value.is_list() {
            true => Limits::from_json(&Json::list(value.items().map(|item| with_refund(&item)))),
            false => Limits::from_json(&value),
        };
        read.map(Self)
    }
}

fn with_refund(item: &Json<'_>) -> Json<'static> {
    let algorithm = item.get("algorithm");
    let algorithm = algorithm.as_ref().and_then(Json::as_str).unwrap_or_default();
    let fixed = NOT_GIVEN_BACK.contains(&&*algorithm) || item.get("refund").is_some();
    if fixed || !item.is_table() {
        return item.clone().into_owned();
    }
    item.with_members(&[("refund", Json::from(BY_SETTLE))])
}
