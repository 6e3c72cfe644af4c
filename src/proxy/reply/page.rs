//! A refusal body written by the operator or by a policy: a text with placeholders, each escaped
//! for its position. Knows no refusal.
//!
//! `{retry_after}` and the like are placeholders. Any other brace is text, so that JSON needs no
//! escaping. In JSON, a placeholder inside a string is escaped, and one outside becomes a whole
//! value: a number, a string, or `null` if there is no value.

use http::{HeaderValue, StatusCode};

use super::json;
use crate::proxy::forward::rules;
use crate::proxy::settings::RefusalPage;
use crate::telemetry::SettingError;

/// The statuses that a page may be for.
const STATUSES: std::ops::Range<u16> = 400..600;

/// A checked page.
#[derive(Debug)]
pub(in crate::proxy) struct Page {
    statuses: Vec<u16>,
    pub(in crate::proxy) content_type: HeaderValue,
    pieces: Vec<Piece>,
}

#[derive(Debug, PartialEq, Eq)]
enum Piece {
    Text(String),
    Value(Value, Escaping),
}

/// The value that a placeholder stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Value {
    Status,
    Title,
    Detail,
    RequestId,
    RetryAfter,
    When,
    Limit,
    Route,
}

/// How a value is escaped at its position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Escaping {
    Plain,
    Markup,
    JsonString,
    JsonValue,
}

/// The values of one refusal.
#[derive(Clone, Copy, Debug)]
pub(in crate::proxy) struct RefusalDetails<'a> {
    pub(in crate::proxy) status: StatusCode,
    pub(in crate::proxy) title: &'a str,
    pub(in crate::proxy) detail: &'a str,
    pub(in crate::proxy) request_id: &'a str,
    pub(in crate::proxy) retry_after_s: Option<u64>,
    /// The names of the limits that refused, separated by commas.
    pub(in crate::proxy) limits: &'a str,
    pub(in crate::proxy) route: &'a str,
}

const VALUES: [(&str, Value); 8] = [
    ("status", Value::Status),
    ("title", Value::Title),
    ("detail", Value::Detail),
    ("request_id", Value::RequestId),
    ("retry_after", Value::RetryAfter),
    ("when", Value::When),
    ("limit", Value::Limit),
    ("route", Value::Route),
];

impl Page {
    /// Checks a page written under the setting `at`.
    pub(in crate::proxy) fn build(
        written: &RefusalPage,
        at: &str,
        errors: &mut Vec<SettingError>,
    ) -> Option<Self> {
        let before = errors.len();
        for status in written.statuses.iter().filter(|status| !STATUSES.contains(status)) {
            errors.push(SettingError::new(
                format!("{at}.status"),
                status.to_string(),
                "400 to 599",
            ));
        }
        let plain = "text/plain; charset=utf-8";
        let content_type =
            rules::content_type(written.content_type.as_deref().unwrap_or(plain), at, errors)?;
        let format = Format::of(content_type.to_str().unwrap_or_default());
        let pieces = pieces(&written.body, format, false);
        match pieces {
            Ok(pieces) if errors.len() == before => {
                let page = Self { statuses: written.statuses.clone(), content_type, pieces };
                if format == Format::Json && !page.is_json() {
                    errors.push(SettingError::new(
                        format!("{at}.body"),
                        "a text that is not JSON once its placeholders are filled in",
                        "JSON, as `content_type` says",
                    ));
                    return None;
                }
                return Some(page);
            }
            Ok(_) => {}
            Err(unknown) => {
                let known: Vec<String> =
                    VALUES.iter().map(|(name, _)| format!("{{{name}}}")).collect();
                errors.push(SettingError::new(
                    format!("{at}.body"),
                    format!("the placeholder {{{unknown}}}"),
                    format!("one of {}; a brace with a blank after it is text", known.join(" ")),
                ));
            }
        }
        None
    }

    pub(in crate::proxy) fn is_for(&self, status: StatusCode) -> bool {
        self.statuses.contains(&status.as_u16())
    }

    /// The body.
    pub(in crate::proxy) fn fill(&self, details: RefusalDetails<'_>) -> Vec<u8> {
        fill(&self.pieces, details)
    }

    fn is_json(&self) -> bool {
        let details = |retry_after_s, text| RefusalDetails {
            status: StatusCode::TOO_MANY_REQUESTS,
            title: text,
            detail: text,
            request_id: text,
            retry_after_s,
            limits: text,
            route: text,
        };
        [details(None, ""), details(Some(1), "\"")]
            .into_iter()
            .all(|details| serde_json::from_slice::<serde_json::Value>(&self.fill(details)).is_ok())
    }
}

/// A policy's text of this media type, filled in. What looks like a placeholder and is none stays
/// as it is.
pub(in crate::proxy) fn fill_text(
    body: &str,
    media_type: &str,
    details: RefusalDetails<'_>,
) -> Vec<u8> {
    let pieces = pieces(body, Format::of(media_type), true).unwrap_or_default();
    fill(&pieces, details)
}

