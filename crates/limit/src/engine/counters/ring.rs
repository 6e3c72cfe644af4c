//! Counts of the last sub-windows, in a ring: a sub-window's index is its number modulo their
//! count.

use crate::engine::Content;
use crate::engine::bytes::Bytes;

/// A ring, and the last sub-window written.
pub(in crate::engine) struct Ring {
    last: u64,
    /// The sum of all sub-windows that counted at `last`.
    total: u64,
    counts: Box<[u64]>,
}

impl Ring {
    pub(super) fn new(buckets: u64) -> Self {
        Self {
            last: 0,
            total: 0,
            counts: vec![0; usize::try_from(buckets).unwrap_or(0).max(1)].into_boxed_slice(),
        }
    }

    /// Appends the last sub-window, the number of sub-windows, and their counts.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.last.to_le_bytes());
        out.extend_from_slice(&(self.counts.len() as u32).to_le_bytes());
        self.counts.iter().for_each(|count| out.extend_from_slice(&count.to_le_bytes()));
        out.extend_from_slice(&self.total.to_le_bytes());
    }

    /// Reads what [`Ring::write`] wrote; `None` if the bytes are not a ring.
    pub(super) fn read(bytes: &mut Bytes<'_>) -> Option<Self> {
        let (last, buckets) = (bytes.u64()?, bytes.u32()?);
        let counts: Option<Vec<u64>> = (0..buckets).map(|_| bytes.u64()).collect();
        let counts = counts.filter(|counts| !counts.is_empty())?.into_boxed_slice();
        Some(Self { last, counts, total: bytes.u64()? })
    }

    pub(super) fn len(&self) -> usize {
        self.counts.len()
    }

    /// Whether all sub-windows are empty.
    pub(super) fn is_empty(&self) -> bool {
        self.total == 0
    }

    pub(super) fn content(&self) -> Content {
        Content::Buckets { last: self.last, counts: self.counts.to_vec() }
    }

    fn buckets(&self) -> u64 {
        self.counts.len() as u64
    }

    fn at(&self, window: u64) -> u64 {
        self.counts.get((window % self.buckets()) as usize).copied().unwrap_or(0)
    }

    /// Whether the counts still mean something at `this` sub-window: not once all have left, nor
    /// after the clock stepped back.
    fn is_current(&self, this: u64) -> bool {
        self.last <= this && this - self.last < self.buckets()
    }

    /// The units that count at `this` sub-window.
    pub(super) fn count(&self, this: u64) -> u64 {
        if !self.is_current(this) {
            return 0;
        }
        (self.last + 1..=this)
            .fold(self.total, |total, window| total.saturating_sub(self.at(window)))
    }

    /// The sub-window at whose start the oldest `units` units have left.
    pub(super) fn leaves(&self, this: u64, units: u64) -> u64 {
        let mut left = 0;
        for window in (this + 1).saturating_sub(self.buckets())..=self.last {
            left += self.at(window);
            if left >= units {
                return window + self.buckets();
            }
        }
        this + self.buckets()
    }

    /// Adds `units` to `this` sub-window, and drops what has left.
    pub(super) fn add(&mut self, this: u64, units: u64) {
        self.total = self.count(this);
        if self.is_current(this) {
            for window in self.last + 1..=this {
                self.set(window, 0);
            }
        } else {
            self.counts.fill(0);
        }
        self.last = this;
        self.total += units;
        self.set(this, self.at(this) + units);
    }

    /// Subtracts `units` from the sub-window `charged`, if it still counts at `this`.
    pub(super) fn subtract(&mut self, this: u64, charged: u64, units: u64) {
        if !self.is_current(this) || charged > self.last || charged + self.buckets() <= this {
            return;
        }
        let gone = units.min(self.at(charged));
        self.set(charged, self.at(charged) - gone);
        self.total -= gone.min(self.total);
    }

    fn set(&mut self, window: u64, count: u64) {
        let index = (window % self.buckets()) as usize;
        if let Some(slot) = self.counts.get_mut(index) {
            *slot = count;
        }
    }
}
