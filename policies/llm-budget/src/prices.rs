//! Prices of a model, and what tokens cost at them. Knows no model and no request.
//!
//! Before a reply reports the input, it is charged at the dearest price that may apply to it. All
//! prices are micro-dollars for a million tokens.

use std::collections::BTreeMap;

use serde::Deserialize;
use weir_policy::Mistakes;

use crate::AMOUNT_MAX;

/// The number of tokens that a price is for.
const TOKENS_PER_PRICE: u128 = 1_000_000;
/// Maximum number of steps in a price that depends on the size of the input. They are kept in each
/// memo.
const STEPS_MAX: usize = 4;
/// Maximum number of tiers of a model.
const TIERS_MAX: usize = 16;
/// Maximum size of a tier's name, in bytes.
const TIER_BYTES_MAX: usize = 64;
/// Maximum price of a tier, in percent.
const PERCENT_MAX: u64 = 10_000;
const PERCENT: u64 = 100;
/// The tier of a request that names none.
const AUTO: &str = "auto";
/// Tiers at the price itself, unless they are written.
const USUAL_TIERS: [&str; 4] = [AUTO, "default", "standard", "standard_only"];

/// One step of `above`, as it is written: from this size of the input on, other prices.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct WrittenStep {
    /// It is for requests with more tokens of input than this.
    input_tokens: u64,
    input: Option<u64>,
    output: Option<u64>,
    cached_input: Option<u64>,
    cache_write: Option<u64>,
    cache_write_1h: Option<u64>,
}

/// Prices as they are written, in a model or a step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WrittenRates {
    pub(crate) input: Option<u64>,
    pub(crate) output: Option<u64>,
    pub(crate) cached_input: Option<u64>,
    pub(crate) cache_write: Option<u64>,
    pub(crate) cache_write_1h: Option<u64>,
}

/// The price of each kind of tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rates {
    /// The price of input that is neither read from a cache nor written to it.
    pub(crate) input: u64,
    pub(crate) cached_input: u64,
    pub(crate) cache_write: u64,
    pub(crate) cache_write_1h: u64,
    pub(crate) output: u64,
}

/// Tokens that a request has used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    /// All of the input.
    pub(crate) input: u64,
    /// What of it was read from a cache.
    pub(crate) cached: u64,
    /// What of it was written to a cache.
    pub(crate) written: u64,
    /// What of that was written for an hour.
    pub(crate) written_1h: u64,
    pub(crate) output: u64,
}

/// The prices of one model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Prices {
    base: Rates,
    /// Prices for requests with more input than this, the smallest first.
    above: Vec<(u64, Rates)>,
    /// Service tiers by name, in percent of these prices.
    tiers: BTreeMap<String, u64>,
}

/// The prices of one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tariff {
    pub(crate) base: Rates,
    pub(crate) above: Vec<(u64, Rates)>,
    /// That of the tier.
    pub(crate) percent: u64,
    /// Tokens that its input can't have more of, as far as is known before the reply.
    pub(crate) input_max: u64,
}

/// What tokens of one kind cost at this price, in micro-dollars.
pub(crate) fn cost_of(tokens: u64, price: u64) -> Option<u64> {
    let micros = (u128::from(tokens) * u128::from(price)).div_ceil(TOKENS_PER_PRICE);
    u64::try_from(micros).ok()
}

impl WrittenStep {
    fn rates(self) -> WrittenRates {
        WrittenRates {
            input: self.input,
            output: self.output,
            cached_input: self.cached_input,
            cache_write: self.cache_write,
            cache_write_1h: self.cache_write_1h,
        }
    }
}

impl WrittenRates {
    /// `None` without the two prices that the others default to.
    fn rates(self) -> Option<Rates> {
        let input = self.input?;
        let cache_write = self.cache_write.unwrap_or(input);
        Some(Rates {
            input,
            cached_input: self.cached_input.unwrap_or(input),
            cache_write,
            cache_write_1h: self.cache_write_1h.unwrap_or(cache_write),
            output: self.output?,
        })
    }

    /// Adds its mistakes. `needed` says whether there must be prices.
    fn check(self, at: &str, needed: bool, mistakes: &mut Mistakes) {
        for (setting, price, needed) in [
            ("input", self.input, needed),
            ("output", self.output, needed),
            ("cached_input", self.cached_input, false),
            ("cache_write", self.cache_write, false),
            ("cache_write_1h", self.cache_write_1h, false),
        ] {
            match price {
                None if needed => mistakes.add(
                    format!("{at}.{setting}"),
                    format_args!("no `{setting}`"),
                    "a price in micro-dollars for a million tokens, as there are `money` limits",
                ),
                Some(price) if price > AMOUNT_MAX => {
                    let expected = format_args!("0 to {AMOUNT_MAX}");
                    mistakes.add(format!("{at}.{setting}"), price, expected);
                }
                _ => {}
            }
        }
    }
}

