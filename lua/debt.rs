//! How far a limit's units may be owed.

use crate::check::{self, AMOUNT_MAX};
use crate::{Breach, Rate, Setting};

/// How many units a charge at the end of a request may take beyond what is left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Debt {
    /// None.
    #[default]
    None,
    /// As many as the allowance: one quota, or one burst.
    Allowance,
    /// This many.
    Units(u64),
    /// As many as the quota, and only until the window ends: the next one starts without a debt.
    Window,
}

impl Debt {
    /// All debts that have a name.
    pub const NAMED: [(&'static str, Self); 2] =
        [("allowance", Self::Allowance), ("window", Self::Window)];

    /// The most units that may be owed to a limit that allows `allowance`.
    #[must_use]
    pub fn units(self, allowance: u64) -> u64 {
        match self {
            Self::None => 0,
            Self::Allowance | Self::Window => allowance,
            Self::Units(units) => units,
        }
    }

    /// The same as programs read it: below zero if the debt is forgotten when the window ends.
    pub(crate) fn number(self, allowance: u64) -> i64 {
        let units = i64::try_from(self.units(allowance)).unwrap_or(i64::MAX);
        if self == Self::Window { -units } else { units }
    }

    /// Adds a breach if more units may be owed than `most`. `windows` says whether the limit has
    /// windows that end. A debt written as a word is reported with that word.
    pub(crate) fn check(
        self,
        allowance: u64,
        most: u64,
        windows: bool,
        breaches: &mut Vec<Breach>,
    ) {
        let named = Self::NAMED.into_iter().find(|(_, debt)| *debt == self);
        let found = named.map_or_else(
            || self.units(allowance).to_string(),
            |(name, _)| format!("{name:?}, {}", self.units(allowance)),
        );
        if self == Self::Window && !windows {
            let expected =
                "units or \"allowance\": only fixed_window and quota have windows that end";
            breaches.push(Breach::new(Setting::Debt, "\"window\"", expected));
        } else if self.units(allowance) > most {
            let expected = format!("0 to {most} units with these settings");
            breaches.push(Breach::new(Setting::Debt, found, expected));
        }
    }
}

/// The largest debt of windows of this rate: it must be paid in the longest period that a limit may
/// have, and its units must be countable together with the quota.
pub(crate) fn most_of_windows(rate: Rate) -> u64 {
    let windows = check::PERIOD_MS_MAX / rate.per_ms.max(1);
    rate.amount.saturating_mul(windows).min(most_beside(rate.amount))
}

/// The largest debt that can be counted together with the quota.
pub(crate) fn most_beside(quota: u64) -> u64 {
    AMOUNT_MAX.saturating_sub(quota)
}
