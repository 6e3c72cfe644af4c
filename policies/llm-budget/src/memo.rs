//! What a decision leaves for the reply's end: text, since `settle` may run in another instance.
//!
//! The first line has what was reserved, and the prices: `input output extends input-price
//! output-price`. Each further line is a limit: `list shares taken name`.

use std::fmt::Write as _;

use crate::lists::Counted;
use crate::models::Price;

/// What was reserved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Memo {
    /// Tokens of input, estimated.
    pub(crate) input: u64,
    /// Tokens of output, at most.
    pub(crate) output: u64,
    /// Whether the output is reserved in steps.
    pub(crate) extends: bool,
    pub(crate) price: Option<Price>,
    pub(crate) limits: Vec<Taken>,
}

/// What was taken of a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) counted: Counted,
    /// Whether the proxy may have taken less of it, or more in steps.
    pub(crate) shares: bool,
    /// The cost.
    pub(crate) units: u64,
    pub(crate) name: String,
}

impl Memo {
    /// The text. With 16 limits and the longest names it has 1,700 bytes.
    pub(crate) fn write(&self) -> String {
        let mut text = format!("{} {} {}", self.input, self.output, u8::from(self.extends));
        // Writing to a String can't fail.
        if let Some(price) = self.price {
            let _ = write!(text, " {} {}", price.input, price.output);
        }
        for limit in &self.limits {
            let list = limit.counted.setting();
            let _ =
                write!(text, "\n{list} {} {} {}", u8::from(limit.shares), limit.units, limit.name);
        }
        text
    }

    /// The memo, if the text is one.
    pub(crate) fn read(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        let mut words = lines.next()?.split(' ');
        let input = words.next()?.parse().ok()?;
        let output = words.next()?.parse().ok()?;
        let extends = flag(words.next()?)?;
        let price = match (words.next(), words.next()) {
            (None, None) => None,
            (Some(input), Some(output)) => {
                Some(Price { input: input.parse().ok()?, output: output.parse().ok()? })
            }
            _ => return None,
        };
        let limits = lines.map(Taken::read).collect::<Option<_>>()?;
        Some(Self { input, output, extends, price, limits })
    }
}

impl Taken {
    fn read(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        let list = words.next()?;
        let counted = Counted::ALL.into_iter().find(|counted| counted.setting() == list)?;
        let shares = flag(words.next()?)?;
        let units = words.next()?.parse().ok()?;
        Some(Self { counted, shares, units, name: words.next()?.to_owned() })
    }
}

fn flag(word: &str) -> Option<bool> {
    match word {
        "0" => Some(false),
        "1" => Some(true),
        _ => None,
    }
}
