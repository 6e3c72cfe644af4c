//! `weir rls import`: the configurations of envoyproxy/ratelimit and of Limitador, written as one
//! of Weir. Reads YAML, and knows nothing of how descriptors are decided.

mod limitador;
mod ratelimit;
mod yaml;

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};

use self::ratelimit::DomainNames;
use super::{EXIT_WRONG, wrong};
use crate::cli::print::{errln, out};

#[derive(Debug, Subcommand)]
pub(super) enum Rls {
    /// Write the configuration of envoyproxy/ratelimit or Limitador as one of Weir
    Import(Import),
}

#[derive(Debug, Args)]
pub(super) struct Import {
    /// ratelimit's YAML files, or Limitador's with their lists of limits; `-` is standard input
    #[arg(required = true)]
    files: Vec<PathBuf>,
}

pub(super) fn run(Rls::Import(import): Rls) -> ExitCode {
    let (mut text, mut files) = (HEAD.to_owned(), Vec::with_capacity(import.files.len()));
    let (mut failed, mut left_out) = (false, false);
    // A file may replace limits of a later one.
    let mut first = Names::default();
    for path in &import.files {
        let yaml = match path.to_str() {
            Some("-") => std::io::read_to_string(std::io::stdin()),
            _ => std::fs::read_to_string(path),
        };
        match yaml {
            Ok(yaml) => {
                Imported::of(&yaml, &mut first);
                files.push((path, yaml));
            }
            Err(error) => return wrong(&format!("{}: {error}", path.display())),
        }
    }
    let mut names = Names::knowing(first);
    for (path, yaml) in files {
        let imported = Imported::of(&yaml, &mut names);
        text.push_str(&imported.text);
        for message in &imported.wrong {
            errln!("error: {}: {message}", path.display());
        }
        for message in &imported.warnings {
            errln!("warning: {}: {message}", path.display());
        }
        for message in &imported.left_out {
            errln!("left out: {}: {message}", path.display());
        }
        failed |= !imported.wrong.is_empty();
        left_out |= !imported.left_out.is_empty();
    }
    if failed {
        return ExitCode::from(EXIT_WRONG);
    }
    out!("{text}");
    if left_out {
        errln!("What was left out is also in comments.");
    }
    ExitCode::SUCCESS
}

const HEAD: &str = "\
# Written by `weir rls import`: see docs/rate-limit-service.md.

[[listeners]]
address = \"127.0.0.1:8081\"
serves = \"decisions\"
";

/// What the files so far have named.
#[derive(Debug, Default)]
struct Names {
    /// Policies and routes.
    taken: HashSet<String>,
    /// What ratelimit's domains have named.
    domains: HashMap<String, DomainNames>,
    /// What all files name, by domain, if they were read before.
    known: HashMap<String, HashMap<String, Vec<String>>>,
}

impl Names {
    /// Nothing so far, with what the same files have named.
    fn knowing(first: Self) -> Self {
        let known = first.domains.into_iter().map(|(domain, names)| (domain, names.named));
        Self { known: known.collect(), ..Self::default() }
    }
}

/// A file, as far as it is written.
#[derive(Debug, Default)]
struct Imported {
    text: String,
    /// Mistakes, each with its place.
    wrong: Vec<String>,
    /// What Weir does not have, each with its place.
    left_out: Vec<String>,
    /// What is written, and probably not meant.
    warnings: Vec<String>,
}

impl Imported {
    /// Reads a file: Limitador's are lists of limits, and ratelimit's are tables.
    fn of(yaml: &str, names: &mut Names) -> Self {
        let wrong = |message: String| Self { wrong: vec![message], ..Self::default() };
        let mut documents = match yaml::load(yaml) {
            Ok(documents) => documents,
            Err(message) => return wrong(message),
        };
        match (documents.pop(), documents.len()) {
            (Some(root), 0) => match root.list() {
                Some(limits) => limitador::read(limits, &mut names.taken),
                None => ratelimit::read(root, names),
            },
            (last, others) => {
                let found = others + usize::from(last.is_some());
                wrong(format!("found {found} documents, expected one"))
            }
        }
    }
}
