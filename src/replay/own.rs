//! Weir's own access log as text: `TIME  INFO request name=value ...`. Its JSON is read by `json`.

use std::borrow::Cow;

use super::line::Line;
use super::time;

/// What follows the time in lines about requests.
const MARK: &str = "  INFO request ";

/// Whether it is a line of Weir's own log.
pub(super) fn is(text: &str) -> bool {
    text.contains(MARK) && text.split_once(' ').is_some_and(|(at, _)| time::rfc3339(at).is_some())
}

/// What the fields of a line tell, whether it is text or JSON.
#[derive(Default)]
pub(super) struct Told<'l> {
    line: Line<'l>,
    decision: Option<Cow<'l, str>>,
    /// The line names the upstream's host.
    was_sent: bool,
    /// The line says what went wrong on the way.
    has_failed: bool,
}

impl<'l> Told<'l> {
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
            "query" => line.query = Some(value),
            "protocol" => line.version = Some(value),
            // Only requests over TLS have it.
            "tls_version" => line.scheme = Some(Cow::Borrowed("https")),
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
            _ => {}
        }
    }

    pub(super) fn line(self) -> Line<'l> {
        let was_refused = match self.decision.as_deref() {
            Some("refused" | "denied" | "unavailable") => true,
            // A policy failed. `on_policy_error` may have let the request through.
            Some("failed") => self.line.status == Some(503) && !self.was_sent && !self.has_failed,
            _ => false,
        };
        Line { was_refused, ..self.line }
    }
}

/// # Errors
/// What is wrong with the line.
pub(super) fn read(text: &str) -> Result<Line<'_>, Cow<'static, str>> {
    let Some((at, mut rest)) = text.split_once(MARK) else {
        return Ok(Line { skip: true, ..Line::default() });
    };
    let mut told = Told::at(time::rfc3339(at));
    while !rest.is_empty() {
        let (name, after) = rest.split_once('=').ok_or("a name without a value")?;
        let (value, after) = value(after).ok_or("a quoted value without an end")?;
        rest = after.strip_prefix(' ').unwrap_or(after);
        told.tell(name, value);
    }
    Ok(told.line())
}

/// A bare word, or what JSON puts into quotes, lists and objects; and what follows it.
fn value(text: &str) -> Option<(Cow<'_, str>, &str)> {
    if !text.starts_with(['"', '[', '{']) {
        let end = text.find(' ').unwrap_or(text.len());
        let (value, rest) = text.split_at_checked(end)?;
        return Some((Cow::Borrowed(value), rest));
    }
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<serde_json::Value>();
    let value = values.next()?.ok()?;
    let rest = text.get(values.byte_offset()..)?;
    let value = match value {
        serde_json::Value::String(text) => text,
        other => other.to_string(),
    };
    Some((Cow::Owned(value), rest))
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
