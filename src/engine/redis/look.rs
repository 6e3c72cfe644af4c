//! Finds counters by their names and reads them, for a person who asks: off the path of requests,
//! bounded by time and number.
//!
//! The last part of a name but one, the shape, is not known to whoever asks. In a cluster the tag
//! decides the slot, and its owner lists a slot's keys; one server is searched by a pattern, page
//! by page.

use std::sync::Arc;
use std::time::Duration;

use ::redis::{Cmd, FromRedisValue, Value, cmd};

use super::link::Link;
use super::{Redis, follow};
use crate::clock;
use crate::engine::found::{self, FOUND_MAX, Found, MEMBERS_READ_MAX};
use crate::engine::{Cause, Content, EngineError, Key, Kind, Ran, Space};

/// Of one search, at most.
const FIND_WAIT: Duration = Duration::from_secs(10);
/// Keys that a page of a search is about.
const PAGE_KEYS: usize = 1_000;
/// Keys of a slot that are listed at once; a slot with more is searched in pages.
const SLOT_KEYS_MAX: i64 = 50_000;

const NONSENSE: EngineError = EngineError { cause: Cause::Script, ran: Ran::No };

impl Redis {
    /// The counters of `key` whose space begins with `prefix`; `kind` says of a space what its
    /// counters are made of, where anybody knows.
    pub(in crate::engine) async fn find(
        &self,
        key: &Key,
        prefix: &str,
        kind: fn(&str) -> Option<Kind>,
    ) -> Result<Vec<Found>, EngineError> {
        let search = Search { link: self.link(), slot: key.slot() };
        let deadline = tokio::time::Instant::from_std(clock::monotonic() + FIND_WAIT);
        let timed_out = EngineError { cause: Cause::Timeout, ran: Ran::No };
        tokio::time::timeout_at(deadline, search.find(&self.key_prefix, key, prefix, kind))
            .await
            .unwrap_or(Err(timed_out))
    }
}

/// One search.
struct Search {
    link: Arc<Link>,
    slot: u16,
}

impl Search {
    async fn find(
        &self,
        prefix: &str,
        key: &Key,
        space: &str,
        kind: fn(&str) -> Option<Kind>,
    ) -> Result<Vec<Found>, EngineError> {
        // As `Key::text` writes it, with another space.
        let sample = Key { space: Arc::new(Space { text: "\n".into(), digest: 0 }), ..key.clone() }
            .text(prefix);
        let Some((before, after)) = sample.split_once('\n') else { return Err(NONSENSE) };
        let before = format!("{before}{space}");
        let mut found = Vec::new();
        for name in self.names(&before, after).await? {
            let Some(shape) = name.strip_prefix(&before).and_then(|rest| rest.strip_suffix(after))
            else {
                continue;
            };
            let text = format!("{space}{shape}");
            let Some(kind) = kind(&text) else { continue };
            let key = Key { space: Arc::new(Space { text, digest: 0 }), ..key.clone() };
            found.extend(self.read(key, name, kind).await?);
        }
        Ok(found)
    }

    /// Names that begin and end so, each once.
    async fn names(&self, before: &str, after: &str) -> Result<Vec<String>, EngineError> {
        let fits = |name: &String| name.starts_with(before) && name.ends_with(after);
        if self.link.opener.is_cluster() {
            let slot = |verb: &str| {
                let mut command = cmd("CLUSTER");
                command.arg(verb).arg(self.slot);
                command
            };
            let count: i64 = self.ask(slot("COUNTKEYSINSLOT")).await?;
            if count <= SLOT_KEYS_MAX {
                let mut list = slot("GETKEYSINSLOT");
                list.arg(count);
                let names: Vec<String> = self.ask(list).await?;
                return Ok(names.into_iter().filter(fits).take(FOUND_MAX).collect());
            }
        }
        let pattern = format!("{}*{after}", escaped(before));
        let (mut cursor, mut found) = (0_u64, Vec::new());
        loop {
            let mut scan = cmd("SCAN");
            scan.arg(cursor).arg("MATCH").arg(&pattern).arg("COUNT").arg(PAGE_KEYS);
            let (next, page): (u64, Vec<String>) = self.ask(scan).await?;
            // A key may be in two pages.
            found.extend(page.into_iter().filter(fits));
            found.sort_unstable();
            found.dedup();
            cursor = next;
            if cursor == 0 || found.len() >= FOUND_MAX {
                return Ok(found);
            }
        }
    }

    /// `None` where it went meanwhile.
    async fn read(&self, key: Key, name: String, kind: Kind) -> Result<Option<Found>, EngineError> {
        let of = |verb: &str| {
            let mut command = cmd(verb);
            command.arg(&name);
            command
        };
        let content = match kind {
            Kind::Numbers | Kind::Buckets => {
                let bytes: Option<Vec<u8>> = self.ask(of("GET")).await?;
                let Some(bytes) = bytes else { return Ok(None) };
                found::unpack(kind, &bytes).ok_or(NONSENSE)?
            }
            Kind::Log => {
                let mut range = of("LRANGE");
                range.arg(0).arg(MEMBERS_READ_MAX - 1);
                let members: Vec<Vec<u8>> = self.ask(range).await?;
                if members.is_empty() {
                    return Ok(None);
                }
                let instant = |member: Vec<u8>| {
                    member
                        .first_chunk()
                        .map(|bytes| f64::from_le_bytes(*bytes) as u64)
                        .ok_or(NONSENSE)
                };
                Content::Members(members.into_iter().map(instant).collect::<Result<_, _>>()?)
            }
            Kind::Leases => {
                let mut range = of("ZRANGE");
                range.arg(0).arg(MEMBERS_READ_MAX - 1).arg("WITHSCORES");
                let members: Vec<(Vec<u8>, f64)> = self.ask(range).await?;
                if members.is_empty() {
                    return Ok(None);
                }
                Content::Members(members.into_iter().map(|(_, instant)| instant as u64).collect())
            }
        };
        let lives: i64 = self.ask(of("PTTL")).await?;
        let (seconds, us): (u64, u64) = self.ask(cmd("TIME")).await?;
        // -1: it has no lifetime.
        Ok(Some(Found {
            key,
            text: Some(name),
            content,
            expires_ms: u64::try_from(lives).ok(),
            at_us: seconds * 1_000_000 + us,
        }))
    }

    async fn ask<T: FromRedisValue>(&self, command: Cmd) -> Result<T, EngineError> {
        let answer: Value =
            follow(&self.link, self.slot, |_| command.clone(), &mut Ran::No).await?;
        T::from_redis_value(answer).map_err(|_| NONSENSE)
    }
}

/// A text as a pattern that only it matches.
fn escaped(text: &str) -> String {
    let mut pattern = String::with_capacity(text.len());
    for next in text.chars() {
        if matches!(next, '*' | '?' | '[' | ']' | '^' | '-' | '\\') {
            pattern.push('\\');
        }
        pattern.push(next);
    }
    pattern
}
