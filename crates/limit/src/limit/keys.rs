//! The names of counters: how keys, tags and spaces are built. Knows digests and escaping, but no
//! store.
//!
//! On Redis a counter's key is `PREFIX:1:{TAG}:SCOPE/LIMIT/SHAPE:KEY`. The engine adds `PREFIX:1:`;
//! 1 is the version of this layout.
//!
//! - `TAG` and `KEY` are 128-bit BLAKE3 digests in hexadecimal, keyed by `[store] key_secret` if it
//!   is set. They are the same on every proxy. So a client can't choose the hash slot with braces,
//!   make two keys collide, or use up memory with long keys. Without a secret it can compute
//!   digests, and so find keys of one slot. `TAG` is the first text in braces (the prefix has
//!   none), so nothing after it affects the slot.
//! - `SCOPE` and `LIMIT` are names from the configuration and from the policy, escaped by
//!   [`escaped`].
//! - `SHAPE` says what the state means (`weir_algorithms::Shape`). Amount and burst are not part of
//!   it, so editing them applies to existing counters. Editing the shape starts new counters.

use std::fmt::{self, Write as _};
use std::str::FromStr;

use smallvec::SmallVec;

use crate::engine::{Secret, Space};

/// BLAKE3 key derivation context: separates this use of the secret from any other.
const SECRET_CONTEXT: &str = "weir 2025 digests of counter keys and tags, version 1";
/// The context of [`secret_id`].
const ID_CONTEXT: &str = "weir 2026 identity of the secret of counter keys, version 1";
/// Maximum length of an escaped name in a key, in bytes. A longer name is digested.
const ESCAPED_BYTES_MAX: usize = 96;
/// Texts up to this size, in bytes, are digested without an allocation.
const INLINE_BYTES: usize = 192;

/// Computes digests. The same secret gives the same digests on every machine.
#[derive(Clone)]
pub(super) struct Digests(Option<[u8; blake3::KEY_LEN]>);

impl std::fmt::Debug for Digests {
    /// Hides the derived key, which is as sensitive as the secret.
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(if self.0.is_some() { "Digests(keyed)" } else { "Digests(plain)" })
    }
}

impl Digests {
    pub(super) fn new(secret: Option<&Secret>) -> Self {
        Self(secret.map(|secret| blake3::derive_key(SECRET_CONTEXT, secret.0.as_bytes())))
    }

    /// Digests for counters that no other process shares. If no secret is configured, they are
    /// digested with the random `salt`: otherwise anybody could compute keys that all fall into one
    /// shard.
    pub(super) fn salted(secret: Option<&Secret>, salt: [u8; blake3::KEY_LEN]) -> Self {
        if secret.is_some() { Self::new(secret) } else { Self(Some(salt)) }
    }

    /// Whether it takes a secret to compute them.
    pub(super) fn is_keyed(&self) -> bool {
        self.0.is_some()
    }

    /// The digests of a key and its tag.
    pub(super) fn of_key(&self, key: &str, tag: Option<&str>) -> KeyDigest {
        let key = self.of(&[key.as_bytes()]);
        KeyDigest { tag: tag.map_or(key, |tag| self.of(&[tag.as_bytes()])), key }
    }

    /// The digest of a list of parts. Each part is preceded by its length, so that different lists
    /// differ: `["ab", "c"]` is not `["a", "bc"]`.
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

/// Names the counters of a key by digests, without revealing the key. As text it is the part of a
/// counter's name on Redis that depends on the key: the key's digest in hexadecimal, after that of
/// the tag and a colon if a tag was given that is not the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KeyDigest {
    pub(super) tag: u128,
    pub(super) key: u128,
}

impl KeyDigest {
    /// The digest of the tag and that of the key.
    #[must_use]
    pub fn parts(self) -> [u128; 2] {
        [self.tag, self.key]
    }

    /// The digest with these [`parts`](Self::parts).
    #[must_use]
    #[inline]
    pub fn of_parts([tag, key]: [u128; 2]) -> Self {
        Self { tag, key }
    }
}

/// A text that is no [`KeyDigest`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected 32 hexadecimal digits, or twice as many with a colon between them")]
pub struct KeyDigestError;

impl fmt::Display for KeyDigest {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.tag != self.key {
            write!(out, "{:032x}:", self.tag)?;
        }
        write!(out, "{:032x}", self.key)
    }
}

impl FromStr for KeyDigest {
    type Err = KeyDigestError;

    fn from_str(text: &str) -> Result<Self, KeyDigestError> {
        // As the access log has digests of header fields.
        let text = text.strip_prefix("digest:").unwrap_or(text);
        let (tag, key) = text.split_once(':').unwrap_or((text, text));
        let number = |digits: &str| {
            let is_one = digits.len() == 32 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
            u128::from_str_radix(digits, 16).ok().filter(|_| is_one).ok_or(KeyDigestError)
        };
        Ok(Self { tag: number(tag)?, key: number(key)? })
    }
}

