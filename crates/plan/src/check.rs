//! Checks the ranges of a plan, once, on construction.

use std::collections::HashSet;
use std::fmt;

use weir_algorithms::{Breach, Setting};

use super::{
    AMOUNT_MAX, Algorithm, KEY_BYTES_MAX, LIMITS_MAX, Limit, MEMBERS_MAX, NAME_BYTES_MAX, Role,
};

/// A field of a plan that is out of range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanError {
    /// The field's path, such as `limits[0].cost`.
    pub field: String,
    /// The value found, shortened if it is long.
    pub found: String,
    /// What is allowed.
    pub expected: String,
}

impl fmt::Display for PlanError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}: found {}, expected {}", self.field, self.found, self.expected)
    }
}

impl std::error::Error for PlanError {}

/// How often a limit's name may be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Names {
    AreUnique,
    AreUniqueByKey,
}

pub(super) fn limits(limits: &[Limit], unique: Names) -> Result<(), PlanError> {
    if limits.is_empty() || limits.len() > LIMITS_MAX {
        return Err(PlanError {
            field: "limits".into(),
            found: format!("{} limits", limits.len()),
            expected: "1 to 16 limits".into(),
        });
    }
    let mut names = HashSet::with_capacity(limits.len());
    let mut queues = false;
    for (index, limit) in limits.iter().enumerate() {
        let at = |field: &str, found: String, expected: &str| PlanError {
            field: format!("limits[{index}].{field}"),
            found,
            expected: expected.into(),
        };
        let name = limit.name.as_bytes();
        let plain = name.iter().all(|byte| {
            byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"._-".contains(byte)
        });
        if name.is_empty() || name.len() > NAME_BYTES_MAX || !plain {
            return Err(at("name", shown(&limit.name), "1 to 64 of a-z 0-9 . _ -"));
        }
        let key = if unique == Names::AreUniqueByKey { limit.key.as_str() } else { "" };
        if !names.insert((limit.name.as_str(), key)) {
            return Err(at(
                "name",
                shown(&limit.name),
                "a name that no other limit of the plan has",
            ));
        }
        if limit.key.len() > KEY_BYTES_MAX {
            return Err(at("key", format!("{} bytes", limit.key.len()), "at most 4096 bytes"));
        }
        if limit.tag.as_ref().is_some_and(|tag| tag.len() > KEY_BYTES_MAX) {
            return Err(at("tag", "more than 4096 bytes".into(), "at most 4096 bytes"));
        }
        if limit.cost > AMOUNT_MAX {
            return Err(at("cost", limit.cost.to_string(), "at most 4503599627370496"));
        }
        if limit.algorithm.keeps_members() && limit.cost > MEMBERS_MAX {
            return Err(at(
                "cost",
                limit.cost.to_string(),
                "at most 10000: each unit is a member of its own",
            ));
        }
        if limit.algorithm.queues() && std::mem::replace(&mut queues, true) {
            return Err(at(
                "algorithm",
                format!("a second {}", limit.algorithm.name()),
                "at most one in a plan: a request waits once",
            ));
        }
        if let Some(breach) = limit.algorithm.breaches().into_iter().next() {
            let expected = expected(&limit.algorithm, &breach);
            return Err(at(field_of(&limit.algorithm, breach.setting), breach.found, &expected));
        }
        if let Some(lease) = limit.lease.filter(|_| !limit.algorithm.refuses_all()) {
            if lease.units_max == Some(0) {
                return Err(at("lease.units", "0".into(), "at least 1"));
            }
            if let Err(expected) = limit.algorithm.leased(lease) {
                return Err(at("lease", format!("{} ms", lease.life_ms), &expected));
            }
        }
    }
    roles(limits)
}

