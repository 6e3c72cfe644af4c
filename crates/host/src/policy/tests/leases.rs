//! Leases as policies write them.

use super::*;
use crate::plan::{Bound, Lease};

fn with_lease(limit: &str, lease: &str) -> Settings {
    let limits = format!(r#"{{"limits": [{{"name": "a", {limit}, "lease": {lease}}}]}}"#);
    settings(shipped("client-ip"), &limits)
}

const GCRA: &str = r#""algorithm": "gcra", "quota": 1000, "period": "1s", "burst": 300"#;

#[test]
fn a_limit_is_leased_as_it_is_written_and_declared() {
    for (written, expected) in [
        (r#""200ms""#, Lease::of_ms(200)),
        (
            r#"{"life": "1s", "units": 9, "strict": false}"#,
            Lease { units_max: Some(9), bound: Bound::Loose, ..Lease::of_ms(1_000) },
        ),
        (
            r#"{"life": "2s", "callers": true, "strict": false}"#,
            Lease { bound: Bound::Loose, to_callers: true, ..Lease::of_ms(2_000) },
        ),
    ] {
        let limit = if expected.bound == Bound::Loose {
            r#""algorithm": "token_bucket", "quota": 100, "period": "1s", "burst": 300"#
        } else {
            GCRA
        };
        let policy = build(&with_lease(limit, written)).unwrap();
        let decision = policy.decide(&[("client-ip", "192.0.2.1")]).unwrap();
        assert_eq!(plan(&decision).limits()[0].lease, Some(expected));
        assert_eq!(policy.limits()[0].lease, Some(expected));
    }
}

#[test]
fn a_lease_that_its_limit_cannot_have_is_an_error_at_its_place() {
    let leaky = r#""algorithm": "leaky_bucket", "quota": 5, "period": "1s", "max_delay": "1s""#;
    let costly = r#""algorithm": "gcra", "quota": 1000, "period": "1s", "burst": 300, "cost": 150"#;
    let places = r#""algorithm": "concurrency", "quota": 9"#;
    let family = format!(r#"{places}, "children": {{"key": "{{path}}", "assured": 2}}"#);
    for (limit, lease, found, expected) in [
        (GCRA, r#""300ms""#, "300 ms", "at most 298.940 ms: the burst is reduced by"),
        (GCRA, r#""2m""#, "120000 ms", "a duration from \"1ms\" to \"1m\", such as"),
        (GCRA, r#"{"life": "1ms", "units": 0}"#, "0 units", "at least 1"),
        (GCRA, r#"{"life": "1s", "callers": true}"#, "1000 ms", "a duration from \"2s\" to"),
        (leaky, r#""10ms""#, "10 ms", "nothing: leaky_bucket has no leases"),
        (&family, r#""200ms""#, "200 ms", "nothing: a concurrency with children has no leases"),
        (places, r#"{"life": "2s", "callers": true}"#, "2000 ms", "nothing: a place is given back"),
        (costly, r#""200ms""#, "200 ms", "less: with it at most 99 units could pass at once"),
    ] {
        let errors = build(&with_lease(limit, lease)).unwrap_err();
        assert_eq!(errors.len(), 1, "{errors:?}");
        assert_eq!(errors[0].setting, "config.limits[0].lease");
        assert_eq!(errors[0].found, found);
        assert!(errors[0].expected.starts_with(expected), "{errors:?}");
    }
    assert!(build(&with_lease(places, r#""200ms""#)).is_ok());
    // It refuses everything, leased or not.
    let none = r#""algorithm": "gcra", "quota": 0, "period": "1s""#;
    assert!(build(&with_lease(none, r#""200ms""#)).is_ok());
}
