//! The calls of a plan: its limits by their tags, as the engine is asked.

use smallvec::SmallVec;

use crate::engine::{Cell, Cells, Part};

/// When a limit is asked, and together with which.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Order {
    /// With the others of its tag.
    Usual,
    /// With the others of its tag, after all other tags: what it takes can't be given back.
    Last,
    /// By itself, after all others: it may fail by itself, and refuses nobody.
    Apart,
}

/// The limits of a plan that share a tag, as one call to the engine. The same for every take of the
/// plan.
#[derive(Clone, Debug)]
pub(super) struct Call {
    pub(super) tag: u128,
    /// The latest of its limits.
    pub(super) order: Order,
    pub(super) cells: Cells,
    /// The index in the plan of each cell's limit.
    pub(super) indices: SmallVec<[u8; 8]>,
}

/// A plan's calls, in the order in which they are made.
#[derive(Clone, Debug, Default)]
pub(super) struct Calls(pub(super) SmallVec<[Call; 1]>);

impl Calls {
    /// Adds the plan's limit at `index`; a parent right after its assured limit.
    pub(super) fn add(&mut self, cell: Cell, index: u8, order: Order) {
        let tag = cell.key.tag;
        let shared = self.0.iter().position(|call| call.tag == tag && call.order != Order::Apart);
        let mut call = match shared.filter(|_| order != Order::Apart) {
            Some(at) => self.0.remove(at),
            None => Call { tag, order, cells: Cells::new(), indices: SmallVec::new() },
        };
        call.order = call.order.max(order);
        // Sorted by program: one script for each order would fill Redis' script cache. A parent
        // comes right after its assured cell, and both after all others.
        let after =
            |other: &Cell| other.part != Part::Alone || other.program.name > cell.program.name;
        let among = (cell.part == Part::Alone).then(|| call.cells.iter().position(after)).flatten();
        let among = among.unwrap_or(call.cells.len());
        call.cells.insert(among, cell);
        call.indices.insert(among, index);
        let at = self
            .0
            .iter()
            .position(|other| (other.order, other.tag) > (call.order, tag))
            .unwrap_or(self.0.len());
        self.0.insert(at, call);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether there is more than one.
    pub(super) fn are_several(&self) -> bool {
        self.0.len() > 1
    }

    /// Whether one that is made may be taken back, as another one after it refuses.
    pub(super) fn may_be_taken_back(&self) -> bool {
        self.0.iter().filter(|call| call.order != Order::Apart).count() > 1
    }

    /// The cells of all limits, if they share one tag. Numbers that depend on the time are missing.
    pub(super) fn only(&self) -> Option<&Cells> {
        let [call] = &*self.0 else { return None };
        Some(&call.cells)
    }

    /// The calls with those limits of the plan alone that `keeps` says.
    pub(super) fn filtered(&self, keeps: impl Fn(usize) -> bool) -> Self {
        let left = |call: &Call| {
            let kept = |index: &u8| keeps(usize::from(*index));
            let cells = call.cells.iter().zip(&call.indices).filter(|(_, index)| kept(index));
            let call = Call {
                cells: cells.map(|(cell, _)| cell.clone()).collect(),
                indices: call.indices.iter().copied().filter(|index| kept(index)).collect(),
                ..*call
            };
            (!call.cells.is_empty()).then_some(call)
        };
        Self(self.0.iter().filter_map(left).collect())
    }

    /// The cell of the plan's limit at `index`.
    pub(super) fn cell(&self, index: usize) -> Option<&Cell> {
        self.0.iter().find_map(|call| call.cells.get(call.position(index)?))
    }
}

impl Call {
    /// The position of the limit at `index` in this call.
    pub(super) fn position(&self, index: usize) -> Option<usize> {
        self.indices.iter().position(|at| usize::from(*at) == index)
    }

    /// A copy of the cells, each changed by `adjust`, which gets the limit's index in the plan too.
    pub(super) fn adjusted(&self, adjust: impl Fn(&mut Cell, usize)) -> Box<Cells> {
        let mut cells = Box::new(self.cells.clone());
        cells
            .iter_mut()
            .zip(&self.indices)
            .for_each(|(cell, index)| adjust(cell, usize::from(*index)));
        cells
    }
}

/// Some limits of a plan, by their indices. A plan has at most 16.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LimitSet(u32);

impl LimitSet {
    pub(super) fn contains(self, index: usize) -> bool {
        u32::try_from(index).is_ok_and(|at| self.0.checked_shr(at).is_some_and(|set| set & 1 == 1))
    }

    pub(super) fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// These and those of `other`.
    pub(super) fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Adds the limit at `index`.
    pub(super) fn add(&mut self, index: usize) {
        let bit = u32::try_from(index).ok().and_then(|index| 1_u32.checked_shl(index));
        self.0 |= bit.unwrap_or(0);
    }
}
