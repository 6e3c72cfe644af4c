//! Finds counters by their names and reads them, for operators: off the request path, and bounded
//! by time and number.
//!
//! The shape, the second to last part of a name, is not known to the caller. In a cluster the tag
//! determines the slot, and the slot's owner lists its keys. A single server is searched by
//! pattern, page by page.

use std::sync::Arc;
use std::time::Duration;

use ::redis::{Cmd, FromRedisValue, cmd};

use super::link::Link;
use super::{Redis, failure};
use crate::clock;
use crate::engine::found::{self, FOUND_MAX, FoundCounter, MEMBERS_READ_MAX};
use crate::engine::{Cause, Content, EngineError, Execution, Key, Kind, Space};

/// Time limit for one search.
const FIND_WAIT: Duration = Duration::from_secs(10);
/// Time limit for one node's list.
const NODE_WAIT: Duration = Duration::from_secs(2);
/// Number of keys scanned per page of a search.
const PAGE_KEYS: usize = 1_000;
/// Maximum number of a slot's keys that are listed at once; a slot with more is searched in pages.
const SLOT_KEYS_MAX: i64 = 50_000;

const MALFORMED: EngineError = EngineError { cause: Cause::Script, ran: Execution::No };

impl Redis {
    /// The counters of `key` whose space begins with `prefix`. `kind` returns what the counters of
    /// a space are made of, if it is known.
    pub(in crate::engine) async fn find(
        &self,
        key: &Key,
        prefix: &str,
        kind: fn(&str) -> Option<Kind>,
    ) -> Result<Vec<FoundCounter>, EngineError> {
        let search = Search { link: self.link(), slot: key.slot() };
        let deadline = tokio::time::Instant::from_std(clock::monotonic() + FIND_WAIT);
        let timed_out = EngineError { cause: Cause::Timeout, ran: Execution::No };
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
    ) -> Result<Vec<FoundCounter>, EngineError> {
        // The name as `Key::text` writes it, with a placeholder for the space.
        let sample = Key { space: Arc::new(Space { text: "\n".into(), digest: 0 }), ..key.clone() }
            .text(prefix);
        let Some((before, after)) = sample.split_once('\n') else { return Err(MALFORMED) };
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

    /// The names with this beginning and end, each once.
    async fn names(&self, before: &str, after: &str) -> Result<Vec<String>, EngineError> {
        let fits = |name: &String| name.starts_with(before) && name.ends_with(after);
        if self.link.connector.is_cluster()
            && let Some(mut names) = self.names_in_slot(before).await?
        {
            names.retain(fits);
            names.truncate(FOUND_MAX);
            return Ok(names);
        }
        let pattern = format!("{}*{after}", escaped(before));
        let (mut cursor, mut found) = (0_u64, Vec::new());
        loop {
            let mut scan = cmd("SCAN");
            scan.arg(cursor).arg("MATCH").arg(&pattern).arg("COUNT").arg(PAGE_KEYS);
            let (next, page): (u64, Vec<String>) = self.query(scan).await?;
            // A key may appear on two pages.
            found.extend(page.into_iter().filter(fits));
            found.sort_unstable();
            found.dedup();
            cursor = next;
            if cursor == 0 || found.len() >= FOUND_MAX {
                return Ok(found);
            }
        }
    }

    /// All names in the slot; `None` if there are too many to list. The nodes' lists don't follow
    /// the slot: a node that does not own it, or not yet, lists nothing or a part. So all are
    /// asked.
    async fn names_in_slot(&self, before: &str) -> Result<Option<Vec<String>>, EngineError> {
        // This finds out who owns the slot, as any command on a key does.
        let mut any_key = cmd("EXISTS");
        any_key.arg(before);
        let _: i64 = self.query(any_key).await?;
        let topology = self.link.watch.topology().ok_or(MALFORMED)?;
        let owner = topology.owner(self.slot);
        let mut names = Vec::new();
        for master in topology.masters() {
            match self.names_on(&master.address).await {
                Ok(Some(some)) => names.extend(some),
                Ok(None) => return Ok(None),
                Err(error) if owner == Some(master) => return Err(error),
                // It may be lost: the keys of this slot are elsewhere.
                Err(_) => {}
            }
        }
        names.sort_unstable();
        names.dedup();
        Ok(Some(names))
    }

    /// The names in the slot on one node; `None` if there are too many to list.
    async fn names_on(&self, node: &Arc<str>) -> Result<Option<Vec<String>>, EngineError> {
        let pipeline = self.link.pipeline(node)?;
        let until = clock::monotonic() + NODE_WAIT;
        let query = async |command: Cmd| {
            let reply =
                pipeline.call(until, false, |out| command.write_packed_command(out)).await?;
            reply.extract_error().map_err(|error| failure::engine_error(&error))
        };
        let slot = |verb: &str| {
            let mut command = cmd("CLUSTER");
            command.arg(verb).arg(self.slot);
            command
        };
        let count = i64::from_redis_value(query(slot("COUNTKEYSINSLOT")).await?);
        let count = count.map_err(|_| MALFORMED)?;
        if count > SLOT_KEYS_MAX {
            return Ok(None);
        }
        let mut list = slot("GETKEYSINSLOT");
        list.arg(count);
        Vec::from_redis_value(query(list).await?).map(Some).map_err(|_| MALFORMED)
    }

    /// Reads a counter; `None` if it no longer exists.
    async fn read(
        &self,
        key: Key,
        name: String,
        kind: Kind,
    ) -> Result<Option<FoundCounter>, EngineError> {
        let of = |verb: &str| {
            let mut command = cmd(verb);
            command.arg(&name);
            command
        };
        let content = match kind {
            Kind::Numbers | Kind::Buckets => {
                let bytes: Option<Vec<u8>> = self.query(of("GET")).await?;
                let Some(bytes) = bytes else { return Ok(None) };
                found::unpack(kind, &bytes).ok_or(MALFORMED)?
            }
            Kind::Log => {
                let mut range = of("LRANGE");
                range.arg(0).arg(MEMBERS_READ_MAX - 1);
                let members: Vec<Vec<u8>> = self.query(range).await?;
                if members.is_empty() {
                    return Ok(None);
                }
                let instant = |member: Vec<u8>| {
                    member
                        .first_chunk()
                        .map(|bytes| f64::from_le_bytes(*bytes) as u64)
                        .ok_or(MALFORMED)
                };
                Content::Members(members.into_iter().map(instant).collect::<Result<_, _>>()?)
            }
            Kind::Leases => {
                let mut range = of("ZRANGE");
                range.arg(0).arg(MEMBERS_READ_MAX - 1).arg("WITHSCORES");
                let members: Vec<(Vec<u8>, f64)> = self.query(range).await?;
                if members.is_empty() {
                    return Ok(None);
                }
                Content::Members(members.into_iter().map(|(_, instant)| instant as u64).collect())
            }
        };
        let lives: i64 = self.query(of("PTTL")).await?;
        let (seconds, us): (u64, u64) = self.query(cmd("TIME")).await?;
        // PTTL is -1 without a lifetime.
        Ok(Some(FoundCounter {
            key,
            text: Some(name),
            content,
            expires_ms: u64::try_from(lives).ok(),
            at_us: seconds * 1_000_000 + us,
        }))
    }

    async fn query<T: FromRedisValue>(&self, command: Cmd) -> Result<T, EngineError> {
        let until = clock::monotonic() + FIND_WAIT;
        let write = |_, out: &mut Vec<u8>| command.write_packed_command(out);
        let answer = self.link.send(self.slot, until, write).await?;
        T::from_redis_value(answer).map_err(|_| MALFORMED)
    }
}

/// Escapes a text so that the pattern matches only the text itself.
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
