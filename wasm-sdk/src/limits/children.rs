//! The children of a limit: each is assured a part of it whatever the others take, and borrows what
//! they leave, up to a ceiling.

use weir_algorithms::{Debt, Row, Setting};

use crate::bindings::weir::policy::types::Limit as WitLimit;
use crate::config::join;
use crate::json::unknown;
use crate::limits::algorithm;
use crate::limits::missing::{self, Missing};
use crate::limits::written::{Report, Selector, Written, number, text};
use crate::mistakes::{Mistakes, message};
use crate::names::{NAME_EXPECTED, is_name};
use crate::{Enforcement, Json, Template};

const FIELDS: [&str; 5] = ["name", "key", "missing", "assured", "ceiling"];
const AMOUNT_FIELDS: [&str; 2] = ["quota", "burst"];
/// What the name of what a child is assured ends with.
const ASSURED: &str = ".assured";
/// What a limit with children may count with.
const PARENTS: [&str; 6] =
    ["fixed_window", "sliding_window_counter", "quota", "token_bucket", "gcra", "concurrency"];
const AMOUNT: &str = "units in the limit's period, such as `20`, or { quota = 20, burst = 40 }";

/// `children`, as it is written.
#[derive(Clone, Debug, Default)]
pub(super) struct WrittenChildren {
    name: Option<String>,
    key: Option<Template>,
    missing: Option<Missing>,
    assured: Option<Amount>,
    ceiling: Option<Amount>,
}

/// Units in the parent's period, and how many of them may come at once.
#[derive(Clone, Copy, Debug)]
struct Amount {
    quota: u64,
    burst: Option<u64>,
}

/// What each child of a limit is charged beside the limit itself: the most that it gets, whose
/// options name the other two, and what it is sure to get.
pub(super) type Children = [(WitLimit, Selector); 2];

/// Reads `children`.
pub(super) fn read(value: &Json<'_>) -> Result<WrittenChildren, Mistakes> {
    if !value.is_table() {
        let expected = "a table, such as { key = \"{header.x-team}\", assured = 20 }";
        return Err(message(&value.found(), &expected).into());
    }
    let mut children = WrittenChildren::default();
    let mut mistakes = Mistakes::new();
    for (key, value) in value.members() {
        if let Err(wrong) = children.set(&key, &value) {
            for mut mistake in wrong.into_vec() {
                mistake.path = join(&key, &mistake.path);
                mistakes.push(mistake);
            }
        }
    }
    if value.get("assured").is_none() {
        mistakes.add("", "no `assured`", AMOUNT);
    }
    mistakes.or(children)
}

impl WrittenChildren {
    fn set(&mut self, key: &str, value: &Json<'_>) -> Result<(), Mistakes> {
        match key {
            "name" => self.name = Some(text(value)?),
            "key" => self.key = Some(Template::parse(&text(value)?)?),
            "missing" => self.missing = Some(missing::read(value)?),
            "assured" => self.assured = Some(amount(value)?),
            "ceiling" => self.ceiling = Some(amount(value)?),
            _ => return Err(unknown("key", key, &FIELDS, "").into()),
        }
        Ok(())
    }

    /// The limits of each child of `parent`, which `limit` was written as. `None` if a mistake was
    /// reported.
    pub(super) fn check(
        self,
        parent: &WitLimit,
        (limit, row): (&Written, &Row),
        report: &mut Report<'_>,
    ) -> Option<Children> {
        let name = self.name.unwrap_or_else(|| format!("{}.child", parent.name));
        let assured_name = format!("{name}{ASSURED}");
        if !is_name(&name) || !is_name(&assured_name) {
            report.add("children.name", format_args!("{name:?}"), NAME_EXPECTED);
        }
        if !PARENTS.contains(&row.name) {
            let expected = format_args!("nothing: only {} have children", PARENTS.join(", "));
            report.add("children", row.name, expected);
            return None;
        }
        let whole = Amount { quota: limit.quota.unwrap_or(0), burst: limit.burst };
        let sure = self.assured?;
        let most = self.ceiling.unwrap_or(whole);
        let mut parts = Vec::new();
        let options = [("assured", &assured_name), ("parent", &parent.name)]
            .map(|(option, name)| (option.to_owned(), name.clone()));
        for (setting, name, amount, within) in [
            ("children.ceiling", name, most, whole),
            ("children.assured", assured_name.clone(), sure, most),
        ] {
            if amount.quota > within.quota {
                let expected =
                    format_args!("at most {}: a child has a part of the whole", within.quota);
                report.add(setting, amount.quota, expected);
            }
            if amount.burst.is_some() && !row.settings.contains(&Setting::Burst) {
                let expected = format_args!("nothing: {} has no burst", row.name);
                report.add(&join(setting, "burst"), "one", expected);
            }
            let is_ceiling = parts.is_empty();
            let at_once = amount.burst.unwrap_or(amount.quota);
            if let Some(Debt::Units(most)) = limit
                .debt
                .filter(|debt| !is_ceiling && matches!(debt, Debt::Units(most) if *most < at_once))
            {
                let expected = format_args!("at least {at_once}, as a child is assured at once");
                report.add("debt", most, expected);
            }
            let written = weir_algorithms::Written {
                quota: Some(amount.quota),
                burst: amount.burst,
                debt: limit.debt.filter(|_| is_ceiling),
                ..limit.for_algorithm()
            };
            let algorithm = algorithm::of_part(row, &written, setting, limit.cost, report)?;
            let mut part = WitLimit { name, algorithm, options: Vec::new(), ..parent.clone() };
            if is_ceiling {
                part.options = options.to_vec();
            } else {
                // It refuses nothing.
                (part.debt, part.enforcement) = (None, Enforcement::Shadow);
            }
            let selector =
                Selector { key: self.key.clone(), missing: self.missing, when: None, unless: None };
            parts.push((part, selector));
        }
        parts.try_into().ok()
    }
}

/// A quota, or a table with a burst as well.
fn amount(value: &Json<'_>) -> Result<Amount, Mistakes> {
    if !value.is_table() {
        let quota = value.as_u64().ok_or_else(|| message(&value.found(), &AMOUNT))?;
        return Ok(Amount { quota, burst: None });
    }
    let mut mistakes = Mistakes::new();
    let (mut quota, mut burst) = (None, None);
    for (key, value) in value.members() {
        let place = match &*key {
            "quota" => &mut quota,
            "burst" => &mut burst,
            _ => {
                mistakes.add_message(key.clone(), unknown("key", &key, &AMOUNT_FIELDS, ""));
                continue;
            }
        };
        match number(&value) {
            Ok(units) => *place = Some(units),
            Err(wrong) => mistakes.add_message(key, wrong),
        }
    }
    if value.get("quota").is_none() {
        mistakes.add("", "no `quota`", AMOUNT);
    }
    mistakes.or(Amount { quota: quota.unwrap_or(0), burst })
}
