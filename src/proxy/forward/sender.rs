//! Whose request it is, how much it matters, and which host it belongs to, for an upstream that
//! asks for that.

use std::hash::{BuildHasher as _, DefaultHasher, Hash as _, Hasher as _, RandomState};
use std::sync::LazyLock;

use crate::policy::Verdict;
use crate::proxy::decide::Decided;
use crate::proxy::decide::facts::{self, FactQuery, Facts, RequestView, RouteTraits};
use crate::upstream::{Sender, Upstream};
use crate::wire::Network;

/// Secret, so that nobody can choose a key that counts as another's.
static HASHER: LazyLock<RandomState> = LazyLock::new(RandomState::new);

/// The sender of a request of `client`. The policy's word goes before the route's `priority`.
pub(in crate::proxy) fn of(
    upstream: &Upstream,
    client: Option<Network>,
    decided: Option<&Decided>,
    (priority, hash): (u8, Option<u64>),
) -> Sender {
    if !upstream.may_queue() {
        return Sender { client, hash, ..Sender::default() };
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
    Sender { client, priority, fair_key: key.finish(), hash }
}

/// How the fact is found by which requests of a route are spread over hosts. `None` if the route
/// never has it, such as a parameter that is not in its path, or if it is one of bodies.
pub(in crate::proxy) fn hash_query(fact: &str, route: RouteTraits<'_>) -> Option<Box<[FactQuery]>> {
    let mut queries = vec![FactQuery::new(fact, route)?];
    facts::wanted_of_bodies(&mut queries).is_none().then(|| queries.into())
}

/// The hash of what a request has of the fact. `None` if it has nothing.
pub(in crate::proxy) fn hash_of(queries: &[FactQuery], view: RequestView<'_>) -> Option<u64> {
    let facts = Facts::gather(queries, view);
    let pairs = facts.pairs();
    // The same in all processes, so that proxies beside each other choose the same host.
    let mut hasher = DefaultHasher::new();
    pairs.iter().for_each(|(_, value)| value.hash(&mut hasher));
    (!pairs.is_empty()).then(|| hasher.finish())
}
