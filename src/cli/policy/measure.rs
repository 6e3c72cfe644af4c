//! What a call costs, measured in one way for `inspect` and `bench`.

use std::time::Duration;

use crate::clock;

/// Calls between two looks at the clock: one look takes a tenth of the shortest call.
const BATCH: u32 = 16;
/// Maximum number of batches that are kept.
const BATCHES_MAX: usize = 1 << 20;

/// The time of one call: the median of batches over `time`. A mean would have the pauses of a busy
/// machine in it, and the quickest batch what never happens in a row.
pub(super) fn call(time: Duration, mut run: impl FnMut()) -> Duration {
    let began = clock::monotonic();
    let mut batches = Vec::new();
    let mut before = began;
    loop {
        (0..BATCH).for_each(|_| run());
        let now = clock::monotonic();
        batches.push(now.saturating_duration_since(before));
        before = now;
        if now.saturating_duration_since(began) >= time || batches.len() >= BATCHES_MAX {
            break;
        }
    }
    batches.sort_unstable();
    batches.get(batches.len() / 2).copied().unwrap_or_default() / BATCH
}
