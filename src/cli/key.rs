//! `weir key show` and `weir key reset`: the counters of one key. Counters on Redis are read over a
//! connection of this command's own, counters in memory are requested from the running proxy's
//! admin listener.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::Value;

use crate::app::{self, CounterQuery, NoCounters};
use crate::config;

/// For each step of a request to the admin listener.
const ADMIN_TIMEOUT: Duration = Duration::from_secs(15);
/// Bytes of its answer, at most.
const ANSWER_BYTES_MAX: u64 = 1 << 20;
const EXIT_USAGE: u8 = 2;

#[derive(Debug, Subcommand)]
pub(super) enum Key {
    /// Show what is counted for a key
    Show(Named),
    /// Forget what is counted for a key: its whole allowance is back
    Reset(Named),
}

/// Which key.
#[derive(Debug, Args)]
pub(super) struct Named {
    /// The policy's name in the configuration
    #[arg(long)]
    policy: String,
    /// The limit's name
    #[arg(long)]
    limit: String,
    /// The key, as the policy answers it: an address for client-ip, the rendered template where
    /// there is one
    #[arg(long, allow_hyphen_values = true)]
    key: String,
    /// The tag, for a policy that answers one
    #[arg(long, allow_hyphen_values = true)]
    tag: Option<String>,
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
    let config = match named
        .config
        .as_deref()
        .or_else(|| Some(Path::new(super::CONFIG_DEFAULT)).filter(|path| path.exists()))
    {
        Some(path) => match app::load(path) {
            Ok(config) => Some(config),
            Err(mistakes) => return super::wrong_config(&mistakes),
        },
        // As of `weir run --to`.
        None => None,
    };
    let command = command(&named, forget);
    let Named { policy, limit, key, tag, route, admin, .. } = named;
    let query = CounterQuery { policy, limit, key, tag, route };
    let pages = config.as_ref().and_then(|config| config.admin.as_ref());
    let token = pages.and_then(|pages| pages.token.as_ref()).map(|token| token.reveal());
    let answer = match &config {
        Some(config) => match (
            app::counters(config, &query, forget),
            admin.or(pages.map(|pages| pages.address)),
        ) {
            (Err(NoCounters::InMemory), Some(address)) => ask(address, token, &query, forget),
            (answer, _) => answer,
        },
        None => ask(admin.unwrap_or(config::ADMIN_DEFAULT), None, &query, forget),
    };
    match answer.and_then(|answer| described(&answer, &command)) {
        Ok(text) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("weir: {error}");
            if matches!(error, NoCounters::Query(_)) {
                ExitCode::from(EXIT_USAGE)
            } else {
                ExitCode::FAILURE
            }
        }
    }
}

/// Requests `/counters` from a running proxy, with the configuration's token where it has one.
fn ask(
    address: SocketAddr,
    token: Option<&str>,
    query: &CounterQuery,
    forget: bool,
) -> Result<String, NoCounters> {
    let CounterQuery { policy, limit, key, tag, route } = query;
    let parts = [
        ("policy", Some(policy)),
        ("limit", Some(limit)),
        ("key", Some(key)),
        ("tag", tag.as_ref()),
        ("route", route.as_ref()),
    ];
    let parts =
        parts.iter().filter_map(|(name, value)| Some(format!("{name}={}", encoded((*value)?))));
    let parts: Vec<String> = parts.collect();
    let method = if forget { "DELETE" } else { "GET" };
    let authorization =
        token.map(|token| format!("Authorization: Bearer {token}\r\n")).unwrap_or_default();
    let fields = format!("Host: {address}\r\n{authorization}Connection: close\r\n");
    let request = format!("{method} /counters?{} HTTP/1.1\r\n{fields}\r\n", parts.join("&"));
    let answer = exchange(address, &request);
    let answer = answer.map_err(|error| {
        NoCounters::Store(format!(
            "the proxy's admin listener at {address} does not answer: {error}"
        ))
    })?;
    let nonsense =
        || NoCounters::Store(format!("what answers at {address} is no admin listener of Weir"));
    let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(nonsense)?;
    match head.split(' ').nth(1) {
        Some("200") => Ok(body.to_owned()),
        Some("400") => Err(NoCounters::Query(body.trim_end().to_owned())),
        Some("401" | "403" | "421" | "503") => Err(NoCounters::Store(body.trim_end().to_owned())),
        _ => Err(nonsense()),
    }
}

