//! The stream of Envoy's rate limit quota service (`envoy.service.rate_limit_quota.v3`): reads its
//! reports, and what their buckets ask. Knows no route, no policy and no limit.

use std::collections::BTreeMap;

use bytes::{Buf as _, Bytes};
use prost::Message as _;
use prost::encoding::{DecodeContext, WireType, decode_key, skip_field};

use super::frames::Frames;
use super::quota_messages::Usage;
use super::{Call, Descriptor, ENTRIES_MAX, check_domain, malformed};
use crate::proxy::refusal::Refusal;
use crate::wire::{Body, Charge};

/// The path of the one call of the service.
pub(in crate::proxy) const STREAM_QUOTAS: &str =
    "/envoy.service.rate_limit_quota.v3.RateLimitQuotaService/StreamRateLimitQuotas";
/// Maximum bytes of a message. Envoy reports all of its buckets in one, so it has room for as many
/// as a stream may have, of this size.
const REPORTS_BYTES_MAX: usize = 24 << 20;
/// Maximum number of buckets that a stream may have.
pub(in crate::proxy) const BUCKETS_MAX: usize = 16_384;
/// Maximum number of fields in a message, which are usages but for a few. Envoy reports each of its
/// buckets once.
const FIELDS_MAX: usize = 2 * BUCKETS_MAX;
/// Maximum bytes of the names and values of a bucket.
const BUCKET_BYTES_MAX: usize = 1 << 10;
/// Maximum bytes of a usage as it is sent: room for more than any bucket that is fit.
const USAGE_BYTES_MAX: usize = 4 << 10;
/// What one of them takes while its message is read, beside its bytes.
const USAGE_BYTES: usize = 64;

/// A RateLimitQuotaUsageReports, with its usages as they came: there may be thousands, and each
/// takes many times its bytes once it is read.
#[derive(Debug)]
pub(in crate::proxy) struct UsageReports {
    /// In the first message of a stream; that of later ones says nothing new.
    domain: Bytes,
    usages: Vec<Bytes>,
    _charge: Charge,
}

/// The messages of a stream, one after another.
pub(in crate::proxy) struct Reports(Frames);

impl Reports {
    pub(in crate::proxy) fn of(body: Body, buffered_bytes_max: usize) -> Self {
        Self(Frames::of(body, REPORTS_BYTES_MAX, buffered_bytes_max))
    }

    /// The next message; `None` at the stream's end. Nothing is lost if it is not awaited to the
    /// end.
    ///
    /// # Errors
    /// The connection failed, or what came is no message.
    pub(in crate::proxy) async fn next(&mut self) -> Result<Option<UsageReports>, Refusal> {
        self.0.next().await?.map(UsageReports::of).transpose()
    }
}

impl UsageReports {
    fn of(message: Bytes) -> Result<Self, Refusal> {
        const NO_REPORTS: &str = "a message that is no RateLimitQuotaUsageReports";
        let wrong = |_| malformed(NO_REPORTS);
        let (mut domain, mut usages, mut rest) = (Bytes::new(), Vec::new(), message.clone());
        let mut fields = 0;
        while rest.has_remaining() {
            fields += 1;
            if fields > FIELDS_MAX {
                return Err(malformed("more usages than a stream may have buckets, twice"));
            }
            let (tag, kind) = decode_key(&mut rest).map_err(wrong)?;
            if kind != WireType::LengthDelimited || !matches!(tag, 1 | 2) {
                skip_field(kind, tag, &mut rest, DecodeContext::default()).map_err(wrong)?;
                continue;
            }
            let length = prost::decode_length_delimiter(&mut rest).map_err(wrong)?;
            if length > rest.remaining() {
                return Err(malformed(NO_REPORTS));
            }
            let field = rest.split_to(length);
            if tag == 1 {
                domain = field;
            } else {
                usages.push(field);
            }
        }
        let charge = Charge::of(message.len() + usages.len() * USAGE_BYTES);
        Ok(Self { domain, usages, _charge: charge })
    }

    /// The domain.
    ///
    /// # Errors
    /// There is none, or it is none.
    pub(in crate::proxy) fn domain(&self) -> Result<String, Refusal> {
        let domain = String::from_utf8(self.domain.to_vec());
        let domain = domain.map_err(|_| malformed("a domain that is no text"))?;
        check_domain(&domain).map_err(malformed)?;
        Ok(domain)
    }

    /// What is reported of each bucket. `None` for a bucket that is too large to be one.
    pub(in crate::proxy) fn usages(
        &self,
    ) -> impl Iterator<Item = Result<Option<Usage>, Refusal>> + '_ {
        self.usages.iter().map(|usage| {
            if usage.len() > USAGE_BYTES_MAX {
                return Ok(None);
            }
            let read = Usage::decode(usage.clone());
            read.map(Some).map_err(|_| malformed("a usage that is no BucketQuotaUsage"))
        })
    }
}