/// Each child has its assured limit and its parent, and these belong to one child.
fn roles(limits: &[Limit]) -> Result<(), PlanError> {
    let mut joined = 0;
    for (index, limit) in limits.iter().enumerate() {
        let Role::Child { assured, parent } = limit.role else { continue };
        for (at, role, field) in
            [(assured, Role::Assured, "assured"), (parent, Role::Parent, "parent")]
        {
            let wrong = |found: String, expected: &str| PlanError {
                field: format!("limits[{index}].{field}"),
                found,
                expected: expected.into(),
            };
            let part = limits.get(usize::from(at)).filter(|part| part.role == role);
            let Some(part) = part else {
                return Err(wrong(at.to_string(), "a limit of the plan with that role"));
            };
            // A parent that is leased is not asked with its children.
            let is_apart = role == Role::Parent && part.lease.is_some();
            if !is_apart && part.tag_or_key() != limit.tag_or_key() {
                return Err(wrong(shown(part.tag_or_key()), "the tag of the child"));
            }
            if part.algorithm.as_parent().is_none() {
                let expected = "fixed_window, sliding_window_counter, quota, token_bucket, gcra or concurrency";
                return Err(wrong(part.algorithm.name().to_owned(), expected));
            }
            joined += 1;
        }
    }
    let parts = || limits.iter().filter(|limit| matches!(limit.role, Role::Assured | Role::Parent));
    if parts().count() != joined {
        let names: Vec<&str> = parts().map(|limit| limit.name.as_str()).collect();
        return Err(PlanError {
            field: "limits".into(),
            found: shown(&names.join(", ")),
            expected: "each assured limit and each parent to be of one child".into(),
        });
    }
    let leased = |limit: &&Limit| {
        matches!(limit.role, Role::Child { .. } | Role::Assured) && limit.lease.is_some()
    };
    let handed_out = |limit: &&Limit| {
        limit.role == Role::Parent && limit.lease.is_some_and(|lease| lease.to_callers)
    };
    if let Some(limit) = limits.iter().find(handed_out) {
        return Err(PlanError {
            field: "limits".into(),
            found: format!("{} with children and a lease to callers", shown(&limit.name)),
            expected: "no children: callers know only the whole".into(),
        });
    }
    let in_places = |limit: &&Limit| {
        limit.role == Role::Parent && limit.lease.is_some() && limit.algorithm.holds()
    };
    if let Some(limit) = limits.iter().find(in_places) {
        return Err(PlanError {
            field: "limits".into(),
            found: format!("a lease of {}, a concurrency with children", shown(&limit.name)),
            expected: "no lease: what is owed of places never comes back".into(),
        });
    }
    match limits.iter().find(leased) {
        Some(limit) => Err(PlanError {
            field: "limits".into(),
            found: format!("a lease of {}", shown(&limit.name)),
            expected: "no lease on a limit with a parent: the parent may be leased".into(),
        }),
        None => Ok(()),
    }
}

/// The path of a setting in the WIT contract.
fn field_of(algorithm: &Algorithm, setting: Setting) -> &'static str {
    match setting {
        Setting::Quota if algorithm.rate().is_some() => "algorithm.rate.amount",
        Setting::Quota => "algorithm.amount",
        Setting::Period => "algorithm.rate.per-ms",
        Setting::Burst => "algorithm.burst",
        Setting::Alignment => "algorithm.alignment",
        Setting::Buckets => "algorithm.buckets",
        Setting::MaxDelay => "algorithm.max-delay-ms",
        Setting::Calendar => "algorithm.calendar",
        Setting::TimeZone => "algorithm.time-zone",
        Setting::AnchorDay => "algorithm.anchor-day",
        Setting::Conditional => "algorithm.conditional",
        Setting::Script => "algorithm.name",
        Setting::Arguments => "algorithm.arguments",
        Setting::Debt => "debt",
    }
}

fn expected(algorithm: &Algorithm, breach: &Breach) -> String {
    match algorithm.rate().filter(|_| breach.with_period) {
        Some(rate) => format!("{} {} ms", breach.expected, rate.per_ms),
        None => breach.expected.clone(),
    }
}

