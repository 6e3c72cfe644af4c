//! `weir health`: whether a running proxy takes requests, as an exit code, for containers without a
//! shell or curl, and for service managers.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;

use super::pages::{self, Page, Pages};
use crate::cli::print::{errln, outln};

#[derive(Debug, Args)]
pub(super) struct Health {
    /// Ask only whether the process answers, not whether it is ready: during a shutdown, and while
    /// no shard of the store can decide, it is live and not ready
    #[arg(long)]
    live: bool,
    /// The running proxy's admin address. With it no configuration is read, so that the answer does
    /// not depend on a file that is being edited [default: the configuration's, or 127.0.0.1:9901]
    #[arg(long)]
    admin: Option<SocketAddr>,
    /// The configuration file, for the admin address [default: proxy.toml, where there is one]
    #[arg(long, conflicts_with = "admin")]
    config: Option<PathBuf>,
    /// How long to wait for an answer
    #[arg(long, default_value = "3s", value_parser = timeout)]
    timeout: Duration,
}

fn timeout(text: &str) -> Result<Duration, String> {
    let read = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if read.is_zero() { Err("expected some time, such as 3s".to_owned()) } else { Ok(read) }
}

impl Health {
    pub(super) fn run(self) -> ExitCode {
        let address = match self.address() {
            Ok(address) => address,
            Err(code) => return code,
        };
        // Neither page needs the token.
        let pages = Pages { address, token: None, timeout: self.timeout };
        let (path, expected) = if self.live { ("/live", "live") } else { ("/ready", "ready") };
        match pages.ask("GET", path) {
            Ok(Page::Shown(sentence)) if sentence.starts_with(expected) => {
                outln!("{}", sentence.trim_end());
                ExitCode::SUCCESS
            }
            // Another server says what it likes at this path.
            Ok(Page::Shown(_)) => {
                errln!("weir: {}", pages.not_an_admin_listener());
                ExitCode::FAILURE
            }
            Ok(Page::Refused(sentence) | Page::Wrong(sentence)) => {
                errln!("weir: {sentence}");
                ExitCode::FAILURE
            }
            Err(error) => {
                errln!("weir: {error}");
                ExitCode::FAILURE
            }
        }
    }

    fn address(&self) -> Result<SocketAddr, ExitCode> {
        if let Some(address) = self.admin {
            return Ok(address);
        }
        // The page needs no token.
        let config = pages::configuration("health", self.config.as_deref(), &|_| Vec::new());
        let config = config.inspect_err(|_| {
            errln!("weir: with --admin ADDRESS, no configuration is read");
        })?;
        Pages::of(config.as_ref(), None).map(|pages| pages.address).ok_or_else(|| {
            errln!("weir: this configuration has no admin pages: expected an [admin] address");
            ExitCode::FAILURE
        })
    }
}