fn fill(pieces: &[Piece], details: RefusalDetails<'_>) -> Vec<u8> {
    let mut out = Vec::with_capacity(512);
    for piece in pieces {
        match piece {
            Piece::Text(text) => out.extend_from_slice(text.as_bytes()),
            Piece::Value(Value::Status, escaping) => {
                number(&mut out, *escaping, Some(details.status.as_u16().into()))
            }
            Piece::Value(Value::RetryAfter, escaping) => {
                number(&mut out, *escaping, details.retry_after_s)
            }
            Piece::Value(Value::When, escaping) => {
                text(&mut out, *escaping, &when(details.retry_after_s))
            }
            Piece::Value(value, escaping) => text(&mut out, *escaping, details.text(*value)),
        }
    }
    out
}

/// When to come back, in words: after "Try again", and never too early.
fn when(retry_after_s: Option<u64>) -> String {
    let Some(seconds) = retry_after_s else { return "later".to_owned() };
    let units = [("day", 86_400), ("hour", 3_600), ("minute", 60)];
    // A unit is used from twice its length, so that rounding up adds less than half.
    let unit = units.into_iter().find(|(_, length)| seconds >= 2 * length);
    let (name, length) = unit.unwrap_or(("second", 1));
    let count = seconds.div_ceil(length);
    format!("in {count} {name}{}", if count == 1 { "" } else { "s" })
}

impl<'a> RefusalDetails<'a> {
    fn text(&self, value: Value) -> &'a str {
        match value {
            Value::Title => self.title,
            Value::Detail => self.detail,
            Value::RequestId => self.request_id,
            Value::Limit => self.limits,
            Value::Route => self.route,
            Value::Status | Value::RetryAfter | Value::When => "",
        }
    }
}

/// The format of a body, by its content type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Plain,
    Markup,
    Json,
}

impl Format {
    fn of(content_type: &str) -> Self {
        let main = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        match main.rsplit(['/', '+']).next() {
            Some("json") => Self::Json,
            Some("html" | "xml") => Self::Markup,
            _ => Self::Plain,
        }
    }
}

/// The error is the name of an unknown placeholder, if those are not taken for text.
fn pieces(body: &str, format: Format, is_lenient: bool) -> Result<Vec<Piece>, String> {
    let mut pieces = Vec::new();
    let mut text = String::new();
    let mut in_string = false;
    let mut escaped = false;
    let mut rest = body;
    while let Some(letter) = rest.chars().next() {
        let written = placeholder(rest);
        let known = written.and_then(|(name, _)| VALUES.iter().find(|(known, _)| *known == name));
        if let Some((name, after)) = written.filter(|_| known.is_some() || !is_lenient) {
            let (_, value) = known.ok_or_else(|| name.chars().take(32).collect::<String>())?;
            let escaping = match format {
                Format::Plain => Escaping::Plain,
                Format::Markup => Escaping::Markup,
                Format::Json if in_string => Escaping::JsonString,
                Format::Json => Escaping::JsonValue,
            };
            pieces.push(Piece::Text(std::mem::take(&mut text)));
            pieces.push(Piece::Value(*value, escaping));
            rest = after;
            continue;
        }
        in_string ^= letter == '"' && !escaped;
        escaped = letter == '\\' && !escaped;
        text.push(letter);
        rest = rest.get(letter.len_utf8()..).unwrap_or_default();
    }
    pieces.push(Piece::Text(text));
    pieces.retain(|piece| *piece != Piece::Text(String::new()));
    Ok(pieces)
}

/// Maximum length of a name in braces: what is longer is text.
const PLACEHOLDER_BYTES_MAX: usize = 64;

/// `{name}` at the start of `text`, and what follows it.
fn placeholder(text: &str) -> Option<(&str, &str)> {
    let text = text.strip_prefix('{')?;
    let end = text.bytes().take(PLACEHOLDER_BYTES_MAX + 1).position(|byte| byte == b'}')?;
    let (name, after) = (text.get(..end)?, text.get(end + 1..)?);
    let is_name =
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
    is_name.then_some((name, after))
}

fn number(out: &mut Vec<u8>, escaping: Escaping, value: Option<u64>) {
    match value {
        Some(value) => json::number(out, value),
        None => text(out, escaping, ""),
    }
}

