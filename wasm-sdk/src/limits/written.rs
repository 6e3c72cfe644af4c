//! One limit as written in the configuration. `algorithm` checks what depends on its algorithm.

use std::borrow::Cow;
use std::fmt::Display;

use weir_algorithms::{AMOUNT_MAX, Alignment, Debt, Every, NAMES, ROWS, Row};

use crate::bindings::weir::policy::types;
use crate::client::CLIENT_IP;
use crate::config::join;
use crate::json::unknown;
use crate::limits::LEASE_OPTION;
use crate::limits::algorithm;
use crate::limits::children::{self, Children, WrittenChildren};
use crate::limits::missing::{self, Missing};
use crate::limits::period::{self, DELAY, LEASE, PERIOD, Period};
use crate::mistakes::{Mistakes, message};
use crate::names::{NAME_EXPECTED, is_name};
use crate::{Conditions, Enforcement, Facts, Json, Limit, Template};

/// Their names, in the order in which messages list them.
const FIELDS: [&str; 28] = [
    "name",
    "algorithm",
    "quota",
    "period",
    "burst",
    "alignment",
    "buckets",
    "max_delay",
    "calendar",
    "time_zone",
    "anchor_day",
    "conditional",
    "script",
    "arguments",
    "debt",
    "key",
    "missing",
    "when",
    "unless",
    "cost",
    "shadow",
    "refund",
    "on_store_error",
    "lease",
    "messages",
    "unit",
    "show",
    "children",
];
const CALENDARS: [&str; 5] = ["hour", "day", "week", "month", "forever"];
/// The contract's option for what happens to messages of a WebSocket that a limit has no units for.
const MESSAGES_OPTION: &str = "messages";
const MESSAGES: [&str; 2] = ["close", "wait"];
const NUMBER: &str = "a whole number, 0 or more";

/// The fields of a limit. Read by hand: this is much smaller than what serde would make of it, and
/// each policy's module has it.
#[derive(Debug, Default)]
pub(super) struct Written {
    name: Option<String>,
    pub(super) algorithm: Option<&'static Row>,
    pub(super) quota: Option<u64>,
    pub(super) period: Option<Period>,
    pub(super) burst: Option<u64>,
    pub(super) alignment: Option<Alignment>,
    pub(super) buckets: Option<u64>,
    pub(super) max_delay: Option<Period>,
    pub(super) calendar: Option<Every>,
    pub(super) time_zone: Option<String>,
    pub(super) anchor_day: Option<u64>,
    pub(super) conditional: Option<bool>,
    pub(super) script: Option<String>,
    pub(super) arguments: Option<Vec<i64>>,
    pub(super) debt: Option<Debt>,
    key: Option<Template>,
    missing: Option<Missing>,
    when: Option<Conditions>,
    unless: Option<Conditions>,
    pub(super) cost: u64,
    shadow: bool,
    refund: Option<types::Refund>,
    on_store_error: Option<types::Fallback>,
    /// As options of the contract.
    options: Vec<(String, String)>,
    /// What happens to messages that it has no units for, as the contract's option says it.
    messages: Option<&'static str>,
    unit: Option<String>,
    /// Clients don't see it.
    hidden: bool,
    children: Option<WrittenChildren>,
}

/// Which requests a limit counts, and under which key.
#[derive(Clone, Debug)]
pub(super) struct Selector {
    pub(super) key: Option<Template>,
    pub(super) missing: Option<Missing>,
    pub(super) when: Option<Conditions>,
    pub(super) unless: Option<Conditions>,
}

impl Selector {
    /// Whether a request certainly is none that the limit counts.
    pub(super) fn excludes(&self, facts: &Facts) -> bool {
        self.when.as_ref().is_some_and(|when| !when.may_hold(facts))
            || self.unless.as_ref().is_some_and(|unless| unless.hold(facts))
    }

    /// The facts that its conditions read.
    pub(super) fn conditions(&self) -> impl Iterator<Item = &str> {
        self.when.iter().chain(&self.unless).flat_map(Conditions::facts)
    }

    /// Whether the client's address may be in the key, or stand for it.
    pub(super) fn may_need_address(&self) -> bool {
        self.may_lack_key()
            || self.key.as_ref().is_some_and(|key| key.named().any(|fact| fact == CLIENT_IP))
    }

    /// Whether some request may lack the key. Facts that every request has are never missing.
    pub(super) fn may_lack_key(&self) -> bool {
        let always = ["client-ip", "method", "scheme", "path", "route", "http.version"];
        self.key.as_ref().is_some_and(|key| key.named().any(|fact| !always.contains(&fact)))
    }
}

