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

/// Whether the upstream was not asked, by the word of the access log.
pub(super) fn refuses(decision: &str) -> bool {
    matches!(decision, "refused" | "denied" | "unavailable" | "failed")
}

/// # Errors
/// What is wrong with the line.
pub(super) fn read(text: &str) -> Result<Line<'_>, Cow<'static, str>> {
    let Some((at, mut rest)) = text.split_once(MARK) else {
        return Ok(Line { skip: true, ..Line::default() });
    };
    let mut line = Line { stamp_is_end: true, no_queries: true, ..Line::default() };
    line.stamp_us = time::rfc3339(at);
    while !rest.is_empty() {
        let (name, after) = rest.split_once('=').ok_or("a name without a value")?;
        let (value, after) = value(after).ok_or("a quoted value without an end")?;
        rest = after.strip_prefix(' ').unwrap_or(after);
        match name {
            "client" => line.client = Some(value),
            "method" => line.method = Some(value),
            "path" => line.target = Some(value),
            "status" => line.status = value.parse().ok(),
            "bytes" => line.bytes = value.parse().ok(),
            "duration_ms" => {
                line.took_us = value.parse().ok().map(|ms: f64| (ms.max(0.0) * 1e3).round() as u64);
            }
            "decision" => line.was_refused = refuses(&value),
            "host" => line.host = Some(value),
            "user_agent" => line.add_header("user-agent".into(), value),
            _ => {}
        }
    }
    Ok(line)
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
