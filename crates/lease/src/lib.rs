//! Leases of rate limits: a process takes several units of a shared counter in one call and spends
//! them in its own memory until a deadline.
//!
//! 1. [`Terms`] says which numbers the store has to run with, so that a limit keeps its promise
//!    although units are spent later than they were taken.
//! 2. [`Demand`] and [`units_to_ask`] say how many units are worth a call, and [`units_granted`]
//!    how many of them the store grants.
//! 3. [`Holder`] is the state of one key in one process: when to spend, wait, ask or give back.
//! 4. [`Remote`] is what is known of a holder in another process that only reports now and then,
//!    with [`units_to_assign`] and [`seconds_to_live`] for what it is handed.
//!
//! Pure: no IO, no clock and no Lua. Time comes in as microseconds of a monotonic clock.
//! `docs/leases.md` has the promises with their arguments, and `tests/model` checks them with the
//! functions of this crate and the programs in `lua/`.

mod demand;
mod holder;
mod remote;
mod terms;

pub use demand::{Demand, units_granted, units_to_ask};
pub use holder::{ALONE_US, Action, Call, GiveBack, Holder, PACE_US, Reply, Spent, Want};
pub use remote::{
    DELIVERY_US, IDLE_US, RETRY_US, Remote, Step, TIME_TO_LIVE_UNIT_US, Unspent, seconds_to_live,
    units_to_assign,
};
pub use terms::{Bound, DRIFT_PPM, Numbers, Terms, TermsError};

/// The README's example runs.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
