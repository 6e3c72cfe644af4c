//! What Weir reports to its operator: logs, metrics, mistakes in the configuration.
//!
//! All metrics are declared in [`names`]. A label's values are a closed set ([`Label`]) or come
//! from the configuration; they are never a key, a path or a header's value. This module uses no
//! other.

mod credentials;
mod doubt;
mod exposition;
mod fields;
mod histogram;
mod label;
mod log;
mod metrics;
mod mistake;
pub mod names;

pub use credentials::{is_credentials_header, names_credentials};
pub use doubt::{Doubt, DoubtKind};
pub use fields::{ACCESS_HEADER, AccessField, AccessFields, AccessHeaders};
pub use histogram::{Histogram, HistogramSnapshot};
pub use label::{CounterSet, Label};
pub use log::{Access, Format, Settings, access_line, apply, flush, start};
pub use metrics::{
    Counter, Gauge, Measure, Metrics, Reading, SeriesValue, WORKERS_MAX, enter_worker, worker,
};
pub use mistake::Mistake;
pub use names::Name;

/// The README's example runs.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
