//! The commands: `weir run`, `weir check`, `weir demo`, `weir health`, `weir import`, `weir key`,
//! `weir explain`, `weir replay`, `weir top`, `weir rls`, `weir policy`, `weir upgrade-check`,
//! `weir help`. `request` reads a request from the command line, `words` puts decisions into text,
//! `shell` quotes what people paste, and `written` what commands write into a configuration.
//!
//! Exit codes: 0 success, 1 it could not start or finish, 2 the command line was wrong, 78 the
//! configuration was wrong (`EX_CONFIG` of sysexits.h). So a service manager can tell such an
//! error, which a restart can't fix, from a failure.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, CommandFactory as _, Parser, Subcommand};
use clap_complete::Shell;

mod check;
mod demo;
mod explain;
mod health;
mod help;
mod import;
mod key;
mod pages;
mod policy;
mod print;
mod replay;
mod request;
mod rls;
mod shell;
mod top;
mod upgrade;
mod words;
mod written;

pub use help::Page;

use crate::app::{self, App, InheritedSockets, StartError};
use crate::cli::print::{errln, out};
use crate::config;

const EXIT_CONFIG: u8 = 78;
/// The command line, or a file that it names, is wrong.
const EXIT_WRONG: u8 = 2;
/// The file that is read without `--config`.
const CONFIG_DEFAULT: &str = "proxy.toml";

/// A reverse proxy that rate-limits.
#[derive(Debug, Parser)]
#[command(name = "weir", version, about, long_about = None, disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the proxy: from a file, or without one by --to and --limit
    Run(Run),
    /// Check a configuration, policies included, and report all its errors
    Check(check::Check),
    /// Say whether a running proxy takes requests, as an exit code: for health checks
    Health(health::Health),
    /// Take over a configuration of nginx: limits, upstreams, servers
    Import(import::Import),
    /// Show or reset what is counted for one key
    #[command(subcommand)]
    Key(key::Key),
    /// Say what would become of a request, and why: route, facts, answer, limits
    Explain(explain::Explain),
    /// Send the requests of access logs through a configuration, in virtual time: who would be
    /// refused, when, by which limit
    Replay(replay::Replay),
    /// Show the keys that use most and that are refused most, refreshed each second
    Top(top::Top),
    /// Take over the configuration of another rate limit service
    #[command(subcommand)]
    Rls(rls::Rls),
    /// Write, build, test and inspect policies of your own
    #[command(subcommand)]
    Policy(policy::Policy),
    /// Say what an upgrade to this version means for a configuration
    UpgradeCheck(upgrade::UpgradeCheck),
    /// Print all settings of proxy.toml, with their ranges and defaults, in Markdown
    Settings,
    /// Explain a command, or print a page of the documentation
    Help(help::Help),
    /// Print what completes commands and options in a shell
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Run the proxy with a small upstream of its own, to see it work
    Demo {
        /// The configuration file
        #[arg(long, default_value = CONFIG_DEFAULT)]
        config: PathBuf,
    },
}

#[derive(Debug, Args)]
struct Run {
    /// The configuration file; it reloads when it changes, and on SIGHUP [default: proxy.toml]
    #[arg(conflicts_with = "to")]
    file: Option<PathBuf>,
    /// The same, as other commands have it
    #[arg(long, value_name = "FILE", conflicts_with_all = ["to", "file"])]
    config: Option<PathBuf>,
    /// Without a file: the upstream, as in http://localhost:3000
    #[arg(long, requires = "limit")]
    to: Option<String>,
    /// Without a file: each client's limit, as in 100/1m
    #[arg(long, requires = "to")]
    limit: Option<String>,
    /// Without a file: where to listen [default: 127.0.0.1:8080]
    #[arg(long, requires = "to", conflicts_with_all = ["config", "file"])]
    listen: Option<SocketAddr>,
    /// Without a file: where to serve the admin pages, such as /status and /metrics, or "off"
    /// [default: 127.0.0.1:9901 if it is free]
    #[arg(long, requires = "to", conflicts_with_all = ["config", "file"], value_parser = admin_address)]
    admin: Option<Admin>,
}

/// Texts that the program has with it.
#[derive(Clone, Copy, Debug)]
pub struct Texts {
    /// The pages of `weir help`.
    pub pages: &'static [Page],
    /// What `weir upgrade-check` reads.
    pub changelog: &'static str,
}

