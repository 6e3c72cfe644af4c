//! The limits of each plan that an operator offers: free, gold, partner.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};

use crate::mistakes::Mistakes;
use crate::{Decision, DeclaredLimit, Facts, Ipv6Prefix, Limits, NAME_EXPECTED, is_name};

/// Maximum number of plans.
const PLANS_MAX: usize = 1_000;
/// Maximum number of plans that a message names.
const SHOWN_MAX: usize = 16;
/// The highest priority that the proxy knows.
const PRIORITY_MAX: u8 = 7;

/// The `plans` table of a configuration: a name, and the limits of whoever is on that plan. Use it
/// as the type of a setting, and then [`PlanTable::check`].
///
/// A plan is its place in this table: names are compared when the configuration is read.
#[derive(Clone, Debug, Default)]
pub struct PlanTable {
    /// Sorted by name.
    plans: Vec<Plan>,
    /// How many were written.
    written: usize,
}

#[derive(Clone, Debug)]
struct Plan {
    name: String,
    limits: Limits,
    /// How much its requests matter, if that is said.
    priority: Option<u8>,
}

/// The `priorities` table of a configuration: how much the requests of each plan matter where an
/// upstream can't have all of them at once, 0 to 7. Use it as the type of a setting, and then
/// [`PlanTable::with_priorities`].
#[derive(Clone, Debug, Default, Deserialize)]
pub struct PlanPriorities(BTreeMap<String, i64>);

impl PlanTable {
    /// Adds what is wrong with the setting `plans` to `mistakes`, and gives each plan counters of
    /// its own, even if limits of two plans have the same name or key. `ipv6_prefix` is that of
    /// [`Limits::ipv6_prefix`].
    #[must_use]
    pub fn check(mut self, ipv6_prefix: Ipv6Prefix, mistakes: &mut Mistakes) -> Self {
        if self.written == 0 || self.written > PLANS_MAX {
            let found = format_args!("{} plans", self.written);
            mistakes.add("plans", found, format_args!("1 to {PLANS_MAX}"));
        }
        for Plan { name, limits, .. } in &mut self.plans {
            if !is_name(name) {
                let found = format_args!("the name {name:?}");
                mistakes.add(format!("plans.{name}"), found, NAME_EXPECTED);
            }
            *limits = std::mem::take(limits).in_space(name).ipv6_prefix(ipv6_prefix);
        }
        self
    }

    /// Gives plans their priorities. Adds what is wrong with the setting `priorities` to
    /// `mistakes`.
    #[must_use]
    pub fn with_priorities(mut self, priorities: &PlanPriorities, mistakes: &mut Mistakes) -> Self {
        for (name, written) in &priorities.0 {
            let at = format!("priorities.{name}");
            let priority = u8::try_from(*written).ok().filter(|priority| *priority <= PRIORITY_MAX);
            if priority.is_none() {
                mistakes.add(&at, written, format_args!("0 to {PRIORITY_MAX}"));
            }
            let plan = self.expect(&at, name, mistakes);
            if let Some(plan) = plan.and_then(|plan| self.plans.get_mut(plan)) {
                plan.priority = priority;
            }
        }
        self
    }

    /// The plan with this name.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<usize> {
        self.plans.binary_search_by(|known| known.name.as_str().cmp(name)).ok()
    }

    /// The plan that the setting at `path` names. If there is none, a mistake is added.
    pub fn expect(&self, path: &str, name: &str, mistakes: &mut Mistakes) -> Option<usize> {
        let found = self.find(name);
        if found.is_none() {
            mistakes.add(path, format_args!("{name:?}"), self.expected());
        }
        found
    }

    /// What messages say was expected where a name is not a plan's.
    #[must_use]
    pub fn expected(&self) -> String {
        if self.plans.len() > SHOWN_MAX {
            return "the name of a plan".to_owned();
        }
        let names: Vec<&str> = self.plans.iter().map(|plan| plan.name.as_str()).collect();
        format!("one of the plans `{}`", names.join("`, `"))
    }

    /// A plan's name; empty if there is no such plan.
    #[must_use]
    pub fn name(&self, plan: usize) -> &str {
        self.plans.get(plan).map_or("", |plan| &plan.name)
    }

    /// The facts that the limits of all plans read, for the manifest.
    pub fn facts(&self) -> impl Iterator<Item = &str> {
        self.plans.iter().flat_map(|plan| plan.limits.facts())
    }

    /// All plans' limits as a manifest declares them. `key` is that of [`Limits::declared`].
    pub fn declared(&self, key: &[&str]) -> impl Iterator<Item = DeclaredLimit> {
        let plans = self.plans.iter();
        plans.flat_map(move |Plan { name, limits, .. }| {
            let at = format!("plans.{name}");
            limits.declared(&at, key).collect::<Vec<_>>()
        })
    }

    /// The decision that checks a plan's limits ([`Limits::check`]). Its label `plan` is the name.
    ///
    /// # Errors
    /// There is no such plan.
    pub fn decide(&self, plan: usize, key: &str, facts: &Facts) -> Result<Decision, String> {
        let plan = self.plans.get(plan).ok_or("a plan that is none")?;
        let decision = plan.limits.check(key, facts).label("plan", &plan.name);
        Ok(match plan.priority {
            Some(priority) => decision.priority(priority),
            None => decision,
        })
    }
}

impl<'de> Deserialize<'de> for PlanTable {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Plans)
    }
}

struct Plans;

impl<'de> Visitor<'de> for Plans {
    type Value = PlanTable;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a table of plans, each with a list of limits")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<PlanTable, M::Error> {
        let mut table = PlanTable::default();
        while table.plans.len() < PLANS_MAX
            && let Some((name, limits)) = map.next_entry::<String, Limits>()?
        {
            // The proxy's JSON has each name once.
            let place = table.plans.partition_point(|known| known.name < name);
            table.plans.insert(place, Plan { name, limits, priority: None });
            table.written += 1;
        }
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {
            table.written += 1;
        }
        Ok(table)
    }
}
