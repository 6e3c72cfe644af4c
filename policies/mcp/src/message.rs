//! The messages of a body: JSON-RPC 2.0, one message or a batch. Knows no limits and no costs.
//!
//! What two servers could read in two ways is refused: names that occur twice or in another case.
//! Otherwise a cheap tool could be shown here, and a dear one called.

use std::borrow::Cow;
use std::ops::ControlFlow;

use weir_policy::{Facts, Json};

use crate::refusal::{Invalid, Refusal};
use crate::scan::Scanner;

/// The members of a message, each once and in this spelling.
const MEMBERS: [&str; 6] = ["jsonrpc", "id", "method", "params", "result", "error"];
/// The member of `params` that names a tool.
const TOOL: [&str; 1] = ["name"];
/// The method that calls a tool.
const CALL: &str = "tools/call";
/// What the methods of notifications begin with.
const NOTIFICATIONS: &str = "notifications/";
/// The place of `params` among the members.
const PARAMS: usize = 3;
const TWICE: &str = "a name that is there twice";
/// Maximum number of members that a message has, and the `params` of a call: the protocol has fewer
/// than ten. Each is compared with names.
const COUNT_MAX: usize = 64;
const MANY: &str = "an object with too many members";
/// Maximum size of a member's name that is compared, as it is written. A longer one is none that a
/// server could take for one of these, however it is escaped.
const MEMBER_BYTES_MAX: usize = 96;
/// Maximum size of a method or of a tool's name as it is written: of 256 characters in escapes.
const TEXT_BYTES_MAX: usize = 1_538;
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
    let mut scanner = Scanner::new(text);
    let mut messages = Vec::new();
    let is_batch = scanner.peek() == Some(b'[');
    if is_batch {
        let mut found = 0;
        scanner.items(|scanner| {
            found += 1;
            if found <= messages_max {
                messages.push(message(scanner)?);
            } else {
                scanner.value()?;
            }
            Ok(())
        })?;
        if found > messages_max {
            return Err(Refusal::Invalid(Invalid::Messages { found, max: messages_max }));
        }
    } else {
        messages.push(message(&mut scanner)?);
    }
    scanner.end()?;
    if messages.is_empty() {
        return Err(Refusal::invalid("an empty batch"));
    }
    Ok(Body { messages, is_batch })
}

/// A message.
fn message(scanner: &mut Scanner<'_>) -> Result<Message, Refusal> {
    if scanner.peek() != Some(b'{') {
        scanner.value()?;
        return Err(Refusal::invalid("a message that is not an object"));
    }
    let (mut found, mut params, mut count) = ([None; MEMBERS.len()], None, 0);
    scanner.members(|scanner, name| {
        count += 1;
        if count > COUNT_MAX {
            return Err(Refusal::invalid(MANY));
        }
        let place = place(name, &MEMBERS).map_err(Refusal::invalid)?;
        let value = match place {
            Some(PARAMS) => {
                let (read, value) = read_params(scanner)?;
                params = Some(read);
                value
            }
            _ => scanner.value()?,
        };
        match place.and_then(|place| found.get_mut(place)) {
            Some(Some(_)) => Err(Refusal::invalid(TWICE)),
            Some(there) => {
                *there = Some(value);
                Ok(ControlFlow::Continue(()))
            }
            None => Ok(ControlFlow::Continue(())),
        }
    })?;
    let [_, id, method, _, result, error] = found;
    let id = id.map(read_id).transpose()?;
    let Some(method) = method else {
        if result.is_none() && error.is_none() {
            return Err(Refusal::invalid("a message without a method"));
        }
        return Ok(Message { id: None, kind: Kind::Aside });
    };
    let method = text(method, "a method that is not a text")?;
    let kind = if method.trim().eq_ignore_ascii_case(CALL) {
        Kind::Tool(tool(params, id.as_deref())?)
    } else if id.is_none() && method.starts_with(NOTIFICATIONS) {
        Kind::Aside
    } else {
        Kind::Method(method)
    };
    Ok(Message { id, kind })
}

