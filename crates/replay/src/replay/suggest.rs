//! The quota of a limit at which a share of its keys is never refused, and what other quotas would
//! refuse. Counts what was asked of the limit again with each quota that it tries, by whatever
//! counts: each key has a counter of its own, so keys can be counted one by one, and on several
//! threads.
//!
//! A key that is never refused with a quota is never refused with a larger one. So the search tries
//! few quotas, beginning with the one that the replay makes likely, and counts no key again whose
//! answer is known from another quota.

use std::num::NonZero;
use std::ops::{Range, RangeInclusive};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use super::quota::with_quota;
use super::tally::{Demand, LimitTally};

/// The largest quota that is tried.
const QUOTA_MAX: u64 = 1 << 50;
/// Maximum number of quotas in a row that a limit can't have, between some that it can.
const HOLE_MAX: usize = 4_096;
/// Maximum number of quotas of a curve, besides those that are asked for.
const POINTS: usize = 16;
/// Maximum number of counting threads.
const THREADS_MAX: usize = 16;
/// Number of demands from which a second thread is worth starting.
const DEMANDS_FOR_THREADS: usize = 10_000;

/// Counts one limit with different quotas.
pub trait QuotaCounter {
    /// Starts again with this quota. Returns false if the limit can't have it.
    fn begin(&mut self, quota: u64) -> bool;

    /// Begins another key, which has not been counted since the beginning.
    fn next_key(&mut self);

    /// Whether a request fits. Called in the order of a key's time.
    fn fits(&mut self, demand: &Demand) -> bool;
}

/// Makes what counts, for one thread. `None` if it can't be made.
type MakeCounter<'a> = &'a (dyn Fn() -> Option<Box<dyn QuotaCounter + 'a>> + Sync);

/// A quota that would do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suggestion {
    /// The smallest quota at which enough keys are never refused. None if no quota does it.
    pub quota: Option<u64>,
    /// Its keys.
    pub keys: usize,
    /// How many of them are never refused with that quota,
    pub never_refused: usize,
    /// and how many were not in the replay, with the quota that it has.
    pub never_refused_now: usize,
}

/// What one quota would do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// The quota.
    pub quota: u64,
    /// The part of the requests that it would refuse, 0 to 1.
    pub requests: f64,
    /// The part of the keys that it would refuse at least once, 0 to 1.
    pub keys: f64,
}

/// What a limit's quota could be.
#[derive(Clone, Debug, PartialEq)]
pub struct Quotas {
    /// The smallest that does.
    pub suggestion: Suggestion,
    /// What others would do, if that was asked for.
    pub curve: Option<Vec<Point>>,
}

/// Looks for the quota of each limit at which `percent` of its keys are never refused, and counts
/// what other quotas would do if `curves` is set. `counters` returns what makes the counters of a
/// limit, one for each thread; `None` for a limit without a quota. Sorts the limits' demands by
/// key.
pub fn quotas<Make>(
    limits: &mut [LimitTally],
    percent: f64,
    curves: bool,
    counters: impl Fn(&LimitTally) -> Option<Make>,
) -> Vec<Option<Quotas>>
where
    Make: Fn() -> Option<Box<dyn QuotaCounter>> + Sync,
{
    let each = limits.iter_mut().map(|limit| {
        let make = counters(limit)?;
        let make = || -> Option<Box<dyn QuotaCounter>> { make() };
        let mut search = Search::new(limit, &make);
        let suggestion = search.suggest(percent);
        let curve = curves.then(|| search.curve(suggestion.quota));
        Some(Quotas { suggestion, curve })
    });
    each.collect()
}

/// Looks for quotas of one limit.
struct Search<'t> {
    limit: &'t LimitTally,
    make: MakeCounter<'t>,
    /// Where each key's demands are.
    places: Vec<Range<usize>>,
    /// All keys, those first that need the most.
    order: Vec<u32>,
    /// The largest quota with which each key was refused,
    refused_to: Vec<u64>,
    /// and the smallest with which it was not.
    fits_from: Vec<u64>,
    threads: usize,
}

