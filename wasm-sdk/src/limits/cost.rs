//! What requests cost: limits charged by a request's own cost, and the most that a limit can ever
//! let through.

use weir_algorithms::{AMOUNT_MAX, MEMBERS_MAX};

use super::{Limits, Place, Selector, TableEntry};
use crate::{Algorithm, Decision, Denial, Enforcement, Facts, Limit};

impl Limits {
    /// A table made in code, for policies that have settings of their own for a limit. The limits'
    /// keys are not used: [`Limits::by_default`] sets a template, and [`Limits::charge`] a key.
    ///
    /// ```
    /// use weir_policy::{Algorithm, Facts, Limit, Limits};
    ///
    /// let limits = Limits::made_of([Limit::new("in-flight", "", Algorithm::concurrency(10))]);
    /// assert_eq!(limits.charge("alice", &Facts::new(&[])).unwrap()[0].key, "alice");
    /// ```
    #[must_use]
    pub fn made_of(limits: impl IntoIterator<Item = Limit>) -> Self {
        let entry = |limit| TableEntry {
            limit,
            selector: Selector { key: None, missing: None, when: None, unless: None },
            place: Place::Item,
        };
        Self { limits: limits.into_iter().map(entry).collect(), ..Self::default() }
    }

    /// Each limit as it is written, in the order of the table. The keys are empty.
    ///
    /// ```
    /// use weir_policy::{Limits, Refund};
    ///
    /// let limits = r#"[{"name": "day", "algorithm": "quota", "calendar": "day", "quota": 5, "refund": "unsent"}]"#;
    /// let limits: Limits = serde_json::from_str(limits).unwrap();
    /// let refunds: Vec<_> = limits.each().map(|limit| (limit.name.as_str(), limit.refund)).collect();
    /// assert_eq!(refunds, [("day", Refund::Unsent)]);
    /// ```
    pub fn each(&self) -> impl Iterator<Item = &Limit> {
        self.items().map(|entry| &entry.limit)
    }

    /// Each limit that may refuse a request for what it costs: those that are written, and what
    /// their children get at most.
    pub fn refusing(&self) -> impl Iterator<Item = &Limit> {
        let refusing = self.limits.iter().filter(|entry| entry.place != Place::Assured);
        refusing.map(|entry| &entry.limit)
    }

    /// The limits to charge for a request that costs `cost` units: each takes this many times its
    /// own `cost`. Without a cost, nothing is charged and no key is needed.
    ///
    /// # Errors
    /// As [`Limits::charge`], and a denial with 400 if an enforced limit can't count that many
    /// units at once. A cost within [`Limit::cost_max`] never is.
    pub fn charge_cost(&self, key: &str, cost: u64, facts: &Facts) -> Result<Vec<Limit>, Denial> {
        if cost == 0 {
            return Ok(Vec::new());
        }
        let mut limits = self.charge(key, facts)?;
        for limit in &mut limits {
            let units = limit.cost.saturating_mul(cost);
            let most = units_max(&limit.algorithm);
            if units > most && limit.enforcement == Enforcement::Enforce {
                let most = most / limit.cost.max(1);
                let reason = format!("the request costs {cost}, and at most {most} can be counted");
                return Err(Denial::new(400, reason));
            }
            limit.cost = units.min(most);
        }
        Ok(limits)
    }

    /// The decision that checks [`Limits::charge_cost`]. A request that costs nothing passes.
    ///
    /// ```
    /// use weir_policy::{Decision, Facts, Limits, Verdict};
    ///
    /// let limits = r#"[{"name": "a", "algorithm": "gcra", "quota": 100, "period": "1m"}]"#;
    /// let limits: Limits = serde_json::from_str(limits).unwrap();
    /// let facts = Facts::new(&[]);
    /// assert_eq!(limits.check_cost("alice", 25, &facts).limits()[0].cost, 25);
    /// assert_eq!(limits.check_cost("alice", 0, &facts).verdict, Verdict::Bypass);
    /// ```
    #[must_use]
    pub fn check_cost(&self, key: &str, cost: u64, facts: &Facts) -> Decision {
        match self.charge_cost(key, cost, facts) {
            Ok(limits) if limits.is_empty() => Decision::bypass(),
            Ok(limits) => Decision::check(limits),
            Err(denial) => Decision::deny(denial),
        }
    }
}