fn exchange(address: SocketAddr, request: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, ADMIN_TIMEOUT)?;
    stream.set_read_timeout(Some(ADMIN_TIMEOUT))?;
    stream.set_write_timeout(Some(ADMIN_TIMEOUT))?;
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.take(ANSWER_BYTES_MAX).read_to_string(&mut answer)?;
    Ok(answer)
}

/// Percent-encoded, but for what is unreserved (RFC 3986, 2.3).
fn encoded(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    text.bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

/// The command line that asks the same, for pasting into a shell.
fn command(named: &Named, forget: bool) -> String {
    let Named { policy, limit, key, tag, route, config, admin } = named;
    let config = config.as_ref().map(|path| path.display().to_string());
    let admin = admin.map(|address| address.to_string());
    let options = [
        ("--policy", Some(policy)),
        ("--limit", Some(limit)),
        ("--key", Some(key)),
        ("--tag", tag.as_ref()),
        ("--route", route.as_ref()),
        ("--config", config.as_ref()),
        ("--admin", admin.as_ref()),
    ];
    let mut command = format!("weir key {}", if forget { "reset" } else { "show" });
    for (option, value) in options {
        // In one word with its option, as the value may begin with a hyphen.
        let Some(value) = value else { continue };
        let word = if value.starts_with('-') {
            format!(" {option}={}", quoted(value))
        } else {
            format!(" {option} {}", quoted(value))
        };
        command.push_str(&word);
    }
    command
}

/// Quotes one word for a POSIX shell. Control characters need `$'..'`, which bash and zsh know.
fn quoted(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._/:@%+=,".contains(&byte);
    if !text.is_empty() && text.bytes().all(plain) {
        return text.to_owned();
    }
    if !text.chars().any(char::is_control) {
        return format!("'{}'", text.replace('\'', "'\\''"));
    }
    let mut word = "$'".to_owned();
    for next in text.chars() {
        match next {
            '\'' | '\\' => word.extend(['\\', next]),
            next if next.is_control() => {
                let mut bytes = [0; 4];
                next.encode_utf8(&mut bytes)
                    .bytes()
                    .for_each(|byte| word.push_str(&format!("\\x{byte:02x}")));
            }
            next => word.push(next),
        }
    }
    word + "'"
}

/// The answer in words, below the command that asks for it.
fn described(answer: &str, command: &str) -> Result<String, NoCounters> {
    let nonsense = || NoCounters::Store(format!("found {answer:?}, expected counters as JSON"));
    let answer: Value = serde_json::from_str(answer).map_err(|_| nonsense())?;
    let counters = answer.get("counters").and_then(Value::as_array).ok_or_else(nonsense)?;
    let mut text = format!("{command}\n");
    if counters.is_empty() {
        text.push_str("  nothing is counted\n");
    }
    let verb = if answer.get("forgotten") == Some(&Value::Bool(true)) { "deleted: " } else { "" };
    for counter in counters {
        let part = |name: &str| counter.get(name).and_then(Value::as_str).unwrap_or("?");
        text.push_str(&format!("  {verb}{}: {}\n", part("algorithm"), part("state")));
        let lives = match counter.get("expires_s").and_then(Value::as_f64) {
            Some(seconds) => format!("forgotten in {seconds:.3} s if nothing more comes"),
            None => "never forgotten".to_owned(),
        };
        text.push_str(&format!("    shape {}, {lives}\n", part("shape")));
        if let Some(name) = counter.get("redis_key").and_then(Value::as_str) {
            text.push_str(&format!("    {name}\n"));
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn what_is_printed_is_one_command_line_again() {
        let named = |key: &str| Named {
            policy: "public".into(),
            limit: "per-minute".into(),
            key: key.into(),
            tag: None,
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
        // As bash reads it.
        for key in [
            "\\@192.0.2.1",
            "a b",
            "it's",
            "9:127.0.0.1 2:/a",
            "$HOME `id` \"x\"",
            "line\nbreak\t'\\",
            "\u{e9}\u{85}",
            "*",
            "~",
            "",
        ] {
            let shell = Command::new("bash")
                .args(["-c", &format!("printf %s {}", quoted(key))])
                .output()
                .unwrap();
            assert_eq!(String::from_utf8(shell.stdout).unwrap(), key);
        }
    }
}
