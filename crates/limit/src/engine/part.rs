//! Parents and what their children are assured of them: the one relation between cells of a call.

use super::lua::{Decision, State, Vm};
use super::{Cell, EngineError};

/// The retry time of a parent that fits and was not charged.
pub(super) const UNCHARGED: i64 = -3;

/// What a cell is to the cells beside it in a take or a look. In all other calls each cell is on
/// its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Part {
    /// It is decided by itself.
    #[default]
    Alone,
    /// What a child is sure to get of the parent in the next cell. It refuses nothing, and is
    /// charged if it fits and all enforced cells do.
    Assured,
    /// A parent. If the assured cell before it fits, it is charged, into debt if need be, and not
    /// asked.
    Parent,
}

/// Whether the cell at `index` is a parent with its assured cell before it.
pub(super) fn is_assured(cells: &[Cell], index: usize) -> bool {
    let part = |index: usize| cells.get(index).map(|cell| cell.part);
    let before = index.checked_sub(1).and_then(part);
    (before, part(index)) == (Some(Part::Assured), Some(Part::Parent))
}

/// What a parent answers whose assured cell fits: it is charged, into debt if need be, where
/// `writes` says that this is a take. `lua/driver/frame.lua` does the same on Redis.
///
/// # Errors
/// Those of the program.
pub(super) fn of_parent(
    vm: &mut Vm,
    cell: &Cell,
    state: State,
    now: f64,
    writes: bool,
) -> Result<Decision, EngineError> {
    let mut retry = -1.0;
    let mut decision = if writes {
        let charged = vm.charge(cell, state, now)?;
        let is_short = charged.units().is_some_and(|units| units < cell.cost);
        let mut decision = charged.into_decision();
        if is_short {
            // A part would be given back as the whole.
            (decision.state, retry) = (state, UNCHARGED as f64);
        }
        decision
    } else {
        vm.take(cell, cell.cost, state, now)?
    };
    if decision.outside() {
        return Ok(decision);
    }
    (decision.fits, decision.retry) = (true, retry);
    let after = vm.take(cell, 0, if writes { decision.state } else { state }, now)?;
    // What is owed may come back in a period that is not named.
    if writes && after.outside() {
        return Ok(after);
    }
    decision.report_remaining_of(&after);
    Ok(decision)
}
