//! The last phase: what is recorded of a request when it has ended.
//!
//! Everything that is known of it is one [`Record`], which is read and never changed: `measure`
//! counts the policy's labels and amounts, `access` writes its line, `trace` its spans, and
//! `remember` keeps it for the operator (`remembered`). `account` tells how it was decided. Changes
//! nothing: no counter of a limit, and nothing that a client sees.

pub(super) mod access;
pub(super) mod account;
pub(super) mod data;
pub(super) mod measure;
pub(super) mod remember;
pub(super) mod remembered;
pub(super) mod text;
pub(super) mod trace;

pub(super) use data::{Record, parts};

/// Hands a request that has ended to all that observe requests.
pub(super) fn publish(record: &Record<'_>) {
    measure::count(record);
    // The hours of a tunnel say nothing about how long requests take.
    if record.tunnelled_up.is_none() {
        record.routed.handle.tally.request_seconds().observe(record.took);
    }
    access::log(record);
    trace::export(record);
    remember::remember(record);
}
