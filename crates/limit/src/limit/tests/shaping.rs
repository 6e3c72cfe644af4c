//! Leaky buckets: which requests wait, how long, and how many.

use super::super::local;
use super::redis_server::Server;
use super::*;
use crate::clock::monotonic;
use crate::limit::Ending;
use crate::plan::AMOUNT_MAX;
use crate::plan::LeakyBucket;

/// One request at once, then one each `ms` milliseconds. A request waits at most a minute.
fn every(ms: u64, key: &str) -> Limit {
    let rate = Rate { amount: 1, per_ms: ms };
    Limit::new(
        "shaped",
        key,
        Algorithm::LeakyBucket(LeakyBucket { burst: 1, rate, max_delay_ms: 60_000 }),
    )
}

fn waiting(rig: &Rig) -> usize {
    local::with(&rig.limiter.shared, |local| local.worker().waiting())
}

/// Starts a take in a task of this runtime.
fn start(rig: &Arc<Rig>, limits: &[Limit]) -> tokio::task::JoinHandle<Take> {
    let (rig, limits) = (Arc::clone(rig), limits.to_vec());
    tokio::spawn(async move { rig.take(&limits).await })
}

async fn until(what: &str, mut done: impl FnMut() -> bool) {
    let began = monotonic();
    while !done() {
        assert!(began.elapsed() < TEST_TIMEOUT, "{what}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn a_delay_is_waited_for_on_the_monotonic_clock() {
    let server = Server::start();
    for rig in Rig::both(&server, &with_test_timeout()) {
        let rig = Arc::new(rig);
        let limit = every(300, "k");
        let began = monotonic();
        let first = granted(rig.take(std::slice::from_ref(&limit)).await).0;
        assert_eq!(first.limits[0].delay_us, 0);
        let second = start(&rig, std::slice::from_ref(&limit));
        until("the second waits", || waiting(&rig) == 1).await;
        // Moving the wall clock does not lengthen the wait. In memory it would be an hour.
        rig.clock.step(-3_600_000_000);
        let (outcome, grant) = granted(second.await.unwrap());
        assert!(
            outcome.admitted && (1..=300_000).contains(&outcome.limits[0].delay_us),
            "{}: {outcome:?}",
            rig.name()
        );
        assert!(began.elapsed() >= Duration::from_millis(300), "{}", rig.name());
        assert_eq!(waiting(&rig), 0);
        grant.settle(Ending::Completed, &[]);
    }
}

#[tokio::test]
async fn beyond_waiting_max_only_what_passes_at_once_fits_and_nothing_is_left_charged() {
    let server = Server::start();
    for rig in Rig::both(&server, &Settings { waiting_max: 2, ..with_test_timeout() }) {
        let rig = Arc::new(rig);
        let limits = [every(30_000, "k"), daily("day", "k", 100), daily("other", "elsewhere", 100)];
        assert!(rig.outcome(&limits).await.admitted);
        // All at once: on Redis none of them knows yet whether it has to wait.
        let mut takes: Vec<_> = (0..6).map(|_| start(&rig, &limits)).collect();
        until("four are refused", || takes.iter().filter(|take| take.is_finished()).count() == 4)
            .await;
        assert_eq!(waiting(&rig), 2, "{}", rig.name());
        for take in takes.extract_if(.., |take| take.is_finished()) {
            let outcome = refused(take.await.unwrap());
            assert!(!outcome.limits[0].fits && outcome.limits[0].retry_after_us.is_some());
        }
        assert_eq!(
            [rig.remaining(&limits[1]).await, rig.remaining(&limits[2]).await],
            [97, 97],
            "{}",
            rig.name()
        );
        // A request without a leaky bucket passes, and so does one whose bucket has room.
        assert!(
            rig.admits(&daily("day", "k", 100)).await && rig.admits(&every(30_000, "free")).await
        );
        takes.iter().for_each(tokio::task::JoinHandle::abort);
        until("their permits are free", || waiting(&rig) == 0).await;
    }
}

#[tokio::test]
async fn a_request_dropped_while_waiting_frees_its_permit_and_keeps_its_slot_taken() {
    let server = Server::start();
    for rig in Rig::both(&server, &Settings { waiting_max: 1, ..with_test_timeout() }) {
        let rig = Arc::new(rig);
        let limits = [
            every(10_000, "k"),
            refunded(daily("unsent", "k", 9), Refund::Unsent),
            daily("never", "k", 9),
        ];
        assert!(rig.outcome(&limits).await.admitted);
        let gone = start(&rig, &limits);
        until("it waits", || waiting(&rig) == 1).await;
        gone.abort();
        until("its permit is free", || waiting(&rig) == 0).await;
        rig.limiter.drain(TEST_TIMEOUT).await;
        // The request was not sent, so the `unsent` refund was given back.
        assert_eq!(
            [rig.remaining(&limits[1]).await, rig.remaining(&limits[2]).await],
            [8, 7],
            "{}",
            rig.name()
        );
        // Two slots are taken: the next one is the third.
        let third = rig.outcome(&[Limit { cost: AMOUNT_MAX, ..limits[0].clone() }]).await;
        let reset_s = third.limits[0].reset_us as f64 / SECOND_US as f64;
        assert!((18.0..=20.0).contains(&reset_s), "{}: {reset_s}", rig.name());
    }
}

#[tokio::test]
async fn a_slot_is_taken_only_when_every_other_tag_has_agreed() {
    let server = Server::start();
    for rig in Rig::both(&server, &with_test_timeout()) {
        for (one, other) in [("a", "b"), ("b", "a"), ("c", "d"), ("e", "f")] {
            let (shaped, full) = (every(30_000, one), daily("full", other, 1));
            let third = daily("third", "another", 100);
            assert!(rig.admits(&full).await);
            for _ in 0..3 {
                refused(rig.take(&[shaped.clone(), full.clone(), third.clone()]).await);
            }
            let outcome = granted(rig.take(std::slice::from_ref(&shaped)).await).0;
            assert_eq!(
                outcome.delay_us(),
                0,
                "{} {one} {other}: no slot was left taken",
                rig.name()
            );
            assert_eq!(rig.remaining(&third).await, 100);
        }
    }
}

#[tokio::test]
async fn a_shadow_bucket_delays_nothing() {
    let server = Server::start();
    for rig in Rig::both(&server, &Settings { waiting_max: 0, ..with_test_timeout() }) {
        let limit = shadow(every(30_000, "k"));
        for _ in 0..3 {
            let outcome = granted(rig.take(std::slice::from_ref(&limit)).await).0;
            assert_eq!((outcome.delay_us(), outcome.limits[0].fits), (0, true), "{}", rig.name());
        }
    }
}
