//! The whole limiter on a real Redis, against a model that only adds and subtracts. The model knows
//! nothing of what is remembered, prepared or rolled back, so whatever answers one plan with what
//! was found for another differs from it: other numbers, costs and orders on one counter, one tag
//! and several, give-backs and resets in between.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use proptest::prelude::*;

use super::super::{Ending, Grant};
use super::redis_server::Server;
use super::*;
use crate::plan::{Calendar, Quota, SlidingWindowLog};

/// The counters, each with the key that is its tag.
const COUNTERS: [(&str, &str); 4] = [("a", "k"), ("b", "k"), ("c", "l"), ("d", "m")];
/// The indices of the quota and the log. The others are windows.
const QUOTA: usize = 0;
const LOG: usize = 3;
/// Nothing comes back by itself while a case runs.
const LONG_MS: u64 = 30 * 86_400_000;

/// A limit of a plan: its counter, allowance and cost, and what it gives back.
#[derive(Clone, Copy, Debug)]
struct TestLimit {
    counter: usize,
    amount: u64,
    cost: u64,
    refund: Refund,
}

#[derive(Clone, Debug)]
enum Action {
    /// A request that ends in this way, if it is admitted.
    Request(Vec<TestLimit>, End),
    /// The request that has been under way longest ends, and gives back this many units of each
    /// limit.
    Return(u64),
}

#[derive(Clone, Copy, Debug)]
enum End {
    Completed,
    Unsent,
    /// Resets the counters that may be.
    Resets,
    /// It goes on.
    Later,
}

fn wanted() -> impl Strategy<Value = TestLimit> {
    let refund = prop_oneof![
        6 => Just(Refund::Never),
        1 => Just(Refund::Unsent),
        2 => Just(Refund::BySettle),
    ];
    (0..COUNTERS.len(), prop_oneof![Just(3_u64), Just(5), Just(9)], 0_u64..4, refund)
        .prop_map(|(counter, amount, cost, refund)| TestLimit { counter, amount, cost, refund })
}

fn act() -> impl Strategy<Value = Action> {
    let plan = prop::collection::vec(wanted(), 1..4).prop_map(|mut limits| {
        // A plan has each counter once.
        let mut seen = Vec::new();
        limits.retain(|limit| {
            let is_new = !seen.contains(&limit.counter);
            seen.push(limit.counter);
            is_new
        });
        limits
    });
    let end = prop_oneof![
        5 => Just(End::Completed),
        1 => Just(End::Unsent),
        1 => Just(End::Resets),
        2 => Just(End::Later),
    ];
    prop_oneof![
        6 => (plan, end).prop_map(|(limits, end)| Action::Request(limits, end)),
        1 => (0_u64..4).prop_map(Action::Return),
    ]
}

fn limit(case: u64, wanted: TestLimit) -> Limit {
    let TestLimit { counter, amount, cost, refund } = wanted;
    let (name, key) = COUNTERS[counter];
    let rate = Rate { amount, per_ms: LONG_MS };
    let algorithm = match counter {
        QUOTA => Algorithm::Quota(Quota {
            amount,
            calendar: Calendar::Forever,
            conditional: true,
            debt: Debt::None,
        }),
        1 | 2 => Algorithm::FixedWindow(FixedWindow {
            rate,
            alignment: Alignment::FirstRequest,
            debt: Debt::None,
        }),
        _ => Algorithm::SlidingWindowLog(SlidingWindowLog { rate, debt: Debt::None }),
    };
    Limit { cost, refund, ..Limit::new(name, format!("{case}/{key}"), algorithm) }
}

/// Units in use, and how often they were reset.
#[derive(Clone, Copy, Debug, Default)]
struct Used {
    units: u64,
    resets: u64,
}

/// What is used, by counter.
type AllUsed = HashMap<usize, Used>;

/// A limit that was taken from, and how often its counter had been reset then.
type Taken = (TestLimit, u64);

fn units(used: &AllUsed, counter: usize) -> u64 {
    used.get(&counter).map_or(0, |used| used.units)
}

fn fits(used: &AllUsed, limit: TestLimit) -> bool {
    units(used, limit.counter) + limit.cost.max(1) <= limit.amount
}

