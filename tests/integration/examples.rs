//! The programs in `examples/`, run as a reader runs them: what they show is so.

use std::time::Duration;

use crate::harness::redis::Redis;

#[path = "../../examples/embed.rs"]
#[allow(dead_code, reason = "their `main` is not called")]
mod embed;
#[path = "../../examples/limiter.rs"]
#[allow(dead_code, reason = "their `main` is not called")]
mod limiter;

#[test]
fn a_program_serves_through_weir_on_a_socket_of_its_own() {
    let statuses = embed::run().unwrap();
    let (ok, refused) = ("HTTP/1.1 200 OK", "HTTP/1.1 429 Too Many Requests");
    assert_eq!(statuses, [ok, ok, ok, refused, ok], "three of four, and the fourth after the quota was raised");
}

#[tokio::test]
async fn a_worker_sends_a_hundred_mails_an_hour_and_what_failed_counts_for_nothing() {
    let report = limiter::work(&limiter::in_memory(), &outbox(105)).await.unwrap();
    assert_eq!((report.sent, report.failed), (100, 1));
    assert!(report.wait.is_some_and(|wait| wait > Duration::from_secs(3_000) && wait <= Duration::from_secs(3_600)), "{report:?}");
}

#[tokio::test]
async fn workers_on_one_redis_share_the_hundred() {
    let redis = Redis::start();
    let store = limiter::on_redis(&redis.address.to_string());
    let first = limiter::work(&store, &outbox(61)).await.unwrap();
    assert_eq!((first.sent, first.failed, first.wait), (60, 1, None));
    let second = limiter::work(&store, &outbox(61)).await.unwrap();
    assert_eq!((second.sent, second.failed), (40, 1));
    assert!(second.wait.is_some(), "{second:?}");
}

/// The first of them is to nobody.
fn outbox(count: usize) -> Vec<String> {
    (0..count).map(|number| if number == 0 { "nobody@example.org".into() } else { format!("{number}@example.org") }).collect()
}
