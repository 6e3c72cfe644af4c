//! Lists of statuses: `[200, 302]`, `["2xx", 302]`.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use weir_policy::Json;

const EXPECTED: &str = "statuses from 200 to 599 or their classes, such as [200, 204] or [\"4xx\"]";
const FIRST: u16 = 200;
const LAST: u16 = 599;

/// Statuses of replies. Use it as the type of a setting.
#[derive(Debug)]
pub(crate) struct Statuses(Vec<(u16, u16)>);

impl Statuses {
    pub(crate) fn has(&self, status: u16) -> bool {
        self.0.iter().any(|(first, last)| (*first..=*last).contains(&status))
    }

    /// The first status that is in both.
    pub(crate) fn first_also_in(&self, other: &Self) -> Option<u16> {
        (FIRST..=LAST).find(|status| self.has(*status) && other.has(*status))
    }
}

impl<'de> Deserialize<'de> for Statuses {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Json::deserialize(deserializer)?;
        let wrong =
            |found: &Json<'_>| D::Error::custom(format_args!("found {found}, expected {EXPECTED}"));
        let mut ranges = Vec::new();
        for item in value.items() {
            ranges.push(range(&item).ok_or_else(|| wrong(&item))?);
        }
        if ranges.is_empty() { Err(wrong(&value)) } else { Ok(Self(ranges)) }
    }
}

fn range(item: &Json<'_>) -> Option<(u16, u16)> {
    let (first, others) = match item.as_str() {
        Some(class) => (100 * class.strip_suffix("xx")?.parse::<u16>().ok()?, 99),
        None => (u16::try_from(item.as_u64()?).ok()?, 0),
    };
    (FIRST..=LAST).contains(&first).then_some((first, first + others))
}
