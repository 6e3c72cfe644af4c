//! The `limits` table of a configuration, shared by all policies that ship with Weir.

mod algorithm;
mod children;
mod cost;
mod missing;
mod period;
mod plans;
mod written;

use serde::de::Error;
use serde::{Deserialize, Deserializer};
use weir_algorithms::Row;

use crate::Enforcement;
use crate::bindings::weir::policy::types::Limit as WitLimit;
use crate::client::{CLIENT_IP, address_key};
use crate::config::join;
use crate::digest::sha256;
use crate::mistakes::Mistakes;
use crate::template::ABSENT;
use crate::{
    Decision, Denial, Facts, Ipv6Prefix, Json, KEY_BYTES_MAX, LIMITS_MAX, NoKey, Template,
};
use written::{Selector, Written};

pub use missing::Missing;
pub use plans::{PlanPriorities, PlanTable};

/// What is expected of settings that say whose child a request is, where the policy knows.
const POLICY_KNOWS: &str = "nothing: the policy knows whose it is";
/// The option of a limit that is leased.
const LEASE_OPTION: &str = "lease-ms";

/// A checked `limits` table. Use it as the type of a setting.
///
/// ```toml
/// [[policies.public.config.limits]]
/// name = "per-minute"           # for fields, metrics and logs; unique in its table
/// algorithm = "fixed_window"    # or "sliding_window_counter", "sliding_window_log", "sliding_window_buckets", "token_bucket", "gcra",
///                               # "leaky_bucket", "concurrency", "quota", "script"
/// quota = 100                   # with "concurrency": how many requests may be in flight
/// period = "1m"                 # not with "concurrency" or "quota"
/// # alignment = "first_request" # of "fixed_window": when a window begins; or "clock"
/// # burst = 20                  # of buckets: how many may come at once; default: the quota, of "leaky_bucket" 1
/// # max_delay = "500ms"         # of "leaky_bucket": the longest that a request is delayed
/// # buckets = 60                # of "sliding_window_buckets": the parts of the window, 1 to 1000
/// # calendar = "month"          # of "quota": or "hour", "day", "week", "forever"
/// # time_zone = "UTC"           # of "quota": where its days begin, such as "Europe/Berlin"
/// # anchor_day = 1              # of "quota" by the month: the day on which it begins
/// # script = "mine"             # of "script": the operator's own Lua file, `mine.lua`
/// # arguments = [100, 60_000]   # of "script": its numbers, six at most
/// # conditional = true          # of "quota": false counts and reports, but never refuses
/// # key = "{client_ip}"         # default: the policy's own key
/// # missing = "address"         # for a request without that key; or "shared", "skip", "deny"
/// # when = { method = "POST" }  # the requests that it counts (`Conditions`); default: all
/// # unless = ["10.0.0.0/8"]     # the requests that it doesn't count; default: none
/// # cost = 1
/// # shadow = false              # count and report, never refuse
/// # refund = "never"            # when units are given back: or "unsent", "upstream_error" (also after a 5xx), "by_settle"
/// # debt = 500                  # units that a policy's `settle` may charge beyond what is left; or "allowance" (one quota or
///                               # burst), "window" (one quota, forgotten when the window ends)
/// # on_store_error = "deny"     # or "allow"; default: the route's
/// # lease = "200ms"             # a proxy may take several units from Redis at once and spend them for this long; or
///                               # { life = "200ms", units = 100, strict = true }; with `callers = true`, Envoy's quota filter
///                               # may have them, for 2 s or longer, and no worker
/// # messages = "close"          # each message that a client sends on a WebSocket takes the cost, too; where that does not fit, the
///                               # WebSocket is closed, or with "wait" what the client sends waits
/// # unit = "requests"
/// # show = true                # false: no field of a response, and no refusal, names the limit
/// # children = { key = "{header.x-team}", assured = 20, ceiling = 80 }
///                               # each team is sure of 20 of the 100, and gets up to 80 while others leave them
/// ```
///
/// `key` is a [`Template`]. `missing` ([`Missing`]) decides what happens to a request without that
/// key. `{client_ip}` in a template is the client as [`Ipv6Prefix`] identifies it: an IPv6 client
/// is its network.
#[derive(Clone, Debug, Default)]
pub struct Limits {
    limits: Vec<TableEntry>,
    ipv6_prefix: Ipv6Prefix,
    space: String,
}

