//! Idle clients: an expiry that is shorter than what it stores gives the burst back for free.

use std::time::{Duration, Instant};

use weir::plan::{
    Algorithm, Alignment, Debt, FixedWindow, Gcra, LeakyBucket, Rate, SlidingWindowBuckets,
    SlidingWindowLog, TokenBucket,
};

use super::{BEGIN_S, held};
use crate::harness::eventually_async;
use crate::harness::nodes::{Node, one, together};
use crate::harness::redis::Redis;

const BURST: u64 = 10;
/// Everything is refilled in this time, one unit after another, or at its end.
const PERIOD_S: i64 = 100;
const UNIT_S: i64 = PERIOD_S / BURST as i64;
const RATE: Rate = Rate { amount: BURST, per_ms: PERIOD_S as u64 * 1000 };

/// A token bucket as found in middlewares: it expires after a second, because "the rate is per
/// second".
const FORGETFUL: &str = "
local now = tonumber(redis.call('TIME')[1])
local state = redis.call('HMGET', KEYS[1], 'tokens', 'last')
local tokens, last = tonumber(state[1]) or 10, tonumber(state[2]) or now
tokens = math.min(10, tokens + (now - last) / 10)
local allowed = 0
if tokens >= 1 then tokens, allowed = tokens - 1, 1 end
redis.call('HSET', KEYS[1], 'tokens', tostring(tokens), 'last', now)
redis.call('EXPIRE', KEYS[1], 1)
return allowed";

#[tokio::test]
async fn a_lifetime_shorter_than_the_refill_gives_the_burst_again_and_ours_gives_it_once() {
    let (time, redis) = held();
    let mut client = redis.connect();
    let mut admitted = 0;
    for pause in 0..20 {
        time.set(BEGIN_S + 2 * pause);
        admitted +=
            (0..20).map(|_| client.ask(&["EVAL", FORGETFUL, "1", "bucket"]).number()).sum::<i64>();
    }
    assert_eq!(admitted, 20 * BURST as i64, "in 38 seconds, where 13 are right");

    let node = Node::single(redis.address);
    for algorithm in [
        Algorithm::TokenBucket(TokenBucket { burst: BURST, rate: RATE, debt: Debt::None }),
        Algorithm::Gcra(Gcra { burst: BURST, rate: RATE, debt: Debt::None }),
    ] {
        time.set(BEGIN_S);
        let plan = one("bucket", algorithm);
        let mut admitted = 0;
        for pause in 0..20 {
            time.set(BEGIN_S + 2 * pause);
            admitted += node.admitted(&plan, 20).await;
        }
        assert_eq!(admitted, BURST + 38 / UNIT_S as u64, "{plan:?}");
    }
}

/// What has been refilled for a client that was idle for `idle_s` seconds.
fn back(algorithm: &Algorithm, idle_s: i64) -> u64 {
    match algorithm {
        Algorithm::TokenBucket(_) | Algorithm::Gcra(_) | Algorithm::LeakyBucket(_) => {
            BURST.min((idle_s / UNIT_S) as u64)
        }
        _ if idle_s < PERIOD_S => 0,
        _ => BURST,
    }
}

#[tokio::test]
async fn an_idle_client_gets_its_burst_once_however_long_it_was_idle() {
    let (time, redis) = held();
    let node = Node::single(redis.address);
    let all = [
        Algorithm::FixedWindow(FixedWindow {
            rate: RATE,
            alignment: Alignment::FirstRequest,
            debt: Debt::None,
        }),
        // Taken at the start of a window.
        Algorithm::FixedWindow(FixedWindow {
            rate: RATE,
            alignment: Alignment::Clock,
            debt: Debt::None,
        }),
        Algorithm::SlidingWindowLog(SlidingWindowLog { rate: RATE, debt: Debt::None }),
        Algorithm::SlidingWindowBuckets(SlidingWindowBuckets {
            rate: RATE,
            buckets: 100,
            debt: Debt::None,
        }),
        Algorithm::TokenBucket(TokenBucket { burst: BURST, rate: RATE, debt: Debt::None }),
        Algorithm::Gcra(Gcra { burst: BURST, rate: RATE, debt: Debt::None }),
        Algorithm::LeakyBucket(LeakyBucket { burst: BURST, rate: RATE, max_delay_ms: 0 }),
    ];
    // Around the return of each unit, and across every expiry: none is later than three periods and
    // a second.
    let idle: Vec<i64> = (1..=BURST as i64)
        .flat_map(|unit| [unit * UNIT_S - 1, unit * UNIT_S])
        .chain((110..350).step_by(9))
        .collect();
    for idle_s in idle {
        for algorithm in &all {
            time.set(BEGIN_S);
            let plan = one(&format!("idle for {idle_s}"), algorithm.clone());
            assert_eq!(node.admitted(&plan, 12).await, BURST);
            time.set(BEGIN_S + idle_s);
            assert_eq!(
                node.admitted(&plan, 12).await,
                back(algorithm, idle_s),
                "after {idle_s} s: {algorithm:?}"
            );
            // And not again in the same moment, expired or not.
            assert_eq!(node.admitted(&plan, 3).await, 0, "after {idle_s} s: {algorithm:?}");
        }
    }
    let mut client = redis.connect();
    let names = client.ask(&["KEYS", "*"]);
    assert!(names.list().len() >= all.len(), "{names:?}");
    time.set(BEGIN_S + 349 + 4 * PERIOD_S);
    let left: i64 =
        names.list().iter().map(|name| client.ask(&["EXISTS", &name.text()]).number()).sum();
    assert_eq!(left, 0, "all of them are forgotten");
}

/// The same with Redis' own running clock and its own expiry.
#[tokio::test]
async fn after_its_key_has_expired_a_client_has_its_burst_and_no_more() {
    const PER_MS: u64 = 500;
    let redis = Redis::start();
    let nodes = Node::several(2, redis.address);
    let rate = Rate { amount: BURST, per_ms: PER_MS };
    let mut client = redis.connect();
    for algorithm in [
        Algorithm::TokenBucket(TokenBucket { burst: BURST, rate, debt: Debt::None }),
        Algorithm::Gcra(Gcra { burst: BURST, rate, debt: Debt::None }),
    ] {
        let plan = one("idle", algorithm);
        assert!(together(&nodes, 50, &plan).await >= BURST);
        eventually_async("the key expires", async || match client.ask(&["DBSIZE"]).number() {
            0 => Ok(()),
            keys => Err(format!("{keys} keys")),
        })
        .await;
        let begun = Instant::now();
        let admitted = together(&nodes, 50, &plan).await;
        let flowed = begun
            .elapsed()
            .as_micros()
            .div_ceil(Duration::from_millis(PER_MS).as_micros() / u128::from(BURST))
            as u64;
        assert!(
            (BURST..=BURST + flowed).contains(&admitted),
            "{admitted}, and at most {flowed} had flowed in: {plan:?}"
        );
    }
}
