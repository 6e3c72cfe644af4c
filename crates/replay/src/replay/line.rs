//! A request as a line of a log records it, borrowed from that line. Knows no format.

use std::borrow::Cow;

use smallvec::SmallVec;

/// Maximum number of header fields that are taken from a line.
pub(super) const HEADERS_MAX: usize = 64;

/// A request of a log. What the line does not say is `None`, or false.
#[derive(Debug, Default)]
pub(super) struct Line<'l> {
    /// Microseconds since 1970, as the line says.
    pub(super) stamp_us: Option<i64>,
    /// Whether that is when the request had ended, and not when it came.
    pub(super) stamp_is_end: bool,
    pub(super) client: Option<Cow<'l, str>>,
    pub(super) method: Option<Cow<'l, str>>,
    /// Path and query, or an absolute URI.
    pub(super) target: Option<Cow<'l, str>>,
    /// A query that the log keeps separate from the path.
    pub(super) query: Option<Cow<'l, str>>,
    /// The log leaves queries out.
    pub(super) no_queries: bool,
    /// `HTTP/1.1`.
    pub(super) version: Option<Cow<'l, str>>,
    pub(super) host: Option<Cow<'l, str>>,
    /// `http` or `https`.
    pub(super) scheme: Option<Cow<'l, str>>,
    pub(super) status: Option<u16>,
    /// The bytes of the reply.
    pub(super) bytes: Option<u64>,
    /// The bytes of the request's body.
    pub(super) request_bytes: Option<u64>,
    pub(super) took_us: Option<u64>,
    /// The part of `took_us` for which a limiter held it back.
    pub(super) delayed_us: u64,
    /// Header fields of the request.
    pub(super) headers: SmallVec<[(Cow<'l, str>, Cow<'l, str>); 2]>,
    /// Some of their values are digests.
    pub(super) has_digests: bool,
    /// The line has all header fields of the request.
    pub(super) all_headers: bool,
    /// The line says that a limiter refused it: the upstream has never answered.
    pub(super) was_refused: bool,
    /// Why it is not replayed, if it is not.
    pub(super) left_out: Option<LeftOut>,
}

/// Why a line is not replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LeftOut {
    /// It is not about a request.
    NotRequest,
    /// It is about a call for a decision.
    Call,
    /// Weir redirected the request to https before it looked for a route.
    ToHttps,
    /// Weir rejected the request before a route was found; the log does not say why.
    Rejected,
}

impl<'l> Line<'l> {
    /// A line that is not about a request.
    pub(super) fn of_nothing() -> Self {
        Self { left_out: Some(LeftOut::NotRequest), ..Self::default() }
    }

    /// Splits `GET /a HTTP/1.1`. A target may contain blanks, as some clients send them.
    pub(super) fn set_request(&mut self, request: &'l str) -> Result<(), &'static str> {
        let (method, rest) =
            request.split_once(' ').ok_or("no request line such as \"GET / HTTP/1.1\"")?;
        let (target, version) = match rest.rsplit_once(' ') {
            Some((target, version)) if version.starts_with("HTTP/") => (target, Some(version)),
            _ => (rest, None),
        };
        self.method = Some(Cow::Borrowed(method));
        self.target = Some(Cow::Borrowed(target.trim_end_matches(' ')));
        self.version = version.map(Cow::Borrowed);
        Ok(())
    }

    pub(super) fn add_header(&mut self, name: Cow<'l, str>, value: Cow<'l, str>) {
        if self.headers.len() < HEADERS_MAX {
            self.headers.push((name, value));
        }
    }
}

/// Decodes `\xHH`, and a backslash before any other character, as nginx and Apache write them.
pub(super) fn unescaped(text: &str) -> Cow<'_, str> {
    if !text.contains('\\') {
        return Cow::Borrowed(text);
    }
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((byte, after)) = rest.split_first() {
        rest = after;
        if *byte != b'\\' {
            out.push(*byte);
            continue;
        }
        let hex = match after {
            [b'x', high, low, ..] => {
                char::from(*high).to_digit(16).zip(char::from(*low).to_digit(16))
            }
            _ => None,
        };
        if let Some((high, low)) = hex {
            out.push(u8::try_from(high * 16 + low).unwrap_or(b'?'));
            rest = after.get(3..).unwrap_or_default();
        } else if let Some((next, after)) = after.split_first() {
            out.push(match next {
                b'n' => b'\n',
                b't' => b'\t',
                b'r' => b'\r',
                other => *other,
            });
            rest = after;
        }
    }
    Cow::Owned(String::from_utf8_lossy(&out).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_line_is_split_at_its_ends() {
        let split = |text: &'static str| {
            let mut line = Line::default();
            line.set_request(text).map(|()| {
                let text = |part: Option<Cow<'_, str>>| part.map(Cow::into_owned);
                (text(line.method).unwrap(), text(line.target).unwrap(), text(line.version))
            })
        };
        let is = |method: &str, target: &str, version: Option<&str>| {
            Ok((method.to_owned(), target.to_owned(), version.map(str::to_owned)))
        };
        assert_eq!(split("GET /a HTTP/1.0"), is("GET", "/a", Some("HTTP/1.0")));
        assert_eq!(split("GET /a"), is("GET", "/a", None));
        assert_eq!(split("GET /a b HTTP/1.1"), is("GET", "/a b", Some("HTTP/1.1")));
        assert!(split("-").is_err());
    }

    #[test]
    fn escapes_are_those_of_nginx_and_apache() {
        assert_eq!(unescaped(r#"a\x22b\"c\\d\xc3\xa9"#), "a\"b\"c\\d\u{e9}");
        assert_eq!(unescaped("plain"), "plain");
        assert_eq!(unescaped(r"end\"), "end");
    }
}
