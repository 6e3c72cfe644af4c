//! An API that the operator describes: `pointers = { .. }`.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use weir_policy::{Gather, Mistakes};

use super::{Api, Caches, Dialect, ModelAt, Reading};
use crate::references::References;

/// Maximum number of meters of a decision.
const METERS_MAX: usize = 32;
/// Maximum number of pointers to maxima: each is a fact of its own.
const MAXIMA_MAX: usize = 8;
/// Pointers to references, at most, for the same reason.
const REFERENCES_MAX: usize = 8;
/// Maximum size of a pointer, in bytes. It is part of a fact's name.
const POINTER_BYTES_MAX: usize = 200;
/// Maximum number of names and indices in a pointer.
const POINTER_TOKENS_MAX: usize = 16;
/// What messages say was expected.
const POINTER: &str =
    "a JSON pointer of at most 200 bytes and 16 names, such as \"/usage/output_tokens\"";

/// The setting as it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Pointers {
    /// The model in a request.
    model: Option<Pointer>,
    /// What bounds the output of a request.
    #[serde(default)]
    maxima: Vec<Pointer>,
    /// Numbers in a reply that are added up to the input used.
    #[serde(default)]
    input: Vec<Number>,
    /// Numbers in a reply that are added up to the output used.
    #[serde(default)]
    output: Vec<Number>,
    /// Texts in a reply.
    #[serde(default)]
    text: Vec<Pointer>,
    /// Files, or lists of them, that a request refers to.
    #[serde(default)]
    references: Vec<Pointer>,
    /// What to set to `true` in each request, so that its reply reports the usage.
    include_usage: Option<Pointer>,
}

/// A JSON pointer (RFC 6901) to a value below the root, in which `*` stands for every element of an
/// array.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Pointer(String);

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Number {
    pointer: Pointer,
    #[serde(default)]
    gather: Word,
}

/// How numbers of several events become one.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
enum Word {
    #[default]
    Last,
    Max,
    Sum,
}

impl Pointers {
    /// Adds the mistakes that its types don't find.
    pub(crate) fn check(&self, mistakes: &mut Mistakes) {
        if self.input.is_empty() && self.output.is_empty() && self.text.is_empty() {
            let expected = "one at least, or nothing would be known of any reply";
            mistakes.add("pointers", "no `input`, `output` or `text`", expected);
        }
        for (list, count, most) in [
            ("maxima", self.maxima.len(), MAXIMA_MAX),
            ("references", self.references.len(), REFERENCES_MAX),
        ] {
            if count > most {
                let expected = format_args!("at most {most}");
                mistakes.add(format!("pointers.{list}"), format_args!("{count} of them"), expected);
            }
        }
        let meters = self.input.len() + self.output.len() + 2 * self.text.len();
        if meters > METERS_MAX {
            let found = format_args!("{meters} numbers to read, two for each `text`");
            mistakes.add("pointers", found, format_args!("at most {METERS_MAX}"));
        }
        self.check_places(mistakes);
        self.check_repetitions(mistakes);
    }

    /// In a request, a pointer leads to one place.
    fn check_places(&self, mistakes: &mut Mistakes) {
        let maxima = self.maxima.iter().enumerate();
        let maxima = maxima.map(|(index, pointer)| (format!("maxima[{index}]"), pointer));
        let references = self.references.iter().enumerate();
        let references =
            references.map(|(index, pointer)| (format!("references[{index}]"), pointer));
        let model = self.model.iter().map(|pointer| ("model".to_owned(), pointer));
        let usage = self.include_usage.iter().map(|pointer| ("include_usage".to_owned(), pointer));
        for (setting, pointer) in model.chain(maxima).chain(references).chain(usage) {
            if pointer.0.split('/').any(|token| token == "*") {
                let expected = "a pointer to one place, without `*`";
                mistakes.add(
                    format!("pointers.{setting}"),
                    format_args!("{:?}", pointer.0),
                    expected,
                );
            }
        }
    }

    fn check_repetitions(&self, mistakes: &mut Mistakes) {
        let input = self.input.iter().enumerate().map(|(index, it)| ("input", index, it));
        let output = self.output.iter().enumerate().map(|(index, it)| ("output", index, it));
        let mut seen: Vec<(&Pointer, Word)> = Vec::new();
        for (list, index, number) in input.chain(output) {
            if seen.contains(&(&number.pointer, number.gather)) {
                twice(&format!("pointers.{list}[{index}]"), &number.pointer, mistakes);
            }
            seen.push((&number.pointer, number.gather));
        }
        for (list, pointers) in
            [("maxima", &self.maxima), ("references", &self.references), ("text", &self.text)]
        {
            for (index, pointer) in pointers.iter().enumerate() {
                if pointers.iter().take(index).any(|earlier| earlier == pointer) {
                    twice(&format!("pointers.{list}[{index}]"), pointer, mistakes);
                }
            }
        }
    }
}

fn twice(at: &str, pointer: &Pointer, mistakes: &mut Mistakes) {
    mistakes.add(at, format_args!("{:?} a second time", pointer.0), "each pointer once");
}

impl From<Pointers> for Api {
    fn from(written: Pointers) -> Self {
        // Each number is an addend of its own.
        let told = |numbers: Vec<Number>| numbers.into_iter().map(|it| vec![it.into()]).collect();
        let texts = |pointers: Vec<Pointer>| pointers.into_iter().map(|it| it.0).collect();
        Self {
            dialect: Dialect::Own(written.include_usage.map(|pointer| pointer.0)),
            model: written.model.map_or(ModelAt::Nowhere, |pointer| ModelAt::Pointer(pointer.0)),
            maxima: texts(written.maxima),
            copies: Vec::new(),
            second_prompt: None,
            tiers: Vec::new(),
            stream: Some("/stream".to_owned()),
            background: None,
            form: None,
            references: References::At(texts(written.references)),
            input: told(written.input),
            caches: Caches::default(),
            output: told(written.output),
            so_far: Vec::new(),
            texts: texts(written.text),
        }
    }
}

impl From<Number> for Reading {
    fn from(number: Number) -> Self {
        let gather = match number.gather {
            Word::Last => Gather::Last,
            Word::Max => Gather::Max,
            Word::Sum => Gather::Sum,
        };
        Self { pointer: number.pointer.0, gather }
    }
}

impl<'de> Deserialize<'de> for Pointer {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let escapes = text.split('~').skip(1).all(|after| after.starts_with(['0', '1']));
        let plain = text.starts_with('/') && !text.chars().any(char::is_control);
        let short =
            text.len() <= POINTER_BYTES_MAX && text.split('/').count() <= POINTER_TOKENS_MAX + 1;
        if plain && escapes && short {
            return Ok(Self(text));
        }
        Err(D::Error::custom(format_args!("found {text:?}, expected {POINTER}")))
    }
}
