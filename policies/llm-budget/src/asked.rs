//! What a request asks for, read from the facts of its body. Knows no limit.
//!
//! A name that occurs twice in the body is a repeated fact. Which of the values the upstream takes
//! is not known, so the larger maximum counts, and two models are refused.

use weir_policy::{Denial, Facts, Json};

use crate::api::{Api, Call, ModelAt, Place};
use crate::config::Settings;
use crate::references::Counts;
use crate::{AMOUNT_MAX, Stop};

/// A request for tokens.
#[derive(Debug)]
pub(crate) struct Asked<'a> {
    pub(crate) call: Call,
    pub(crate) model: Option<String>,
    /// Tokens of input, estimated from the size of the body and what it refers to.
    pub(crate) input: u64,
    /// Tokens of input that it can't have more of, as far as its body says.
    pub(crate) input_max: u64,
    /// The service tiers that it names; an empty text for what is not a name.
    pub(crate) tiers: Vec<String>,
    /// Whether the provider adds something to the input that the body only refers to.
    pub(crate) refers: bool,
    /// The largest maximum of output for one answer, of those that the call heeds; `None` if the
    /// request names none.
    pub(crate) maximum: Option<u64>,
    /// The pointers at which it names one, with the number.
    pub(crate) named: Vec<(&'a str, u64)>,
    /// The number of answers.
    pub(crate) copies: u64,
    /// Whether the reply may be streamed.
    pub(crate) streams: bool,
    /// Whether the reply is certainly asked for in server-sent events, the one form that can be
    /// cut.
    pub(crate) in_events: bool,
}

/// The facts with the path: the client's, and the upstream's where the route rewrites it.
pub(crate) const PATHS: [&str; 2] = ["path", "upstream-path"];

/// The path that the upstream gets: it decides what is called.
pub(crate) fn path<'f>(facts: &Facts<'f>) -> &'f str {
    let [own, upstream] = PATHS;
    facts.get(upstream).or_else(|| facts.get(own)).unwrap_or_default()
}

/// The facts that [`read`] looks at, besides [`PATHS`].
pub(crate) fn facts(api: &Api, settings: &Settings) -> Vec<String> {
    let references = if settings.counts_references() { api.references.facts() } else { Vec::new() };
    let model = match &api.model {
        ModelAt::Pointer(pointer) => Some(pointer),
        ModelAt::Path | ModelAt::Nowhere => None,
    };
    let values = api.all_maxima().iter().chain(&api.copies).chain(&api.stream);
    let values = values.chain(&api.background).chain(&api.second_prompt).chain(&api.tiers);
    let values = values.map(|pointer| json(pointer));
    let of_body = ["body.type", "body.bytes"].map(str::to_owned);
    of_body
        .into_iter()
        .chain(model.map(|pointer| text(pointer)))
        .chain(values)
        .chain(api.form.as_ref().map(|name| query(name)))
        .chain(references)
        .collect()
}

/// Reads a request.
///
/// # Errors
/// A denial, if its body can't be read or is not clear.
pub(crate) fn read<'a>(
    api: &'a Api,
    facts: &Facts,
    settings: &Settings,
) -> Result<Asked<'a>, Stop> {
    match facts.get("body.type") {
        Some("json") => {}
        Some("large") => {
            let reason = "the body is too large to count its tokens";
            return Err(Denial::new(413, reason).into());
        }
        // The upstream might read what is not read here, and nobody would have counted it.
        _ => {
            return Err(Denial::new(400, "the body must be JSON, or nothing can be counted").into());
        }
    }
    let bytes = facts.get("body.bytes").and_then(|bytes| bytes.parse::<u64>().ok());
    let bytes = bytes.ok_or_else(|| "the proxy showed no body.bytes".to_owned())?;
    let path = path(facts);
    let call = api.call(path);
    refuse_background(api, call, facts)?;
    if !settings.unpriced {
        refuse_several_prompts(api, call, facts)?;
    }
    let mut maximum = None;
    let mut named = Vec::new();
    for pointer in api.maxima(call) {
        if let Some(tokens) = largest(facts, pointer)? {
            maximum = maximum.max(Some(tokens));
            named.push((pointer, tokens));
        }
    }
    let mut copies = 1;
    for pointer in &api.copies {
        copies = copies.max(largest(facts, pointer)?.unwrap_or(1));
    }
    let references =
        if settings.counts_references() { api.references.count(facts) } else { Counts::default() };
    let of_body = bytes.div_ceil(settings.bytes_per_token.max(1));
    let input = of_body.saturating_add(references.tokens(settings.references));
    Ok(Asked {
        call,
        model: model(api, facts, path)?,
        input: input.clamp(1, AMOUNT_MAX),
        // A token has a byte at least.
        input_max: if references.is_empty() { bytes } else { AMOUNT_MAX },
        tiers: tiers(api, facts),
        refers: !references.is_empty(),
        // 0 is no maximum: some servers take it for none at all.
        maximum: maximum.filter(|tokens| *tokens > 0),
        named,
        copies,
        // Some servers take 1 or "yes" for true. A reply that is not streamed reports its usage
        // anyway.
        streams: api.stream.as_ref().is_some_and(|pointer| may_be_true(facts, pointer)),
        in_events: in_events(api, call, facts),
    })
}

