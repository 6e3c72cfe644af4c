//! Calls of the HTTP API: JSON objects, or arrays of them. docs/openapi.json describes them.

use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use super::{Call, Descriptor, ENTRIES_MAX, check_domain, read_all};
use crate::proxy::refusal::Refusal;
use crate::wire::{Body, Charge};

/// Maximum bytes of a call's body, of all calls in it together.
pub(in crate::proxy) const BODY_BYTES_MAX: usize = 1 << 20;
/// Maximum number of calls in one body.
pub(in crate::proxy) const BATCH_MAX: usize = 1_024;
/// Maximum number of facts of a call. A fact with several values counts as often.
pub(in crate::proxy) const FACTS_MAX: usize = 128;
/// Maximum time for which a decision may be held, in milliseconds.
pub(in crate::proxy) const HOLD_MS_MAX: u64 = 3_600_000;
/// Maximum bytes of an `Idempotency-Key`.
pub(in crate::proxy) const KEY_BYTES_MAX: usize = 255;
/// Maximum number of names and values of one table: of facts as of entries.
const PAIRS_MAX: usize = FACTS_MAX;
/// Maximum bytes of the name of a fact or of an entry.
const NAME_BYTES_MAX: usize = 256;
/// Maximum number of limits that a call brings: as many as a plan has.
const LIMITS_MAX: usize = 16;
/// Maximum bytes of these limits.
const LIMITS_BYTES_MAX: usize = 16 << 10;
/// Bytes of the values that a byte of a body becomes, at most: `0,` is a value of 32.
const VALUES_PER_BYTE: usize = 16;
/// How much of a message about wrong JSON is shown.
pub(super) const MESSAGE_CHARS_MAX: usize = 256;

/// What a call wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::proxy) enum Operation {
    /// A decision by a policy.
    Decide,
    /// A decision by limits of the caller's own.
    Take,
    /// What a decision would be. Nothing is taken.
    Look,
    /// The end of what was let through, as it came about.
    Settle,
    /// The same if it came to nothing.
    GiveBack,
    /// More time for what is held.
    Renew,
}

/// What a value takes, beside its bytes.
const VALUE_BYTES: usize = 64;

/// The calls of one body.
#[derive(Debug)]
pub(in crate::proxy) enum Calls<T> {
    One(T),
    Many(Vec<T>),
}

impl<T> Calls<T> {
    pub(in crate::proxy) fn all(&self) -> &[T] {
        match self {
            Self::One(one) => std::slice::from_ref(one),
            Self::Many(many) => many,
        }
    }
}

/// A decision that is asked for.
#[derive(Debug)]
pub(in crate::proxy) struct Question {
    pub(in crate::proxy) call: Call,
    /// How long the decision is held, in milliseconds.
    pub(in crate::proxy) hold_ms: Option<u64>,
}

/// The end of what was let through.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::proxy) struct End {
    /// What the decision is held under.
    pub(in crate::proxy) id: String,
    #[serde(default)]
    pub(in crate::proxy) outcome: Outcome,
    /// The status of the answer that it came to, if there was one.
    #[serde(default, deserialize_with = "given")]
    pub(in crate::proxy) status: Option<u16>,
    /// Facts of that answer.
    #[serde(default)]
    facts: Pairs,
}

/// What became of something that was let through, in the words of the contract with policies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(in crate::proxy) enum Outcome {
    #[default]
    Completed,
    Unsent,
    UpstreamFailed,
    TimedOut,
    ClientGone,
}

/// The end of something that was given back.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::proxy) struct Returned {
    pub(in crate::proxy) id: String,
}

/// More time for what is held.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::proxy) struct Renewal {
    pub(in crate::proxy) id: String,
    /// From now on, in milliseconds.
    pub(in crate::proxy) hold_ms: u64,
}

/// What [`Question`] is read from.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    domain: String,
    #[serde(default)]
    facts: Pairs,
    #[serde(default)]
    entries: Entries,
    #[serde(default, deserialize_with = "given")]
    limits: Option<Vec<Value>>,
    #[serde(default, deserialize_with = "given")]
    hits: Option<u64>,
    #[serde(default, deserialize_with = "given")]
    hold_ms: Option<u64>,
}

/// A member that is there. `null` is none: it is what JavaScript writes for numbers that are none.
fn given<'de, D: Deserializer<'de>, T: Deserialize<'de>>(de: D) -> Result<Option<T>, D::Error> {
    T::deserialize(de).map(Some)
}

/// A call. serde would read a struct from an array as well, by the order of its fields.
pub(super) struct Object<T>(pub(super) T);