impl Call {
    /// The question about a bucket: one descriptor, whose entries are in the order of their names,
    /// as a bucket has none. `None` if no rule could be for it: it is empty, or too large.
    pub(in crate::proxy) fn about(domain: &str, bucket: &BTreeMap<String, String>) -> Option<Self> {
        let bytes: usize = bucket.iter().map(|(name, value)| name.len() + value.len()).sum();
        let is_fit = (1..=ENTRIES_MAX).contains(&bucket.len())
            && bytes <= BUCKET_BYTES_MAX
            && bucket.keys().all(|name| !name.is_empty());
        if !is_fit {
            return None;
        }
        let entries: Vec<(String, String)> =
            bucket.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
        let text = serde_json::to_string(&entries).ok()?;
        // The entries twice, here and with the bucket, and the same as JSON.
        let charge = Charge::of(3 * text.len());
        let descriptor = Descriptor {
            entries,
            text,
            limit: None,
            limits: None,
            hits: 1,
            gives_back: 0,
            facts: None,
        };
        let (domain, descriptors) = (domain.to_owned(), vec![descriptor]);
        Some(Self {
            domain,
            descriptors,
            is_held: false,
            is_quota: true,
            is_spent: false,
            _charge: charge,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proxy::receive::call::quota_messages::{BucketId, Usage};
    use crate::proxy::receive::call::rls::{FRAME_HEAD_BYTES, framed};

    fn bucket(entries: &[(&str, &str)]) -> BTreeMap<String, String> {
        entries.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    /// As a proxy sends it.
    #[derive(Clone, PartialEq, prost::Message)]
    struct Written {
        #[prost(string, tag = "1")]
        domain: String,
        #[prost(message, repeated, tag = "2")]
        usages: Vec<Usage>,
        #[prost(uint64, tag = "9")]
        unknown: u64,
    }

    fn usage(name: &str, allowed: u64) -> Usage {
        let id = BucketId { bucket: bucket(&[(name, "2"), ("a", "1")]) };
        Usage { bucket: Some(id), allowed, denied: 0 }
    }

    fn reports(allowed: u64) -> Written {
        Written { domain: "edge".to_owned(), usages: vec![usage("b", allowed)], unknown: 7 }
    }

    async fn read(bytes: Vec<u8>) -> (Vec<u64>, Option<Refusal>) {
        let mut stream = Reports::of(Body::full(bytes.into()), usize::MAX);
        let mut allowed = Vec::new();
        loop {
            match stream.next().await {
                Ok(Some(reports)) => {
                    assert_eq!(reports.domain().unwrap(), "edge");
                    let usages: Vec<Usage> =
                        reports.usages().map(|usage| usage.unwrap().unwrap()).collect();
                    assert_eq!(usages, [usage("b", usages[0].allowed)]);
                    allowed.push(usages[0].allowed);
                }
                Ok(None) => return (allowed, None),
                Err(refusal) => return (allowed, Some(refusal)),
            }
        }
    }

    #[tokio::test]
    async fn messages_come_one_after_another() {
        let two: Vec<u8> = [framed(&reports(1)), framed(&reports(2))].concat();
        let (allowed, refusal) = read(two.clone()).await;
        assert!(allowed == [1, 2] && refusal.is_none(), "{allowed:?} {refusal:?}");
        for cut in [1, 6, two.len() - 1] {
            let (allowed, refusal) = read(two[..cut].to_vec()).await;
            assert!(matches!(refusal, Some(Refusal::BadRequest(_))), "{cut}: {allowed:?}");
        }
        let (_, refusal) = read([&[1][..], &two[1..]].concat()).await;
        assert!(matches!(refusal, Some(Refusal::BadRequest(_))), "{refusal:?}");
        let (_, refusal) = read(vec![0, 0xff, 0, 0, 0, 0]).await;
        assert!(matches!(refusal, Some(Refusal::BodyTooLarge { .. })), "{refusal:?}");
        let (_, refusal) = read(vec![0, 0, 0, 0, 1, 0xff]).await;
        assert!(matches!(refusal, Some(Refusal::BadRequest(_))), "{refusal:?}");
    }

    #[tokio::test]
    async fn a_message_is_bounded_in_all_that_it_may_become() {
        let many = Written { usages: vec![usage("b", 1); FIELDS_MAX + 1], ..reports(1) };
        let (_, refusal) = read(framed(&many).to_vec()).await;
        assert!(matches!(refusal, Some(Refusal::BadRequest(_))), "{refusal:?}");
        let of = |written: &Written| {
            UsageReports::of(Bytes::copy_from_slice(&framed(written)[FRAME_HEAD_BYTES..])).unwrap()
        };
        let large = usage(&"x".repeat(USAGE_BYTES_MAX), 5);
        let large = of(&Written { usages: vec![large, usage("b", 1)], ..reports(1) });
        let read: Vec<Option<u64>> =
            large.usages().map(|usage| usage.unwrap().map(|it| it.allowed)).collect();
        assert_eq!(read, [None, Some(1)]);
        for domain in ["".to_owned(), "d".repeat(257)] {
            let refusal = of(&Written { domain, ..reports(1) }).domain();
            assert!(matches!(refusal, Err(Refusal::BadRequest(_))), "{refusal:?}");
        }
    }

    #[test]
    fn a_bucket_is_a_descriptor_in_the_order_of_its_names() {
        let call = Call::about("edge", &bucket(&[("b", "2"), ("a", "1")])).unwrap();
        assert_eq!(call.descriptors[0].text, r#"[["a","1"],["b","2"]]"#);
        let long = "x".repeat(BUCKET_BYTES_MAX);
        for unfit in [bucket(&[]), bucket(&[("", "1")]), bucket(&[("a", &long)])] {
            assert!(Call::about("edge", &unfit).is_none(), "{unfit:?}");
        }
    }
}
