//! Counters outside requests: finds those of one key, and forgets them. For a person who asks;
//! decides nothing.
//!
//! A counter is found by its scope, limit and key. Whoever asks does not know its shape, so each
//! shape that has a counter is answered.

use std::sync::Arc;
use std::time::Duration;

use weir_algorithms::Shape;

use super::keys;
use super::shared::Shared;
use crate::engine::{Content, EngineError, Found, Key, Kind, Space};
use crate::plan::Algorithm;

/// Which counters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// As [`super::Scope::name_of`] makes it.
    pub scope: String,
    /// The limit's name.
    pub limit: String,
    /// The key, as the policy answered it.
    pub key: String,
    /// The tag, where the policy answered one.
    pub tag: Option<String>,
}

/// A counter that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counter {
    /// What its state means.
    pub shape: Shape,
    /// What it holds.
    pub content: Content,
    /// When it was read, in microseconds since 1970.
    pub at_us: u64,
    /// How long until it may be forgotten; `None`: never.
    pub expires: Option<Duration>,
    /// Its name on Redis.
    pub redis_key: Option<String>,
    key: Key,
}

impl Counter {
    /// What it holds, in words. `known`: the limit that it belongs to, for how much of its
    /// allowance is used.
    #[must_use]
    pub fn state(&self, known: Option<&Algorithm>) -> String {
        self.shape.state(&self.content, self.at_us, known).unwrap_or_default()
    }
}

pub(super) async fn find(shared: &Shared, wanted: &Wanted) -> Result<Vec<Counter>, EngineError> {
    let Wanted { scope, limit, key, tag } = wanted;
    let prefix = keys::space_prefix(scope, limit);
    let digest = |text: &str| shared.digests.of(&[text.as_bytes()]);
    let any = Arc::new(Space { text: String::new(), digest: 0 });
    let key = Key { tag: digest(tag.as_ref().unwrap_or(key)), key: digest(key), space: any };
    let found = shared.engine.find(&key, &prefix, kind).await?;
    let mut counters: Vec<Counter> = found.into_iter().filter_map(counter).collect();
    // Neither store has an order of its own.
    counters.sort_by_cached_key(|counter| counter.shape.to_string());
    Ok(counters)
}

pub(super) async fn forget(shared: &Shared, counter: &Counter) -> Result<(), EngineError> {
    shared.engine.reset(&counter.key).await
}

/// `None` of a shape that this version does not write.
fn counter(found: Found) -> Option<Counter> {
    let Found { key, text, content, expires_ms, at_us } = found;
    let expires = expires_ms.map(Duration::from_millis);
    Some(Counter { shape: shape(&key.space.text)?, content, at_us, expires, redis_key: text, key })
}

/// What counters of a space are made of.
fn kind(space: &str) -> Option<Kind> {
    shape(space).map(|shape| shape.kind())
}

fn shape(space: &str) -> Option<Shape> {
    space.rsplit('/').next()?.parse().ok()
}
