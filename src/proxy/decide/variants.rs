//! Routes with `when`: those for the same requests as another one, of which they take some. By
//! facts of the request, by a share of the senders, or both. Knows nothing of hosts and paths.

use std::cell::LazyCell;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use aws_lc_rs::digest::{SHA256, digest};
use regex_automata::meta::Regex;

use crate::proxy::decide::facts::{self, FactQuery, Facts, RequestView, RouteTraits};
use crate::proxy::receive::path;
use crate::proxy::receive::text::latin1_bytes;
use crate::proxy::route::expression;
use crate::proxy::settings::{Paths, When};
use crate::telemetry::SettingError;

/// The value that any is as good as.
const ANY: &str = "*";
/// What a value begins with that is a regular expression.
const EXPRESSION: char = '~';
/// What the digest of a value begins with, where the value is not to be in the file.
const DIGEST: &str = "sha256:";
const DIGEST_EXPECTED: &str = "`sha256:` and 64 hexadecimal digits";
/// Shares are counted in parts of this.
pub(in crate::proxy) const SHARE_WHOLE: u32 = 10_000;

/// Which requests a variant takes of those of its route.
#[derive(Debug)]
pub(in crate::proxy) struct Condition {
    facts: Vec<FactCondition>,
    share: Option<Share>,
}

/// A fact, and the values of which it has to have one.
#[derive(Debug)]
struct FactCondition {
    query: Box<[FactQuery]>,
    values: Vec<Value>,
    /// It is the path, whose spellings are many.
    paths: Option<Paths>,
}

/// A value that is looked for.
#[derive(Debug)]
enum Value {
    Any,
    Text(String),
    /// The SHA-256 of the value.
    Digest([u8; 32]),
    Expression(Regex),
}

/// A share of the requests, those of the same senders each time.
#[derive(Debug)]
struct Share {
    /// In parts of [`SHARE_WHOLE`].
    part: u32,
    /// Who the sender is.
    by: Box<[FactQuery]>,
    /// Of the route's name, so that two variants do not take the same senders.
    salt: u64,
}

impl Condition {
    /// Checks the setting `when` of a route with these traits. Errors are added to `errors`.
    pub(in crate::proxy) fn build(
        written: &When,
        name: &str,
        (route, at, paths): (RouteTraits<'_>, &str, Paths),
        errors: &mut Vec<SettingError>,
    ) -> Self {
        let mut query = |setting: &str, fact: &str| {
            let built = FactQuery::new(fact, route).map(|query| [query].into());
            built.unwrap_or_else(|| {
                let found = format!("{fact:?}, which requests of this route never have");
                errors.push(SettingError::new(format!("{at}.{setting}"), found, "another fact"));
                [].into()
            })
        };
        let (mut conditions, mut wrong) = (Vec::with_capacity(written.facts.len()), Vec::new());
        for (fact, texts) in &written.facts {
            let paths = (fact == "path").then_some(paths);
            let mut values = Vec::with_capacity(texts.len());
            for text in texts {
                let built = match paths {
                    Some(paths) => Value::of_path(text, paths),
                    None => Value::build(text, false),
                };
                match built {
                    Ok(value) => values.push(value),
                    Err(expected) => {
                        let (setting, found) = (format!("{at}.{fact}"), format!("{text:?}"));
                        wrong.push(SettingError::new(setting, found, expected));
                    }
                }
            }
            conditions.push(FactCondition { query: query(fact, fact), values, paths });
        }
        let share = written.share.map(|part| {
            let mut salt = DefaultHasher::new();
            name.hash(&mut salt);
            Share { part, by: query("by", &written.by), salt: salt.finish() }
        });
        errors.append(&mut wrong);
        Self { facts: conditions, share }
    }

    /// Whether two readings of a path are the same to it.
    pub(in crate::proxy) fn agrees(&self, both: [&[&str]; 2], paths: Paths) -> bool {
        let facts = self.facts.iter().map(|condition| &condition.query);
        let mut all = facts.chain(self.share.iter().map(|share| &share.by));
        all.all(|queries| facts::agree(queries, both, paths))
    }

    /// Whether a request is among those that it takes.
    pub(in crate::proxy) fn holds(&self, view: RequestView<'_>) -> bool {
        self.facts.iter().all(|condition| condition.holds(view))
            && self.share.as_ref().is_none_or(|share| share.takes(view))
    }
}

impl FactCondition {
    fn holds(&self, view: RequestView<'_>) -> bool {
        let facts = Facts::gather(&self.query, view);
        let pairs = facts.pairs();
        let is_meant = |found: &[u8]| {
            // Once, however many digests are listed.
            let digest = LazyCell::new(|| digest(&SHA256, found));
            self.values.iter().any(|value| value.is(found, || digest.as_ref()))
        };
        pairs.iter().any(|(_, found)| {
            // Most facts show bytes beyond ASCII as Latin-1, and what is written is UTF-8.
            let Some(paths) = self.paths else {
                return is_meant(found.as_bytes())
                    || latin1_bytes(found).is_some_and(|bytes| is_meant(&bytes));
            };
            let found = path::one_spelling(found, paths);
            match latin1_bytes(&found) {
                Some(bytes) => is_meant(&bytes),
                None => is_meant(found.as_bytes()),
            }
        })
    }
}

impl Value {
    /// The error says what was expected.
    fn build(written: &str, ignores_case: bool) -> Result<Self, String> {
        if let Some(expression) = written.strip_prefix(EXPRESSION) {
            return expression::compile(expression, ignores_case).map(Self::Expression);
        }
        let split = written.split_at_checked(DIGEST.len());
        if let Some((_, hex)) = split.filter(|(begin, _)| begin.eq_ignore_ascii_case(DIGEST)) {
            let digest = digest_of(hex).ok_or_else(|| DIGEST_EXPECTED.to_owned())?;
            return Ok(Self::Digest(digest));
        }
        let any = written == ANY;
        Ok(if any { Self::Any } else { Self::Text(written.to_owned()) })
    }

