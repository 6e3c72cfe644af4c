//! The configuration as it is written, and its checks.

use std::collections::BTreeMap;
use std::fmt::Display;

use serde::Deserialize;
use weir_policy::{Conditions, Ipv6Prefix, LIMITS_MAX, Mistakes, Period};

use crate::api::{Api, Named, Pointers};
use crate::lists::{Counted, Plain, Settled};
use crate::models::{Model, Models};
use crate::references::Floors;
use crate::reserve::IN_FLIGHT;
use crate::{AMOUNT_MAX, LlmBudget, warnings};

/// The list of limits that are not settled.
pub(crate) const REQUESTS: &str = "requests";
/// Bytes of one token, at most. More would make long inputs cost nothing.
const BYTES_PER_TOKEN_MAX: u64 = 1_024;
/// Maximum number of simultaneous requests of one key: what a limit can count.
const IN_FLIGHT_MAX: u64 = 1_000_000;
/// How many there may be if `in_flight` is not written.
const IN_FLIGHT_DEFAULT: u64 = 32;

/// How long the proxy goes on reading a reply: at most ten minutes.
type Wait = Period<0, 600_000>;

/// `[policies.NAME.config]`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// One of the APIs that are known.
    api: Option<Named>,
    /// Any other API.
    pointers: Option<Pointers>,
    /// Limits charged in tokens, input and output together.
    tokens: Option<Settled>,
    /// Limits charged in tokens of input.
    input_tokens: Option<Settled>,
    /// Limits charged in tokens of output.
    output_tokens: Option<Settled>,
    /// Limits charged in micro-dollars.
    pub(crate) money: Option<Settled>,
    /// Limits on requests.
    requests: Option<Plain>,
    /// Prices and maxima, by the model's name or its beginning and a `*`.
    #[serde(default)]
    pub(crate) models: BTreeMap<String, Model>,
    /// Tokens of output reserved for a request that names no maximum.
    #[serde(default = "default_max_output")]
    pub(crate) default_max_output: u64,
    /// Bytes of one token, where tokens are estimated.
    #[serde(default = "bytes_per_token")]
    bytes_per_token: u64,
    /// Tokens of input reserved for what the body only refers to.
    #[serde(default)]
    references: Floors,
    /// Requests with references of one key at the same time, unless `requests` limits that; 0: any
    /// number.
    in_flight: Option<u64>,
    /// How long a reply is read on after its client left.
    #[serde(default = "read_on")]
    read_on: Wait,
    /// Whether the reserved maximum is written into requests that name none.
    #[serde(default)]
    set_maximum: bool,
    /// Whether a request gets what is left of a budget, if that is less than it asks for.
    #[serde(default = "partial")]
    partial: bool,
    /// Tokens of output, without which no request is let through by `partial`.
    #[serde(default = "least_output")]
    least_output: u64,
    /// Tokens of one step in which output is reserved while it arrives; 0: all of it at the start.
    #[serde(default)]
    pub(crate) hard_cut: u64,
    /// Whether calls are let through whose use nothing tells.
    #[serde(default)]
    unpriced: Unpriced,
    /// What a complete reply with text and without usage is charged.
    #[serde(default)]
    without_usage: WithoutUsage,
    /// Bits of an IPv6 address that make one client.
    #[serde(default)]
    ipv6_prefix: Ipv6Prefix,
    /// Requests that are never counted.
    #[serde(default)]
    bypass: Conditions,
}

/// What becomes of calls whose usage nothing reports.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
enum Unpriced {
    /// They are refused.
    #[default]
    Deny,
    /// They are charged what their bodies show.
    Allow,
}

/// What a complete reply with text and without usage is charged for its output.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
enum WithoutUsage {
    /// What was reserved, or the estimate if that is more.
    #[default]
    Reserved,
    /// The estimate from its texts.
    Estimated,
}

fn default_max_output() -> u64 {
    4_096
}

/// English has about 4 bytes a token. A low number reserves too much rather than too little.
fn bytes_per_token() -> u64 {
    3
}

fn read_on() -> Wait {
    Wait::from_ms(30_000)
}