pub(super) fn number(value: &Json<'_>) -> Result<u64, String> {
    value.as_u64().ok_or_else(|| message(&value.found(), &NUMBER))
}

fn flag(value: &Json<'_>) -> Result<bool, String> {
    value.as_bool().ok_or_else(|| message(&value.found(), &"true or false"))
}

pub(super) fn text(value: &Json<'_>) -> Result<String, String> {
    let text = value.as_str().ok_or_else(|| message(&value.found(), &"a string"));
    text.map(Cow::into_owned)
}

/// The place of one of the words.
fn word(value: &Json<'_>, known: &[&str]) -> Result<usize, String> {
    let word = text(value)?;
    let place = known.iter().position(|known| *known == word);
    place.ok_or_else(|| unknown("word", &word, known, ""))
}

fn one_of<T: Copy>(value: &Json<'_>, known: &[&str], all: &[T]) -> Result<Option<T>, String> {
    word(value, known).map(|place| all.get(place).copied())
}

fn arguments(value: &Json<'_>) -> Result<Vec<i64>, Mistakes> {
    if !value.is_list() {
        return Err(message(&value.found(), &"a list").into());
    }
    let mut mistakes = Mistakes::new();
    let mut numbers = Vec::new();
    for (index, item) in value.items().enumerate() {
        match item.as_text().parse() {
            Ok(number) => numbers.push(number),
            Err(_) => mistakes.add(format!("[{index}]"), item.found(), "a whole number"),
        }
    }
    mistakes.or(numbers)
}

/// A number of units, or one of the words.
fn debt(value: &Json<'_>) -> Result<Debt, String> {
    const EXPECTED: &str = "units such as `debt = 500`, \"allowance\" or \"window\"";
    let named = |name: &str| Debt::NAMED.into_iter().find(|(known, _)| *known == name);
    let debt = match value.as_str() {
        Some(name) => named(&name).map(|(_, debt)| debt),
        None => value.as_u64().map(Debt::Units),
    };
    debt.ok_or_else(|| message(value, &EXPECTED))
}

/// How long a lease lives, or a table: as options of the contract. The proxy knows which leases a
/// limit may have.
fn lease(value: &Json<'_>) -> Result<Vec<(String, String)>, Mistakes> {
    let life = |value: &Json<'_>| {
        period::read(value, LEASE).map(|life| (LEASE_OPTION.to_owned(), life.ms.to_string()))
    };
    if !value.is_table() {
        return Ok(vec![life(value)?]);
    }
    let mut mistakes = Mistakes::new();
    let mut options = Vec::new();
    for (key, value) in value.members() {
        let option = match &*key {
            "life" => life(&value),
            "units" => number(&value).map(|units| ("lease-units".to_owned(), units.to_string())),
            "strict" => flag(&value).map(|strict| {
                ("lease-bound".to_owned(), if strict { "strict" } else { "loose" }.to_owned())
            }),
            "callers" => flag(&value).map(|callers| {
                ("lease-to".to_owned(), if callers { "callers" } else { "workers" }.to_owned())
            }),
            _ => Err(unknown("key", &key, &["life", "units", "strict", "callers"], "")),
        };
        match option {
            Ok(option) => options.push(option),
            Err(wrong) => Mistakes::from(wrong).into_vec().into_iter().for_each(|mut mistake| {
                mistake.path = join(&key, &mistake.path);
                mistakes.push(mistake);
            }),
        }
    }
    if value.get("life").is_none() {
        mistakes.add("", "no `life`", LEASE);
    }
    mistakes.or(options)
}

