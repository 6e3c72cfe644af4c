//! Weir's own access log as text: `TIME  INFO request name=value ...`. Its JSON is read by `json`.

use std::borrow::Cow;

use serde_json::Value;

use super::line::{LeftOut, Line};
use super::time;

/// What follows the time in lines about requests.
const MARK: &str = "  INFO request ";
/// How the names of header fields begin.
const HEADER: &str = "header.";
/// The length from which a value may have been cut when it was logged, in bytes.
const VALUE_BYTES_MAX: usize = 1_024;
/// The number of values from which some may be missing.
const VALUES_MAX: usize = 3;
/// How a value begins that is logged as a digest, and what follows: hexadecimal digits.
const DIGEST: &str = "digest:";
const DIGEST_DIGITS: usize = 32;

/// Whether it is a line of Weir's own log.
pub(super) fn is(text: &str) -> bool {
    text.contains(MARK) && text.split_once(' ').is_some_and(|(at, _)| time::rfc3339(at).is_some())
}

/// The route of requests that match none, and of those that were rejected before one was looked
/// for.
const NO_ROUTE: &str = "none";
/// How Weir answers the latter, whatever its configuration.
const OF_REJECTED: [u16; 4] = [400, 414, 431, 501];
/// How it answers requests that should have come over https, before it looks for a route.
const TO_HTTPS: u16 = 308;
/// How it answers an authority that checks a name, before it looks for a route.
const CHALLENGE: u16 = 200;
/// What a listener for calls serves, in the field `serves`.
const DECISIONS: &str = "decisions";

/// What the fields of a line say, whether it is text or JSON.
#[derive(Default)]
pub(super) struct LineFields<'l> {
    line: Line<'l>,
    decision: Option<Cow<'l, str>>,
    has_no_route: bool,
    /// The request came to a listener that serves calls for decisions.
    is_call: bool,
    /// The line names the upstream's host.
    was_sent: bool,
    /// The line says what went wrong on the way.
    has_failed: bool,
}

/// Whether a value is what the client sent: neither cut, nor of bytes that are not text.
fn is_whole(value: &str) -> bool {
    value.len() < VALUE_BYTES_MAX && !value.contains(char::REPLACEMENT_CHARACTER)
}

impl<'l> LineFields<'l> {
    /// A line that was written at this moment.
    pub(super) fn at(stamp_us: Option<i64>) -> Self {
        let line = Line { stamp_us, stamp_is_end: true, ..Line::default() };
        Self { line, ..Self::default() }
    }

    pub(super) fn tell(&mut self, name: &str, value: Cow<'l, str>) {
        let line = &mut self.line;
        let us = |value: &str| value.parse().ok().map(|ms: f64| (ms.max(0.0) * 1e3).round() as u64);
        match name {
            "client" => line.client = Some(value),
            "method" => line.method = Some(value),
            "host" => line.host = Some(value),
            "path" => line.target = Some(value),
            "query" if !is_whole(&value) => line.no_queries = true,
            "query" => line.query = Some(value),
            "protocol" => line.version = Some(value),
            // Only requests over TLS have it.
            "tls_version" => line.scheme = Some(Cow::Borrowed("https")),
            "referer" | "user_agent" if !is_whole(&value) => {}
            "referer" => line.add_header("referer".into(), value),
            "user_agent" => line.add_header("user-agent".into(), value),
            "status" => line.status = value.parse().ok(),
            "bytes" => line.bytes = value.parse().ok(),
            "bytes_in" => line.request_bytes = value.parse().ok(),
            "duration_ms" => line.took_us = us(&value),
            "delayed_ms" => line.delayed_us = us(&value).unwrap_or(0),
            "upstream" | "upstream_ms" => self.was_sent = true,
            "failure" => self.has_failed = true,
            "decision" => self.decision = Some(value),
            "route" => self.has_no_route = value == NO_ROUTE,
            "serves" => self.is_call |= value == DECISIONS,
            // Only such lines have them. Those of earlier versions do not say what is served.
            "caller" | "domain" | "descriptors" | "hits" => self.is_call = true,
            _ => self.tell_header(name, [value]),
        }
    }

    /// A field that is a list, or that has no value.
    pub(super) fn tell_list(&mut self, name: &str, values: Vec<Value>) {
        let text = |value| match value {
            Value::String(text) => Cow::Owned(text),
            other => Cow::Owned(other.to_string()),
        };
        self.tell_header(name, values.into_iter().map(text).collect::<Vec<_>>());
    }

