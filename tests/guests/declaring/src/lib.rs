//! A policy whose limits only its manifest tells: one that it makes of a number, and those of plans
//! that clients name in `x-plan`. All are by address. It also warns of its configuration.

use std::time::Duration;

use weir_policy::{
    Algorithm, Decision, DeclaredLimit, Facts, Ipv6Prefix, Limit, Manifest, Mistakes, PlanTable,
    Policy, Warning,
};

/// Fewer than this a day are probably not meant.
const FEW: u64 = 3;

/// `[policies.NAME.config]`.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Requests of an address in a day.
    per_day: u64,
    /// What further limits each plan has.
    plans: PlanTable,
}

/// The policy.
#[derive(Debug)]
pub struct Declaring(Config);

impl Declaring {
    fn daily(&self, key: &str) -> Limit {
        let day = Algorithm::fixed_window(self.0.per_day, Duration::from_secs(86_400));
        Limit::new("daily", key, day)
    }
}

impl Policy for Declaring {
    type Config = Config;

    fn new(config: Config) -> Result<Self, Mistakes> {
        let mut mistakes = Mistakes::new();
        let plans = config.plans.check(Ipv6Prefix::default(), &mut mistakes);
        mistakes.or(Self(Config { plans, ..config }))
    }

    fn manifest(&self) -> Manifest {
        let few = (self.0.per_day < FEW).then(|| {
            Warning::new("few-requests", "per_day", format!("fewer than {FEW} requests a day"))
                .remedy("more of them")
        });
        Manifest::reads(["client-ip", "header.x-plan"])
            .declare([DeclaredLimit::of(&self.daily(""), "per_day", &["client-ip"])])
            .plans(&self.0.plans, &["client-ip"])
            .warn(few)
    }

    fn decide(&self, facts: &Facts) -> Result<Decision, String> {
        let client = facts.get("client-ip").ok_or("no client address")?;
        let plan = facts.header("x-plan").and_then(|name| self.0.plans.find(name));
        Ok(match plan {
            Some(plan) => self.0.plans.decide(plan, client, facts)?,
            None => Decision::check([self.daily(client)]),
        })
    }
}

weir_policy::export!(Declaring);
