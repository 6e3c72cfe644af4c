//! What calls leave behind in this process, whichever snapshot they began with.

use std::sync::Arc;

use super::answers::Answers;
use super::held::Held;

/// What is held, and what was answered.
#[derive(Clone, Debug, Default)]
pub(in crate::proxy) struct CallState {
    pub(in crate::proxy) held: Arc<Held>,
    pub(super) answers: Arc<Answers>,
}
