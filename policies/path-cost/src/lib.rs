//! Charges requests by what their path and method cost.
//!
//! Facts read: `path`, `method`, `client-ip`, and those that key templates and conditions name. The
//! most specific template counts, as with routes. The policy does not know which spellings of a
//! path the upstream reads as the same. A path that reads differently by its case or by the slash
//! at its end costs what the dearer reading costs.

use serde::Deserialize;
use weir_policy::{
    Conditions, Decision, Facts, Ipv6Prefix, Limits, Manifest, Methods, Missing, Mistakes,
    PathTable, PathTemplate, Policy, Spelling, Template, Tie,
};

/// Maximum number of costs: each is compared with the request's path.
const COSTS_MAX: usize = 500;

/// `[policies.NAME.config]`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// What requests cost.
    costs: Vec<Cost>,
    /// What all others cost.
    #[serde(default = "one")]
    default_cost: u64,
    /// The key of limits without one of their own; without it, the client's address.
    key: Option<Template>,
    /// How to treat requests without a key, for limits that don't say so themselves.
    missing: Option<Missing>,
    /// Bits of an IPv6 address that make one client.
    #[serde(default)]
    ipv6_prefix: Ipv6Prefix,
    /// Requests that are never counted.
    #[serde(default)]
    bypass: Conditions,
    /// Charged what a request costs.
    limits: Limits,
}

/// What requests for a path cost.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Cost {
    path: PathTemplate,
    #[serde(default)]
    methods: Vec<String>,
    cost: u64,
}

fn one() -> u64 {
    1
}

/// The policy.
#[derive(Debug)]
pub struct PathCost {
    costs: PathTable<u64>,
    default_cost: u64,
    /// What the dearest request costs.
    cost_max: u64,
    ipv6_prefix: Ipv6Prefix,
    bypass: Conditions,
    limits: Limits,
}

impl Config {
    fn check_costs(&self, mistakes: &mut Mistakes) {
        if self.costs.is_empty() || self.costs.len() > COSTS_MAX {
            let found = format_args!("{} costs", self.costs.len());
            mistakes.add("costs", found, format_args!("1 to {COSTS_MAX}"));
        }
        let costs = self.costs.iter().enumerate();
        let costs = costs.map(|(index, item)| (format!("costs[{index}].cost"), item.cost));
        for (path, cost) in costs.chain([("default_cost".to_owned(), self.default_cost)]) {
            // A limit with `quota = 0` is meant to refuse everything.
            let mut limits = self.limits.refusing().filter(|limit| limit.cost_max() > 0);
            if let Some(limit) =
                limits.find(|limit| cost.saturating_mul(limit.cost) > limit.cost_max())
            {
                let most = limit.cost_max() / limit.cost.max(1);
                let expected = format_args!(
                    "at most {most}: limit {:?} could never let such a request through",
                    limit.name
                );
                mistakes.add(path, cost, expected);
            }
        }
    }

    /// The costs, by path and method. `None` if a mistake was added.
    fn table(&self, mistakes: &mut Mistakes) -> Option<PathTable<u64>> {
        let mut rows = Vec::with_capacity(self.costs.len());
        for (index, item) in self.costs.iter().enumerate() {
            match Methods::new(item.methods.clone()) {
                Ok(methods) => rows.push((item.path.clone(), methods, item.cost)),
                Err(wrong) => mistakes.add_message(format!("costs[{index}].methods"), wrong),
            }
        }
        // Two rows may tie only because the methods of one are not known.
        if rows.len() < self.costs.len() {
            return None;
        }
        let ties = match PathTable::new(rows) {
            Ok(table) => return Some(table),
            Err(ties) => ties,
        };
        let path = |index: usize| self.costs.get(index).map_or("", |item| item.path.as_str());
        for Tie { first, second } in ties {
            let expected = format_args!(
                "a path or methods that differ from those of costs[{first}], {:?}: neither is more specific",
                path(first)
            );
            let found = format_args!("{:?}", path(second));
            mistakes.add(format!("costs[{second}].path"), found, expected);
        }
        None
    }
}

impl Policy for PathCost {
    type Config = Config;

    fn new(config: Config) -> Result<Self, Mistakes> {
        let mut mistakes = Mistakes::new();
        config.check_costs(&mut mistakes);
        let Some(costs) = config.table(&mut mistakes) else { return Err(mistakes) };
        let each = config.costs.iter().map(|item| item.cost);
        let cost_max = each.chain([config.default_cost]).max().unwrap_or_default();
        let Config { default_cost, key, missing, ipv6_prefix, bypass, limits, .. } = config;
        let limits = limits.by_default(key.as_ref(), missing).ipv6_prefix(ipv6_prefix);
        mistakes.or(Self { costs, default_cost, cost_max, ipv6_prefix, bypass, limits })
    }

