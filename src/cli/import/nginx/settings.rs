//! Sizes, times, compression and the fields of responses: what a route or an upstream is told
//! besides where requests go. nginx inherits each from the innermost block that has it.

use std::fmt::Write as _;

use super::Notes;
use super::headers::is_field;
use crate::cli::import::directives::Directive;
use crate::cli::written::string;
use crate::plan::is_reserved_field;

/// What is read here.
pub(super) const READ: &[&str] = &[
    "add_header",
    "client_max_body_size",
    "gzip",
    "gzip_min_length",
    "gzip_types",
    "proxy_connect_timeout",
    "proxy_hide_header",
    "proxy_read_timeout",
];
/// The size of a body in nginx, unless it is told otherwise.
const BODY_BYTES: u64 = 1 << 20;
/// The largest one that Weir can be told, which stands for no limit.
const BODY_BYTES_MAX: u64 = 1 << 40;
/// How long nginx waits for an upstream, unless it is told otherwise.
const READ_TIMEOUT_MS: u64 = 60_000;
/// How long Weir waits for the head of a response, and for each piece of its body.
const RESPONSE_HEADER_MS: u64 = 30_000;
const IDLE_MS: u64 = 60_000;
/// The longest time that Weir can be told.
const TIMEOUT_MS_MAX: u64 = 86_400_000;
/// The shortest body that nginx compresses, unless it is told otherwise.
const COMPRESSED_BYTES_MIN: u64 = 20;
/// The media types that a route may have compressed.
const TYPES_MAX: usize = 64;

/// What `gzip_types *` stands for.
const ALL_TYPES: [&str; 6] = ["text/*", "application/*", "image/*", "audio/*", "video/*", "font/*"];

/// The directive of this name that holds: that of the innermost block.
fn nearest<'a>(around: &[&'a [Directive]], name: &str) -> Option<&'a Directive> {
    around.iter().find_map(|block| block.iter().find(|one| one.name == name))
}

/// All of this name, of the innermost block that has any.
fn all<'a>(around: &[&'a [Directive]], name: &'a str) -> Vec<&'a Directive> {
    let has = |block: &&&[Directive]| block.iter().any(|one| one.name == name);
    let block = around.iter().find(has).copied().unwrap_or_default();
    block.iter().filter(|one| one.name == name).collect()
}

