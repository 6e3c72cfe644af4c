//! One limit as written in the configuration. `algorithm` checks what depends on its algorithm.

use std::fmt::Display;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use weir_algorithms::{AMOUNT_MAX, Alignment, Debt, Every};

use crate::bindings::weir::policy::types;
use crate::config::join;
use crate::limits::algorithm::{self, NamedRow};
use crate::limits::missing::Missing;
use crate::limits::period::{self, Period};
use crate::mistakes::{Mistakes, message};
use crate::names::{NAME_EXPECTED, is_name};
use crate::{Conditions, Enforcement, Limit, Template};

/// The fields of a limit. Required ones are an `Option` too, so that a missing one is reported
/// together with all other mistakes.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Written {
    name: Option<String>,
    pub(super) algorithm: Option<NamedRow>,
    pub(super) quota: Option<u64>,
    #[serde(default, deserialize_with = "period::period")]
    pub(super) period: Option<Period>,
    pub(super) burst: Option<u64>,
    #[serde(default, deserialize_with = "alignment")]
    pub(super) alignment: Option<Alignment>,
    pub(super) buckets: Option<u64>,
    #[serde(default, deserialize_with = "period::delay")]
    pub(super) max_delay: Option<Period>,
    #[serde(default, deserialize_with = "calendar")]
    pub(super) calendar: Option<Every>,
    pub(super) time_zone: Option<String>,
    pub(super) anchor_day: Option<u64>,
    pub(super) conditional: Option<bool>,
    pub(super) script: Option<String>,
    pub(super) arguments: Option<Vec<i64>>,
    #[serde(default, deserialize_with = "debt")]
    pub(super) debt: Option<Debt>,
    key: Option<Template>,
    missing: Option<Missing>,
    when: Option<Conditions>,
    #[serde(default = "one")]
    pub(super) cost: u64,
    #[serde(default)]
    shadow: bool,
    #[serde(default)]
    refund: Refund,
    on_store_error: Option<Fallback>,
    unit: Option<String>,
}

/// Which requests a limit counts, and under which key.
#[derive(Clone, Debug)]
pub(super) struct Selector {
    pub(super) key: Option<Template>,
    pub(super) missing: Option<Missing>,
    pub(super) when: Option<Conditions>,
}

impl Selector {
    /// Whether some request may lack the key. Facts that every request has are never missing.
    pub(super) fn may_lack_key(&self) -> bool {
        let always = ["client-ip", "method", "scheme", "path", "route", "http.version"];
        self.key.as_ref().is_some_and(|key| key.facts().any(|fact| !always.contains(&fact)))
    }
}

fn alignment<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Alignment>, D::Error> {
    algorithm::keyword(deserializer, &Alignment::ALL, &["first_request", "clock"])
}

fn calendar<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Every>, D::Error> {
    algorithm::keyword(deserializer, &Every::ALL, &["hour", "day", "week", "month", "forever"])
}

/// A number of units, or one of the words.
fn debt<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Debt>, D::Error> {
    const EXPECTED: &str = "units such as `debt = 500`, \"allowance\" or \"window\"";
    let value = Value::deserialize(deserializer)?;
    let named = |name: &str| Debt::NAMED.into_iter().find(|(known, _)| *known == name);
    let debt = match &value {
        Value::String(name) => named(name).map(|(_, debt)| debt),
        _ => value.as_u64().map(Debt::Units),
    };
    debt.map(Some).ok_or_else(|| D::Error::custom(message(&value, EXPECTED)))
}

