//! The end of a request as the contract writes it.

use super::abi;
use super::{ResponseOutcome, ResponseView};

pub(super) fn view_of(view: &ResponseView) -> abi::types::ResponseView {
    use abi::types;
    types::ResponseView {
        outcome: match view.outcome {
            ResponseOutcome::Completed => types::Outcome::Completed,
            ResponseOutcome::Unsent => types::Outcome::Unsent,
            ResponseOutcome::TimedOut => types::Outcome::TimedOut,
            ResponseOutcome::UpstreamFailed => types::Outcome::UpstreamFailed,
            ResponseOutcome::ClientGone => types::Outcome::ClientGone,
            ResponseOutcome::Overdue => types::Outcome::Overdue,
            ResponseOutcome::Refused => types::Outcome::Refused,
        },
        status: view.status,
        status_from: match view.by_upstream {
            true => types::Origin::Upstream,
            false => types::Origin::Proxy,
        },
        facts: view.facts.clone(),
        limits: view
            .limits
            .iter()
            .map(|limit| types::LimitResult {
                name: limit.name.clone(),
                fits: limit.fits,
                remaining: limit.remaining,
                resets_ms: limit.resets_ms,
                options: Vec::new(),
            })
            .collect(),
        options: Vec::new(),
    }
}
