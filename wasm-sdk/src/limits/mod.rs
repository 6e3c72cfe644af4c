//! The one way in which limits are written in a configuration, shared by every policy that ships.
//!
//! `written` checks what stands there, `built` knows what the proxy does not run yet, `template` and `period` read its two little languages.

mod built;
mod period;
mod template;
mod written;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::bindings::weir::policy::types::Limit as Answered;
use crate::config::{REPORTED, join, pack, read_value};
use crate::mistakes::Mistakes;
use crate::{Decision, Facts, KEY_BYTES_MAX, LIMITS_MAX};
use template::Template;
use written::Written;

/// A `limits` table, checked whole: use it as the type of a setting.
///
/// ```toml
/// [[policies.public.config.limits]]
/// name = "per-minute"           # in fields, metrics, logs; unique in its table
/// algorithm = "fixed_window"    # or "token_bucket", "gcra"
/// quota = 100
/// period = "1m"
/// # burst = 20                  # the bucket's capacity, where there is one; default: the quota
/// # alignment = "first_request" # or "clock": where a fixed window begins
/// # key = "{client_ip}"         # default: the policy's own key
/// # cost = 1
/// # shadow = false              # count and report, never refuse
/// # refund = "never"            # "unsent", "upstream_error", "by_settle"
/// # on_store_error = "deny"     # or "allow"; default: the route's
/// # unit = "requests"
/// ```
///
/// A key template names facts in braces: `{client_ip}` `{method}` `{scheme}` `{authority}` `{path}` `{query}` `{route}` `{request_length}`
/// `{http_version}` `{header.NAME}` `{cookie.NAME}` `{query.NAME}` `{path.NAME}`; `{{` and `}}` are braces. Two requests have the same key only when all
/// named facts are the same; a fact that is absent is a value of its own.
#[derive(Clone, Debug, Default)]
pub struct Limits {
    limits: Vec<One>,
}

#[derive(Clone, Debug)]
struct One {
    limit: Answered,
    key: Option<Template>,
}

impl Limits {
    /// The facts that the key templates read, for the manifest.
    pub fn facts(&self) -> impl Iterator<Item = &str> {
        self.limits.iter().filter_map(|one| one.key.as_ref()).flat_map(Template::facts)
    }

    /// The limits to charge for a request. `key` counts where a limit has no template of its own.
    #[must_use]
    pub fn charge(&self, key: &str, facts: &Facts) -> Vec<Answered> {
        let charge = |one: &One| {
            let key = one.key.as_ref().map_or_else(|| key.to_owned(), |template| template.render(facts));
            Answered { key: fitting(key), ..one.limit.clone() }
        };
        self.limits.iter().map(charge).collect()
    }

    /// The decision that checks [`Limits::charge`].
    #[must_use]
    pub fn check(&self, key: &str, facts: &Facts) -> Decision {
        Decision::check(self.charge(key, facts))
    }

    fn read(value: &Value) -> Result<Self, Mistakes> {
        let mut mistakes = Mistakes::new();
        let Some(items) = value.as_array() else {
            mistakes.add("", kind(value), "a list of limits");
            return Err(mistakes);
        };
        if items.is_empty() || items.len() > LIMITS_MAX {
            mistakes.add("", format_args!("{} limits", items.len()), format_args!("1 to {LIMITS_MAX}"));
            return Err(mistakes);
        }
        let mut limits: Vec<One> = Vec::with_capacity(items.len());
        let mut names: Vec<&str> = Vec::with_capacity(items.len());
        for (index, item) in items.iter().enumerate() {
            let at = format!("[{index}]");
            if let Some(name) = item.get("name").and_then(Value::as_str) {
                if names.contains(&name) {
                    mistakes.add(join(&at, "name"), format_args!("{name:?} a second time"), "a name that no other limit here has");
                }
                names.push(name);
            }
            let mut limit = item.clone();
            built::take_keys_to_come(&at, &mut limit, &mut mistakes);
            let (written, unfit) = read_value::<Written>(limit);
            for mut mistake in unfit {
                mistake.path = join(&at, &mistake.path);
                mistakes.push(mistake);
            }
            limits.extend(written.and_then(|written| written.check(&at, item, &mut mistakes)).map(|(limit, key)| One { limit, key }));
        }
        mistakes.or(Self { limits })
    }
}

impl<'de> Deserialize<'de> for Limits {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        if value.as_str() == Some(REPORTED) {
            return Ok(Self::default());
        }
        Self::read(&value).map_err(|mistakes| D::Error::custom(pack(&mistakes.into_vec())))
    }
}

/// A key above the contract's bound is counted by its digest: an answer that breaks the contract would be a way round the limit for whoever
/// can send a long header, where the route lets requests through on a policy error.
fn fitting(key: String) -> String {
    if key.len() <= KEY_BYTES_MAX {
        return key;
    }
    let hex = |digit: u8| char::from_digit(u32::from(digit), 16).unwrap_or('0');
    let digest = Sha256::digest(key.as_bytes());
    // `\#` begins no key that `template` renders.
    "\\#".chars().chain(digest.iter().flat_map(|byte| [hex(byte >> 4), hex(byte & 15)])).collect()
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "nothing",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "a table",
    }
}

#[cfg(test)]
mod tests;
