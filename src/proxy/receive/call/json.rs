//! The same calls as JSON, in protobuf's JSON form, as envoyproxy/ratelimit takes them at `/json`.
//! Knows no route, no policy and no limit.

use serde::Deserialize;
use serde::de::{self, Deserializer};

use super::api::{MESSAGE_CHARS_MAX, Object};
use super::messages::{
    Entry, RateLimitDescriptor, RateLimitOverride, RateLimitRequest, UInt64Value, Unit,
};
use super::rls::CALL_BYTES_MAX;
use super::{Call, read_all};
use crate::proxy::refusal::Refusal;
use crate::wire::Body;

/// The path of a call as JSON.
pub(in crate::proxy) const JSON_CALL: &str = "/json";

/// A field may be `null`, which stands for its default, and has two spellings.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct WrittenCall {
    domain: Option<String>,
    descriptors: Option<Vec<Object<WrittenDescriptor>>>,
    #[serde(alias = "hits_addend")]
    hits_addend: Option<Number>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct WrittenDescriptor {
    entries: Option<Vec<Object<WrittenEntry>>>,
    limit: Option<Object<WrittenLimit>>,
    #[serde(alias = "hits_addend")]
    hits_addend: Option<Number>,
    #[serde(alias = "is_negative_hits")]
    is_negative_hits: Option<bool>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenEntry {
    key: Option<String>,
    value: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct WrittenLimit {
    #[serde(alias = "requests_per_unit")]
    requests_per_unit: Option<Number>,
    unit: Option<WrittenUnit>,
}

/// A number, or one as text: JSON's own numbers need not hold 64 bits.
#[derive(Clone, Copy)]
struct Number(u64);

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "expected a number from 0 on, or one as text")]
        enum Written {
            Number(u64),
            Text(String),
        }
        match Written::deserialize(deserializer)? {
            Written::Number(number) => Ok(Self(number)),
            Written::Text(text) => text.parse().map(Self).map_err(|_| {
                de::Error::custom(format_args!("{text:?} is no number from 0 to 2^64 - 1"))
            }),
        }
    }
}

/// A unit by its name or its number.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a unit such as \"MINUTE\", or its number")]
enum WrittenUnit {
    Number(i32),
    Name(String),
}

impl Call {
    /// Reads a call that is JSON.
    ///
    /// # Errors
    /// It came too slowly, is too long, or is not what a caller sends.
    pub(in crate::proxy) async fn read_json(
        body: Body,
        buffered_bytes_max: usize,
    ) -> Result<Self, Refusal> {
        let (read, _charge) = read_all(body, CALL_BYTES_MAX, buffered_bytes_max).await?;
        let request = request(&read)
            .map_err(|found| Refusal::malformed(found.chars().take(MESSAGE_CHARS_MAX).collect()))?;
        Self::from_request(request).map_err(|found| Refusal::malformed(found.to_owned()))
    }
}

fn request(body: &[u8]) -> Result<RateLimitRequest, String> {
    let Object::<WrittenCall>(written) =
        serde_json::from_slice(body).map_err(|error| error.to_string())?;
    let descriptors = written.descriptors.unwrap_or_default().into_iter().map(descriptor);
    Ok(RateLimitRequest {
        domain: written.domain.unwrap_or_default(),
        descriptors: descriptors.collect::<Result<_, _>>()?,
        hits_addend: written.hits_addend.map_or(Ok(0), |hits| small("hitsAddend", hits))?,
    })
}

fn descriptor(Object(written): Object<WrittenDescriptor>) -> Result<RateLimitDescriptor, String> {
    let entry = |Object(entry): Object<WrittenEntry>| Entry {
        key: entry.key.unwrap_or_default().into_bytes(),
        value: entry.value.unwrap_or_default().into_bytes(),
    };
    Ok(RateLimitDescriptor {
        entries: written.entries.unwrap_or_default().into_iter().map(entry).collect(),
        limit: written.limit.map(limit).transpose()?,
        hits_addend: written.hits_addend.map(|Number(value)| UInt64Value { value }),
        is_negative_hits: written.is_negative_hits.unwrap_or_default(),
    })
}

fn limit(Object(written): Object<WrittenLimit>) -> Result<RateLimitOverride, String> {
    let unit = match written.unit {
        None => Unit::Unknown.into(),
        Some(WrittenUnit::Number(number)) => number,
        Some(WrittenUnit::Name(name)) => Unit::named(&name)
            .ok_or_else(|| format!("the unit {name:?}, not one such as \"MINUTE\""))?
            .into(),
    };
    let requests_per_unit =
        written.requests_per_unit.map_or(Ok(0), |number| small("requestsPerUnit", number))?;
    Ok(RateLimitOverride { requests_per_unit, unit })
}

fn small(field: &str, Number(number): Number) -> Result<u32, String> {
    u32::try_from(number).map_err(|_| format!("{field} {number}, not at most {}", u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_spellings_of_fields_and_numbers_are_read() {
        let plain = br#"{
            "domain": "edge", "hitsAddend": 3,
            "descriptors": [
                {"entries": [{"key": "user", "value": "a"}, {"key": "route"}],
                 "limit": {"requestsPerUnit": 60, "unit": "MINUTE"}, "hitsAddend": "9223372036854775808"},
                {"entries": [{"key": "user", "value": "b"}], "isNegativeHits": true, "limit": null}
            ]}"#;
        let underscored = br#"{
            "domain": "edge", "hits_addend": "3",
            "descriptors": [
                {"entries": [{"key": "user", "value": "a"}, {"key": "route", "value": null}],
                 "limit": {"requests_per_unit": "60", "unit": 2}, "hits_addend": 9223372036854775808},
                {"entries": [{"key": "user", "value": "b"}], "is_negative_hits": true}
            ]}"#;
        let read = request(plain).unwrap();
        assert_eq!(read, request(underscored).unwrap());
        assert_eq!(read.hits_addend, 3);
        let [first, second] = &read.descriptors[..] else { panic!("{read:?}") };
        assert_eq!(first.entries[1], Entry { key: b"route".to_vec(), value: Vec::new() });
        assert_eq!(first.hits_addend, Some(UInt64Value { value: 1 << 63 }));
        let minute = RateLimitOverride { requests_per_unit: 60, unit: Unit::Minute.into() };
        assert_eq!(first.limit, Some(minute));
        assert!(second.is_negative_hits && second.hits_addend.is_none());
        assert_eq!(request(b"{}").unwrap(), RateLimitRequest::default());
    }

    #[test]
    fn what_is_wrong_is_named() {
        let found = |text: &str| request(text.as_bytes()).unwrap_err();
        for text in ["[]", r#"{"descriptors": [[null, null]]}"#] {
            assert!(found(text).contains("sequence, expected an object"), "{}", found(text));
        }
        assert!(found(r#"{"domian": "a"}"#).contains("unknown field `domian`"));
        assert!(found(r#"{"hitsAddend": -1}"#).contains("expected a number from 0 on"));
        assert_eq!(
            found(r#"{"hitsAddend": 4294967296}"#),
            "hitsAddend 4294967296, not at most 4294967295"
        );
        let unit = r#"{"descriptors": [{"limit": {"unit": "minute"}}]}"#;
        assert_eq!(found(unit), "the unit \"minute\", not one such as \"MINUTE\"");
        let twice = r#"{"hitsAddend": 1, "hits_addend": 2}"#;
        assert!(found(twice).contains("duplicate field"), "{}", found(twice));
    }
}
