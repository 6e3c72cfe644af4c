//! Logs of requests, and what came of replaying them: reads them in the order of their requests'
//! times, counts what became of each request, and writes reports. Knows no policy and no engine:
//! `app` takes the requests through those.
//!
//! [`Logs`] reads requests as [`Record`]s. The caller decides each and says how as a
//! [`DecidedRequest`], which a [`Tally`] counts, and a [`Difference`] compares with what another
//! configuration did. [`quotas`] looks for quotas, with a [`QuotaCounter`] of the caller's. All of
//! this is a [`ReplayReport`](report::ReplayReport); the types that only a report has are in
//! [`report`].
//!
//! In the order of a replay: `read` opens logs and merges them, with `format`, `pattern` (and its
//! `variable`), `json`, `own` and `time` for their lines; `line` is what a line says, and `record`
//! what is kept of it. `tally` counts, `difference` compares two configurations, `suggest` looks
//! for quotas (`quota`). `report` has it all, `text` and `page` show it to people.

mod difference;
mod format;
mod json;
mod line;
mod own;
mod page;
mod pattern;
mod quota;
mod read;
mod record;
pub mod report;
mod suggest;
mod tally;
mod text;
mod time;
mod variable;

pub use difference::Difference;
pub use format::{FORMATS, Format, LinePattern, Reading};
pub use quota::with_quota;
pub use read::{Batch, FILES_MAX, LogError, Logs, Progress, Summary};
pub use record::{Client, Record};
pub use suggest::{QuotaCounter, quotas};
pub use tally::{DecidedRequest, Decider, Demand, LimitTally, Rejection, Tally, Verdict};
