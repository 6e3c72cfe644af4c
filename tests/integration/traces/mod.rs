//! Real traffic: a web server's log, replayed by client address through the running proxy, and
//! judged request by request against a computation of our own that knows nothing of Weir.
//!
//! The log is `tests/traces/small.log`, or the one that `WEIR_TRACE` names, in the common or the
//! combined format: `WEIR_TRACE=access.log cargo test --test integration traces:: -- --nocapture`.

mod log;
mod oracle;

mod by_order;
// A clock is held by a preloaded library, which is written for Linux.
#[cfg(target_os = "linux")]
mod by_stamp;
