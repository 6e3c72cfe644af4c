//! What lasts, and what breaks: bodies of a gigabyte, clients that are slow on purpose, upstreams
//! that are killed.

mod killed;
// Memory is read from /proc.
#[cfg(target_os = "linux")]
mod large;
// What gives it back is glibc's.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod many;
mod slow;
