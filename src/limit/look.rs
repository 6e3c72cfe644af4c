//! Counters outside requests: finds those of one key again, says in words what they hold, and
//! forgets them. For a person who asks; decides nothing.
//!
//! A counter is found by its scope, limit and key; its shape is not known to whoever asks, so each
//! that is there is told. What the state means follows from the shape alone, as `programs` writes
//! it. Quotas and bursts are not in it: how much is used is told where the limit is named with the
//! question.

use std::sync::Arc;
use std::time::Duration;

use super::keys;
use super::shared::Shared;
use super::told::{of_shape, words};
use crate::engine::{EngineError, Found, Key, Kind, Space};
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
    /// The algorithm's name.
    pub algorithm: String,
    /// What gives its state its meaning, as it stands in the counter's name.
    pub shape: String,
    /// What it holds, in words.
    pub state: String,
    /// How long until it may be forgotten; `None`: never.
    pub expires: Option<Duration>,
    /// Its name on Redis.
    pub redis_key: Option<String>,
    key: Key,
}

/// `algorithms` are those that the limit may have.
pub(super) async fn find(
    shared: &Shared,
    wanted: &Wanted,
    algorithms: &[Algorithm],
) -> Result<Vec<Counter>, EngineError> {
    let Wanted { scope, limit, key, tag } = wanted;
    let prefix = keys::space_prefix(scope, limit);
    let digest = |text: &str| shared.digests.of(&[text.as_bytes()]);
    let any = Arc::new(Space { text: String::new(), digest: 0 });
    let key = Key { tag: digest(tag.as_ref().unwrap_or(key)), key: digest(key), space: any };
    let found = shared.engine.find(&key, &prefix, kind).await?;
    let mut told: Vec<Counter> = found
        .into_iter()
        .filter_map(|found| told(found, prefix.len(), shared, algorithms))
        .collect();
    // Neither store has an order of its own.
    told.sort_by(|one, other| one.shape.cmp(&other.shape));
    Ok(told)
}

pub(super) async fn forget(shared: &Shared, counter: &Counter) -> Result<(), EngineError> {
    shared.engine.reset(&counter.key).await
}

fn told(
    found: Found,
    prefix_bytes: usize,
    shared: &Shared,
    algorithms: &[Algorithm],
) -> Option<Counter> {
    let shape = found.key.space.text.get(prefix_bytes..)?.to_owned();
    let known = of_shape(algorithms, &shape, shared.lease);
    let (algorithm, state) = words(&shape, &found.content, found.at_us, known)?;
    let expires = found.expires_ms.map(Duration::from_millis);
    Some(Counter { algorithm, state, shape, expires, redis_key: found.text, key: found.key })
}

/// What counters of a space are made of; `None` of a shape that this version does not write.
fn kind(space: &str) -> Option<Kind> {
    let shape = space.rsplit('/').next()?;
    let (code, _) = shape.split_once('-')?;
    Some(match code {
        "sl2" => Kind::Log,
        "sb1" => Kind::Buckets,
        "cc1" => Kind::Leases,
        "fw1" | "sc1" | "tb1" | "gcra2" | "lb1" | "q1" | "script" => Kind::Numbers,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::super::programs;
    use super::*;

    #[test]
    fn what_a_counter_is_made_of_is_known_of_each_shape() {
        for (algorithm, program) in programs::samples() {
            let shape = programs::shape(&algorithm, Duration::from_secs(10));
            assert_eq!(
                kind(&format!("public/limit/{shape}")),
                Some(program.map_or(Kind::Numbers, |program| program.kind)),
                "{shape}"
            );
        }
    }
}
