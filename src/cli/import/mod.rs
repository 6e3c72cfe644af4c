//! `weir import`: the configuration of another proxy, written as one of Weir.

mod directives;
mod nginx;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use super::wrong;
use crate::cli::print::{errln, out};

#[derive(Debug, Args)]
pub(super) struct Import {
    /// A configuration of nginx; what it includes is read, too
    file: PathBuf,
}

/// What became of a configuration.
#[derive(Debug, Default)]
struct Imported {
    /// That of Weir.
    text: String,
    /// What means something else in Weir, or is not there, each with its place.
    notes: Vec<String>,
}

impl Import {
    pub(super) fn run(self) -> ExitCode {
        let read = directives::read(&self.file);
        match read.and_then(|directives| nginx::import(&directives)) {
            Ok(Imported { text, notes }) => {
                out!("{text}");
                for note in &notes {
                    errln!("{note}");
                }
                ExitCode::SUCCESS
            }
            Err(error) => wrong(&error),
        }
    }
}
