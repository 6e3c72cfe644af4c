//! Which key is on which plan: sorted digests, so that a hundred thousand customers fit into a few
//! megabytes.

use std::fmt;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};
use weir_policy::{DIGEST_EXPECTED, Digest, Mistakes};

/// Assigned keys, at most.
const KEYS_MAX: usize = 1_000_000;

/// Keys by digest, and the plan that each is on.
#[derive(Debug, Default)]
pub(crate) struct Assign {
    /// In the order of the digests; a plan's place among `names`, or, once resolved, among the
    /// policy's plans.
    keys: Vec<(Digest, u16)>,
    /// Plans as they are named here, each once.
    names: Vec<String>,
    /// What is wrong with the keys: told together with what is wrong with the plans.
    unfit: Mistakes,
}

impl Assign {
    /// Puts the plans' places in the place of their names, and tells what is wrong with either.
    pub(crate) fn resolve(
        &mut self,
        place: impl Fn(&str) -> Option<usize>,
        known: impl Fn() -> String,
        mistakes: &mut Mistakes,
    ) {
        mistakes.append(std::mem::take(&mut self.unfit));
        let places: Vec<Option<u16>> = self
            .names
            .iter()
            .map(|name| place(name).and_then(|place| u16::try_from(place).ok()))
            .collect();
        for (digest, plan) in &mut self.keys {
            let named = usize::from(*plan);
            match places.get(named).copied().flatten() {
                Some(place) => *plan = place,
                None => {
                    let name = self.names.get(named).map_or("", String::as_str);
                    mistakes.add(format!("assign.{digest}"), format_args!("{name:?}"), known());
                }
            }
        }
        self.names = Vec::new();
    }

    /// The plan that a key is on.
    pub(crate) fn plan_of(&self, digest: Digest) -> Option<usize> {
        let at = self.keys.binary_search_by_key(&digest, |(known, _)| *known).ok()?;
        self.keys.get(at).map(|(_, plan)| usize::from(*plan))
    }
}

impl<'de> Deserialize<'de> for Assign {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Table)
    }
}

struct Table;

impl<'de> Visitor<'de> for Table {
    type Value = Assign;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a table of keys' digests and plans, such as { \"sha256:HEX\" = \"gold\" }")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Assign, M::Error> {
        let mut assign = Assign::default();
        // Mostly the same as the one before.
        let mut last = 0;
        while let Some((key, plan)) = map.next_entry::<String, String>()? {
            if assign.keys.len() >= KEYS_MAX {
                assign.unfit.add("assign", format_args!("more than {KEYS_MAX} keys"), "fewer");
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                break;
            }
            if assign.names.get(last) != Some(&plan) {
                last = assign
                    .names
                    .iter()
                    .position(|name| *name == plan)
                    .unwrap_or(assign.names.len());
                if last == assign.names.len() {
                    assign.names.push(plan);
                }
            }
            match (Digest::parse(&key), u16::try_from(last)) {
                (Some(digest), Ok(plan)) => assign.keys.push((digest, plan)),
                // Not the key itself: it may be one.
                (None, _) => assign.unfit.add(
                    format!("assign.{key}"),
                    format_args!(
                        "the key of {} characters, which is no digest",
                        key.chars().count()
                    ),
                    DIGEST_EXPECTED,
                ),
                (_, Err(_)) => assign.unfit.add(
                    format!("assign.{key}"),
                    "yet another plan",
                    "at most 65536 names of plans",
                ),
            }
        }
        assign.keys.sort_unstable();
        for pair in assign.keys.windows(2) {
            if let [(one, _), (two, _)] = pair
                && one == two
            {
                assign.unfit.add(
                    format!("assign.{one}"),
                    "the key a second time",
                    "each key once, its digits in lower case",
                );
            }
        }
        Ok(assign)
    }
}
