//! The rows of the table: one file for each family of faults.
//!
//! To add a row, write a function from [`Run`] to lines, and name it in [`ROWS`].

mod clocks;
mod cuts;
mod errors;
mod keys;
mod leases;
mod masters;
mod moves;
mod outage;
mod snapshots;
mod versions;

use crate::Run;
use crate::report::Line;

pub use moves::failover;

/// A fault, or a few that share a stage.
pub struct Row {
    /// Its number in the table.
    pub number: &'static str,
    /// The name for `--only`.
    pub name: &'static str,
    pub run: fn(&Run) -> Vec<Line>,
}

impl Row {
    /// Whether one of these numbers or names is its own. Without any, every row is chosen.
    pub fn chosen(&self, only: &[String]) -> bool {
        only.is_empty() || only.iter().any(|name| name == self.number || name == self.name)
    }
}

pub const ROWS: &[Row] = &[
    Row { number: "1", name: "killed-master", run: masters::killed },
    Row { number: "2", name: "frozen-master", run: masters::frozen },
    Row { number: "3", name: "silent-master", run: masters::silent },
    Row { number: "3b", name: "partition", run: masters::partition },
    Row { number: "4", name: "moves", run: moves::all },
    Row { number: "5", name: "outage", run: outage::all },
    Row { number: "6", name: "errors", run: errors::all },
    Row { number: "7", name: "cuts", run: cuts::all },
    Row { number: "8", name: "clocks", run: clocks::all },
    Row { number: "9", name: "idle-keys", run: keys::idle },
    Row { number: "10", name: "attacker", run: keys::attacker },
    Row { number: "11", name: "snapshots", run: snapshots::all },
    Row { number: "12", name: "leases", run: leases::all },
    Row { number: "13", name: "versions", run: versions::together },
];
