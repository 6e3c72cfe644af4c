//! The quota of a limit at which a share of its keys is never refused, and what other quotas would
//! refuse. Counts what was asked of the limit again with each quota that it tries, by whatever
//! counts: each key has a counter of its own, so one limit can be counted alone.
//!
//! A key that is never refused with a quota is never refused with a larger one, so the smallest
//! quota is found by halving. A key whose answer is known from another quota is not counted again.

use super::tally::{Demand, LimitTally};

/// The largest quota that is tried.
const QUOTA_MAX: u64 = 1 << 50;
/// Quotas of a curve, at most.
const POINTS: usize = 24;

/// Counts one limit with different quotas.
pub trait Counting {
    /// Begins afresh with this quota. False if the limit can't have it.
    fn begin(&mut self, quota: u64) -> bool;

    /// Whether a request fits. Called in the order of time.
    fn fits(&mut self, demand: &Demand) -> bool;
}

/// A quota that would do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suggestion {
    /// The smallest quota at which enough keys are never refused. None if no quota does it.
    pub quota: Option<u64>,
    /// Its keys.
    pub keys: usize,
    /// How many of them are never refused with that quota,
    pub never_refused: usize,
    /// and with the quota that it has.
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

/// Looks for the smallest quota at which `percent` of the limit's keys are never refused.
pub fn suggest(limit: &LimitTally, percent: f64, counting: &mut dyn Counting) -> Suggestion {
    let keys = limit.keys.len();
    let needed = ((keys as f64 * percent / 100.0).ceil() as usize).min(keys);
    let mut known = Known::new(limit);
    let now = limit.algorithm.amount().unwrap_or(0);
    let never_refused_now = known.count(now, 0, counting);
    let (mut low, mut high) = (0, now.max(1));
    let mut never_refused = known.count(high, needed, counting);
    while never_refused < needed {
        low = high;
        high *= 2;
        if high > QUOTA_MAX {
            return Suggestion { quota: None, keys, never_refused: 0, never_refused_now };
        }
        never_refused = known.count(high, needed, counting);
    }
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        match known.count(middle, needed, counting) {
            enough if enough >= needed => (high, never_refused) = (middle, enough),
            _ => low = middle,
        }
    }
    Suggestion { quota: Some(high), keys, never_refused, never_refused_now }
}

/// What quotas from 1 to the one at which nobody is refused would do.
pub fn curve(limit: &LimitTally, counting: &mut dyn Counting) -> Vec<Point> {
    let all = suggest(limit, 100.0, counting);
    let Some(most) = all.quota else { return Vec::new() };
    let most = most.max(limit.algorithm.amount().unwrap_or(1));
    let step = (most as f64).powf(1.0 / (POINTS - 1) as f64);
    let mut quotas: Vec<u64> =
        (0..POINTS).map(|index| (step.powi(index as i32)).round() as u64).collect();
    quotas.push(limit.algorithm.amount().unwrap_or(1));
    quotas.push(most);
    quotas.sort_unstable();
    quotas.dedup();
    let points =
        quotas.into_iter().filter(|quota| (1..=most).contains(quota)).filter_map(|quota| {
            if !counting.begin(quota) {
                return None;
            }
            let mut refused_keys = vec![false; limit.keys.len()];
            let mut refused = 0_u64;
            for demand in limit.demands.iter().filter(|demand| may_refuse(limit, demand.key, quota))
            {
                if !counting.fits(demand) {
                    refused += 1;
                    refused_keys
                        .iter_mut()
                        .skip(demand.key as usize)
                        .take(1)
                        .for_each(|it| *it = true);
                }
            }
            let keys = refused_keys.into_iter().filter(|refused| *refused).count();
            Some(Point {
                quota,
                requests: refused as f64 / limit.demands.len().max(1) as f64,
                keys: keys as f64 / limit.keys.len().max(1) as f64,
            })
        });
    points.collect()
}

/// Whether this key could be refused with that quota at all: all that it ever asked for would not
/// fit at once.
fn may_refuse(limit: &LimitTally, key: u32, quota: u64) -> bool {
    let whole = limit.algorithm.capacity() == limit.algorithm.amount();
    !whole || limit.keys.get(key as usize).is_none_or(|key| key.units > quota)
}

/// What is known of each key: the largest quota with which it was refused, and the smallest with
/// which it was not.
struct Known<'t> {
    limit: &'t LimitTally,
    refused_to: Vec<u64>,
    fits_from: Vec<u64>,
}

impl<'t> Known<'t> {
    fn new(limit: &'t LimitTally) -> Self {
        let whole = limit.algorithm.capacity() == limit.algorithm.amount();
        let from = |units: u64| if whole { units } else { u64::MAX };
        Self {
            limit,
            refused_to: vec![0; limit.keys.len()],
            fits_from: limit.keys.iter().map(|key| from(key.units)).collect(),
        }
    }

