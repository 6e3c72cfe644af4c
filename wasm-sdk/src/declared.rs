//! What a manifest declares besides the facts that the policy reads: the limits that its decisions
//! may have, and what is probably not meant in its configuration. Nothing is decided by it.

use crate::limits::KeyedLimit;
use crate::{DeclaredLimit, Limit, Limits, Manifest, PlanTable, Refund, Warning};

/// Limits and warnings that a manifest has, at most: what the proxy accepts.
const LIMITS_MAX: usize = 4_096;
const WARNINGS_MAX: usize = 64;
/// Facts of which one key is made, at most.
const KEY_FACTS_MAX: usize = 64;

impl Manifest {
    /// Declares a table of limits, the setting `at`, and adds the facts that it reads. `key` are
    /// the facts of which the policy makes the key that it gives to [`Limits::charge`].
    ///
    /// The proxy then knows these limits, for `weir check`, `weir key` and what a reload reports. A
    /// policy that charges them in another way than [`Limits::charge`] adds [`Limits::facts`], and
    /// [declares](Manifest::declare) each as it is charged.
    ///
    /// ```
    /// use weir_policy::{Limits, Manifest};
    ///
    /// let limits = r#"[{"name": "a", "algorithm": "gcra", "quota": 9, "period": "1s",
    ///                   "key": "{path}"},
    ///                  {"name": "b", "algorithm": "concurrency", "quota": 5}]"#;
    /// let limits: Limits = serde_json::from_str(limits).unwrap();
    /// let manifest = Manifest::reads(["client-ip"]).limits("limits", &limits, &["client-ip"]);
    /// assert_eq!(manifest.request_facts, ["client-ip", "path"]);
    /// let declared = manifest.limits.iter().map(|one| (&*one.at, &*one.key_facts[0]));
    /// let declared: Vec<_> = declared.collect();
    /// assert_eq!(declared, [("limits[0]", "path"), ("limits[1]", "client-ip")]);
    /// ```
    #[must_use]
    pub fn limits(self, at: &str, limits: &Limits, key: &[&str]) -> Self {
        self.and(limits.facts()).declare(limits.declared(at, key))
    }

    /// The same for the table `plans`.
    #[must_use]
    pub fn plans(self, plans: &PlanTable, key: &[&str]) -> Self {
        self.and(plans.facts()).declare(plans.declared(key))
    }

    /// Declares limits. The first 4,096 are.
    #[must_use]
    pub fn declare(mut self, limits: impl IntoIterator<Item = DeclaredLimit>) -> Self {
        let room = LIMITS_MAX.saturating_sub(self.limits.len());
        self.limits.extend(limits.into_iter().take(room));
        self
    }

    /// Adds what is allowed in the configuration and probably not meant. The first 64 are.
    #[must_use]
    pub fn warn(mut self, warnings: impl IntoIterator<Item = Warning>) -> Self {
        let room = WARNINGS_MAX.saturating_sub(self.warnings.len());
        self.warnings.extend(warnings.into_iter().take(room));
        self
    }
}

impl DeclaredLimit {
    /// This limit, which is read from the setting `at` or made of it. `at` is empty if it is the
    /// policy's default. `key` are the facts of which its key is made.
    #[must_use]
    pub fn of(limit: &Limit, at: impl Into<String>, key: &[&str]) -> Self {
        let mut key_facts: Vec<String> = Vec::new();
        for fact in key {
            if key_facts.len() < KEY_FACTS_MAX && key_facts.iter().all(|known| known != fact) {
                key_facts.push((*fact).to_owned());
            }
        }
        Self {
            name: limit.name.clone(),
            at: at.into(),
            algorithm: limit.algorithm.clone(),
            debt: limit.debt,
            key_facts,
            key_prefix: String::new(),
            together: None,
            cost_max: Some(limit.cost),
            options: limit.options.clone(),
        }
    }

    /// The same, charged by a rule of the policy's own, or settled: the proxy then does not compare
    /// it with the other limits of its table.
    #[must_use]
    pub fn apart(self) -> Self {
        Self { together: None, ..self }
    }

    /// The same, charged so many times its cost at most, as [`Limits::charge_cost`] does.
    #[must_use]
    pub fn times(self, most: u64) -> Self {
        Self { cost_max: self.cost_max.map(|cost| cost.saturating_mul(most)), ..self }
    }
}

impl Limits {
    /// The limits as a manifest declares them. `at` is the setting with the table, and `key` are
    /// the facts of which the policy makes the key of limits without a template.
    pub fn declared(&self, at: &str, key: &[&str]) -> impl Iterator<Item = DeclaredLimit> {
        self.declared_with(at, key, &[])
    }