impl Asked<'_> {
    /// Whether it names no more than `tokens` at `pointer` itself. 0 is no maximum.
    pub(crate) fn is_within(&self, pointer: &str, tokens: u64) -> bool {
        let mut named = self.named.iter();
        named.any(|(known, number)| *known == pointer && (1..=tokens).contains(number))
    }
}

/// Whether some server may take the value at `pointer` for true.
fn may_be_true(facts: &Facts, pointer: &str) -> bool {
    facts.all(&json(pointer)).any(|value| !matches!(value, "false" | "null"))
}

/// Whether no server could take the request for one that asks for another form of reply. What is
/// not clear is not taken in steps: a reply that can't be cut would end in debt.
fn in_events(api: &Api, call: Call, facts: &Facts) -> bool {
    let Some((place, value)) = api.events(call) else { return false };
    let name = match place {
        Place::Body(pointer) => json(pointer),
        Place::Query(parameter) => query(parameter),
    };
    let mut found = facts.all(&name).peekable();
    found.peek().is_some() && found.all(|found| found == value)
}

/// A reply that is made later is fetched by a request that nobody charges. Where the call is not
/// known, the name may mean something else: that of a picture.
fn refuse_background(api: &Api, call: Call, facts: &Facts) -> Result<(), Denial> {
    let Some(pointer) = &api.background else { return Ok(()) };
    let asked = facts.all(&json(pointer)).any(|value| value == "true");
    if asked || (call == Call::Responses && may_be_true(facts, pointer)) {
        let reason = format!("{pointer} must be false: the reply would not report its usage");
        return Err(Denial::new(400, reason));
    }
    Ok(())
}

/// Each prompt of a list has as many answers as one alone, and a request does not say how many
/// there are. A list of numbers is one prompt, in tokens.
fn refuse_several_prompts(api: &Api, call: Call, facts: &Facts) -> Result<(), Denial> {
    let Some(pointer) = &api.second_prompt else { return Ok(()) };
    let is_prompt = |value: &str| !value.starts_with(|first: char| first.is_ascii_digit());
    let heeds = matches!(call, Call::Completions | Call::Other);
    if heeds && facts.all(&json(pointer)).any(is_prompt) {
        return Err(Denial::new(400, "several prompts in one request can't be counted: send one"));
    }
    Ok(())
}

fn model(api: &Api, facts: &Facts, path: &str) -> Result<Option<String>, Denial> {
    match &api.model {
        ModelAt::Nowhere => Ok(None),
        ModelAt::Path => Ok(Api::model_in(path)),
        ModelAt::Pointer(pointer) => {
            if let Some(deployment) = api.deployment_in(path) {
                return Ok(Some(deployment));
            }
            let name = text(pointer);
            let mut values = facts.all(&name);
            let first = values.next();
            if values.any(|other| Some(other) != first) {
                let reason = format!("{pointer} is there more than once, with different values");
                return Err(Denial::new(400, reason));
            }
            Ok(first.map(str::to_owned))
        }
    }
}

fn tiers(api: &Api, facts: &Facts) -> Vec<String> {
    let names = api.tiers.iter().map(|pointer| json(pointer)).collect::<Vec<_>>();
    let values = names.iter().flat_map(|name| facts.all(name)).filter(|value| *value != "null");
    let name = |value| Some(Json::parse(value).ok()?.as_str()?.into_owned());
    values.map(|value| name(value).unwrap_or_default()).collect()
}

/// The largest number at `pointer`. `null` is none. A number in quotes is refused like anything
/// else that is not a number: whether a server reads it is not known.
fn largest(facts: &Facts, pointer: &str) -> Result<Option<u64>, Denial> {
    let mut largest = None;
    for value in facts.all(&json(pointer)).filter(|value| *value != "null") {
        let digits = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
        let number = value.parse().ok().filter(|number| digits && *number <= AMOUNT_MAX);
        if number.is_none() {
            let reason = format!("{pointer} must be null or a whole number from 0 to {AMOUNT_MAX}");
            return Err(Denial::new(400, reason));
        }
        largest = largest.max(number);
    }
    Ok(largest)
}

/// The fact with a text, without its quotes.
fn text(pointer: &str) -> String {
    format!("body:{pointer}")
}

/// The fact with a value as JSON: `100`, `"100"` and `[100]` are different ones.
fn json(pointer: &str) -> String {
    format!("body.json:{pointer}")
}

fn query(parameter: &str) -> String {
    format!("query.{parameter}")
}