fn one() -> u64 {
    1
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Refund {
    #[default]
    Never,
    Unsent,
    UpstreamError,
    BySettle,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Fallback {
    Allow,
    Local,
    Deny,
}

/// Collects the mistakes of one limit.
pub(super) struct Report<'a> {
    at: &'a str,
    pub(super) item: &'a Value,
    mistakes: &'a mut Mistakes,
    found: bool,
}

impl Report<'_> {
    pub(super) fn add(&mut self, field: &str, found: impl Display, expected: impl Display) {
        self.found = true;
        self.mistakes.add(join(self.at, field), found, expected);
    }

    /// Reports a required setting that is missing. One that was written but is invalid has been
    /// reported already.
    pub(super) fn required<T>(&mut self, field: &str, value: Option<&T>, expected: &str) {
        if value.is_none() && self.item.get(field).is_none() {
            self.add("", format_args!("no `{field}`"), expected);
        }
    }

    /// Whether a mistake about `field` was added.
    pub(super) fn has(&self, field: &str) -> bool {
        self.mistakes.has(&join(self.at, field))
    }

    /// The value of `field`, as it is written.
    pub(super) fn written(&self, field: &str) -> String {
        self.item.get(field).map(Value::to_string).unwrap_or_default()
    }

    /// Reports an amount that is out of range. `true` if it is in range.
    pub(super) fn amount(&mut self, field: &str, amount: u64) -> bool {
        if amount > AMOUNT_MAX {
            self.add(field, amount, format_args!("0 to {AMOUNT_MAX}"));
        }
        amount <= AMOUNT_MAX
    }
}

impl Written {
    /// The settings that belong to an algorithm.
    pub(super) fn for_algorithm(&self) -> weir_algorithms::Written<'_> {
        weir_algorithms::Written {
            quota: self.quota,
            period_ms: self.period.map(|period| period.ms),
            burst: self.burst,
            alignment: self.alignment,
            buckets: self.buckets,
            max_delay_ms: self.max_delay.map(|delay| delay.ms),
            calendar: self.calendar,
            time_zone: self.time_zone.as_deref(),
            anchor_day: self.anchor_day,
            conditional: self.conditional,
            script: self.script.as_deref(),
            arguments: self.arguments.as_deref(),
            debt: self.debt,
        }
    }

    /// Checks the limit and converts it to the WIT type. `None` if a mistake was reported. `item`
    /// is the JSON value that `self` was read from.
    pub(super) fn check(
        self,
        at: &str,
        item: &Value,
        mistakes: &mut Mistakes,
    ) -> Option<(Limit, Selector)> {
        let mut report = Report { at, item, mistakes, found: false };
        report.required("name", self.name.as_ref(), "a name, such as `name = \"per-minute\"`");
        if let Some(name) = self.name.as_deref().filter(|name| !is_name(name)) {
            report.add("name", format_args!("{name:?}"), NAME_EXPECTED);
        }
        if let Some(unit) = self.unit.as_deref().filter(|unit| !is_name(unit)) {
            report.add("unit", format_args!("{unit:?}"), NAME_EXPECTED);
        }
        let algorithm = algorithm::check(&self, &mut report);
        if report.found {
            return None;
        }
        let debt = match self.debt {
            None | Some(Debt::None) => None,
            Some(Debt::Allowance) => Some(types::Debt::Allowance),
            Some(Debt::Units(units)) => Some(types::Debt::Units(units)),
            Some(Debt::Window) => Some(types::Debt::Window),
        };
        let limit = Limit {
            algorithm: algorithm::to_wit(algorithm?),
            name: self.name?,
            key: String::new(),
            tag: None,
            cost: self.cost,
            unit: self.unit,
            enforcement: if self.shadow { Enforcement::Shadow } else { Enforcement::Enforce },
            refund: match self.refund {
                Refund::Never => types::Refund::Never,
                Refund::Unsent => types::Refund::Unsent,
                Refund::UpstreamError => types::Refund::UpstreamError,
                Refund::BySettle => types::Refund::BySettle,
            },
            debt,
            on_store_error: match self.on_store_error {
                None => types::Fallback::RouteDefault,
                Some(Fallback::Allow) => types::Fallback::Allow,
                Some(Fallback::Local) => types::Fallback::Local,
                Some(Fallback::Deny) => types::Fallback::Deny,
            },
        };
        Some((limit, Selector { key: self.key, missing: self.missing, when: self.when }))
    }
}
