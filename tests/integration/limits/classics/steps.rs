//! The store's clock steps: back, as when a clock that was ahead is corrected, and forward.

use weir::plan::{
    Algorithm, Alignment, Calendar, Debt, FixedWindow, Gcra, LeakyBucket, Quota, Rate,
    SlidingWindowBuckets, SlidingWindowLog, TimeZone, TokenBucket,
};

use super::{BEGIN_S, held};
use crate::harness::nodes::{Node, one};

const BURST: u64 = 10;
const PERIOD_S: i64 = 100;
const RATE: Rate = Rate { amount: BURST, per_ms: PERIOD_S as u64 * 1000 };
const HOUR_S: i64 = 3_600;

/// A token bucket that trusts its clock: it refills by the rate times the time that has passed,
/// even if that is negative.
const TRUSTFUL: &str = "
local now = tonumber(redis.call('TIME')[1])
local state = redis.call('HMGET', KEYS[1], 'tokens', 'last')
local tokens, last = tonumber(state[1]) or 10, tonumber(state[2]) or now
tokens = math.min(10, tokens + (now - last) / 10)
local allowed = 0
if tokens >= 1 then tokens, allowed = tokens - 1, 1 end
redis.call('HSET', KEYS[1], 'tokens', tostring(tokens), 'last', now)
return allowed";

fn all() -> [Algorithm; 8] {
    [
        Algorithm::FixedWindow(FixedWindow {
            rate: RATE,
            alignment: Alignment::FirstRequest,
            debt: Debt::None,
        }),
        Algorithm::FixedWindow(FixedWindow {
            rate: RATE,
            alignment: Alignment::Clock,
            debt: Debt::None,
        }),
        Algorithm::SlidingWindowLog(SlidingWindowLog { rate: RATE, debt: Debt::None }),
        Algorithm::SlidingWindowBuckets(SlidingWindowBuckets {
            rate: RATE,
            buckets: 10,
            debt: Debt::None,
        }),
        Algorithm::TokenBucket(TokenBucket { burst: BURST, rate: RATE, debt: Debt::None }),
        Algorithm::Gcra(Gcra { burst: BURST, rate: RATE, debt: Debt::None }),
        Algorithm::LeakyBucket(LeakyBucket { burst: BURST, rate: RATE, max_delay_ms: 0 }),
        Algorithm::Quota(Quota {
            amount: BURST,
            calendar: Calendar::Hour(TimeZone::utc()),
            conditional: true,
            debt: Debt::None,
        }),
    ]
}

#[tokio::test]
async fn a_clock_that_steps_back_locks_out_whoever_trusts_it_and_costs_ours_one_burst_at_most() {
    let (time, redis) = held();
    let mut client = redis.connect();
    let mut naive = |at_s: i64| {
        time.set(at_s);
        (0..12).map(|_| client.ask(&["EVAL", TRUSTFUL, "1", "bucket"]).number()).sum::<i64>()
    };
    assert_eq!(naive(BEGIN_S), BURST as i64);
    for minutes in 0..60 {
        assert_eq!(naive(BEGIN_S - HOUR_S + 60 * minutes), 0, "{minutes} minutes after the step");
    }

    let node = Node::single(redis.address);
    for algorithm in all() {
        let plan = one("stepped", algorithm.clone());
        let greedy = async |at_s: i64| {
            time.set(at_s);
            node.admitted(&plan, 3 * BURST as usize).await
        };
        assert_eq!(greedy(BEGIN_S).await, BURST, "{algorithm:?}");
        // Back by a little, and by an hour. Each time at most one burst is admitted, and nothing
        // more in the same moment.
        for back_s in [3, HOUR_S] {
            let at_s = BEGIN_S - back_s;
            let first = greedy(at_s).await;
            assert!(first <= BURST, "{first} after a step of {back_s} s: {algorithm:?}");
            assert_eq!(greedy(at_s).await, 0, "{algorithm:?}");
            // Within a period (for a quota, the calendar's) all clients are served again, and get
            // no more than the limit. A clock-aligned window that was begun before the step
            // continues to its end.
            let (period_s, by_clock) = match algorithm {
                Algorithm::Quota(_) => (HOUR_S, true),
                Algorithm::FixedWindow(FixedWindow { alignment: Alignment::Clock, .. }) => {
                    (PERIOD_S, true)
                }
                _ => (PERIOD_S, false),
            };
            let goes_on = by_clock && back_s < period_s;
            if goes_on {
                assert_eq!(first, 0, "{algorithm:?}: begun before the step of {back_s} s");
                for at_s in [at_s, BEGIN_S - 1, BEGIN_S, BEGIN_S + period_s - 1] {
                    assert_eq!(greedy(at_s).await, 0, "{algorithm:?}: after a step of {back_s} s");
                }
            }
            let second = greedy(if goes_on { BEGIN_S + period_s } else { at_s + period_s }).await;
            assert!(
                (1..=BURST).contains(&second),
                "{second} a period after a step of {back_s} s: {algorithm:?}"
            );
        }
        // And forward: at most full.
        for ahead_s in [10 * HOUR_S, 1_000 * HOUR_S] {
            assert_eq!(greedy(BEGIN_S + ahead_s).await, BURST, "{ahead_s} s ahead: {algorithm:?}");
            assert_eq!(greedy(BEGIN_S + ahead_s).await, 0, "{ahead_s} s ahead: {algorithm:?}");
        }
    }
}
