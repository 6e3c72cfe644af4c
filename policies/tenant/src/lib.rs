//! A tenant's limits and those of its users, decided together: a request is charged to both or to
//! neither, in one step.
//!
//! Facts read: those that the tenant, the user and conditions name, and `client-ip`. All limits of
//! a request have the tenant as their tag, so that its counters and those of its users share one
//! slot of a Redis Cluster, unless all limits of tenants are leased. A user's key contains the
//! tenant.

mod absent;

use serde::Deserialize;
use weir_policy::{
    Conditions, Decision, Denial, Facts, Ipv6Prefix, LIMITS_MAX, Limit, Limits, Manifest, Mistakes,
    Policy, Template, bounded_key,
};

use absent::Absent;

/// `[policies.NAME.config]`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Where to find the tenant.
    tenant: Template,
    /// Where to find the user.
    user: Template,
    /// How to treat requests without a tenant.
    #[serde(default, deserialize_with = "absent::tenant")]
    missing_tenant: Absent,
    /// How to treat requests without a user.
    #[serde(default, deserialize_with = "absent::user")]
    missing_user: Absent,
    /// What all users of a tenant have together. Their children are its users.
    #[serde(deserialize_with = "Limits::with_children")]
    tenant_limits: Limits,
    /// What each user of a tenant has, unless users are children.
    user_limits: Option<Limits>,
    /// Bits of an IPv6 address that make one client.
    #[serde(default)]
    ipv6_prefix: Ipv6Prefix,
    /// Requests that are never counted.
    #[serde(default)]
    bypass: Conditions,
}

/// The policy.
#[derive(Debug)]
pub struct Tenant(Config);

impl Config {
    fn check(&self, mistakes: &mut Mistakes) {
        let of_user = self.user_limits.as_ref().map(|limits| ("user_limits", limits));
        for (list, limits) in [("tenant_limits", &self.tenant_limits)].into_iter().chain(of_user) {
            let without_key: Vec<usize> = limits.without_key().collect();
            let keyed = (0..limits.each().count()).filter(|index| !without_key.contains(index));
            for index in keyed {
                let expected = "nothing: these are counted by tenant and user. For other keys, use `keyed` on a route of its own";
                mistakes.add(format!("{list}[{index}].key"), "the key `key`", expected);
            }
        }
        for (at, name) in self.user_limits.iter().flat_map(Limits::named) {
            if self.tenant_limits.all_names().any(|other| other == name) {
                let expected = "a name that no limit in `tenant_limits` has";
                let path = format!("user_limits{at}.name");
                mistakes.add(path, format_args!("{name:?}"), expected);
            }
        }
        let shared = (0..self.tenant_limits.each().count())
            .any(|index| self.tenant_limits.has_children(index));
        if self.user_limits.is_none() {
            let expected = "a list of limits, or `children` of one in `tenant_limits`";
            if !shared {
                mistakes.add("", "no `user_limits`", expected);
            } else if self.missing_tenant == Absent::Other {
                let expected =
                    "limits for users without a tenant, as `missing_tenant` says \"user\"";
                mistakes.add("", "no `user_limits`", expected);
            }
        }
        let of_user = self.user_limits.as_ref().map_or(0, Limits::count);
        let together = self.tenant_limits.count() + of_user;
        if together > LIMITS_MAX {
            let found = format_args!("{together} limits, with those in `tenant_limits`");
            mistakes.add("user_limits", found, format_args!("{LIMITS_MAX} together"));
        }
    }
}

impl Policy for Tenant {
    type Config = Config;

    fn new(config: Config) -> Result<Self, Mistakes> {
        let mut mistakes = Mistakes::new();
        config.check(&mut mistakes);
        mistakes.or(Self(config))
    }

    fn manifest(&self) -> Manifest {
        let Config { tenant, user, tenant_limits, user_limits, bypass, .. } = &self.0;
        let of_tenant: Vec<&str> = tenant.named().collect();
        let of_user: Vec<&str> = tenant.named().chain(user.named()).collect();
        let manifest = Manifest::reads(["client-ip"])
            .and(tenant.facts().chain(user.facts()))
            .and(tenant_limits.facts())
            .declare(tenant_limits.declared_with("tenant_limits", &of_tenant, &of_user))
            .and(bypass.facts())
            .pure();
        match user_limits {
            Some(limits) => manifest.limits("user_limits", limits, &of_user),
            None => manifest,
        }
    }

    fn decide(&self, facts: &Facts) -> Result<Decision, String> {
        if self.0.bypass.hold(facts) {
            return Ok(Decision::bypass());
        }
        let client = self.0.ipv6_prefix.client(facts)?;
        let shown = facts.with("client-ip", &client.text);
        Ok(match self.charge(facts, &shown, &client.key()) {
            Ok(limits) => Decision::check(limits),
            Err(denial) => Decision::deny(denial),
        })
    }
}

impl Tenant {
    /// The limits to charge. `shown` has the client as it is counted.
    fn charge(&self, facts: &Facts, shown: &Facts, address: &str) -> Result<Vec<Limit>, Denial> {
        let config = &self.0;
        let mut tenant = config.missing_tenant.key(&config.tenant, shown, address)?;
        let mut user = config.missing_user.key(&config.user, shown, address)?;
        if tenant.is_none() && user.is_none() {
            // Each was to be limited by the other alone. Nobody is without a limit.
            tenant = Some(address.to_owned());
            user = Some(address.to_owned());
        }
        let user = user.map(|user| user_key(tenant.as_deref(), &user));
        // What is leased needs no call for each request, so then each user has a slot of its own.
        let apart = user.as_ref().filter(|_| config.tenant_limits.are_leased());
        let tag = apart.or(tenant.as_ref()).or(user.as_ref()).cloned().map(bounded_key);
        let mut limits = Vec::new();
        if let Some(tenant) = &tenant {
            let keys = (tenant.as_str(), user.as_deref());
            limits.extend(config.tenant_limits.charge_child(keys, facts)?);
        }
        if let (Some(user), Some(user_limits)) = (&user, &config.user_limits) {
            limits.extend(user_limits.charge(user, facts)?);
        }
        let tenant = apart.and(tenant).map(bounded_key);
        for limit in &mut limits {
            limit.tag = tag.clone().filter(|_| tenant.as_ref() != Some(&limit.key));
        }
        Ok(limits)
    }
}

/// Different tenants' users never have the same key: the tenant is preceded by its length. No
/// tenant's key starts with `\-`.
fn user_key(tenant: Option<&str>, user: &str) -> String {
    match tenant {
        Some(tenant) => format!("{}:{tenant}/{user}", tenant.len()),
        None => format!("\\-/{user}"),
    }
}

weir_policy::export!(Tenant);

#[cfg(test)]
mod tests;
