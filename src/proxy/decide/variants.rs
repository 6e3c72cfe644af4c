//! Routes with `when`: those for the same requests as another one, of which they take some. By
//! facts of the request, by a share of the senders, or both. Knows nothing of hosts and paths.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use crate::proxy::decide::facts::{self, FactQuery, Facts, RequestView, RouteTraits};
use crate::proxy::settings::{Paths, When};
use crate::telemetry::SettingError;

/// The value that any is as good as.
const ANY: &str = "*";
/// Shares are counted in parts of this.
pub(in crate::proxy) const SHARE_WHOLE: u32 = 10_000;

/// Which requests a variant takes of those of its route.
#[derive(Debug)]
pub(in crate::proxy) struct Condition {
    facts: Vec<(Box<[FactQuery]>, Vec<String>)>,
    share: Option<Share>,
}

/// A share of the requests, those of the same senders each time.
#[derive(Debug)]
struct Share {
    /// In parts of [`SHARE_WHOLE`].
    part: u32,
    /// Who the sender is.
    by: Box<[FactQuery]>,
    /// Of the route's name, so that two variants do not take the same senders.
    salt: u64,
}

impl Condition {
    /// Checks the setting `when` of a route with these traits. Errors are added to `errors`.
    pub(in crate::proxy) fn build(
        written: &When,
        name: &str,
        (route, at): (RouteTraits<'_>, &str),
        errors: &mut Vec<SettingError>,
    ) -> Self {
        let mut query = |setting: &str, fact: &str| {
            let built = FactQuery::new(fact, route).map(|query| [query].into());
            built.unwrap_or_else(|| {
                let found = format!("{fact:?}, which requests of this route never have");
                errors.push(SettingError::new(format!("{at}.{setting}"), found, "another fact"));
                [].into()
            })
        };
        let facts = written.facts.iter();
        let facts = facts.map(|(fact, values)| (query(fact, fact), values.clone())).collect();
        let share = written.share.map(|part| {
            let mut salt = DefaultHasher::new();
            name.hash(&mut salt);
            Share { part, by: query("by", &written.by), salt: salt.finish() }
        });
        Self { facts, share }
    }

    /// Whether two readings of a path are the same to it.
    pub(in crate::proxy) fn agrees(&self, both: [&[&str]; 2], paths: Paths) -> bool {
        let facts = self.facts.iter().map(|(queries, _)| queries);
        let mut all = facts.chain(self.share.iter().map(|share| &share.by));
        all.all(|queries| facts::agree(queries, both, paths))
    }

    /// Whether a request is among those that it takes.
    pub(in crate::proxy) fn holds(&self, view: RequestView<'_>) -> bool {
        let has = |(query, values): &(Box<[FactQuery]>, Vec<String>)| {
            let facts = Facts::gather(query, view);
            let pairs = facts.pairs();
            let is_meant = |found: &str| values.iter().any(|value| value == ANY || value == found);
            pairs.iter().any(|(_, found)| is_meant(found))
        };
        self.facts.iter().all(has) && self.share.as_ref().is_none_or(|share| share.takes(view))
    }
}

impl Share {
    fn takes(&self, view: RequestView<'_>) -> bool {
        let facts = Facts::gather(&self.by, view);
        let pairs = facts.pairs();
        // The same in all processes, so that a sender stays where it is.
        let mut hasher = DefaultHasher::new();
        self.salt.hash(&mut hasher);
        pairs.iter().for_each(|(_, value)| value.hash(&mut hasher));
        !pairs.is_empty() && hasher.finish() % u64::from(SHARE_WHOLE) < u64::from(self.part)
    }
}