fn partial() -> bool {
    true
}

fn least_output() -> u64 {
    16
}

/// The numbers and switches of the configuration, checked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) default_max_output: u64,
    pub(crate) bytes_per_token: u64,
    pub(crate) references: Floors,
    /// 0: any number.
    pub(crate) in_flight: u64,
    /// It is not the default.
    pub(crate) in_flight_is_written: bool,
    pub(crate) read_on_ms: u64,
    pub(crate) set_maximum: bool,
    pub(crate) partial: bool,
    pub(crate) least_output: u64,
    pub(crate) hard_cut: u64,
    /// Whether calls are let through whose usage nothing reports.
    pub(crate) unpriced: bool,
    /// Whether the output of a complete reply without usage is estimated from its texts.
    pub(crate) estimates: bool,
}

impl Settings {
    /// Whether references in bodies are looked for.
    pub(crate) fn counts_references(&self) -> bool {
        self.in_flight > 0 || !self.references.is_zero()
    }
}

impl Config {
    /// The policy, or all mistakes.
    pub(crate) fn check(self) -> Result<LlmBudget, Mistakes> {
        let mut mistakes = Mistakes::new();
        self.check_numbers(&mut mistakes);
        self.check_lists(&mut mistakes);
        self.check_hard_cut(&mut mistakes);
        let warnings = warnings::of(&self);
        let settings = Settings {
            default_max_output: self.default_max_output,
            bytes_per_token: self.bytes_per_token,
            references: self.references,
            in_flight: self.default_in_flight(),
            in_flight_is_written: self.in_flight.is_some(),
            read_on_ms: self.read_on.ms(),
            set_maximum: self.set_maximum,
            partial: self.partial,
            least_output: self.least_output,
            hard_cut: self.hard_cut,
            unpriced: self.unpriced == Unpriced::Allow,
            estimates: self.without_usage == WithoutUsage::Estimated,
        };
        if self.money.is_some() && self.models.is_empty() {
            let expected = "a price of each model, or of all: `models = { \"*\" = { .. } }`";
            mistakes.add("models", "no prices", expected);
        }
        let models = Models::new(self.models, self.money.is_some(), &mut mistakes);
        let api = api(self.api, self.pointers, &mut mistakes);
        if self.set_maximum && api.as_ref().is_some_and(|api| api.all_maxima().is_empty()) {
            let expected = "false, or `pointers.maxima`: where a maximum is written";
            mistakes.add("set_maximum", "true", expected);
        }
        let prefix = self.ipv6_prefix;
        let lists = [self.tokens, self.input_tokens, self.output_tokens, self.money];
        let budgets = Counted::ALL
            .into_iter()
            .zip(lists)
            .filter_map(|(counted, list)| Some((counted, list?.limits.ipv6_prefix(prefix))))
            .collect();
        let Some(api) = api else { return Err(mistakes) };
        mistakes.or(LlmBudget {
            api,
            budgets,
            requests: self.requests.map(|list| list.limits.ipv6_prefix(prefix)),
            models,
            settings,
            ipv6_prefix: prefix,
            bypass: self.bypass,
            warnings,
        })
    }

    /// The lists that are settled, in the order of [`Counted::ALL`].
    pub(crate) fn settled(&self) -> impl Iterator<Item = (Counted, &Settled)> {
        let lists = [&self.tokens, &self.input_tokens, &self.output_tokens, &self.money];
        Counted::ALL
            .into_iter()
            .zip(lists)
            .filter_map(|(counted, list)| Some((counted, list.as_ref()?)))
    }

    fn in_flight(&self) -> u64 {
        self.in_flight.unwrap_or(IN_FLIGHT_DEFAULT)
    }

    /// Requests with references at the same time. The operator's own limits come first.
    fn default_in_flight(&self) -> u64 {
        let limited = self.requests.as_ref().is_some_and(Plain::limits_concurrency);
        if limited || self.settled().next().is_none() { 0 } else { self.in_flight() }
    }

