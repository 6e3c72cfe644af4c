//! `weir check`: reports all errors of a configuration, warns of what is allowed but probably
//! unintended, and says what a change would mean.
//!
//! Errors and warnings go to standard error, results to standard output, with `--json` all of it
//! to standard output. Warnings don't change the exit code, except with `--strict`.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use serde_json::{Value, json};

use super::{CONFIG_DEFAULT, EXIT_CONFIG, config_code, wrong_config};
use crate::app::{self, Checked, ReachResult};
use crate::cli::print::{errln, outln, print_json};
use crate::config::{Changes, Config, ConfigErrors, OF_POLICY, Warning};

#[derive(Debug, Args)]
pub(super) struct Check {
    /// The configuration file
    #[arg(default_value = CONFIG_DEFAULT)]
    file: PathBuf,
    /// The same, as other commands have it
    #[arg(long, value_name = "FILE", conflicts_with = "file")]
    config: Option<PathBuf>,
    /// Also ask the store and the upstreams whether they can be reached from here
    #[arg(long)]
    connect: bool,
    /// Also say what the configuration changes in this other file, and what that means for the
    /// counters; files that OLD names are looked up next to it
    #[arg(long, value_name = "OLD")]
    against: Option<PathBuf>,
    /// Fail on warnings as on errors, with exit code 78
    #[arg(long)]
    strict: bool,
    /// Leave out warnings of this kind, the name in brackets after each; may be repeated
    #[arg(long, value_name = "KIND", value_parser = Kinds, hide_possible_values = true)]
    allow: Vec<String>,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

/// Reads the name of a kind of warnings. Those of policies are not known before they are built.
#[derive(Clone, Debug)]
struct Kinds;

impl TypedValueParser for Kinds {
    type Value = String;

    fn parse_ref(
        &self,
        command: &clap::Command,
        argument: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<String, clap::Error> {
        match value.to_str().filter(|name| name.starts_with(OF_POLICY)) {
            Some(name) => Ok(name.to_owned()),
            None => PossibleValuesParser::new(Warning::names()).parse_ref(command, argument, value),
        }
    }
}

/// What was found in a configuration without errors.
#[derive(Debug)]
struct CheckReport {
    warnings: Vec<Warning>,
    changes: Option<Changes>,
    reached: Vec<ReachResult>,
}

/// What was found, as JSON: always the same members.
fn json_of(found: &Result<CheckReport, ConfigErrors>) -> Value {
    let (errors, checked) = (found.as_ref().err(), found.as_ref().ok());
    let each = errors.iter().flat_map(|errors| &errors.each);
    let each =
        each.map(|error| json!({ "file": error.file, "line": error.line, "text": error.text }));
    let warnings = checked.iter().flat_map(|checked| &checked.warnings).map(|warning| {
        let Warning { name, place, text, remedy, .. } = warning;
        json!({ "kind": name, "place": place, "text": text, "remedy": remedy })
    });
    let reached = checked.iter().flat_map(|checked| &checked.reached).map(|one| {
        let ReachResult { what, problem, warnings } = one;
        json!({ "what": what, "problem": problem, "warnings": warnings })
    });
    let changes = checked.and_then(|checked| checked.changes.as_ref());
    json!({
        "errors": each.collect::<Vec<Value>>(),
        "count": errors.map_or(0, |errors| errors.count),
        "warnings": warnings.collect::<Vec<Value>>(),
        "reached": reached.collect::<Vec<Value>>(),
        "changes": changes.map(Changes::json),
        "changes_left_off": changes.map(Changes::left_off),
    })
}

impl Check {
    /// The check of a file, with nothing else.
    pub(super) fn of(file: &Path) -> Self {
        let (config, against, allow) = (None, None, Vec::new());
        let (connect, strict, json) = (false, false, false);
        Self { file: file.to_owned(), config, connect, against, strict, allow, json }
    }

    fn path(&self) -> &Path {
        self.config.as_deref().unwrap_or(&self.file)
    }

    pub(super) fn run(self) -> ExitCode {
        let found = self.check();
        if self.json {
            print_json(&json_of(&found));
            return found
                .map_or_else(|errors| config_code(&errors), |found| self.exit_code(&found));
        }
        match found {
            Ok(checked) => self.report(&checked),
            Err(errors) => wrong_config("check", &errors),
        }
    }

    fn check(&self) -> Result<CheckReport, ConfigErrors> {
        let config = app::load(self.path())?;
        let before = self.against.as_deref().map(Config::load).transpose()?;
        let checked = if self.connect { app::check_and_reach(config) } else { app::check(config) };
        let Checked { mut warnings, outline, reached } = checked?;
        let changes = before.map(|before| Changes::between(&app::outline(before), &outline));
        warnings.retain(|warning| !self.allow.iter().any(|kind| *kind == warning.name));
        Ok(CheckReport { warnings, changes, reached })
    }

    fn report(&self, checked: &CheckReport) -> ExitCode {
        let CheckReport { warnings, changes, reached } = checked;
        warnings.iter().for_each(|warning| errln!("{}\n", warning.rendering));
        let counted = match warnings.len() {
            0 => String::new(),
            1 => ", 1 warning".to_owned(),
            many => format!(", {many} warnings"),
        };
        outln!("{}: no errors{counted}", self.path().display());
        if let (Some(changes), Some(old)) = (changes, &self.against) {
            if changes.is_empty() {
                outln!("{} says the same", old.display());
            } else {
                outln!("changes {}:", old.display());
                changes.to_string().lines().for_each(|line| outln!("  {line}"));
            }
        }
        for ReachResult { what, problem, warnings } in reached {
            outln!("{what}: {}", problem.as_deref().unwrap_or("reached"));
            warnings.iter().for_each(|warning| errln!("warning: {warning}"));
        }
        self.exit_code(checked)
    }

    fn exit_code(&self, checked: &CheckReport) -> ExitCode {
        if self.strict && !checked.warnings.is_empty() {
            return ExitCode::from(EXIT_CONFIG);
        }
        let all = checked.reached.iter().all(|one| one.problem.is_none());
        if all { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}
