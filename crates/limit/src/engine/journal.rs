//! Notes what is written to counters after they were sent to a new process. Must not know how that
//! is sent on (`saved::operations`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::SyncSender;

use super::{Cell, Key, Kind};

/// Something that was written to a counter.
#[derive(Clone, Debug)]
pub(super) enum Operation {
    /// The cell's cost was taken or charged.
    Spent(Cell),
    /// The cell's cost, taken at that time (microseconds since 1970), was given back.
    GivenBack(Cell, u64),
    /// The counter was deleted.
    Reset(Key),
}

/// Notes operations. Each shard has one, and the journal ends when none has any more.
#[derive(Clone, Debug)]
pub(super) struct Journal {
    sender: SyncSender<Operation>,
    lost: Arc<AtomicU64>,
}

impl Journal {
    /// A journal that sends operations to `sender`, and counts in `lost` those that it can't send.
    pub(super) fn new(sender: SyncSender<Operation>, lost: Arc<AtomicU64>) -> Self {
        Self { sender, lost }
    }

    /// Notes what was spent or given back. Leases are left out, as they are when counters are sent.
    pub(super) fn note(&self, operation: Operation) {
        let leases = match &operation {
            Operation::Spent(cell) | Operation::GivenBack(cell, _) => {
                cell.program.kind == Kind::Leases
            }
            Operation::Reset(_) => false,
        };
        // What was spent and is lost may not be given back: once anything is lost, nothing is.
        let back = matches!(operation, Operation::GivenBack(..));
        let unknown = back && self.lost.load(Ordering::Relaxed) > 0;
        if !leases && (unknown || self.sender.try_send(operation).is_err()) {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}
