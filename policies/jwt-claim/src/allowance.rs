//! Which limits a token has: those of everybody, or those of the plan that one of its claims names.

use weir_policy::{
    Decision, Facts, FieldName, Ipv6Prefix, Json, Limits, Manifest, Mistakes, PlanPriorities,
    PlanTable,
};

use crate::claims::Claim;

/// The settings that say so, as written.
#[derive(Debug)]
pub(crate) struct Written {
    pub(crate) limits: Option<Limits>,
    pub(crate) plans: Option<PlanTable>,
    pub(crate) plan: Option<Claim>,
    pub(crate) default_plan: Option<String>,
    pub(crate) plan_header: Option<FieldName>,
    pub(crate) priorities: Option<PlanPriorities>,
    pub(crate) ipv6_prefix: Ipv6Prefix,
}

/// The limits of each token.
#[derive(Debug)]
pub(crate) enum Allowance {
    Same(Limits),
    ByPlan(Plans),
}

/// The limits of each plan, and who is on which.
#[derive(Debug)]
pub(crate) struct Plans {
    table: PlanTable,
    /// The claim that names a token's plan.
    claim: Claim,
    /// The plan of tokens that name none, and of requests that are counted by address.
    default: Option<usize>,
    header: Option<FieldName>,
}

impl Allowance {
    /// Adds what is missing or of no use. `by_address` are the settings that have requests counted
    /// by address.
    pub(crate) fn new(written: Written, by_address: &[&str], mistakes: &mut Mistakes) -> Self {
        let Written { limits, plans, plan, default_plan, plan_header, priorities, ipv6_prefix } =
            written;
        let Some(plans) = plans else {
            let of_plans = [
                ("plan", plan.is_some()),
                ("default_plan", default_plan.is_some()),
                ("plan_header", plan_header.is_some()),
                ("priorities", priorities.is_some()),
            ];
            for (setting, _) in of_plans.iter().filter(|(_, given)| *given) {
                mistakes.add(*setting, "a plan's setting", "a table `plans` beside it");
            }
            if limits.is_none() {
                mistakes.add("", "no `limits`", "the limits of everybody, or a table `plans`");
            }
            return Self::Same(limits.unwrap_or_default().ipv6_prefix(ipv6_prefix));
        };
        if limits.is_some() {
            let expected = "either these or `plans`: a plan may have limits on the address, too";
            mistakes.add("limits", "limits of everybody", expected);
        }
        let table = plans.check(ipv6_prefix, mistakes);
        let table = table.with_priorities(&priorities.unwrap_or_default(), mistakes);
        if default_plan.is_none() {
            for setting in by_address {
                let expected = "\"deny\", or a `default_plan`, whose limits such requests have";
                mistakes.add(*setting, "\"address\"", expected);
            }
        }
        let default = default_plan.and_then(|name| table.expect("default_plan", &name, mistakes));
        let claim = plan.unwrap_or_else(|| Claim::named("plan"));
        Self::ByPlan(Plans { table, claim, default, header: plan_header })
    }

    /// Declares the limits. `key` is the fact that names whoever is counted.
    pub(crate) fn declare(&self, manifest: Manifest, key: &[&str]) -> Manifest {
        match self {
            Self::Same(limits) => manifest.limits("limits", limits, key),
            Self::ByPlan(plans) => manifest.plans(&plans.table, key),
        }
    }

    /// The plan that a token names, or the default one.
    pub(crate) fn plan_of(&self, claims: &Json<'_>) -> Option<usize> {
        let Self::ByPlan(Plans { table, claim, default, .. }) = self else { return None };
        claim.of(claims).and_then(|name| table.find(&name)).or(*default)
    }

    /// The plan of requests that are counted by address.
    pub(crate) fn default_plan(&self) -> Option<usize> {
        match self {
            Self::Same(_) => None,
            Self::ByPlan(plans) => plans.default,
        }
    }

    /// Checks the limits of whoever is on this plan. `None` if a plan is needed, and there is none.
    pub(crate) fn check(
        &self,
        plan: Option<usize>,
        key: &str,
        facts: &Facts,
    ) -> Result<Option<Decision>, String> {
        match self {
            Self::Same(limits) => Ok(Some(limits.check(key, facts))),
            Self::ByPlan(plans) => {
                plan.map(|plan| plans.table.decide(plan, key, facts)).transpose()
            }
        }
    }

    /// Tells the upstream the plan. The field is empty where there is none, so that a client's own
    /// can't pass for a plan.
    pub(crate) fn tell(&self, decision: Decision, plan: Option<usize>) -> Decision {
        match self {
            Self::ByPlan(Plans { table, header: Some(field), .. }) => {
                let name = plan.map_or("", |plan| table.name(plan));
                decision.upstream_header(field.as_str(), name)
            }
            _ => decision,
        }
    }
}