/// Ends a request, on both sides.
fn end(used: &mut AllUsed, grant: Grant, limits: &[Taken], end: End, units: u64) {
    let mut changes = Vec::new();
    for (limit, resets) in limits {
        let used = used.entry(limit.counter).or_default();
        let gone = used.resets > *resets;
        let entry = &mut used.units;
        let change = match (limit.refund, end) {
            (Refund::Unsent, End::Unsent) => {
                *entry = entry.saturating_sub(limit.cost);
                continue;
            }
            (Refund::BySettle, End::Resets) => {
                *entry = 0;
                used.resets += 1;
                Change::Reset
            }
            // Units of a log have names, so those that a reset took are not given back.
            (Refund::BySettle, _) if gone && limit.counter == LOG => Change::Units(-(units as i64)),
            // Whether a window is the one that was charged depends on the millisecond.
            (Refund::BySettle, _) if gone && limit.counter != QUOTA => continue,
            (Refund::BySettle, _) => {
                *entry = entry.saturating_sub(units.min(limit.cost));
                Change::Units(-(units as i64))
            }
            _ => continue,
        };
        changes.push(Adjustment { limit: COUNTERS[limit.counter].0.into(), change });
    }
    let ending = if matches!(end, End::Unsent) { Ending::Unsent } else { Ending::Completed };
    grant.settle(ending, &changes);
}

async fn run(rig: &Rig, case: u64, acts: &[Action]) -> Result<(), TestCaseError> {
    let mut used = AllUsed::new();
    let mut under_way: Vec<(Grant, Vec<Taken>)> = Vec::new();
    for act in acts {
        let (limits, ending) = match act {
            Action::Request(limits, ending) => (limits, *ending),
            Action::Return(units) => {
                if !under_way.is_empty() {
                    let (grant, limits) = under_way.remove(0);
                    end(&mut used, grant, &limits, End::Completed, *units);
                    rig.limiter.drain(TEST_TIMEOUT).await;
                }
                continue;
            }
        };
        let plan: Vec<Limit> = limits.iter().map(|wanted| limit(case, *wanted)).collect();
        let expected: Vec<bool> = limits.iter().map(|limit| fits(&used, *limit)).collect();
        let take = rig.take(&plan).await;
        let (outcome, grant) = match take {
            Take::Granted(outcome, grant) => (outcome, Some(grant)),
            Take::Refused(outcome) => (outcome, None),
            Take::Unavailable(why) => return Err(TestCaseError::fail(why)),
        };
        let found: Vec<bool> = outcome.limits.iter().map(|limit| limit.fits).collect();
        prop_assert_eq!(&found, &expected, "{:?} with {:?}", limits, used);
        prop_assert_eq!(outcome.admitted, expected.iter().all(|fits| *fits));
        for (limit, outcome) in limits.iter().zip(&outcome.limits).filter(|(_, it)| !it.fits) {
            let left = limit.amount.saturating_sub(units(&used, limit.counter));
            prop_assert_eq!(outcome.remaining, left, "{:?} with {:?}", limits, used);
        }
        let Some(grant) = grant else { continue };
        let mut taken = Vec::new();
        for limit in limits {
            let used = used.entry(limit.counter).or_default();
            used.units += limit.cost;
            taken.push((*limit, used.resets));
        }
        if matches!(ending, End::Later) {
            under_way.push((grant, taken));
        } else {
            end(&mut used, grant, &taken, ending, 0);
            rig.limiter.drain(TEST_TIMEOUT).await;
        }
    }
    Ok(())
}

#[test]
fn the_limiter_answers_each_plan_with_what_is_found_for_it() {
    static CASES: AtomicU64 = AtomicU64::new(0);
    let server = Server::start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let config = ProptestConfig { max_shrink_iters: 2_000, ..ProptestConfig::with_cases(200) };
    let rig = Rig::redis(server.port);
    proptest!(config, |(acts in prop::collection::vec(act(), 1..80))| {
        // What is remembered of the cases before is of other keys.
        let case = CASES.fetch_add(1, Ordering::Relaxed);
        runtime.block_on(run(&rig, case, &acts))?;
    });
}
