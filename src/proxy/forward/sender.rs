//! Whose request it is, and how much it matters, for an upstream for which requests may have to
//! wait.

use std::hash::{BuildHasher as _, Hash as _, Hasher as _, RandomState};
use std::sync::LazyLock;

use crate::policy::Verdict;
use crate::proxy::decide::Decided;
use crate::upstream::{Sender, Upstream};
use crate::wire::Network;

/// Secret, so that nobody can choose a key that counts as another's.
static HASHER: LazyLock<RandomState> = LazyLock::new(RandomState::new);

/// The sender of a request of `client`. The policy's word goes before the route's `priority`.
pub(in crate::proxy) fn of(
    upstream: &Upstream,
    client: Option<Network>,
    decided: Option<&Decided>,
    priority: u8,
) -> Sender {
    if !upstream.may_queue() {
        return Sender { client, ..Sender::default() };
    }
    let decision = decided.and_then(|decided| decided.decision.as_deref());
    let mut key = HASHER.build_hasher();
    match decision.map(|decision| (&decision.fair_key, &decision.verdict)) {
        Some((Some(fair_key), _)) => fair_key.hash(&mut key),
        Some((None, Verdict::Check(plan))) => {
            plan.limits().iter().for_each(|limit| limit.key.hash(&mut key));
        }
        _ => client.hash(&mut key),
    }
    let priority = decision.and_then(|decision| decision.priority).unwrap_or(priority);
    Sender { client, priority, fair_key: key.finish() }
}
