//! The programs in `examples/`, run as a reader runs them: what they show is so.

use std::time::Duration;

use crate::harness::redis::Redis;

#[path = "../../examples/embed.rs"]
#[allow(dead_code, reason = "their `main` is not called")]
mod embed;
#[path = "../../examples/limiter.rs"]
#[allow(dead_code, reason = "their `main` is not called")]
mod limiter;
#[path = "../../examples/pictures.rs"]
#[allow(dead_code, reason = "their `main` is not called")]
mod pictures;
#[path = "../../examples/sliding_error.rs"]
#[allow(dead_code, reason = "their `main` is not called")]
mod sliding_error;

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

#[tokio::test]
async fn the_pictures_are_what_the_program_draws() {
    for (name, algorithm) in pictures::algorithms() {
        let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("docs/pictures/{name}.svg"));
        let kept = std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let drawn = pictures::draw(name, &algorithm).await.unwrap();
        assert!(kept == drawn, "{} is another picture: cargo run --example pictures", file.display());
    }
}

#[tokio::test]
async fn the_two_counters_errors_are_counted_against_the_true_window() {
    // Ten at each window's end. At 18 s the first ten weigh two, as if they had come evenly, and are all within the last ten seconds: eight more pass, none of
    // which should.
    let line = |second: u32| format!("client - - [01/Jan/2026:00:00:{second:02} +0000] \"GET / HTTP/1.1\" 200 1\n");
    let log: String = (0..10).map(|_| line(9)).chain((0..10).map(|_| line(18))).collect();
    let requests = sliding_error::requests(&log);
    assert_eq!((requests.len(), requests[0].0, requests[9].0), (20, 1_767_225_609_000_000, 1_767_225_609_900_000));
    let rate = weir::plan::Rate { amount: 10, per_ms: 10_000 };
    let found = sliding_error::replay(&requests, rate, 1).await.unwrap();
    assert_eq!((found.decisions, found.refused, found.wrongly_refused), (20, 2, 0), "{found:?}");
    assert!(found.wrongly_admitted == 8 && found.most == 18, "{found:?}");
}
