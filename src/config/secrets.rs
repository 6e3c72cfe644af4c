//! What of a configuration's text may be a secret and is never shown, whether the text is TOML or
//! not. Knows the names of settings that hold secrets, and no section's meaning.

use std::ops::Range;

use super::brackets;
use crate::telemetry::is_credentials_header;

/// Keys whose value is a secret, written where a `_file` or `_env` key belongs.
const SECRET_KEYS: [&str; 4] = ["password", "key_secret", "secret", "token"];
/// What keys end with whose value says where a secret is.
const NAMES_A_PLACE: [&str; 2] = ["_file", "_env"];
/// Tables of header fields that are sent on. Any of their values may be a key of the upstream's or
/// of the collector's.
const FIELDS_IN: [&str; 3] = [".request_headers.set.", ".request_headers.add.", ".otlp.headers."];
/// The same, of a line that is read alone.
const FIELDS_BELOW: [&str; 2] = [".request_headers.", ".otlp.headers."];
/// Tables of a policy's configuration whose keys are digests of customers' keys, and how those
/// begin. What begins otherwise may be a key itself.
pub(super) const DIGESTS_IN: &str = ".config.assign";
pub(super) const DIGEST_KEYS: &str = ".config.assign.";
pub(super) const DIGEST_BEGIN: &str = "sha256:";
/// The same table in a line that is read alone.
const DIGESTS_BELOW: &str = "assign";
/// What may stand around the names of tables in a header.
const NOT_IN_NAMES: [char; 5] = ['"', '\'', ' ', '\t', '\r'];

/// Whether the value of this setting may be a secret.
pub(super) fn is_secret(path: &str, value: &str) -> bool {
    let is_in = |fields: &&str| {
        // Or in its place, where a table is expected.
        path.contains(*fields) || path.ends_with(fields.trim_end_matches('.'))
    };
    FIELDS_IN.iter().any(is_in) || is_secret_key(path.rsplit('.').next().unwrap_or(path), value)
}

/// Whether the value of this key may be a secret. Flags and numbers are none, unless the key is for
/// nothing else.
fn is_secret_key(key: &str, value: &str) -> bool {
    let key = key.trim().trim_matches(['"', '\'']);
    let is_text = value.trim_start().starts_with(['"', '\'', '[']);
    let names_a_place = NAMES_A_PLACE.iter().any(|end| key.ends_with(end));
    SECRET_KEYS.contains(&key) || (is_text && !names_a_place && is_credentials_header(key))
}

/// Values of secret keys, found line by line, so that they are found in a text that is no TOML
/// (`is_unread`), too. The rest of the line may be part of the value, and of such a text the lines
/// up to the bracket that closes it. Customers' keys that are written where their digests belong
/// are found in such a text only: of TOML, the tree says where they are.
pub(super) fn secret_lines(text: &str, is_unread: bool) -> Vec<Range<usize>> {
    let (mut start, mut section, mut open) = (0, String::from("."), Open::default());
    let mut found = Vec::new();
    for line in text.split('\n') {
        // What looks like a header in a string of several lines is a part of it.
        let may_begin = is_unread && open.string.is_none();
        let header = if may_begin { header(line, open.is_any()) } else { None };
        if let Some(name) = &header {
            (section, open) = (format!(".{name}."), Open::default());
        }
        let is_whole = is_unread && header.is_none() && is_hidden(&section, line);
        let from = if open.is_any() || is_whole {
            Some(0)
        } else {
            let key = if is_unread { key_of_customer(&section, line) } else { None };
            secret_value(&section, line, is_unread).into_iter().chain(key).min()
        };
        if let Some(from) = from {
            found.push(start + from..start + line.len());
            if is_unread {
                let value = line.get(from..).unwrap_or_default();
                // The value may be on the next line.
                let is_none = value.trim().is_empty() || value.trim_start().starts_with('#');
                open.is_ahead |= is_none && from > 0;
                open.read(value);
            }
        }
        start += line.len() + 1;
    }
    found
}

/// Where the value of a secret key begins in the line.
fn secret_value(section: &str, line: &str, is_unread: bool) -> Option<usize> {
    let mut path = section.to_owned();
    let is_found = |(at, _): &(usize, &str)| {
        let before = line.get(..*at).unwrap_or_default().trim_end();
        let key = before.rsplit(|c: char| c.is_whitespace() || ".{,".contains(c)).next();
        let value = line.get(at + 1..).unwrap_or_default();
        if is_unread {
            let keys = before.rsplit(|c: char| c.is_whitespace() || "{,".contains(c)).next();
            path.extend([keys.unwrap_or_default(), "."]);
        }
        key.is_some_and(|key| is_secret_key(key, value))
            || is_unread && FIELDS_BELOW.iter().any(|fields| path.contains(fields))
    };
    // Who takes it for YAML writes a colon.
    let ends = |c: char| c == '=' || is_unread && c == ':';
    line.match_indices(ends).find(is_found).map(|(at, _)| at + 1)
}

/// Whether a line of this section is hidden as a whole.
fn is_hidden(section: &str, line: &str) -> bool {
    // A digest and a plan alone on a line are as they should be.
    let key = line.trim_start().trim_start_matches(['"', '\'']);
    let is_digest = key.starts_with(DIGEST_BEGIN)
        && line.matches('=').count() == 1
        && !line.contains([',', '{', '['])
        && key
            .split(['"', '\'', '='])
            .next()
            .is_some_and(|key| !key.trim_end().contains(char::is_whitespace));
    FIELDS_BELOW.iter().any(|fields| section.contains(fields))
        || section.contains(DIGEST_KEYS) && !is_digest
}

