//! `weir top`: the keys that use most and that are refused most, by limit. On a terminal they are
//! refreshed each second (`screen`), elsewhere they are printed once (`table`).

mod screen;
mod table;

use std::io::{IsTerminal as _, Write as _};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use super::pages::{self, Page, Pages};
use crate::cli::print::errln;
use crate::config::setting;
use table::TopTable;

/// Maximum number of keys of each limit: what the page itself allows.
const KEYS_MAX: u64 = 1_000;
/// The default number of keys of each limit: printed, and on a terminal, which scrolls.
const KEYS_PRINTED: u64 = 10;
const KEYS_ON_SCREEN: u64 = 100;

#[derive(Debug, Args)]
pub(super) struct Top {
    /// Only limits with this name
    #[arg(long)]
    limit: Option<String>,
    /// Keys of each limit [default: 10 if they are printed, 100 on a terminal]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=KEYS_MAX))]
    keys: Option<u64>,
    /// Print them once, as text, as is done without a terminal
    #[arg(long)]
    once: bool,
    /// The configuration file, for the admin address and its token [default: proxy.toml, where
    /// there is one]
    #[arg(long)]
    config: Option<PathBuf>,
    /// The running proxy's admin address [default: the configuration's, or 127.0.0.1:9901]
    #[arg(long)]
    admin: Option<SocketAddr>,
}

impl Top {
    pub(super) fn run(self) -> ExitCode {
        let config = match pages::configuration("top", self.config.as_deref(), &|_| {
            vec![setting::ADMIN.into()]
        }) {
            Ok(config) => config,
            Err(code) => return code,
        };
        let Some(address) = Pages::of(config.as_ref(), self.admin).map(|pages| pages.address)
        else {
            errln!(
                "weir: this configuration has no admin pages: expected an [admin] address, or --admin"
            );
            return ExitCode::FAILURE;
        };
        let is_printed = self.once || !std::io::stdout().is_terminal();
        let count = self.keys.unwrap_or(if is_printed { KEYS_PRINTED } else { KEYS_ON_SCREEN });
        let look = move || {
            let pages = Pages::of(config.as_ref(), self.admin)
                .ok_or_else(|| "there are no admin pages".to_owned())?;
            look(&pages, self.limit.as_deref(), count)
        };
        if !is_printed {
            return screen::show(address, look);
        }
        match look().and_then(|top| print(&top.text())) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => failed(&error),
        }
    }
}

/// Whoever reads it may have had enough, as `head` does.
fn print(text: &str) -> Result<(), String> {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error.to_string()),
        _ => Ok(()),
    }
}

fn failed(error: &str) -> ExitCode {
    errln!("weir: {error}");
    ExitCode::FAILURE
}

/// Asks once for `count` keys of each limit, or of those called `limit`.
fn look(pages: &Pages<'_>, limit: Option<&str>, count: u64) -> Result<TopTable, String> {
    let query = pages::query(&[("limit", limit), ("n", Some(&count.to_string()))]);
    match pages.ask("GET", &format!("/top?{query}"))? {
        Page::Shown(json) => {
            let table = TopTable::read(&json, count).map_err(|wrong| {
                format!("the server at {} is not an admin listener of Weir: {wrong}", pages.address)
            })?;
            Ok(TopTable { only: limit.map(str::to_owned), ..table })
        }
        Page::Wrong(sentence) | Page::Refused(sentence) => {
            Err(format!("the proxy's admin listener refuses: {}", table::harmless(&sentence)))
        }
    }
}
