//! Counting: a limit of N admits N, whichever way it is asked.

mod admission;
mod budgets;
mod children;
mod cuts;
mod keys;
mod leases;
mod scripts;
mod settling;
mod several;
mod windows;
// They control Redis' clock.
#[cfg(target_os = "linux")]
mod classics;
