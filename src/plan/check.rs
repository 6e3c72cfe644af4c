//! The ranges of a plan, checked once when it is made, so that nobody checks again.

use std::collections::HashSet;
use std::fmt;

use super::{
    AMOUNT_MAX, ARGUMENT_MAX, ARGUMENTS_MAX, Algorithm, BUCKETS_MAX, BURST_PERIOD_MAX,
    KEY_BYTES_MAX, LIMITS_MAX, Limit, MEMBERS_MAX, NAME_BYTES_MAX, PERIOD_MS_MAX, Rate,
};

/// The field, what was found there, what may stand there.
type Breach = (&'static str, String, &'static str);

/// A field of a plan that is out of range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invalid {
    /// Where: `limits[0].cost`.
    pub field: String,
    /// What stood there, shortened where it is long.
    pub found: String,
    /// What may stand there.
    pub expected: &'static str,
}

impl fmt::Display for Invalid {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}: found {}, expected {}", self.field, self.found, self.expected)
    }
}

impl std::error::Error for Invalid {}

pub(super) fn limits(limits: &[Limit]) -> Result<(), Invalid> {
    if limits.is_empty() || limits.len() > LIMITS_MAX {
        return Err(Invalid {
            field: "limits".into(),
            found: format!("{} limits", limits.len()),
            expected: "1 to 16 limits",
        });
    }
    let mut names = HashSet::with_capacity(limits.len());
    let mut shapes = false;
    for (index, limit) in limits.iter().enumerate() {
        let at = |field: &str, found: String, expected| Invalid {
            field: format!("limits[{index}].{field}"),
            found,
            expected,
        };
        let name = limit.name.as_bytes();
        let plain = name.iter().all(|byte| {
            byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"._-".contains(byte)
        });
        if name.is_empty() || name.len() > NAME_BYTES_MAX || !plain {
            return Err(at("name", shown(&limit.name), "1 to 64 of a-z 0-9 . _ -"));
        }
        if !names.insert(limit.name.as_str()) {
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
            return Err(at("cost", limit.cost.to_string(), "at most 2147483648"));
        }
        let members = matches!(
            limit.algorithm,
            Algorithm::SlidingWindowLog { .. } | Algorithm::Concurrency { .. }
        );
        if members && limit.cost > MEMBERS_MAX {
            return Err(at(
                "cost",
                limit.cost.to_string(),
                "at most 10000: each unit is a member of its own",
            ));
        }
        if matches!(limit.algorithm, Algorithm::LeakyBucket { .. })
            && std::mem::replace(&mut shapes, true)
        {
            return Err(at(
                "algorithm",
                "a second leaky-bucket".into(),
                "at most one in a plan: a request waits once",
            ));
        }
        algorithm(&limit.algorithm)
            .map_err(|(field, found, expected)| at(field, found, expected))?;
    }
    Ok(())
}

fn algorithm(algorithm: &Algorithm) -> Result<(), Breach> {
    if algorithm.amount().is_some_and(|amount| amount > AMOUNT_MAX) {
        let field =
            if algorithm.rate().is_some() { "algorithm.rate.amount" } else { "algorithm.amount" };
        return Err((
            field,
            algorithm.amount().unwrap_or_default().to_string(),
            "at most 2147483648",
        ));
    }
    if let Some(rate) = algorithm.rate() {
        of_a_rate(algorithm, rate)?;
    }
    match algorithm {
        Algorithm::SlidingWindowLog { rate } if rate.amount > MEMBERS_MAX => Err((
            "algorithm.rate.amount",
            rate.amount.to_string(),
            "at most 10000: a log remembers each unit",
        )),
        Algorithm::SlidingWindowBuckets { buckets: 0, .. } => {
            Err(("algorithm.buckets", "0".into(), "1 to 1000"))
        }
        Algorithm::SlidingWindowBuckets { buckets, .. } if *buckets > BUCKETS_MAX => {
            Err(("algorithm.buckets", buckets.to_string(), "1 to 1000"))
        }
        Algorithm::SlidingWindowBuckets { buckets, rate }
            if u64::from(*buckets) > rate.period_units() =>
        {
            Err((
                "algorithm.buckets",
                buckets.to_string(),
                "sub-windows of at least a microsecond (a millisecond above an hour)",
            ))
        }
        Algorithm::Script { arguments, .. } if arguments.len() > ARGUMENTS_MAX => {
            Err(("algorithm.arguments", format!("{} of them", arguments.len()), "at most 6"))
        }
        Algorithm::Script { arguments, .. }
            if arguments.iter().any(|argument| argument.unsigned_abs() > ARGUMENT_MAX) =>
        {
            Err(("algorithm.arguments", "a larger number".into(), "at most 2^53 either way"))
        }
        _ => Ok(()),
    }
}

