//! Endurance: bodies of a gigabyte, clients that are slow on purpose, upstreams that are killed.

mod killed;
// Memory is read from /proc.
#[cfg(target_os = "linux")]
mod large;
// Only glibc's memory is returned explicitly.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
mod many;
mod slow;
