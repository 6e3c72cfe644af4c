//! Counts requests by the client's address.
//!
//! An IPv6 client owns a whole network, so that one is counted, not the single address. Facts read: `client-ip`, and what key templates name.
//! The policy knows nothing of how the proxy found the address.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net};
use serde::Deserialize;
use weir_policy::{Decision, Facts, Limits, Manifest, Mistakes, Policy};

const IPV6_BITS: u8 = 128;

/// `[policies.NAME.config]`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Bits of an IPv6 address that make one client.
    #[serde(default = "ipv6_prefix")]
    ipv6_prefix: u8,
    /// Networks and addresses that are never counted.
    #[serde(default)]
    bypass: Vec<String>,
    /// What is counted.
    limits: Limits,
}

fn ipv6_prefix() -> u8 {
    64
}

/// The policy.
#[derive(Debug)]
pub struct ClientIp {
    ipv6_prefix: u8,
    bypass: Vec<IpNet>,
    limits: Limits,
}

impl Policy for ClientIp {
    type Config = Config;

    fn new(config: Config) -> Result<Self, Mistakes> {
        let mut mistakes = Mistakes::new();
        if config.ipv6_prefix > IPV6_BITS {
            mistakes.add("ipv6_prefix", config.ipv6_prefix, "0 to 128");
        }
        let mut bypass = Vec::with_capacity(config.bypass.len());
        for (index, text) in config.bypass.iter().enumerate() {
            match network(text) {
                Some(network) => bypass.push(network),
                None => mistakes.add(
                    format!("bypass[{index}]"),
                    format_args!("{text:?}"),
                    "an address or a network, such as \"192.0.2.1\" or \"10.0.0.0/8\"",
                ),
            }
        }
        mistakes.or(Self { ipv6_prefix: config.ipv6_prefix, bypass, limits: config.limits })
    }

    fn manifest(&self) -> Manifest {
        Manifest::reads(["client-ip"]).and(self.limits.facts()).pure()
    }

    fn decide(&self, facts: &Facts) -> Result<Decision, String> {
        let shown = facts.get("client-ip").ok_or("the proxy showed no client-ip")?;
        let address: IpAddr = shown.parse().map_err(|_| "client-ip is no address")?;
        let address = address.to_canonical();
        if self.bypass.iter().any(|network| network.contains(&address)) {
            return Ok(Decision::bypass());
        }
        let client = match address {
            // Only IPv6 can write IPv4 in another way than this.
            IpAddr::V4(_) if !shown.contains(':') => Cow::Borrowed(shown),
            IpAddr::V4(address) => Cow::Owned(address.to_string()),
            IpAddr::V6(address) => Cow::Owned(self.network_of(address)),
        };
        // Templates see the same client: a single IPv6 address in a key would give everyone 2^64 of them.
        Ok(self.limits.check(&client, &facts.with("client-ip", &client)))
    }
}

impl ClientIp {
    fn network_of(&self, address: Ipv6Addr) -> String {
        if self.ipv6_prefix >= IPV6_BITS {
            return address.to_string();
        }
        let host_bits = u32::from(IPV6_BITS - self.ipv6_prefix);
        let mask = u128::MAX.checked_shl(host_bits).unwrap_or(0);
        format!("{}/{}", Ipv6Addr::from(u128::from(address) & mask), self.ipv6_prefix)
    }
}

/// A network, or an address alone; IPv4 written as IPv6 is IPv4.
fn network(text: &str) -> Option<IpNet> {
    let network = text.parse::<IpNet>().ok().or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from))?;
    let as_v4 = match network {
        IpNet::V6(v6) => v6.addr().to_ipv4_mapped().zip(v6.prefix_len().checked_sub(96)),
        IpNet::V4(_) => None,
    };
    match as_v4 {
        Some((address, prefix)) => Ipv4Net::new(address, prefix).ok().map(IpNet::from),
        None => Some(network),
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
    fn whoever_is_on_the_list_is_never_counted() {
        let policy = policy(r#""bypass": ["10.0.0.0/8", "192.0.2.7", "2001:db8::/32", "::ffff:198.51.100.0/120"],"#);
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
    fn all_mistakes_come_at_once() {
        let config = r#"{"ipv6_prefix": 129, "bypass": ["10.0.0.0/33", "x"], "bypas": [], "limits": [{"name": "a"}]}"#;
        let mistakes = Instance::<ClientIp>::new(config).unwrap_err();
        let mut paths: Vec<&str> = mistakes.iter().map(|mistake| mistake.path.as_str()).collect();
        paths.sort_unstable();
        assert_eq!(paths, ["bypas", "bypass[0]", "bypass[1]", "ipv6_prefix", "limits[0]", "limits[0]", "limits[0]"], "{mistakes:#?}");
    }

    #[test]
    fn without_an_address_there_is_no_decision() {
        assert!(policy("").decide(&[]).is_err());
        assert!(policy("").decide(&[("client-ip", "nobody")]).is_err());
    }
}
