//! What a request's body refers to: pictures and files by address or id, stored conversations, and
//! tools that the provider runs. The provider adds their content to the input, and the size of the
//! body says nothing about it. Knows no limit; `scan` finds references in the bodies of the APIs
//! that are known.

use serde::Deserialize;
use weir_policy::{Facts, Json, Mistakes};

use crate::AMOUNT_MAX;

mod scan;

/// Maximum number of references of one kind that are counted in one body.
const COUNTED_MAX: u64 = 1_000;
/// The fact with the whole body.
const DOCUMENT: &str = "body.json:";

/// What a reference leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A picture.
    Image,
    /// A document, a recording or a film.
    File,
    /// What the provider has stored: a conversation, an earlier response, a prompt, a cache.
    Stored,
    /// A tool that the provider runs, whose results become input.
    Tool,
}

/// Tokens of input that are reserved for each reference: the setting `references`.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Floors {
    image: u64,
    file: u64,
    stored: u64,
    tool: u64,
}

impl Default for Floors {
    /// What one of each kind usually takes: a picture in full resolution, a document of ten pages,
    /// a conversation of some length, a few results of a search.
    fn default() -> Self {
        Self { image: 1_500, file: 20_000, stored: 20_000, tool: 10_000 }
    }
}

impl Floors {
    fn each(self) -> [(&'static str, u64); 4] {
        [("image", self.image), ("file", self.file), ("stored", self.stored), ("tool", self.tool)]
    }

    /// Adds the mistakes that its types don't find.
    pub(crate) fn check(self, mistakes: &mut Mistakes) {
        for (name, floor) in self.each() {
            if floor > AMOUNT_MAX {
                let expected = format_args!("0 to {AMOUNT_MAX}");
                mistakes.add(format!("references.{name}"), floor, expected);
            }
        }
    }

    /// Whether nothing is reserved for any reference.
    pub(crate) fn is_zero(self) -> bool {
        self.each().iter().all(|(_, floor)| *floor == 0)
    }
}

/// How many references of each kind a body has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    image: u64,
    file: u64,
    stored: u64,
    tool: u64,
}

impl Counts {
    fn add(&mut self, kind: Kind, count: u64) {
        let counted = match kind {
            Kind::Image => &mut self.image,
            Kind::File => &mut self.file,
            Kind::Stored => &mut self.stored,
            Kind::Tool => &mut self.tool,
        };
        *counted = counted.saturating_add(count).min(COUNTED_MAX);
    }

    /// Whether there is none.
    pub(crate) fn is_empty(self) -> bool {
        self == Self::default()
    }

    /// Tokens of input to reserve for them.
    pub(crate) fn tokens(self, floors: Floors) -> u64 {
        let counts = [self.image, self.file, self.stored, self.tool];
        let products =
            floors.each().into_iter().zip(counts).map(|((_, floor), it)| floor.saturating_mul(it));
        products.fold(0, u64::saturating_add).min(AMOUNT_MAX)
    }
}

/// Where references stand in a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum References {
    /// Where the APIs that are known have them.
    Known,
    /// The values at these pointers.
    At(Vec<String>),
}

impl References {
    /// The facts that [`References::count`] reads.
    pub(crate) fn facts(&self) -> Vec<String> {
        match self {
            Self::Known => vec![DOCUMENT.to_owned()],
            Self::At(pointers) => pointers.iter().map(|at| format!("{DOCUMENT}{at}")).collect(),
        }
    }

    /// The references of a request.
    pub(crate) fn count(&self, facts: &Facts) -> Counts {
        match self {
            Self::Known => facts.first(DOCUMENT).map(scan::count).unwrap_or_default(),
            Self::At(_) => {
                let mut counts = Counts::default();
                for name in self.facts() {
                    // Of a name that occurs twice, either may be read.
                    let most = facts.all(&name).map(files).max().unwrap_or(0);
                    counts.add(Kind::File, most);
                }
                counts
            }
        }
    }
}

/// How many files a value may refer to: one, or one for each item of a list.
fn files(json: &str) -> u64 {
    match Json::parse(json) {
        Ok(value) if value.is_list() => {
            value.items().map(|item| u64::from(refers(item.as_text()))).sum()
        }
        _ => u64::from(refers(json)),
    }
}

/// Whether a value can be a reference.
fn refers(json: &str) -> bool {
    !matches!(json, "null" | "false" | "\"\"" | "{}" | "[]")
}
