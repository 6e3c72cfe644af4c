//! The first millisecond of a window, on a real Redis. Uses the limiter as a library, because a
//! response has whole seconds only.
//!
//! The classic mistake is a counter that relies on expiry. A key lives through its whole last
//! millisecond, so in the first moments of a window such a counter finds the old count and refuses.
//! One caller sends requests as fast as it can, so the order of answers is the order of decisions,
//! and no clock is needed to judge them: while a window refuses, the time until the next one only
//! decreases. When it has increased, a new window has begun, and a refusal there is the bug.

use std::time::{Duration, Instant};

use weir::plan::{Algorithm, Alignment, Debt, FixedWindow, Rate};

use crate::harness::cluster::Cluster;
use crate::harness::nodes::{Node, one};
use crate::harness::redis::Redis;

const WINDOWS: usize = 400;
const WINDOW_MS: u64 = 25;
/// Far fewer than one caller can request in a window, so that nearly every window ends in refusals.
const QUOTA: u64 = 5;
/// Six times what 400 windows of 25 ms need.
const DEADLINE: Duration = Duration::from_secs(60);
/// Callers with keys of their own, so that scripts queue before and after those under test.
const OTHERS: usize = 8;

async fn every_window_begins_full(node: Node) {
    let algorithm = Algorithm::FixedWindow(FixedWindow {
        rate: Rate { amount: QUOTA, per_ms: WINDOW_MS },
        alignment: Alignment::Clock,
        debt: Debt::None,
    });
    let plan = |key: &str| one(key, algorithm.clone());
    let mut others = tokio::task::JoinSet::new();
    for number in 0..OTHERS {
        let (node, plan) = (node.clone(), plan(&format!("other {number}")));
        others.spawn(async move {
            loop {
                node.ask(&plan).await;
            }
        });
    }
    let plan = plan("judged");
    let begun = Instant::now();
    let (mut windows, mut refused_until_us, mut admitted_in_window) = (0, None::<u64>, 0);
    let mut partial = 0;
    while windows < WINDOWS {
        assert!(begun.elapsed() < DEADLINE, "{windows} windows in {DEADLINE:?}");
        let outcome = node.ask(&plan).await;
        let limit = outcome.limits[0];
        if outcome.admitted {
            if refused_until_us.take().is_some() || limit.remaining == QUOTA - 1 {
                // The first answer in a new window: its full quota must have been there.
                assert_eq!(limit.remaining, QUOTA - 1, "window {windows} did not begin full");
                partial += usize::from(windows > 0 && admitted_in_window < QUOTA);
                (windows, admitted_in_window) = (windows + 1, 0);
            }
            admitted_in_window += 1;
            assert_eq!(
                limit.remaining,
                QUOTA - admitted_in_window,
                "window {windows} skipped a count"
            );
        } else {
            let wait_us = limit.retry_after_us.expect("waiting helps");
            assert!(wait_us <= WINDOW_MS * 1000, "{wait_us} us of a window of {WINDOW_MS} ms");
            assert_eq!(
                admitted_in_window, QUOTA,
                "window {windows} refused before its quota was used"
            );
            if let Some(before_us) = refused_until_us {
                assert!(
                    wait_us <= before_us,
                    "a new window began after {windows} windows with the old one's count: {before_us} us, then {wait_us} us"
                );
            }
            refused_until_us = Some(wait_us);
        }
    }
    // Without refusals the test shows nothing: a machine that is too slow for it must not pass.
    assert!(
        partial < WINDOWS / 2,
        "{partial} of {WINDOWS} windows ended before their quota was used"
    );
}

#[tokio::test]
async fn the_first_millisecond_of_each_of_400_windows_counts_from_zero() {
    let redis = Redis::start();
    every_window_begins_full(Node::single(redis.address)).await;
}

#[tokio::test]
async fn on_a_cluster_the_first_millisecond_of_each_of_400_windows_counts_from_zero() {
    let cluster = Cluster::start();
    every_window_begins_full(Node::cluster(&cluster.addresses())).await;
}