    /// The same; `child` are the facts of which the policy makes the key of children without a
    /// template.
    pub fn declared_with(
        &self,
        at: &str,
        key: &[&str],
        child: &[&str],
    ) -> impl Iterator<Item = DeclaredLimit> {
        self.keyed().map(move |KeyedLimit { limit, template, index, part }| {
            let own: Option<Vec<&str>> = template.map(|template| template.named().collect());
            let key = own.as_deref().unwrap_or(if part.is_some() { child } else { key });
            let limit_at = match part {
                Some(part) => format!("{at}[{index}].children.{part}"),
                None => format!("{at}[{index}]"),
            };
            // A child and its parent are decided together, and not each as its setting says.
            let is_apart = limit.refund == Refund::BySettle
                || limit.debt.is_some()
                || part.is_some()
                || self.has_children(index);
            DeclaredLimit {
                key_prefix: self.space().to_owned(),
                together: (!is_apart).then(|| at.to_owned()),
                ..DeclaredLimit::of(limit, limit_at, key)
            }
        })
    }
}

impl Warning {
    /// A warning of this kind, which `weir check --allow` takes, about the setting `path`.
    /// `message` is a sentence without a full stop.
    #[must_use]
    pub fn new(
        kind: impl Into<String>,
        path: impl Into<String>,
        message: impl Into<String>,
    ) -> Self {
        Self {
            kind: kind.into(),
            path: path.into(),
            message: message.into(),
            beside: Vec::new(),
            remedy: None,
        }
    }

    /// Shows another setting with it, with a label.
    #[must_use]
    pub fn beside(mut self, path: impl Into<String>, label: impl Into<String>) -> Self {
        self.beside.push((path.into(), label.into()));
        self
    }

    /// Says what to do about it.
    #[must_use]
    pub fn remedy(self, remedy: impl Into<String>) -> Self {
        Self { remedy: Some(remedy.into()), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Ipv6Prefix, Mistakes};

    fn table(items: &str) -> Limits {
        serde_json::from_str(&format!("[{items}]")).unwrap()
    }

    const LIMIT: &str = r#""algorithm": "fixed_window", "quota": 5, "period": "1m""#;

    #[test]
    fn what_is_settled_is_charged_apart() {
        let limits = table(&format!(
            r#"{{"name": "a", {LIMIT}, "cost": 3}}, {{"name": "b", {LIMIT}, "refund": "by_settle"}},
               {{"name": "c", {LIMIT}, "debt": 2}}, {{"name": "d", {LIMIT}, "refund": "unsent"}}"#
        ));
        let declared: Vec<_> = limits.declared("mine", &[]).collect();
        let together: Vec<_> = declared.iter().map(|one| one.together.as_deref()).collect();
        assert_eq!(together, [Some("mine"), None, None, Some("mine")]);
        assert_eq!((declared[0].cost_max, declared[1].cost_max), (Some(3), Some(1)));
        assert_eq!(declared[2].debt, limits.each().nth(2).unwrap().debt);
        assert!(declared[2].debt.is_some());
    }

    #[test]
    fn the_limits_of_a_plan_have_its_prefix_and_its_setting() {
        let plans = format!(
            r#"{{"gold": [{{"name": "a", {LIMIT}}}], "free": [{{"name": "a", {LIMIT}, "key": "{{path}}/{{path}}"}}]}}"#
        );
        let plans: PlanTable = serde_json::from_str(&plans).unwrap();
        let mut mistakes = Mistakes::new();
        let plans = plans.check(Ipv6Prefix::default(), &mut mistakes);
        let manifest = Manifest::reads(["query"]).plans(&plans, &["query"]);
        assert_eq!(manifest.request_facts, ["query", "path"]);
        let declared: Vec<_> = manifest
            .limits
            .iter()
            .map(|one| (&*one.at, &*one.key_prefix, one.key_facts.join(" ")))
            .collect();
        let expected = [("plans.free[0]", "free/", "path"), ("plans.gold[0]", "gold/", "query")];
        assert_eq!(declared, expected.map(|(at, prefix, key)| (at, prefix, key.to_owned())));
    }

    #[test]
    fn no_more_is_declared_than_the_proxy_takes() {
        let limits = table(&format!(r#"{{"name": "a", {LIMIT}}}"#));
        let one = limits.declared("limits", &["path"]).next().unwrap();
        let many = vec![one; LIMITS_MAX + 1];
        let warnings = vec![Warning::new("k", "", "it is small"); WARNINGS_MAX + 1];
        let none: [&str; 0] = [];
        let manifest = Manifest::reads(none).declare(many.clone()).declare(many).warn(warnings);
        assert_eq!((manifest.limits.len(), manifest.warnings.len()), (LIMITS_MAX, WARNINGS_MAX));
    }
}
