//! What calls leave behind in this process, whichever snapshot they began with.

use std::sync::Arc;

use super::answers::Answers;
use super::held::Held;
use super::streams::Streams;

/// What is held, what was answered, and the streams of quotas.
#[derive(Clone, Debug, Default)]
pub(in crate::proxy) struct CallState {
    pub(in crate::proxy) held: Arc<Held>,
    pub(super) answers: Arc<Answers>,
    pub(in crate::proxy) streams: Arc<Streams>,
}
