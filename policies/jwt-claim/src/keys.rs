//! A set of keys (JWKS, RFC 7517): which of them may have signed a token. Does not check signatures
//! itself.

use serde::{Deserialize, Deserializer};
use weir_policy::{Json, Mistakes, RsaKey, VerifyingKey};

use crate::algorithm::Algorithm;
use crate::base64;

/// Maximum number of keys of a set.
const KEYS_MAX: usize = 100;
/// Maximum number of keys that are tried for one token: each costs a check of a signature.
const TRIED_MAX: usize = 4;
/// Bytes of a modulus: 2,048 to 8,192 bits.
const MODULUS_BYTES: std::ops::RangeInclusive<usize> = 256..=1024;
/// Maximum size of an exponent, in bytes.
const EXPONENT_BYTES_MAX: usize = 8;
/// Minimum size of a shared secret, in bytes: RFC 7518, section 3.2, with HS256.
const SECRET_BYTES_MIN: usize = 32;
/// The byte before the coordinates of an uncompressed point.
const UNCOMPRESSED: u8 = 4;

/// A set of keys. Use it as the type of a setting.
#[derive(Debug, Default)]
pub(crate) struct Keys {
    keys: Vec<Key>,
    mistakes: Mistakes,
}

#[derive(Debug)]
struct Key {
    kid: Option<String>,
    alg: Option<String>,
    material: Material,
}

enum Material {
    Secret(Vec<u8>),
    Rsa { modulus: Vec<u8>, exponent: Vec<u8> },
    P256(Vec<u8>),
    P384(Vec<u8>),
    Ed25519(Vec<u8>),
}

/// Prints no key: it may be a secret.
impl std::fmt::Debug for Material {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(match self {
            Self::Secret(_) => "Secret",
            Self::Rsa { .. } => "Rsa",
            Self::P256(_) => "P256",
            Self::P384(_) => "P384",
            Self::Ed25519(_) => "Ed25519",
        })
    }
}

impl Keys {
    /// Adds the mistakes in the set. It must have a key for one of `algorithms`.
    pub(crate) fn check(
        &mut self,
        algorithms: impl Iterator<Item = Algorithm>,
        mistakes: &mut Mistakes,
    ) {
        let own = std::mem::take(&mut self.mistakes);
        let any = algorithms.into_iter().any(|algorithm| self.fitting(algorithm, None).count() > 0);
        if own.is_empty() && !any {
            mistakes.add(
                "keys",
                format_args!("{} keys, none of them for a configured algorithm", self.keys.len()),
                "a key that verifies signatures by one of them",
            );
        }
        mistakes.append(own);
    }

    /// The keys that may have signed a token by `algorithm`. `kid` selects those with this id, or,
    /// if there are none, those without any.
    pub(crate) fn fitting(
        &self,
        algorithm: Algorithm,
        kid: Option<&str>,
    ) -> impl Iterator<Item = VerifyingKey> {
        let named = kid.is_some_and(|kid| self.keys.iter().any(|key| key.is(kid)));
        let selected = move |key: &&Key| match kid {
            Some(kid) if named => key.is(kid),
            Some(_) => key.kid.is_none(),
            None => true,
        };
        let keys = self.keys.iter().filter(selected);
        keys.filter_map(move |key| key.verifying(algorithm)).take(TRIED_MAX)
    }

    fn read(value: &Json<'_>) -> Self {
        let mut mistakes = Mistakes::new();
        let Some(set) = value.get("keys").filter(Json::is_list) else {
            mistakes.add("keys", "no list `keys`", "a set of keys: { \"keys\": [..] } (RFC 7517)");
            return Self { keys: Vec::new(), mistakes };
        };
        let count = set.items().count();
        if count > KEYS_MAX {
            let expected = format_args!("at most {KEYS_MAX}");
            mistakes.add("keys.keys", format_args!("{count} keys"), expected);
        }
        let mut keys = Vec::with_capacity(count.min(KEYS_MAX));
        for (index, item) in set.items().enumerate().take(KEYS_MAX) {
            let reader = Reader { at: format!("keys.keys[{index}]"), item };
            keys.extend(reader.key(&mut mistakes));
        }
        Self { keys, mistakes }
    }
}

impl<'de> Deserialize<'de> for Keys {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Json::deserialize(deserializer).map(|value| Self::read(&value))
    }
}

impl Key {
    fn is(&self, kid: &str) -> bool {
        self.kid.as_deref() == Some(kid)
    }

