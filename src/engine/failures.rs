//! Counts failed calls by cause. Each series is looked up once, so that an outage does not contend
//! for the registry's lock.

use super::{Cause, EngineError};
use crate::telemetry::{Counter, Metrics, names};

impl Cause {
    /// All causes, in order of declaration.
    pub const ALL: [Self; 10] = [
        Self::Timeout,
        Self::Connection,
        Self::OutOfMemory,
        Self::NoReplicas,
        Self::Busy,
        Self::NoPermission,
        Self::Misconfigured,
        Self::Cluster,
        Self::Full,
        Self::Script,
    ];

    /// The metric label.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::Connection => "connection",
            Self::OutOfMemory => "out_of_memory",
            Self::NoReplicas => "no_replicas",
            Self::Busy => "busy",
            Self::NoPermission => "no_permission",
            Self::Misconfigured => "misconfigured",
            Self::Cluster => "cluster",
            Self::Full => "full",
            Self::Script => "script",
        }
    }
}

/// One counter per cause.
#[derive(Debug)]
pub(super) struct Failures([Counter; Cause::ALL.len()]);

impl Failures {
    pub(super) fn new(metrics: &Metrics) -> Self {
        Self(Cause::ALL.map(|cause| metrics.counter(names::STORE_ERRORS, &[cause.label()])))
    }

    pub(super) fn count(&self, error: EngineError) {
        if let Some(counter) = self.0.get(error.cause as usize) {
            counter.inc();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cause_stands_at_its_own_place() {
        assert!(Cause::ALL.iter().enumerate().all(|(index, cause)| *cause as usize == index));
    }
}