/// Collects the mistakes of one limit.
pub(super) struct Report<'a> {
    at: &'a str,
    pub(super) item: &'a Json<'a>,
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
        self.item.get(field).map(|value| value.to_string()).unwrap_or_default()
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
    /// Reads what is written in `item`, as far as it fits.
    pub(super) fn read(at: &str, item: &Json<'_>, mistakes: &mut Mistakes) -> Option<Self> {
        if !item.is_table() {
            mistakes.add(at, item.found(), "a table");
            return None;
        }
        let mut written = Self { cost: 1, ..Self::default() };
        for (key, value) in item.members() {
            let unfit = written.set(&key, &value).err();
            for mut mistake in unfit.map(Mistakes::into_vec).unwrap_or_default() {
                mistake.path = join(at, &join(&key, &mistake.path));
                mistakes.push(mistake);
            }
        }
        Some(written)
    }

    fn set(&mut self, key: &str, value: &Json<'_>) -> Result<(), Mistakes> {
        match key {
            "name" => self.name = Some(text(value)?),
            "algorithm" => self.algorithm = ROWS.get(word(value, NAMES)?),
            "quota" => self.quota = Some(number(value)?),
            "period" => self.period = Some(period::read(value, PERIOD)?),
            "burst" => self.burst = Some(number(value)?),
            "alignment" => {
                let all = [Alignment::FirstRequest, Alignment::Clock];
                self.alignment = one_of(value, &["first_request", "clock"], &all)?;
            }
            "buckets" => self.buckets = Some(number(value)?),
            "max_delay" => self.max_delay = Some(period::read(value, DELAY)?),
            "calendar" => {
                self.calendar = one_of(value, &CALENDARS, &Every::ALL.map(|(_, every)| every))?;
            }
            "time_zone" => self.time_zone = Some(text(value)?),
            "anchor_day" => self.anchor_day = Some(number(value)?),
            "conditional" => self.conditional = Some(flag(value)?),
            "script" => self.script = Some(text(value)?),
            "arguments" => self.arguments = Some(arguments(value)?),
            "debt" => self.debt = Some(debt(value)?),
            "key" => self.key = Some(Template::parse(&text(value)?)?),
            "missing" => self.missing = Some(missing::read(value)?),
            "when" => self.when = Some(Conditions::read(value)?),
            "unless" => self.unless = Some(Conditions::read(value)?),
            "cost" => self.cost = number(value)?,
            "shadow" => self.shadow = flag(value)?,
            "refund" => {
                use types::Refund::{BySettle, Never, Unsent, UpstreamError};
                let words = ["never", "unsent", "upstream_error", "by_settle"];
                self.refund = one_of(value, &words, &[Never, Unsent, UpstreamError, BySettle])?;
            }
            "on_store_error" => {
                use types::Fallback::{Allow, Deny, Local};
                let words = ["allow", "local", "deny"];
                self.on_store_error = one_of(value, &words, &[Allow, Local, Deny])?;
            }
            "lease" => self.options = lease(value)?,
            "messages" => self.messages = one_of(value, &MESSAGES, &MESSAGES)?,
            "unit" => self.unit = Some(text(value)?),
            "show" => self.hidden = !flag(value)?,
            "children" => self.children = Some(children::read(value)?),
            _ => return Err(unknown("key", key, &FIELDS, "").into()),
        }
        Ok(())
    }

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
        mut self,
        at: &str,
        item: &Json<'_>,
        mistakes: &mut Mistakes,
    ) -> Option<(Limit, Selector, Option<Children>)> {
        let mut report = Report { at, item, mistakes, found: false };
        report.required("name", self.name.as_ref(), "a name, such as `name = \"per-minute\"`");
        if let Some(name) = self.name.as_deref().filter(|name| !is_name(name)) {
            report.add("name", format_args!("{name:?}"), NAME_EXPECTED);
        }
        if let Some(unit) = self.unit.as_deref().filter(|unit| !is_name(unit)) {
            report.add("unit", format_args!("{unit:?}"), NAME_EXPECTED);
        }
        // In the contract, an empty unit is one that clients don't see.
        match &self.unit {
            Some(unit) if self.hidden => {
                let expected = "no `unit`: with `show = false` nobody sees it";
                report.add("unit", format_args!("{unit:?}"), expected);
            }
            None if self.hidden => self.unit = Some(String::new()),
            _ => {}
        }
        if let Some(messages) = self.messages {
            let name = self.algorithm.map(|row| row.name).filter(|name| *name == "concurrency");
            if name.is_some() || self.children.is_some() {
                let expected =
                    "none beside `concurrency` or `children`: a message takes units by itself";
                report.add("messages", format_args!("{messages:?}"), expected);
            }
            self.options.push((MESSAGES_OPTION.to_owned(), messages.to_owned()));
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
        let children = self.children.take();
        let limit = Limit {
            algorithm: algorithm::to_wit(algorithm?),
            name: self.name.clone()?,
            key: String::new(),
            tag: None,
            cost: self.cost,
            unit: self.unit.take(),
            enforcement: if self.shadow { Enforcement::Shadow } else { Enforcement::Enforce },
            refund: self.refund.unwrap_or(types::Refund::Never),
            debt,
            on_store_error: self.on_store_error.unwrap_or(types::Fallback::RouteDefault),
            options: std::mem::take(&mut self.options),
        };
        let children = match (children, self.algorithm) {
            (Some(children), Some(row)) => children.check(&limit, (&self, row), &mut report),
            _ => None,
        };
        if report.found {
            return None;
        }
        let selector =
            Selector { key: self.key, missing: self.missing, when: self.when, unless: self.unless };
        Some((limit, selector, children))
    }
}
