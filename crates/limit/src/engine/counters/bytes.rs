//! Counters as bytes, for a snapshot. Numbers are little-endian.

use super::{CounterContent, Members, Ring};
use crate::engine::bytes::Bytes;

const NUMBERS: u8 = 0;
const LOG: u8 = 1;
const BUCKETS: u8 = 2;

impl CounterContent {
    /// Whether a snapshot holds it. Leases are left out: the requests that hold them end with the
    /// process.
    pub(in crate::engine) fn outlives_the_process(&self) -> bool {
        !matches!(self, Self::Leases(_))
    }

    /// Appends the counter, as [`CounterContent::read`] reads it; leases are nothing.
    pub(in crate::engine) fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Numbers(numbers) => {
                out.push(NUMBERS);
                numbers.iter().for_each(|number| out.extend_from_slice(&number.to_le_bytes()));
            }
            Self::Log(members) => {
                out.push(LOG);
                members.write(out);
            }
            Self::Buckets(ring) => {
                out.push(BUCKETS);
                ring.write(out);
            }
            Self::Leases(_) => {}
        }
    }

    /// Reads a counter; `None` if the bytes are not a counter.
    pub(in crate::engine) fn read(bytes: &mut Bytes<'_>) -> Option<Self> {
        match bytes.u8()? {
            NUMBERS => Some(Self::Numbers([bytes.f64()?, bytes.f64()?, bytes.f64()?])),
            LOG => Members::read(bytes).map(|members| Self::Log(Box::new(members))),
            BUCKETS => Ring::read(bytes).map(|ring| Self::Buckets(Box::new(ring))),
            _ => None,
        }
    }
}
