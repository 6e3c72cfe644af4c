//! Lines of text that a pattern describes, in the way of nginx' `log_format`: text, and variables
//! that reach to the next piece of text.

use std::borrow::Cow;

use memchr::memmem;

use super::line::{Line, unescaped};
use super::time;

/// The common log format of NCSA, and the combined one of Apache and nginx.
pub(super) const COMMON: &str =
    "$remote_addr $identity $remote_user [$time_local] \"$request\" $status $body_bytes_sent";
/// What combined has beyond common.
pub(super) const COMBINED: &str = "$remote_addr $identity $remote_user [$time_local] \"$request\" \
     $status $body_bytes_sent \"$http_referer\" \"$http_user_agent\"";

/// A line's shape.
#[derive(Debug)]
pub(super) struct Pattern {
    /// What comes before the first variable.
    start: String,
    parts: Vec<Part>,
    /// Whether a line may go on after the last variable.
    open: bool,
}

#[derive(Debug)]
struct Part {
    variable: Variable,
    /// What ends it; empty at the end of the line.
    until: memmem::Finder<'static>,
    /// It stands between quotes, inside which a quote is escaped.
    quoted: bool,
}

/// What a variable tells.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Variable {
    Client,
    TimeLocal,
    TimeIso,
    Milliseconds,
    Request,
    Method,
    Target,
    Path,
    Query,
    Version,
    Status,
    Bytes,
    RequestTime,
    Host,
    Scheme,
    Header(String),
    /// Not of interest here.
    Other,
}

impl Variable {
    fn named(name: &str) -> Self {
        match name {
            "remote_addr" | "realip_remote_addr" => Self::Client,
            "time_local" => Self::TimeLocal,
            "time_iso8601" => Self::TimeIso,
            "msec" => Self::Milliseconds,
            "request" => Self::Request,
            "request_method" => Self::Method,
            "request_uri" => Self::Target,
            "uri" | "document_uri" => Self::Path,
            "args" | "query_string" => Self::Query,
            "server_protocol" => Self::Version,
            "status" => Self::Status,
            "body_bytes_sent" | "bytes_sent" | "bytes" => Self::Bytes,
            "request_time" => Self::RequestTime,
            "host" | "http_host" => Self::Host,
            "scheme" => Self::Scheme,
            _ => match name.strip_prefix("http_") {
                Some(field) => Self::Header(field.replace('_', "-")),
                None => Self::Other,
            },
        }
    }
}

impl Pattern {
    /// # Errors
    /// What is wrong with it.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let mut pieces = text.split('$');
        let start = pieces.next().unwrap_or_default().to_owned();
        let mut parts = Vec::new();
        let mut before = start.clone();
        let mut pieces = pieces.peekable();
        while let Some(piece) = pieces.next() {
            let (name, until) = named(piece)?;
            if until.is_empty() && pieces.peek().is_some() {
                return Err(format!(
                    "found ${name} directly before the next variable, expected text between them"
                ));
            }
            parts.push(Part {
                variable: Variable::named(name),
                until: memmem::Finder::new(until).into_owned(),
                quoted: before.ends_with('"') && until.starts_with('"'),
            });
            before = until.to_owned();
        }
        let pattern = Self { start, parts, open: false };
        pattern.check()?;
        Ok(pattern)
    }

    /// Whether lines may go on after the last variable, as formats with more fields than combined
    /// do.
    pub(super) fn open(self) -> Self {
        Self { open: true, ..self }
    }

    fn check(&self) -> Result<(), String> {
        let has = |any: &[Variable]| self.parts.iter().any(|part| any.contains(&part.variable));
        let needed: [(&[Variable], &str); 3] = [
            (&[Variable::Client], "$remote_addr"),
            (
                &[Variable::TimeLocal, Variable::TimeIso, Variable::Milliseconds],
                "$time_local, $time_iso8601 or $msec",
            ),
            (
                &[Variable::Request, Variable::Target, Variable::Path],
                "$request, or $request_method with $request_uri or $uri",
            ),
        ];
        match needed.into_iter().find(|(any, _)| !has(any)) {
            Some((_, name)) => Err(format!("found a pattern without {name}, expected one with it")),
            None => Ok(()),
        }
    }

    /// # Errors
    /// Where the line differs.
    pub(super) fn read<'l>(&self, text: &'l str) -> Result<Line<'l>, Cow<'static, str>> {
        let mut line = Line { stamp_is_end: true, ..Line::default() };
        let mut rest = text.strip_prefix(self.start.as_str()).ok_or("another shape of line")?;
        for (index, part) in self.parts.iter().enumerate() {
            let is_last = index + 1 == self.parts.len();
            let (value, after) = part.split(rest, is_last).ok_or("fewer fields than expected")?;
            part.variable.tell(value, &mut line)?;
            rest = after;
        }
        if !rest.is_empty() && !self.open {
            return Err("more text than expected at its end".into());
        }
        Ok(line)
    }
}

