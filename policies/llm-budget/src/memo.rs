//! What a decision leaves for the reply's end: text, since `settle` may run in another instance.
//!
//! The first line has what was reserved: `input output extends`. With prices, the tier and the most
//! input follow, the price of each kind of tokens, and as many prices for each step, after the
//! input above which it applies: `percent input-max rates (above rates)*`. Each further line is a
//! limit: `list shares taken name`.

use std::fmt::Write as _;

use crate::lists::Counted;
use crate::prices::{Rates, Tariff};

/// What was reserved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Memo {
    /// Tokens of input, estimated.
    pub(crate) input: u64,
    /// Maximum number of tokens of output.
    pub(crate) output: u64,
    /// Whether the output is reserved in steps.
    pub(crate) extends: bool,
    pub(crate) tariff: Option<Tariff>,
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
    /// The text. With 16 limits, the longest names and all steps of prices it has 2,300 bytes.
    pub(crate) fn write(&self) -> String {
        let mut text = format!("{} {} {}", self.input, self.output, u8::from(self.extends));
        // Writing to a String can't fail.
        if let Some(tariff) = &self.tariff {
            let steps = tariff
                .above
                .iter()
                .flat_map(|(above, rates)| [*above].into_iter().chain(rates.numbers()));
            let numbers = [tariff.percent, tariff.input_max].into_iter();
            for number in numbers.chain(tariff.base.numbers()).chain(steps) {
                let _ = write!(text, " {number}");
            }
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
        let numbers = words.map(|word| word.parse().ok()).collect::<Option<Vec<u64>>>()?;
        let tariff = if numbers.is_empty() { None } else { Some(tariff(&numbers)?) };
        let limits = lines.map(Taken::read).collect::<Option<_>>()?;
        Some(Self { input, output, extends, tariff, limits })
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

fn tariff(numbers: &[u64]) -> Option<Tariff> {
    let ([percent, input_max], rest) = numbers.split_first_chunk()?;
    let (base, rest) = rest.split_first_chunk()?;
    let (steps, incomplete) = rest.as_chunks::<6>();
    if !incomplete.is_empty() {
        return None;
    }
    let step = |step: &[u64; 6]| {
        let [above, rates @ ..] = *step;
        (above, Rates::of_numbers(rates))
    };
    Some(Tariff {
        base: Rates::of_numbers(*base),
        above: steps.iter().map(step).collect(),
        percent: *percent,
        input_max: *input_max,
    })
}

fn flag(word: &str) -> Option<bool> {
    match word {
        "0" => Some(false),
        "1" => Some(true),
        _ => None,
    }
}
