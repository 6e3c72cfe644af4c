//! What calls leave behind in this process, whichever snapshot they began with.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::answers::Answers;
use super::held::Held;
use super::streams::Streams;

/// What is held, what was answered, the open streams, and whether this process is about to end.
#[derive(Clone, Debug, Default)]
pub(in crate::proxy) struct CallState {
    pub(in crate::proxy) held: Arc<Held>,
    pub(super) answers: Arc<Answers>,
    pub(in crate::proxy) streams: Arc<Streams>,
    leaving: Arc<AtomicBool>,
}

impl CallState {
    /// From now on, who asks about this process' health is told to go elsewhere.
    pub(in crate::proxy) fn leave(&self) {
        self.leaving.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::Relaxed)
    }
}
