//! Calls of Envoy's rate limit service (`envoy.service.ratelimit.v3`): reads what is to be decided.
//! Knows no route, no policy and no limit.

use bytes::Bytes;
use prost::Message as _;

use super::messages::{RateLimitDescriptor, RateLimitOverride, RateLimitRequest, Unit};
use super::{Call, DESCRIPTORS_MAX, Descriptor, ENTRIES_MAX, check_domain, read_all};
use crate::proxy::receive::text::latin1;
use crate::proxy::refusal::{Check, Refusal};
use crate::wire::{Body, Charge};

/// The path of the one call of the service.
pub(in crate::proxy) const SHOULD_RATE_LIMIT: &str =
    "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
/// Maximum bytes of a call's message.
pub(super) const CALL_BYTES_MAX: usize = 1 << 20;
/// What comes before a message of gRPC: whether it is compressed, and its length.
pub(super) const FRAME_HEAD_BYTES: usize = 5;

impl Call {
    /// Reads a call's message: one, in the form of gRPC.
    ///
    /// # Errors
    /// It came too slowly, is too long, or is not what a caller sends.
    pub(in crate::proxy) async fn read(
        body: Body,
        buffered_bytes_max: usize,
    ) -> Result<Self, Refusal> {
        const LARGEST: usize = CALL_BYTES_MAX + FRAME_HEAD_BYTES;
        let (framed, _charge) = read_all(body, LARGEST, buffered_bytes_max).await?;
        Self::of(&framed).map_err(|found| Refusal::BadRequest(Check::Call.wrong(found)))
    }

    fn of(framed: &[u8]) -> Result<Self, &'static str> {
        let request = RateLimitRequest::decode(unframed(framed)?)
            .map_err(|_| "a message that is no RateLimitRequest")?;
        Self::from_request(request)
    }

    /// What a message asks.
    ///
    /// # Errors
    /// It is not what a caller sends.
    pub(super) fn from_request(request: RateLimitRequest) -> Result<Self, &'static str> {
        let RateLimitRequest { domain, descriptors, hits_addend } = request;
        check_domain(&domain)?;
        if descriptors.is_empty() {
            return Err("no descriptor");
        }
        if descriptors.len() > DESCRIPTORS_MAX {
            return Err("more than 16 descriptors");
        }
        let hits = u64::from(hits_addend.max(1));
        let descriptors = descriptors.into_iter().map(|written| Descriptor::of(written, hits));
        let descriptors = descriptors.collect::<Result<Vec<_>, _>>()?;
        // The entries, and the same as JSON.
        let bytes = descriptors.iter().map(|descriptor| 2 * descriptor.text.len()).sum();
        let _charge = Charge::of(bytes);
        let (is_held, is_quota) = (false, false);
        Ok(Self { domain, descriptors, is_held, is_quota, is_spent: true, _charge })
    }
}

impl Descriptor {
    fn of(written: RateLimitDescriptor, hits: u64) -> Result<Self, &'static str> {
        let RateLimitDescriptor { entries, limit, hits_addend, is_negative_hits } = written;
        if entries.is_empty() || entries.len() > ENTRIES_MAX {
            return Err("a descriptor without entries, or with more than 64");
        }
        let entries: Vec<(String, String)> =
            entries.into_iter().map(|entry| (text(entry.key), text(entry.value))).collect();
        if entries.iter().any(|(key, _)| key.is_empty()) {
            return Err("a descriptor's entry without a key");
        }
        let text = serde_json::to_string(&entries).map_err(|_| "a descriptor that is no text")?;
        let hits = hits_addend.map_or(hits, |own| own.value);
        Ok(Self {
            entries,
            text,
            limit: limit.map(|limit| limit_text(&limit)).transpose()?,
            limits: None,
            hits: if is_negative_hits { 0 } else { hits },
            gives_back: if is_negative_hits { hits } else { 0 },
            facts: None,
        })
    }
}

/// Bytes as text. Those that are not UTF-8 are read as Latin-1, as in header fields, so that
/// nothing is lost.
fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap_or_else(|error| latin1(error.as_bytes()).into_owned())
}

/// The limit that a caller wants, as policies see it.
fn limit_text(limit: &RateLimitOverride) -> Result<String, &'static str> {
    let unit = match Unit::try_from(limit.unit) {
        Ok(Unit::Second) => "second",
        Ok(Unit::Minute) => "minute",
        Ok(Unit::Hour) => "hour",
        Ok(Unit::Day) => "day",
        Ok(Unit::Week) => "week",
        Ok(Unit::Month) => "month",
        Ok(Unit::Year) => "year",
        Ok(Unit::Unknown) | Err(_) => return Err("a descriptor's limit without a known unit"),
    };
    Ok(format!("{}/{unit}", limit.requests_per_unit))
}

/// The message of a call of gRPC with one.
pub(super) fn unframed(framed: &[u8]) -> Result<&[u8], &'static str> {
    let (head, message) =
        framed.split_first_chunk::<FRAME_HEAD_BYTES>().ok_or("no message, or a part of one")?;
    let [compressed, length @ ..] = *head;
    if compressed != 0 {
        return Err("a compressed message");
    }
    if usize::try_from(u32::from_be_bytes(length)) != Ok(message.len()) {
        return Err("not exactly one message");
    }
    Ok(message)
}