/// The status for what has neither a key nor an address to count by.
const NO_ADDRESS: u16 = 400;

#[derive(Clone, Debug)]
struct TableEntry {
    limit: WitLimit,
    selector: Selector,
    place: Place,
}

/// Where a request's child is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChildKeys {
    /// Limits have no children.
    None,
    /// By a template, which each has.
    Template,
    /// The policy knows.
    Policy,
}

impl ChildKeys {
    /// Reports what `children`, which is at `at`, says of keys and must not, or does not say.
    fn check(self, children: &Json<'_>, at: &str, mistakes: &mut Mistakes) {
        match (self, children.get("key")) {
            (Self::None, _) => {
                let expected = "nothing: the limits of this policy have no children";
                mistakes.add(at, "children", expected);
            }
            (Self::Template, None) => {
                let expected = "where to find whose it is, such as `key = \"{header.x-team}\"`";
                mistakes.add(at, "no `key`", expected);
            }
            (Self::Template, Some(_)) => {}
            (Self::Policy, _) => {
                for setting in ["key", "missing"] {
                    if let Some(value) = children.get(setting) {
                        mistakes.add(join(at, setting), value, POLICY_KNOWS);
                    }
                }
            }
        }
    }
}

/// Which setting a limit is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// An item of the table.
    Item,
    /// `children.ceiling` of the item before.
    Ceiling,
    /// `children.assured` of the same item.
    Assured,
}

/// A limit of a table, and of which setting it is.
pub(crate) struct KeyedLimit<'a> {
    pub(crate) limit: &'a WitLimit,
    /// Its own template, if it has one.
    pub(crate) template: Option<&'a Template>,
    pub(crate) index: usize,
    /// The setting in `children`; `None` if it is the limit itself.
    pub(crate) part: Option<&'static str>,
}

impl Limits {
    /// Sets how many bits of an IPv6 address identify a client, for keys with the address. The
    /// default is 64.
    #[must_use]
    pub fn ipv6_prefix(mut self, ipv6_prefix: Ipv6Prefix) -> Self {
        self.ipv6_prefix = ipv6_prefix;
        self
    }

    /// Sets the `key` and `missing` of limits that don't set their own.
    #[must_use]
    pub fn by_default(mut self, key: Option<&Template>, missing: Option<Missing>) -> Self {
        for TableEntry { selector, place, .. } in &mut self.limits {
            if *place != Place::Item {
                continue;
            }
            let Selector { key: own_key, missing: own_missing, .. } = selector;
            *own_key = own_key.take().or_else(|| key.cloned());
            *own_missing = own_missing.or(missing);
        }
        self
    }

    /// Separates these limits' counters from those of limits in other spaces, even if their names
    /// and keys are the same. The name of a space must not contain `/`.
    #[must_use]
    pub fn in_space(mut self, space: &str) -> Self {
        self.space = format!("{space}/");
        self
    }

