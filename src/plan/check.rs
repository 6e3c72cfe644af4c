//! The ranges of a plan, checked once when it is made, so that nobody checks again.

use std::collections::HashSet;
use std::fmt;

use super::{AMOUNT_MAX, Algorithm, BURST_PERIOD_MAX, KEY_BYTES_MAX, LIMITS_MAX, Limit, NAME_BYTES_MAX, PERIOD_MS_MAX};

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
        return Err(Invalid { field: "limits".into(), found: format!("{} limits", limits.len()), expected: "1 to 16 limits" });
    }
    let mut names = HashSet::with_capacity(limits.len());
    for (index, limit) in limits.iter().enumerate() {
        let at = |field: &str, found: String, expected| Invalid { field: format!("limits[{index}].{field}"), found, expected };
        let name = limit.name.as_bytes();
        let plain = name.iter().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"._-".contains(byte));
        if name.is_empty() || name.len() > NAME_BYTES_MAX || !plain {
            return Err(at("name", shown(&limit.name), "1 to 64 of a-z 0-9 . _ -"));
        }
        if !names.insert(limit.name.as_str()) {
            return Err(at("name", shown(&limit.name), "a name that no other limit of the plan has"));
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
        algorithm(&limit.algorithm).map_err(|(field, found, expected)| at(field, found, expected))?;
    }
    Ok(())
}

fn algorithm(algorithm: &Algorithm) -> Result<(), (&'static str, String, &'static str)> {
    let rate = algorithm.rate();
    if rate.amount > AMOUNT_MAX {
        return Err(("algorithm.rate.amount", rate.amount.to_string(), "at most 2147483648"));
    }
    if rate.per_ms == 0 || rate.per_ms > PERIOD_MS_MAX {
        return Err(("algorithm.rate.per-ms", rate.per_ms.to_string(), "1 ms to 400 days"));
    }
    let burst = algorithm.capacity();
    if burst > AMOUNT_MAX {
        return Err(("algorithm.burst", burst.to_string(), "at most 2147483648"));
    }
    if burst.checked_mul(rate.period_units()).is_none_or(|product| product > BURST_PERIOD_MAX) {
        let found = format!("{burst} in {} ms", rate.per_ms);
        return Err(("algorithm.burst", found, "burst x period of at most 2^52, in microseconds up to an hour and in milliseconds above"));
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
        Limit::new("a", "k", Algorithm::FixedWindow { rate: Rate { amount, per_ms }, alignment: Alignment::Clock })
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
        assert_eq!(field(vec![Limit { tag: Some("k".repeat(4097)), ..limit(1, 1) }]), "limits[0].tag");
        assert_eq!(field(vec![Limit { cost: AMOUNT_MAX + 1, ..limit(1, 1) }]), "limits[0].cost");
        assert_eq!(field(vec![limit(AMOUNT_MAX + 1, 1)]), "limits[0].algorithm.rate.amount");
        assert_eq!(field(vec![limit(1, 0)]), "limits[0].algorithm.rate.per-ms");
        assert_eq!(field(vec![limit(1, PERIOD_MS_MAX + 1)]), "limits[0].algorithm.rate.per-ms");
        assert_eq!(field(vec![limit(AMOUNT_MAX, 3_600_000)]), "limits[0].algorithm.burst");
    }

    #[test]
    fn the_edges_of_each_range_are_inside() {
        assert!(Plan::new(vec![limit(0, 1)]).is_ok());
        assert!(Plan::new(vec![limit(AMOUNT_MAX, 1)]).is_ok());
        assert!(Plan::new(vec![limit(100_000, PERIOD_MS_MAX)]).is_ok());
        assert!(Plan::new(vec![Limit { key: "k".repeat(4096), cost: 0, ..limit(1, 1) }]).is_ok());
    }
}
