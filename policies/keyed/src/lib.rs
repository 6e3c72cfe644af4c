//! Counts requests by keys from the configuration: one or several limits, each with a template over
//! the facts of a request.
//!
//! Facts read: those that key templates and conditions name, and `client-ip` if a request may lack
//! a key.

use serde::Deserialize;
use weir_policy::{
    Conditions, Decision, Facts, Ipv6Prefix, Limits, Manifest, Missing, Mistakes, Policy, Template,
};

/// `[policies.NAME.config]`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The key of limits without one of their own.
    key: Option<Template>,
    /// How to treat requests without a key, for limits that don't say so themselves.
    missing: Option<Missing>,
    /// Bits of an IPv6 address that make one client.
    #[serde(default)]
    ipv6_prefix: Ipv6Prefix,
    /// Requests that are never counted.
    #[serde(default)]
    bypass: Conditions,
    /// The limits.
    limits: Limits,
}

/// The policy.
#[derive(Debug)]
pub struct Keyed {
    bypass: Conditions,
    limits: Limits,
}

impl Policy for Keyed {
    type Config = Config;

    fn new(config: Config) -> Result<Self, Mistakes> {
        let mut mistakes = Mistakes::new();
        let limits = config
            .limits
            .by_default(config.key.as_ref(), config.missing)
            .ipv6_prefix(config.ipv6_prefix);
        for index in limits.without_key() {
            let expected =
                "a template such as `key = \"{header.x-api-key}\"`, here or for the whole policy";
            mistakes.add(format!("limits[{index}]"), "no `key`", expected);
        }
        mistakes.or(Self { bypass: config.bypass, limits })
    }

    fn manifest(&self) -> Manifest {
        let none: [&str; 0] = [];
        Manifest::reads(none).and(self.bypass.facts()).limits("limits", &self.limits, &none).pure()
    }

    fn decide(&self, facts: &Facts) -> Result<Decision, String> {
        if self.bypass.hold(facts) {
            return Ok(Decision::bypass());
        }
        // Each limit has a template, so the default key is not used.
        Ok(self.limits.check("", facts))
    }
}

weir_policy::export!(Keyed);

#[cfg(test)]
mod tests {
    use weir_policy::Verdict;
    use weir_policy::testing::Instance;

    use super::*;

    fn policy(config: &str) -> Instance<Keyed> {
        Instance::new(config).unwrap()
    }

    fn limit(name: &str, more: &str) -> String {
        format!(r#"{{"name": "{name}", "algorithm": "gcra", "quota": 1, "period": "1s"{more}}}"#)
    }

    /// The names of the limits that are charged, each with its key.
    fn charged(policy: &Instance<Keyed>, facts: &[(&str, &str)]) -> Vec<(String, String)> {
        let decision = policy.decide(facts).unwrap();
        decision.limits().iter().map(|limit| (limit.name.clone(), limit.key.clone())).collect()
    }

    fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
        expected.iter().map(|(name, key)| ((*name).to_owned(), (*key).to_owned())).collect()
    }

