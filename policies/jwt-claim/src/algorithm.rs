//! The algorithms of signatures (RFC 7518, section 3.1; RFC 8037).

use serde::{Deserialize, Deserializer};
use weir_policy::{Json, Mistakes};

/// A list of algorithms. Use it as the type of a setting.
#[derive(Debug, Default)]
pub(crate) struct Algorithms {
    known: Vec<Algorithm>,
    /// Items that are not algorithms, with their indices: reported together with other mistakes.
    unknown: Vec<(usize, Json<'static>)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Algorithm {
    Hs256,
    Hs384,
    Hs512,
    Rs256,
    Rs384,
    Rs512,
    Ps256,
    Ps384,
    Ps512,
    Es256,
    Es384,
    EdDsa,
}

const NAMES: [(&str, Algorithm); 12] = [
    ("HS256", Algorithm::Hs256),
    ("HS384", Algorithm::Hs384),
    ("HS512", Algorithm::Hs512),
    ("RS256", Algorithm::Rs256),
    ("RS384", Algorithm::Rs384),
    ("RS512", Algorithm::Rs512),
    ("PS256", Algorithm::Ps256),
    ("PS384", Algorithm::Ps384),
    ("PS512", Algorithm::Ps512),
    ("ES256", Algorithm::Es256),
    ("ES384", Algorithm::Es384),
    ("EdDSA", Algorithm::EdDsa),
];
impl Algorithm {
    pub(crate) fn name(self) -> &'static str {
        NAMES.iter().find(|(_, known)| *known == self).map_or("", |(name, _)| name)
    }
}

impl Algorithms {
    pub(crate) fn is_empty(&self) -> bool {
        self.known.is_empty() && self.unknown.is_empty()
    }

    /// Adds the names that are not algorithms. `true` if there are any.
    pub(crate) fn check(&self, mistakes: &mut Mistakes) -> bool {
        let names: Vec<String> = NAMES.iter().map(|(name, _)| format!("`{name}`")).collect();
        for (index, found) in &self.unknown {
            let expected = format_args!("one of {}", names.join(", "));
            mistakes.add(format!("algorithms[{index}]"), found, expected);
        }
        !self.unknown.is_empty()
    }

    /// The algorithm of this name, if it is in the list.
    pub(crate) fn named(&self, name: &str) -> Option<Algorithm> {
        self.iter().find(|known| known.name() == name)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Algorithm> {
        self.known.iter().copied()
    }
}

impl<'de> Deserialize<'de> for Algorithms {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut all = Self::default();
        for (index, item) in Vec::<Json<'_>>::deserialize(deserializer)?.into_iter().enumerate() {
            let known = NAMES.iter().find(|(name, _)| item.as_str().as_deref() == Some(*name));
            match known {
                Some((_, known)) => all.known.push(*known),
                None => all.unknown.push((index, item.into_owned())),
            }
        }
        Ok(all)
    }
}