impl Limit {
    /// The most units that it can ever let through at once: its burst or its quota. A request that
    /// costs more is always refused. 2^52, if the algorithm sets no such bound, or is known by its
    /// name alone.
    #[must_use]
    pub fn cost_max(&self) -> u64 {
        let most = match &self.algorithm {
            Algorithm::FixedWindow(window) => window.rate.amount,
            Algorithm::SlidingWindowBuckets(window) => window.rate.amount,
            Algorithm::SlidingWindowCounter(rate) | Algorithm::SlidingWindowLog(rate) => {
                rate.amount
            }
            Algorithm::TokenBucket(bucket) | Algorithm::Gcra(bucket) => bucket.burst,
            Algorithm::LeakyBucket(bucket) => {
                let waiting = u128::from(bucket.max_delay_ms) * u128::from(bucket.rate.amount)
                    / u128::from(bucket.rate.per_ms.max(1));
                bucket.burst.saturating_add(u64::try_from(waiting).unwrap_or(u64::MAX))
            }
            Algorithm::Concurrency(amount) => *amount,
            Algorithm::Quota(quota) if quota.conditional => quota.amount,
            Algorithm::Quota(_) | Algorithm::Script(_) | Algorithm::Named(_) => AMOUNT_MAX,
        };
        most.min(units_max(&self.algorithm))
    }

    /// The setting of a limit that says how much it can let through at once: `burst` if that is not
    /// the default, and else `quota`.
    #[must_use]
    pub fn amount_setting(&self) -> &'static str {
        let is_own = match &self.algorithm {
            Algorithm::TokenBucket(bucket) | Algorithm::Gcra(bucket) => {
                bucket.burst != bucket.rate.amount
            }
            Algorithm::LeakyBucket(bucket) => bucket.burst != 1,
            _ => false,
        };
        if is_own { "burst" } else { "quota" }
    }

    /// Whether it can refuse a request. A shadow limit can't, nor can a quota that only counts.
    #[must_use]
    pub fn may_refuse(&self) -> bool {
        let counts = matches!(&self.algorithm, Algorithm::Quota(quota) if !quota.conditional);
        self.enforcement == Enforcement::Enforce && !counts
    }

    /// Whether its units can be given back and owed. Those of `leaky_bucket`, `concurrency` and
    /// scripts can't.
    #[must_use]
    pub fn may_settle(&self) -> bool {
        use Algorithm::{Concurrency, LeakyBucket, Named, Script};
        match &self.algorithm {
            LeakyBucket(_) | Concurrency(_) | Script(_) => false,
            Named(it) => !matches!(it.name.as_str(), "leaky-bucket" | "concurrency"),
            _ => true,
        }
    }
}