    /// The same for a path, which is compared in one spelling.
    fn of_path(written: &str, paths: Paths) -> Result<Self, String> {
        let value = Self::build(written, !paths.case_exact)?;
        if matches!(value, Self::Expression(_)) && has_escape(written, paths) {
            return Err("an expression without escapes but `%2F`, since the others of a path are \
                        decoded before it is compared: `é` and not `%C3%A9`"
                .into());
        }
        Ok(value)
    }

    fn is<'a>(&self, found: &[u8], digest: impl FnOnce() -> &'a [u8]) -> bool {
        match self {
            Self::Any => true,
            Self::Text(text) => text.as_bytes() == found,
            Self::Digest(own) => digest() == own,
            Self::Expression(regex) => regex.is_match(found),
        }
    }
}

/// Whether an expression has an escape that no path has in one spelling.
fn has_escape(expression: &str, paths: Paths) -> bool {
    let mut escapes = expression.match_indices('%').filter_map(|(at, _)| {
        let digits = expression.get(at + 1..at + 3)?;
        digits.bytes().all(|digit| digit.is_ascii_hexdigit()).then_some(digits)
    });
    escapes.any(|digits| digits != "2F" && (paths.case_exact || digits != "2f"))
}

/// The digest in these hexadecimal digits.
fn digest_of(hex: &str) -> Option<[u8; 32]> {
    let mut digest = [0; 32];
    let (pairs, rest) = hex.as_bytes().as_chunks::<2>();
    if pairs.len() != digest.len() || !rest.is_empty() {
        return None;
    }
    for (byte, pair) in digest.iter_mut().zip(pairs) {
        // `from_str_radix` would take a sign.
        let digits =
            std::str::from_utf8(pair).ok().filter(|_| pair.iter().all(u8::is_ascii_hexdigit));
        *byte = u8::from_str_radix(digits?, 16).ok()?;
    }
    Some(digest)
}

impl Share {
    fn takes(&self, view: RequestView<'_>) -> bool {
        let facts = Facts::gather(&self.by, view);
        let pairs = facts.pairs();
        // The same in all processes, so that a sender stays where it is.
        let mut hasher = DefaultHasher::new();
        self.salt.hash(&mut hasher);
        pairs.iter().for_each(|(_, value)| value.hash(&mut hasher));
        !pairs.is_empty() && hasher.finish() % u64::from(SHARE_WHOLE) < u64::from(self.part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_may_be_known_by_its_digest_alone() {
        // Of "abc" (FIPS 180-2, B.1).
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        let value = Value::build(&format!("sha256:{abc}"), false).unwrap();
        let is = |found: &str| {
            let digest = digest(&SHA256, found.as_bytes());
            value.is(found.as_bytes(), || digest.as_ref())
        };
        assert!(is("abc") && !is("abd"));
        assert!(!is(&format!("sha256:{abc}")), "what is written is not the value");
        for wrong in ["", "ba78", &abc.replace('a', "g"), &abc.replacen("ba", "+a", 1)] {
            assert!(Value::build(&format!("sha256:{wrong}"), false).is_err(), "{wrong}");
        }
    }
}
