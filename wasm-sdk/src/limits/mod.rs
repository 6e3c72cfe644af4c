//! The one way in which limits are written in a configuration, shared by every policy that ships.
//!

mod algorithm;
mod built;
mod missing;
mod period;
mod written;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use sha2::{Digest, Sha256};
use weir_algorithms::Row;

use crate::Enforcement;
use crate::bindings::weir::policy::types::Limit as Answered;
use crate::client::{CLIENT_IP, address_key};
use crate::config::{join, kind, read_value};
use crate::mistakes::Mistakes;
use crate::{
    Conditions, Decision, Denial, Facts, Ipv6Prefix, KEY_BYTES_MAX, LIMITS_MAX, NoKey, Template,
};
use written::{Extent, Written};

pub use missing::Missing;

/// A `limits` table, checked whole: use it as the type of a setting.
///
/// ```toml
/// [[policies.public.config.limits]]
/// name = "per-minute"           # in fields, metrics, logs; unique in its table
/// algorithm = "fixed_window"    # or "sliding_window_counter", "sliding_window_log", "sliding_window_buckets", "token_bucket", "gcra",
///                               # "leaky_bucket", "concurrency", "quota", "script"
/// quota = 100                   # of a "concurrency": how many may be in flight
/// period = "1m"                 # not of a "concurrency" or a "quota"
/// # alignment = "first_request" # of a "fixed_window": or "clock": where a window begins
/// # burst = 20                  # of a bucket: how many may come at once; default: the quota, of a "leaky_bucket" 1
/// # max_delay = "500ms"         # of a "leaky_bucket": the longest that a request waits for its turn
/// # buckets = 60                # of "sliding_window_buckets": into how many parts the window is divided, 1 to 1000
/// # calendar = "month"          # of a "quota": or "hour", "day", "week", "forever"
/// # time_zone = "UTC"           # of a "quota": where its days begin, "Europe/Berlin"
/// # anchor_day = 1              # of a "quota" by the month: the day on which it begins
/// # script = "mine"             # of a "script": a Lua file of the operator's own, `mine.lua`
/// # arguments = [100, 60_000]   # and its numbers, six at most
/// # conditional = true          # of a "quota": false counts and shows, and refuses nobody
/// # key = "{client_ip}"         # default: the policy's own key
/// # missing = "address"         # who has no such key: "shared", "skip", "deny"
/// # when = { method = "POST" }  # which requests it is about: see [`Conditions`]; default: all
/// # cost = 1
/// # shadow = false              # count and report, never refuse
/// # refund = "never"            # when units come back: "unsent", "upstream_error" (also after a 5xx), "by_settle"
/// # on_store_error = "deny"     # or "allow"; default: the route's
/// # unit = "requests"
/// ```
///
/// `key` is a [`Template`], and `missing` says what becomes of a request that has no such key
/// ([`Missing`]). Where a template says `{client_ip}`, the client is counted as [`Ipv6Prefix`] has
/// it: an IPv6 client is its network.
#[derive(Clone, Debug, Default)]
pub struct Limits {
    limits: Vec<One>,
    ipv6_prefix: Ipv6Prefix,
    space: String,
}

#[derive(Clone, Debug)]
struct One {
    limit: Answered,
    extent: Extent,
}

impl Limits {
    /// How many bits of an IPv6 address make one client, where a key names the address: 64 unless
    /// it is said.
    #[must_use]
    pub fn ipv6_prefix(mut self, ipv6_prefix: Ipv6Prefix) -> Self {
        self.ipv6_prefix = ipv6_prefix;
        self
    }

    /// Sets what a limit has that doesn't write its own `key` or `missing`.
    #[must_use]
    pub fn by_default(mut self, key: Option<&Template>, missing: Option<Missing>) -> Self {
        for Extent { key: own_key, missing: own_missing, .. } in
            self.limits.iter_mut().map(|one| &mut one.extent)
        {
            *own_key = own_key.take().or_else(|| key.cloned());
            *own_missing = own_missing.or(missing);
        }
        self
    }

    /// Keeps these limits' counters apart from those of limits in other spaces, also where their
    /// names and keys are the same. A space's name has no `/`.
    #[must_use]
    pub fn in_space(mut self, space: &str) -> Self {
        self.space = format!("{space}/");
        self
    }