/// The first 40 characters of a guest's text, escaped: it may be long and hostile.
fn shown(text: &str) -> String {
    format!("{:?}", text.chars().take(40).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::super::{Alignment, Calendar, PERIOD_MS_MAX, Plan, Rate};
    use super::*;
    use crate::{
        Concurrency, Debt, FixedWindow, Gcra, LeakyBucket, Lease, Quota, Script,
        SlidingWindowBuckets, SlidingWindowCounter, SlidingWindowLog,
    };

    fn limit(amount: u64, per_ms: u64) -> Limit {
        Limit::new(
            "a",
            "k",
            Algorithm::FixedWindow(FixedWindow {
                rate: Rate { amount, per_ms },
                alignment: Alignment::Clock,
                debt: Debt::None,
            }),
        )
    }

    fn field(limits: Vec<Limit>) -> String {
        Plan::new(limits).unwrap_err().field
    }

    #[test]
    fn each_field_out_of_range_is_named() {
        assert_eq!(field(vec![]), "limits");
        assert_eq!(field(vec![limit(1, 1); 17]), "limits");
        assert_eq!(field(vec![limit(1, 1), limit(1, 1)]), "limits[1].name");
        assert_eq!(field(vec![Limit { name: "{x}".into(), ..limit(1, 1) }]), "limits[0].name");
        assert_eq!(field(vec![Limit { key: "k".repeat(4097), ..limit(1, 1) }]), "limits[0].key");
        assert_eq!(
            field(vec![Limit { tag: Some("k".repeat(4097)), ..limit(1, 1) }]),
            "limits[0].tag"
        );
        assert_eq!(field(vec![Limit { cost: AMOUNT_MAX + 1, ..limit(1, 1) }]), "limits[0].cost");
        assert_eq!(field(vec![limit(AMOUNT_MAX + 1, 1)]), "limits[0].algorithm.rate.amount");
        assert_eq!(field(vec![limit(1, 0)]), "limits[0].algorithm.rate.per-ms");
        assert_eq!(field(vec![limit(1, PERIOD_MS_MAX + 1)]), "limits[0].algorithm.rate.per-ms");
    }

    fn of(algorithm: Algorithm) -> Limit {
        Limit::new("a", "k", algorithm)
    }

    #[test]
    fn a_joined_plan_may_have_a_name_with_several_keys() {
        let of = |key: &str| Limit { key: key.to_owned(), ..limit(1, 1) };
        assert_eq!(Plan::joined(vec![of("k"), of("l")]).err(), None);
        let twice = Plan::joined(vec![of("k"), of("l"), of("k")]).unwrap_err();
        assert_eq!(twice.field, "limits[2].name");
    }

    #[test]
    fn each_algorithms_own_ranges_are_held() {
        let rate = |amount, per_ms| Rate { amount, per_ms };
        let leaky = |max_delay_ms| {
            of(Algorithm::LeakyBucket(LeakyBucket {
                burst: 5,
                rate: rate(1_000_003, 1_000),
                max_delay_ms,
            }))
        };
        let buckets = |buckets| {
            of(Algorithm::SlidingWindowBuckets(SlidingWindowBuckets {
                rate: rate(5, 1),
                buckets,
                debt: Debt::None,
            }))
        };
        let script = |arguments: &[i64]| {
            of(Algorithm::Script(Script {
                name: "s".into(),
                arguments: arguments.iter().copied().collect(),
            }))
        };
        for (limits, expected) in [
            (
                vec![of(Algorithm::SlidingWindowLog(SlidingWindowLog {
                    rate: rate(10_001, 1),
                    debt: Debt::None,
                }))],
                "limits[0].algorithm.rate.amount",
            ),
            (
                vec![Limit {
                    cost: 10_001,
                    ..of(Algorithm::Concurrency(Concurrency { amount: 5 }))
                }],
                "limits[0].cost",
            ),
            (
                vec![of(Algorithm::Concurrency(Concurrency { amount: AMOUNT_MAX + 1 }))],
                "limits[0].algorithm.amount",
            ),
            (vec![buckets(0)], "limits[0].algorithm.buckets"),
            (vec![buckets(1_001)], "limits[0].algorithm.buckets"),
            (vec![leaky(1 << 25)], "limits[0].algorithm.max-delay-ms"),
            (vec![leaky(PERIOD_MS_MAX + 1)], "limits[0].algorithm.max-delay-ms"),
            (vec![leaky(1), Limit { name: "b".into(), ..leaky(1) }], "limits[1].algorithm"),
            (vec![script(&[0; 7])], "limits[0].algorithm.arguments"),
            (vec![script(&[i64::MIN])], "limits[0].algorithm.arguments"),
        ] {
            assert_eq!(field(limits), expected);
        }
        for limit in [
            buckets(1_000),
            leaky(1_000),
            script(&[-(1 << 53), 1 << 53]),
            of(Algorithm::SlidingWindowLog(SlidingWindowLog {
                rate: rate(10_000, 1),
                debt: Debt::None,
            })),
        ] {
            assert_eq!(Plan::new(vec![limit]).err(), None);
        }
    }

    #[test]
    fn large_amounts_and_debts_have_their_ranges() {
        const DAY_MS: u64 = 86_400_000;
        let rate = |amount, per_ms| Rate { amount, per_ms };
        // A day: a prime number of units has no factor in common with it.
        let gcra = |burst, per_ms, debt| {
            of(Algorithm::Gcra(Gcra { burst, rate: rate(burst, per_ms), debt }))
        };
        let fixed = |amount, debt| {
            let (rate, alignment) = (rate(amount, DAY_MS), Alignment::Clock);
            of(Algorithm::FixedWindow(FixedWindow { rate, alignment, debt }))
        };
        let quota = |amount| {
            let (calendar, debt) = (Calendar::Forever, Debt::None);
            Algorithm::Quota(Quota { amount, calendar, conditional: true, debt })
        };
        let counter = Algorithm::SlidingWindowCounter(SlidingWindowCounter {
            rate: rate(AMOUNT_MAX, PERIOD_MS_MAX),
            debt: Debt::None,
        });
        for (limits, expected) in [
            (vec![gcra(1_000_000_007, DAY_MS, Debt::None)], "limits[0].algorithm.burst"),
            (vec![gcra(50_000_017, DAY_MS, Debt::Allowance)], "limits[0].debt"),
            (vec![fixed(5, Debt::Units(5 * 400 + 1))], "limits[0].debt"),
            (vec![of(quota(5).with_debt(Debt::Units(6)).unwrap())], "limits[0].debt"),
            (vec![of(counter.clone().with_debt(Debt::Window).unwrap())], "limits[0].debt"),
        ] {
            assert_eq!(field(limits), expected);
        }
        for limit in [
            gcra(1_000_000_000, DAY_MS, Debt::Allowance),
            gcra(52_000_000, DAY_MS, Debt::None),
            fixed(5, Debt::Units(5 * 400)),
            fixed(AMOUNT_MAX, Debt::None),
            fixed(AMOUNT_MAX / 2, Debt::Window),
            of(quota(AMOUNT_MAX)),
            of(quota(5).with_debt(Debt::Units(5)).unwrap()),
            of(counter),
        ] {
            assert_eq!(Plan::new(vec![limit]).err(), None);
        }
    }

    #[test]
    fn a_lease_has_to_fit_its_algorithm() {
        let leased = |limit: Limit, lease| Limit { lease: Some(lease), ..limit };
        let window = |life_ms| leased(limit(5, 1_000), Lease::of_ms(life_ms));
        assert_eq!(field(vec![window(1_000)]), "limits[0].lease");
        assert_eq!(Plan::new(vec![window(200)]).err(), None);
        let none = Lease { units_max: Some(0), ..Lease::of_ms(200) };
        assert_eq!(field(vec![leased(limit(5, 1_000), none)]), "limits[0].lease.units");
        // It refuses everything, whatever its leases.
        let refusing = leased(limit(0, 1_000), Lease::of_ms(1_000));
        assert_eq!(refusing.leased(), None);
        // Of places only without children.
        let places = |role| Limit {
            role,
            ..leased(
                Limit::new("places", "k", Concurrency { amount: 5 }.into()),
                Lease::of_ms(1_000),
            )
        };
        assert_eq!(Plan::new(vec![places(Role::Alone)]).err(), None);
        let part =
            |name, role| Limit { role, ..Limit::new(name, "k", Concurrency { amount: 2 }.into()) };
        let child = part("child", Role::Child { assured: 1, parent: 2 });
        let family = vec![child, part("child.assured", Role::Assured), places(Role::Parent)];
        assert!(Plan::new(family).unwrap_err().found.starts_with("a lease of \"places\""));
        assert_eq!(Plan::new(vec![refusing]).err(), None);
    }

    #[test]
    fn the_bounds_of_each_range_are_allowed() {
        assert!(Plan::new(vec![limit(0, 1)]).is_ok());
        assert!(Plan::new(vec![limit(AMOUNT_MAX, 1)]).is_ok());
        assert!(Plan::new(vec![limit(100_000, PERIOD_MS_MAX)]).is_ok());
        assert!(Plan::new(vec![Limit { key: "k".repeat(4096), cost: 0, ..limit(1, 1) }]).is_ok());
    }
}
