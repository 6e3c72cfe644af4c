//! Logs of requests, and what came of replaying them: reads them in the order of their requests'
//! times, counts what became of each request, and writes reports. Knows no policy and no engine:
//! `app` takes the requests through those.
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
mod report;
mod suggest;
mod tally;
mod text;
mod time;
mod variable;

pub use difference::Difference;
pub use format::{FORMATS, Format, LinePattern, Reading};
pub use quota::with_quota;
pub use read::{
    Batch, BrokenLine, DamagedFile, FILES_MAX, LogError, Logs, Progress, Summary, WINDOW,
    WINDOWS_BYTES_MAX,
};
pub use record::{CLIENTS_MAX, Client, FactNeed, Record};
pub use report::{Quotas, ReplayReport, stopped_line};
pub use suggest::{MakeCounter, Point, QuotaCounter, Search, Suggestion};
pub use tally::{
    ClientTally, Counts, DecidedRequest, Decider, Demand, FactTally, KeyTally, LimitTally,
    PolicyTally, Refusal, Rejection, Row, Tally, Timeline, VERDICTS, Verdict,
};
