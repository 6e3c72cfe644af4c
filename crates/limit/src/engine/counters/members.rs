//! Named units, each with an instant, sorted by instant: a log, or leases. The units of one take
//! are one record.

use std::collections::VecDeque;

use crate::engine::bytes::Bytes;

/// The units `from..to` of one take, all with one instant.
#[derive(Clone, Copy)]
struct Record {
    at: u64,
    /// The name of unit 0. Each further unit has the next one.
    member: u128,
    from: u32,
    to: u32,
    /// Units of this record and of all before it, including dropped ones.
    sum: u64,
}

/// Records sorted by instant.
#[derive(Default)]
pub(in crate::engine) struct Members {
    records: VecDeque<Record>,
    /// Units of the records dropped from the front. All sums include them.
    dropped: u64,
}

impl Members {
    pub(super) fn records(&self) -> usize {
        self.records.len()
    }

    /// Units of the first `records` records, including dropped ones.
    fn sum(&self, records: usize) -> u64 {
        records
            .checked_sub(1)
            .and_then(|last| self.records.get(last))
            .map_or(self.dropped, |record| record.sum)
    }

    fn until(&self, at: u64) -> usize {
        self.records.partition_point(|record| record.at <= at)
    }

    /// Units with an instant after `from` and not after `to`.
    pub(super) fn between(&self, from: u64, to: u64) -> u64 {
        self.sum(self.until(to)).saturating_sub(self.sum(self.until(from)))
    }

    /// The instant of the `nth` unit after `from`, counted from 1; 0 where there are fewer.
    pub(super) fn nth(&self, from: u64, nth: u64) -> u64 {
        let sum = self.sum(self.until(from)) + nth;
        self.records
            .get(self.records.partition_point(|record| record.sum < sum))
            .map_or(0, |record| record.at)
    }

    /// The instants of the first `max` units.
    pub(super) fn instants(&self, max: usize) -> Vec<u64> {
        self.records
            .iter()
            .flat_map(|record| (record.from..record.to).map(|_| record.at))
            .take(max)
            .collect()
    }

    /// Adds `units` units at `at` under a name.
    pub(super) fn insert(&mut self, at: u64, member: u128, units: u64) {
        let index = self.until(at);
        // At most `plan::MEMBERS_MAX`.
        let to = u32::try_from(units).unwrap_or(u32::MAX);
        self.records.insert(index, Record { at, member, from: 0, to, sum: 0 });
        self.update_sums(index);
    }

    /// Removes `units` units, the first of which has this name, as far as they are still there.
    pub(super) fn remove(&mut self, member: u128, units: u64) {
        let names = member..member.saturating_add(u128::from(units));
        let mut left = units;
        let mut changed = self.records.len();
        // From the newest on. A take is one record, and more after a part of it was renewed.
        for index in (0..self.records.len()).rev() {
            let Some(record) = self.records.get_mut(index).filter(|_| left > 0) else { break };
            let number = |name: u128| {
                let number = name.saturating_sub(record.member);
                u32::try_from(number).unwrap_or(u32::MAX).clamp(record.from, record.to)
            };
            let (from, to) = (number(names.start), number(names.end));
            if from == to {
                continue;
            }
            (left, changed) = (left.saturating_sub(u64::from(to - from)), index);
            let before = Record { to: from, ..*record };
            let after = Record { from: to, ..*record };
            match (before.from < before.to, after.from < after.to) {
                (true, true) => {
                    *record = before;
                    self.records.insert(index + 1, after);
                }
                (true, false) => *record = before,
                (false, true) => *record = after,
                (false, false) => drop(self.records.remove(index)),
            }
        }
        self.update_sums(changed);
    }

    /// Drops units with an instant up to `at`.
    pub(super) fn drop_until(&mut self, at: u64) {
        let gone = self.until(at);
        self.dropped = self.sum(gone);
        self.records.drain(..gone);
    }

    /// Drops units with an instant after `at`.
    pub(super) fn drop_after(&mut self, at: u64) {
        self.records.truncate(self.until(at));
    }

    /// Appends all records: their number, then of each its instant, name, and units.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&(self.records.len() as u32).to_le_bytes());
        for record in &self.records {
            out.extend_from_slice(&record.at.to_le_bytes());
            out.extend_from_slice(&record.member.to_le_bytes());
            out.extend_from_slice(&record.from.to_le_bytes());
            out.extend_from_slice(&record.to.to_le_bytes());
        }
    }

    /// Reads what [`Members::write`] wrote; `None` if the bytes are not such records.
    pub(super) fn read(bytes: &mut Bytes<'_>) -> Option<Self> {
        let mut all = Self::default();
        for _ in 0..bytes.u32()? {
            let (at, member) = (bytes.u64()?, bytes.u128()?);
            let (from, to) = (bytes.u32()?, bytes.u32()?);
            let sorted = all.records.back().is_none_or(|last| last.at <= at);
            let sum = all.sum(all.records.len()) + u64::from(to.checked_sub(from)?);
            all.records.push_back(Record { at, member, from, to, sum });
            sorted.then_some(())?;
        }
        Some(all)
    }

    fn update_sums(&mut self, index: usize) {
        let mut sum = self.sum(index);
        for record in self.records.range_mut(index..) {
            sum += u64::from(record.to - record.from);
            record.sum = sum;
        }
    }
}
