//! The last phase: what is recorded of a request when it has ended.
//!
//! `tally` and `measure` count it, `access` with `kept` writes its line, `trace` its spans,
//! `remembered` keeps it for the operator, and `account` tells how it was decided. Changes nothing:
//! no counter of a limit, and nothing that a client sees.

pub(super) mod access;
pub(super) mod account;
pub(super) mod kept;
pub(super) mod measure;
pub(super) mod remembered;
pub(super) mod tally;
pub(super) mod trace;
