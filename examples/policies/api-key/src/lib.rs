//! Counts requests by API key, and by address if there is none.

use weir_policy::{Decision, Facts, Ipv6Prefix, Limits, Manifest, Mistakes, Policy};

/// The policy is its configuration.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ApiKey {
    limits: Limits,
}

impl Policy for ApiKey {
    type Config = Self;

    fn new(config: Self) -> Result<Self, Mistakes> {
        Ok(config)
    }

    fn manifest(&self) -> Manifest {
        let key = ["header.x-api-key", "client-ip"];
        Manifest::reads(key).limits("limits", &self.limits, &key).pure()
    }

    fn decide(&self, facts: &Facts) -> Result<Decision, String> {
        let key = match facts.get("header.x-api-key") {
            Some(key) => format!("key:{key}"),
            None => format!("ip:{}", Ipv6Prefix::default().client(facts)?.text),
        };
        Ok(self.limits.check(&key, facts))
    }
}

weir_policy::export!(ApiKey);

#[cfg(test)]
mod tests {
    use weir_policy::testing::Instance;

    use super::*;

    #[test]
    fn a_key_is_counted_before_an_address() {
        let config =
            r#"{"limits": [{"name": "a", "algorithm": "gcra", "quota": 1, "period": "1s"}]}"#;
        let policy = Instance::<ApiKey>::new(config).unwrap();
        let key = |facts: &[(&str, &str)]| policy.decide(facts).unwrap().limits()[0].key.clone();
        assert_eq!(
            key(&[("client-ip", "192.0.2.1"), ("header.x-api-key", "192.0.2.1")]),
            "key:192.0.2.1"
        );
        assert_eq!(key(&[("client-ip", "192.0.2.1")]), "ip:192.0.2.1");
    }
}
