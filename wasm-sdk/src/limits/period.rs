//! The durations of a limit. [`crate::Period`] is the same for settings of a policy's own.

use crate::{Json, period};

/// The expected form of a period.
pub(super) const PERIOD: &str =
    "a duration from \"1ms\" to \"400d\", such as \"10s\", \"1m\" or \"1h30m\"";
/// The expected form of a delay.
pub(super) const DELAY: &str = "a duration from \"0ms\" to \"400d\", such as \"500ms\" or \"2s\"";

/// The expected form of a lease.
pub(super) const LEASE: &str = "how long a lease lives, such as `lease = \"200ms\"`, or a table \
    such as `lease = { life = \"200ms\", units = 100, strict = true }`";

/// A duration, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Period {
    pub(super) ms: u64,
}

/// Reads a `period` or a `max_delay`.
pub(super) fn read(value: &Json<'_>, expected: &str) -> Result<Period, String> {
    period::read(value, expected).map(|ms| Period { ms })
}