/// A size as nginx reads it: `5m`.
fn bytes(text: &str) -> Option<u64> {
    let lower = text.to_ascii_lowercase();
    let (digits, unit) = match lower.strip_suffix(['k', 'm', 'g']) {
        Some(digits) => (digits, lower.get(digits.len()..)?),
        None => (lower.as_str(), ""),
    };
    let shift = match unit {
        "k" => 10,
        "m" => 20,
        "g" => 30,
        _ => 0,
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// A time as nginx reads it, in milliseconds: `1h 30m`, `500ms`, `60`.
fn milliseconds(words: &[String]) -> Option<u64> {
    const UNITS: [(&str, u64); 8] = [
        ("ms", 1),
        ("y", 365 * 86_400_000),
        ("M", 30 * 86_400_000),
        ("w", 7 * 86_400_000),
        ("d", 86_400_000),
        ("h", 3_600_000),
        ("m", 60_000),
        ("s", 1_000),
    ];
    let text = words.join(" ");
    let (mut rest, mut sum) = (text.trim(), 0_u64);
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let end = rest.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(rest.len());
        let (digits, after) = rest.split_at(end);
        let (unit, after) = match UNITS.iter().find(|(name, _)| after.starts_with(name)) {
            Some((name, unit)) => (*unit, after.get(name.len()..)?),
            None if after.is_empty() || after.starts_with(' ') => (1_000, after),
            None => return None,
        };
        sum = sum.checked_add(digits.parse::<u64>().ok()?.checked_mul(unit)?)?;
        rest = after.trim_start();
    }
    Some(sum)
}

fn size(bytes: u64) -> String {
    let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    let whole = units.iter().find(|(shift, _)| bytes > 0 && bytes.is_multiple_of(1 << shift));
    match whole {
        Some((shift, unit)) => format!("\"{}{unit}\"", bytes >> shift),
        None => format!("\"{bytes}B\""),
    }
}

fn time(ms: u64) -> String {
    let ms = ms.min(TIMEOUT_MS_MAX);
    if ms.is_multiple_of(1_000) { format!("\"{}s\"", ms / 1_000) } else { format!("\"{ms}ms\"") }
}

/// How large a body may be.
fn body_bytes(around: &[&[Directive]], notes: &mut Notes) -> u64 {
    let Some(directive) = nearest(around, "client_max_body_size") else { return BODY_BYTES };
    match bytes(directive.word(0)) {
        Some(0) => BODY_BYTES_MAX,
        Some(bytes) => bytes.min(BODY_BYTES_MAX),
        None => {
            notes.add(directive, "left out: expected a size such as 5m");
            BODY_BYTES
        }
    }
}

/// How long an upstream may take, in milliseconds.
fn read_timeout(around: &[&[Directive]], notes: &mut Notes) -> u64 {
    let Some(directive) = nearest(around, "proxy_read_timeout") else { return READ_TIMEOUT_MS };
    milliseconds(&directive.words).filter(|ms| *ms > 0).unwrap_or_else(|| {
        notes.add(directive, "left out: expected a time such as 60s");
        READ_TIMEOUT_MS
    })
}

/// The times of a read timeout that differ from those that hold without it.
fn read_times(ms: u64, (head, idle): (u64, u64)) -> Vec<String> {
    let mut times = Vec::new();
    if ms != head {
        times.push(format!("response_header = {}", time(ms)));
    }
    if ms != idle {
        times.push(format!("idle = {}", time(ms)));
    }
    times
}

/// `[server.limits]`: what holds for all servers.
pub(super) fn server_limits(http: &[Directive], notes: &mut Notes) -> String {
    format!("\n[server.limits]\nbody_bytes = {}\n", size(body_bytes(&[http], notes)))
}

/// `timeouts` of all upstreams.
pub(super) fn upstream_timeouts(http: &[Directive], notes: &mut Notes) -> Option<String> {
    let mut times = read_times(read_timeout(&[http], notes), (RESPONSE_HEADER_MS, IDLE_MS));
    if let Some(directive) = nearest(&[http], "proxy_connect_timeout") {
        match milliseconds(&directive.words).filter(|ms| *ms > 0) {
            Some(ms) => times.push(format!("connect = {}", time(ms))),
            None => notes.add(directive, "left out: expected a time such as 3s"),
        }
    }
    (!times.is_empty()).then(|| format!("{{ {} }}", times.join(", ")))
}

/// What a route is told besides, as lines. `around` are the blocks that it is in, the innermost
/// first and `http` last.
pub(super) fn of_route(
    around: &[&[Directive]],
    http: &[Directive],
    is_proxied: bool,
    notes: &mut Notes,
) -> String {
    let mut lines = String::new();
    let own = body_bytes(around, notes);
    if own != body_bytes(&[http], notes) {
        let _ = writeln!(lines, "body_bytes = {}", size(own));
    }
    if !is_proxied {
        for directive in all(around, "add_header") {
            notes.add(directive, "left out: `headers` of `respond` has fields of its own");
        }
        return lines;
    }
    let general = read_timeout(&[http], notes);
    let times = read_times(read_timeout(around, notes), (general, general));
    if !times.is_empty() {
        let _ = writeln!(lines, "timeouts = {{ {} }}", times.join(", "));
    }
    let inner = around.iter().filter(|block| !std::ptr::eq(**block, http));
    for directive in inner.flat_map(|block| block.iter()) {
        if directive.name == "proxy_connect_timeout" {
            notes.add(directive, "left out: an upstream has one time to connect");
        }
    }
    if let Some(compress) = compress(around, notes) {
        let _ = writeln!(lines, "compress = {compress}");
    }
    if let Some(fields) = response_headers(around, notes) {
        let _ = writeln!(lines, "response_headers = {fields}");
    }
    lines
}

/// `gzip on`, with the types that nginx compresses.
fn compress(around: &[&[Directive]], notes: &mut Notes) -> Option<String> {
    nearest(around, "gzip").filter(|one| one.word(0) == "on")?;
    let mut parts = vec!["encodings = [\"gzip\"]".to_owned()];
    let named = nearest(around, "gzip_types");
    let words = named.map_or(&[][..], |one| one.words.as_slice());
    let mut types = vec!["text/html"];
    if words.iter().any(|word| word == "*") {
        types = ALL_TYPES.to_vec();
    } else {
        types.extend(words.iter().map(String::as_str).filter(|word| *word != "text/html"));
    }
    if types.len() > TYPES_MAX {
        types.truncate(TYPES_MAX);
        named.inspect(|one| notes.add(one, "left out: more than 64 types"));
    }
    let types: Vec<String> = types.into_iter().map(string).collect();
    parts.push(format!("types = [{}]", types.join(", ")));
    let least = nearest(around, "gzip_min_length").and_then(|one| bytes(one.word(0)));
    parts.push(format!("min_bytes = {}", size(least.unwrap_or(COMPRESSED_BYTES_MIN))));
    Some(format!("{{ {} }}", parts.join(", ")))
}

/// `add_header` and `proxy_hide_header`.
fn response_headers(around: &[&[Directive]], notes: &mut Notes) -> Option<String> {
    let (mut added, mut removed): (Vec<(String, Vec<String>)>, Vec<String>) = Default::default();
    for directive in all(around, "proxy_hide_header") {
        let name = directive.word(0).to_ascii_lowercase();
        if !is_field(&name, "") {
            notes.add(directive, "left out: no field of a header");
        } else if is_reserved_field(&name) {
            notes.add(directive, "left out: no route changes this field in Weir");
        } else if !removed.contains(&name) {
            removed.push(name);
        }
    }
    for directive in all(around, "add_header") {
        let (name, value) = (directive.word(0), directive.word(1));
        if is_reserved_field(&name.to_ascii_lowercase()) {
            notes.add(directive, "left out: no route changes this field in Weir");
            continue;
        }
        if !is_field(name, value) {
            notes.add(directive, "left out: no field of a header");
            continue;
        }
        if value.contains('$') {
            notes.add(directive, "LEFT OUT: a value has no variables in Weir");
            continue;
        }
        if value.is_empty() {
            continue;
        }
        if !directive.has("always") {
            notes.add(directive, "Weir adds it to every response, also to errors");
        }
        match added.iter_mut().find(|(known, _)| known.eq_ignore_ascii_case(name)) {
            Some((_, values)) => values.push(value.to_owned()),
            None => added.push((name.to_owned(), vec![value.to_owned()])),
        }
    }
    let mut parts = Vec::new();
    if !added.is_empty() {
        let fields: Vec<String> = added
            .iter()
            .map(|(name, values)| {
                let values: Vec<String> = values.iter().map(|value| string(value)).collect();
                match values.as_slice() {
                    [value] => format!("{} = {value}", string(name)),
                    several => format!("{} = [{}]", string(name), several.join(", ")),
                }
            })
            .collect();
        parts.push(format!("add = {{ {} }}", fields.join(", ")));
    }
    if !removed.is_empty() {
        let names: Vec<String> = removed.iter().map(|name| string(name)).collect();
        parts.push(format!("remove = [{}]", names.join(", ")));
    }
    (!parts.is_empty()).then(|| format!("{{ {} }}", parts.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_times_are_those_of_nginx() {
        for (text, expected) in [
            ("5m", Some(5 << 20)),
            ("8K", Some(8 << 10)),
            ("1g", Some(1 << 30)),
            ("100", Some(100)),
            ("0", Some(0)),
            ("5mb", None),
            ("m", None),
            ("", None),
        ] {
            assert_eq!(bytes(text), expected, "{text}");
        }
        for (text, expected) in [
            ("60", Some(60_000)),
            ("60s", Some(60_000)),
            ("5m", Some(300_000)),
            ("1h 30m", Some(5_400_000)),
            ("500ms", Some(500)),
            ("1M", Some(30 * 86_400_000)),
            ("s", None),
            ("5x", None),
        ] {
            // In quotes, a time with blanks is one word.
            assert_eq!(milliseconds(&[text.to_owned()]), expected, "{text}");
        }
        assert_eq!([size(5 << 20), size(1_000), size(0)], ["\"5MiB\"", "\"1000B\"", "\"0B\""]);
        assert_eq!([time(1_500), time(u64::MAX)], ["\"1500ms\"", "\"86400s\""]);
    }
}
