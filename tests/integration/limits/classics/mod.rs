//! The classic ways to get a limit wrong: each is shown to fail on a real Redis, and then Weir's
//! own is tested under the same load.
//!
//! No test waits for a failure to happen: connections act in an order that the test sets, and if
//! time matters, the test controls Redis' wall clock (`harness::held`). The limiter is used as a
//! library: a proxy around it would add nothing here; `admission` and `several` use proxies.

mod borders;
mod crossing;
mod idle;
mod lifetimes;
mod maximum;
mod members;
mod races;
mod refunds;
mod slots;
mod steps;

use crate::harness::held::HeldTime;
use crate::harness::redis::Redis;

/// A second of 2027 at which a minute, an hour and every period of these tests begin.
const BEGIN_S: i64 = 1_800_000_000;

/// A Redis whose clock the test controls, set to [`BEGIN_S`].
fn held() -> (HeldTime, Redis) {
    let time = HeldTime::running();
    let redis = Redis::within(&[], &time.environment());
    time.set(BEGIN_S);
    (time, redis)
}
