//! Leases on Redis: one script, which takes units and counts their holders. The holders of a
//! counter are beside it, under its own name with a suffix, so that they share its slot.

use std::collections::HashMap;

use ::redis::{Cmd, FromRedisValue, Value, cmd};

use super::{MALFORMED, Redis, cell_reply, numbers_of, resp};
use crate::engine::driver::{self, Verb};
use crate::engine::{Cell, Cells, EngineError, Execution, Key, LeaseCall, LeaseHolder, LeaseReply};

/// The suffix of the holders by the instant at which their leases end.
const HOLDERS: &[u8] = b":holders";
/// The suffix of their units.
const UNITS: &[u8] = b":leased";

/// A call for a lease may take the deadline divided by this.
const LEASE_SHARE: u32 = 2;
/// Maximum number of holders that are read for an operator.
const HOLDERS_READ_MAX: usize = 1_000;

impl Redis {
    /// Takes units of one cell.
    pub(in crate::engine) async fn lease(
        &self,
        cell: &Cell,
        lease: LeaseCall<'_>,
    ) -> Result<LeaseReply, EngineError> {
        let (link, cells) = (self.link(), Cells::from_iter([cell.clone()]));
        let script = &*link.script(Verb::Lease, &cells);
        let numbers = [lease.needed, lease.units, lease.life_ms];
        let numbers: Vec<u8> =
            numbers.iter().flat_map(|number| (*number as f64).to_le_bytes()).collect();
        let write = |with_text, out: &mut Vec<u8>| {
            resp::begin(out, 9);
            if with_text {
                resp::word(out, b"EVAL");
                resp::word(out, script.text.as_bytes());
            } else {
                resp::word(out, b"EVALSHA");
                resp::word(out, script.sha.as_bytes());
            }
            resp::word(out, b"3");
            for suffix in [b"".as_slice(), HOLDERS, UNITS] {
                let bytes = cell.key.text_bytes(&self.key_prefix) + suffix.len();
                resp::word_of(out, bytes, |out| {
                    cell.key.write(&self.key_prefix, out);
                    out.extend_from_slice(suffix);
                });
            }
            resp::word(out, &driver::argument(Verb::Lease, cell, 0));
            resp::word(out, &numbers);
            resp::word(out, lease.holder.as_bytes());
        };
        let slot = cell.key.slot();
        // Half of the time: a request for which it fails can still ask alone.
        let until = self.until(self.deadline / LEASE_SHARE);
        let outcome = link.send(slot, until, write).await;
        let outcome = self.record(&link, slot, outcome).and_then(|answer| parse_leased(&answer));
        outcome.inspect_err(|error| {
            if error.ran == Execution::Unknown {
                self.unknown.inc();
            }
        })
    }

    /// The holders of leases of a counter.
    pub(in crate::engine) async fn holders(
        &self,
        key: &Key,
    ) -> Result<Vec<LeaseHolder>, EngineError> {
        let name = |suffix: &[u8]| [key.text(&self.key_prefix).as_bytes(), suffix].concat();
        let mut ends = cmd("ZRANGE");
        ends.arg(name(HOLDERS)).arg(0).arg(HOLDERS_READ_MAX - 1).arg("WITHSCORES");
        let mut units = cmd("ZRANGE");
        units.arg(name(UNITS)).arg(0).arg(-1).arg("WITHSCORES");
        let ends: Vec<(String, f64)> = self.query(key, ends).await?;
        if ends.is_empty() {
            return Ok(Vec::new());
        }
        let units: Vec<(String, f64)> = self.query(key, units).await?;
        let (seconds, us): (u64, u64) = self.query(key, cmd("TIME")).await?;
        let now_ms = seconds * 1_000 + us / 1_000;
        let units: HashMap<String, f64> = units.into_iter().collect();
        let holder = |(name, ends_ms): (String, f64)| LeaseHolder {
            units: units.get(&name).map_or(0, |units| *units as u64),
            ends_ms: ends_ms as u64,
            name,
        };
        Ok(ends.into_iter().map(holder).filter(|holder| holder.ends_ms > now_ms).collect())
    }

    async fn query<T: FromRedisValue>(&self, key: &Key, command: Cmd) -> Result<T, EngineError> {
        let write = |_, out: &mut Vec<u8>| command.write_packed_command(out);
        let answer = self.link().send(key.slot(), self.until(self.deadline), write).await?;
        T::from_redis_value(answer).map_err(|_| MALFORMED)
    }
}

/// Parses the reply to a call for a lease.
pub(in crate::engine) fn parse_leased(answer: &Value) -> Result<LeaseReply, EngineError> {
    let mut next = numbers_of(answer)?;
    let (at_us, units, holders) = (next()? as u64, next()?, next()?);
    let cell = cell_reply(&mut next)?;
    let whole = |number: i64| u64::try_from(number).unwrap_or(0);
    Ok(LeaseReply { at_us, units: whole(units), holders: whole(holders), cell })
}
