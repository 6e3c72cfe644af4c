//! Finds and deletes the counters of one key, outside of requests. For administration; decides
//! nothing.
//!
//! A counter is found by its scope, limit and key. The caller does not know its shape, so every
//! shape that has a counter is returned.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use weir_algorithms::Shape;

use super::keys::{self, KeyDigest};
use super::leased;
use super::shared::Shared;
use crate::engine::{Content, EngineError, FoundCounter, Key, Kind, LeaseHolder, Space};
use crate::plan::Algorithm;

/// Names the counters of one key of one limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CounterName {
    /// The scope, as [`super::Scope::name_of`] writes it.
    pub scope: String,
    /// The limit's name.
    pub limit: String,
    /// The key, as the policy returned it.
    pub key: String,
    /// The tag, if the policy returned one.
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
    /// Time until it expires; `None` if it never does.
    pub expires: Option<Duration>,
    /// Its key on Redis; `None` in memory.
    pub redis_key: Option<String>,
    key: Key,
}

impl Counter {
    /// What it holds, as text. `known` is the limit that it belongs to; with it the text says how
    /// much of the allowance is used.
    #[must_use]
    pub fn state(&self, known: Option<&Algorithm>) -> String {
        self.shape.state(&self.content, self.at_us, known).unwrap_or_default()
    }
}

pub(super) async fn find(
    shared: &Shared,
    scope: &str,
    limit: &str,
    KeyDigest { tag, key }: KeyDigest,
) -> Result<Vec<Counter>, EngineError> {
    let prefix = keys::space_prefix(scope, limit);
    let any = Arc::new(Space { text: String::new(), digest: 0 });
    let key = Key { tag, key, space: any };
    let found = shared.engine.find(&key, &prefix, kind).await?;
    let mut counters: Vec<Counter> = found.into_iter().filter_map(counter).collect();
    // Neither store returns them in a defined order.
    counters.sort_by_cached_key(|counter| counter.shape.to_string());
    Ok(counters)
}

pub(super) async fn lease_holders(
    shared: &Shared,
    counter: &Counter,
) -> Result<Vec<LeaseHolder>, EngineError> {
    shared.engine.lease_holders(&counter.key).await
}

pub(super) async fn forget(shared: &Arc<Shared>, counter: &Counter) -> Result<(), EngineError> {
    let reset = shared.engine.reset(&counter.key).await;
    // Also if it failed: it may have run.
    shared.resets.fetch_add(1, Ordering::Relaxed);
    leased::forget(shared, counter.key.id());
    reset
}

/// `None` if this version does not know the shape.
fn counter(found: FoundCounter) -> Option<Counter> {
    let FoundCounter { key, text, content, expires_ms, at_us } = found;
    let expires = expires_ms.map(Duration::from_millis);
    // Redis knows the text alone. With its digest, the key is found in tables, too.
    let key = Key { space: Arc::new(keys::space_of(key.space.text.clone())), ..key };
    Some(Counter { shape: shape(&key.space.text)?, content, at_us, expires, redis_key: text, key })
}

/// The kind of state that counters of a space have.
fn kind(space: &str) -> Option<Kind> {
    shape(space).map(|shape| shape.kind())
}

fn shape(space: &str) -> Option<Shape> {
    space.rsplit('/').next()?.parse().ok()
}
