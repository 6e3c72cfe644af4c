//! `weir key show` and `weir key reset`: the counters of one key. Counters on Redis are read over a
//! connection of this command's own, counters in memory are requested from the running proxy's
//! admin listener.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::Value;

use super::pages::{self, Page, Pages};
use super::shell;
use crate::app::{self, CounterError, CounterQuery, KeySelector};
use crate::cli::print::{errln, out};
use crate::config::Config;

const EXIT_USAGE: u8 = 2;

#[derive(Debug, Subcommand)]
pub(super) enum Key {
    /// Show what is counted for a key
    Show(KeyArgs),
    /// Forget what is counted for a key: its whole allowance is back
    Reset(KeyArgs),
}

/// Which key.
#[derive(Debug, Args)]
pub(super) struct KeyArgs {
    /// The policy's name in the configuration
    #[arg(long)]
    policy: String,
    /// The limit's name
    #[arg(long)]
    limit: String,
    /// The key, as the policy returns it: an address for client-ip, the rendered template where
    /// there is one
    #[arg(long, allow_hyphen_values = true, required_unless_present = "digest")]
    key: Option<String>,
    /// The tag, for a policy that returns one
    #[arg(long, allow_hyphen_values = true)]
    tag: Option<String>,
    /// Instead of key and tag: the digest that /explain, /top and the access log show
    #[arg(long, conflicts_with_all = ["key", "tag"])]
    digest: Option<String>,
    /// The route, where its counters are its own (limit_scope = "route")
    #[arg(long)]
    route: Option<String>,
    /// The configuration file [default: proxy.toml; where there is none, the running proxy is
    /// asked]
    #[arg(long)]
    config: Option<PathBuf>,
    /// With counters in memory: the running proxy's admin address [default: the configuration's, or
    /// 127.0.0.1:9901]
    #[arg(long)]
    admin: Option<SocketAddr>,
}

pub(super) fn run(key: Key) -> ExitCode {
    let (named, forget) = match key {
        Key::Show(named) => (named, false),
        Key::Reset(named) => (named, true),
    };
    let needed = |config: &Config| app::needed_by_counters(config, &named.policy);
    let config = match pages::configuration(name(forget), named.config.as_deref(), &needed) {
        Ok(config) => config,
        Err(code) => return code,
    };
    let command = command(&named, forget);
    let KeyArgs { policy, limit, key, tag, digest, route, admin, .. } = named;
    let of = match digest {
        Some(digest) => KeySelector::Digest(digest),
        // The command line has one of both.
        None => KeySelector::Key { key: key.unwrap_or_default(), tag },
    };
    let query = CounterQuery { policy, limit, of, route };
    let pages = Pages::of(config.as_ref(), admin);
    let answer = match (config.as_ref().map(|config| app::counters(config, &query, forget)), pages)
    {
        (None | Some(Err(CounterError::InMemory)), Some(pages)) => ask(&pages, &query, forget),
        (answer, _) => answer.unwrap_or(Err(CounterError::InMemory)),
    };
    let by_key = matches!(&query.of, KeySelector::Key { tag: None, .. });
    match answer.and_then(|answer| described(&answer, &command, by_key)) {
        Ok(text) => {
            out!("{text}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            errln!("weir: {error}");
            if matches!(error, CounterError::Query(_)) {
                ExitCode::from(EXIT_USAGE)
            } else {
                ExitCode::FAILURE
            }
        }
    }
}

/// The command.
fn name(forget: bool) -> &'static str {
    if forget { "key reset" } else { "key show" }
}

/// Requests `/counters` from a running proxy.
fn ask(pages: &Pages<'_>, query: &CounterQuery, forget: bool) -> Result<String, CounterError> {
    let CounterQuery { policy, limit, of, route } = query;
    let (key, tag, digest) = match of {
        KeySelector::Key { key, tag } => (Some(key.as_str()), tag.as_deref(), None),
        KeySelector::Digest(digest) => (None, None, Some(digest.as_str())),
    };
    let query = pages::query(&[
        ("policy", Some(policy)),
        ("limit", Some(limit)),
        ("key", key),
        ("tag", tag),
        ("digest", digest),
        ("route", route.as_deref()),
    ]);
    let method = if forget { "DELETE" } else { "GET" };
    match pages.ask(method, &format!("/counters?{query}")).map_err(CounterError::Store)? {
        Page::Shown(json) => Ok(json),
        Page::Wrong(sentence) => Err(CounterError::Query(sentence)),
        Page::Refused(sentence) => Err(CounterError::Store(sentence)),
    }
}