    /// The limits' names, in the order of the table.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.items().map(|entry| entry.limit.name.as_str())
    }

    /// The names of all limits that a request may be charged, those of children included.
    pub fn all_names(&self) -> impl Iterator<Item = &str> {
        self.limits.iter().map(|entry| entry.limit.name.as_str())
    }

    /// The names of all limits that a request may be charged, each with the path in this table of
    /// what has it, such as `[0]` or `[0].children`.
    pub fn named(&self) -> impl Iterator<Item = (String, &str)> {
        self.keyed().map(|KeyedLimit { limit, index, part, .. }| {
            let children = if part.is_some() { ".children" } else { "" };
            (format!("[{index}]{children}"), limit.name.as_str())
        })
    }

    /// The entries that are items of the table.
    fn items(&self) -> impl Iterator<Item = &TableEntry> {
        self.limits.iter().filter(|entry| entry.place == Place::Item)
    }

    /// The names of the limits with a `debt`, in the order of the table.
    pub fn owing(&self) -> impl Iterator<Item = &str> {
        let owing = self.items().filter(|entry| entry.limit.debt.is_some());
        owing.map(|entry| entry.limit.name.as_str())
    }

    /// The indices in the table of the limits without their own `key`.
    pub fn without_key(&self) -> impl Iterator<Item = usize> {
        self.items()
            .enumerate()
            .filter(|(_, entry)| entry.selector.key.is_none())
            .map(|(index, _)| index)
    }

    /// The facts that keys and conditions read, for the manifest.
    pub fn facts(&self) -> impl Iterator<Item = &str> {
        let selectors = || self.limits.iter().map(|entry| &entry.selector);
        let keys =
            selectors().filter_map(|selector| selector.key.as_ref()).flat_map(Template::facts);
        let conditions = selectors().flat_map(Selector::conditions);
        // A request without a key is charged to its address by default.
        let address = selectors().any(Selector::may_lack_key).then_some(CLIENT_IP);
        keys.chain(conditions).chain(address)
    }

    /// The limits to charge for a request: all but those whose conditions certainly don't hold.
    /// `key` is used for limits without a template.
    ///
    /// # Errors
    /// The denial, if the request lacks the key of a limit whose `missing` says to deny.
    pub fn charge(&self, key: &str, facts: &Facts) -> Result<Vec<WitLimit>, Denial> {
        self.charge_child((key, None), facts)
    }

    /// The same for a policy that has keys of its own for children: `child` is used for children
    /// without a template, and without it only their parents are charged.
    ///
    /// # Errors
    /// As [`Limits::charge`].
    pub fn charge_child(
        &self,
        (key, child): (&str, Option<&str>),
        facts: &Facts,
    ) -> Result<Vec<WitLimit>, Denial> {
        // Computed once for all limits, and only if a limit may need it. A fact that is not an
        // address was set by the policy, and is used as it is.
        let named = self.limits.iter().any(|entry| entry.selector.may_need_address());
        let client = if named { self.ipv6_prefix.client(facts).ok() } else { None };
        let shown = match &client {
            Some(client) => facts.with(CLIENT_IP, &client.text),
            None => *facts,
        };
        let mut charged = Vec::with_capacity(self.limits.len());
        // The key of the item before, if it is charged, and that of its child.
        let (mut parent, mut child_key) = (None, None);
        let mut is_leased = false;
        for TableEntry { limit, selector, place } in &self.limits {
            let otherwise = if *place == Place::Item { Some(key) } else { child };
            if *place == Place::Item {
                (parent, child_key) = (None, None);
                if selector.excludes(facts) {
                    continue;
                }
            } else if parent.is_none() {
                continue;
            }
            let own = match (&selector.key, *place) {
                (_, Place::Assured) => child_key.take(),
                (None, _) => otherwise.map(|key| bounded_key(self.spaced(key.to_owned()))),
                (Some(template), _) => self
                    .key(template, selector, limit, &shown)?
                    .map(|key| bounded_key(self.spaced(key))),
            };
            let Some(key) = own else { continue };
            let mut limit = WitLimit { key, ..limit.clone() };
            match place {
                Place::Item => {
                    is_leased = leased(&limit);
                    parent = Some(limit.key.clone());
                }
                // All of a parent's children share its slot, unless it is leased: then each has
                // its own.
                Place::Ceiling | Place::Assured => {
                    child_key = Some(limit.key.clone());
                    limit.tag = parent.clone().filter(|_| !is_leased);
                }
            }
            charged.push(limit);
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

    /// Each limit, and those of its children after it.
    pub(crate) fn keyed(&self) -> impl Iterator<Item = KeyedLimit<'_>> {
        let mut items = 0;
        self.limits.iter().map(move |TableEntry { limit, selector, place }| {
            items += usize::from(*place == Place::Item);
            let part = match place {
                Place::Item => None,
                Place::Ceiling => Some("ceiling"),
                Place::Assured => Some("assured"),
            };
            KeyedLimit { limit, template: selector.key.as_ref(), index: items - 1, part }
        })
    }

    /// The most limits that a request is charged.
    #[must_use]
    pub fn count(&self) -> usize {
        self.limits.len()
    }

    /// Whether the limit at `index` of the table has children.
    #[must_use]
    pub fn has_children(&self, index: usize) -> bool {
        self.keyed().any(|limit| limit.index == index && limit.part.is_some())
    }

    /// Whether units of each of its limits are leased, so that their counters need not share a slot
    /// with others. `false` without limits.
    #[must_use]
    pub fn are_leased(&self) -> bool {
        self.items().next().is_some() && self.items().all(|entry| leased(&entry.limit))
    }

    /// What all keys begin with.
    pub(crate) fn space(&self) -> &str {
        &self.space
    }

    fn spaced(&self, key: String) -> String {
        if self.space.is_empty() { key } else { format!("{}{key}", self.space) }
    }

    /// The key of a limit with a template; `None` if the limit skips this request.
    fn key(
        &self,
        template: &Template,
        selector: &Selector,
        limit: &WitLimit,
        facts: &Facts,
    ) -> Result<Option<String>, Denial> {
        let missing = selector.missing.unwrap_or_default();
        let why = match template.key(facts) {
            Ok(key) => return Ok(Some(key)),
            Err(why) => why,
        };
        match (missing, why) {
            (Missing::Shared, NoKey::Missing) => Ok(Some(ABSENT.to_owned())),
            (Missing::Skip, NoKey::Missing) => Ok(None),
            // A shadow limit never refuses.
            (Missing::Deny { status }, _) if limit.enforcement == Enforcement::Enforce => {
                Err(missing::denial(status, template, why))
            }
            _ => match facts.get(CLIENT_IP) {
                Some(address) => Ok(Some(address_key(address))),
                // Every request has one. A call for a decision has what its caller says.
                None => Err(missing::denial(NO_ADDRESS, template, why)),
            },
        }
    }

    /// Reads a table that was changed since it was written, whose limits have no children. The
    /// error carries the path of each mistake, and must reach the reader of the whole configuration
    /// as it is.
    ///
    /// # Errors
    /// All mistakes.
    pub fn from_json<E: Error>(value: &Json<'_>) -> Result<Self, E> {
        Self::unpacked(value, Self::read)
    }

    /// Reads a table whose limits' children have a key of the policy's own: see
    /// [`Limits::charge_child`].
    ///
    /// # Errors
    /// As [`Limits::from_json`].
    pub fn with_children<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let read = |value: &Json<'_>| Self::read_table(value, ChildKeys::Policy);
        Self::unpacked(&Json::deserialize(deserializer)?, read)
    }

    fn unpacked<E: Error>(
        value: &Json<'_>,
        read: impl FnOnce(&Json<'_>) -> Result<Self, Mistakes>,
    ) -> Result<Self, E> {
        if value.as_str().is_some_and(|text| Mistakes::stand_in(&text)) {
            return Ok(Self::default());
        }
        read(value).map_err(|mistakes| E::custom(mistakes.packed()))
    }

    /// Reads a table whose limits have no children. Deserializing allows them and does the same
    /// else; a policy with checks of its own for the items of a list, or that changes what is
    /// charged, calls this instead, and reports its mistakes together with these.
    ///
    /// # Errors
    /// All mistakes, with paths inside the table.
    pub fn read(value: &Json<'_>) -> Result<Self, Mistakes> {
        Self::read_table(value, ChildKeys::None)
    }

    fn read_table(value: &Json<'_>, keys: ChildKeys) -> Result<Self, Mistakes> {
        let mut mistakes = Mistakes::new();
        if !value.is_list() {
            mistakes.add("", value.kind_text(), "a list of limits");
            return Err(mistakes);
        }
        let items: Vec<Json<'_>> = value.items().collect();
        if items.is_empty() || items.len() > LIMITS_MAX {
            mistakes.add(
                "",
                format_args!("{} limits", items.len()),
                format_args!("1 to {LIMITS_MAX}"),
            );
            return Err(mistakes);
        }
        let mut limits: Vec<TableEntry> = Vec::with_capacity(items.len());
        let mut names: Vec<String> = Vec::with_capacity(items.len());
        let mut queues = false;
        for (index, item) in items.iter().enumerate() {
            let at = format!("[{index}]");
            let text = |key: &str| Some(item.get(key)?.as_str()?.into_owned());
            if let Some(name) = text("name") {
                if names.contains(&name) {
                    mistakes.add(
                        join(&at, "name"),
                        format_args!("{name:?} a second time"),
                        "a name that no other limit here has",
                    );
                }
                names.push(name);
            }
            let row = text("algorithm").and_then(|name| Row::named(&name));
            if let Some(row) = row.filter(|row| row.queues)
                && std::mem::replace(&mut queues, true)
            {
                mistakes.add(
                    join(&at, "algorithm"),
                    format_args!("a second `{}`", row.name),
                    "at most one in a table: a request waits once",
                );
            }
            let written = Written::read(&at, item, &mut mistakes);
            let checked = written.and_then(|written| written.check(&at, item, &mut mistakes));
            let Some((limit, selector, children)) = checked else { continue };
            limits.push(TableEntry { limit, selector, place: Place::Item });
            let Some([ceiling, assured]) = children else { continue };
            let at = join(&at, "children");
            if let Some(written) = item.get("children") {
                keys.check(&written, &at, &mut mistakes);
            }
            for ((limit, selector), place) in [(ceiling, Place::Ceiling), (assured, Place::Assured)]
            {
                if names.contains(&limit.name) {
                    let found = format_args!("{:?} a second time", limit.name);
                    mistakes.add(join(&at, "name"), found, "a name that no other limit here has");
                }
                names.push(limit.name.clone());
                limits.push(TableEntry { limit, selector, place });
            }
        }
        let table = Self { limits, ..Self::default() };
        if table.count() > LIMITS_MAX {
            let found = format_args!("{} limits, with those of children", table.count());
            mistakes.add("", found, format_args!("1 to {LIMITS_MAX}"));
        }
        mistakes.or(table)
    }
}

impl<'de> Deserialize<'de> for Limits {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let read = |value: &Json<'_>| Self::read_table(value, ChildKeys::Template);
        Self::unpacked(&Json::deserialize(deserializer)?, read)
    }
}

/// Whether a proxy may take several units of it at once.
fn leased(limit: &WitLimit) -> bool {
    limit.options.iter().any(|(option, _)| option == LEASE_OPTION)
}

/// Replaces a key, or a tag, that is longer than the contract allows by its digest. Otherwise a
/// client could bypass the limit with a long header: the answer would break the contract, and a
/// route may let requests through on a policy error. [`Limits`] does so with its keys.
#[must_use]
pub fn bounded_key(key: String) -> String {
    if key.len() <= KEY_BYTES_MAX {
        return key;
    }
    let hex = |digit: u8| char::from_digit(u32::from(digit), 16).unwrap_or('0');
    let digest = sha256(key.as_bytes());
    // No template renders a key that begins with `\#`.
    "\\#".chars().chain(digest.iter().flat_map(|byte| [hex(byte >> 4), hex(byte & 15)])).collect()
}

#[cfg(test)]
mod tests;
