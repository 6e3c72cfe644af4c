//! Limits requests in flight: of each key, and of all together.
//!
//! A request holds its place until its reply has ended, however long it streams. Facts read:
//! `client-ip`, and those that key templates and conditions name.

use serde::Deserialize;
use weir_policy::{
    Algorithm, Conditions, Decision, DeclaredLimit, Facts, Ipv6Prefix, LIMITS_MAX, Limit, Limits,
    Manifest, Missing, Mistakes, Policy, Template,
};

/// The most that the proxy counts.
const AMOUNT_MAX: u64 = 1 << 52;
/// The name of the limit that `max` makes.
const MAX: &str = "in-flight";
/// The name, and the key, of the limit that `total` makes.
const TOTAL: &str = "total";

/// `[policies.NAME.config]`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// How many requests of one key may be in flight.
    max: Option<u64>,
    /// What is counted separately; without it, the client's address.
    key: Option<Template>,
    /// How to treat requests without a key.
    missing: Option<Missing>,
    /// How many requests may be in flight, over all keys.
    total: Option<u64>,
    /// Further limits, of any algorithm.
    #[serde(default)]
    limits: Limits,
    /// Bits of an IPv6 address that make one client.
    #[serde(default)]
    ipv6_prefix: Ipv6Prefix,
    /// Requests that are never counted.
    #[serde(default)]
    bypass: Conditions,
}

/// The policy.
#[derive(Debug)]
pub struct Concurrent {
    /// What `max` makes, and the written ones.
    keyed: [Limits; 2],
    total: Option<Limit>,
    ipv6_prefix: Ipv6Prefix,
    bypass: Conditions,
}

impl Config {
    fn check(&self, mistakes: &mut Mistakes) {
        let written = self.limits.count();
        if self.max.is_none() && self.total.is_none() && written == 0 {
            let expected = "`max`, such as `max = 10`, or `total`, or `limits`";
            mistakes.add("", "no limits", expected);
        }
        for (setting, amount) in [("max", self.max), ("total", self.total)] {
            if let Some(amount) = amount.filter(|amount| !(1..=AMOUNT_MAX).contains(amount)) {
                mistakes.add(setting, amount, format_args!("1 to {AMOUNT_MAX}"));
            }
        }
        if let (Some(max), Some(total)) = (self.max, self.total)
            && total < max
        {
            let expected = format_args!("at least `max`, {max}: no key could ever have so many");
            mistakes.add("total", total, expected);
        }
        let ours = [(MAX, "max", self.max), (TOTAL, "total", self.total)];
        let ours = ours.iter().filter(|(_, _, amount)| amount.is_some());
        for (at, name) in self.limits.named() {
            if let Some((_, setting, _)) = ours.clone().find(|(known, ..)| *known == name) {
                let expected = format_args!("another name: this one is that of `{setting}`");
                mistakes.add(format!("limits{at}.name"), format_args!("{name:?}"), expected);
            }
        }
        let together = written + ours.count();
        if together > LIMITS_MAX {
            let found = format_args!("{together} limits, with `max` and `total`");
            mistakes.add("limits", found, format_args!("{LIMITS_MAX} together"));
        }
    }
}

impl Policy for Concurrent {
    type Config = Config;

    fn new(config: Config) -> Result<Self, Mistakes> {
        let mut mistakes = Mistakes::new();
        config.check(&mut mistakes);
        let Config { max, key, missing, total, limits, ipv6_prefix, bypass } = config;
        let max = max.map(|max| Limit::new(MAX, "", Algorithm::concurrency(max)));
        let keyed = [Limits::made_of(max), limits]
            .map(|limits| limits.by_default(key.as_ref(), missing).ipv6_prefix(ipv6_prefix));
        let total = total.map(|total| Limit::new(TOTAL, TOTAL, Algorithm::concurrency(total)));
        mistakes.or(Self { keyed, total, ipv6_prefix, bypass })
    }

    fn manifest(&self) -> Manifest {
        let [max, limits] = &self.keyed;
        let key = ["client-ip"];
        let of_max =
            max.declared("", &key).map(|limit| DeclaredLimit { at: "max".into(), ..limit });
        let total = self.total.iter().map(|limit| DeclaredLimit::of(limit, "total", &[]));
        Manifest::reads(key)
            .and(self.bypass.facts())
            .and(max.facts())
            .declare(of_max.map(DeclaredLimit::apart).chain(total))
            .limits("limits", limits, &key)
            .pure()
    }

    fn decide(&self, facts: &Facts) -> Result<Decision, String> {
        if self.bypass.hold(facts) {
            return Ok(Decision::bypass());
        }
        let key = self.ipv6_prefix.client(facts)?.key();
        let mut charged = Vec::new();
        for limits in &self.keyed {
            match limits.charge(&key, facts) {
                Ok(limits) => charged.extend(limits),
                Err(denial) => return Ok(Decision::deny(denial)),
            }
        }
        charged.extend(self.total.clone());
        Ok(Decision::check(charged))
    }
}

weir_policy::export!(Concurrent);

#[cfg(test)]
mod tests {
    use weir_policy::Verdict;
    use weir_policy::testing::Instance;

    use super::*;

    fn policy(config: &str) -> Instance<Concurrent> {
        Instance::new(config).unwrap()
    }

