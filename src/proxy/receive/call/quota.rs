//! The stream of Envoy's rate limit quota service (`envoy.service.rate_limit_quota.v3`): reads its
//! reports, and what their buckets ask. Knows no route, no policy and no limit.

use std::collections::BTreeMap;
use std::future::poll_fn;

use prost::Message as _;

use super::quota_messages::UsageReports;
use super::rls::FRAME_HEAD_BYTES;
use super::{Call, Descriptor, ENTRIES_MAX};
use crate::proxy::refusal::{Check, Refusal};
use crate::wire::{self, Body, Charge};

/// The path of the one call of the service.
pub(in crate::proxy) const STREAM_QUOTAS: &str =
    "/envoy.service.rate_limit_quota.v3.RateLimitQuotaService/StreamRateLimitQuotas";
/// Maximum bytes of a message. Envoy reports all of its buckets in one, so it has room for as many
/// as a stream may have, of this size.
const REPORTS_BYTES_MAX: usize = 24 << 20;
/// Maximum bytes of the names and values of a bucket.
const BUCKET_BYTES_MAX: usize = 1 << 10;

/// The messages of a stream, one after another.
pub(in crate::proxy) struct Reports {
    body: Body,
    /// What has arrived of the next message.
    read: Vec<u8>,
    charge: Charge,
    buffered_bytes_max: usize,
}

impl Reports {
    pub(in crate::proxy) fn of(body: Body, buffered_bytes_max: usize) -> Self {
        Self { body, read: Vec::new(), charge: Charge::nothing(), buffered_bytes_max }
    }

    /// The next message; `None` at the stream's end. Nothing is lost if it is not awaited to the
    /// end.
    ///
    /// # Errors
    /// The connection failed, or what came is no message.
    pub(in crate::proxy) async fn next(&mut self) -> Result<Option<UsageReports>, Refusal> {
        loop {
            if let Some(reports) = self.take()? {
                return Ok(Some(reports));
            }
            let filled = poll_fn(|cx| self.body.poll_fill(cx)).await.transpose()?;
            if filled.is_none() {
                return if self.read.is_empty() {
                    Ok(None)
                } else {
                    Err(malformed("a part of one"))
                };
            }
            let data = self.body.data();
            self.read.extend_from_slice(data);
            let bytes = data.len();
            self.body.consume(bytes);
            self.body.end_if_read();
            self.charge.set(self.read.capacity());
            if wire::buffered_bytes() > self.buffered_bytes_max {
                return Err(Refusal::TooMuchBuffered);
            }
        }
    }

    /// The first message, if it is there as a whole.
    fn take(&mut self) -> Result<Option<UsageReports>, Refusal> {
        let Some((head, rest)) = self.read.split_first_chunk::<FRAME_HEAD_BYTES>() else {
            return Ok(None);
        };
        let [compressed, length @ ..] = *head;
        if compressed != 0 {
            return Err(malformed("a compressed message"));
        }
        let length = u32::from_be_bytes(length) as usize;
        if length > REPORTS_BYTES_MAX {
            return Err(Refusal::BodyTooLarge { limit_bytes: REPORTS_BYTES_MAX as u64 });
        }
        let Some(message) = rest.get(..length) else { return Ok(None) };
        let reports = UsageReports::decode(message)
            .map_err(|_| malformed("a message that is no RateLimitQuotaUsageReports"))?;
        self.read.drain(..FRAME_HEAD_BYTES + length);
        if self.read.is_empty() {
            // A stream is open for days, and most of its messages are small.
            self.read = Vec::new();
            self.charge.set(0);
        }
        Ok(Some(reports))
    }
}

fn malformed(found: &'static str) -> Refusal {
    Refusal::BadRequest(Check::Call.wrong(found))
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
    use crate::proxy::receive::call::rls::framed;

    fn bucket(entries: &[(&str, &str)]) -> BTreeMap<String, String> {
        entries.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    fn reports(allowed: u64) -> UsageReports {
        let id = BucketId { bucket: bucket(&[("b", "2"), ("a", "1")]) };
        let usage = Usage { bucket: Some(id), allowed, denied: 0 };
        UsageReports { domain: "edge".to_owned(), usages: vec![usage] }
    }

    async fn read(bytes: Vec<u8>) -> (Vec<u64>, Option<Refusal>) {
        let mut stream = Reports::of(Body::full(bytes.into()), usize::MAX);
        let mut allowed = Vec::new();
        loop {
            match stream.next().await {
                Ok(Some(reports)) => allowed.push(reports.usages[0].allowed),
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
