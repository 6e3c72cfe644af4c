//! What lasts, and what breaks: bodies of a gigabyte, clients that are slow on purpose, upstreams that are killed.

mod killed;
// Memory is read from /proc.
#[cfg(target_os = "linux")]
mod large;
mod slow;
