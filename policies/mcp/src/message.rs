//! The messages of a body: JSON-RPC 2.0, one message or a batch. Knows no limits and no costs.
//!
//! What two servers could read in two ways is refused: names that occur twice or in another case.
//! Otherwise a cheap tool could be shown here, and a dear one called.

use std::borrow::Cow;

use weir_policy::{Facts, Json};

use crate::refusal::{Invalid, Refusal};

/// The members of a message, each once and in this spelling.
const MEMBERS: [&str; 6] = ["jsonrpc", "id", "method", "params", "result", "error"];
/// The member of `params` that names a tool.
const TOOL: [&str; 1] = ["name"];
/// The method that calls a tool.
const CALL: &str = "tools/call";
/// What the methods of notifications begin with.
const NOTIFICATIONS: &str = "notifications/";
/// Maximum size of an id as it is written, in bytes. A refusal repeats it.
const ID_BYTES_MAX: usize = 128;

/// A message of a client.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Message {
    /// The id as it is written in JSON; `None` if no response is expected.
    pub(crate) id: Option<String>,
    pub(crate) kind: Kind,
}

/// What a message asks for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A call of this tool.
    Tool(String),
    /// A request of another method. Also one without an id, which some servers run all the same.
    Method(String),
    /// A notification, or a response to the server.
    Aside,
}

/// What a body has.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Body {
    /// At least one.
    pub(crate) messages: Vec<Message>,
    /// Whether they are in an array, and so the errors, too.
    pub(crate) is_batch: bool,
}

impl Kind {
    /// The method of a request.
    pub(crate) fn method(&self) -> Option<&str> {
        match self {
            Self::Tool(_) => Some(CALL),
            Self::Method(method) => Some(method),
            Self::Aside => None,
        }
    }

    /// The tool that is called.
    pub(crate) fn tool(&self) -> Option<&str> {
        match self {
            Self::Tool(tool) => Some(tool),
            Self::Method(_) | Self::Aside => None,
        }
    }
}

/// Reads the body of a request that is not a GET.
pub(crate) fn read(facts: &Facts, messages_max: usize) -> Result<Body, Refusal> {
    let text = match facts.get("body.type").unwrap_or("empty") {
        "json" => facts.only("body.json:").unwrap_or_default(),
        "large" => return Err(Refusal::TooLarge),
        "empty" => return Err(Refusal::Unreadable("there is no body")),
        _ => return Err(Refusal::Unreadable("the body is not JSON")),
    };
    let json = Json::parse(text)
        .map_err(|_| Refusal::Unreadable("the body is not JSON, or nested too deeply"))?;
    if !json.is_list() {
        return Ok(Body { messages: vec![message(&json)?], is_batch: false });
    }
    let found = json.items().count();
    if found == 0 {
        return Err(Refusal::invalid("an empty batch"));
    }
    if found > messages_max {
        return Err(Refusal::Invalid(Invalid::Messages { found, max: messages_max }));
    }
    let messages = json.items().map(|item| message(&item)).collect::<Result<_, _>>()?;
    Ok(Body { messages, is_batch: true })
}

fn message(json: &Json<'_>) -> Result<Message, Refusal> {
    if !json.is_table() {
        return Err(Refusal::invalid("a message that is not an object"));
    }
    let [_, id, method, params, result, error] = members(json, &MEMBERS)?;
    let id = id.map(|id| read_id(&id)).transpose()?;
    let Some(method) = method else {
        if result.is_none() && error.is_none() {
            return Err(Refusal::invalid("a message without a method"));
        }
        return Ok(Message { id: None, kind: Kind::Aside });
    };
    let method = method.as_str().ok_or(Refusal::invalid("a method that is not a text"))?;
    let kind = if is_call(&method) {
        Kind::Tool(tool(params, id.as_deref())?)
    } else if id.is_none() && method.starts_with(NOTIFICATIONS) {
        Kind::Aside
    } else {
        Kind::Method(method.into_owned())
    };
    Ok(Message { id, kind })
}

/// Whether a server might take it for `tools/call`.
fn is_call(method: &str) -> bool {
    method.trim().eq_ignore_ascii_case(CALL)
}

/// An id as it is written.
fn read_id(id: &Json<'_>) -> Result<String, Refusal> {
    let text = id.as_text();
    if !id.is_number() && !text.starts_with('"') {
        return Err(Refusal::invalid("an id that is neither a text nor a number"));
    }
    if text.len() > ID_BYTES_MAX {
        return Err(Refusal::invalid("an id that is too long"));
    }
    Ok(text.to_owned())
}

/// The tool that `params` name. `id` is that of the request.
fn tool(params: Option<Json<'_>>, id: Option<&str>) -> Result<String, Refusal> {
    let no_tool = || Refusal::NoTool { id: id.map(str::to_owned) };
    let params = params.filter(Json::is_table).ok_or_else(no_tool)?;
    let [name] = members(&params, &TOOL)?;
    let name = name.as_ref().and_then(Json::as_str).filter(|name| !name.is_empty());
    name.map(Cow::into_owned).ok_or_else(no_tool)
}

/// The members of an object with these names. A name that some servers would take for one of them
/// is refused: Go and .NET ignore the case of ASCII letters, and of others that they fold into
/// them.
fn members<'j, const COUNT: usize>(
    json: &'j Json<'_>,
    names: &[&str; COUNT],
) -> Result<[Option<Json<'j>>; COUNT], Refusal> {
    let mut found = [const { None }; COUNT];
    for (name, value) in json.members() {
        match names.iter().zip(&mut found).find(|(known, _)| **known == name) {
            Some((_, there @ None)) => *there = Some(value),
            Some((_, Some(_))) => return Err(Refusal::invalid("a name that is there twice")),
            None if !name.is_ascii()
                || names.iter().any(|known| known.eq_ignore_ascii_case(&name)) =>
            {
                return Err(Refusal::invalid("a name that some servers take for another one"));
            }
            None => {}
        }
    }
    Ok(found)
}