/// The command line that asks the same, for pasting into a shell.
fn command(named: &KeyArgs, forget: bool) -> String {
    let KeyArgs { policy, limit, key, tag, digest, route, config, admin } = named;
    let config = config.as_ref().map(|path| path.display().to_string());
    let admin = admin.map(|address| address.to_string());
    let options = [
        ("--policy", Some(policy)),
        ("--limit", Some(limit)),
        ("--key", key.as_ref()),
        ("--tag", tag.as_ref()),
        ("--digest", digest.as_ref()),
        ("--route", route.as_ref()),
        ("--config", config.as_ref()),
        ("--admin", admin.as_ref()),
    ];
    let mut command = format!("weir {}", name(forget));
    for (option, value) in options {
        // In one word with its option, as the value may begin with a hyphen.
        let Some(value) = value else { continue };
        let word = if value.starts_with('-') {
            format!(" {option}={}", shell::word(value))
        } else {
            format!(" {option} {}", shell::word(value))
        };
        command.push_str(&word);
    }
    command
}

/// Where to look if something should have been counted.
const HINT: &str = "    if it should be: /explain of such a request has its key, digest and tag, and `weir top` the digests; ask with --tag or --digest\n";

/// The answer in words, below the command that asks for it. `by_key`: neither a tag nor a digest
/// was given.
fn described(answer: &str, command: &str, by_key: bool) -> Result<String, CounterError> {
    let nonsense = || CounterError::Store(format!("found {answer:?}, expected counters as JSON"));
    let answer: Value = serde_json::from_str(answer).map_err(|_| nonsense())?;
    let counters = answer.get("counters").and_then(Value::as_array).ok_or_else(nonsense)?;
    let mut text = format!("{command}\n");
    if counters.is_empty() {
        text.push_str("  nothing is counted\n");
        if by_key {
            text.push_str(HINT);
        }
    }
    let verb = if answer.get("forgotten") == Some(&Value::Bool(true)) { "deleted: " } else { "" };
    for counter in counters {
        let part = |name: &str| counter.get(name).and_then(Value::as_str).unwrap_or("?");
        text.push_str(&format!("  {verb}{}: {}\n", part("algorithm"), part("state")));
        let lives = match counter.get("expires_s").and_then(Value::as_f64) {
            Some(seconds) => format!("forgotten in {seconds:.3} s unless more comes"),
            None => "never forgotten".to_owned(),
        };
        text.push_str(&format!("    shape {}, {lives}\n", part("shape")));
        for lease in counter.get("leases").and_then(Value::as_array).into_iter().flatten() {
            let number = |name: &str| lease.get(name).and_then(Value::as_u64).unwrap_or(0);
            let holder = lease.get("holder").and_then(Value::as_str).unwrap_or("?");
            let (units, ends_ms) = (number("units"), number("ends_in_ms"));
            text.push_str(&format!("    {units} units leased to {holder}, for {ends_ms} ms\n"));
        }
        if let Some(name) = counter.get("redis_key").and_then(Value::as_str) {
            text.push_str(&format!("    {name}\n"));
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_output_is_one_command_line_again() {
        let named = |key: &str| KeyArgs {
            policy: "public".into(),
            limit: "per-minute".into(),
            key: Some(key.into()),
            tag: None,
            digest: None,
            route: None,
            config: None,
            admin: None,
        };
        assert_eq!(
            command(&named("203.0.113.7"), false),
            "weir key show --policy public --limit per-minute --key 203.0.113.7"
        );
        assert!(
            command(&named("-k"), true).starts_with("weir key reset ")
                && command(&named("-k"), true).ends_with(" --key=-k")
        );
    }
}
