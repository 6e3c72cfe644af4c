//! `weir policy`: writes, builds, tests, inspects and measures policies.
//!
//! `test` and `inspect` send requests through the real routes, policies and limits in virtual time
//! (`app::Simulation`).

mod bench;
mod build;
mod compare;
mod inspect;
mod measure;
mod new;
mod test;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;

use super::{EXIT_WRONG, request, words, wrong, wrong_file};

/// What was tested is not as it should be, or what was asked for could not be done.
const EXIT_DIFFERENT: u8 = 1;
/// The file of `weir policy test`, in a policy's folder.
const REQUESTS: &str = "requests.toml";

#[derive(Debug, Subcommand)]
pub(super) enum Policy {
    /// Write a new policy: a crate that builds and passes its tests, with the SDK in it
    New {
        /// The policy's name, and its folder's
        name: String,
        /// Where its folder is made
        #[arg(long = "in", value_name = "DIR", default_value = ".")]
        folder: PathBuf,
    },
    /// Compile a policy's crate to NAME.wasm in its folder
    Build {
        /// The policy's folder
        #[arg(default_value = ".")]
        folder: PathBuf,
    },
    /// Send the requests of a file through a policy and its limits, in virtual time, and compare
    Test {
        /// A file of requests, or a folder with a requests.toml
        #[arg(default_value = ".")]
        files: Vec<PathBuf>,
        /// Say for each request which limit decided, what each had left, and when it would pass
        #[arg(long)]
        explain: bool,
    },
    /// Show what a policy is, what it asks for, and what it answers to a request
    Inspect(inspect::Inspect),
    /// Measure how many decisions it makes in a second
    Bench(bench::Bench),
}

pub(super) fn run(policy: Policy) -> ExitCode {
    match policy {
        Policy::New { name, folder } => new::run(&name, &folder),
        Policy::Build { folder } => build::run(&folder),
        Policy::Bench(bench) => bench::run(&bench),
        Policy::Test { files, explain } => test::run(&files, explain),
        Policy::Inspect(inspect) => inspect::run(&inspect),
    }
}
