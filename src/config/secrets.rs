//! What of a configuration's text may be a secret and is never shown, whether the text is TOML or
//! not. Knows the names of settings that hold secrets, and no section's meaning.

use std::ops::Range;

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
/// up to the bracket that closes it.
pub(super) fn secret_lines(text: &str, is_unread: bool) -> Vec<Range<usize>> {
    let (mut start, mut section, mut open) = (0, String::from("."), 0);
    let mut found = Vec::new();
    for line in text.split('\n') {
        if is_unread && line.starts_with('[') {
            let name = line.trim().trim_matches(['[', ']']);
            (section, open) = (format!(".{}.", name.trim()), 0);
        }
        let mut path = section.clone();
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
        let in_fields = FIELDS_BELOW.iter().any(|fields| section.contains(fields));
        let from = if open > 0 || is_unread && in_fields && !line.starts_with('[') {
            Some(0)
        } else {
            // Who takes it for YAML writes a colon.
            let ends = |c: char| c == '=' || is_unread && c == ':';
            line.match_indices(ends).find(is_found).map(|(at, _)| at + 1)
        };
        if let Some(from) = from {
            found.push(start + from..start + line.len());
            if is_unread {
                let value = line.get(from..).unwrap_or_default();
                // The value may be on the next line.
                let is_ahead = value.trim().is_empty() && from > 0;
                open = if is_ahead { 1 } else { (open + unclosed(value)).max(0) };
            }
        }
        start += line.len() + 1;
    }
    found
}

/// How many more brackets a text opens than it closes.
fn unclosed(text: &str) -> i64 {
    text.chars().fold(0, |open, c| match c {
        '{' | '[' => open + 1,
        '}' | ']' => open - 1,
        _ => open,
    })
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
