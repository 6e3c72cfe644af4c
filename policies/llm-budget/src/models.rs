//! Models: their prices, and how much output is reserved for each. Knows no request.

use std::collections::BTreeMap;

use serde::Deserialize;
use weir_policy::Mistakes;

use crate::AMOUNT_MAX;

/// Models in the table, at most.
const MODELS_MAX: usize = 10_000;
/// Bytes of a model's name in the table, at most.
const NAME_BYTES_MAX: usize = 256;
/// Prices are for so many tokens.
const TOKENS_PER_PRICE: u128 = 1_000_000;
/// Characters of the label in the access log, at most.
const LABEL_CHARS_MAX: usize = 64;
/// The label of a model that the table does not name.
const OTHER: &str = "other";

/// One model as it is written in `models`.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Model {
    /// Micro-dollars for a million tokens of input.
    input: Option<u64>,
    /// Micro-dollars for a million tokens of output.
    output: Option<u64>,
    /// Tokens reserved for a request that names no maximum.
    max_output: Option<u64>,
}

/// What a model costs, in micro-dollars for a million tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Price {
    pub(crate) input: u64,
    pub(crate) output: u64,
}

impl Price {
    /// Micro-dollars for these tokens, rounded up.
    pub(crate) fn of(self, input: u64, output: u64) -> u64 {
        let product = |tokens: u64, price: u64| u128::from(tokens) * u128::from(price);
        // Two products of numbers of 64 bits may exceed 128 bits.
        let sum = product(input, self.input).saturating_add(product(output, self.output));
        u64::try_from(sum.div_ceil(TOKENS_PER_PRICE)).unwrap_or(u64::MAX)
    }
}

/// What is known of the model of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known<'a> {
    /// For the access log. One of the table's names, since clients can invent any number of others.
    pub(crate) label: &'a str,
    pub(crate) price: Option<Price>,
    pub(crate) max_output: Option<u64>,
}

/// The table of models.
#[derive(Debug, Default)]
pub(crate) struct Models {
    /// Names without `*`.
    whole: BTreeMap<String, Model>,
    /// Names that ended in `*`, without it. The values have the name as it was written.
    prefixes: BTreeMap<String, (String, Model)>,
    /// Bytes of the longest prefix.
    longest: usize,
}

impl Models {
    /// Checks the table. `priced` says whether each model needs prices.
    pub(crate) fn new(
        written: BTreeMap<String, Model>,
        priced: bool,
        mistakes: &mut Mistakes,
    ) -> Self {
        if written.len() > MODELS_MAX {
            let expected = format_args!("at most {MODELS_MAX}");
            mistakes.add("models", format_args!("{} models", written.len()), expected);
        }
        let mut models = Self::default();
        for (name, model) in written {
            check(&name, &model, priced, mistakes);
            match name.strip_suffix('*') {
                Some(prefix) => {
                    models.longest = models.longest.max(prefix.len());
                    models.prefixes.insert(prefix.to_owned(), (name, model));
                }
                None => {
                    models.whole.insert(name, model);
                }
            }
        }
        models
    }

    /// What is known of `name`: the whole name, or else the longest prefix of it. `None` also
    /// stands for a request that names no model: only `*` fits it.
    pub(crate) fn find(&self, name: Option<&str>) -> Option<Known<'_>> {
        let name = name.unwrap_or_default();
        if let Some((written, model)) = self.whole.get_key_value(name) {
            return Some(model.known(written));
        }
        let lengths = (0..=name.len().min(self.longest)).rev();
        let mut prefixes = lengths.filter_map(|length| self.prefixes.get(name.get(..length)?));
        prefixes.next().map(|(written, model)| model.known(written))
    }
}

impl Model {
    fn known<'a>(&self, written: &'a str) -> Known<'a> {
        let end = written.char_indices().nth(LABEL_CHARS_MAX).map_or(written.len(), |(at, _)| at);
        let label = if written == "*" { OTHER } else { written.get(..end).unwrap_or(OTHER) };
        let price = self.input.zip(self.output).map(|(input, output)| Price { input, output });
        Known { label, price, max_output: self.max_output }
    }
}

impl Known<'_> {
    /// A model that the table does not have.
    pub(crate) const UNKNOWN: Known<'static> =
        Known { label: OTHER, price: None, max_output: None };
}

fn check(name: &str, model: &Model, priced: bool, mistakes: &mut Mistakes) {
    let at = format!("models.{name}");
    let stem = name.strip_suffix('*').unwrap_or(name);
    let fits = !name.is_empty() && name.len() <= NAME_BYTES_MAX;
    if !fits || stem.contains('*') || name.chars().any(char::is_control) {
        let expected = format_args!(
            "a model of 1 to {NAME_BYTES_MAX} bytes, or the beginning of its name and a `*`"
        );
        mistakes.add(&at, format_args!("the name {name:?}"), expected);
    }
    for (setting, price) in [("input", model.input), ("output", model.output)] {
        match price {
            None if priced => mistakes.add(
                format!("{at}.{setting}"),
                format_args!("no `{setting}`"),
                "a price in micro-dollars for a million tokens, as there are `money` limits",
            ),
            Some(price) if price > AMOUNT_MAX => {
                mistakes.add(format!("{at}.{setting}"), price, format_args!("0 to {AMOUNT_MAX}"));
            }
            _ => {}
        }
    }
    if let Some(max) = model.max_output.filter(|max| *max == 0 || *max > AMOUNT_MAX) {
        mistakes.add(format!("{at}.max_output"), max, format_args!("1 to {AMOUNT_MAX}"));
    }
}
