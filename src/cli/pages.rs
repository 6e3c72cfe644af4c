//! Requests pages of a running proxy's admin listener, for commands that show them.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use crate::app;
use crate::clock;
use crate::config::{self, Config};

/// The time limit on a request and its answer, where a command has no other.
const TIMEOUT: Duration = Duration::from_secs(15);
/// Maximum size of an answer, in bytes.
const ANSWER_BYTES_MAX: usize = 16 << 20;
/// Maximum number of bytes that are read at once.
const PART_BYTES: usize = 64 << 10;

/// Where the pages are.
#[derive(Debug)]
pub(super) struct Pages<'a> {
    pub(super) address: SocketAddr,
    /// The configuration's, where it has one.
    pub(super) token: Option<&'a str>,
    /// The time limit on a request and its answer.
    pub(super) timeout: Duration,
}

/// A page, or why there is none.
#[derive(Debug)]
pub(super) enum Page {
    Shown(String),
    /// The question is wrong, as the listener says.
    Wrong(String),
    /// It may not be asked, or has no answer at the moment.
    Refused(String),
}

/// The configuration of the running proxy, for `command`: that of `--config`, or the default file
/// if it exists. None where there is no file, as with `weir run --to`. Only what the settings that
/// `needed` names refer to has to be there.
pub(super) fn configuration(
    command: &str,
    path: Option<&Path>,
    needed: &dyn Fn(&Config) -> Vec<String>,
) -> Result<Option<Config>, ExitCode> {
    let default = PathBuf::from(super::CONFIG_DEFAULT);
    match path.or_else(|| Some(default.as_path()).filter(|path| path.exists())) {
        Some(path) => {
            let loaded = app::load_needed(path, needed);
            loaded.map(Some).map_err(|wrong| super::wrong_config(command, &wrong))
        }
        None => Ok(None),
    }
}

impl<'a> Pages<'a> {
    /// The pages at `address` if one is given, else where `config` has them. None if it has none.
    pub(super) fn of(config: Option<&'a Config>, address: Option<SocketAddr>) -> Option<Self> {
        let Some(config) = config else {
            let address = address.unwrap_or(config::ADMIN_DEFAULT);
            return Some(Self { address, token: None, timeout: TIMEOUT });
        };
        let pages = config.admin.as_ref();
        let token = pages.and_then(|pages| pages.token.as_ref()).map(|token| token.reveal());
        let address = address.or(pages.map(|pages| pages.address))?;
        Some(Self { address, token, timeout: TIMEOUT })
    }

    /// Requests a page.
    ///
    /// # Errors
    /// Nothing answers, or something else than Weir.
    pub(super) fn ask(&self, method: &str, path: &str) -> Result<Page, String> {
        let Self { address, token, .. } = self;
        let authorization =
            token.map(|token| format!("Authorization: Bearer {token}\r\n")).unwrap_or_default();
        let fields = format!("Host: {address}\r\n{authorization}Connection: close\r\n");
        let answer = self.exchange(&format!("{method} {path} HTTP/1.1\r\n{fields}\r\n"));
        let answer = answer.map_err(|error| {
            format!("the proxy's admin listener at {address} does not answer: {error}")
        })?;
        let nonsense = || self.not_an_admin_listener();
        let answer = String::from_utf8(answer).map_err(|_| nonsense())?;
        let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(nonsense)?;
        let sentence = || body.trim_end().to_owned();
        match head.split(' ').nth(1) {
            Some("200") => Ok(Page::Shown(body.to_owned())),
            Some("400") => Ok(Page::Wrong(sentence())),
            Some("401" | "403" | "421" | "503") => Ok(Page::Refused(sentence())),
            _ => Err(nonsense()),
        }
    }

    /// What is said of another server.
    pub(super) fn not_an_admin_listener(&self) -> String {
        format!("the server at {} is not an admin listener of Weir", self.address)
    }

    /// Sends a request, and returns all that is answered, unless that takes too long.
    fn exchange(&self, request: &str) -> std::io::Result<Vec<u8>> {
        let deadline = clock::monotonic() + self.timeout;
        let mut stream = TcpStream::connect_timeout(&self.address, self.timeout)?;
        stream.set_write_timeout(Some(self.timeout))?;
        stream.write_all(request.as_bytes())?;
        let mut answer = Vec::new();
        let mut part = vec![0; PART_BYTES];
        loop {
            let left = deadline.saturating_duration_since(clock::monotonic());
            if left.is_zero() {
                return Err(self.too_late());
            }
            stream.set_read_timeout(Some(left))?;
            let count = match stream.read(&mut part) {
                // What a socket says when its timeout is over.
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Err(self.too_late()),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                read => read?,
            };
            answer.extend(part.iter().take(count));
            if count == 0 {
                return Ok(answer);
            }
            if answer.len() > ANSWER_BYTES_MAX {
                let what = format!("found more than {ANSWER_BYTES_MAX} bytes");
                return Err(std::io::Error::other(what));
            }
        }
    }

    fn too_late(&self) -> std::io::Error {
        let within = humantime::format_duration(self.timeout);
        let what = format!("found no complete answer within {within}");
        std::io::Error::new(ErrorKind::TimedOut, what)
    }
}

/// The parameters of a page that have a value, as a query.
pub(super) fn query(parameters: &[(&str, Option<&str>)]) -> String {
    let given = parameters.iter().filter_map(|(name, value)| Some((name, (*value)?)));
    let each: Vec<String> =
        given.map(|(name, value)| format!("{name}={}", encoded(value))).collect();
    each.join("&")
}

/// Percent-encoded, but for what is unreserved (RFC 3986, 2.3).
fn encoded(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    text.bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}
