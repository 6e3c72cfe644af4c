//! Real traffic: a web server's log, replayed by client address through the running proxy, and
//! checked request by request against an independent computation.
//!
//! The log is `tests/traces/small.log`, or the one in `WEIR_TRACE`, in the common or the combined
//! format: `WEIR_TRACE=access.log cargo test --test integration traces:: -- --nocapture`.

mod log;
mod oracle;

mod by_order;
// The clock is controlled by a preloaded library, which is written for Linux.
#[cfg(target_os = "linux")]
mod by_stamp;
