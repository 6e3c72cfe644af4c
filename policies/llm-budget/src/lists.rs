//! The lists of limits: what each counts, and which limits may stand in it. Knows no request.

use serde::{Deserialize, Deserializer};
use weir_policy::{Json, Limit, Limits, Mistakes};

use crate::AMOUNT_MAX;

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

    /// Units for these tokens, which cost so many micro-dollars: 2^52 at most.
    pub(crate) fn units(self, input: u64, output: u64, money: u64) -> u64 {
        let units = match self {
            Self::Tokens => input.saturating_add(output),
            Self::Input => input,
            Self::Output => output,
            Self::Money => money,
        };
        units.min(AMOUNT_MAX)
    }
}

/// The most that a limit can ever let through at once. A request that may use more is charged this,
/// or it could never pass.
pub(crate) fn cost_max(limit: &Limit) -> u64 {
    // A limit with `quota = 0` refuses every cost. A cost of 0 would only look.
    limit.cost_max().max(1)
}

/// A list that is settled: limits with costs, units and refunds of this policy's own.
#[derive(Debug, Default)]
pub(crate) struct Settled {
    pub(crate) limits: Limits,
    items: Vec<Item>,
    mistakes: Mistakes,
}

/// A list that is not settled.
#[derive(Debug, Default)]
pub(crate) struct Plain {
    pub(crate) limits: Limits,
    items: Vec<Item>,
    mistakes: Mistakes,
}

/// What is written in one limit, as far as this policy has rules of its own for it.
#[derive(Debug)]
struct Item(Json<'static>);

impl Item {
    fn text(&self, key: &str) -> Option<String> {
        Some(self.0.get(key)?.as_str()?.into_owned())
    }

    /// What is written under `key`, unless it is `default`.
    fn other_than(&self, key: &str, default: Json<'_>) -> Option<Json<'_>> {
        self.0.get(key).filter(|written| *written != default)
    }

    /// The same as [`Limit::may_refuse`].
    fn may_refuse(&self) -> bool {
        let is =
            |key: &str, value: bool| self.0.get(key).and_then(|it| it.as_bool()) == Some(value);
        !is("shadow", true) && !is("conditional", false)
    }
}

impl Settled {
    /// Whether a limit of this list can refuse a request.
    pub(crate) fn may_refuse(&self) -> bool {
        self.items.iter().any(Item::may_refuse)
    }

    /// The names of its limits, also of those with mistakes.
    pub(crate) fn names(&self) -> impl Iterator<Item = Option<String>> {
        self.items.iter().map(|item| item.text("name"))
    }

    /// Adds its mistakes, including those that are allowed in other policies' limits.
    pub(crate) fn check(&self, counted: Counted, mistakes: &mut Mistakes) {
        let list = counted.setting();
        mistakes.append(self.mistakes.clone().under(list));
        let unit = counted.unit();
        for (index, item) in self.items.iter().enumerate() {
            let at = |key: &str| format!("{list}[{index}].{key}");
            if let Some(name) =
                item.text("algorithm").filter(|name| UNSETTLED.contains(&name.as_str()))
            {
                mistakes.add(
                    at("algorithm"),
                    format_args!("`{name}`"),
                    "an algorithm whose units can be given back: this one belongs in `requests`",
                );
            }
            if let Some(cost) = item.other_than("cost", Json::from(1_u64)) {
                let expected = format_args!("nothing: a request is charged its {unit}");
                mistakes.add(at("cost"), cost, expected);
            }
            if let Some(refund) = item.other_than("refund", Json::from("by_settle")) {
                mistakes.add(at("refund"), refund, "nothing: what was not used is given back");
            }
            if let Some(written) = item.other_than("unit", Json::from(unit)) {
                let expected = format_args!("nothing: in `{list}` it is {unit:?}");
                mistakes.add(at("unit"), written, expected);
            }
        }
    }
}

impl Plain {
    /// Whether one of its limits is on requests at the same time.
    pub(crate) fn limits_concurrency(&self) -> bool {
        self.items.iter().any(|item| item.text("algorithm").as_deref() == Some("concurrency"))
    }

    /// The names of its limits, also of those with mistakes.
    pub(crate) fn names(&self) -> impl Iterator<Item = Option<String>> {
        self.items.iter().map(|item| item.text("name"))
    }

    /// Adds its mistakes, with those in limits that nothing settles.
    pub(crate) fn check(&self, list: &str, mistakes: &mut Mistakes) {
        mistakes.append(self.mistakes.clone().under(list));
        for (index, item) in self.items.iter().enumerate() {
            if item.text("refund").as_deref() == Some("by_settle") {
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
        let (value, items) = tables(deserializer)?;
        let (limits, mistakes) = match value.is_list() {
            true => limits(&Json::list(value.items().map(|item| settled(&item)))),
            false => limits(&value),
        };
        Ok(Self { limits, items, mistakes })
    }
}

/// A limit as it is used: with a debt, and without a cost of its own.
fn settled(item: &Json<'_>) -> Json<'static> {
    let name = item.get("algorithm");
    let name = name.as_ref().and_then(Json::as_str).unwrap_or_default();
    // These are refused by `check`. With a debt they would be refused here, and for that.
    if !item.is_table() || UNSETTLED.contains(&&*name) {
        return item.clone().into_owned();
    }
    let mut ours = vec![("cost", Json::from(1_u64)), ("refund", Json::from("by_settle"))];
    if item.get("debt").is_none() {
        ours.push(("debt", Json::from("allowance")));
    }
    item.with_members(&ours)
}

impl<'de> Deserialize<'de> for Plain {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (value, items) = tables(deserializer)?;
        let (limits, mistakes) = limits(&value);
        Ok(Self { limits, items, mistakes })
    }
}

/// A list, and what is in it as it is written.
fn tables<'de, D: Deserializer<'de>>(deserializer: D) -> Result<(Json<'de>, Vec<Item>), D::Error> {
    let value = Json::deserialize(deserializer)?;
    let items = value.items().map(|item| Item(item.into_owned())).collect();
    Ok((value, items))
}

/// The SDK's own check. Its mistakes are kept, to be reported together with this policy's own.
fn limits(value: &Json<'_>) -> (Limits, Mistakes) {
    match Limits::read(value) {
        Ok(limits) => (limits, Mistakes::new()),
        Err(mistakes) => (Limits::default(), mistakes),
    }
}
