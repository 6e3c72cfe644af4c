//! Shared by all bucket algorithms.

use crate::Rate;

/// What messages call the largest cost that can pass.
pub(crate) const COST_MAX_TEXT: &str = "the burst";

/// `q` and `w` of `RateLimit-Policy`. With a burst above the quota more than the quota may be left.
/// The burst is reported then, and the time in which it comes back, which is the same rate.
pub(crate) fn policy(burst: u64, rate: Rate) -> (u64, Option<u64>) {
    let (quota, window_ms) = if burst > rate.amount && rate.amount > 0 {
        // Below 2^31 x 2^36, so 128 bits are enough for any plan.
        let refill_ms =
            (u128::from(burst) * u128::from(rate.per_ms)).div_ceil(u128::from(rate.amount));
        (burst, u64::try_from(refill_ms).unwrap_or(u64::MAX))
    } else {
        (rate.amount, rate.per_ms)
    };
    (quota, Some(window_ms.div_ceil(1_000)))
}

/// How long until the next unit is back. A bucket refills unit by unit, so that is when all but one
/// unit of the burst are still missing.
pub(crate) fn unit_back_us(burst: u64, rate: Rate, reset_us: u64) -> u64 {
    // Below 2^31 x 2^36 x 1000, so 128 bits are enough for any plan. Rounded down, so that the
    // result is never too early.
    let others_us = u128::from(burst.saturating_sub(1)) * u128::from(rate.per_ms) * 1_000
        / u128::from(rate.amount.max(1));
    reset_us.saturating_sub(u64::try_from(others_us).unwrap_or(u64::MAX))
}
