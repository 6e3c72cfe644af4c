//! Counts requests by the client's address.
//!
//! An IPv6 client usually owns a whole network, so the network is counted and not the single
//! address. Facts read: `client-ip`, and those that key templates and conditions name. The policy
//! does not know how the proxy found the address.

use serde::Deserialize;
use weir_policy::{Conditions, Decision, Facts, Ipv6Prefix, Limits, Manifest, Mistakes, Policy};

/// `[policies.NAME.config]`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
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
pub struct ClientIp {
    ipv6_prefix: Ipv6Prefix,
    bypass: Conditions,
    limits: Limits,
}

impl Policy for ClientIp {
    type Config = Config;

    fn new(Config { ipv6_prefix, bypass, limits }: Config) -> Result<Self, Mistakes> {
        Ok(Self { ipv6_prefix, bypass, limits: limits.ipv6_prefix(ipv6_prefix) })
    }

    fn manifest(&self) -> Manifest {
        Manifest::reads(["client-ip"])
            .and(self.bypass.facts())
            .limits("limits", &self.limits, &["client-ip"])
            .pure()
    }

    fn decide(&self, facts: &Facts) -> Result<Decision, String> {
        let client = self.ipv6_prefix.client(facts)?;
        if self.bypass.hold(facts) {
            return Ok(Decision::bypass());
        }
        Ok(self.limits.check(&client.text, facts))
    }
}

weir_policy::export!(ClientIp);

#[cfg(test)]
mod tests {
    use weir_policy::Verdict;
    use weir_policy::testing::Instance;

    use super::*;

    const LIMITS: &str = r#""limits": [{"name": "per-minute", "algorithm": "fixed_window", "quota": 100, "period": "1m"}]"#;

    fn policy(more: &str) -> Instance<ClientIp> {
        Instance::new(&format!("{{{more}{LIMITS}}}")).unwrap()
    }

    fn key(policy: &Instance<ClientIp>, address: &str) -> String {
        policy.decide(&[("client-ip", address)]).unwrap().limits()[0].key.clone()
    }

    #[test]
    fn an_ipv4_client_is_its_address() {
        let policy = policy("");
        assert_eq!(key(&policy, "192.0.2.1"), "192.0.2.1");
        assert_ne!(key(&policy, "192.0.2.1"), key(&policy, "192.0.2.2"));
    }

    #[test]
    fn an_ipv6_client_is_its_network() {
        let policy64 = policy("");
        assert_eq!(key(&policy64, "2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::/64");
        assert_eq!(key(&policy64, "2001:db8:1:2:ffff::1"), "2001:db8:1:2::/64");
        assert_eq!(key(&policy(r#""ipv6_prefix": 48,"#), "2001:db8:1:2::1"), "2001:db8:1::/48");
        assert_eq!(key(&policy(r#""ipv6_prefix": 128,"#), "2001:db8::1"), "2001:db8::1");
        assert_eq!(key(&policy(r#""ipv6_prefix": 0,"#), "2001:db8::1"), "::/0");
    }

    #[test]
    fn an_ipv4_address_in_ipv6_clothes_is_the_same_client() {
        assert_eq!(key(&policy(""), "::ffff:192.0.2.1"), "192.0.2.1");
    }

    #[test]
    fn listed_clients_are_never_counted() {
        let policy = policy(
            r#""bypass": ["10.0.0.0/8", "192.0.2.7", "2001:db8::/32", "::ffff:198.51.100.0/120"],"#,
        );
        for (address, counted) in [
            ("10.1.2.3", false),
            ("11.0.0.1", true),
            ("192.0.2.7", false),
            ("192.0.2.8", true),
            ("2001:db8::1", false),
            ("::ffff:10.0.0.1", false),
            ("198.51.100.9", false),
            ("198.51.101.9", true),
        ] {
            let decision = policy.decide(&[("client-ip", address)]).unwrap();
            assert_eq!(decision.verdict != Verdict::Bypass, counted, "{address}");
        }
    }

    #[test]
    fn a_template_sees_the_network_too() {
        let config = r#"{"limits": [{"name": "a", "algorithm": "gcra", "quota": 1, "period": "1s", "key": "{client_ip} {path}"}]}"#;
        let policy = Instance::<ClientIp>::new(config).unwrap();
        assert_eq!(policy.manifest().request_facts, ["client-ip", "path"]);
        assert!(policy.manifest().pure);
        let decision = policy.decide(&[("client-ip", "2001:db8::1"), ("path", "/")]).unwrap();
        assert_eq!(decision.limits()[0].key, "13:2001:db8::/64 1:/");
    }

    #[test]
    fn all_errors_come_at_once() {
        let config = r#"{"ipv6_prefix": 129, "bypass": ["10.0.0.0/33", "x"], "bypas": [], "limits": [{"name": "a"}]}"#;
        let mistakes = Instance::<ClientIp>::new(config).unwrap_err();
        let mut paths: Vec<&str> = mistakes.iter().map(|mistake| mistake.path.as_str()).collect();
        paths.sort_unstable();
        assert_eq!(
            paths,
            [
                "bypas",
                "bypass[0]",
                "bypass[1]",
                "ipv6_prefix",
                "limits[0]",
                "limits[0]",
                "limits[0]"
            ],
            "{mistakes:#?}"
        );
    }

    #[test]
    fn without_an_address_there_is_no_decision() {
        assert!(policy("").decide(&[]).is_err());
        assert!(policy("").decide(&[("client-ip", "nobody")]).is_err());
    }
}