    /// A header field of the request, one without a value if it was not sent. It is left out if one
    /// of its values is not what the client sent: cut, or of bytes that are not text; or if there
    /// may have been more.
    fn tell_header(&mut self, name: &str, values: impl AsRef<[Cow<'l, str>]>) {
        let Some(name) = name.strip_prefix(HEADER) else { return };
        let values = values.as_ref();
        if values.len() >= VALUES_MAX || !values.iter().all(|value| is_whole(value)) {
            return;
        }
        let line = &mut self.line;
        if values.is_empty() {
            line.add_header(Cow::Owned(name.to_owned()), Cow::Borrowed(""));
        }
        for value in values {
            line.has_digests |= is_digest(value);
            line.add_header(Cow::Owned(name.to_owned()), value.clone());
        }
    }

    pub(super) fn line(self) -> Line<'l> {
        let was_refused = match self.decision.as_deref() {
            Some("refused" | "denied" | "unavailable") => true,
            // A policy failed. `on_policy_error` may have let the request through.
            Some("failed") => self.line.status == Some(503) && !self.was_sent && !self.has_failed,
            _ => false,
        };
        let is_unrouted = self.has_no_route && self.decision.is_none();
        let left_out = match self.line.status {
            _ if self.is_call => Some(LeftOut::Call),
            Some(TO_HTTPS) if is_unrouted => Some(LeftOut::ToHttps),
            Some(CHALLENGE) if is_unrouted => Some(LeftOut::NotRequest),
            Some(status) if is_unrouted && OF_REJECTED.contains(&status) => Some(LeftOut::Rejected),
            _ => None,
        };
        Line { was_refused, left_out, ..self.line }
    }
}

/// Whether a value of a header field is logged as a digest.
pub(super) fn is_digest(value: &str) -> bool {
    value.strip_prefix(DIGEST).is_some_and(|digits| {
        digits.len() == DIGEST_DIGITS && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
    })
}

/// # Errors
/// What is wrong with the line.
pub(super) fn read(text: &str) -> Result<Line<'_>, Cow<'static, str>> {
    let Some((at, mut rest)) = text.split_once(MARK) else {
        return Ok(Line::of_nothing());
    };
    let mut told = LineFields::at(time::rfc3339(at));
    while !rest.is_empty() {
        let (name, after) = rest.split_once('=').ok_or("a name without a value")?;
        if after.starts_with(['"', '[', '{']) {
            let (value, after) = quoted(after).ok_or("a quoted value without an end")?;
            rest = after;
            match value {
                Value::String(text) => told.tell(name, Cow::Owned(text)),
                Value::Array(values) => told.tell_list(name, values),
                _ => {}
            }
        } else {
            let end = after.find(' ').unwrap_or(after.len());
            let (value, after) = after.split_at_checked(end).unwrap_or((after, ""));
            rest = after;
            told.tell(name, Cow::Borrowed(value));
        }
        rest = rest.strip_prefix(' ').unwrap_or(rest);
    }
    Ok(told.line())
}

