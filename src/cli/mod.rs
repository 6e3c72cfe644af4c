//! The commands: `weir run`, `weir check`, `weir demo`, `weir key`.
//!
//! Exit codes: 0 all went well, 1 it could not start or not finish, 2 the command line was wrong, 78 the configuration was wrong (`EX_CONFIG`
//! of sysexits.h), so that a service manager can tell a mistake, which no restart mends, from a failure.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

mod demo;
mod key;

use crate::app::{self, App, StartError};
use crate::config;

const EXIT_CONFIG: u8 = 78;

/// A reverse proxy that rate-limits.
#[derive(Debug, Parser)]
#[command(name = "weir", version, about, long_about = None)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the proxy: from a file, or without one by --to and --limit
    Run(Run),
    /// Check a configuration, policies included, and say all its mistakes
    Check {
        /// The configuration file
        #[arg(long, default_value = "proxy.toml")]
        config: PathBuf,
    },
    /// Show or reset what is counted for one key
    #[command(subcommand)]
    Key(key::Key),
    /// Run the proxy with a small upstream of its own, to see it work
    Demo {
        /// The configuration file
        #[arg(long, default_value = "proxy.toml")]
        config: PathBuf,
    },
}

#[derive(Debug, Args)]
struct Run {
    /// The configuration file; it reloads when it changes, and on SIGHUP
    #[arg(long, default_value = "proxy.toml", conflicts_with = "to")]
    config: PathBuf,
    /// Without a file: the upstream, as in http://localhost:3000
    #[arg(long, requires = "limit")]
    to: Option<String>,
    /// Without a file: each client's limit, as in 100/1m
    #[arg(long, requires = "to")]
    limit: Option<String>,
    /// Without a file: where to listen [default: 127.0.0.1:8080]
    #[arg(long, requires = "to")]
    listen: Option<SocketAddr>,
    /// Without a file: where to serve /metrics, /live, /ready and /status [default: nowhere]
    #[arg(long, requires = "to")]
    admin: Option<SocketAddr>,
}

/// Runs the command line of this process.
#[must_use]
pub fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Run(run) => run.start(),
        Command::Check { config } => check(&config),
        Command::Demo { config } => demo::run(&config),
        Command::Key(key) => key::run(key),
    }
}

impl Run {
    fn start(self) -> ExitCode {
        let (config, watch) = match (&self.to, &self.limit) {
            (Some(to), Some(limit)) => (config::quick(to, limit, self.listen, self.admin), None),
            _ => (app::load(&self.config), Some(self.config.as_path())),
        };
        let config = match config {
            Ok(config) => config,
            Err(mistakes) => return wrong_config(&mistakes),
        };
        app::start_log(&config);
        match App::start(config) {
            Ok(app) => finish(app::serve(app, watch)),
            Err(error) => failed(&error),
        }
    }
}

fn check(path: &std::path::Path) -> ExitCode {
    match app::load(path).and_then(app::check) {
        Ok(warnings) => {
            warnings.iter().for_each(|warning| eprintln!("{warning}"));
            println!("{}: no mistakes", path.display());
            ExitCode::SUCCESS
        }
        Err(mistakes) => wrong_config(&mistakes),
    }
}

fn failed(error: &StartError) -> ExitCode {
    match error {
        StartError::Mistakes(mistakes) => wrong_config(mistakes),
        StartError::Bind { .. } | StartError::Worker(_) => {
            eprintln!("weir: {error}");
            ExitCode::FAILURE
        }
    }
}

fn wrong_config(mistakes: &config::Mistakes) -> ExitCode {
    eprintln!("{mistakes}");
    ExitCode::from(EXIT_CONFIG)
}

fn finish(finished: bool) -> ExitCode {
    if finished { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