fn text(out: &mut Vec<u8>, escaping: Escaping, text: &str) {
    match escaping {
        Escaping::Plain => out.extend_from_slice(text.as_bytes()),
        Escaping::JsonString => json::escaped(out, text),
        Escaping::JsonValue if text.is_empty() => out.extend_from_slice(b"null"),
        Escaping::JsonValue => json::string(out, text),
        Escaping::Markup => {
            for byte in text.bytes() {
                match byte {
                    b'&' => out.extend_from_slice(b"&amp;"),
                    b'<' => out.extend_from_slice(b"&lt;"),
                    b'>' => out.extend_from_slice(b"&gt;"),
                    b'"' => out.extend_from_slice(b"&quot;"),
                    b'\'' => out.extend_from_slice(b"&#39;"),
                    byte => out.push(byte),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(content_type: &str, body: &str) -> RefusalPage {
        RefusalPage {
            statuses: vec![429, 503],
            content_type: Some(content_type.into()),
            body: body.into(),
        }
    }

    fn build(content_type: &str, body: &str) -> Result<Page, Vec<SettingError>> {
        let mut errors = Vec::new();
        Page::build(&written(content_type, body), "refusals[0]", &mut errors).ok_or(errors)
    }

    #[track_caller]
    fn filled(content_type: &str, body: &str, retry_after_s: Option<u64>) -> String {
        let details = RefusalDetails {
            status: StatusCode::TOO_MANY_REQUESTS,
            title: "Too Many Requests",
            detail: "</script>\"&'\n",
            request_id: "id-1",
            retry_after_s,
            limits: "",
            route: "api",
        };
        String::from_utf8(build(content_type, body).unwrap().fill(details)).unwrap()
    }

    #[test]
    fn each_placeholder_is_escaped_for_where_it_stands() {
        assert_eq!(
            filled(
                "text/plain",
                "{status} {title} {retry_after}s {request_id} {route} {limit}{ x }",
                Some(17)
            ),
            "429 Too Many Requests 17s id-1 api { x }"
        );
        assert_eq!(
            filled("text/html; charset=utf-8", "<p>{detail}</p>", None),
            "<p>&lt;/script&gt;&quot;&amp;&#39;\n</p>"
        );
        assert_eq!(
            filled("application/problem+json", "{\"a\":\"x{detail}\"}", None),
            "{\"a\":\"x</script>\\\"&'\\n\"}"
        );
    }

    #[test]
    fn in_json_a_placeholder_alone_is_a_value() {
        let body = "{\"error\": {\"code\": {status}, \"wait\": {retry_after}, \"limit\": {limit}, \"id\": {request_id}, \"s\": \"{retry_after}\"}}";
        let wait = |seconds| {
            serde_json::from_str::<serde_json::Value>(&filled("application/json", body, seconds))
                .unwrap()
        };
        assert_eq!(
            wait(Some(3)),
            serde_json::json!({"error": {"code": 429, "wait": 3, "limit": null, "id": "id-1", "s": "3"}})
        );
        assert_eq!(wait(None)["error"]["wait"], serde_json::Value::Null);
        // An escaped quote does not end a string.
        assert_eq!(
            filled("application/json", r#"["\"{route}", {route}]"#, None),
            r#"["\"api", "api"]"#
        );
    }

    #[test]
    fn when_to_come_back_is_said_in_words_and_never_too_early() {
        for (seconds, said) in [
            (None, "later"),
            (Some(1), "in 1 second"),
            (Some(119), "in 119 seconds"),
            (Some(121), "in 3 minutes"),
            (Some(7_199), "in 120 minutes"),
            (Some(7_201), "in 3 hours"),
            (Some(180_000), "in 3 days"),
        ] {
            assert_eq!(filled("text/plain", "{when}", seconds), said);
        }
    }

    #[test]
    fn a_policys_text_keeps_what_looks_like_a_placeholder_and_is_none() {
        let details = RefusalDetails {
            status: StatusCode::OK,
            title: "OK",
            detail: "d",
            request_id: "id-1",
            retry_after_s: Some(2),
            limits: "",
            route: "api",
        };
        let body = r#"{"a":"{b} {when}","limit":{limit},"wait":{retry_after}}"#;
        assert_eq!(
            fill_text(body, "application/json", details),
            br#"{"a":"{b} in 2 seconds","limit":null,"wait":2}"#
        );
    }

    #[test]
    fn an_unknown_placeholder_is_an_error() {
        let first = |content_type, body| build(content_type, body).unwrap_err().remove(0);
        let unknown = first("text/plain", "{retry_aftr}");
        assert!(
            unknown.setting == "refusals[0].body"
                && unknown.found.contains("{retry_aftr}")
                && unknown.expected.contains("{retry_after}"),
            "{unknown}"
        );
        assert!(first("application/json", "{\"a\": {status}").found.contains("not JSON"));
        assert!(first("application/json", "{\"a\": \"{status}}").found.contains("not JSON"));
        assert_eq!(first("html", "x").setting, "refusals[0].content_type");
        let mut errors = Vec::new();
        Page::build(
            &RefusalPage { statuses: vec![200], ..written("text/plain", "") },
            "refusals[0]",
            &mut errors,
        );
        assert_eq!(errors[0].setting, "refusals[0].status");
    }
}