/// Identifies a secret without showing it; zeros without a secret.
#[must_use]
pub fn secret_id(secret: Option<&Secret>) -> [u8; 16] {
    let key = secret.map(|secret| blake3::derive_key(ID_CONTEXT, secret.0.as_bytes()));
    key.and_then(|key| key.first_chunk().copied()).unwrap_or_default()
}

/// What a limit of a plan counts under.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    /// A digest of the limit's scope, name and shape.
    pub limit: u128,
    /// The digests of its key and tag.
    pub key: KeyDigest,
}

/// What each limit of a plan counts under, in the plan's order.
pub type Identities = SmallVec<[Identity; 1]>;

/// Computes the digests of one plan's keys. Limits mostly share a key, which is digested once.
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

/// `SCOPE/LIMIT/SHAPE` with its digest. The digest uses no secret, because these names are not
/// secret.
pub(super) fn space(scope: &str, limit: &str, shape: &str) -> Space {
    let scope = escaped(scope);
    let limit = escaped(limit);
    space_of(format!("{scope}/{limit}/{shape}"))
}

/// The space with this text, whose parts are escaped: none of them has a slash.
pub(super) fn space_of(text: String) -> Space {
    let digest = {
        let parts: SmallVec<[&[u8]; 3]> = text.split('/').map(str::as_bytes).collect();
        Digests(None).of(&parts)
    };
    Space { text, digest }
}

/// `SCOPE/LIMIT/`, the prefix of every space of that limit.
pub(super) fn space_prefix(scope: &str, limit: &str) -> String {
    format!("{}/{}/", escaped(scope), escaped(limit))
}

/// Escapes a name for use in a key. Letters, digits and `._-@` stay, every other byte becomes
/// `%XX`: so different names stay different, and no brace, slash, colon or control character gets
/// in. A long name becomes `~` and its digest (`~` itself is always escaped).
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
    if text.len() <= ESCAPED_BYTES_MAX {
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
    fn parts_are_digested_with_their_lengths() {
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
    fn in_memory_keys_are_digested_with_a_salt_where_there_is_no_secret() {
        let digest = |secret: Option<&Secret>, salt: u8| {
            Digests::salted(secret, [salt; blake3::KEY_LEN]).of(&[b"203.0.113.7"])
        };
        assert_eq!(digest(None, 1), digest(None, 1));
        assert_ne!(digest(None, 1), digest(None, 2), "nobody else can compute it");
        assert!(Digests::salted(None, [1; blake3::KEY_LEN]).is_keyed());
        assert!(!Digests::new(None).is_keyed());
        let secret = Secret("s".into());
        let plain = Digests::new(Some(&secret)).of(&[b"203.0.113.7"]);
        assert_eq!((digest(Some(&secret), 1), digest(Some(&secret), 2)), (plain, plain));
    }

    #[test]
    fn each_secret_has_an_identity() {
        let [one, other] = ["s", "t"].map(|secret| secret_id(Some(&Secret(secret.into()))));
        assert_eq!(one, secret_id(Some(&Secret("s".into()))));
        assert!(one != other && one != secret_id(None));
    }

    #[test]
    fn a_digest_is_read_as_it_is_written() {
        let digests = Digests::new(None);
        let plain = digests.of_key("k", None);
        assert_eq!(plain.to_string(), format!("{PLAIN_K:032x}"));
        assert_eq!(plain, digests.of_key("k", Some("k")), "a tag that is the key");
        let tagged = digests.of_key("k", Some("t"));
        assert_eq!(tagged.to_string().len(), 65);
        for digest in [plain, tagged] {
            assert_eq!(digest.to_string().parse(), Ok(digest));
            assert_eq!(format!("digest:{digest}").parse(), Ok(digest), "as logs have it");
        }
        let long = "0".repeat(33);
        for wrong in ["", "k", "9e6b", &long, &format!("{plain}:"), &format!("{plain}:{plain}:")] {
            assert_eq!(wrong.parse::<KeyDigest>(), Err(KeyDigestError), "{wrong}");
        }
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
    fn a_name_with_braces_slashes_or_a_newline_is_escaped() {
        assert_eq!(space("{x}", "per-minute", "fw2-1000c").text, "%7Bx%7D/per-minute/fw2-1000c");
        assert_eq!(space("a/b c\n", "l", "s").text, "a%2Fb%20c%0A/l/s");
        let (long, longer) = (space(&"x".repeat(200), "l", "s"), space(&"x".repeat(201), "l", "s"));
        assert_eq!(long.text.len(), 33 + "/l/s".len());
        assert_ne!(long, longer);
    }

    const PLAIN_K: u128 = 0x9e6b_2364_5a7c_871a_b49d_2792_71d8_db3a;
    const KEYED_K: u128 = 0x85ae_cca4_f9f6_915d_761c_7c58_34fa_21ce;
}
