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
    /// Charges (above zero) or gives back (below zero) this many units, at most 2^31 either way.
    Units(i64),
    /// Deletes the counter, including what other requests charged. Its whole allowance is back.
    Reset,
}

impl fmt::Display for Change {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Units(units) => write!(out, "{units:+} units"),
            Self::Reset => write!(out, "reset"),
        }
    }
}