impl<'t> Search<'t> {
    /// Sorts the limit's demands by key.
    fn new(limit: &'t mut LimitTally, make: MakeCounter<'t>) -> Self {
        limit.demands.sort_by_key(|demand| demand.key);
        let limit: &LimitTally = limit;
        let mut places = vec![0..0; limit.keys.len()];
        let mut end = 0;
        for of_key in limit.demands.chunk_by(|one, other| one.key == other.key) {
            let start = end;
            end += of_key.len();
            if let Some(place) = of_key.first().and_then(|it| places.get_mut(it.key as usize)) {
                *place = start..end;
            }
        }
        let mut order: Vec<u32> = (0..).take(limit.keys.len()).collect();
        let most = |key: &u32| limit.keys.get(*key as usize).map_or(0, |key| key.most_used);
        order.sort_by_key(|key| std::cmp::Reverse(most(key)));
        // All that a key ever asked for would fit at once.
        let fits_from = limit.keys.iter().map(|key| holding(limit, key.units)).collect();
        let threads = match limit.demands.len() {
            0..DEMANDS_FOR_THREADS => 1,
            _ => thread::available_parallelism().map_or(1, NonZero::get).min(THREADS_MAX),
        };
        let refused_to = vec![0; limit.keys.len()];
        Self { limit, make, places, order, refused_to, fits_from, threads }
    }