fn of_a_rate(algorithm: &Algorithm, rate: Rate) -> Result<(), Breach> {
    if rate.per_ms == 0 || rate.per_ms > PERIOD_MS_MAX {
        return Err(("algorithm.rate.per-ms", rate.per_ms.to_string(), "1 ms to 400 days"));
    }
    let burst = algorithm.capacity().unwrap_or_default();
    if burst > AMOUNT_MAX {
        return Err(("algorithm.burst", burst.to_string(), "at most 2147483648"));
    }
    if burst.checked_mul(rate.period_units()).is_none_or(|product| product > BURST_PERIOD_MAX) {
        let found = format!("{burst} in {} ms", rate.per_ms);
        return Err((
            "algorithm.burst",
            found,
            "burst x period of at most 2^52, in microseconds up to an hour and in milliseconds above",
        ));
    }
    let Algorithm::LeakyBucket { max_delay_ms, .. } = algorithm else { return Ok(()) };
    if *max_delay_ms > PERIOD_MS_MAX {
        return Err(("algorithm.max-delay-ms", max_delay_ms.to_string(), "at most 400 days"));
    }
    // What may wait is debt like the burst: both together stay a whole number.
    let waiting = (max_delay_ms * (1000 / rate.unit_us())).checked_mul(rate.amount);
    let whole = waiting.and_then(|waiting| waiting.checked_add(burst * rate.period_units()));
    if whole.is_none_or(|whole| whole > BURST_PERIOD_MAX) {
        let found = format!("{max_delay_ms} ms with {} in {} ms", rate.amount, rate.per_ms);
        return Err((
            "algorithm.max-delay-ms",
            found,
            "burst x period + amount x max-delay of at most 2^52",
        ));
    }
    Ok(())
}

/// A guest's text may be long and hostile: 40 characters of it, escaped.
fn shown(text: &str) -> String {
    format!("{:?}", text.chars().take(40).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::super::{Alignment, Plan, Rate};
    use super::*;

    fn limit(amount: u64, per_ms: u64) -> Limit {
        Limit::new(
            "a",
            "k",
            Algorithm::FixedWindow { rate: Rate { amount, per_ms }, alignment: Alignment::Clock },
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
        assert_eq!(field(vec![limit(AMOUNT_MAX, 3_600_000)]), "limits[0].algorithm.burst");
    }

    fn of(algorithm: Algorithm) -> Limit {
        Limit::new("a", "k", algorithm)
    }

    #[test]
    fn each_algorithms_own_ranges_are_held() {
        let rate = |amount, per_ms| Rate { amount, per_ms };
        let leaky = |max_delay_ms| {
            of(Algorithm::LeakyBucket { burst: 5, rate: rate(1 << 20, 1_000), max_delay_ms })
        };
        let buckets = |buckets| of(Algorithm::SlidingWindowBuckets { rate: rate(5, 1), buckets });
        let script = |arguments: &[i64]| {
            of(Algorithm::Script {
                name: "s".into(),
                arguments: arguments.iter().copied().collect(),
            })
        };
        for (limits, expected) in [
            (
                vec![of(Algorithm::SlidingWindowLog { rate: rate(10_001, 1) })],
                "limits[0].algorithm.rate.amount",
            ),
            (
                vec![Limit { cost: 10_001, ..of(Algorithm::Concurrency { amount: 5 }) }],
                "limits[0].cost",
            ),
            (
                vec![of(Algorithm::Concurrency { amount: AMOUNT_MAX + 1 })],
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
            of(Algorithm::SlidingWindowLog { rate: rate(10_000, 1) }),
        ] {
            assert_eq!(Plan::new(vec![limit]).err(), None);
        }
    }

    #[test]
    fn the_edges_of_each_range_are_inside() {
        assert!(Plan::new(vec![limit(0, 1)]).is_ok());
        assert!(Plan::new(vec![limit(AMOUNT_MAX, 1)]).is_ok());
        assert!(Plan::new(vec![limit(100_000, PERIOD_MS_MAX)]).is_ok());
        assert!(Plan::new(vec![Limit { key: "k".repeat(4096), cost: 0, ..limit(1, 1) }]).is_ok());
    }
}
