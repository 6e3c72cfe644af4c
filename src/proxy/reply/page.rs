//! A refusal body written by the operator: a text with placeholders, each escaped for its position.
//! Knows no refusal.
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

const VALUES: [(&str, Value); 7] = [
    ("status", Value::Status),
    ("title", Value::Title),
    ("detail", Value::Detail),
    ("request_id", Value::RequestId),
    ("retry_after", Value::RetryAfter),
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
        let format = Format::of(&content_type);
        match pieces(&written.body, format) {
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
        let mut out = Vec::with_capacity(512);
        for piece in &self.pieces {
            match piece {
                Piece::Text(text) => out.extend_from_slice(text.as_bytes()),
                Piece::Value(Value::Status, escaping) => {
                    number(&mut out, *escaping, Some(details.status.as_u16().into()))
                }
                Piece::Value(Value::RetryAfter, escaping) => {
                    number(&mut out, *escaping, details.retry_after_s)
                }
                Piece::Value(value, escaping) => text(&mut out, *escaping, details.text(*value)),
            }
        }
        out
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

impl<'a> RefusalDetails<'a> {
    fn text(&self, value: Value) -> &'a str {
        match value {
            Value::Title => self.title,
            Value::Detail => self.detail,
            Value::RequestId => self.request_id,
            Value::Limit => self.limits,
            Value::Route => self.route,
            Value::Status | Value::RetryAfter => "",
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
    fn of(content_type: &HeaderValue) -> Self {
        let text = content_type.to_str().unwrap_or_default();
        let main = text.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        match main.rsplit(['/', '+']).next() {
            Some("json") => Self::Json,
            Some("html" | "xml") => Self::Markup,
            _ => Self::Plain,
        }
    }
}

/// The error is the name of an unknown placeholder.
fn pieces(body: &str, format: Format) -> Result<Vec<Piece>, String> {
    let mut pieces = Vec::new();
    let mut text = String::new();
    let mut in_string = false;
    let mut escaped = false;
    let mut rest = body;
    while let Some(letter) = rest.chars().next() {
        if let Some((name, after)) = placeholder(rest) {
            let known = VALUES.iter().find(|(known, _)| *known == name);
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

/// `{name}` at the start of `text`, and what follows it.
fn placeholder(text: &str) -> Option<(&str, &str)> {
    let (name, after) = text.strip_prefix('{')?.split_once('}')?;
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
