//! Counts failed sign-ins, by address and by account.
//!
//! An attempt is charged before its result is known, so that many at once can't pass when only a
//! few are left. At the end of the response, a failure stays charged and everything else is given
//! back. A success also resets the counters of its own account at its own address, and no other.
//! Otherwise an attacker with one valid password could reset the counter of the address before each
//! guess at another account.

use std::fmt::Write as _;

use weir_policy::{
    Adjustment, Decision, Facts, Ipv6Prefix, Limits, Manifest, Mistakes, Outcome, Policy, Refund,
    ResponseView, Template,
};

/// `[policies.NAME.config]`.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Counted by address: failures for all accounts. A success gives back only its own units.
    limits: Limits,
    /// The account that an attempt is for, such as `{path.user}` or `{header.x-account}`.
    account: Option<Template>,
    /// Counted by address and account. A success resets them.
    account_limits: Option<Limits>,
    /// The methods that are attempts. Other requests are not counted, and their responses change
    /// nothing.
    #[serde(default = "methods")]
    methods: Vec<String>,
    /// Statuses with which the upstream answers a wrong password.
    #[serde(default = "failed")]
    failed: Vec<u16>,
    /// Statuses with which it answers the right one.
    #[serde(default = "succeeded")]
    succeeded: Vec<u16>,
    /// Bits of an IPv6 address that make one client.
    #[serde(default)]
    ipv6_prefix: Ipv6Prefix,
}

fn methods() -> Vec<String> {
    vec!["POST".to_owned()]
}

fn failed() -> Vec<u16> {
    vec![401, 403]
}

fn succeeded() -> Vec<u16> {
    vec![200, 204, 303]
}

/// The policy.
#[derive(Debug)]
pub struct SignIn(Config);

/// Marks a limit in a memo: a success resets it.
const RESET: &str = "reset";
const KEEP: &str = "keep";

impl Policy for SignIn {
    type Config = Config;

    const SETTLES: bool = true;

    fn new(mut config: Config) -> Result<Self, Mistakes> {
        let mut mistakes = Mistakes::new();
        config.limits = config.limits.ipv6_prefix(config.ipv6_prefix);
        if config.account.is_some() != config.account_limits.is_some() {
            mistakes.add("", "one of `account` and `account_limits`", "both or neither");
        }
        if let Some(limits) = &config.account_limits {
            let keyed: Vec<usize> = limits.without_key().collect();
            for (index, name) in limits.names().enumerate() {
                if !keyed.contains(&index) {
                    let expected = "nothing: these are counted by address and `account`, which is what a success may reset";
                    mistakes.add(format!("account_limits[{index}].key"), "the key `key`", expected);
                }
                if config.limits.names().any(|other| other == name) {
                    mistakes.add(
                        format!("account_limits[{index}].name"),
                        format_args!("{name:?}"),
                        "a name that no limit in `limits` has",
                    );
                }
            }
        }
        mistakes.or(Self(config))
    }

    fn manifest(&self) -> Manifest {
        let Config { limits, account, account_limits, .. } = &self.0;
        let account = account
            .iter()
            .flat_map(Template::facts)
            .chain(account_limits.iter().flat_map(Limits::facts));
        Manifest::reads(["client-ip", "method"]).and(limits.facts()).and(account).pure()
    }

    fn decide(&self, facts: &Facts) -> Result<Decision, String> {
        let Config { limits, account, account_limits, methods, ipv6_prefix, .. } = &self.0;
        let method = facts.get("method").ok_or("no method")?;
        if !methods.iter().any(|counted| counted == method) {
            return Ok(Decision::bypass());
        }
        let client = ipv6_prefix.client(facts)?;
        let mut charged = match limits.charge(&client.text, facts) {
            Ok(charged) => charged,
            Err(denial) => return Ok(Decision::deny(denial)),
        };
        let by_address = charged.len();
        // An attempt for no account, or for several, is counted by address alone: a success could
        // not be attributed to one account.
        let account = account.as_ref().and_then(|account| account.key(facts).ok());
        if let Some((account, limits)) = account.zip(account_limits.as_ref()) {
            match limits.charge(&format!("{} {account}", client.text), facts) {
                Ok(more) => charged.extend(more),
                Err(denial) => return Ok(Decision::deny(denial)),
            }
        }
        // The units that each limit took, which can be given back. `settle` may run in another
        // instance, and is passed this.
        let mut memo = String::new();
        for (index, limit) in
            charged.iter().enumerate().filter(|(_, limit)| limit.refund == Refund::BySettle)
        {
            let on_success = if index < by_address { KEEP } else { RESET };
            // Writing to a String can't fail.
            let _ = writeln!(memo, "{} {} {on_success}", limit.name, limit.cost);
        }
        Ok(Decision::check(charged).settle_with(memo))
    }

    fn settle(&self, memo: &str, response: &ResponseView) -> Result<Vec<Adjustment>, String> {
        // A client that goes away without waiting for the response has made an attempt all the
        // same.
        if self.0.failed.contains(&response.status) || response.outcome == Outcome::ClientGone {
            return Ok(Vec::new());
        }
        let succeeded = self.0.succeeded.contains(&response.status);
        let adjustment = |line: &str| {
            let mut parts = line.split(' ');
            let (name, cost, on_success) =
                (parts.next()?, parts.next()?.parse().ok()?, parts.next()?);
            Some(if succeeded && on_success == RESET {
                Adjustment::reset(name)
            } else {
                Adjustment::give_back(name, cost)
            })
        };
        Ok(memo.lines().filter_map(adjustment).collect())
    }
}