    fn manifest(&self) -> Manifest {
        Manifest::reads(["path", "method", "client-ip"])
            .and(self.bypass.facts())
            .and(self.limits.facts())
            .declare(
                self.limits.declared("limits", &["client-ip"]).map(|one| one.times(self.cost_max)),
            )
            .pure()
    }

    fn decide(&self, facts: &Facts) -> Result<Decision, String> {
        if self.bypass.hold(facts) {
            return Ok(Decision::bypass());
        }
        let cost = self.cost(facts)?;
        let key = self.ipv6_prefix.client(facts)?.key();
        Ok(self.limits.check_cost(&key, cost, facts).label("cost", cost.to_string()))
    }
}

impl PathCost {
    fn cost(&self, facts: &Facts) -> Result<u64, String> {
        let path = facts.get("path").ok_or("the proxy showed no path")?;
        let method = facts.get("method").ok_or("the proxy showed no method")?;
        let read = |spelling| {
            self.costs.find(path, method, spelling).copied().unwrap_or(self.default_cost)
        };
        Ok(read(Spelling::Exact).max(read(Spelling::Any)))
    }
}

weir_policy::export!(PathCost);

#[cfg(test)]
mod tests {
    use weir_policy::Verdict;
    use weir_policy::testing::Instance;

    use super::*;

