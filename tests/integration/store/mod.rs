//! Counters when Redis fails, or when a proxy ends.

mod crashes;
mod faults;
mod snapshots;