weir_policy::export!(SignIn);

#[cfg(test)]
mod tests {
    use weir_policy::testing::Instance;
    use weir_policy::{Change, Verdict};

    use super::*;

    const CONFIG: &str = r#"{
        "limits": [
            {"name": "address", "algorithm": "fixed_window", "quota": 50, "period": "15m", "cost": 2, "refund": "by_settle"},
            {"name": "all", "algorithm": "gcra", "quota": 5, "period": "1s"}],
        "account": "{path.user}",
        "account_limits": [{"name": "account", "algorithm": "fixed_window", "quota": 5, "period": "15m", "refund": "by_settle"}]}"#;

    /// An attempt at the account `alice`.
    const ATTEMPT: [(&str, &str); 3] =
        [("client-ip", "192.0.2.1"), ("method", "POST"), ("path.user", "alice")];

    fn settled(facts: &[(&str, &str)], status: u16, outcome: Outcome) -> Vec<(String, Change)> {
        let policy = Instance::<SignIn>::new(CONFIG).unwrap();
        let memo = policy.decide(facts).unwrap().settle_with.unwrap();
        let view = ResponseView { outcome, status, facts: Vec::new(), limits: Vec::new() };
        let mut words: Vec<_> = policy
            .settle(&memo, &view)
            .unwrap()
            .into_iter()
            .map(|word| (word.limit, word.change))
            .collect();
        words.sort_by(|one, other| one.0.cmp(&other.0));
        words
    }

    #[test]
    fn a_failure_counts_and_anything_else_is_given_back() {
        assert!(settled(&ATTEMPT, 401, Outcome::Completed).is_empty());
        assert!(settled(&ATTEMPT, 200, Outcome::ClientGone).is_empty());
        for status in [304, 404, 502] {
            let words = settled(&ATTEMPT, status, Outcome::Completed);
            assert_eq!(
                words,
                [
                    ("account".to_owned(), Change::Units(-1)),
                    ("address".to_owned(), Change::Units(-2))
                ],
                "{status}"
            );
        }
    }

    #[test]
    fn a_success_resets_the_accounts_counter_and_never_the_addresss() {
        let words = settled(&ATTEMPT, 200, Outcome::Completed);
        assert_eq!(
            words,
            [("account".to_owned(), Change::Reset), ("address".to_owned(), Change::Units(-2))]
        );
        // Without an account nothing is reset.
        assert_eq!(
            settled(&ATTEMPT[..2], 200, Outcome::Completed),
            [("address".to_owned(), Change::Units(-2))]
        );
        let two = [&ATTEMPT[..], &[("path.user", "bob")]].concat();
        assert_eq!(
            settled(&two, 200, Outcome::Completed),
            [("address".to_owned(), Change::Units(-2))]
        );
    }

    #[test]
    fn only_the_configured_methods_are_attempts() {
        for (config, method, counted) in [
            (CONFIG.to_owned(), "POST", true),
            (CONFIG.to_owned(), "GET", false),
            (CONFIG.to_owned(), "HEAD", false),
            (CONFIG.replacen('{', r#"{"methods": ["PUT"],"#, 1), "PUT", true),
            (CONFIG.replacen('{', r#"{"methods": ["PUT"],"#, 1), "POST", false),
        ] {
            let policy = Instance::<SignIn>::new(&config).unwrap();
            let decision = policy
                .decide(&[("client-ip", "192.0.2.1"), ("method", method), ("path.user", "alice")])
                .unwrap();
            assert_eq!(
                (decision.verdict != Verdict::Bypass, decision.settle_with.is_some()),
                (counted, counted),
                "{method}"
            );
        }
    }

    #[test]
    fn an_account_is_counted_for_each_address_and_an_ipv6_client_is_its_network() {
        let policy = Instance::<SignIn>::new(CONFIG).unwrap();
        let keys = |address: &str, user: &str| {
            let decision = policy
                .decide(&[("client-ip", address), ("method", "POST"), ("path.user", user)])
                .unwrap();
            decision.limits().iter().map(|limit| limit.key.clone()).collect::<Vec<_>>()
        };
        assert_eq!(keys("192.0.2.1", "alice"), ["192.0.2.1", "192.0.2.1", "192.0.2.1 alice"]);
        assert_eq!(
            keys("2001:db8::1", "bob"),
            ["2001:db8::/64", "2001:db8::/64", "2001:db8::/64 bob"]
        );
    }

    #[test]
    fn what_could_be_walked_round_is_a_mistake() {
        for (from, to, path, part) in [
            (r#""account": "{path.user}","#, "", "", "one of `account` and `account_limits`"),
            (
                r#""name": "account""#,
                r#""name": "account", "key": "{client_ip}""#,
                "account_limits[0].key",
                "what a success may reset",
            ),
            (
                r#""name": "account""#,
                r#""name": "all""#,
                "account_limits[0].name",
                "no limit in `limits` has",
            ),
        ] {
            let mistakes = Instance::<SignIn>::new(&CONFIG.replace(from, to)).unwrap_err();
            assert!(
                mistakes.len() == 1
                    && mistakes[0].path == path
                    && mistakes[0].message.contains(part),
                "{mistakes:?}"
            );
        }
    }
}
