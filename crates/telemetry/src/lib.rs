//! What Weir reports to its operator: logs, metrics, errors in the configuration.
//!
//! All metrics are declared in [`names`]. A label's values are a closed set ([`Label`]) or come
//! from the configuration; they are never a key, a path or a header's value. This module uses no
//! other.

mod counter;
mod credentials;
mod exposition;
mod fields;
mod histogram;
mod json;
mod label;
mod lint;
mod log;
mod metrics;
pub mod names;
mod setting_error;
mod slots;

pub use counter::{Counter, Gauge};
pub use credentials::{is_credentials_header, names_credentials};
pub use fields::{ACCESS_HEADER, AccessField, AccessFields, AccessHeaders};
pub use histogram::{Histogram, HistogramSnapshot};
pub use json::json_for_terminals;
pub use label::{CounterSet, Label};
pub use lint::{Lint, LintKind, OF_POLICY};
pub use log::{Access, Format, Settings, access_line, apply, flush, log_lines_dropped, start};
pub use metrics::{Measure, Metrics, Reading, SeriesValue};
pub use names::Name;
pub use setting_error::{SettingError, error_line};
pub use slots::{WORKERS_MAX, enter_worker, worker};

/// The README's example runs.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