    /// The limits' names, in the order of the table.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.limits.iter().map(|one| one.limit.name.as_str())
    }

    /// The limits without a `key` of their own, by their place in the table.
    pub fn without_key(&self) -> impl Iterator<Item = usize> {
        self.limits
            .iter()
            .enumerate()
            .filter(|(_, one)| one.extent.key.is_none())
            .map(|(index, _)| index)
    }

    /// The facts that keys and conditions read, for the manifest.
    pub fn facts(&self) -> impl Iterator<Item = &str> {
        let extents = || self.limits.iter().map(|one| &one.extent);
        let keys = extents().filter_map(|extent| extent.key.as_ref()).flat_map(Template::facts);
        let conditions =
            extents().filter_map(|extent| extent.when.as_ref()).flat_map(Conditions::facts);
        // Whoever has no key is mostly charged by address.
        let address = extents().any(Extent::may_lack_key).then_some(CLIENT_IP);
        keys.chain(conditions).chain(address)
    }

    /// The limits to charge for a request: those that are about it. `key` counts where a limit has
    /// no template of its own.
    ///
    /// # Errors
    /// The denial, where a limit wants a key and the request has none.
    pub fn charge(&self, key: &str, facts: &Facts) -> Result<Vec<Answered>, Denial> {
        // Once for all limits, and not at all where no key names it. What is no address was laid
        // over the fact by the policy, and stands.
        let named = self.limits.iter().any(|one| one.extent.key.is_some());
        let client = if named { self.ipv6_prefix.client(facts).ok() } else { None };
        let shown = match &client {
            Some(client) => facts.with(CLIENT_IP, &client.text),
            None => *facts,
        };
        let mut charged = Vec::with_capacity(self.limits.len());
        for One { limit, extent } in &self.limits {
            if extent.when.as_ref().is_some_and(|when| !when.may_hold(facts)) {
                continue;
            }
            let own = match &extent.key {
                None => key.to_owned(),
                Some(template) => match self.key(template, extent, limit, &shown)? {
                    Some(key) => key,
                    None => continue,
                },
            };
            charged.push(Answered { key: fitting(self.spaced(own)), ..limit.clone() });
        }
        Ok(charged)
    }

    /// The decision that checks [`Limits::charge`].
    #[must_use]
    pub fn check(&self, key: &str, facts: &Facts) -> Decision {
        match self.charge(key, facts) {
            Ok(limits) => Decision::check(limits),
            Err(denial) => Decision::deny(denial),
        }
    }

    fn spaced(&self, key: String) -> String {
        if self.space.is_empty() { key } else { format!("{}{key}", self.space) }
    }

    /// Whose allowance a limit with a template counts; none where it is not about such a request.
    fn key(
        &self,
        template: &Template,
        extent: &Extent,
        limit: &Answered,
        facts: &Facts,
    ) -> Result<Option<String>, Denial> {
        let missing = extent.missing.unwrap_or_default();
        let why = match template.key(facts) {
            Ok(key) => return Ok(Some(key)),
            Err(why) => why,
        };
        match (missing, why) {
            (Missing::Shared, NoKey::Missing) => Ok(Some(template.render(facts))),
            (Missing::Skip, NoKey::Missing) => Ok(None),
            // A shadow limit refuses nobody.
            (Missing::Deny { status }, _) if limit.enforcement == Enforcement::Enforce => {
                Err(missing::denial(status, template, why))
            }
            _ => Ok(Some(address_key(facts.get(CLIENT_IP).unwrap_or_default()))),
        }
    }

    fn read(value: &Value) -> Result<Self, Mistakes> {
        let mut mistakes = Mistakes::new();
        let Some(items) = value.as_array() else {
            mistakes.add("", kind(value), "a list of limits");
            return Err(mistakes);
        };
        if items.is_empty() || items.len() > LIMITS_MAX {
            mistakes.add(
                "",
                format_args!("{} limits", items.len()),
                format_args!("1 to {LIMITS_MAX}"),
            );
            return Err(mistakes);
        }
        let mut limits: Vec<One> = Vec::with_capacity(items.len());
        let mut names: Vec<&str> = Vec::with_capacity(items.len());
        let mut queues = false;
        for (index, item) in items.iter().enumerate() {
            let at = format!("[{index}]");
            if let Some(name) = item.get("name").and_then(Value::as_str) {
                if names.contains(&name) {
                    mistakes.add(
                        join(&at, "name"),
                        format_args!("{name:?} a second time"),
                        "a name that no other limit here has",
                    );
                }
                names.push(name);
            }
            let row = item.get("algorithm").and_then(Value::as_str).and_then(Row::named);
            if let Some(row) = row.filter(|row| row.queues)
                && std::mem::replace(&mut queues, true)
            {
                mistakes.add(
                    join(&at, "algorithm"),
                    format_args!("a second `{}`", row.name),
                    "at most one in a table: a request waits once",
                );
            }
            let (written, unfit) = read_value::<Written>(item.clone());
            for mut mistake in unfit {
                mistake.path = join(&at, &mistake.path);
                mistakes.push(mistake);
            }
            limits.extend(
                written
                    .and_then(|written| written.check(&at, item, &mut mistakes))
                    .map(|(limit, extent)| One { limit, extent }),
            );
        }
        mistakes.or(Self { limits, ..Self::default() })
    }
}

impl<'de> Deserialize<'de> for Limits {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        if value.as_str().is_some_and(Mistakes::stand_in) {
            return Ok(Self::default());
        }
        Self::read(&value).map_err(|mistakes| D::Error::custom(mistakes.packed()))
    }
}

/// A key above the contract's bound is counted by its digest: an answer that breaks the contract
/// would be a way round the limit for whoever can send a long header, where the route lets requests
/// through on a policy error.
fn fitting(key: String) -> String {
    if key.len() <= KEY_BYTES_MAX {
        return key;
    }
    let hex = |digit: u8| char::from_digit(u32::from(digit), 16).unwrap_or('0');
    let digest = Sha256::digest(key.as_bytes());
    // `\#` begins no key that a template renders.
    "\\#".chars().chain(digest.iter().flat_map(|byte| [hex(byte >> 4), hex(byte & 15)])).collect()
}

#[cfg(test)]
mod tests;
