//! What became of reloads: the last ones, for `/status`, and the answer to whoever asks for one.

use std::collections::VecDeque;
use std::sync::{Mutex, OnceLock, PoisonError};

use http::StatusCode;
use serde_json::{Value, json};

use crate::config::{self, Changes, ConfigErrors, Effect, ErrorAt, Outline, Route};
use crate::reload::{Reason, ReloadOutcome, ReloadResult, Trigger, TriggerError, Watch};
use crate::telemetry::Label as _;

/// Maximum number of reloads that `/status` shows.
const SHOWN_MAX: usize = 10;

/// The reloads of a running proxy.
#[derive(Debug)]
pub(super) struct Reloads {
    /// What the configuration said that this process began with.
    started: Outline,
    /// The latest first.
    last: Mutex<VecDeque<Record>>,
    /// None where no file is watched.
    trigger: OnceLock<Trigger>,
}

/// One reload.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) at_s: i64,
    /// What started it; `None` if the program did that embeds this proxy.
    pub(super) reason: Option<Reason>,
    pub(super) ended: ReloadEnd,
}

/// How a reload ended.
#[derive(Debug)]
pub(super) enum ReloadEnd {
    Applied(Changes),
    /// It came too late to be applied.
    ShuttingDown,
    Refused {
        count: usize,
        /// The text for people, as in the log.
        text: String,
        each: Vec<ErrorAt>,
    },
}

impl ReloadEnd {
    pub(super) fn refused(errors: &ConfigErrors) -> Self {
        let ConfigErrors { count, text, each, .. } = errors;
        Self::Refused { count: *count, text: text.clone(), each: each.clone() }
    }

    fn result(&self) -> ReloadResult {
        match self {
            Self::Applied(_) => ReloadResult::Applied,
            Self::ShuttingDown => ReloadResult::Unchanged,
            Self::Refused { .. } => ReloadResult::Refused,
        }
    }

    /// The answer to whoever asked for it.
    pub(super) fn report(&self) -> Value {
        match self {
            Self::Applied(changes) => json!({
                "applied": true,
                "changes": changes.json(),
                "changes_left_off": changes.left_off(),
            }),
            Self::ShuttingDown => refusal_json(&TriggerError::Ended.to_string()),
            Self::Refused { count, each, .. } => json!({
                "applied": false,
                "errors": each.iter().map(error).collect::<Vec<_>>(),
                "errors_left_off": count.saturating_sub(each.len()),
            }),
        }
    }
}

fn error(at: &ErrorAt) -> Value {
    json!({ "file": at.file, "line": at.line, "text": at.text })
}

fn refusal_json(reason: &str) -> Value {
    json!({ "applied": false, "reason": reason })
}

impl Record {
    /// The reload as `/status` shows it. `errors` is the text of the log; those who want them one
    /// by one ask for a reload.
    fn describe(&self) -> Value {
        let lines = |changes: &Changes| -> Vec<String> {
            changes.shown().map(ToString::to_string).collect()
        };
        let mut value = json!({
            "at": self.at_s,
            "reason": self.reason.map(Reason::label),
            "result": self.ended.result().label(),
        });
        let more = match &self.ended {
            ReloadEnd::Applied(changes) => vec![
                ("changes", lines(changes).into()),
                ("changes_left_off", changes.left_off().into()),
            ],
            ReloadEnd::ShuttingDown => Vec::new(),
            ReloadEnd::Refused { text, .. } => vec![("errors", text.as_str().into())],
        };
        if let Some(value) = value.as_object_mut() {
            value.extend(more.into_iter().map(|(key, value): (_, Value)| (key.to_owned(), value)));
        }
        value
    }
}

impl Reloads {
    /// Those of a process that begins with this configuration.
    pub(super) fn since(started: &Outline) -> Self {
        Self { started: started.clone(), last: Mutex::default(), trigger: OnceLock::new() }
    }

    /// What a reload changes.
    pub(super) fn changes(&self, before: &Outline, after: &Outline) -> Changes {
        Changes::of_reload(&self.started, before, after)
    }

    pub(super) fn note(&self, record: Record) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.truncate(SHOWN_MAX - 1);
        last.push_front(record);
    }

    /// The latest first.
    pub(super) fn describe(&self) -> Vec<Value> {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.iter().map(Record::describe).collect()
    }

    /// Shows each, the latest first.
    pub(super) fn each(&self, see: impl FnMut(&Record)) {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.iter().for_each(see);
    }

    /// Makes it possible to ask for reloads.
    pub(super) fn set_trigger(&self, trigger: Trigger) {
        // One watcher for each process: only a bug in an embedding program could start a second
        // one.
        let _ = self.trigger.set(trigger);
    }

    /// Reloads now. Returns an HTTP status, and JSON.
    pub(super) async fn ask(&self) -> (StatusCode, String) {
        let Some(trigger) = self.trigger.get() else {
            let reason = "this proxy was started without a configuration file";
            return (StatusCode::CONFLICT, refusal_json(reason).to_string());
        };
        match trigger.reload().await {
            Ok(ReloadOutcome { result: ReloadResult::Applied, report }) => (StatusCode::OK, report),
            Ok(ReloadOutcome { result: ReloadResult::Unchanged, report }) => {
                (StatusCode::CONFLICT, report)
            }
            Ok(ReloadOutcome { report, .. }) if report.is_empty() => {
                let reason = "the new configuration could not be built: its builder panicked";
                (StatusCode::INTERNAL_SERVER_ERROR, refusal_json(reason).to_string())
            }
            Ok(ReloadOutcome { result: ReloadResult::Refused, report }) => {
                (StatusCode::UNPROCESSABLE_ENTITY, report)
            }
            Err(why) => {
                let status = match why {
                    TriggerError::Busy => StatusCode::SERVICE_UNAVAILABLE,
                    TriggerError::Ended => StatusCode::CONFLICT,
                };
                (status, refusal_json(&why.to_string()).to_string())
            }
        }
    }
}

/// Takes routes out of service, and back, by their files, although the configuration that says so
/// anew is refused: where something is broken, that is what the switch is for. Adds the files to
/// what is `watched`, since of a configuration that is no TOML nobody knows them.
pub(super) fn follow_maintenance(running: &[Route], watched: &mut Vec<Watch>) {
    for Route { name, maintenance, .. } in running {
        let Some(switch) = maintenance else { continue };
        if !watched.iter().any(|watch| watch.path() == switch.file()) {
            watched.push(Watch::now(switch.file()));
        }
        let is_on = config::is_plain(switch.file());
        if switch.set(is_on) {
            let state = if is_on { "out of service" } else { "in service again" };
            tracing::info!(route = name, "this route is {state}, by its file of maintenance");
        }
    }
}

/// Logs what a reload changed: a line each. Where counts are forgotten, that is a warning.
pub(super) fn log(changes: &Changes) {
    for change in changes.shown() {
        match change.effect {
            Some(Effect::Fresh | Effect::AllFresh | Effect::Left) => {
                tracing::warn!(%change, "this reload resets counters");
            }
            Some(Effect::Restart) => {
                let setting = &change.setting;
                tracing::warn!(setting, "this setting changed, but is applied only at a restart");
            }
            _ => tracing::info!(%change, "changed by this reload"),
        }
    }
    if changes.left_off() > 0 {
        tracing::info!(count = changes.left_off(), "more was changed by this reload");
    }
}