impl Prices {
    /// Checks the prices of the model at the setting `at`. `needed` says whether there must be
    /// some.
    pub(crate) fn new(
        base: WrittenRates,
        above: &[WrittenStep],
        tiers: BTreeMap<String, u64>,
        (at, needed): (&str, bool),
        mistakes: &mut Mistakes,
    ) -> Option<Self> {
        base.check(at, needed, mistakes);
        if above.len() > STEPS_MAX {
            let found = format_args!("{} steps", above.len());
            mistakes.add(format!("{at}.above"), found, format_args!("at most {STEPS_MAX}"));
        }
        let mut before = 0;
        for (index, step) in above.iter().enumerate() {
            let at = format!("{at}.above[{index}]");
            step.rates().check(&at, needed, mistakes);
            if step.input_tokens <= before || step.input_tokens > AMOUNT_MAX {
                let expected = format_args!("more than {before}, and at most {AMOUNT_MAX}");
                mistakes.add(format!("{at}.input_tokens"), step.input_tokens, expected);
            }
            before = before.max(step.input_tokens);
        }
        check_tiers(&tiers, &format!("{at}.tiers"), mistakes);
        let above = above.iter().map(|step| Some((step.input_tokens, step.rates().rates()?)));
        Some(Self { base: base.rates()?, above: above.collect::<Option<_>>()?, tiers })
    }

    /// The prices of a request that names these tiers, and whose input has `input_max` tokens at
    /// most.
    pub(crate) fn tariff<'t>(
        &self,
        tiers: impl Iterator<Item = &'t str>,
        input_max: u64,
    ) -> Tariff {
        let percent = tiers.map(|tier| self.percent(tier)).max();
        Tariff {
            base: self.base,
            above: self.above.clone(),
            percent: percent.unwrap_or_else(|| self.percent(AUTO)),
            input_max,
        }
    }

    /// The price of a tier. One that is not known may be any of them.
    fn percent(&self, tier: &str) -> u64 {
        let dearest = || self.tiers.values().copied().fold(PERCENT, u64::max);
        let unwritten = || if USUAL_TIERS.contains(&tier) { PERCENT } else { dearest() };
        self.tiers.get(tier).copied().unwrap_or_else(unwritten)
    }
}

fn check_tiers(tiers: &BTreeMap<String, u64>, at: &str, mistakes: &mut Mistakes) {
    if tiers.len() > TIERS_MAX {
        let found = format_args!("{} tiers", tiers.len());
        mistakes.add(at, found, format_args!("at most {TIERS_MAX}"));
    }
    for (name, percent) in tiers {
        let at = format!("{at}.{name}");
        if name.is_empty() || name.len() > TIER_BYTES_MAX || name.chars().any(char::is_control) {
            let expected = format_args!("a tier of 1 to {TIER_BYTES_MAX} bytes");
            mistakes.add(&at, format_args!("the name {name:?}"), expected);
        }
        if *percent > PERCENT_MAX {
            let expected = format_args!("0 to {PERCENT_MAX} percent of the model's prices");
            mistakes.add(&at, percent, expected);
        }
    }
}

impl Tariff {
    /// Whether it matters what was read from a cache or written to it.
    pub(crate) fn tells_caches_apart(&self) -> bool {
        let apart =
            |it: &Rates| [it.cached_input, it.cache_write, it.cache_write_1h] != [it.input; 3];
        self.each().any(apart)
    }

    /// What these tokens cost at most, in micro-dollars, before more is known of the input.
    pub(crate) fn most(&self, input: u64, output: u64) -> u64 {
        let step_may_apply = |step: &&(u64, Rates)| step.0 < self.input_max.max(input);
        let steps = self.above.iter().filter(step_may_apply).map(|(_, rates)| rates);
        let (mut dearest, mut dearest_output) = (0, 0);
        for it in steps.chain([&self.base]) {
            let of_caches = it.cached_input.max(it.cache_write).max(it.cache_write_1h);
            dearest = dearest.max(it.input).max(of_caches);
            dearest_output = dearest_output.max(it.output);
        }
        self.money(&[(input, dearest), (output, dearest_output)])
    }

    /// What these tokens have cost.
    pub(crate) fn of(&self, usage: &Usage) -> u64 {
        let step = self.above.iter().rev().find(|(more_than, _)| usage.input > *more_than);
        let rates = step.map_or(self.base, |(_, rates)| *rates);
        // An upstream may report parts that are more than the whole.
        let cached = usage.cached.min(usage.input);
        let written = usage.written.min(usage.input - cached);
        let written_1h = usage.written_1h.min(written);
        self.money(&[
            (usage.input - cached - written, rates.input),
            (cached, rates.cached_input),
            (written - written_1h, rates.cache_write),
            (written_1h, rates.cache_write_1h),
            (usage.output, rates.output),
        ])
    }

    /// Rounded up, once.
    fn money(&self, tokens: &[(u64, u64)]) -> u64 {
        let products = tokens.iter().map(|(count, price)| u128::from(*count) * u128::from(*price));
        // Five products of numbers of 64 bits may exceed 128 bits.
        let sum = products.fold(0, u128::saturating_add).saturating_mul(self.percent.into());
        let money = sum.div_ceil(TOKENS_PER_PRICE * u128::from(PERCENT));
        u64::try_from(money).unwrap_or(u64::MAX)
    }

    fn each(&self) -> impl Iterator<Item = &Rates> {
        [&self.base].into_iter().chain(self.above.iter().map(|(_, rates)| rates))
    }
}

impl Rates {
    /// The numbers in the memo's order.
    pub(crate) fn numbers(self) -> [u64; 5] {
        [self.input, self.cached_input, self.cache_write, self.cache_write_1h, self.output]
    }

    pub(crate) fn of_numbers(numbers: [u64; 5]) -> Self {
        let [input, cached_input, cache_write, cache_write_1h, output] = numbers;
        Self { input, cached_input, cache_write, cache_write_1h, output }
    }
}