/// Names and values, in their order: an object, whose values may be lists, or a list of pairs. A
/// name may come more than once.
#[derive(Debug, Default, PartialEq, Eq)]
struct Pairs(Vec<(String, String)>);

/// The same, but no lists as values: a list of entries would fit other rules than its caller
/// thinks, and an empty one none.
#[derive(Debug, Default, PartialEq, Eq)]
struct Entries(Vec<(String, String)>);

/// A value, or several.
#[derive(Deserialize)]
#[serde(untagged)]
enum Values {
    One(String),
    Many(Vec<String>),
}

impl Operation {
    const ALL: [Self; 6] =
        [Self::Decide, Self::Take, Self::Look, Self::Settle, Self::GiveBack, Self::Renew];

    /// The operation at a path.
    pub(in crate::proxy) fn at(path: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|operation| operation.path() == path)
    }

    /// Its path.
    pub(in crate::proxy) fn path(self) -> &'static str {
        match self {
            Self::Decide => "/v1/decide",
            Self::Take => "/v1/take",
            Self::Look => "/v1/look",
            Self::Settle => "/v1/settle",
            Self::GiveBack => "/v1/give-back",
            Self::Renew => "/v1/renew",
        }
    }
}

/// Reads a body.
///
/// # Errors
/// It came too slowly, or is too long.
pub(in crate::proxy) async fn read(
    body: Body,
    buffered_bytes_max: usize,
) -> Result<(Vec<u8>, Charge), Refusal> {
    let (read, mut charge) = read_all(body, BODY_BYTES_MAX, buffered_bytes_max).await?;
    charge.set(read.len().saturating_mul(VALUES_PER_BYTE));
    Ok((read, charge))
}

/// The decisions that a body asks for. If one of its calls is wrong, all of it is, so that nothing
/// is charged of a body that was not meant.
///
/// # Errors
/// What was found and what was expected.
pub(in crate::proxy) fn questions(
    operation: Operation,
    body: &[u8],
) -> Result<Calls<Question>, Refusal> {
    let wrong = |found: String| Refusal::malformed(found);
    Ok(match calls::<Written>(body)? {
        Calls::One(one) => Calls::One(Question::of(operation, one).map_err(wrong)?),
        Calls::Many(many) => {
            let each = many.into_iter().enumerate().map(|(index, one)| {
                Question::of(operation, one)
                    .map_err(|found| wrong(format!("call {index}: {found}")))
            });
            Calls::Many(each.collect::<Result<_, _>>()?)
        }
    })
}

/// What a body says has ended.
///
/// # Errors
/// What was found and what was expected.
pub(in crate::proxy) fn ends(body: &[u8]) -> Result<Calls<End>, Refusal> {
    let ends: Calls<End> = calls(body)?;
    for end in ends.all() {
        let Some(status) = end.status else { continue };
        if !(100..=599).contains(&status) {
            return Err(Refusal::malformed(format!(
                "the status {status}, not one from 100 to 599"
            )));
        }
        // A policy may take it for a success, whatever the outcome says.
        if matches!(end.outcome, Outcome::Unsent | Outcome::TimedOut | Outcome::ClientGone) {
            let found = format!("the status {status} of what had no answer: leave `status` out");
            return Err(Refusal::malformed(found));
        }
    }
    Ok(ends)
}

/// What a body gives back.
///
/// # Errors
/// What was found and what was expected.
pub(in crate::proxy) fn returned(body: &[u8]) -> Result<Calls<Returned>, Refusal> {
    calls(body)
}

/// What a body gives more time.
///
/// # Errors
/// What was found and what was expected.
pub(in crate::proxy) fn renewals(body: &[u8]) -> Result<Calls<Renewal>, Refusal> {
    let renewals: Calls<Renewal> = calls(body)?;
    renewals
        .all()
        .iter()
        .try_for_each(|one| check_hold(one.hold_ms))
        .map_err(Refusal::malformed)?;
    Ok(renewals)
}

fn check_hold(ms: u64) -> Result<(), String> {
    match ms {
        1..=HOLD_MS_MAX => Ok(()),
        _ => Err(format!("`hold_ms` {ms}, not one from 1 to {HOLD_MS_MAX}")),
    }
}

/// An object, or an array of them.
fn calls<T: for<'de> Deserialize<'de>>(body: &[u8]) -> Result<Calls<T>, Refusal> {
    let wrong = |error: serde_json::Error| {
        Refusal::malformed(error.to_string().chars().take(MESSAGE_CHARS_MAX).collect())
    };
    if body.trim_ascii_start().first() != Some(&b'[') {
        return serde_json::from_slice(body).map(|Object(one)| Calls::One(one)).map_err(wrong);
    }
    let many: Vec<Object<T>> = serde_json::from_slice(body).map_err(wrong)?;
    if many.is_empty() || many.len() > BATCH_MAX {
        return Err(Refusal::malformed(format!("{} calls, not 1 to {BATCH_MAX}", many.len())));
    }
    Ok(Calls::Many(many.into_iter().map(|Object(one)| one).collect()))
}

