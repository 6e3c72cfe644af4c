//! A counter's name: text on Redis, a number in memory. Knows nothing of what is counted.

use super::Key;

/// What follows the prefix: the version of the key and state format, and the brace before the tag.
/// A change of meaning gets a new number, and old counters expire unread.
const MIDDLE: &str = ":1:{";
/// Hexadecimal digits of a tag or key.
const DIGEST_DIGITS: usize = 32;

/// Odd constants from the digits of pi. Each part of a key is multiplied by its own, so that a tag
/// equal to its key does not cancel out.
const SPREAD_TAG: u128 = 0x243f_6a88_85a3_08d3_1319_8a2e_0370_7345;
const SPREAD_KEY: u128 = 0xa409_3822_299f_31d0_082e_fa98_ec4e_6c89;
const SPREAD_SPACE: u128 = 0x4528_21e6_38d0_1377_be54_66cf_34e9_0c6d;

impl Key {
    /// `PREFIX:1:{TAG}:SPACE:KEY`. The braces hold only the digest of the tag, so that no client
    /// can choose a slot with braces of its own.
    #[must_use]
    pub fn text(&self, prefix: &str) -> String {
        let mut text = Vec::with_capacity(self.text_bytes(prefix));
        self.write(prefix, &mut text);
        String::from_utf8(text).unwrap_or_default()
    }

    /// The length of [`Key::text`].
    pub(super) fn text_bytes(&self, prefix: &str) -> usize {
        prefix.len() + MIDDLE.len() + 2 * DIGEST_DIGITS + 3 + self.space.text.len()
    }

    /// Appends [`Key::text`].
    pub(super) fn write(&self, prefix: &str, out: &mut Vec<u8>) {
        out.extend_from_slice(prefix.as_bytes());
        out.extend_from_slice(MIDDLE.as_bytes());
        out.extend_from_slice(&hex(self.tag));
        out.extend_from_slice(b"}:");
        out.extend_from_slice(self.space.text.as_bytes());
        out.push(b':');
        out.extend_from_slice(&hex(self.key));
    }

    /// The hash slot, determined by the tag.
    pub(crate) fn slot(&self) -> u16 {
        slot_of_tag(self.tag)
    }

    /// Combines all parts into one number. They are digests, so a linear combination is as good as
    /// any other.
    pub(crate) fn id(&self) -> u128 {
        (self.tag.wrapping_mul(SPREAD_TAG))
            .wrapping_add(self.key.wrapping_mul(SPREAD_KEY))
            .wrapping_add(self.space.digest.wrapping_mul(SPREAD_SPACE))
    }
}

/// The hash slot of all keys with this tag.
pub(super) fn slot_of_tag(tag: u128) -> u16 {
    crc16::State::<crc16::XMODEM>::calculate(&hex(tag)) % SLOTS
}

/// A digest as hexadecimal digits.
fn hex(digest: u128) -> [u8; DIGEST_DIGITS] {
    let mut digits = [0; DIGEST_DIGITS];
    for (pair, byte) in digits.chunks_exact_mut(2).zip(digest.to_be_bytes()) {
        for (digit, nibble) in pair.iter_mut().zip([byte >> 4, byte & 0xf]) {
            *digit = if nibble < 10 { b'0' + nibble } else { b'a' - 10 + nibble };
        }
    }
    digits
}

/// Hash slots of a Redis Cluster.
pub(super) const SLOTS: u16 = 16_384;

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::Space;
    use super::*;

    fn key(tag: u128, key: u128, space: &str) -> Key {
        Key { tag, key, space: Arc::new(Space { text: space.into(), digest: space.len() as u128 }) }
    }

    #[test]
    fn the_text_holds_prefix_version_tag_space_and_key() {
        assert_eq!(
            key(0xab, u128::MAX, "public/per-minute/fw").text("weir"),
            "weir:1:{000000000000000000000000000000ab}:public/per-minute/fw:ffffffffffffffffffffffffffffffff"
        );
    }

    #[test]
    fn the_slot_is_the_one_that_redis_computes_from_the_text() {
        for tag in [0, 1, 0xdead_beef, u128::MAX, 0x0123_4567_89ab_cdef_0123_4567_89ab_cdef] {
            let key = key(tag, 7, "a/b/c");
            assert_eq!(
                ::redis::cluster_routing::Slot::for_key(key.text("weir")),
                ::redis::cluster_routing::Slot::new(key.slot()).unwrap(),
                "{tag:x}"
            );
        }
    }

    #[test]
    fn no_part_of_a_key_cancels_another() {
        let ids = [
            key(1, 1, "a"),
            key(1, 1, "aa"),
            key(2, 2, "a"),
            key(1, 2, "a"),
            key(2, 1, "a"),
            key(0, 0, "a"),
        ]
        .map(|key| key.id());
        for (index, id) in ids.iter().enumerate() {
            assert_eq!(ids.iter().filter(|other| *other == id).count(), 1, "{index}");
        }
    }
}
