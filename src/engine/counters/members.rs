//! Named units with an instant each, in their instants' order: a log, or leases. A take's units are
//! one record.

use std::collections::VecDeque;

/// What one take added: its units `from..to`, all with one instant.
struct Record {
    at: u64,
    member: u128,
    from: u32,
    to: u32,
    /// Units of this record and of all before it, gone or not.
    sum: u64,
}

/// Records in the order of their instants.
#[derive(Default)]
pub(in crate::engine) struct Members {
    records: VecDeque<Record>,
    /// Units of the records that went at the beginning: all sums have them.
    gone: u64,
}

impl Members {
    pub(super) fn records(&self) -> usize {
        self.records.len()
    }

    /// Units of the first `records` of them, and of those that are gone.
    fn sum(&self, records: usize) -> u64 {
        records
            .checked_sub(1)
            .and_then(|last| self.records.get(last))
            .map_or(self.gone, |record| record.sum)
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

    /// Adds `units` at `at` under a name.
    pub(super) fn insert(&mut self, at: u64, member: u128, units: u64) {
        let place = self.until(at);
        // At most `plan::MEMBERS_MAX`.
        let to = u32::try_from(units).unwrap_or(u32::MAX);
        self.records.insert(place, Record { at, member, from: 0, to, sum: 0 });
        self.count_from(place);
    }

    /// Removes the first `units` of those that were added under a name, as far as they are there.
    pub(super) fn remove(&mut self, member: u128, units: u64) {
        let Some(place) = self.records.iter().rposition(|record| record.member == member) else {
            return;
        };
        let gone = self.records.get_mut(place).is_none_or(|record| {
            record.from = u32::try_from(units).unwrap_or(u32::MAX).clamp(record.from, record.to);
            record.from == record.to
        });
        if gone {
            self.records.remove(place);
        }
        self.count_from(place);
    }

    /// Forgets what has an instant up to `at`.
    pub(super) fn drop_until(&mut self, at: u64) {
        let gone = self.until(at);
        self.gone = self.sum(gone);
        self.records.drain(..gone);
    }

    /// Forgets what has an instant after `at`.
    pub(super) fn drop_after(&mut self, at: u64) {
        self.records.truncate(self.until(at));
    }

    fn count_from(&mut self, place: usize) {
        let mut sum = self.sum(place);
        for record in self.records.range_mut(place..) {
            sum += u64::from(record.to - record.from);
            record.sum = sum;
        }
    }
}
