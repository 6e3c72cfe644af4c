//! Counts failed sign-ins by address: only failures count, and a success forgets them.
//!
//! An attempt is charged before the upstream has said what came of it, so that many at once can't pass where few are left ("charge first"). At the
//! reply's end a failure stays charged, a success resets the counter, and what is neither - a page that was only looked at, an upstream that failed -
//! is given back.

use weir_policy::{Adjustment, Decision, Facts, Limits, Manifest, Mistakes, Outcome, Policy, Refund, ResponseView};

/// The policy is its configuration.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SignIn {
    /// Each must say `refund = "by_settle"`.
    limits: Limits,
    /// What the upstream answers to a wrong password.
    #[serde(default = "failed")]
    failed: Vec<u16>,
    /// What it answers to the right one.
    #[serde(default = "succeeded")]
    succeeded: Vec<u16>,
}

fn failed() -> Vec<u16> {
    vec![401, 403]
}

fn succeeded() -> Vec<u16> {
    vec![200, 204, 303]
}

impl Policy for SignIn {
    type Config = Self;

    fn new(config: Self) -> Result<Self, Mistakes> {
        Ok(config)
    }

    fn manifest(&self) -> Manifest {
        Manifest::reads(["client-ip"]).and(self.limits.facts()).pure()
    }

    fn decide(&self, facts: &Facts) -> Result<Decision, String> {
        let key = facts.get("client-ip").ok_or("no client address")?;
        let decision = self.limits.check(key, facts);
        // What a limit took is what can be given back: `settle` may run in another instance, and is handed this.
        let taken = decision.limits().iter().filter(|limit| limit.refund == Refund::BySettle);
        let memo: Vec<String> = taken.map(|limit| format!("{} {}", limit.name, limit.cost)).collect();
        Ok(decision.settle_with(memo.join("\n")))
    }

    fn settle(&self, memo: &str, response: &ResponseView) -> Result<Vec<Adjustment>, String> {
        let limits = memo.lines().filter_map(|line| line.split_once(' '));
        // A client that goes away without waiting for the answer has tried all the same.
        if self.failed.contains(&response.status) || response.outcome == Outcome::ClientGone {
            return Ok(Vec::new());
        }
        if self.succeeded.contains(&response.status) {
            return Ok(limits.map(|(name, _)| Adjustment::reset(name)).collect());
        }
        Ok(limits.map(|(name, cost)| Adjustment::give_back(name, cost.parse().unwrap_or(1))).collect())
    }
}

weir_policy::export!(SignIn);

#[cfg(test)]
mod tests {
    use weir_policy::testing::Instance;
    use weir_policy::{Change, LimitResult};

    use super::*;

    fn settle(status: u16, outcome: Outcome) -> Vec<Change> {
        let config = r#"{"limits": [
            {"name": "failures", "algorithm": "fixed_window", "quota": 5, "period": "15m", "cost": 2, "refund": "by_settle"},
            {"name": "all", "algorithm": "gcra", "quota": 5, "period": "1s"}]}"#;
        let policy = Instance::<SignIn>::new(config).unwrap();
        let decision = policy.decide(&[("client-ip", "192.0.2.1")]).unwrap();
        let limits = vec![LimitResult { name: "failures".into(), fits: true, remaining: 3 }];
        let view = ResponseView { outcome, status, facts: Vec::new(), limits };
        let words = policy.settle(&decision.settle_with.unwrap(), &view).unwrap();
        assert!(words.iter().all(|word| word.limit == "failures"));
        words.into_iter().map(|word| word.change).collect()
    }

    #[test]
    fn a_failure_counts_a_success_forgets_and_anything_else_is_given_back() {
        assert!(settle(401, Outcome::Completed).is_empty());
        assert!(settle(200, Outcome::ClientGone).is_empty());
        assert!(matches!(settle(200, Outcome::Completed)[..], [Change::Reset]));
        for status in [304, 404, 502] {
            assert!(matches!(settle(status, Outcome::Completed)[..], [Change::Units(-2)]), "{status}");
        }
    }
}
