//! Finds the operations that a request asks for: in the parameters of a GET, or in a JSON body, one
//! or a batch of them.
//!
//! What two servers could read in two ways is refused: names that occur twice or in another case,
//! and parameters next to a body. Otherwise a cheap query could be shown here, and a dear one run.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::de::DeserializeSeed;
use serde_json::value::RawValue;
use weir_policy::{Digest, Facts};

use crate::body::{Body, EXTENSIONS, Written};
use crate::refusal::Refusal;
use crate::variables::{Given, Variables};

/// Facts that are read besides those of limits and conditions.
pub(crate) const FACTS: [&str; 9] = [
    "method",
    "upgrade",
    "body.type",
    "body.bytes",
    "body.json:",
    "query.query",
    "query.operationName",
    "query.variables",
    "query.extensions",
];
/// Maximum size of all queries of a request as written in JSON, in bytes. Each is copied without
/// its escapes, which would take 8 ms for a mebibyte of them.
pub(crate) const QUERY_BYTES_MAX: usize = 256 << 10;

/// An operation as it was requested. Empty texts are the same as none.
#[derive(Debug)]
pub(crate) struct Requested<'a> {
    pub(crate) query: Option<Cow<'a, str>>,
    /// Which of the document's operations to run.
    pub(crate) name: Option<Cow<'a, str>>,
    pub(crate) variables: BTreeMap<String, Given>,
    /// The digest of a persisted query.
    pub(crate) digest: Option<Digest>,
}

/// All operations of a request, at least one.
pub(crate) fn read<'a>(facts: &Facts<'a>, reader: Body<'_>) -> Result<Vec<Requested<'a>>, Refusal> {
    // Whatever it asks for now, more would follow on a connection that nobody reads.
    if facts.first("upgrade").is_some() {
        return Err(Refusal::unreadable("a request for another protocol"));
    }
    let body = facts.get("body.type").unwrap_or("empty");
    if matches!(facts.get("method"), Some("GET" | "HEAD")) {
        return match body {
            "empty" => Ok(vec![from_parameters(facts, reader.members)?]),
            _ => Err(Refusal::unreadable("a GET request with a body")),
        };
    }
    let requested = match body {
        "json" => from_body(facts, reader)?,
        "large" => {
            return Err(Refusal::TooLarge { bytes: facts.get("body.bytes").map(str::to_owned) });
        }
        "empty" => return Err(Refusal::unreadable("there is no body")),
        _ => return Err(Refusal::unreadable("the body is not JSON")),
    };
    // Some servers prefer what is in the URL.
    let beside = ["query.query", "query.variables", "query.extensions"];
    let named_alike = |name: &str| requested.iter().all(|one| one.name.as_deref() == Some(name));
    if beside.iter().any(|name| facts.first(name).is_some())
        || !facts.all("query.operationName").all(named_alike)
    {
        return Err(Refusal::unreadable("an operation in the URL and another one in the body"));
    }
    Ok(requested)
}

fn from_parameters<'a>(facts: &Facts<'a>, members: &[String]) -> Result<Requested<'a>, Refusal> {
    let only = |fact: &str| {
        let mut values = facts.all(fact);
        match (values.next(), values.next()) {
            (_, Some(_)) => Err(Refusal::unreadable("a parameter is there twice")),
            (value, None) => Ok(value.filter(|text| !text.is_empty())),
        }
    };
    let variables = match only("query.variables")? {
        Some(json) => parse(json, Variables { members })?,
        None => BTreeMap::new(),
    };
    let hash = match only("query.extensions")? {
        Some(json) => parse(json, EXTENSIONS)?.flatten().flatten(),
        None => None,
    };
    Ok(Requested {
        query: only("query.query")?.map(Cow::Borrowed),
        name: only("query.operationName")?.map(Cow::Borrowed),
        variables,
        digest: digest(hash)?,
    })
}

fn from_body<'a>(facts: &Facts<'a>, reader: Body<'_>) -> Result<Vec<Requested<'a>>, Refusal> {
    let body = facts.only("body.json:").ok_or(Refusal::unreadable("the body is not JSON"))?;
    let (written, found) = parse(body, reader)?;
    if found > reader.operations_max {
        return Err(Refusal::Operations { found, max: reader.operations_max });
    }
    if written.is_empty() {
        return Err(Refusal::unreadable("an empty batch"));
    }
    let queries = written.iter().filter_map(|one| one.query);
    let texts = queries.chain(written.iter().filter_map(|one| one.name));
    if texts.map(|text| text.get().len()).sum::<usize>() > QUERY_BYTES_MAX {
        return Err(Refusal::Bytes { max: QUERY_BYTES_MAX });
    }
    written.into_iter().map(requested).collect()
}

fn parse<'a, S: DeserializeSeed<'a>>(json: &'a str, seed: S) -> Result<S::Value, Refusal> {
    let mut reader = serde_json::Deserializer::from_str(json);
    let read = seed.deserialize(&mut reader);
    read.and_then(|value| reader.end().map(|()| value)).map_err(|error| Refusal::no_request(&error))
}

fn digest(hash: Option<&RawValue>) -> Result<Option<Digest>, Refusal> {
    let Some(hash) = hash else { return Ok(None) };
    // Escapes are not resolved: no client writes a digit in one.
    let digest = Digest::parse(&format!("sha256:{}", hash.get().trim_matches('"')));
    let expected = "`sha256Hash` has 64 hexadecimal digits";
    digest.map(Some).ok_or_else(|| Refusal::unreadable(expected))
}

/// An operation of a body. Its texts are copied, without their escapes.
fn requested<'a>(written: Written<'a>) -> Result<Requested<'a>, Refusal> {
    let text = |json: Option<&RawValue>| -> Result<Option<Cow<'a, str>>, Refusal> {
        let Some(json) = json else { return Ok(None) };
        let text: String =
            serde_json::from_str(json.get()).map_err(|error| Refusal::no_request(&error))?;
        Ok(Some(text).filter(|text| !text.is_empty()).map(Cow::Owned))
    };
    Ok(Requested {
        query: text(written.query)?,
        name: text(written.name)?,
        variables: written.variables,
        digest: digest(written.hash)?,
    })
}
