//! Names of counters: what a key, a tag and a space are made of. Knows digests and escaping, no
//! store.
//!
//! In Redis a counter is called `PREFIX:1:{TAG}:SCOPE/LIMIT/SHAPE:KEY` (`PREFIX:1:` is the
//! engine's; 1 is the version of this layout):
//!
//! - `TAG` and `KEY` are 128-bit BLAKE3 digests in hexadecimal, keyed by `[store] key_secret` where
//!   one is set and the same on every proxy. A caller can neither steer a slot with braces, nor
//!   make two keys one, nor spend memory with long ones. Without a secret a caller can compute
//!   digests, and so choose keys of one slot. `TAG` is the first thing in braces, and the prefix
//!   has none, so nothing that follows can decide the slot.
//! - `SCOPE` and `LIMIT` are names from the configuration and from the policy, escaped by
//!   [`escaped`].
//! - `SHAPE` is what gives the state its meaning (`weir_algorithms::Shape`): amount and burst are
//!   not in it, so that editing them applies to the counters as they are; editing the shape starts
//!   fresh.

use std::fmt::Write as _;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::OnceLock;

use smallvec::SmallVec;

use crate::engine::{Secret, Space};

/// Tells this use of a secret from any other that the same secret might be put to.
const SECRET_CONTEXT: &str = "weir 2025 digests of counter keys and tags, version 1";
/// The same of the secret that a process makes for itself.
const PROCESS_CONTEXT: &str = "weir 2025 digests of counter keys in memory, version 1";
/// Bytes of a scope's name in a key, at most: a longer one is digested.
const SCOPE_BYTES_MAX: usize = 96;
/// Digested without an allocation up to this size.
const INLINE_BYTES: usize = 192;

/// Makes digests; two with the same secret make the same ones, wherever they run.
#[derive(Clone)]
pub(super) struct Digests(Option<[u8; blake3::KEY_LEN]>);

impl std::fmt::Debug for Digests {
    /// The key is as good as the secret: never shown.
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(if self.0.is_some() { "Digests(keyed)" } else { "Digests(plain)" })
    }
}

impl Digests {
    pub(super) fn new(secret: Option<&Secret>) -> Self {
        Self(secret.map(|secret| blake3::derive_key(SECRET_CONTEXT, secret.0.as_bytes())))
    }

    /// For counters that no other process shares: where no secret is configured, a random one of
    /// this process. Without a key anybody could choose clients' keys offline so that they meet in
    /// one shard.
    pub(super) fn of_process(secret: Option<&Secret>) -> Self {
        static RANDOM: OnceLock<[u8; blake3::KEY_LEN]> = OnceLock::new();
        // The standard library seeds its hash tables' keys from the system.
        let random = || {
            let seed: Vec<u8> = (0..blake3::KEY_LEN / 8)
                .flat_map(|_| RandomState::new().hash_one(0_u64).to_le_bytes())
                .collect();
            blake3::derive_key(PROCESS_CONTEXT, &seed)
        };
        if secret.is_some() { Self::new(secret) } else { Self(Some(*RANDOM.get_or_init(random))) }
    }

    /// The digest of a list of parts. Each is preceded by its length, so that no two lists read
    /// alike: `["ab", "c"]` is not `["a", "bc"]`.
    pub(super) fn of(&self, parts: &[&[u8]]) -> u128 {
        let mut bytes = SmallVec::<[u8; INLINE_BYTES]>::new();
        for part in parts {
            bytes.extend_from_slice(&(part.len() as u64).to_le_bytes());
            bytes.extend_from_slice(part);
        }
        let hash = match &self.0 {
            Some(key) => blake3::keyed_hash(key, &bytes),
            None => blake3::hash(&bytes),
        };
        hash.as_bytes().first_chunk().map_or(0, |half| u128::from_be_bytes(*half))
    }
}

/// Digests of one plan's keys: limits mostly share theirs, which is then digested once.
pub(super) struct PlanDigests<'a> {
    digests: &'a Digests,
    last: Option<(&'a str, u128)>,
}

impl<'a> PlanDigests<'a> {
    pub(super) fn new(digests: &'a Digests) -> Self {
        Self { digests, last: None }
    }

    /// The digest of a key or a tag.
    pub(super) fn of(&mut self, text: &'a str) -> u128 {
        match self.last {
            Some((last, digest)) if last == text => digest,
            _ => {
                let digest = self.digests.of(&[text.as_bytes()]);
                self.last = Some((text, digest));
                digest
            }
        }
    }
}

/// `SCOPE/LIMIT/SHAPE` with its digest. No secret goes into it: it is made of names that the
/// configuration shows anyway.
pub(super) fn space(scope: &str, limit: &str, shape: &str) -> Space {
    let scope = escaped(scope);
    let limit = escaped(limit);
    let digest = Digests(None).of(&[scope.as_bytes(), limit.as_bytes(), shape.as_bytes()]);
    Space { text: format!("{scope}/{limit}/{shape}"), digest }
}

