//! A call for several units of one counter, which its holder spends by itself for a while: what is
//! asked and what is answered. Must not know how it is spent.

use super::CellReply;

/// What is asked for beside the cell. The cell's cost is what the first waiting request needs.
#[derive(Clone, Copy, Debug)]
pub struct LeaseCall<'h> {
    /// What all waiting requests need, in units, which is granted as far as it is there.
    pub needed: u64,
    /// The most units. Beyond `needed` no more than half of the holder's share of what is left is
    /// granted.
    pub units: u64,
    /// How long the holder counts as one, in milliseconds.
    pub life_ms: u64,
    /// Names the holder among all of its counter.
    pub holder: &'h str,
}

/// The answer to a call for a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseReply {
    /// The store's time of the take, in microseconds since 1970.
    pub at_us: u64,
    /// The units that were taken; 0 if the cell's cost did not fit.
    pub units: u64,
    /// How many holders there are, this one included; 0 if nothing was taken.
    pub holders: u64,
    /// What the counter says: whether the cell's cost fitted, and what is left after the lease. If
    /// the cost does not fit, or would not fit again, it also says when it will.
    pub cell: CellReply,
}

/// A process that holds a lease of a counter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseHolder {
    /// Its name.
    pub name: String,
    /// The units of its last lease, spent or not.
    pub units: u64,
    /// When that lease ends at the latest, in milliseconds since 1970.
    pub ends_ms: u64,
}
