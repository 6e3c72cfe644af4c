//! Documents that the configuration names by URL: they are fetched before anything is served where
//! their files are not there yet, and tried before they replace what is in a file. Knows no HTTP.

use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};

use super::build::Builder;
use super::{App, Instance};
use crate::clock::Clock;
use crate::config::{Config, ConfigErrors};
use crate::fetch::{self, Document, Documents, Settings};
use crate::telemetry::{Metrics, SettingError};

/// Maximum number of errors in a document that a message repeats.
const TOLD_MAX: usize = 3;

/// Reads a configuration for a process that is to serve by it, as [`load`](super::load) does. Where
/// the file of a document is not there yet, the document is fetched first, within
/// [`FETCH_TIME_MAX`](fetch::FETCH_TIME_MAX), and kept if the configuration has no error with it.
///
/// # Errors
/// All errors, and what could not be fetched.
pub fn load_to_serve(path: &Path) -> Result<Config, ConfigErrors> {
    let accept = |config: Config| {
        let builder = Builder::new(Metrics::new(1), Clock::system(), &config.policy_runtime)
            .map_err(|error| config.source.locate(&[error]))?;
        builder.build(config, None).map(drop)
    };
    load(path, &accept).map_err(super::complete_alone)
}

/// Reads a configuration. Documents that are not there yet are fetched, and kept if `accept` takes
/// the configuration with them.
pub(super) fn load(
    path: &Path,
    accept: &dyn Fn(Config) -> Result<(), ConfigErrors>,
) -> Result<Config, ConfigErrors> {
    let errors = match Config::load(path) {
        Ok(config) => return Ok(config),
        Err(errors) => errors,
    };
    let missing = errors.unfetched();
    if missing.is_empty() {
        return Err(errors);
    }
    // What is wrong with the documents' settings is found together with all other errors.
    let Ok(fetched) = fetch::now(&missing) else { return Err(errors) };
    let is_alone = errors.count == missing.len();
    let may_pass = |mut errors: ConfigErrors| {
        errors.may_pass = is_alone;
        errors
    };
    let (mut given, mut failed, mut urls) = (Vec::new(), Vec::new(), Vec::new());
    for (document, result) in fetched {
        match result {
            Ok(bytes) => {
                urls.push(document.url().to_owned());
                given.push((document.settings().file.clone(), bytes));
            }
            Err(why) => failed.push(unusable(
                document.settings(),
                format!("the document of {}, which can't be fetched: {why}", document.url()),
            )),
        }
    }
    if !failed.is_empty() {
        return Err(may_pass(errors.and_those_of(|_, _| failed)));
    }
    Config::load_given(path, given.clone()).and_then(accept).map_err(|mut refused| {
        let urls = urls.join(" and ");
        refused.text.push_str(&format!("; what was fetched from {urls} is not kept"));
        may_pass(refused)
    })?;
    for (file, bytes) in &given {
        if let Err(error) = fetch::replace(file, bytes) {
            let settings = missing.iter().find(|settings| settings.file == *file);
            let expected = format!("a file that can be written: {error}");
            let failed = settings.map(|settings| unusable(settings, expected));
            return Err(errors.and_those_of(|_, _| failed.into_iter().collect()));
        }
    }
    Config::load(path)
}

/// What was expected instead of a file that is not there.
fn unusable(settings: &Settings, expected: String) -> SettingError {
    let found = format!("{} (it does not exist yet)", settings.file.display());
    SettingError::new(format!("{}.file", settings.setting), found, expected)
}

/// Keeps fetching the documents of the running configuration. What is new is tried with the
/// configuration file `path`, and applied by the reload of its own file.
pub(super) fn keep(app: &App, path: &Path) -> std::io::Result<()> {
    let (running, path) = (Arc::downgrade(&app.running), path.to_owned());
    app.running.documents.keep(move |document, bytes| {
        let running = running.upgrade().ok_or_else(|| "this process is ending".to_owned())?;
        let given = vec![(document.settings().file.clone(), bytes.to_vec())];
        let tried = Config::load_given(&path, given).and_then(|config| running.try_out(config));
        tried.map_err(|errors| summarize(&errors))
    })
}

impl Instance {
    /// Documents and certificates are for what serves later.
    pub(super) fn stop_fetching(&self) {
        self.certificates.stop();
        // Only starting can fail.
        let _ = self.documents.apply(&[]);
    }

    /// Builds a configuration as a reload does, and drops it again.
    pub(super) fn try_out(&self, config: Config) -> Result<(), ConfigErrors> {
        let built = &self.current.load().built;
        if !config.engine.keeps_counters_of(&built.engine_settings) {
            let expected =
                "the store that is in use: change the store and the documents one after the other";
            let error = SettingError::new(crate::config::setting::STORE, "another store", expected);
            return Err(config.source.locate(&[error]));
        }
        self.builder.build(config, Some(built)).map(drop)
    }
}

/// The errors in one line.
fn summarize(errors: &ConfigErrors) -> String {
    let each = errors.each.iter().take(TOLD_MAX).map(|error| {
        let line = error.line.map(|line| format!(":{line}")).unwrap_or_default();
        format!("{}{line}: {}", error.file, error.text)
    });
    let mut told = each.collect::<Vec<_>>().join("; ");
    if errors.count > TOLD_MAX {
        told.push_str(&format!("; and {} more errors", errors.count - TOLD_MAX));
    }
    told
}

/// The documents as `/status` shows them.
pub(super) fn describe(documents: &Documents) -> Vec<Value> {
    let one = |(document, state): (Arc<Document>, fetch::State)| {
        let Settings { policy, member, file, every, .. } = document.settings();
        json!({
            "policy": policy,
            "member": member,
            "url": document.url(),
            "file": file.display().to_string(),
            "every_s": every.as_secs_f64(),
            "tried": state.tried_s,
            "succeeded": state.succeeded_s,
            "error": state.error,
        })
    };
    documents.states().into_iter().map(one).collect()
}
