//! What a counter holds, for operators: read as stored, and never used for a decision. Must not
//! know what a program's numbers mean.

use weir_algorithms::{Content, Kind};

use super::Key;

/// Maximum number of instants read from one counter.
pub(super) const MEMBERS_READ_MAX: usize = 20_000;
/// Maximum number of counters that one search returns: there is one for each shape that a limit
/// ever had.
pub(super) const FOUND_MAX: usize = 64;

/// A counter found by a search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundCounter {
    /// Its key.
    pub key: Key,
    /// Its name on Redis.
    pub text: Option<String>,
    /// What it holds.
    pub content: Content,
    /// Milliseconds until it may be forgotten; `None` means never.
    pub expires_ms: Option<u64>,
    /// The store's time of the read, in microseconds since 1970.
    pub at_us: u64,
}

/// Parses a string as the Redis driver packs it: doubles. Those of a ring are the last sub-window,
/// the sum, and the counts.
pub(super) fn unpack(kind: Kind, bytes: &[u8]) -> Option<Content> {
    let (doubles, rest) = bytes.as_chunks::<8>();
    let number = |index: usize| doubles.get(index).map(|bytes| f64::from_le_bytes(*bytes) as i64);
    match kind {
        // Only as many as the program uses are stored; the others are 0.
        Kind::Numbers if rest.is_empty() && (1..=3).contains(&doubles.len()) => {
            Some(Content::Numbers([0, 1, 2].map(|index| number(index).unwrap_or(0))))
        }
        Kind::Buckets => {
            let counts = doubles.get(2..)?.iter().map(|bytes| f64::from_le_bytes(*bytes) as u64);
            let counts = counts.collect();
            rest.is_empty()
                .then_some(Content::Buckets { last: u64::try_from(number(0)?).ok()?, counts })
        }
        Kind::Numbers | Kind::Log | Kind::Leases => None,
    }
}