    fn check_numbers(&self, mistakes: &mut Mistakes) {
        for (setting, number, least, most) in [
            ("default_max_output", self.default_max_output, 1, AMOUNT_MAX),
            ("bytes_per_token", self.bytes_per_token, 1, BYTES_PER_TOKEN_MAX),
            ("in_flight", self.in_flight(), 0, IN_FLIGHT_MAX),
            ("least_output", self.least_output, 1, AMOUNT_MAX),
            ("hard_cut", self.hard_cut, 0, AMOUNT_MAX),
        ] {
            if number < least || number > most {
                mistakes.add(setting, number, format_args!("{least} to {most}"));
            }
        }
        self.references.check(mistakes);
    }

    fn check_lists(&self, mistakes: &mut Mistakes) {
        let mut lists: Vec<(&str, Vec<Option<String>>)> = Vec::new();
        for (counted, list) in self.settled() {
            list.check(counted, mistakes);
            lists.push((counted.setting(), list.names().collect()));
        }
        if let Some(list) = &self.requests {
            list.check(REQUESTS, mistakes);
            lists.push((REQUESTS, list.names().collect()));
        }
        if lists.is_empty() {
            let expected = "one of `tokens`, `input_tokens`, `output_tokens`, `money`, `requests`";
            mistakes.add("", "no limits", expected);
        }
        let mut known: Vec<(&str, &str)> = Vec::new();
        let mut count = 0;
        for (list, names) in &lists {
            count += names.len();
            let named = names.iter().enumerate();
            for (index, name) in named.filter_map(|(index, name)| Some((index, name.as_deref()?))) {
                // A list itself reports a name that it has twice.
                let other = known.iter().find(|(other, known)| *known == name && other != list);
                if let Some((other, _)) = other {
                    let found = format_args!("{name:?}, which is also in `{other}`");
                    let expected = "a name that no other limit has";
                    mistakes.add(format!("{list}[{index}].name"), found, expected);
                }
                known.push((list, name));
            }
        }
        let in_flight = self.default_in_flight() > 0;
        if let Some((list, _)) = known.iter().find(|(_, name)| in_flight && *name == IN_FLIGHT) {
            let found = format_args!("a limit with the name {IN_FLIGHT:?}");
            let expected =
                "another name, or `in_flight = 0`: the limit of `in_flight` is called that";
            mistakes.add(*list, found, expected);
        }
        if count > LIMITS_MAX {
            let expected = format_args!("at most {LIMITS_MAX} for one request");
            mistakes.add("", format_args!("{count} limits in all lists"), expected);
        } else if in_flight && count == LIMITS_MAX {
            let found = format_args!("{count} limits in all lists, and the one of `in_flight`");
            let expected = format_args!("at most {LIMITS_MAX} for one request, or `in_flight = 0`");
            mistakes.add("", found, expected);
        }
    }

    /// Only limits in `tokens` can be taken from in steps.
    fn check_hard_cut(&self, mistakes: &mut Mistakes) {
        if self.hard_cut == 0 {
            return;
        }
        let mut add = |found: &dyn Display, expected: &str| {
            mistakes.add("hard_cut", format_args!("{}, {found}", self.hard_cut), expected);
        };
        if self.tokens.is_none() {
            add(&"without limits in `tokens`", "0, or limits in `tokens`: output is cut by them");
        }
        for (counted, list) in self.settled() {
            if counted != Counted::Tokens && list.may_refuse() {
                let found = format!("with limits in `{}`", counted.setting());
                add(
                    &found,
                    "0, or these limits with `shadow = true`: they can't be taken in steps",
                );
            }
        }
    }
}

fn api(named: Option<Named>, pointers: Option<Pointers>, mistakes: &mut Mistakes) -> Option<Api> {
    match (named, pointers) {
        (Some(named), None) => Some(named.into()),
        (None, Some(pointers)) => {
            pointers.check(mistakes);
            Some(pointers.into())
        }
        (Some(_), Some(_)) => {
            mistakes.add("pointers", "pointers beside `api`", "only one of the two");
            None
        }
        (None, None) => {
            let expected = "`api = \"openai\"`, \"anthropic\" or \"gemini\", or `pointers`";
            mistakes.add("api", "neither `api` nor `pointers`", expected);
            None
        }
    }
}