    /// How many keys are never refused with this quota. May stop counting once it is less than
    /// `needed`.
    fn count(&mut self, quota: u64, needed: usize, counting: &mut dyn Counting) -> usize {
        #[derive(Clone, Copy, PartialEq, Eq)]
        enum Key {
            Open,
            Fits,
            Refused,
        }
        if quota == 0 || !counting.begin(quota) {
            return 0;
        }
        let each = self.refused_to.iter().zip(&self.fits_from).map(|(refused, fits)| {
            if *fits <= quota {
                Key::Fits
            } else if *refused >= quota {
                Key::Refused
            } else {
                Key::Open
            }
        });
        let mut keys: Vec<Key> = each.collect();
        let mut never = keys.iter().filter(|key| **key != Key::Refused).count();
        let mut complete = true;
        for demand in &self.limit.demands {
            let Some(key) = keys.get_mut(demand.key as usize) else { continue };
            if never < needed {
                complete = false;
                break;
            }
            if *key == Key::Open && !counting.fits(demand) {
                *key = Key::Refused;
                never -= 1;
                if let Some(refused) = self.refused_to.get_mut(demand.key as usize) {
                    *refused = quota;
                }
            }
        }
        if complete {
            for (fits, key) in self.fits_from.iter_mut().zip(&keys) {
                if *key == Key::Open {
                    *fits = quota;
                }
            }
        }
        never
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Alignment, Debt, FixedWindow, Limit, Rate};
    use crate::replay::line::Line;
    use crate::replay::record::{Clients, Record};
    use crate::replay::tally::{Decider, Seen, Tally, Verdict};

    const MINUTE_US: i64 = 60_000_000;

    /// Windows of a minute, by hand.
    struct Minutes {
        quota: u64,
        windows: std::collections::HashMap<(u32, i64), u64>,
        counted: usize,
    }

    impl Counting for Minutes {
        fn begin(&mut self, quota: u64) -> bool {
            (self.quota, self.windows) = (quota, Default::default());
            true
        }

        fn fits(&mut self, demand: &Demand) -> bool {
            self.counted += 1;
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
                    let outcome =
                        crate::plan::LimitOutcome { fits: second < 5, ..Default::default() };
                    tally.add(
                        &record,
                        &Seen {
                            verdict: if outcome.fits {
                                Verdict::Admitted
                            } else {
                                Verdict::Refused
                            },
                            route: Some("r"),
                            policy: Some(Decider { name: "p", scope: "p", facts: (&[], &[]) }),
                            limits: &[limit],
                            outcomes: &[outcome],
                            passes_in_us: None,
                        },
                    );
                }
            }
        }
        tally
    }

    #[test]
    fn the_smallest_quota_is_found_for_each_share() {
        let tally = tally();
        let limit = tally.limits.first().unwrap();
        assert_eq!((limit.asked, limit.refused, limit.keys_refused()), (165, 45, 5));
        for (percent, quota) in [(1.0, 1), (10.0, 1), (11.0, 2), (50.0, 5), (99.0, 10), (100.0, 10)]
        {
            let mut minutes = Minutes { quota: 0, windows: Default::default(), counted: 0 };
            let found = suggest(limit, percent, &mut minutes);
            assert_eq!(found.quota, Some(quota), "{percent} %");
            assert_eq!((found.keys, found.never_refused_now), (10, 5));
            assert_eq!(found.never_refused as u64, quota);
        }
    }

    #[test]
    fn no_quota_is_suggested_where_none_is_enough() {
        struct Never;
        impl Counting for Never {
            fn begin(&mut self, _: u64) -> bool {
                true
            }
            fn fits(&mut self, _: &Demand) -> bool {
                false
            }
        }
        let mut tally = tally();
        let limit = tally.limits.first_mut().unwrap();
        limit.keys.iter_mut().for_each(|key| key.units = u64::MAX);
        assert_eq!(suggest(limit, 50.0, &mut Never).quota, None);
    }

    #[test]
    fn a_curve_falls_from_its_first_quota_to_nobody_refused() {
        let tally = tally();
        let limit = tally.limits.first().unwrap();
        let mut minutes = Minutes { quota: 0, windows: Default::default(), counted: 0 };
        let points = curve(limit, &mut minutes);
        assert!(points.windows(2).all(|pair| pair[0].requests >= pair[1].requests));
        let at = |quota: u64| points.iter().find(|point| point.quota == quota).unwrap();
        assert_eq!((at(1).keys, at(10).keys, at(10).requests), (0.9, 0.0, 0.0));
        assert_eq!(at(5).requests, 45.0 / 165.0);
    }
}