impl Question {
    fn of(operation: Operation, written: Written) -> Result<Self, String> {
        let Written { domain, facts, entries, limits, hits, hold_ms } = written;
        if domain.is_empty() {
            return Err("an empty `domain`".to_owned());
        }
        check_domain(&domain)?;
        if entries.0.len() > ENTRIES_MAX {
            return Err(format!("more than {ENTRIES_MAX} `entries`"));
        }
        if entries.0.iter().any(|(key, _)| key.is_empty()) {
            return Err("an entry without a key".to_owned());
        }
        hold_ms.map_or(Ok(()), check_hold)?;
        match operation {
            Operation::Take if limits.is_none() => {
                return Err("no `limits` to take of".to_owned());
            }
            Operation::Take if entries.0.is_empty() => {
                return Err("no `entries` to count by".to_owned());
            }
            Operation::Decide if limits.is_some() => {
                return Err("`limits`, which /v1/take and /v1/look have".to_owned());
            }
            Operation::Look if hits.is_some() || hold_ms.is_some() => {
                return Err("`hits` or `hold_ms`, but a look takes nothing".to_owned());
            }
            _ => {}
        }
        let hits = if operation == Operation::Look { 0 } else { hits.unwrap_or(1) };
        if hits == 0 && hold_ms.is_some() {
            return Err("`hold_ms` with 0 `hits`, of which nothing is held".to_owned());
        }
        let unwritable = |_| "`entries` or `limits` that are no text".to_owned();
        let text = serde_json::to_string(&entries.0).map_err(unwritable)?;
        if limits.as_ref().is_some_and(|limits| limits.len() > LIMITS_MAX) {
            return Err(format!("more than {LIMITS_MAX} `limits`"));
        }
        let limits = limits.map(|limits| serde_json::to_string(&limits)).transpose();
        if let Ok(Some(text)) = &limits
            && text.len() > LIMITS_BYTES_MAX
        {
            return Err(format!("more than {LIMITS_BYTES_MAX} bytes of `limits`"));
        }
        let descriptor = Descriptor {
            entries: entries.0,
            text,
            limit: None,
            limits: limits.map_err(unwritable)?,
            hits,
            gives_back: 0,
            facts: Some(facts.0),
        };
        // The body that it was read from is charged for it.
        let is_held = hold_ms.is_some();
        let charge = Charge::nothing();
        let (descriptors, is_quota, is_spent) = (vec![descriptor], false, false);
        let call = Call { domain, descriptors, is_held, is_quota, is_spent, _charge: charge };
        Ok(Self { call, hold_ms })
    }
}

/// Bytes that names and values take.
fn bytes_of(pairs: &[(String, String)]) -> usize {
    pairs.iter().map(|(name, value)| VALUE_BYTES + name.len() + value.len()).sum()
}

impl Question {
    /// Bytes that it takes until it is answered.
    pub(in crate::proxy) fn bytes(&self) -> usize {
        let of = |descriptor: &Descriptor| {
            let Descriptor { entries, text, limits, facts, .. } = descriptor;
            let limits = limits.as_ref().map_or(0, String::len);
            bytes_of(entries) + text.len() + limits + facts.as_deref().map_or(0, bytes_of)
        };
        let descriptors: usize = self.call.descriptors.iter().map(of).sum();
        2 * VALUE_BYTES + self.call.domain.len() + descriptors
    }
}

impl Returned {
    /// Bytes that it takes until it is answered.
    pub(in crate::proxy) fn bytes(&self) -> usize {
        VALUE_BYTES + self.id.len()
    }
}

impl Renewal {
    /// Bytes that it takes until it is answered.
    pub(in crate::proxy) fn bytes(&self) -> usize {
        VALUE_BYTES + self.id.len()
    }
}

impl End {
    /// Bytes that it takes until it is answered.
    pub(in crate::proxy) fn bytes(&self) -> usize {
        VALUE_BYTES + self.id.len() + bytes_of(&self.facts.0)
    }

    /// Facts of the answer.
    pub(in crate::proxy) fn facts(&self) -> &[(String, String)] {
        &self.facts.0
    }
}

