//! The lists of limits: what each counts, and which limits may stand in it. Knows no request.

use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};
use weir_policy::{Algorithm, Enforcement, Limit, Limits, Mistakes};

use crate::AMOUNT_MAX;
use crate::models::Price;

/// Algorithms whose units can be neither given back nor owed.
const UNSETTLED: [&str; 3] = ["leaky_bucket", "concurrency", "script"];

/// What the limits of a list count that is settled at the reply's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counted {
    /// Tokens of input and output together.
    Tokens,
    /// Tokens of input.
    Input,
    /// Tokens of output.
    Output,
    /// Micro-dollars.
    Money,
}

impl Counted {
    pub(crate) const ALL: [Self; 4] = [Self::Tokens, Self::Input, Self::Output, Self::Money];

    /// The setting with the list.
    pub(crate) fn setting(self) -> &'static str {
        match self {
            Self::Tokens => "tokens",
            Self::Input => "input_tokens",
            Self::Output => "output_tokens",
            Self::Money => "money",
        }
    }

    /// The unit that clients and operators see.
    pub(crate) fn unit(self) -> &'static str {
        match self {
            Self::Tokens => "tokens",
            Self::Input => "input-tokens",
            Self::Output => "output-tokens",
            Self::Money => "micro-dollars",
        }
    }

    /// Units for these tokens, 2^52 at most. Nothing costs money without a price.
    pub(crate) fn units(self, input: u64, output: u64, price: Option<Price>) -> u64 {
        let units = match self {
            Self::Tokens => input.saturating_add(output),
            Self::Input => input,
            Self::Output => output,
            Self::Money => price.map_or(0, |price| price.of(input, output)),
        };
        units.min(AMOUNT_MAX)
    }
}

/// The most that a limit can ever let through at once. A request that may use more is charged this,
/// or it could never pass.
pub(crate) fn cost_max(limit: &Limit) -> u64 {
    let most = match &limit.algorithm {
        Algorithm::FixedWindow(window) => window.rate.amount,
        Algorithm::SlidingWindowBuckets(window) => window.rate.amount,
        Algorithm::SlidingWindowCounter(rate) | Algorithm::SlidingWindowLog(rate) => rate.amount,
        Algorithm::TokenBucket(bucket) | Algorithm::Gcra(bucket) => bucket.burst,
        Algorithm::Quota(quota) if quota.conditional => quota.amount,
        // The others are in no list that is settled.
        Algorithm::Quota(_)
        | Algorithm::LeakyBucket(_)
        | Algorithm::Concurrency(_)
        | Algorithm::Script(_) => AMOUNT_MAX,
    };
    // A limit with `quota = 0` refuses every cost. A cost of 0 would only look.
    most.clamp(1, AMOUNT_MAX)
}

/// Whether a limit can refuse a request. One that only counts must not shorten any reply.
pub(crate) fn may_refuse(limit: &Limit) -> bool {
    let counts_only = matches!(&limit.algorithm, Algorithm::Quota(quota) if !quota.conditional);
    limit.enforcement == Enforcement::Enforce && !counts_only
}

/// A list that is settled: limits with costs, units and refunds of this policy's own.
#[derive(Debug, Default)]
pub(crate) struct Settled {
    pub(crate) limits: Limits,
    items: Vec<Item>,
}

/// A list that is not settled.
#[derive(Debug, Default)]
pub(crate) struct Plain {
    pub(crate) limits: Limits,
    items: Vec<Item>,
}

/// What is written in one limit, as far as this policy has rules of its own for it.
#[derive(Debug, Default)]
struct Item(Map<String, Value>);

impl Item {
    fn text(&self, key: &str) -> Option<&str> {
        self.0.get(key).and_then(Value::as_str)
    }

    /// What is written under `key`, unless it is `default`.
    fn other_than(&self, key: &str, default: &Value) -> Option<&Value> {
        self.0.get(key).filter(|written| *written != default)
    }

    /// As [`may_refuse`].
    fn may_refuse(&self) -> bool {
        let is = |key: &str, value: bool| self.0.get(key).and_then(Value::as_bool) == Some(value);
        !is("shadow", true) && !is("conditional", false)
    }
}

impl Settled {
    /// Whether a limit of this list can refuse a request.
    pub(crate) fn may_refuse(&self) -> bool {
        self.items.iter().any(Item::may_refuse)
    }

    /// Adds the mistakes that are none in other policies' limits.
    pub(crate) fn check(&self, counted: Counted, mistakes: &mut Mistakes) {
        let list = counted.setting();
        let unit = counted.unit();
        for (index, item) in self.items.iter().enumerate() {
            let at = |key: &str| format!("{list}[{index}].{key}");
            if let Some(name) = item.text("algorithm").filter(|name| UNSETTLED.contains(name)) {
                mistakes.add(
                    at("algorithm"),
                    format_args!("`{name}`"),
                    "an algorithm whose units can be given back: this one belongs in `requests`",
                );
            }
            if let Some(cost) = item.other_than("cost", &Value::from(1)) {
                let expected = format_args!("nothing: a request is charged its {unit}");
                mistakes.add(at("cost"), cost, expected);
            }
            if let Some(refund) = item.other_than("refund", &Value::from("by_settle")) {
                mistakes.add(at("refund"), refund, "nothing: what was not used is given back");
            }
            if let Some(written) = item.other_than("unit", &Value::from(unit)) {
                let expected = format_args!("nothing: in `{list}` it is {unit:?}");
                mistakes.add(at("unit"), written, expected);
            }
        }
    }
}

impl Plain {
    /// Adds the mistakes in limits that nothing settles.
    pub(crate) fn check(&self, list: &str, mistakes: &mut Mistakes) {
        for (index, item) in self.items.iter().enumerate() {
            if item.text("refund") == Some("by_settle") {
                let expected = "another refund: requests are not settled";
                mistakes.add(format!("{list}[{index}].refund"), "\"by_settle\"", expected);
            }
            if let Some(debt) = item.0.get("debt") {
                let expected = "none: requests are not settled, so nothing would be owed";
                mistakes.add(format!("{list}[{index}].debt"), debt, expected);
            }
        }
    }
}

impl<'de> Deserialize<'de> for Settled {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (mut value, items) = tables(deserializer)?;
        for item in value.as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut) {
            // These are refused by `check`. With a debt they would be refused here, and for that.
            let name = item.get("algorithm").and_then(Value::as_str).unwrap_or_default();
            if UNSETTLED.contains(&name) {
                continue;
            }
            // The limit is checked as it is used: with a debt, and without a cost of its own.
            item.entry("debt").or_insert_with(|| Value::from("allowance"));
            for (key, ours) in [("cost", Value::from(1)), ("refund", Value::from("by_settle"))] {
                item.insert(key.to_owned(), ours);
            }
        }
        Ok(Self { limits: limits(value)?, items })
    }
}

impl<'de> Deserialize<'de> for Plain {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (value, items) = tables(deserializer)?;
        Ok(Self { limits: limits(value)?, items })
    }
}

/// A list, and the tables in it as they are written.
fn tables<'de, D: Deserializer<'de>>(deserializer: D) -> Result<(Value, Vec<Item>), D::Error> {
    let value = Value::deserialize(deserializer)?;
    let tables = value.as_array().into_iter().flatten();
    let items = tables.map(|table| Item(table.as_object().cloned().unwrap_or_default())).collect();
    Ok((value, items))
}

/// The SDK's own check. Its error carries the path of each mistake, and must stay as it is.
fn limits<E: serde::de::Error>(value: Value) -> Result<Limits, E> {
    Limits::deserialize(value).map_err(E::custom)
}
