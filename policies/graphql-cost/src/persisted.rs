//! Persisted queries: requests name them by the SHA-256 of their text. The configuration knows
//! their texts, or only what they cost.

use std::fmt;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};
use weir_policy::{Digest, Json, Mistakes};

use crate::document::{Bounds, Document};

/// Maximum number of listed queries.
const QUERIES_MAX: usize = 100_000;

/// A listed query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Listed {
    /// What it costs.
    Cost(u64),
    Text(String),
}

/// The listed queries.
#[derive(Debug, Default)]
pub(crate) struct Persisted {
    /// Sorted by digest.
    queries: Vec<(Digest, Listed)>,
    mistakes: Mistakes,
}

impl Persisted {
    /// The query with this digest.
    pub(crate) fn get(&self, digest: Digest) -> Option<&Listed> {
        let at = self.queries.binary_search_by_key(&digest, |(known, _)| *known).ok()?;
        self.queries.get(at).map(|(_, listed)| listed)
    }

    /// Checks each text: a request with a listed query could else be refused each time.
    pub(crate) fn check(&mut self, bounds: Bounds, mistakes: &mut Mistakes) {
        mistakes.append(std::mem::take(&mut self.mistakes));
        for (digest, listed) in &self.queries {
            let Listed::Text(text) = listed else { continue };
            let at = format!("persisted.{digest}");
            // A digest is made of bytes, which facts show as the characters with these numbers.
            let bytes: String = text.bytes().map(char::from).collect();
            let own = Digest::of_fact(&bytes);
            if own != *digest {
                mistakes.add(&at, format_args!("a text whose digest is {own}"), "the text itself");
            }
            if let Err(refusal) = Document::parse(text, bounds.tokens, bounds) {
                let found = format_args!("a text that is refused: {}", refusal.denial().reason);
                mistakes.add(at, found, "a GraphQL document within the maxima");
            }
        }
    }
}

impl<'de> Deserialize<'de> for Persisted {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Table)
    }
}

struct Table;

impl<'de> Visitor<'de> for Table {
    type Value = Persisted;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a table of digests and costs, such as { \"sha256:HEX\" = 12 }")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Persisted, M::Error> {
        let mut persisted = Persisted::default();
        let Persisted { queries, mistakes } = &mut persisted;
        while let Some((key, value)) = map.next_entry::<String, Json<'de>>()? {
            if queries.len() >= QUERIES_MAX {
                mistakes.add("persisted", format_args!("more than {QUERIES_MAX} queries"), "fewer");
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                break;
            }
            let at = format!("persisted.{key}");
            let digest = Digest::parse(&key).or_else(|| Digest::parse(&format!("sha256:{key}")));
            let text = value.as_str().map(|text| Listed::Text(text.into_owned()));
            let listed = text.or_else(|| value.as_u64().map(Listed::Cost));
            match (digest, listed) {
                (Some(digest), Some(listed)) => queries.push((digest, listed)),
                (None, _) => mistakes.add(
                    at,
                    format_args!("{key:?}"),
                    "the query's SHA-256 in 64 hexadecimal digits",
                ),
                (_, None) => {
                    mistakes.add(at, "another value", "what the query costs, or its text");
                }
            }
        }
        queries.sort_unstable_by_key(|(digest, _)| *digest);
        for pair in queries.windows(2) {
            if let [(one, _), (two, _)] = pair
                && one == two
            {
                mistakes.add(
                    format!("persisted.{one}"),
                    "the digest a second time",
                    "each digest once, its digits in lower case",
                );
            }
        }
        Ok(persisted)
    }
}