/// A message in the form of gRPC.
pub(in crate::proxy) fn framed(message: &impl prost::Message) -> Bytes {
    let length = message.encoded_len();
    let mut framed = Vec::with_capacity(FRAME_HEAD_BYTES + length);
    framed.push(0);
    framed.extend_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes());
    message.encode_raw(&mut framed);
    framed.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proxy::receive::call::messages::{Entry, UInt64Value};

    fn descriptor(entries: &[(&str, &str)]) -> RateLimitDescriptor {
        let of = |(key, value): &(&str, &str)| Entry {
            key: key.as_bytes().to_vec(),
            value: value.as_bytes().to_vec(),
        };
        RateLimitDescriptor {
            entries: entries.iter().map(of).collect(),
            limit: None,
            hits_addend: None,
            is_negative_hits: false,
        }
    }

    fn request(descriptors: Vec<RateLimitDescriptor>, hits_addend: u32) -> RateLimitRequest {
        RateLimitRequest { domain: "edge".to_owned(), descriptors, hits_addend }
    }

    fn found(request: &RateLimitRequest) -> &'static str {
        Call::of(&framed(request)).unwrap_err()
    }

    #[test]
    fn a_call_is_read() {
        let limit = Some(RateLimitOverride { requests_per_unit: 60, unit: Unit::Minute.into() });
        let own = Some(UInt64Value { value: 1 << 63 });
        let look = Some(UInt64Value { value: 0 });
        let call = request(
            vec![
                descriptor(&[("a_b", "c\"\u{e9}"), ("a", "b_c")]),
                RateLimitDescriptor { limit, hits_addend: own, ..descriptor(&[("a", "")]) },
                RateLimitDescriptor { hits_addend: look, ..descriptor(&[("a", "")]) },
            ],
            0,
        );
        let call = Call::of(&framed(&call)).unwrap();
        assert_eq!(call.domain, "edge");
        let [first, second, third] = &call.descriptors[..] else { panic!("{call:?}") };
        assert_eq!(first.text, "[[\"a_b\",\"c\\\"\u{e9}\"],[\"a\",\"b_c\"]]");
        assert_eq!((first.hits, first.limit.as_deref()), (1, None));
        assert_eq!((second.hits, second.limit.as_deref()), (1 << 63, Some("60/minute")));
        assert_eq!(third.hits, 0);
        let hits_addend = Some(UInt64Value { value: 5 });
        let negative = RateLimitDescriptor {
            is_negative_hits: true,
            hits_addend,
            ..descriptor(&[("a", "b")])
        };
        let negative = Call::of(&framed(&request(vec![negative], 1))).unwrap();
        assert_eq!((negative.descriptors[0].hits, negative.descriptors[0].gives_back), (0, 5));
        let of_all = Call::of(&framed(&request(vec![descriptor(&[("a", "b")])], 7))).unwrap();
        assert_eq!(of_all.descriptors[0].hits, 7);
    }

    #[test]
    fn what_is_no_text_is_read_all_the_same() {
        let mut odd = descriptor(&[("a", "")]);
        odd.entries[0].value = b"\xff\xe9".to_vec();
        let call = Call::of(&framed(&request(vec![odd], 1))).unwrap();
        assert_eq!(call.descriptors[0].entries[0].1, "\u{ff}\u{e9}");
    }

    #[test]
    fn what_no_caller_sends_is_named() {
        let one = || descriptor(&[("a", "b")]);
        assert_eq!(found(&request(vec![], 1)), "no descriptor");
        assert_eq!(found(&request(vec![one(); 17], 1)), "more than 16 descriptors");
        let nameless = RateLimitRequest { domain: String::new(), ..request(vec![one()], 1) };
        assert_eq!(found(&nameless), "no domain");
        let empty = "a descriptor without entries, or with more than 64";
        assert_eq!(found(&request(vec![descriptor(&[])], 1)), empty);
        assert_eq!(found(&request(vec![descriptor(&[("a", "b"); 65])], 1)), empty);
        assert_eq!(
            found(&request(vec![descriptor(&[("", "b")])], 1)),
            "a descriptor's entry without a key"
        );
        for unit in [0, 8, -1] {
            let limit = Some(RateLimitOverride { requests_per_unit: 60, unit });
            let call = request(vec![RateLimitDescriptor { limit, ..one() }], 1);
            assert_eq!(found(&call), "a descriptor's limit without a known unit", "{unit}");
        }
    }

    #[test]
    fn every_cut_or_longer_message_is_refused() {
        let whole = framed(&request(vec![descriptor(&[("a", "b")])], 1));
        for length in 0..whole.len() {
            assert!(Call::of(&whole[..length]).is_err(), "{length}");
        }
        let longer: Vec<u8> = whole.iter().copied().chain([0]).collect();
        assert_eq!(Call::of(&longer).unwrap_err(), "not exactly one message");
        let mut compressed = whole.to_vec();
        compressed[0] = 1;
        assert_eq!(Call::of(&compressed).unwrap_err(), "a compressed message");
        assert_eq!(
            Call::of(&[0, 0, 0, 0, 1, 0xff]).unwrap_err(),
            "a message that is no RateLimitRequest"
        );
    }
}