/// `SCOPE/LIMIT/`, with which every space of that limit begins.
pub(super) fn space_prefix(scope: &str, limit: &str) -> String {
    format!("{}/{}/", escaped(scope), escaped(limit))
}

/// A name as it stands in a key: letters, digits and `._-@` as they are, every other byte as `%XX`,
/// so that no two names look alike and no brace, slash, colon or control character gets in. A long
/// one becomes `~` and its digest (`~` is otherwise escaped).
fn escaped(name: &str) -> String {
    let mut text = String::with_capacity(name.len());
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || b"._-@".contains(&byte) {
            text.push(char::from(byte));
        } else {
            // Writing to a String can't fail.
            let _ = write!(text, "%{byte:02X}");
        }
    }
    if text.len() <= SCOPE_BYTES_MAX {
        text
    } else {
        format!("~{:032x}", Digests(None).of(&[name.as_bytes()]))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_border_between_parts_counts() {
        let digests = Digests::new(None);
        let lists: [&[&[u8]]; 7] = [
            &[b"ab", b"c"],
            &[b"a", b"bc"],
            &[b"abc"],
            &[b"abc", b""],
            &[b"", b"abc"],
            &[],
            &[b""],
        ];
        let distinct: HashSet<u128> = lists.iter().map(|parts| digests.of(parts)).collect();
        assert_eq!(distinct.len(), lists.len());
    }

    proptest! {
        #[test]
        fn distinct_lists_of_parts_have_distinct_digests(
            one in proptest::collection::vec(proptest::collection::vec(0_u8..3, 0..4), 0..4),
            other in proptest::collection::vec(proptest::collection::vec(0_u8..3, 0..4), 0..4),
        ) {
            let digests = Digests::new(None);
            let of = |parts: &[Vec<u8>]| digests.of(&parts.iter().map(Vec::as_slice).collect::<Vec<_>>());
            prop_assert_eq!(one == other, of(&one) == of(&other));
        }

        #[test]
        fn distinct_names_stay_distinct_and_harmless(one in "[a%{}/: \u{0}~\u{e9}]{0,6}", other in "[a%{}/: \u{0}~\u{e9}]{0,6}") {
            prop_assert_eq!(one == other, escaped(&one) == escaped(&other));
            prop_assert!(escaped(&one).bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-@%~".contains(&byte)));
        }
    }

    #[test]
    fn a_secret_changes_every_digest_and_is_the_same_on_every_proxy() {
        let keyed = |secret: &str| Digests::new(Some(&Secret(secret.into()))).of(&[b"203.0.113.7"]);
        assert_eq!(keyed("s"), keyed("s"));
        let distinct = HashSet::from([
            Digests::new(None).of(&[b"203.0.113.7"]),
            keyed("s"),
            keyed("t"),
            keyed(""),
        ]);
        assert_eq!(distinct.len(), 4);
    }

    #[test]
    fn in_memory_the_process_has_a_secret_of_its_own_and_keeps_it() {
        let digest = |secret: Option<&Secret>| Digests::of_process(secret).of(&[b"203.0.113.7"]);
        assert_eq!(digest(None), digest(None), "a reload finds its counters");
        assert_ne!(
            digest(None),
            Digests::new(None).of(&[b"203.0.113.7"]),
            "nobody else can compute it"
        );
        let secret = Secret("s".into());
        assert_eq!(digest(Some(&secret)), Digests::new(Some(&secret)).of(&[b"203.0.113.7"]));
    }

    #[test]
    fn digests_do_not_change_from_one_release_to_the_next() {
        assert_eq!(Digests::new(None).of(&[b"k"]), PLAIN_K);
        assert_eq!(Digests::new(Some(&Secret("s".into()))).of(&[b"k"]), KEYED_K);
    }

    #[test]
    fn a_long_key_is_digested_whole() {
        let digests = Digests::new(None);
        let (mut one, two) = (vec![0_u8; 4096], vec![0_u8; 4096]);
        assert_eq!(digests.of(&[&one]), digests.of(&[&two]));
        one[4095] = 1;
        assert_ne!(digests.of(&[&one]), digests.of(&[&two]));
    }

    #[test]
    fn a_name_with_braces_slashes_or_a_newline_steers_nothing() {
        assert_eq!(space("{x}", "per-minute", "fw1-1000c").text, "%7Bx%7D/per-minute/fw1-1000c");
        assert_eq!(space("a/b c\n", "l", "s").text, "a%2Fb%20c%0A/l/s");
        let (long, longer) = (space(&"x".repeat(200), "l", "s"), space(&"x".repeat(201), "l", "s"));
        assert_eq!(long.text.len(), 33 + "/l/s".len());
        assert_ne!(long, longer);
    }

    const PLAIN_K: u128 = 0x9e6b_2364_5a7c_871a_b49d_2792_71d8_db3a;
    const KEYED_K: u128 = 0x85ae_cca4_f9f6_915d_761c_7c58_34fa_21ce;
}