    const LIMITS: &str = r#""limits": [{"name": "units", "algorithm": "token_bucket", "quota": 1000, "period": "1m", "burst": 100}]"#;
    const COSTS: &str = r#""costs": [
        {"path": "/reports/*", "cost": 5},
        {"path": "/reports/{id}", "methods": ["POST"], "cost": 25},
        {"path": "/reports/{id}", "cost": 10},
        {"path": "/reports/summary", "cost": 2},
        {"path": "/health", "cost": 0}]"#;

    fn policy(more: &str) -> Instance<PathCost> {
        Instance::new(&format!("{{{more}{COSTS}, {LIMITS}}}")).unwrap()
    }

    fn facts<'a>(method: &'a str, path: &'a str) -> [(&'a str, &'a str); 3] {
        [("method", method), ("path", path), ("client-ip", "192.0.2.1")]
    }

    fn cost(policy: &Instance<PathCost>, method: &str, path: &str) -> u64 {
        let decision = policy.decide(&facts(method, path)).unwrap();
        let charged = decision.limits().first().map_or(0, |limit| limit.cost);
        assert_eq!(decision.labels, [("cost".to_owned(), charged.to_string())]);
        charged
    }

    fn mistakes(config: &str) -> Vec<String> {
        let mistakes = Instance::<PathCost>::new(config).unwrap_err();
        let mut shown: Vec<String> =
            mistakes.iter().map(|one| format!("{}: {}", one.path, one.message)).collect();
        shown.sort();
        shown
    }

    #[test]
    fn the_most_specific_template_says_what_a_request_costs() {
        let policy = policy("");
        for (method, path, expected) in [
            ("POST", "/reports/7", 25),
            ("GET", "/reports/7", 10),
            ("GET", "/reports/summary", 2),
            ("POST", "/reports/summary", 2),
            ("POST", "/reports/7/pages", 5),
            ("GET", "/reports", 5),
            ("GET", "/users", 1),
            ("GET", "/health", 0),
        ] {
            assert_eq!(cost(&policy, method, path), expected, "{method} {path}");
        }
        let mut free = policy.decide(&facts("GET", "/health")).unwrap();
        assert_eq!(free.verdict, Verdict::Bypass);
        free = super::tests::policy(r#""default_cost": 0, "#).decide(&facts("GET", "/")).unwrap();
        assert_eq!(free.verdict, Verdict::Bypass);
    }

    #[test]
    fn no_spelling_of_a_path_makes_it_cheaper() {
        let policy = policy("");
        for (path, expected) in [
            ("/REPORTS/7", 25),
            ("/reports/7/", 25),
            ("/reports/%37", 25),
            // A server may read these as a report's name, or as something that costs 1.
            ("/reports/SUMMARY", 25),
            ("/reports/summary/", 5),
            ("/HEALTH", 1),
            ("/health/", 1),
            ("/%68ealth", 0),
        ] {
            assert_eq!(cost(&policy, "POST", path), expected, "{path}");
        }
        assert_eq!(cost(&policy, "post", "/reports/7"), 25);
    }

    #[test]
    fn the_key_is_the_policys_the_limits_or_the_address() {
        let key = |policy: &Instance<PathCost>, more: &[(&str, &str)]| {
            let all = [&facts("GET", "/"), more].concat();
            policy.decide(&all).unwrap().limits()[0].key.clone()
        };
        assert_eq!(key(&policy(""), &[]), "\\@192.0.2.1");
        let keyed = policy(r#""key": "{header.x-api-key}", "#);
        assert_eq!(key(&keyed, &[("header.x-api-key", "abc")]), "abc");
        assert_eq!(key(&keyed, &[]), "\\@192.0.2.1");
        let denying = policy(r#""key": "{header.x-api-key}", "missing": "deny", "#);
        let denied = denying.decide(&facts("GET", "/")).unwrap();
        assert!(matches!(denied.verdict, Verdict::Deny(_)), "{denied:?}");
        // What is not counted needs no key.
        assert_eq!(denying.decide(&facts("GET", "/health")).unwrap().verdict, Verdict::Bypass);
        assert!(keyed.manifest().pure);
        assert_eq!(
            keyed.manifest().request_facts,
            ["path", "method", "client-ip", "header.x-api-key"]
        );
    }

    #[test]
    fn two_templates_of_which_none_is_more_specific_are_an_error_that_names_both() {
        let costs = r#""costs": [{"path": "/a/{x}", "cost": 1}, {"path": "/b", "cost": 1}, {"path": "/a/{y}", "cost": 2}]"#;
        assert_eq!(
            mistakes(&format!("{{{costs}, {LIMITS}}}")),
            [
                "costs[2].path: found \"/a/{y}\", expected a path or methods that differ from those of costs[0], \"/a/{x}\": neither is more specific"
            ]
        );
    }

    #[test]
    fn a_cost_that_could_never_pass_is_an_error() {
        let costs = r#""default_cost": 101, "costs": [{"path": "/a", "cost": 100}, {"path": "/b", "cost": 200}]"#;
        assert_eq!(
            mistakes(&format!("{{{costs}, {LIMITS}}}")),
            [
                "costs[1].cost: found 200, expected at most 100: limit \"units\" could never let such a request through",
                "default_cost: found 101, expected at most 100: limit \"units\" could never let such a request through",
            ]
        );
        let costs = r#""costs": [{"path": "/a", "cost": 30}]"#;
        let children = r#", "children": {"key": "{header.x-team}", "assured": 5, "ceiling": 20}}]"#;
        let shared = LIMITS.replace("}]", children).replace(r#", "burst": 100"#, "");
        assert_eq!(
            mistakes(&format!("{{{costs}, {shared}}}")),
            [
                "costs[0].cost: found 30, expected at most 20: limit \"units.child\" could never let such a request through"
            ]
        );
        let closed = LIMITS.replace("1000", "0").replace(r#", "burst": 100"#, "");
        assert!(Instance::<PathCost>::new(&format!("{{{COSTS}, {closed}}}")).is_ok());
    }

    #[test]
    fn all_other_errors_come_at_once() {
        let config = format!(r#"{{"costs": [], "defalt_cost": 2, "key": "{{x}}", {LIMITS}}}"#);
        let found = mistakes(&config);
        assert_eq!(found.len(), 3, "{found:?}");
        assert_eq!(found[0], "costs: found 0 costs, expected 1 to 500");
        assert!(found[1].starts_with("defalt_cost: found the unknown key"), "{found:?}");
        assert!(found[2].starts_with("key: found `{x}`"), "{found:?}");
        for (from, to, path) in [
            ("/health", "health", "costs[4].path"),
            ("\"POST\"", "\"post\"", "costs[1].methods"),
            ("\"cost\": 25", "\"cost\": -1", "costs[1].cost"),
        ] {
            let found = mistakes(&format!("{{{}, {LIMITS}}}", COSTS.replace(from, to)));
            assert_eq!(found.len(), 1, "{found:?}");
            assert!(found[0].starts_with(&format!("{path}: found ")), "{found:?}");
        }
    }

    #[test]
    fn listed_clients_are_never_counted() {
        let policy = policy(r#""bypass": ["192.0.2.0/24"], "#);
        assert_eq!(policy.decide(&facts("POST", "/reports/7")).unwrap().verdict, Verdict::Bypass);
    }
}
