//! What the embedded engine stores for each kind of program: three numbers, a log, a ring of
//! sub-windows, or leases.
//!
//! Each kind is read into the three numbers that programs see, and written only when all cells
//! agreed, exactly as the Redis driver does with a string, a list or a sorted set. Must not know
//! what a program computes.

mod bytes;
mod members;
mod ring;

use members::Members;
use ring::Ring;

use super::found::MEMBERS_READ_MAX;
use super::lua::State;
use super::{Cell, Content, Kind};

/// Of the takes that add one lease, one in this many purges expired leases. The last digits of the
/// time decide, so that both engines purge alike. A purge only frees memory, and costs a Redis
/// call.
pub(super) const PURGE_EVERY: u64 = 8;
/// This many sub-windows count as one key.
const BUCKETS_PER_KEY: usize = 8;

/// A counter's content, by kind.
pub(super) enum CounterContent {
    Numbers(State),
    Log(Box<Members>),
    Buckets(Box<Ring>),
    Leases(Box<Members>),
}

impl CounterContent {
    /// An empty counter for `cell`.
    pub(super) fn new(cell: &Cell) -> Self {
        match cell.program.kind {
            Kind::Numbers => Self::Numbers([0.0; 3]),
            Kind::Log => Self::Log(Box::default()),
            Kind::Buckets => Self::Buckets(Box::new(Ring::new(number(cell, 2)))),
            Kind::Leases => Self::Leases(Box::default()),
        }
    }

    /// How many keys it counts as, of the engine's maximum.
    pub(super) fn weight(&self) -> usize {
        match self {
            Self::Numbers(_) => 1,
            Self::Log(members) | Self::Leases(members) => members.records().max(1),
            Self::Buckets(ring) => ring_weight(ring.len()),
        }
    }

    /// Whether it is empty and need not be kept.
    pub(super) fn is_empty(&self) -> bool {
        match self {
            Self::Numbers(_) => false,
            Self::Buckets(ring) => ring.is_empty(),
            Self::Log(members) | Self::Leases(members) => members.records() == 0,
        }
    }

    /// Its content, for an operator who inspects it.
    pub(super) fn content(&self) -> Content {
        match self {
            Self::Numbers(state) => Content::Numbers(state.map(|number| number as i64)),
            Self::Log(members) | Self::Leases(members) => {
                Content::Members(members.instants(MEMBERS_READ_MAX))
            }
            Self::Buckets(ring) => ring.content(),
        }
    }

    /// Writes what `cell` takes at `now_us`, which is `now` in the cell's unit. `state` is the new
    /// state that its program returned.
    pub(super) fn take(&mut self, cell: &Cell, now: u64, now_us: u64, state: State) {
        let purges = cell.cost > 1 || now_us.is_multiple_of(PURGE_EVERY);
        match self {
            Self::Numbers(numbers) => *numbers = state,
            Self::Log(members) => {
                members.drop_after(now);
                members.drop_until(expired_until(cell, now));
                members.insert(now, cell.member, cell.cost);
            }
            Self::Buckets(ring) => ring.add(window(cell, now), cell.cost),
            Self::Leases(members) => {
                let ends = now + number(cell, 1);
                members.drop_after(ends + number(cell, 2));
                if purges {
                    members.drop_until(expired_until(cell, now));
                }
                members.insert(ends, cell.member, cell.cost);
            }
        }
    }

    /// Drops expired units; `now` is in `cell`'s unit.
    pub(super) fn purge(&mut self, cell: &Cell, now: u64) {
        match self {
            Self::Numbers(_) | Self::Buckets(_) => {}
            Self::Log(members) | Self::Leases(members) => {
                members.drop_until(expired_until(cell, now))
            }
        }
    }

    /// Gives back units that are stored by name or by sub-window. [`Kind::Numbers`] is given back
    /// by its program.
    pub(super) fn give_back(&mut self, cell: &Cell, now: u64, taken_at: u64) {
        match self {
            Self::Numbers(_) => {}
            Self::Log(members) | Self::Leases(members) => members.remove(cell.member, cell.cost),
            Self::Buckets(ring) => {
                ring.subtract(window(cell, now), window(cell, taken_at), cell.cost)
            }
        }
    }

    /// Extends `cell`'s leases to one length from now, including those that have ended.
    pub(super) fn renew(&mut self, cell: &Cell, now: u64) {
        if let Self::Leases(members) = self {
            members.remove(cell.member, cell.cost);
            members.insert(now + number(cell, 1), cell.member, cell.cost);
        }
    }
}

/// The three numbers that `cell`'s program sees of a counter at `now`.
pub(super) fn read(counter: Option<&CounterContent>, cell: &Cell, now: u64) -> State {
    // Units that must leave before the cost fits or, if the cost leaves nothing, before one more
    // unit fits.
    let lacking = |count: u64| {
        let (wanted, most) = (count + cell.cost.max(1), number(cell, 0));
        if wanted == most && cell.cost > 0 { 1 } else { wanted.saturating_sub(most) }
    };
    match (counter, cell.program.kind) {
        (Some(CounterContent::Numbers(state)), Kind::Numbers) => *state,
        (Some(CounterContent::Log(members)), Kind::Log) => {
            let from = now.saturating_sub(number(cell, 1));
            let count = members.between(from, now);
            let lacking = lacking(count);
            let leaves =
                if lacking > 0 && lacking <= count { members.nth(from, lacking) } else { 0 };
            [count as f64, leaves as f64, 0.0]
        }
        (Some(CounterContent::Leases(members)), Kind::Leases) => {
            [members.between(now, now + number(cell, 1) + number(cell, 2)) as f64, 0.0, 0.0]
        }
        (counter, Kind::Buckets) => {
            let (length, this) = (number(cell, 1).max(1), window(cell, now));
            let begins = (this * length) as f64;
            let Some(CounterContent::Buckets(ring)) = counter else { return [0.0, 0.0, begins] };
            let count = ring.count(this);
            let lacking = lacking(count);
            let leaves = if lacking > 0 && lacking <= count {
                ring.leaves(this, lacking) * length
            } else {
                0
            };
            [count as f64, leaves as f64, begins]
        }
        _ => [0.0; 3],
    }
}

/// How many more keys the counter may count as after a take of `cell`.
pub(super) fn growth(counter: Option<&CounterContent>, cell: &Cell) -> usize {
    match (counter, cell.program.kind) {
        (_, Kind::Log | Kind::Leases) | (None, Kind::Numbers) => 1,
        (None, Kind::Buckets) => ring_weight(number(cell, 2) as usize),
        (Some(_), Kind::Numbers | Kind::Buckets) => 0,
    }
}

fn ring_weight(buckets: usize) -> usize {
    1 + buckets / BUCKETS_PER_KEY
}

/// Members of `cell`'s up to this instant have expired.
fn expired_until(cell: &Cell, now: u64) -> u64 {
    if cell.program.kind == Kind::Log { now.saturating_sub(number(cell, 1)) } else { now }
}

/// One of a cell's numbers, for those that are never below zero.
fn number(cell: &Cell, index: usize) -> u64 {
    cell.numbers.get(index).copied().and_then(|number| u64::try_from(number).ok()).unwrap_or(0)
}

/// The number of the sub-window that contains `at`.
fn window(cell: &Cell, at: u64) -> u64 {
    at / number(cell, 1).max(1)
}
