//! Counting: a limit of N admits N, whichever way it is asked.

mod admission;
mod budgets;
mod keys;
mod scripts;
mod settling;
mod several;
mod windows;
// They control Redis' clock.
#[cfg(target_os = "linux")]
mod classics;
// libfaketime works elsewhere, but only on Linux does it reliably leave the monotonic clock alone.
#[cfg(target_os = "linux")]
mod clocks;