    /// The name, the key and the amount of each limit.
    fn charged(policy: &Instance<Concurrent>, more: &[(&str, &str)]) -> Vec<(String, String, u64)> {
        let facts = [&[("client-ip", "2001:db8::1")], more].concat();
        let decision = policy.decide(&facts).unwrap();
        let amount = |limit: &Limit| match limit.algorithm {
            Algorithm::Concurrency(amount) => amount,
            _ => 0,
        };
        let limits = decision.limits().iter();
        limits.map(|limit| (limit.name.clone(), limit.key.clone(), amount(limit))).collect()
    }

    fn all(expected: &[(&str, &str, u64)]) -> Vec<(String, String, u64)> {
        let owned = |(name, key, amount): &(&str, &str, u64)| {
            ((*name).to_owned(), (*key).to_owned(), *amount)
        };
        expected.iter().map(owned).collect()
    }

    fn mistakes(config: &str) -> Vec<String> {
        let mistakes = Instance::<Concurrent>::new(config).unwrap_err();
        mistakes.iter().map(|one| format!("{}: {}", one.path, one.message)).collect()
    }

    #[test]
    fn one_line_limits_each_address() {
        let policy = policy(r#"{"max": 10}"#);
        assert_eq!(charged(&policy, &[]), all(&[("in-flight", "\\@2001:db8::/64", 10)]));
        assert!(policy.manifest().pure);
        assert_eq!(policy.manifest().request_facts, ["client-ip"]);
    }

    #[test]
    fn a_key_has_its_places_and_all_keys_have_theirs_together() {
        let policy = policy(r#"{"max": 10, "total": 100, "key": "{header.x-api-key}"}"#);
        assert_eq!(
            charged(&policy, &[("header.x-api-key", "abc")]),
            all(&[("in-flight", "abc", 10), ("total", "total", 100)])
        );
        let by_address = all(&[("in-flight", "\\@2001:db8::/64", 10), ("total", "total", 100)]);
        assert_eq!(charged(&policy, &[]), by_address);
        let two = [("header.x-api-key", "abc"), ("header.x-api-key", "abc")];
        assert_eq!(charged(&policy, &two), by_address);
        let total = super::tests::policy(r#"{"total": 5}"#);
        assert_eq!(charged(&total, &[]), all(&[("total", "total", 5)]));
    }

    #[test]
    fn a_client_without_a_key_may_be_refused() {
        let policy = policy(r#"{"max": 1, "key": "{header.x-api-key}", "missing": {"deny": 401}}"#);
        let decision = policy.decide(&[("client-ip", "192.0.2.1")]).unwrap();
        assert!(matches!(decision.verdict, Verdict::Deny(denial) if denial.status == 401));
    }

    #[test]
    fn further_limits_are_charged_as_well() {
        let policy = policy(
            r#"{"max": 2, "key": "{header.x-api-key}", "limits": [
                {"name": "rate", "algorithm": "gcra", "quota": 5, "period": "1s"},
                {"name": "path", "algorithm": "concurrency", "quota": 1, "key": "{path}"}]}"#,
        );
        assert_eq!(
            charged(&policy, &[("header.x-api-key", "abc"), ("path", "/a")]),
            all(&[("in-flight", "abc", 2), ("rate", "abc", 0), ("path", "/a", 1)])
        );
    }

    #[test]
    fn listed_clients_are_never_counted() {
        let policy = policy(r#"{"max": 1, "bypass": ["2001:db8::/32"]}"#);
        assert_eq!(charged(&policy, &[]), []);
    }

    #[test]
    fn errors_say_what_was_expected() {
        for (config, expected) in [
            (
                "{}",
                ": found no limits, expected `max`, such as `max = 10`, or `total`, or `limits`",
            ),
            (r#"{"max": 0}"#, "max: found 0, expected 1 to 4503599627370496"),
            (
                r#"{"max": 10, "total": 9}"#,
                "total: found 9, expected at least `max`, 10: no key could ever have so many",
            ),
            (
                r#"{"max": 10, "totl": 9}"#,
                "totl: found the unknown key `totl`, expected one of `max`, `key`, `missing`, `total`, `limits`, `ipv6_prefix`, `bypass`; `total` is near",
            ),
            (
                r#"{"total": 9, "limits": [{"name": "total", "algorithm": "concurrency", "quota": 1}]}"#,
                "limits[0].name: found \"total\", expected another name: this one is that of `total`",
            ),
        ] {
            assert_eq!(mistakes(config), [expected]);
        }
        let limit =
            |index| format!(r#"{{"name": "a{index}", "algorithm": "concurrency", "quota": 1}}"#);
        let limits: Vec<String> = (0..LIMITS_MAX).map(limit).collect();
        assert_eq!(
            mistakes(&format!(r#"{{"max": 1, "limits": [{}]}}"#, limits.join(","))),
            ["limits: found 17 limits, with `max` and `total`, expected 16 together"]
        );
        let child = r#"{"total": 9, "limits": [{"name": "a", "algorithm": "concurrency", "quota": 5,
            "children": {"name": "total", "key": "{path}", "assured": 1}}]}"#;
        assert_eq!(
            mistakes(child)[0],
            "limits[0].children.name: found \"total\", expected another name: this one is that of `total`"
        );
        let unused =
            r#"{"max": 1, "limits": [{"name": "total", "algorithm": "concurrency", "quota": 1}]}"#;
        assert!(Instance::<Concurrent>::new(unused).is_ok());
    }
}