/// The variable's name at the beginning of `piece`, `NAME` or `{NAME}`, and the text behind it.
fn named(piece: &str) -> Result<(&str, &str), String> {
    if let Some(rest) = piece.strip_prefix('{') {
        return rest.split_once('}').ok_or_else(|| format!("found ${piece:?}, expected `}}`"));
    }
    let end = piece.find(|byte: char| !byte.is_ascii_alphanumeric() && byte != '_');
    let (name, until) = piece.split_at_checked(end.unwrap_or(piece.len())).unwrap_or((piece, ""));
    if name.is_empty() {
        return Err(format!("found `$` before {until:?}, expected a variable such as $status"));
    }
    Ok((name, until))
}

impl Part {
    /// Its value, and what follows its end.
    fn split<'t>(&self, text: &'t str, is_last: bool) -> Option<(&'t str, &'t str)> {
        let until = self.until.needle();
        if until.is_empty() {
            // A number at the end of an open line ends with it or at a blank.
            let end = text.find(' ').unwrap_or(text.len());
            return text.split_at_checked(if is_last { end } else { text.len() });
        }
        let mut from = 0;
        loop {
            let found = from + self.until.find(text.as_bytes().get(from..)?)?;
            let value = text.get(..found)?;
            let slashes = value.bytes().rev().take_while(|byte| *byte == b'\\').count();
            if !self.quoted || slashes.is_multiple_of(2) {
                return Some((value, text.get(found + until.len()..)?));
            }
            from = found + 1;
        }
    }
}

impl Variable {
    fn tell<'l>(&self, value: &'l str, line: &mut Line<'l>) -> Result<(), Cow<'static, str>> {
        let known = Some(value).filter(|value| !value.is_empty() && *value != "-");
        let stamp = |us: Option<i64>, expected: &str| {
            us.map(Some).ok_or_else(|| format!("found the time {value:?}, expected {expected}"))
        };
        match self {
            Self::Client => line.client = known.map(Cow::Borrowed),
            Self::TimeLocal => {
                line.stamp_us = stamp(time::common(value), "17/May/2015:10:05:03 +0000")?;
            }
            Self::TimeIso => line.stamp_us = stamp(time::rfc3339(value), "2015-05-17T10:05:03Z")?,
            Self::Milliseconds => line.stamp_us = stamp(time::seconds(value), "1431857103.123")?,
            Self::Request => {
                line.set_request(value)?;
                if let Some(Cow::Borrowed(target)) = line.target {
                    line.target = Some(unescaped(target));
                }
            }
            Self::Method => line.method = known.map(Cow::Borrowed),
            Self::Target | Self::Path => line.target = known.map(unescaped),
            Self::Query => line.query = known.map(unescaped),
            Self::Version => line.version = known.map(Cow::Borrowed),
            Self::Status => {
                line.status = known
                    .map(|text| text.parse().map_err(|_| format!("found the status {text:?}")))
                    .transpose()?;
            }
            Self::Bytes => line.bytes = known.map_or(Some(0), |text| text.parse().ok()),
            Self::RequestTime => {
                line.took_us = known.and_then(time::seconds).and_then(|us| u64::try_from(us).ok());
            }
            Self::Host => line.host = known.map(Cow::Borrowed),
            Self::Scheme => line.scheme = known.map(Cow::Borrowed),
            Self::Header(name) => {
                // The log has the field: without a value, the request had none.
                let value = known.map(unescaped);
                line.add_header(Cow::Owned(name.clone()), value.unwrap_or_default());
            }
            Self::Other => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_is_read_as_nginx_writes_it() {
        let pattern = Pattern::parse(
            "${remote_addr}|$time_iso8601|\"$request\"|$status|$request_time|$http_x_api_key|$upstream_addr",
        )
        .unwrap();
        let line = pattern
            .read(r#"10.0.0.1|2015-05-17T10:05:03Z|"GET /a\"|b HTTP/2.0"|204|0.250|k1|10.0.0.9:80"#)
            .unwrap();
        assert_eq!(line.client.as_deref(), Some("10.0.0.1"));
        assert_eq!((line.status, line.took_us), (Some(204), Some(250_000)));
        assert_eq!(line.target.as_deref(), Some("/a\"|b"));
        assert_eq!(line.headers.as_slice(), [("x-api-key".into(), "k1".into())]);
    }

    #[test]
    fn what_a_pattern_lacks_is_told() {
        for (pattern, told) in [
            ("$remote_addr $status", "without $time_local"),
            ("$remote_addr$status", "directly before"),
            ("[$time_local] \"$request\"", "without $remote_addr"),
            ("$", "expected a variable"),
        ] {
            let found = Pattern::parse(pattern).unwrap_err();
            assert!(found.contains(told), "{found}");
        }
    }

    #[test]
    fn a_line_of_another_shape_says_where() {
        let pattern = Pattern::parse(COMMON).unwrap();
        for (text, told) in [
            ("", "fewer fields"),
            ("a - - [yesterday] \"GET / HTTP/1.1\" 200 1", "the time"),
            ("a - - [17/May/2015:10:05:03 +0000] \"\\x16\\x03\" 400 1", "no request line"),
            ("a - - [17/May/2015:10:05:03 +0000] \"GET / HTTP/1.1\" ok 1", "the status"),
            ("a - - [17/May/2015:10:05:03 +0000] \"GET / HTTP/1.1\" 200 1 2", "more text"),
        ] {
            let found = pattern.read(text).unwrap_err();
            assert!(found.contains(told), "{text}: {found}");
        }
    }
}
