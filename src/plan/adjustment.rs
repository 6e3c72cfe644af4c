//! What a policy wants changed of its limits when a request is over.

use std::fmt;

/// A policy's word on one limit of a request that is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Adjustment {
    /// The limit's name.
    pub limit: String,
    /// What is to become of it.
    pub change: Change,
}

/// What is to become of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Changes what was taken, at most 2^31 units either way: above zero charges more, below zero
    /// gives back.
    Units(i64),
    /// Forgets the counter, whoever it was charged by: its whole allowance is back.
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