    /// This key for `algorithm`, if it is one.
    fn verifying(&self, algorithm: Algorithm) -> Option<VerifyingKey> {
        if self.alg.as_deref().is_some_and(|alg| alg != algorithm.name()) {
            return None;
        }
        let rsa = || match &self.material {
            Material::Rsa { modulus, exponent } => {
                Some(RsaKey { modulus: modulus.clone(), exponent: exponent.clone() })
            }
            _ => None,
        };
        // RFC 7518, section 3.2: a secret is at least as long as the digest.
        let secret = |bytes: usize| match &self.material {
            Material::Secret(secret) if secret.len() >= bytes => Some(secret.clone()),
            _ => None,
        };
        match (algorithm, &self.material) {
            (Algorithm::Hs256, _) => secret(32).map(VerifyingKey::Hs256),
            (Algorithm::Hs384, _) => secret(48).map(VerifyingKey::Hs384),
            (Algorithm::Hs512, _) => secret(64).map(VerifyingKey::Hs512),
            (Algorithm::Rs256, _) => rsa().map(VerifyingKey::Rs256),
            (Algorithm::Rs384, _) => rsa().map(VerifyingKey::Rs384),
            (Algorithm::Rs512, _) => rsa().map(VerifyingKey::Rs512),
            (Algorithm::Ps256, _) => rsa().map(VerifyingKey::Ps256),
            (Algorithm::Ps384, _) => rsa().map(VerifyingKey::Ps384),
            (Algorithm::Ps512, _) => rsa().map(VerifyingKey::Ps512),
            (Algorithm::Es256, Material::P256(point)) => Some(VerifyingKey::Es256(point.clone())),
            (Algorithm::Es384, Material::P384(point)) => Some(VerifyingKey::Es384(point.clone())),
            (Algorithm::EdDsa, Material::Ed25519(key)) => Some(VerifyingKey::Ed25519(key.clone())),
            _ => None,
        }
    }
}

/// Reads one key of a set.
struct Reader<'a> {
    at: String,
    item: Json<'a>,
}

impl Reader<'_> {
    fn text(&self, name: &str) -> Option<String> {
        Some(self.item.get(name)?.as_str()?.into_owned())
    }

    /// `None` for a key of a kind that is not used here, which a set may well have, and for one
    /// with a mistake.
    fn key(&self, mistakes: &mut Mistakes) -> Option<Key> {
        let for_signatures = self.text("use").is_none_or(|purpose| purpose == "sig")
            && self.item.get("key_ops").filter(Json::is_list).is_none_or(|operations| {
                operations.items().any(|operation| operation == Json::from("verify"))
            });
        if !for_signatures {
            return None;
        }
        let material = match (&*self.text("kty")?, self.text("crv").as_deref()) {
            ("oct", _) => self.bytes("k", SECRET_BYTES_MIN..=4096, mistakes).map(Material::Secret),
            ("RSA", _) => {
                let modulus = self.bytes("n", MODULUS_BYTES, mistakes);
                let exponent = self.bytes("e", 1..=EXPONENT_BYTES_MAX, mistakes);
                modulus.zip(exponent).map(|(modulus, exponent)| Material::Rsa { modulus, exponent })
            }
            ("EC", Some("P-256")) => self.point(32, mistakes).map(Material::P256),
            ("EC", Some("P-384")) => self.point(48, mistakes).map(Material::P384),
            ("OKP", Some("Ed25519")) => self.bytes("x", 32..=32, mistakes).map(Material::Ed25519),
            _ => return None,
        };
        if self.item.get("d").is_some() {
            let expected = "a public key: whoever reads this file could sign with a private one";
            mistakes.add(format!("{}.d", self.at), "a private key", expected);
        }
        Some(Key { kid: self.text("kid"), alg: self.text("alg"), material: material? })
    }

    fn point(&self, bytes: usize, mistakes: &mut Mistakes) -> Option<Vec<u8>> {
        let x = self.bytes("x", bytes..=bytes, mistakes);
        let y = self.bytes("y", bytes..=bytes, mistakes);
        let (x, y) = x.zip(y)?;
        Some([&[UNCOMPRESSED][..], &x, &y].concat())
    }

    /// A member of the key. Its text is not repeated in a mistake, as it may be a secret.
    fn bytes(
        &self,
        name: &str,
        lengths: std::ops::RangeInclusive<usize>,
        mistakes: &mut Mistakes,
    ) -> Option<Vec<u8>> {
        let bytes = self.text(name).and_then(|text| base64::decode(&text));
        // The zeros before a number don't count.
        let zeros = |bytes: &Vec<u8>| bytes.iter().take_while(|byte| **byte == 0).count();
        let bytes = match name {
            "n" | "e" => bytes.map(|bytes| bytes.get(zeros(&bytes)..).unwrap_or_default().to_vec()),
            _ => bytes,
        };
        let fits = |bytes: &Vec<u8>| lengths.contains(&bytes.len());
        if let Some(bytes) = bytes.clone().filter(fits) {
            return Some(bytes);
        }
        let (least, most) = (lengths.start(), lengths.end());
        let expected = match least == most {
            true => format!("{least} bytes in base64url without padding"),
            false => format!("{least} to {most} bytes in base64url without padding"),
        };
        let at = format!("{}.{name}", self.at);
        match bytes {
            Some(bytes) => mistakes.add(at, format_args!("{} bytes", bytes.len()), expected),
            None if self.item.get(name).is_some() => {
                mistakes.add(at, "a text of another kind", expected);
            }
            None => mistakes.add(self.at.clone(), format_args!("no `{name}`"), expected),
        }
        None
    }
}
