//! Charges what a reply says that it cost: tokens, seconds, money.
//!
//! A request is charged its limits' cost when it comes, so that nobody without an allowance gets
//! through. The rest is charged at the end of the response. It is charged whatever is left, into
//! the limits' `debt`: a charge that had to fit would be dropped as soon as less is left than a
//! reply costs, and requests would pass for next to nothing.

use weir_policy::{
    Adjustment, Decision, Facts, FieldName, Ipv6Prefix, Limits, Manifest, Mistakes, Policy,
    ResponseView, Settlement,
};

/// `[policies.NAME.config]`.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The limits, by client address unless they have a `key`.
    limits: Limits,
    /// The response field with the cost, a whole number; `x-cost` by default.
    cost_field: Option<FieldName>,
    /// What a response without that field costs.
    #[serde(default)]
    cost_if_missing: u64,
}

/// The policy.
#[derive(Debug)]
pub struct ReplyCost(Config);

impl ReplyCost {
    /// The fact with the cost.
    fn cost_fact(&self) -> String {
        format!("header.{}", self.0.cost_field.as_ref().map_or("x-cost", FieldName::as_str))
    }
}

impl Policy for ReplyCost {
    type Config = Config;

    const SETTLES: bool = true;

    fn new(config: Config) -> Result<Self, Mistakes> {
        let mut mistakes = Mistakes::new();
        if config.limits.owing().next().is_none() {
            let expected = "one with a `debt` at least, or no reply's cost would be charged";
            mistakes.add("limits", "no limit with a `debt`", expected);
        }
        mistakes.or(Self(config))
    }

    fn manifest(&self) -> Manifest {
        Manifest::reads(["client-ip"])
            .limits("limits", &self.0.limits, &["client-ip"])
            .and_of_response([self.cost_fact()])
            .pure()
    }

    fn decide(&self, facts: &Facts) -> Result<Decision, String> {
        // An IPv6 client has a whole network, which counts as one.
        let client = Ipv6Prefix::default().client(facts)?.key();
        let limits = match self.0.limits.charge(&client, facts) {
            Ok(limits) => limits,
            Err(denial) => return Ok(Decision::deny(denial)),
        };
        // What each limit that may owe has been charged so far.
        let owing = limits.iter().filter(|limit| limit.debt.is_some());
        let memo: Vec<String> =
            owing.map(|limit| format!("{} {}", limit.name, limit.cost)).collect();
        Ok(Decision::check(limits).settle_with(memo.join("\n")))
    }

    fn settle(&self, memo: &str, response: &ResponseView) -> Result<Settlement, String> {
        let name = self.cost_fact();
        let told = response.facts.iter().find(|(fact, _)| *fact == name);
        let cost = told.and_then(|(_, value)| cost(value)).unwrap_or(self.0.cost_if_missing);
        let rest = |line: &str| {
            let (limit, charged) = line.split_once(' ')?;
            let rest = u64::saturating_sub(cost, charged.parse().ok()?);
            (rest > 0).then(|| Adjustment::debt(limit, rest))
        };
        Ok(memo.lines().filter_map(rest).collect())
    }
}

/// The cost that a reply reports. A number that is too large is as large as can be: a reply that
/// claims to cost more than anything must not be free.
fn cost(value: &str) -> Option<u64> {
    let digits = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| value.parse().unwrap_or(u64::MAX))
}

weir_policy::export!(ReplyCost);

#[cfg(test)]
mod tests {
    use weir_policy::testing::Instance;
    use weir_policy::{Change, Outcome};

    use super::*;

    fn charged(cost: &[(&str, &str)]) -> Vec<(String, Change)> {
        let config = r#"{"cost_if_missing": 50, "limits": [
            {"name": "tokens", "algorithm": "fixed_window", "quota": 1000, "period": "1m", "debt": 5000},
            {"name": "flight", "algorithm": "concurrency", "quota": 64},
            {"name": "day", "algorithm": "quota", "quota": 9000, "calendar": "day", "cost": 10, "debt": "allowance"}]}"#;
        let policy = Instance::<ReplyCost>::new(config).unwrap();
        let memo = policy.decide(&[("client-ip", "192.0.2.1")]).unwrap().settle_with.unwrap();
        let view = ResponseView::new(Outcome::Completed, 200);
        let view = cost.iter().fold(view, |view, (name, value)| view.with_fact(*name, *value));
        let adjustments = policy.settle(&memo, &view).unwrap().adjustments;
        adjustments.into_iter().map(|adjustment| (adjustment.limit, adjustment.change)).collect()
    }

    #[test]
    fn the_rest_of_the_cost_is_charged_into_debt() {
        let expected = |first, second| {
            vec![
                ("tokens".to_owned(), Change::Debt(first)),
                ("day".to_owned(), Change::Debt(second)),
            ]
        };
        assert_eq!(charged(&[("header.x-cost", "500")]), expected(499, 490));
        assert_eq!(charged(&[]), expected(49, 40));
        assert_eq!(charged(&[("header.x-cost", "many")]), expected(49, 40));
        assert_eq!(charged(&[("header.x-cost", "7")]), [("tokens".to_owned(), Change::Debt(6))]);
        assert_eq!(charged(&[("header.x-cost", "1")]), []);
        let most = charged(&[("header.x-cost", "99999999999999999999999")]);
        assert!(most.iter().all(|(_, change)| *change == Change::Debt(1 << 52)), "{most:?}");
    }

    #[test]
    fn limits_of_which_none_may_owe_are_an_error() {
        let config =
            r#"{"limits": [{"name": "a", "algorithm": "gcra", "quota": 1, "period": "1m"}]}"#;
        let mistakes = Instance::<ReplyCost>::new(config).unwrap_err();
        assert!(mistakes[0].message.starts_with("found no limit with a `debt`"), "{mistakes:?}");
    }
}