/// The most units that the proxy accepts in one request.
fn units_max(algorithm: &Algorithm) -> u64 {
    match algorithm {
        Algorithm::SlidingWindowLog(_) | Algorithm::Concurrency(_) => MEMBERS_MAX,
        _ => AMOUNT_MAX,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{Calendar, Verdict};

    const MINUTE: Duration = Duration::from_secs(60);

    fn limits(algorithm: &str) -> Limits {
        serde_json::from_str(&format!(r#"[{{"name": "a", {algorithm}}}]"#)).unwrap()
    }

    #[test]
    fn the_setting_of_an_amount_is_the_burst_if_there_is_one() {
        for (algorithm, expected) in [
            (r#""algorithm": "gcra", "quota": 9, "period": "1m""#, "quota"),
            (r#""algorithm": "gcra", "quota": 9, "period": "1m", "burst": 5"#, "burst"),
            (
                r#""algorithm": "leaky_bucket", "quota": 9, "period": "1m", "max_delay": "1s""#,
                "quota",
            ),
            (r#""algorithm": "concurrency", "quota": 9"#, "quota"),
        ] {
            let setting = limits(algorithm).each().next().unwrap().amount_setting();
            assert_eq!(setting, expected, "{algorithm}");
        }
    }

    #[test]
    fn a_requests_cost_is_multiplied_by_the_limits_own() {
        let facts = Facts::new(&[]);
        let two = limits(r#""algorithm": "gcra", "quota": 100, "period": "1m", "cost": 2"#);
        assert_eq!(two.charge_cost("k", 25, &facts).unwrap()[0].cost, 50);
        assert_eq!(two.charge_cost("k", 0, &facts).unwrap(), []);
        let denial = two.charge_cost("k", u64::MAX, &facts).unwrap_err();
        assert_eq!(denial.status, 400);
        let free = limits(r#""algorithm": "gcra", "quota": 100, "period": "1m", "cost": 0"#);
        assert_eq!(free.charge_cost("k", 25, &facts).unwrap()[0].cost, 0);
    }

    #[test]
    fn keys_that_the_proxy_would_not_accept_are_denied_and_only_noted_by_a_shadow_limit() {
        let facts = Facts::new(&[]);
        let log = r#""algorithm": "sliding_window_log", "quota": 10000, "period": "1m""#;
        let costs = |text: &str, cost| {
            let decision = limits(text).check_cost("k", cost, &facts);
            match decision.verdict {
                Verdict::Check(limits) => Ok(limits[0].cost),
                Verdict::Deny(denial) => Err(denial.reason),
                Verdict::Bypass => Ok(0),
            }
        };
        assert_eq!(costs(log, MEMBERS_MAX), Ok(MEMBERS_MAX));
        assert_eq!(
            costs(log, MEMBERS_MAX + 1).unwrap_err(),
            "the request costs 10001, and at most 10000 can be counted"
        );
        assert_eq!(costs(&format!("{log}, \"shadow\": true"), 20_000), Ok(MEMBERS_MAX));
        assert_eq!(costs(log, 0), Ok(0));
    }

    #[test]
    fn the_most_that_a_limit_lets_through_is_its_burst_or_its_quota() {
        for (algorithm, most) in [
            (Algorithm::fixed_window(7, MINUTE), 7),
            (Algorithm::sliding_window_counter(7, MINUTE), 7),
            (Algorithm::sliding_window_log(7, MINUTE), 7),
            (Algorithm::sliding_window_buckets(7, MINUTE, 6), 7),
            (Algorithm::token_bucket(7, MINUTE, 3), 3),
            (Algorithm::gcra(7, MINUTE, 30), 30),
            (Algorithm::leaky_bucket(60, MINUTE, 2, Duration::from_secs(3)), 5),
            (Algorithm::concurrency(7), 7),
            (Algorithm::quota(7, Calendar::Day), 7),
            (Algorithm::script("mine", [1]), AMOUNT_MAX),
        ] {
            assert_eq!(Limit::new("a", "k", algorithm.clone()).cost_max(), most, "{algorithm:?}");
        }
    }

    #[test]
    fn a_limit_says_whether_it_refuses_and_whether_it_can_be_settled() {
        let day = Limit::new("a", "k", Algorithm::quota(1, Calendar::Day));
        assert!(day.may_refuse() && day.may_settle() && !day.clone().shadow().may_refuse());
        let counts = r#""algorithm": "quota", "quota": 1, "calendar": "day", "conditional": false"#;
        assert!(limits(counts).each().all(|limit| !limit.may_refuse() && limit.may_settle()));
        assert!(!Limit::new("a", "k", Algorithm::concurrency(1)).may_settle());
    }
}
