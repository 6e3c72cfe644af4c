//! What a counter holds, for a person who looks: read as it is stored, and decided by nothing. Must
//! not know what a program's numbers mean.

use weir_algorithms::{Content, Kind};

use super::Key;

/// Instants of one counter that are read, at most.
pub(super) const MEMBERS_READ_MAX: usize = 20_000;
/// Counters that one search answers with, at most: there is one for each shape that a limit ever
/// had.
pub(super) const FOUND_MAX: usize = 64;

/// A counter that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its name.
    pub key: Key,
    /// Its name on Redis.
    pub text: Option<String>,
    /// What it holds.
    pub content: Content,
    /// Milliseconds until it may be forgotten; `None`: never.
    pub expires_ms: Option<u64>,
    /// The store's time when it was read, in microseconds since 1970.
    pub at_us: u64,
}

/// A string as the Redis driver packs it: doubles, and behind two of them a ring's counts of
/// four bytes.
pub(super) fn unpack(kind: Kind, bytes: &[u8]) -> Option<Content> {
    let (doubles, rest) = bytes.as_chunks::<8>();
    let number = |place: usize| doubles.get(place).map(|bytes| f64::from_le_bytes(*bytes) as i64);
    match kind {
        // As many as its program uses; the others are 0.
        Kind::Numbers if rest.is_empty() && (1..=3).contains(&doubles.len()) => {
            Some(Content::Numbers([0, 1, 2].map(|place| number(place).unwrap_or(0))))
        }
        Kind::Buckets => {
            let (counts, rest) = bytes.get(16..)?.as_chunks::<4>();
            let counts = counts.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect();
            rest.is_empty()
                .then_some(Content::Buckets { last: u64::try_from(number(0)?).ok()?, counts })
        }
        Kind::Numbers | Kind::Log | Kind::Leases => None,
    }
}