/// Reads what JSON puts into quotes, lists and objects; also returns what follows it.
fn quoted(text: &str) -> Option<(Value, &str)> {
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<Value>();
    let value = values.next()?.ok()?;
    Some((value, text.get(values.byte_offset()..)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(fields: &str) -> Line<'_> {
        let text = format!("2015-05-17T10:05:03.000Z  INFO request {fields}");
        let line: &'static str = Box::leak(text.into_boxed_str());
        super::read(line).unwrap()
    }

    #[test]
    fn fields_that_an_operator_chooses_are_read() {
        let line = read(
            "client=192.0.2.1 path=/a query=\"b=1\" protocol=HTTP/2 tls_version=TLSv1.3 bytes_in=7 \
             referer=http://c/ user_agent=\"d e\" duration_ms=30.000 delayed_ms=20.500",
        );
        assert_eq!((line.query.as_deref(), line.version.as_deref()), (Some("b=1"), Some("HTTP/2")));
        assert_eq!((line.scheme.as_deref(), line.request_bytes), (Some("https"), Some(7)));
        assert_eq!((line.took_us, line.delayed_us), (Some(30_000), 20_500));
        let headers = [("referer".into(), "http://c/".into()), ("user-agent".into(), "d e".into())];
        assert_eq!(line.headers.as_slice(), headers);
    }

    fn headers(fields: &str) -> Vec<(String, String)> {
        let line = read(fields);
        let owned =
            |(name, value): &(Cow<'_, str>, Cow<'_, str>)| (name.to_string(), value.to_string());
        line.headers.iter().map(owned).collect()
    }

    #[test]
    fn header_fields_are_those_that_the_client_sent() {
        let pair = |value: &str| ("x-key".to_owned(), value.to_owned());
        assert_eq!(headers("header.x-key=a status=200"), [pair("a")]);
        assert_eq!(headers("header.x-key=\"a \\\"b\" status=200"), [pair("a \"b")]);
        assert_eq!(headers("header.x-key=\"[\\\"a\\\"]\""), [pair("[\"a\"]")]);
        assert_eq!(headers("header.x-key=[\"a\",\"b\"] status=200"), [pair("a"), pair("b")]);
        // It was not sent.
        assert_eq!(headers("header.x-key= status=200"), [pair("")]);
        assert_eq!(read("header.x-key= status=200").status, Some(200));
        // Not all of it is in the log.
        let cut = "x".repeat(VALUE_BYTES_MAX);
        assert_eq!(headers(&format!("header.x-key={}", &cut[1..])), [pair(&cut[1..])]);
        for fields in [format!("header.x-key={cut}"), format!("header.x-key=[\"a\",\"{cut}\"]")] {
            assert_eq!(headers(&fields), []);
        }
        assert_eq!(headers("header.x-key=\"a\u{fffd}\""), []);
        assert_eq!(headers("header.x-key=[\"a\",\"b\",\"c\"]"), []);
        for name in ["user_agent", "referer"] {
            assert_eq!(headers(&format!("{name}={cut}")), [], "{name}");
            assert_eq!(headers(&format!("{name}=\"a\u{fffd}\"")), [], "{name}");
        }
        let query = |value: &str| {
            let written = format!("query={value}");
            let line = read(&written);
            (line.query.as_deref().map(str::len), line.no_queries)
        };
        assert_eq!((query("a=b"), query(&cut)), ((Some(3), false), (None, true)));
        // No header fields.
        assert_eq!(headers("route=header.a refused_by=[\"a\"] labels={\"header.a\":\"b\"}"), []);
    }

    #[test]
    fn a_digest_is_known_by_its_form() {
        let digest = "digest:0123456789abcdef0123456789abcdef";
        assert!(read(&format!("header.x-key={digest}")).has_digests);
        for other in ["digest:", "digest:abc", &digest[7..], &digest.replace('f', "g")] {
            assert!(!read(&format!("header.x-key={other}")).has_digests, "{other}");
        }
    }

    #[test]
    fn a_request_that_was_answered_before_a_route_was_found_is_known() {
        let (rejected, to_https) = (Some(LeftOut::Rejected), Some(LeftOut::ToHttps));
        for (fields, left_out) in [
            ("method=- path=\"\" route=none status=400", rejected),
            ("method=GET path=/a route=none status=414", rejected),
            ("method=GET path=/a route=none status=404", None),
            ("method=GET path=/a route=none status=413", None),
            ("method=GET path=/a route=none status=414 decision=admitted", None),
            // Its body was too large.
            ("method=GET path=/a route=api status=413", None),
            ("method=GET path=/a route=api status=400 upstream=192.0.2.9:80", None),
            ("method=GET path=/a status=400", None),
            ("method=GET path=/a route=none status=308", to_https),
            ("method=GET path=/a route=moved status=308", None),
            ("method=OPTIONS path=* route=none status=204", None),
            (
                "method=GET path=/.well-known/acme-challenge/a route=none status=200",
                Some(LeftOut::NotRequest),
            ),
        ] {
            assert_eq!(read(fields).left_out, left_out, "{fields}");
        }
    }

    #[test]
    fn calls_for_decisions_are_no_requests() {
        for (fields, is_call) in [
            ("method=POST path=/v1/settle serves=decisions route=none status=200", true),
            ("method=POST path=/v1/decide serves=decisions route=none status=401", true),
            // Lines of versions that do not say what is served.
            ("method=POST path=/v1/decide domain=mail route=mail status=429", true),
            ("method=POST path=/json caller=envoy route=none status=403", true),
            ("method=POST path=/v1/take hits=3 route=mail status=200", true),
            // Another proxy asks about a request of its own.
            ("method=GET path=/a serves=forward_auth route=api status=200", false),
            ("method=POST path=/v1/decide route=api status=200", false),
        ] {
            let left_out = read(fields).left_out;
            assert_eq!(left_out, is_call.then_some(LeftOut::Call), "{fields}");
        }
    }

    #[test]
    fn a_request_that_a_failed_policy_let_through_was_not_refused() {
        for (fields, was_refused) in [
            ("status=429 decision=refused", true),
            ("status=403 decision=denied", true),
            ("status=503 decision=unavailable", true),
            ("status=503 decision=failed", true),
            ("status=200 decision=failed", false),
            ("status=404 decision=failed", false),
            ("status=503 upstream=192.0.2.9:80 decision=failed", false),
            ("status=503 decision=failed failure=shutdown", false),
            ("status=429 decision=admitted", false),
        ] {
            assert_eq!(read(fields).was_refused, was_refused, "{fields}");
        }
    }
}