/// Runs the command line of this process.
#[must_use]
pub fn main(texts: Texts) -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        // Help or the version, which were asked for.
        Err(text) if !text.use_stderr() => {
            print::finished(text.print());
            return ExitCode::SUCCESS;
        }
        Err(error) => error.exit(),
    };
    match cli.command {
        Command::Run(run) => run.start(),
        Command::Check(check) => check.run(),
        Command::Settings => {
            out!("{}", config::reference());
            ExitCode::SUCCESS
        }
        Command::Help(help) => help.run(texts.pages),
        Command::Completions { shell } => {
            let (mut command, mut text) = (Cli::command(), Vec::new());
            clap_complete::generate(shell, &mut command, "weir", &mut text);
            out!("{}", String::from_utf8_lossy(&text));
            ExitCode::SUCCESS
        }
        Command::Demo { config } => demo::run(&config),
        Command::Key(key) => key::run(key),
        Command::Explain(explain) => explain.run(),
        Command::Health(health) => health.run(),
        Command::Import(import) => import.run(),
        Command::Replay(replay) => replay.run(),
        Command::Top(top) => top.run(),
        Command::UpgradeCheck(check) => check.run(texts.changelog),
        Command::Rls(rls) => rls::run(rls),
        Command::Policy(policy) => policy::run(policy),
    }
}

/// `--admin`: an address, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Admin(Option<SocketAddr>);

fn admin_address(text: &str) -> Result<Admin, String> {
    if text == "off" {
        return Ok(Admin(None));
    }
    text.parse()
        .map(|address| Admin(Some(address)))
        .map_err(|_| "expected an address and port, such as 127.0.0.1:9901, or \"off\"".to_owned())
}

impl Run {
    /// By default the address where `weir key` looks. If it is taken, say by a second proxy, this
    /// one has no admin pages rather than fail over a port that was never asked for.
    fn admin_address(&self, inherited: &InheritedSockets) -> Option<SocketAddr> {
        match self.admin {
            Some(Admin(address)) => address,
            None => Some(config::ADMIN_DEFAULT).filter(|address| {
                inherited.has_admin() || std::net::TcpListener::bind(address).is_ok()
            }),
        }
    }

    fn start(self) -> ExitCode {
        let inherited = match InheritedSockets::from_environment() {
            Ok(inherited) => inherited,
            Err(error) => {
                errln!("weir: what this process was started with can't be used: {error}");
                return ExitCode::FAILURE;
            }
        };
        if let Err(error) = app::ignore_early_signals() {
            errln!("weir: can't watch for signals: {error}");
            return ExitCode::FAILURE;
        }
        let default = Path::new(CONFIG_DEFAULT);
        let file = self.config.as_ref().or(self.file.as_ref());
        let (config, watch) = match (&self.to, &self.limit, file) {
            (Some(to), Some(limit), _) => {
                (config::quick(to, limit, self.listen, self.admin_address(&inherited)), None)
            }
            (.., None) if !default.exists() => return no_config("run"),
            (.., path) => {
                let path = path.map_or(default, PathBuf::as_path);
                (app::load_to_serve(path), Some(path))
            }
        };
        let config = match config {
            Ok(config) => config,
            // Without a file, what is wrong is on the command line.
            Err(errors) if watch.is_none() => return wrong_file(&errors),
            Err(errors) => return wrong_config("run", &errors),
        };
        app::start_log(&config);
        if self.to.is_some() && config.admin.is_none() && self.admin.is_none() {
            tracing::warn!(
                "no admin pages: {} is taken; --admin names another address",
                config::ADMIN_DEFAULT
            );
        }
        match App::start_inheriting(config, inherited) {
            Ok((app, signals)) => finish(app::serve(app, signals, watch)),
            Err(error) => failed("run", &error),
        }
    }
}

/// `command` could not start.
fn failed(command: &str, error: &StartError) -> ExitCode {
    match error {
        StartError::Mistakes(errors) => wrong_config(command, errors),
        StartError::Bind { .. }
        | StartError::Signals(_)
        | StartError::Worker(_)
        | StartError::Predecessor(_) => {
            errln!("weir: {error}");
            ExitCode::FAILURE
        }
    }
}

/// There is no file for `command`, which needs one.
fn no_config(command: &str) -> ExitCode {
    errln!(
        "error: there is no {CONFIG_DEFAULT} in this folder\n\n  \
         Without a file:     weir run --to http://localhost:3000 --limit 100/1m\n  \
         With another file:  weir {command} --config /etc/weir/proxy.toml"
    );
    ExitCode::from(EXIT_CONFIG)
}

/// Says what is wrong with the configuration of `command`.
fn wrong_config(command: &str, errors: &config::ConfigErrors) -> ExitCode {
    let is_default = errors.each.iter().any(|error| error.file == CONFIG_DEFAULT);
    if is_default && !Path::new(CONFIG_DEFAULT).exists() {
        return no_config(command);
    }
    errln!("{errors}");
    config_code(errors)
}

/// The exit code for a wrong configuration.
fn config_code(errors: &config::ConfigErrors) -> ExitCode {
    // A service manager tries again after a failure, and not after an error.
    if errors.may_pass { ExitCode::FAILURE } else { ExitCode::from(EXIT_CONFIG) }
}

fn wrong(message: &str) -> ExitCode {
    errln!("weir: {message}");
    ExitCode::from(EXIT_WRONG)
}

fn wrong_file(errors: &config::ConfigErrors) -> ExitCode {
    errln!("{errors}");
    ExitCode::from(EXIT_WRONG)
}

fn finish(finished: bool) -> ExitCode {
    if finished { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
