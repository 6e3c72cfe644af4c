//! What a client is told in JSON-RPC: by a denial, if its message can't be read, and by the proxy,
//! if a limit refuses it. Every code and text is here.

use weir_policy::{Decision, Denial, Json};

use crate::message::{Body, Message};

/// JSON-RPC's own codes.
const PARSE_ERROR: i32 = -32_700;
const INVALID_REQUEST: i32 = -32_600;
const INVALID_PARAMS: i32 = -32_602;
/// A limit refused: of the codes that JSON-RPC leaves to servers, one that none of the protocol's
/// libraries uses. Its end is that of 429.
const LIMITED: i32 = -32_029;
const JSON: &str = "application/json";
/// Maximum number of characters that a refusal repeats of a tool's or a method's name.
const SHOWN_CHARS_MAX: usize = 64;

/// A request that can't be counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Its body is not JSON.
    Unreadable(&'static str),
    /// The proxy did not read its body.
    TooLarge,
    /// Its body is JSON, and no message that can be read in only one way.
    Invalid(Invalid),
    /// A call that names no tool.
    NoTool {
        /// The request's id.
        id: Option<String>,
    },
}

/// What is wrong with messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Invalid {
    Message(&'static str),
    /// A batch has too many of them.
    Messages {
        found: usize,
        max: usize,
    },
    /// A limit could never let all of them through at once.
    Cost {
        limit: String,
        max: u64,
    },
    /// Their tools and methods have more limits together than a request may have.
    Limits {
        found: usize,
        max: usize,
    },
}

impl Refusal {
    /// A message that is not what JSON-RPC allows, or that servers read differently.
    pub(crate) fn invalid(why: &'static str) -> Self {
        Self::Invalid(Invalid::Message(why))
    }

    /// The denial with its error.
    pub(crate) fn denial(&self) -> Denial {
        let (status, code, reason) = match self {
            Self::Unreadable(why) => (400, PARSE_ERROR, (*why).to_owned()),
            Self::TooLarge => (413, INVALID_REQUEST, "the body is too large to be read".to_owned()),
            Self::Invalid(invalid) => (400, INVALID_REQUEST, invalid.reason()),
            Self::NoTool { .. } => (400, INVALID_PARAMS, "a call that names no tool".to_owned()),
        };
        let id = match self {
            Self::NoTool { id: Some(id) } => id,
            _ => "null",
        };
        let body = error(id, code, &quoted(&reason), None);
        Denial::new(status, reason).body(JSON, body)
    }
}

impl Invalid {
    fn reason(&self) -> String {
        match self {
            Self::Message(why) => (*why).to_owned(),
            Self::Messages { found, max } => {
                format!("a batch of {found} messages, at most {max} are allowed")
            }
            Self::Cost { limit, max } => format!(
                "the limit {limit} never lets through more than {max} at once: send fewer messages in a batch"
            ),
            Self::Limits { found, max } => format!(
                "a batch with {found} limits, at most {max} are allowed: send fewer messages in it"
            ),
        }
    }
}

/// The same denial with its reason in JSON-RPC.
pub(crate) fn in_json_rpc(denial: Denial, body: &Body) -> Denial {
    let reason = quoted(&denial.reason);
    let text = errors(body, |_, id| error(id, INVALID_REQUEST, &reason, None));
    denial.body(JSON, text)
}

/// The same decision, with errors in JSON-RPC for what its limits refuse. `status` is that of a
/// reply to requests that expect a response: to others it is 429.
pub(crate) fn limited(decision: Decision, body: &Body, status: Option<u16>) -> Decision {
    let text = errors(body, |message, id| {
        let method = message.and_then(|message| message.kind.method());
        let tool = message.and_then(|message| message.kind.tool());
        let what = match (tool, method) {
            (Some(tool), _) => format!("the tool \"{}\" was not called", shown(tool)),
            (None, Some(method)) => format!("\"{}\" was not done", shown(method)),
            (None, None) => "the message was not forwarded".to_owned(),
        };
        let batch = if body.is_batch { ", nor anything else of its batch" } else { "" };
        let said = quoted(&format!("Rate limit: {what}{batch}. "));
        // The proxy fills in what is in braces.
        let said = format!(
            "{}{{detail}} Try again {{when}}.\"",
            said.strip_suffix('"').unwrap_or_default()
        );
        let member = |name: &str, value: Option<&str>| {
            let value = value.map(|value| quoted(&shown(value)));
            value.map(|value| format!(",\"{name}\":{value}")).unwrap_or_default()
        };
        let data = format!(
            "{{\"retry_after_seconds\":{{retry_after}},\"limit\":{{limit}}{}{}}}",
            member("method", method),
            member("tool", tool)
        );
        error(id, LIMITED, &said, Some(&data))
    });
    let decision = decision.refusal_body(JSON, text);
    let is_awaited = body.messages.iter().any(|message| message.id.is_some());
    match status.filter(|_| is_awaited) {
        Some(status) => decision.refusal_status(status),
        None => decision,
    }
}

/// An error for each request of the body that has an id, in an array if that is one. One without an
/// id if there is none.
fn errors(body: &Body, write: impl Fn(Option<&Message>, &str) -> String) -> String {
    let with_id = |message: &Message| Some(write(Some(message), message.id.as_deref()?));
    let all: Vec<String> = body.messages.iter().filter_map(with_id).collect();
    match all.as_slice() {
        [] => write(body.messages.first().filter(|_| !body.is_batch), "null"),
        [one] if !body.is_batch => one.clone(),
        _ => format!("[{}]", all.join(",")),
    }
}

/// An error. `id`, `message` and `data` are JSON.
fn error(id: &str, code: i32, message: &str, data: Option<&str>) -> String {
    let id = without_braces(id);
    let data = data.map(|data| format!(",\"data\":{data}")).unwrap_or_default();
    let error = format!("{{\"code\":{code},\"message\":{message}{data}}}");
    format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"error\":{error}}}")
}

/// A text as JSON, in which nothing is filled in.
fn quoted(text: &str) -> String {
    without_braces(Json::from(text).as_text())
}

/// A text or a number in JSON, with an escape for what begins a placeholder.
fn without_braces(json: &str) -> String {
    json.replace('{', "\\u007b")
}

/// A client's words, short and without control characters.
pub(crate) fn shown(text: &str) -> String {
    let plain = |next: char| if next.is_control() { '?' } else { next };
    text.chars().take(SHOWN_CHARS_MAX).map(plain).collect()
}
