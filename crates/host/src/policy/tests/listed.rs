//! The limits that are listed for `weir key` are those that the guests charge.

use super::*;
use crate::plan::Rate;

/// Name, algorithm, rate.
type Named = (String, String, Option<Rate>);

fn named(name: &str, algorithm: &crate::plan::Algorithm) -> Named {
    (name.to_owned(), algorithm.name().to_owned(), algorithm.rate())
}

/// What the guest charges, and what is listed.
fn charged(policy: &str, config: &str, facts: &[(&str, &str)]) -> [Vec<Named>; 2] {
    let settings = settings(shipped(policy), config);
    let built = build(&settings).unwrap_or_else(|errors| panic!("{config}: {errors:?}"));
    let decision = built.decide(facts).unwrap();
    let charged = plan(&decision).limits().iter().map(|limit| named(&limit.name, &limit.algorithm));
    let listed = settings.limits();
    let listed = listed.iter().map(|one| named(&one.name, one.algorithm.as_ref().unwrap()));
    let (mut charged, mut listed): (Vec<_>, Vec<_>) = (charged.collect(), listed.collect());
    charged.sort_by(|one, other| one.0.cmp(&other.0));
    listed.sort_by(|one, other| one.0.cmp(&other.0));
    [charged, listed]
}

#[test]
fn limits_that_a_shipped_policy_makes_itself_are_listed_as_it_makes_them() {
    let attempt = [("method", "POST"), ("client-ip", "192.0.2.1"), ("header.x-user", "ann")];
    let guard = r#""account": "{header.x-user}", "success": [200]"#;
    let own =
        r#""by_account": [{"name": "a", "algorithm": "fixed_window", "quota": 3, "period": "1h"}]"#;
    let ban = r#""statuses": [404], "strikes": {"quota": 7, "period": "90s"}, "ban": "1d12h""#;
    let limits = r#""limits": [{"name": "l", "algorithm": "gcra", "quota": 9, "period": "1s"}]"#;
    for (policy, config, names) in [
        ("login-guard", guard.to_owned(), &["address", "pair"][..]),
        ("login-guard", format!("{guard}, {own}"), &["a"]),
        ("ban", ban.to_owned(), &["ban", "strikes"]),
        ("ban", format!(r#"{ban}, {limits}, "extend": true"#), &["ban", "l", "strikes"]),
    ] {
        let [charged, listed] = charged(policy, &format!("{{{config}}}"), &attempt);
        assert_eq!(charged, listed, "{config}");
        let found: Vec<&str> = listed.iter().map(|(name, ..)| name.as_str()).collect();
        assert_eq!(found, names, "{config}");
    }
}
