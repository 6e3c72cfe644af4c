//! What the embedded engine keeps for each kind of program: three numbers, a log, a ring of
//! sub-windows, leases.
//!
//! Each kind is read into the three numbers that programs see, and written to when all agreed,
//! exactly as the Redis driver does it with a string, a list or a sorted set. Must not know what a
//! program computes.

mod members;
mod ring;

use members::Members;
use ring::Ring;

use super::found::MEMBERS_READ_MAX;
use super::lua::State;
use super::{Cell, Content, Kind};

/// Of takes that add one lease, every so many purge what is over: by the last digits of the time,
/// so that both engines do it alike. A purge is only for memory, and costs a Redis call.
pub(super) const PURGE_EACH: u64 = 8;
/// Sub-windows that weigh as much as one counter.
const BUCKETS_A_KEY: usize = 16;

/// A counter's inside, by kind.
pub(super) enum Stored {
    Numbers(State),
    Log(Box<Members>),
    Buckets(Box<Ring>),
    Leases(Box<Members>),
}

impl Stored {
    /// An empty one for `cell`.
    pub(super) fn new(cell: &Cell) -> Self {
        match cell.program.kind {
            Kind::Numbers => Self::Numbers([0.0; 3]),
            Kind::Log => Self::Log(Box::default()),
            Kind::Buckets => Self::Buckets(Box::new(Ring::new(number(cell, 2)))),
            Kind::Leases => Self::Leases(Box::default()),
        }
    }

    /// How many keys of the engine's maximum it stands for.
    pub(super) fn weight(&self) -> usize {
        match self {
            Self::Numbers(_) => 1,
            Self::Log(members) | Self::Leases(members) => members.records().max(1),
            Self::Buckets(ring) => ring_weight(ring.len()),
        }
    }

    /// Whether nothing is in it: it need not be kept.
    pub(super) fn is_empty(&self) -> bool {
        match self {
            Self::Numbers(_) => false,
            Self::Buckets(ring) => ring.is_empty(),
            Self::Log(members) | Self::Leases(members) => members.records() == 0,
        }
    }

    /// What it holds, for a person who looks.
    pub(super) fn content(&self) -> Content {
        match self {
            Self::Numbers(state) => Content::Numbers(state.map(|number| number as i64)),
            Self::Log(members) | Self::Leases(members) => {
                Content::Members(members.instants(MEMBERS_READ_MAX))
            }
            Self::Buckets(ring) => ring.content(),
        }
    }

    /// Writes what `cell` takes at `now_us`, of which `now` is the cell's unit; `state` is what its
    /// program answered.
    pub(super) fn take(&mut self, cell: &Cell, now: u64, now_us: u64, state: State) {
        let purges = cell.cost > 1 || now_us.is_multiple_of(PURGE_EACH);
        match self {
            Self::Numbers(numbers) => *numbers = state,
            Self::Log(members) => {
                members.drop_after(now);
                members.drop_until(over(cell, now));
                members.insert(now, cell.member, cell.cost);
            }
            Self::Buckets(ring) => ring.add(window(cell, now), cell.cost),
            Self::Leases(members) => {
                let ends = now + number(cell, 1);
                members.drop_after(ends + number(cell, 2));
                if purges {
                    members.drop_until(over(cell, now));
                }
                members.insert(ends, cell.member, cell.cost);
            }
        }
    }

    /// Forgets what is over, in `cell`'s unit.
    pub(super) fn purge(&mut self, cell: &Cell, now: u64) {
        match self {
            Self::Numbers(_) | Self::Buckets(_) => {}
            Self::Log(members) | Self::Leases(members) => members.drop_until(over(cell, now)),
        }
    }

    /// Gives back what is kept by name or by sub-window. Numbers are given back by their program.
    pub(super) fn give_back(&mut self, cell: &Cell, now: u64, taken_at: u64) {
        match self {
            Self::Numbers(_) => {}
            Self::Log(members) | Self::Leases(members) => members.remove(cell.member, cell.cost),
            Self::Buckets(ring) => {
                ring.subtract(window(cell, now), window(cell, taken_at), cell.cost)
            }
        }
    }

    /// Lets `cell`'s leases end one length from now, also those that had ended.
    pub(super) fn renew(&mut self, cell: &Cell, now: u64) {
        if let Self::Leases(members) = self {
            members.remove(cell.member, cell.cost);
            members.insert(now + number(cell, 1), cell.member, cell.cost);
        }
    }
}

/// What `cell`'s program sees of a counter at `now`.
pub(super) fn read(counter: Option<&Stored>, cell: &Cell, now: u64) -> State {
    // Units that must leave before the cost fits, or before the next unit does where the cost
    // leaves nothing.
    let lacking = |count: u64| {
        let (asked, most) = (count + cell.cost.max(1), number(cell, 0));
        if asked == most && cell.cost > 0 { 1 } else { asked.saturating_sub(most) }
    };
    match (counter, cell.program.kind) {
        (Some(Stored::Numbers(state)), Kind::Numbers) => *state,
        (Some(Stored::Log(members)), Kind::Log) => {
            let from = now.saturating_sub(number(cell, 1));
            let count = members.between(from, now);
            let lacking = lacking(count);
            let leaves =
                if lacking > 0 && lacking <= count { members.nth(from, lacking) } else { 0 };
            [count as f64, leaves as f64, 0.0]
        }
        (Some(Stored::Leases(members)), Kind::Leases) => {
            [members.between(now, now + number(cell, 1) + number(cell, 2)) as f64, 0.0, 0.0]
        }
        (counter, Kind::Buckets) => {
            let (length, this) = (number(cell, 1).max(1), window(cell, now));
            let begins = (this * length) as f64;
            let Some(Stored::Buckets(ring)) = counter else { return [0.0, 0.0, begins] };
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

/// How many keys more a take of `cell` may come to stand for.
pub(super) fn growth(counter: Option<&Stored>, cell: &Cell) -> usize {
    match (counter, cell.program.kind) {
        (_, Kind::Log | Kind::Leases) | (None, Kind::Numbers) => 1,
        (None, Kind::Buckets) => ring_weight(number(cell, 2) as usize),
        (Some(_), Kind::Numbers | Kind::Buckets) => 0,
    }
}

fn ring_weight(buckets: usize) -> usize {
    1 + buckets / BUCKETS_A_KEY
}

/// Up to which instant a member of `cell`'s counts no more.
fn over(cell: &Cell, now: u64) -> u64 {
    if cell.program.kind == Kind::Log { now.saturating_sub(number(cell, 1)) } else { now }
}

/// One of a cell's numbers that is never below zero.
fn number(cell: &Cell, index: usize) -> u64 {
    cell.numbers.get(index).copied().and_then(|number| u64::try_from(number).ok()).unwrap_or(0)
}

/// The number of the sub-window that contains `at`.
fn window(cell: &Cell, at: u64) -> u64 {
    at / number(cell, 1).max(1)
}
