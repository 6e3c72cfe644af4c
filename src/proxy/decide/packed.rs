//! What a policy saw of a request, packed to be remembered. Knows nothing of how it is shown.

use std::sync::Arc;

use super::facts::Facts;

/// Bytes of one fact that are remembered, at most.
const FACT_BYTES_MAX: usize = 512;
/// Bytes of a request's facts, at most, with their names. Those that come after are left out.
const FACTS_BYTES_MAX: usize = 8 << 10;
/// The three lengths before each packed fact.
const LENGTHS_BYTES: usize = 12;

/// Names and values in one allocation: each after its length, the value's whole length first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::proxy) struct PackedFacts(Arc<[u8]>);

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::proxy) struct PackedFact<'a> {
    pub(in crate::proxy) name: &'a [u8],
    /// The value, or as much of it as is remembered.
    pub(in crate::proxy) value: &'a [u8],
    /// The bytes of the whole value.
    pub(in crate::proxy) whole: usize,
}

impl PackedFacts {
    pub(in crate::proxy) fn of(facts: &Facts<'_>) -> Self {
        Self::packed(facts.pairs().iter().copied())
    }

    /// The facts of several questions, one after the other.
    pub(in crate::proxy) fn of_several(all: &[Facts<'_>]) -> Self {
        let pairs: Vec<_> = all.iter().flat_map(Facts::pairs).collect();
        Self::packed(pairs.iter().copied())
    }

    fn packed<'a>(facts: impl Iterator<Item = (&'a str, &'a str)> + Clone) -> Self {
        let cut = |value: &'a str| {
            value.get(..value.floor_char_boundary(FACT_BYTES_MAX)).unwrap_or_default()
        };
        let size = |(name, value): (&str, &'a str)| LENGTHS_BYTES + name.len() + cut(value).len();
        let bytes = facts.clone().map(size).sum::<usize>().min(FACTS_BYTES_MAX);
        let mut packed = Vec::with_capacity(bytes);
        for (name, value) in facts {
            if packed.len() + size((name, value)) > FACTS_BYTES_MAX {
                break;
            }
            let shown = cut(value);
            for length in [value.len(), name.len(), shown.len()] {
                let length = u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes();
                packed.extend_from_slice(&length);
            }
            packed.extend_from_slice(name.as_bytes());
            packed.extend_from_slice(shown.as_bytes());
        }
        Self(packed.into())
    }

    /// The facts, in their order.
    pub(in crate::proxy) fn iter(&self) -> impl Iterator<Item = PackedFact<'_>> {
        let mut rest = &*self.0;
        std::iter::from_fn(move || {
            let (fact, after) = unpacked_first(rest)?;
            rest = after;
            Some(fact)
        })
    }

    /// The memory that they take.
    pub(in crate::proxy) fn bytes(&self) -> usize {
        self.0.len()
    }
}

fn unpacked_first(packed: &[u8]) -> Option<(PackedFact<'_>, &[u8])> {
    let number = |bytes: &[u8; 4]| usize::try_from(u32::from_le_bytes(*bytes)).unwrap_or(0);
    let (whole, rest) = packed.split_first_chunk::<4>()?;
    let (name, rest) = rest.split_first_chunk::<4>()?;
    let (shown, rest) = rest.split_first_chunk::<4>()?;
    let (name, rest) = rest.split_at_checked(number(name))?;
    let (value, rest) = rest.split_at_checked(number(shown))?;
    Some((PackedFact { name, value, whole: number(whole) }, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_are_packed_whole_or_cut_between_two_characters() {
        let long = "\u{e9}".repeat(FACT_BYTES_MAX);
        let facts = [("client-ip", "192.0.2.1"), ("header.x", &long), ("header.x", "")];
        let packed = PackedFacts::packed(facts.into_iter());
        let unpacked: Vec<PackedFact<'_>> = packed.iter().collect();
        let [address, cut, empty] = &unpacked[..] else { panic!("{unpacked:?}") };
        assert_eq!((address.value, address.whole), (&b"192.0.2.1"[..], 9));
        assert_eq!((cut.value.len(), cut.whole), (FACT_BYTES_MAX, 2 * FACT_BYTES_MAX));
        assert_eq!((empty.name, empty.value), (&b"header.x"[..], &b""[..]));
        let many = std::iter::repeat_n(("header.x", long.as_str()), 100);
        assert!(PackedFacts::packed(many).bytes() <= FACTS_BYTES_MAX);
    }
}