    #[test]
    fn each_limit_counts_by_its_own_key_and_the_others_by_the_policys() {
        let config = format!(
            r#"{{"key": "{{header.x-api-key}}", "limits": [{}, {}, {}]}}"#,
            limit("key", ""),
            limit("user", r#", "key": "{path.id}/{method}""#),
            limit("all", r#", "key": "everyone""#)
        );
        let policy = policy(&config);
        assert_eq!(
            policy.manifest().request_facts,
            ["header.x-api-key", "path.id", "method", "client-ip"]
        );
        assert!(policy.manifest().pure);
        let facts = [
            ("header.x-api-key", "k"),
            ("path.id", "7"),
            ("method", "GET"),
            ("client-ip", "192.0.2.1"),
        ];
        assert_eq!(
            charged(&policy, &facts),
            pairs(&[("key", "k"), ("user", "1:7/3:GET"), ("all", "everyone")])
        );
        let without = charged(&policy, &facts[2..]);
        assert_eq!(
            without,
            pairs(&[("key", "\\@192.0.2.1"), ("user", "\\@192.0.2.1"), ("all", "everyone")])
        );
    }

    #[test]
    fn missing_is_set_once_or_for_each_limit() {
        let config = format!(
            r#"{{"key": "{{cookie.session}}", "missing": "skip", "ipv6_prefix": 48, "limits": [{}, {}]}}"#,
            limit("a", ""),
            limit("b", r#", "missing": "address""#)
        );
        let policy = policy(&config);
        assert_eq!(
            charged(&policy, &[("client-ip", "2001:db8:1:2::3")]),
            pairs(&[("b", "\\@2001:db8:1::/48")])
        );
        let both = [("client-ip", "192.0.2.1"), ("cookie.session", "s")];
        assert_eq!(charged(&policy, &both), pairs(&[("a", "s"), ("b", "s")]));
    }

    #[test]
    fn a_request_without_a_key_may_be_refused() {
        let policy = policy(&format!(
            r#"{{"key": "{{header.x-api-key}}", "missing": {{"deny": 401}}, "limits": [{}]}}"#,
            limit("a", "")
        ));
        let Verdict::Deny(denial) = policy.decide(&[("client-ip", "192.0.2.1")]).unwrap().verdict
        else {
            panic!()
        };
        assert_eq!(
            (denial.status, denial.reason.as_str()),
            (401, "header x-api-key must be there")
        );
        let twice =
            [("header.x-api-key", "a"), ("header.x-api-key", "b"), ("client-ip", "192.0.2.1")];
        let Verdict::Deny(denial) = policy.decide(&twice).unwrap().verdict else { panic!() };
        assert_eq!(denial.reason, "header x-api-key must be there once");
    }

    #[test]
    fn listed_clients_are_never_counted() {
        let config = format!(
            r#"{{"key": "{{header.x-api-key}}", "bypass": ["10.0.0.0/8", {{"path": "/health/*", "method": "GET"}}], "limits": [{}]}}"#,
            limit("a", "")
        );
        let policy = policy(&config);
        let verdict = |facts: &[(&str, &str)]| policy.decide(facts).unwrap().verdict;
        assert_eq!(verdict(&[("client-ip", "10.1.2.3")]), Verdict::Bypass);
        assert_eq!(
            verdict(&[("client-ip", "192.0.2.1"), ("path", "/health/deep"), ("method", "GET")]),
            Verdict::Bypass
        );
        assert_ne!(
            verdict(&[("client-ip", "192.0.2.1"), ("path", "/health/deep"), ("method", "POST")]),
            Verdict::Bypass
        );
    }

    #[test]
    fn a_limit_may_be_about_some_requests_only() {
        let config = format!(
            r#"{{"key": "{{client_ip}}", "limits": [{}]}}"#,
            limit("writes", r#", "when": {"method": ["POST", "PUT"]}"#)
        );
        let policy = policy(&config);
        assert_eq!(charged(&policy, &[("client-ip", "192.0.2.1"), ("method", "GET")]), []);
        assert_eq!(
            charged(&policy, &[("client-ip", "192.0.2.1"), ("method", "PUT")]),
            pairs(&[("writes", "192.0.2.1")])
        );
    }

    #[test]
    fn a_limit_without_any_key_is_an_error_beside_all_others() {
        let config = format!(
            r#"{{"missing": "skipp", "limits": [{}, {}]}}"#,
            limit("a", ""),
            limit("b", r#", "key": "{path}""#)
        );
        let mistakes = Instance::<Keyed>::new(&config).unwrap_err();
        let told: Vec<_> = mistakes
            .iter()
            .map(|mistake| (mistake.path.as_str(), mistake.message.split(", ").next().unwrap()))
            .collect();
        assert_eq!(told, [("missing", "found \"skipp\""), ("limits[0]", "found no `key`")]);
    }
}
