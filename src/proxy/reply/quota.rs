//! What a stream of Envoy's rate limit quota service is told about its buckets. Knows no policy and
//! no limit.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::proxy::receive::call::messages::Duration;
use crate::proxy::receive::call::quota_messages::{
    Abandon, Action, Assignments, Blanket, BucketAction, BucketId, QuotaAssignment,
    RateLimitStrategy, Strategy, TokenBucket, UInt32Value,
};
use crate::proxy::receive::call::rls::framed;

/// What goes on in a bucket from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::proxy) enum Assignment {
    /// So many requests may pass in the time to live: most of them at any time of it, the others as
    /// it passes.
    Units(u64),
    AllowAll,
    DenyAll,
}

/// The longest time in which a token bucket may fill, in seconds. Envoy's buckets have to fill, and
/// they begin empty instead of full if that takes longer than the machine runs already.
const FILL_SECONDS_MAX: u64 = 120;
/// How much later than it should Envoy may notice that a time to live is over, in seconds.
const EXPIRY_SECONDS: u64 = 1;

/// What is to be told about a bucket, for so many seconds.
pub(in crate::proxy) fn assign(
    bucket: &BTreeMap<String, String>,
    assignment: Assignment,
    seconds: u64,
) -> Vec<BucketAction> {
    let told = one(bucket, assignment, seconds);
    match assignment {
        // Envoy fills a new token bucket only as far as the old one was full, and goes on with the
        // old one if both are equal. It carries out all actions of a message before a request sees
        // one of them, so none is turned away by the first of these.
        Assignment::Units(_) => vec![one(bucket, Assignment::DenyAll, seconds), told],
        Assignment::AllowAll | Assignment::DenyAll => vec![told],
    }
}

fn one(bucket: &BTreeMap<String, String>, assignment: Assignment, seconds: u64) -> BucketAction {
    let strategy = match assignment {
        Assignment::AllowAll => Strategy::Blanket(Blanket::AllowAll.into()),
        Assignment::DenyAll => Strategy::Blanket(Blanket::DenyAll.into()),
        Assignment::Units(units) => {
            let (tokens, fill_seconds) = bucket_of(units, seconds);
            Strategy::TokenBucket(TokenBucket {
                max_tokens: tokens,
                tokens_per_fill: Some(UInt32Value { value: tokens }),
                fill_interval: Some(Duration { seconds: fill_seconds }),
            })
        }
    };
    let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
    action(
        bucket,
        Action::Assign(QuotaAssignment {
            time_to_live: Some(Duration { seconds }),
            strategy: Some(RateLimitStrategy { strategy: Some(strategy) }),
        }),
    )
}

/// The tokens of a bucket that is full at first and lets through at most so many requests in so
/// many seconds, and the seconds in which it fills.
fn bucket_of(units: u64, seconds: u64) -> (u32, i64) {
    // They are counted in 32 bits.
    let units = units.clamp(1, u64::from(u32::MAX));
    let lives = seconds + EXPIRY_SECONDS;
    // Few units are all there at first, and less than one more comes back.
    let fills = units.saturating_mul(lives).saturating_add(1).min(FILL_SECONDS_MAX);
    // The most tokens for which tokens + tokens * lives / fills < units + 1.
    let tokens = ((units + 1) * fills).div_ceil(fills + lives).saturating_sub(1).max(1);
    (u32::try_from(tokens).unwrap_or(u32::MAX), i64::try_from(fills).unwrap_or(i64::MAX))
}

/// A bucket is to be forgotten.
pub(in crate::proxy) fn abandon(bucket: &BTreeMap<String, String>) -> BucketAction {
    action(bucket, Action::Abandon(Abandon {}))
}

fn action(bucket: &BTreeMap<String, String>, action: Action) -> BucketAction {
    let bucket = Some(BucketId { bucket: bucket.clone() });
    BucketAction { bucket, action: Some(action) }
}

/// A message with these actions.
pub(in crate::proxy) fn message(actions: Vec<BucketAction>) -> Bytes {
    framed(&Assignments { actions })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The most requests that a bucket lets through in so many seconds.
    fn most((tokens, fills): (u32, i64), seconds: u64) -> u64 {
        let (tokens, fills) = (u64::from(tokens), u64::try_from(fills).unwrap());
        tokens + tokens * seconds / fills
    }

    #[test]
    fn a_bucket_lets_through_what_was_handed_out_and_no_more() {
        for seconds in [1, 2, 4, 19, 59] {
            for units in (1..300).chain([1_000, 123_456, 1 << 30]) {
                let bucket = bucket_of(units, seconds);
                let passes = most(bucket, seconds + EXPIRY_SECONDS);
                assert!(passes <= units, "{units} in {seconds} s: {bucket:?} passes {passes}");
                // Nearly all of it, and all of a few.
                let least = if units == 1 { 1 } else { units - 1 - units / 50 };
                let passes = most(bucket, seconds);
                assert!(passes >= least, "{units} in {seconds} s: {bucket:?} passes {passes}");
                assert!(u64::from(bucket.0) * 2 >= units, "half of it at once: {bucket:?}");
            }
        }
        let (tokens, fills) = bucket_of(u64::MAX, 59);
        assert!(tokens > u32::MAX / 2 && fills == 120);
    }
}
