//! The changes to limits that a policy requests when a request has ended.

use std::fmt;

/// A policy's change to one limit of a request that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Adjustment {
    /// The limit's name.
    pub limit: String,
    /// The change.
    pub change: Change,
}

/// A change to a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Charges (above zero) or gives back (below zero) this many units, at most 2^52 either way. A
    /// charge that does not fit is dropped.
    Units(i64),
    /// Charges this many units, at most 2^52, into debt as far as the limit's [`Debt`] allows.
    ///
    /// [`Debt`]: super::Debt
    Debt(u64),
    /// Deletes the counter, including what other requests charged. Its whole allowance is back.
    Reset,
}

impl Change {
    /// How many units it charges or gives back.
    #[must_use]
    pub fn units(self) -> u64 {
        match self {
            Self::Units(units) => units.unsigned_abs(),
            Self::Debt(units) => units,
            Self::Reset => 0,
        }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Units(units) => write!(out, "{units:+} units"),
            Self::Debt(units) => write!(out, "{units:+} units, into debt"),
            Self::Reset => write!(out, "reset"),
        }
    }
}