/// Checks that a name may follow so many pairs: each value has a copy of it.
fn checked<E: de::Error>(name: &str, before: usize) -> Result<(), E> {
    if before >= PAIRS_MAX {
        return Err(E::custom(format_args!("more than {PAIRS_MAX} values")));
    }
    if name.len() > NAME_BYTES_MAX {
        return Err(E::custom(format_args!("a name of more than {NAME_BYTES_MAX} bytes")));
    }
    Ok(())
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ObjectVisitor<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectVisitor<T> {
            type Value = Object<T>;

            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Object<T>, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map)).map(Object)
            }
        }

        deserializer.deserialize_map(ObjectVisitor(PhantomData))
    }
}

impl<'de> Deserialize<'de> for Pairs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(PairsVisitor { has_lists: true }).map(Self)
    }
}

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(PairsVisitor { has_lists: false }).map(Self)
    }
}

/// Reads names and values. With `has_lists`, a name of an object may have several values.
struct PairsVisitor {
    has_lists: bool,
}

impl<'de> Visitor<'de> for PairsVisitor {
    type Value = Vec<(String, String)>;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self.has_lists {
            true => "an object of texts or lists of texts, or a list of pairs of texts",
            false => "an object of texts, or a list of pairs of texts",
        })
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut pairs = Vec::new();
        while let Some(name) = map.next_key::<String>()? {
            checked(&name, pairs.len())?;
            let values = map.next_value::<Values>().ok();
            match values {
                Some(Values::One(value)) => pairs.push((name, value)),
                Some(Values::Many(many)) if self.has_lists => {
                    checked(&name, pairs.len() + many.len().saturating_sub(1))?;
                    pairs.extend(many.into_iter().map(|value| (name.clone(), value)));
                }
                _ => {
                    let expected = match self.has_lists {
                        true => "neither a text nor a list of texts",
                        false => "no text: an entry that comes several times is several pairs",
                    };
                    return Err(de::Error::custom(format_args!(
                        "the value of {name:?} is {expected}"
                    )));
                }
            }
        }
        Ok(pairs)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut pairs = Vec::new();
        while let Some(pair) = list.next_element::<(String, String)>()? {
            checked(&pair.0, pairs.len())?;
            pairs.push(pair);
        }
        Ok(pairs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proxy::refusal::CallError;

    fn found(operation: Operation, body: &str) -> String {
        match questions(operation, body.as_bytes()).unwrap_err() {
            Refusal::Call(CallError::Malformed(found)) => found,
            other => panic!("{other:?}"),
        }
    }

    fn one(operation: Operation, body: &str) -> Question {
        match questions(operation, body.as_bytes()).unwrap() {
            Calls::One(one) => one,
            Calls::Many(many) => panic!("{many:?}"),
        }
    }

    fn pairs(list: &[(&str, &str)]) -> Vec<(String, String)> {
        list.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn entries_keep_their_order_and_facts_may_have_several_values() {
        let body = r#"{"domain": "edge", "facts": {"cookie.a": ["1", "2"], "path": "/"},
            "entries": {"z": "1", "a": "2"}, "hits": 18446744073709551615, "hold_ms": 5}"#;
        let Question { call, hold_ms } = one(Operation::Decide, body);
        let [descriptor] = &call.descriptors[..] else { panic!("{call:?}") };
        assert_eq!(descriptor.text, r#"[["z","1"],["a","2"]]"#);
        let facts = pairs(&[("cookie.a", "1"), ("cookie.a", "2"), ("path", "/")]);
        assert_eq!(descriptor.facts, Some(facts));
        assert_eq!((descriptor.hits, hold_ms, call.is_held), (u64::MAX, Some(5), true));
        let list = r#"{"domain": "edge", "entries": [["a", "1"], ["a", "2"]]}"#;
        let listed = one(Operation::Look, list);
        assert_eq!(listed.call.descriptors[0].entries, pairs(&[("a", "1"), ("a", "2")]));
        assert_eq!(listed.call.descriptors[0].hits, 0);
    }

    #[test]
    fn what_is_wrong_is_named() {
        use Operation::{Decide, Look, Take};
        for (operation, body, expected) in [
            (Decide, "", "EOF"),
            (Decide, "{}", "missing field `domain`"),
            (Decide, r#"{"domain": ""}"#, "an empty `domain`"),
            (Decide, &format!(r#"{{"domain": "{}"}}"#, "d".repeat(257)), "more than 256 bytes"),
            (Decide, r#"{"domain": "a", "fact": {}}"#, "unknown field `fact`"),
            (Decide, r#"{"domain": "a", "facts": {"path": 7}}"#, "the value of \"path\""),
            (Decide, r#"{"domain": "a", "facts": 7}"#, "an object of texts"),
            (Decide, r#"{"domain": "a", "entries": [["a"]]}"#, "invalid length 1"),
            (Decide, r#"{"domain": "a", "entries": {"": "b"}}"#, "an entry without a key"),
            (Decide, r#"{"domain": "a", "hits": -1}"#, "invalid value: integer `-1`"),
            (Decide, r#"{"domain": "a", "hits": 18446744073709551616}"#, "invalid type"),
            (Decide, r#"{"domain": "a", "hold_ms": 0}"#, "`hold_ms` 0, not one from 1 to 3600000"),
            (Decide, r#"{"domain": "a", "hold_ms": 3600001}"#, "`hold_ms`"),
            (Decide, r#"{"domain": "a", "hold_ms": 1, "hits": 0}"#, "0 `hits`"),
            (Decide, r#"{"domain": "a", "limits": []}"#, "`limits`, which /v1/take"),
            (Take, r#"{"domain": "a", "entries": {"b": "c"}}"#, "no `limits`"),
            (Take, r#"{"domain": "a", "limits": []}"#, "no `entries`"),
            (Look, r#"{"domain": "a", "hits": 1}"#, "a look takes nothing"),
            (Decide, "[]", "0 calls"),
            (Decide, r#"[{"domain": "a"}, {"domain": ""}]"#, "call 1: an empty `domain`"),
            (Decide, r#"{"domain": "a"} x"#, "trailing characters"),
        ] {
            let found = found(operation, body);
            assert!(found.contains(expected), "{body}: {found}");
        }
        let many = vec![r#"{"domain":"a"}"#; BATCH_MAX + 1].join(",");
        assert_eq!(found(Decide, &format!("[{many}]")), "1025 calls, not 1 to 1024");
        let facts: Vec<String> =
            (0..=FACTS_MAX).map(|nth| format!("\"query.{nth}\":\"\"")).collect();
        let body = format!(r#"{{"domain": "a", "facts": {{{}}}}}"#, facts.join(","));
        assert!(found(Decide, &body).starts_with("more than 128 values"));
        // A name is copied for each of its values.
        let (name, values) = ("n".repeat(100_000), vec!["\"\""; 10_000].join(","));
        for body in [
            format!(r#"{{"domain": "a", "facts": {{"query.a": [{values}]}}}}"#),
            format!(r#"{{"domain": "a", "facts": {{"{name}": [{values}]}}}}"#),
        ] {
            assert!(found(Decide, &body).starts_with(['m', 'a']), "{body:.80}");
        }
        let body = format!(r#"{{"id": "x", "facts": {{"{name}": [{values}]}}}}"#);
        assert!(matches!(ends(body.as_bytes()), Err(Refusal::Call(CallError::Malformed(_)))));
        let many = vec!["{}"; 17].join(",");
        let take = |limits: &str| {
            format!(r#"{{"domain": "a", "entries": {{"b": "c"}}, "limits": [{limits}]}}"#)
        };
        assert_eq!(found(Take, &take(&many)), "more than 16 `limits`");
        let long = format!("\"{}\"", "x".repeat(17 << 10));
        assert_eq!(found(Take, &take(&long)), "more than 16384 bytes of `limits`");
        // Deep nesting ends in an error and not on the stack.
        let deep = format!(r#"{{"domain": "a", "limits": {}"#, "[".repeat(100_000));
        assert!(found(Take, &deep).contains("recursion limit"));
    }

    #[test]
    fn ends_have_defaults_and_known_words() {
        let Calls::One(end) = ends(br#"{"id": "x"}"#).unwrap() else { panic!() };
        assert_eq!((end.outcome, end.status, end.facts()), (Outcome::Completed, None, &[][..]));
        let Calls::Many(many) =
            ends(br#"[{"id": "x", "outcome": "upstream-failed", "facts": {"header.a": "b"}}]"#)
                .unwrap()
        else {
            panic!()
        };
        assert_eq!(many[0].outcome, Outcome::UpstreamFailed);
        assert_eq!(many[0].facts(), pairs(&[("header.a", "b")]));
        assert!(ends(br#"{"id": "x", "outcome": "lost"}"#).is_err());
        assert!(ends(br#"{"id": "x", "status": 99}"#).is_err());
        for outcome in ["unsent", "timed-out", "client-gone"] {
            let end = |more: &str| {
                ends(format!(r#"{{"id": "x", "outcome": "{outcome}"{more}}}"#).as_bytes())
            };
            assert!(end("").is_ok() && end(r#", "status": 200"#).is_err(), "{outcome}");
        }
        assert!(returned(br#"{"id": "x", "status": 200}"#).is_err());
    }
}
