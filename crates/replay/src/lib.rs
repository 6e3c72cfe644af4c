//! Access logs, read in the order of their requests, and the report on what became of each.
//!
//! 1. [`replay`] opens and merges logs, counts verdicts, compares two configurations, searches for
//!    quotas, and writes the report.
//! 2. [`chart`] draws charts as SVG, for reports and for pages.
//!
//! Knows no policy and no engine: whoever uses it decides each request.

pub mod chart;
pub mod replay;

use weir_plan as plan;

/// The README's example runs.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
