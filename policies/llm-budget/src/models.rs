//! Models: their prices, and how much output is reserved for each. Knows no request.

use std::collections::BTreeMap;

use serde::Deserialize;
use weir_policy::Mistakes;

use crate::AMOUNT_MAX;
use crate::prices::{Prices, WrittenRates, WrittenStep};

/// Maximum number of models in the table.
const MODELS_MAX: usize = 10_000;
/// Maximum size of a model's name in the table, in bytes.
const NAME_BYTES_MAX: usize = 256;
/// Maximum length of the label in the access log, in characters.
const LABEL_CHARS_MAX: usize = 64;
/// The name that stands for all models that have no other.
pub(crate) const ALL: &str = "*";
/// The label of a model that the table does not name.
const OTHER: &str = "other";

/// One model as it is written in `models`. Prices are micro-dollars for a million tokens.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Model {
    pub(crate) input: Option<u64>,
    pub(crate) output: Option<u64>,
    /// The price of input that is read from a cache.
    cached_input: Option<u64>,
    /// The price of input that is written to a cache, and to one that keeps it for an hour.
    cache_write: Option<u64>,
    cache_write_1h: Option<u64>,
    /// Prices for requests with more input.
    #[serde(default)]
    above: Vec<WrittenStep>,
    /// Prices of service tiers, in percent.
    #[serde(default)]
    tiers: BTreeMap<String, u64>,
    /// Tokens reserved for a request that names no maximum.
    pub(crate) max_output: Option<u64>,
}

/// One model of the table.
#[derive(Debug)]
struct Entry {
    /// Its name as it was written.
    written: String,
    prices: Option<Prices>,
    max_output: Option<u64>,
}

/// What is known of the model of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known<'a> {
    /// The label in the access log. One of the table's names, since clients can invent any number
    /// of others.
    pub(crate) label: &'a str,
    pub(crate) prices: Option<&'a Prices>,
    pub(crate) max_output: Option<u64>,
}

/// The table of models.
#[derive(Debug, Default)]
pub(crate) struct Models {
    /// Names without `*`.
    whole: BTreeMap<String, Entry>,
    /// Names that ended in `*`, without it.
    prefixes: BTreeMap<String, Entry>,
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
            let entry = entry(name, model, priced, mistakes);
            match entry.written.strip_suffix('*').map(str::to_owned) {
                Some(prefix) => {
                    models.longest = models.longest.max(prefix.len());
                    models.prefixes.insert(prefix, entry);
                }
                None => {
                    models.whole.insert(entry.written.clone(), entry);
                }
            }
        }
        models
    }

    /// What is known of `name`: the whole name, or else the longest prefix of it. `None` also
    /// stands for a request that names no model: only `*` fits it.
    pub(crate) fn find(&self, name: Option<&str>) -> Option<Known<'_>> {
        let name = name.unwrap_or_default();
        if let Some(entry) = self.whole.get(name) {
            return Some(entry.known());
        }
        let lengths = (0..=name.len().min(self.longest)).rev();
        let mut prefixes = lengths.filter_map(|length| self.prefixes.get(name.get(..length)?));
        prefixes.next().map(Entry::known)
    }
}

impl Entry {
    fn known(&self) -> Known<'_> {
        let written = self.written.as_str();
        let end = written.char_indices().nth(LABEL_CHARS_MAX).map_or(written.len(), |(at, _)| at);
        let label = if written == ALL { OTHER } else { written.get(..end).unwrap_or(OTHER) };
        Known { label, prices: self.prices.as_ref(), max_output: self.max_output }
    }
}

impl Known<'_> {
    /// A model that the table does not have.
    pub(crate) const UNKNOWN: Known<'static> =
        Known { label: OTHER, prices: None, max_output: None };
}

/// Checks a model, and adds its mistakes.
fn entry(name: String, model: Model, priced: bool, mistakes: &mut Mistakes) -> Entry {
    let at = format!("models.{name}");
    let stem = name.strip_suffix('*').unwrap_or(&name);
    let fits = !name.is_empty() && name.len() <= NAME_BYTES_MAX;
    if !fits || stem.contains('*') || name.chars().any(char::is_control) {
        let expected = format_args!(
            "a model of 1 to {NAME_BYTES_MAX} bytes, or the beginning of its name and a `*`"
        );
        mistakes.add(&at, format_args!("the name {name:?}"), expected);
    }
    if let Some(max) = model.max_output.filter(|max| *max == 0 || *max > AMOUNT_MAX) {
        mistakes.add(format!("{at}.max_output"), max, format_args!("1 to {AMOUNT_MAX}"));
    }
    let base = WrittenRates {
        input: model.input,
        output: model.output,
        cached_input: model.cached_input,
        cache_write: model.cache_write,
        cache_write_1h: model.cache_write_1h,
    };
    let prices = Prices::new(base, &model.above, model.tiers, (&at, priced), mistakes);
    Entry { written: name, prices, max_output: model.max_output }
}
