//! What Weir says to its operator: logs, metrics, mistakes.
//!
//! All metric names and their labels stand in [`names`]; a label's values are a closed or a
//! configured set, never a key, a path or a header's value. This room uses no other room.

mod histogram;
mod log;
mod metrics;
mod mistake;
pub mod names;

pub use histogram::Histogram;
pub use log::{Access, Format, Settings, access_line, apply, flush, start};
pub use metrics::{Counter, Gauge, Metrics, WORKERS_MAX, enter_worker};
pub use mistake::Mistake;