    /// Looks for the smallest quota at which `percent` of the limit's keys are never refused.
    fn suggest(&mut self, percent: f64) -> Suggestion {
        let keys = self.limit.keys.len();
        let needed = ((keys as f64 * percent / 100.0).ceil() as usize).min(keys);
        let never_refused_now = keys - self.limit.keys_refused();
        let mut suggestion = Suggestion { quota: None, keys, never_refused: 0, never_refused_now };
        let Some(first) = self.possible(self.likely(needed)..=QUOTA_MAX) else { return suggestion };
        let (mut low, mut high) = (0, first);
        let mut enough = self.count(first, needed);
        if enough.is_some() {
            // Usually one less is not enough.
            let mut step = 1;
            while let Some(quota) = self.possible(high.saturating_sub(step).max(1)..=high - 1) {
                let Some(never) = self.count(quota, needed) else {
                    low = quota;
                    break;
                };
                (high, enough) = (quota, Some(never));
                step *= 2;
            }
        } else {
            (low, high) = (first, 0);
            let (mut step, mut is_in_range) = ((first / 8).max(1), true);
            while enough.is_none() {
                let next = self.possible(low.saturating_add(step)..=QUOTA_MAX);
                is_in_range &= next.is_some();
                if let Some(quota) = next {
                    enough = self.count(quota, needed);
                    *if enough.is_some() { &mut high } else { &mut low } = quota;
                }
                step = if is_in_range { step.saturating_mul(2) } else { step / 2 };
                if step == 0 && enough.is_none() {
                    return suggestion;
                }
            }
        }
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            let next = self.possible(middle..=high - 1);
            let Some(quota) = next.or_else(|| self.possible(low + 1..=middle - 1)) else { break };
            match self.count(quota, needed) {
                Some(never) => (high, enough) = (quota, Some(never)),
                None => low = quota,
            }
        }
        suggestion.never_refused = enough.unwrap_or(0);
        suggestion.quota = Some(high);
        suggestion
    }

    /// What quotas from 1 to the one at which nobody is refused would do, including the current one
    /// and `also`. All of them together take about as long as the replay itself, so they are only
    /// counted on request. It begins with the smallest quota: a key that a quota does not refuse is
    /// not counted again with larger ones.
    fn curve(&mut self, also: Option<u64>) -> Vec<Point> {
        let Some(most) = self.suggest(100.0).quota else { return Vec::new() };
        let now = self.limit.algorithm.amount().unwrap_or(1);
        let most = most.max(now).max(also.unwrap_or(0));
        let step = (most as f64).powf(1.0 / (POINTS - 1) as f64);
        let quotas = (0..POINTS).map(|index| (step.powi(index as i32)).round() as u64);
        let quotas = quotas.chain([now, most]).chain(also);
        let mut quotas: Vec<u64> = quotas.filter_map(|quota| self.possible(quota..=most)).collect();
        quotas.sort_unstable();
        quotas.dedup();
        let all = (self.limit.demands.len().max(1) as f64, self.limit.keys.len().max(1) as f64);
        let mut points = Vec::with_capacity(quotas.len());
        for quota in quotas {
            let open = self.keys(|fits_from, _| fits_from > quota);
            let counted = self.run(quota, &open, None);
            if counted.len() < open.len() {
                continue;
            }
            let (mut requests, mut keys) = (0, 0_u64);
            for (key, refusals) in counted {
                requests += refusals;
                keys += u64::from(refusals > 0);
                self.learn(key, quota, refusals);
            }
            let (requests, keys) = (requests as f64 / all.0, keys as f64 / all.1);
            points.push(Point { quota, requests, keys });
        }
        points
    }

    /// A key had this many refusals with this quota.
    fn learn(&mut self, key: u32, quota: u64, refusals: u64) {
        let key = key as usize;
        match refusals {
            0 => self.fits_from.get_mut(key).into_iter().for_each(|it| *it = quota.min(*it)),
            _ => self.refused_to.get_mut(key).into_iter().for_each(|it| *it = quota.max(*it)),
        }
    }

    /// The quota that would have been enough for this many keys if what each had used at most did
    /// not depend on the quota. For windows it does not, unless they refuse.
    fn likely(&self, needed: usize) -> u64 {
        let now = self.limit.algorithm.amount().unwrap_or(1).max(1);
        let at = self.order.len().saturating_sub(needed.max(1));
        let key = self.order.get(at).and_then(|key| self.limit.keys.get(*key as usize));
        match key.map_or(1, |key| key.most_used) {
            // It was refused with the quota that the limit has.
            u64::MAX => now.saturating_add(1),
            used => holding(self.limit, used).clamp(1, now),
        }
    }

    /// How many keys are never refused with this quota. `None` if they are fewer than `needed`.
    fn count(&mut self, quota: u64, needed: usize) -> Option<usize> {
        let refused = self.refused_to.iter().filter(|refused| **refused >= quota).count();
        let allowed = (self.limit.keys.len() - refused).checked_sub(needed)?;
        let open = self.keys(|fits_from, refused_to| fits_from > quota && refused_to < quota);
        let counted = self.run(quota, &open, Some(allowed));
        let newly = counted.iter().filter(|(_, refusals)| *refusals > 0).count();
        counted.iter().for_each(|(key, refusals)| self.learn(*key, quota, *refusals));
        let all = counted.len() == open.len() && newly <= allowed;
        all.then(|| self.limit.keys.len() - refused - newly)
    }

    /// The keys for which this holds, by `fits_from` and `refused_to`.
    fn keys(&self, mut which: impl FnMut(u64, u64) -> bool) -> Vec<u32> {
        let of = |known: &[u64], key: u32| known.get(key as usize).copied().unwrap_or(0);
        let all = self.order.iter().copied();
        all.filter(|key| which(of(&self.fits_from, *key), of(&self.refused_to, *key))).collect()
    }

    /// Counts the demands of these keys with this quota: each key with its refusals. With `allowed`
    /// it counts no key after its first refusal, and none at all once more keys were refused.
    fn run(&self, quota: u64, keys: &[u32], allowed: Option<usize>) -> Vec<(u32, u64)> {
        let (next, refused) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let is_over = || allowed.is_some_and(|most| refused.load(Ordering::Relaxed) > most);
        let work = || {
            let mut counted = Vec::new();
            let counting = (self.make)();
            let Some(mut counting) = counting.filter(|_| !keys.is_empty()) else { return counted };
            if !counting.begin(quota) {
                return counted;
            }
            while let Some(key) = keys.get(next.fetch_add(1, Ordering::Relaxed))
                && !is_over()
            {
                counting.next_key();
                let place = self.places.get(*key as usize).cloned().unwrap_or_default();
                let demands = self.limit.demands.get(place).unwrap_or_default();
                let refusals = demands.iter().filter(|demand| !counting.fits(demand));
                let refusals = refusals.take(allowed.map_or(usize::MAX, |_| 1)).count() as u64;
                refused.fetch_add(usize::from(refusals > 0), Ordering::Relaxed);
                counted.push((*key, refusals));
            }
            counted
        };
        thread::scope(|scope| {
            let others: Vec<_> = (1..self.threads).map(|_| scope.spawn(work)).collect();
            let mut counted = work();
            for other in others {
                match other.join() {
                    Ok(more) => counted.extend(more),
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
            counted
        })
    }

    /// The first of these quotas that the limit can have. A bucket can't have all of a range.
    fn possible(&self, quotas: RangeInclusive<u64>) -> Option<u64> {
        let can_have = |quota: &u64| with_quota(&self.limit.algorithm, *quota).is_some();
        quotas.take(HOLE_MAX).find(can_have)
    }
}

/// The smallest quota with which the limit has room for this many units at once. The burst of a
/// bucket is in proportion to its quota.
fn holding(limit: &LimitTally, units: u64) -> u64 {
    let (amount, capacity) = (limit.algorithm.amount(), limit.algorithm.capacity());
    match (amount, capacity) {
        (Some(amount), Some(capacity)) if capacity > 0 => {
            let quota = (u128::from(units) * u128::from(amount)).div_ceil(u128::from(capacity));
            u64::try_from(quota).unwrap_or(u64::MAX)
        }
        _ => u64::MAX,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Alignment, Debt, FixedWindow, Limit, Rate};
    use crate::replay::line::Line;
    use crate::replay::record::{Clients, Record};
    use crate::replay::tally::{DecidedRequest, Decider, Tally, Verdict};

    const MINUTE_US: i64 = 60_000_000;

    /// Windows of a minute, by hand.
    #[derive(Default)]
    struct Minutes {
        quota: u64,
        windows: std::collections::HashMap<(u32, i64), u64>,
    }

    fn minutes<'a>() -> Option<Box<dyn QuotaCounter + 'a>> {
        Some(Box::new(Minutes::default()))
    }

    impl QuotaCounter for Minutes {
        fn begin(&mut self, quota: u64) -> bool {
            (self.quota, self.windows) = (quota, Default::default());
            true
        }

        fn next_key(&mut self) {}

        fn fits(&mut self, demand: &Demand) -> bool {
            let window = self.windows.entry((demand.key, demand.at_us / MINUTE_US)).or_default();
            let fits = *window + u64::from(demand.cost) <= self.quota;
            *window += if fits { u64::from(demand.cost) } else { 0 };
            fits
        }
    }

    /// Ten clients: client `n` sends `n` requests in each of three minutes.
    fn tally() -> Tally {
        let mut tally = Tally::default();
        let rate = Rate { amount: 5, per_ms: 60_000 };
        let window = FixedWindow { rate, alignment: Alignment::Clock, debt: Debt::None };
        let mut clients = Clients::default();
        for minute in 0..3 {
            for client in 1..=10 {
                for second in 0..client {
                    let line = Line {
                        stamp_us: Some(minute * MINUTE_US + second * 1_000_000),
                        client: Some(format!("10.0.0.{client}").into()),
                        target: Some("/".into()),
                        ..Line::default()
                    };
                    let record = Record::of(&line, &mut clients, (0, 1)).unwrap();
                    let limit = Limit::new("minute", format!("10.0.0.{client}"), window.into());
                    let outcome = crate::plan::LimitOutcome {
                        fits: second < 5,
                        remaining: 4_u64.saturating_sub(second as u64),
                        ..Default::default()
                    };
                    tally.add(
                        &record,
                        &DecidedRequest {
                            verdict: if outcome.fits {
                                Verdict::Admitted
                            } else {
                                Verdict::Refused
                            },
                            route: Some("r"),
                            policy: Some(Decider { name: "p", scope: "p", facts: (&[], &[]) }),
                            limits: &[limit],
                            outcomes: &[outcome],
                            settles: false,
                            passes_in_us: None,
                            cause: None,
                            rejection: None,
                        },
                    );
                }
            }
        }
        tally
    }

    #[test]
    fn the_smallest_quota_is_found_for_each_share() {
        let mut tally = tally();
        let limit = tally.limits.first_mut().unwrap();
        assert_eq!((limit.asked, limit.refused, limit.keys_refused()), (165, 45, 5));
        for (percent, quota) in [(1.0, 1), (10.0, 1), (11.0, 2), (50.0, 5), (99.0, 10), (100.0, 10)]
        {
            let found = Search::new(limit, &minutes).suggest(percent);
            assert_eq!(found.quota, Some(quota), "{percent} %");
            assert_eq!((found.keys, found.never_refused_now), (10, 5));
            assert_eq!(found.never_refused as u64, quota);
        }
    }

    #[test]
    fn a_guess_that_is_wrong_and_several_threads_change_nothing() {
        let mut tally = tally();
        let limit = tally.limits.first_mut().unwrap();
        for most_used in [0, 1, 3, 4, u64::MAX] {
            limit.keys.iter_mut().for_each(|key| key.most_used = most_used);
            for (percent, quota) in [(10.0, 1), (50.0, 5), (100.0, 10)] {
                let mut search = Search::new(limit, &minutes);
                search.threads = 3;
                let found = search.suggest(percent);
                assert_eq!((found.quota, found.never_refused as u64), (Some(quota), quota));
                // What is known from one search does not mislead the next.
                let found = search.suggest(30.0);
                assert_eq!((found.quota, found.never_refused), (Some(3), 3));
            }
        }
    }

    #[test]
    fn no_quota_is_suggested_where_none_is_enough() {
        struct Never;
        impl QuotaCounter for Never {
            fn begin(&mut self, _: u64) -> bool {
                true
            }
            fn next_key(&mut self) {}
            fn fits(&mut self, _: &Demand) -> bool {
                false
            }
        }
        let mut tally = tally();
        let limit = tally.limits.first_mut().unwrap();
        limit.keys.iter_mut().for_each(|key| key.units = u64::MAX);
        let make = || -> Option<Box<dyn QuotaCounter>> { Some(Box::new(Never)) };
        assert_eq!(Search::new(limit, &make).suggest(50.0).quota, None);
    }

    #[test]
    fn quotas_that_the_limit_cannot_have_are_skipped() {
        let mut tally = tally();
        let limit = tally.limits.first_mut().unwrap();
        // A log keeps at most ten thousand units.
        let rate = Rate { amount: 6_000, per_ms: 60_000 };
        limit.algorithm = crate::plan::SlidingWindowLog { rate, debt: Debt::None }.into();
        for (units, quota) in [(900, Some(9_000)), (1_000, Some(10_000)), (1_001, None)] {
            limit.demands.iter_mut().for_each(|demand| demand.cost = units);
            limit.keys.iter_mut().for_each(|key| (key.units, key.most_used) = (99_999, u64::MAX));
            assert_eq!(Search::new(limit, &minutes).suggest(100.0).quota, quota);
        }
        let mut points = Search::new(limit, &minutes);
        assert_eq!(points.suggest(90.0).quota, Some(9_009));
    }

    #[test]
    fn a_curve_counts_no_key_again_that_a_smaller_quota_did_not_refuse() {
        use std::sync::atomic::AtomicU64;
        struct Watched<'w>(Minutes, &'w AtomicU64);
        impl QuotaCounter for Watched<'_> {
            fn begin(&mut self, quota: u64) -> bool {
                self.0.begin(quota)
            }
            fn next_key(&mut self) {
                self.1.fetch_add(1, Ordering::Relaxed);
            }
            fn fits(&mut self, demand: &Demand) -> bool {
                self.0.fits(demand)
            }
        }
        let (mut tally, keys) = (tally(), AtomicU64::new(0));
        let limit = tally.limits.first_mut().unwrap();
        let make = || -> Option<Box<dyn QuotaCounter + '_>> {
            Some(Box::new(Watched(Minutes::default(), &keys)))
        };
        let mut search = Search::new(limit, &make);
        search.suggest(100.0);
        keys.store(0, Ordering::Relaxed);
        let points = search.curve(None);
        // With a quota of `n`, the keys from `n` on, which one less refused.
        let most: u64 = points.iter().map(|point| 11 - point.quota).sum();
        let counted = keys.load(Ordering::Relaxed);
        assert!(points.len() >= 8 && counted <= most + 10, "{counted} of {most}: {points:?}");
    }

    #[test]
    fn a_curve_falls_from_its_first_quota_to_nobody_refused() {
        let mut tally = tally();
        let limit = tally.limits.first_mut().unwrap();
        let points = Search::new(limit, &minutes).curve(Some(7));
        assert!(points.windows(2).all(|pair| pair[0].requests >= pair[1].requests));
        let at = |quota: u64| points.iter().find(|point| point.quota == quota).unwrap();
        assert_eq!((at(1).keys, at(10).keys, at(10).requests), (0.9, 0.0, 0.0));
        assert_eq!(at(5).requests, 45.0 / 165.0);
        assert_eq!(at(7).keys, 0.3, "what is asked for is counted");
    }
}