/// Where what follows the key `assign` begins in the line. The names of files are not hidden.
fn key_of_customer(section: &str, line: &str) -> Option<usize> {
    let is_bare = |c: char| c.is_ascii_alphanumeric() || "_-".contains(c);
    line.match_indices(DIGESTS_BELOW).find_map(|(at, word)| {
        let (before, after) = line.split_at_checked(at)?;
        let after = after.strip_prefix(word)?;
        let value = after.trim_start_matches(['"', '\'']).trim_start();
        let value = value.strip_prefix(['.', '=', ':'])?;
        let is_file = value.trim_start().starts_with(['"', '\''])
            && (section.contains(".config_files.") || before.contains("config_files"));
        (!before.ends_with(is_bare) && !is_file).then(|| line.len() - value.len())
    })
}

/// The name in the header of a table, without quotes and spaces. Its last bracket may be missing.
/// Within a value that is open, only a line that can't be a part of it is one.
fn header(line: &str, is_open: bool) -> Option<String> {
    let name = line.trim_start().trim_start_matches('[');
    // What begins with a quote may be an array.
    let is_bare = !name.trim_start().starts_with(['"', '\'']);
    let looks_so = || is_bare && brackets::begins_setting(&line.replace(NOT_IN_NAMES, ""), b'{');
    let is_header = match (line.starts_with('['), is_open) {
        (true, false) => true,
        (true, true) | (false, false) => looks_so(),
        (false, true) => false,
    };
    let mut at = 0;
    while let Some(rest) = name.get(at..).filter(|rest| !rest.is_empty() && is_header) {
        if rest.starts_with([']', '#']) {
            break;
        }
        let length = rest.chars().next().map_or(1, char::len_utf8);
        at += brackets::string_bytes(rest).unwrap_or_default().max(length);
    }
    let name = name.get(..at).unwrap_or(name);
    is_header.then(|| name.replace(NOT_IN_NAMES, ""))
}

/// What a hidden value has opened and not closed yet.
#[derive(Default)]
struct Open {
    brackets: Vec<char>,
    /// What ends the string of several lines that it is in.
    string: Option<&'static str>,
    /// The value is still to come.
    is_ahead: bool,
}

impl Open {
    fn is_any(&self) -> bool {
        self.is_ahead || self.string.is_some() || !self.brackets.is_empty()
    }

    /// Reads the next line of the value. Brackets in strings and comments are none.
    fn read(&mut self, line: &str) {
        let mut rest = line;
        if let Some(end) = self.string {
            let Some((_, after)) = rest.split_once(end) else { return };
            (self.string, rest) = (None, after);
        }
        while let Some(c) = rest.chars().next().filter(|c| *c != '#') {
            let closes = |open: &mut char| c == if *open == '{' { '}' } else { ']' };
            let mut length = c.len_utf8();
            match c {
                '{' | '[' => self.brackets.push(c),
                '}' | ']' => drop(self.brackets.pop_if(closes)),
                _ => match brackets::string_bytes(rest) {
                    Ok(bytes) => length = length.max(bytes),
                    Err(end) => {
                        self.string = Some(end);
                        return;
                    }
                },
            }
            rest = rest.get(length..).unwrap_or_default();
        }
    }
}

/// `user:password` in `scheme://user:password@host` and in `user:password@host`. A password may
/// contain slashes, so a path with an `@` is hidden as well.
pub(super) fn user_infos(text: &str) -> Vec<Range<usize>> {
    let ends = |c: char| c.is_whitespace() || "\"'".contains(c);
    let mut start = 0;
    let mut found = Vec::new();
    for word in text.split_inclusive(ends) {
        if let Some((info, _)) =
            word.rsplit_once('@').filter(|(info, host)| !is_interface(info, host))
        {
            let scheme = info.find("://").map(|at| at + 3);
            if scheme.is_some() || info.contains(':') {
                found.push(start + scheme.unwrap_or(0)..start + info.len());
            }
        }
        start += word.len();
    }
    found
}

/// Whether the word is an interface of a component, such as `weir:policy/handler@0.9.0`. What
/// follows its `@` is a version of three numbers, which can't be a host.
fn is_interface(name: &str, version: &str) -> bool {
    let word = |word: &str| {
        !word.is_empty()
            && word
                .bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
    };
    let name = name.trim_start_matches(|c: char| c.is_ascii_punctuation());
    let named = name.split_once(':').is_some_and(|(space, path)| {
        word(space) && path.contains('/') && path.split('/').all(word)
    });
    let digits = version.trim_end_matches(|c: char| c.is_whitespace() || "\"'`,;:.)".contains(c));
    let numbers = digits.split('#').next().unwrap_or_default().split('.');
    named
        && numbers.clone().count() == 3
        && numbers
            .into_iter()
            .all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()))
}

/// A text of the file as a message may repeat it. To be called before a text is shortened, which
/// may cut the `@` off.
pub(super) fn without_user_infos(text: &str) -> String {
    blot(text, &user_infos(text))
}

/// The text with stars in place of these bytes. All other bytes keep their positions.
pub(super) fn blot(text: &str, ranges: &[Range<usize>]) -> String {
    let mut bytes = text.as_bytes().to_vec();
    for range in ranges {
        let inside = bytes.get_mut(range.clone()).into_iter().flatten();
        inside.filter(|byte| **byte != b'\n' && **byte != b'\r').for_each(|byte| *byte = b'*');
    }
    // Ranges are whole values or lines, so they split no character. If one did, nothing would be
    // shown.
    String::from_utf8(bytes).unwrap_or_default()
}
