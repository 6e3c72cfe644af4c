//! Which key is on which plan: sorted digests, so that a hundred thousand customers fit into a few
//! megabytes.

use std::fmt;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};
use weir_policy::{DIGEST_EXPECTED, Digest, Mistakes, PlanTable};

/// Maximum number of assigned keys.
const KEYS_MAX: usize = 1_000_000;

/// Keys by digest, and the plan of each.
#[derive(Debug, Default)]
pub(crate) struct Assign {
    /// Sorted by digest. The number is an index into `names`, or, once resolved, into the policy's
    /// plans.
    keys: Vec<(Digest, u16)>,
    /// The names of the plans as they are written here, each once.
    names: Vec<String>,
    /// Mistakes in the keys: reported together with those in the plans.
    mistakes: Mistakes,
}

impl Assign {
    /// Replaces indices into `names` by indices into the policy's plans. Adds the mistakes
    /// in keys and names to `mistakes`.
    pub(crate) fn resolve(&mut self, plans: &PlanTable, mistakes: &mut Mistakes) {
        mistakes.append(std::mem::take(&mut self.mistakes));
        let indices: Vec<Option<u16>> = self
            .names
            .iter()
            .map(|name| plans.find(name).and_then(|plan| u16::try_from(plan).ok()))
            .collect();
        for (digest, plan) in &mut self.keys {
            let named = usize::from(*plan);
            match indices.get(named).copied().flatten() {
                Some(index) => *plan = index,
                None => {
                    let name = self.names.get(named).map_or("", String::as_str);
                    mistakes.add(
                        format!("assign.{digest}"),
                        format_args!("{name:?}"),
                        plans.expected(),
                    );
                }
            }
        }
        self.names = Vec::new();
    }

    /// The plan of a key.
    pub(crate) fn plan_of(&self, digest: Digest) -> Option<usize> {
        let at = self.keys.binary_search_by_key(&digest, |(known, _)| *known).ok()?;
        self.keys.get(at).map(|(_, plan)| usize::from(*plan))
    }
}

impl<'de> Deserialize<'de> for Assign {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Table)
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
        // Usually the same as the previous one.
        let mut last = 0;
        while let Some((key, plan)) = map.next_entry::<String, String>()? {
            if assign.keys.len() >= KEYS_MAX {
                assign.mistakes.add("assign", format_args!("more than {KEYS_MAX} keys"), "fewer");
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
                // The text itself is not shown: it may be a key.
                (None, _) => assign.mistakes.add(
                    format!("assign.{key}"),
                    format_args!(
                        "the key of {} characters, which is no digest",
                        key.chars().count()
                    ),
                    DIGEST_EXPECTED,
                ),
                (_, Err(_)) => assign.mistakes.add(
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
                assign.mistakes.add(
                    format!("assign.{one}"),
                    "the key a second time",
                    "each key once, its digits in lower case",
                );
            }
        }
        Ok(assign)
    }
}
