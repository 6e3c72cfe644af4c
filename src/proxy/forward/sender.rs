//! Whose request it is, how much it matters, and which host it belongs to, for an upstream that
//! asks for that.

use std::hash::{BuildHasher as _, DefaultHasher, Hash as _, Hasher as _, RandomState};
use std::sync::LazyLock;

use crate::policy::Verdict;
use crate::proxy::decide::Decided;
use crate::proxy::decide::facts::{self, FactQuery, Facts, RequestView, RouteTraits};
use crate::proxy::settings::HashBy;
use crate::upstream::{Affinity, SameSite, SendRecord, Sender, StickyCookie, Upstream};
use crate::wire::Network;

/// Secret, so that nobody can choose a key that counts as another's.
static HASHER: LazyLock<RandomState> = LazyLock::new(RandomState::new);

/// The sender of a request of `client`. The policy's word goes before the route's `priority`.
pub(in crate::proxy) fn of<'a>(
    upstream: &Upstream,
    client: Option<Network>,
    decided: Option<&Decided>,
    priority: u8,
) -> Sender<'a> {
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
    Sender { client, priority, fair_key: key.finish(), ..Sender::default() }
}

/// How it is found which host of an upstream a request of a route belongs to.
#[derive(Debug)]
pub(in crate::proxy) struct HostQuery {
    /// The cookie that names the host, if the upstream sets one.
    cookie: Option<Box<[FactQuery]>>,
    /// The fact by which requests are spread over hosts.
    hash: Option<Box<[FactQuery]>>,
}

impl HostQuery {
    /// For requests of a route to this upstream. `None` if they belong nowhere.
    ///
    /// # Errors
    /// The fact that the route itself names, if it is one that the route never has, such as a
    /// parameter that is not in its path.
    pub(in crate::proxy) fn build<'w>(
        upstream: &Upstream,
        written: Option<&'w HashBy>,
        route: RouteTraits<'_>,
    ) -> Result<Option<Box<Self>>, &'w str> {
        let hash = match written {
            Some(HashBy::Nothing) => None,
            Some(HashBy::Fact(fact)) => Some(query(fact, route).ok_or(fact.as_str())?),
            None => upstream.hash_fact().and_then(|fact| query(fact, route)),
        };
        let cookie = upstream.sticky().and_then(|it| query(&format!("cookie.{}", it.name), route));
        let is_some = cookie.is_some() || hash.is_some();
        Ok(is_some.then(|| Box::new(Self { cookie, hash })))
    }

    /// Where a request belongs, if it has what that is found by.
    pub(in crate::proxy) fn of(&self, view: RequestView<'_>) -> Option<Affinity> {
        let named = self.cookie.as_ref().and_then(|query| {
            let facts = Facts::gather(query, view);
            facts.pairs().iter().find_map(|(_, value)| tag(value))
        });
        named.map(Affinity::Host).or_else(|| {
            let facts = Facts::gather(self.hash.as_ref()?, view);
            let pairs = facts.pairs();
            // The same in all processes, so that proxies beside each other choose the same host.
            let mut hasher = DefaultHasher::new();
            pairs.iter().for_each(|(_, value)| value.hash(&mut hasher));
            (!pairs.is_empty()).then(|| Affinity::Hash(hasher.finish()))
        })
    }
}

/// How a fact is found. `None` if the route never has it, or if it is one of bodies.
fn query(fact: &str, route: RouteTraits<'_>) -> Option<Box<[FactQuery]>> {
    let mut queries = vec![FactQuery::new(fact, route)?];
    facts::wanted_of_bodies(&mut queries).is_none().then(|| queries.into())
}

/// The host that a cookie names.
fn tag(value: &str) -> Option<u64> {
    (value.len() == 16).then(|| u64::from_str_radix(value, 16).ok()).flatten()
}

/// The cookie with which the client comes back to the host that has answered, unless it was sent
/// there by the cookie. `https`: its connection is encrypted.
pub(in crate::proxy) fn host_cookie(
    cookie: &StickyCookie,
    (affinity, reached): (Option<Affinity>, Option<&SendRecord>),
    https: bool,
) -> Option<Box<str>> {
    let tag = reached?.address.as_ref()?.tag();
    if affinity == Some(Affinity::Host(tag)) {
        return None;
    }
    let same_site = match cookie.same_site {
        SameSite::Lax => "Lax",
        SameSite::Strict => "Strict",
        SameSite::None => "None",
    };
    let mut value = format!("{}={tag:016x}; Path=/; HttpOnly; SameSite={same_site}", cookie.name);
    if let Some(max_age) = cookie.max_age {
        value.push_str(&format!("; Max-Age={}", max_age.as_secs()));
    }
    // Browsers take `None` with it alone (RFC 6265bis, 5.7).
    if https || cookie.same_site == SameSite::None {
        value.push_str("; Secure");
    }
    Some(value.into())
}
