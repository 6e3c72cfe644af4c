//! `weir key show` and `weir key reset`: the counters of one key, found again. On Redis by a connection of its own, in memory by asking the running
//! proxy's admin listener.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::Value;

use crate::app::{self, CounterQuery, NoCounters};

/// For each step of asking the admin listener.
const ADMIN_WAIT: Duration = Duration::from_secs(15);
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
    /// The key, as the policy answers it: an address for client-ip, the rendered template where there is one
    #[arg(long, allow_hyphen_values = true)]
    key: String,
    /// The tag, for a policy that answers one
    #[arg(long, allow_hyphen_values = true)]
    tag: Option<String>,
    /// The route, where its counters are its own (limit_scope = "route")
    #[arg(long)]
    route: Option<String>,
    /// The configuration file
    #[arg(long, default_value = "proxy.toml")]
    config: PathBuf,
    /// With counters in memory: the running proxy's admin address [default: the configuration's]
    #[arg(long)]
    admin: Option<SocketAddr>,
}

pub(super) fn run(key: Key) -> ExitCode {
    let (named, forget) = match key {
        Key::Show(named) => (named, false),
        Key::Reset(named) => (named, true),
    };
    let config = match app::load(&named.config) {
        Ok(config) => config,
        Err(mistakes) => return super::wrong_config(&mistakes),
    };
    let Named { policy, limit, key, tag, route, admin, .. } = named;
    let query = CounterQuery { policy, limit, key, tag, route };
    let pages = config.admin.as_ref();
    let token = pages.and_then(|pages| pages.token.as_ref()).map(|token| token.reveal());
    let answer = match (app::counters(&config, &query, forget), admin.or(pages.map(|pages| pages.address))) {
        (Err(NoCounters::InMemory), Some(address)) => ask(address, token, &query, forget),
        (answer, _) => answer,
    };
    match answer.and_then(|answer| told(&answer, &query)) {
        Ok(text) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("weir: {error}");
            if matches!(error, NoCounters::Query(_)) { ExitCode::from(EXIT_USAGE) } else { ExitCode::FAILURE }
        }
    }
}

/// Asks `/counters` of a running proxy, with the configuration's token where it has one.
fn ask(address: SocketAddr, token: Option<&str>, query: &CounterQuery, forget: bool) -> Result<String, NoCounters> {
    let CounterQuery { policy, limit, key, tag, route } = query;
    let parts = [("policy", Some(policy)), ("limit", Some(limit)), ("key", Some(key)), ("tag", tag.as_ref()), ("route", route.as_ref())];
    let parts = parts.iter().filter_map(|(name, value)| Some(format!("{name}={}", encoded((*value)?))));
    let parts: Vec<String> = parts.collect();
    let method = if forget { "DELETE" } else { "GET" };
    let authorization = token.map(|token| format!("Authorization: Bearer {token}\r\n")).unwrap_or_default();
    let fields = format!("Host: {address}\r\n{authorization}Connection: close\r\n");
    let request = format!("{method} /counters?{} HTTP/1.1\r\n{fields}\r\n", parts.join("&"));
    let answer = exchange(address, &request);
    let answer = answer.map_err(|error| NoCounters::Store(format!("the proxy's admin listener at {address} does not answer: {error}")))?;
    let nonsense = || NoCounters::Store(format!("what answers at {address} is no admin listener of Weir"));
    let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(nonsense)?;
    match head.split(' ').nth(1) {
        Some("200") => Ok(body.to_owned()),
        Some("400") => Err(NoCounters::Query(body.trim_end().to_owned())),
        Some("401" | "403" | "421" | "503") => Err(NoCounters::Store(body.trim_end().to_owned())),
        _ => Err(nonsense()),
    }
}

fn exchange(address: SocketAddr, request: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, ADMIN_WAIT)?;
    stream.set_read_timeout(Some(ADMIN_WAIT))?;
    stream.set_write_timeout(Some(ADMIN_WAIT))?;
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.take(ANSWER_BYTES_MAX).read_to_string(&mut answer)?;
    Ok(answer)
}

/// Percent-encoded, but for what is unreserved (RFC 3986, 2.3).
fn encoded(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    text.bytes().map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

/// The answer in words.
fn told(answer: &str, query: &CounterQuery) -> Result<String, NoCounters> {
    let nonsense = || NoCounters::Store(format!("found {answer:?}, expected counters as JSON"));
    let answer: Value = serde_json::from_str(answer).map_err(|_| nonsense())?;
    let counters = answer.get("counters").and_then(Value::as_array).ok_or_else(nonsense)?;
    let CounterQuery { policy, limit, key, .. } = query;
    if counters.is_empty() {
        return Ok(format!("{policy}/{limit}: nothing is counted for {key:?}\n"));
    }
    let mut text = String::new();
    for counter in counters {
        let part = |name: &str| counter.get(name).and_then(Value::as_str).unwrap_or("?");
        let verb = if answer.get("forgotten") == Some(&Value::Bool(true)) { "deleted: " } else { "" };
        text.push_str(&format!("{verb}{policy}/{limit} of {key:?}: {} ({})\n  {}\n", part("algorithm"), part("shape"), part("state")));
        match counter.get("expires_s").and_then(Value::as_f64) {
            Some(seconds) => text.push_str(&format!("  lives for {seconds:.3} s if nothing more comes\n")),
            None => text.push_str("  has no lifetime\n"),
        }
        if let Some(name) = counter.get("redis_key").and_then(Value::as_str) {
            text.push_str(&format!("  {name}\n"));
        }
    }
    Ok(text)
}