/// What `params` say of a tool.
#[derive(Debug, Default)]
struct Params<'t> {
    /// The name as it is written.
    name: Option<&'t str>,
    /// Why servers may read another one.
    wrong: Option<&'static str>,
}

/// Reads `params`, and returns them as they are written, too: what they are is not known before the
/// method is, which may come after them.
fn read_params<'t>(scanner: &mut Scanner<'t>) -> Result<(Params<'t>, &'t str), Refusal> {
    let mut params = Params::default();
    if scanner.peek() != Some(b'{') {
        return Ok((params, scanner.value()?));
    }
    let mut count = 0;
    scanner.members(|scanner, name| {
        let value = scanner.value()?;
        count += 1;
        if count > COUNT_MAX {
            params.wrong = Some(MANY);
            return Ok(ControlFlow::Break(()));
        }
        match place(name, &TOOL) {
            Ok(None) => {}
            Ok(Some(_)) if params.name.is_some() => params.wrong = Some(TWICE),
            Ok(Some(_)) => params.name = Some(value),
            Err(wrong) => params.wrong = Some(wrong),
        }
        Ok(ControlFlow::Continue(()))
    })?;
    Ok((params, ""))
}

/// An id as it is written.
fn read_id(id: &str) -> Result<String, Refusal> {
    if !id.starts_with(['"', '-', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9']) {
        return Err(Refusal::invalid("an id that is neither a text nor a number"));
    }
    if id.len() > ID_BYTES_MAX || Json::parse(id).is_err() {
        return Err(Refusal::invalid("an id that is too long, or not valid"));
    }
    Ok(id.to_owned())
}

/// The tool that `params` name. `id` is that of the request.
fn tool(params: Option<Params<'_>>, id: Option<&str>) -> Result<String, Refusal> {
    let no_tool = || Refusal::NoTool { id: id.map(str::to_owned) };
    let params = params.ok_or_else(no_tool)?;
    if let Some(wrong) = params.wrong {
        return Err(Refusal::invalid(wrong));
    }
    let written = params.name.filter(|name| name.starts_with('"')).ok_or_else(no_tool)?;
    let name = text(written, "a name that is not a text")?;
    Some(name).filter(|name| !name.is_empty()).ok_or_else(no_tool)
}

/// The text of a method or of a name, as it is written in JSON.
fn text(json: &str, otherwise: &'static str) -> Result<String, Refusal> {
    if json.len() > TEXT_BYTES_MAX {
        return Err(Refusal::invalid("a name that is too long"));
    }
    let text = Json::parse(json).ok().and_then(|text| text.as_str().map(Cow::into_owned));
    text.ok_or(Refusal::invalid(otherwise))
}

/// Which of these names a member has that is written so. A name that some servers would take for
/// one of them is an error: Go and .NET ignore the case of ASCII letters, and of others that they
/// fold into them.
fn place(written: &str, names: &[&str]) -> Result<Option<usize>, &'static str> {
    if written.len() > MEMBER_BYTES_MAX {
        return Ok(None);
    }
    let plain = written.strip_prefix('"').and_then(|name| name.strip_suffix('"'));
    let parsed;
    let name = match plain.filter(|name| !name.contains('\\')) {
        Some(name) => name,
        None => {
            let json = Json::parse(written).map_err(|_| "a name that is not a text")?;
            parsed = json.as_str().map(Cow::into_owned).unwrap_or_default();
            &parsed
        }
    };
    if let Some(place) = names.iter().position(|known| *known == name) {
        return Ok(Some(place));
    }
    if !name.is_ascii() || names.iter().any(|known| known.eq_ignore_ascii_case(name)) {
        return Err("a name that some servers take for another one");
    }
    Ok(None)
}
