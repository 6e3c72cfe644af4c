//! What a route does besides deciding and forwarding: answers of its own, header rules, rewriting,
//! CORS, bodies of refusals. Names of fields, paths and origins are checked by the module that uses
//! them.

use std::ops::RangeInclusive;
use std::time::Duration;

use bytes::Bytes;

use super::reader::{Item, Table};
use crate::proxy::{
    Cors, Extras, HeaderRules, Preflight, RefusalPage, Respond, Rewrite, SecretField, Upgrade,
};

/// Names in one set of header rules, at most.
const RULES_MAX: usize = 64;
/// Origins of one route, pages of one list, and statuses of one page, at most.
const ORIGINS_MAX: usize = 256;
const PAGES_MAX: usize = 64;
const STATUSES_MAX: usize = 64;
const PROTOCOLS_MAX: usize = 16;
const TUNNEL_IDLE: RangeInclusive<Duration> =
    Duration::from_millis(1)..=Duration::from_secs(24 * 3_600);
const REFUSAL_STATUS: RangeInclusive<u64> = 400..=599;
const RESPOND_STATUS: RangeInclusive<u64> = 200..=599;
const RESPOND_STATUS_DEFAULT: u16 = 200;
/// Bytes of an answer in the configuration file, at most.
const BODY_BYTES_MAX: usize = 64 << 10;
/// Bytes of an answer in a file of its own, at most.
const BODY_FILE_BYTES_MAX: u64 = 1 << 20;

const REWRITE: &str =
    "a path such as \"/v2/users/{id}\", or { strip_prefix = \"/api\", add_prefix = \"/v1\" }";

pub(super) fn extras(table: &mut Table<'_>) -> Extras {
    Extras {
        request_headers: header_rules(table, "request_headers"),
        response_headers: header_rules(table, "response_headers"),
        upstream_host: table
            .take("upstream_host")
            .and_then(|item| text(&item, "a host such as \"api.internal\"")),
        rewrite: table.take("rewrite").and_then(|item| rewrite(&item)),
        cors: table.take("cors").and_then(|item| cors(&item)),
        upgrade: upgrade(table),
        refusals: refusals(table),
    }
}

fn upgrade(table: &mut Table<'_>) -> Upgrade {
    let mut settings = Upgrade::default();
    let mut upgrade = table.section("upgrade");
    if let Some(item) = upgrade.take("protocols") {
        let items = item.list(PROTOCOLS_MAX);
        let protocol = |item| text(item, "a protocol such as \"websocket\"");
        settings.protocols = items.iter().filter_map(protocol).collect();
    }
    upgrade.duration("idle", TUNNEL_IDLE, &mut settings.idle);
    upgrade.finish();
    settings
}

fn cors(item: &Item<'_>) -> Option<Cors> {
    let mut table = item.table()?;
    let origins =
        table.need("origins", "an array of origins, such as [\"https://app.example.com\"]")?;
    let origins = origins
        .list(ORIGINS_MAX)
        .iter()
        .filter_map(|item| text(item, "an origin such as \"https://app.example.com\""))
        .collect();
    let mut cors = Cors { origins, ..Cors::default() };
    table.flag("credentials", &mut cors.credentials);
    let preflights = [("bypass", Preflight::Bypass), ("limit", Preflight::Limit)];
    table.choice("preflight", &preflights, &mut cors.preflight);
    table.finish();
    Some(cors)
}

/// `[[refusals]]`: those of a route, or those that hold everywhere.
pub(super) fn refusals(table: &mut Table<'_>) -> Vec<RefusalPage> {
    table.list("refusals", PAGES_MAX).iter().filter_map(refusal).collect()
}

fn refusal(item: &Item<'_>) -> Option<RefusalPage> {
    let mut table = item.table()?;
    let statuses = table
        .need("status", "a status such as 429, or several in an array")
        .map(|item| statuses(&item))
        .unwrap_or_default();
    let content_type = content_type(&mut table);
    let written = body(&mut table);
    if written.is_none() && !table.has("body") && !table.has("body_file") {
        table.missing("body", "`body = \"...\"` or `body_file = \"refused.html\"`");
    }
    table.finish();
    let (item, body) = written?;
    let Ok(body) = String::from_utf8(body.into()) else {
        item.found("a file that is not UTF-8", "a text in UTF-8", None);
        return None;
    };
    Some(RefusalPage { statuses, content_type, body })
}

fn statuses(item: &Item<'_>) -> Vec<u16> {
    let one =
        |item: &Item<'_>| item.whole(REFUSAL_STATUS).and_then(|status| u16::try_from(status).ok());
    if item.value.is_array() {
        item.list(STATUSES_MAX).iter().filter_map(one).collect()
    } else {
        one(item).into_iter().collect()
    }
}

fn header_rules(table: &mut Table<'_>, key: &'static str) -> HeaderRules {
    let mut rules = table.section(key);
    let set = fields(&mut rules, "set", |item| Vec::from_iter(text(item, "a field's value")));
    let add = added(&mut rules, "add");
    let remove = rules
        .list("remove", RULES_MAX)
        .iter()
        .filter_map(|item| text(item, "a field's name"))
        .collect();
    let mut secrets = Vec::new();
    for key in ["set_file", "add_file"] {
        secrets.extend(secret_fields(&mut rules, key, |item| item.secret_in_file()));
    }
    for key in ["set_env", "add_env"] {
        secrets.extend(secret_fields(&mut rules, key, |item| item.secret_in_env()));
    }
    rules.finish();
    HeaderRules { set, add, remove, secrets }
}

/// Fields whose values are in files or in the environment:
/// `set_file = { Authorization = "/run/secrets/upstream" }`.
fn secret_fields<'a>(
    rules: &mut Table<'a>,
    key: &'static str,
    read: impl Fn(&Item<'a>) -> Option<String>,
) -> Vec<SecretField> {
    let values = fields(rules, key, |item| Vec::from_iter(read(item)));
    values.into_iter().map(|(name, value)| SecretField { key, name, value }).collect()
}

/// Fields that may be repeated: the values are then in an array.
fn added(table: &mut Table<'_>, key: &'static str) -> Vec<(String, String)> {
    const EXPECTED: &str = "a field's value, or several in an array";
    fields(table, key, |item| match item.value.is_array() {
        true => item.list(RULES_MAX).iter().filter_map(|item| text(item, EXPECTED)).collect(),
        false => Vec::from_iter(text(item, EXPECTED)),
    })
}

fn fields<'a>(
    table: &mut Table<'a>,
    key: &'static str,
    values: impl Fn(&Item<'a>) -> Vec<String>,
) -> Vec<(String, String)> {
    let section = table.section(key);
    let named = section.named();
    if named.len() > RULES_MAX {
        section.found(format!("{} fields", named.len()), format!("at most {RULES_MAX}"));
    }
    let named = named.into_iter().take(RULES_MAX);
    named
        .flat_map(|(name, item)| values(&item).into_iter().map(move |value| (name.clone(), value)))
        .collect()
}

fn rewrite(item: &Item<'_>) -> Option<Rewrite> {
    if item.value.is_str() {
        return text(item, REWRITE).map(Rewrite::Template);
    }
    if !item.value.is_table() {
        item.wrong(REWRITE);
        return None;
    }
    let mut table = item.table()?;
    let strip = table.take("strip_prefix").and_then(|item| text(&item, "a path such as \"/api\""));
    let add = table.take("add_prefix").and_then(|item| text(&item, "a path such as \"/v1\""));
    table.finish();
    if item.value.as_table().is_some_and(|table| table.is_empty()) {
        item.found("neither `strip_prefix` nor `add_prefix`", "one of the two, or both", None);
    }
    (strip.is_some() || add.is_some()).then_some(Rewrite::Prefix { strip, add })
}

/// `respond = { .. }`.
pub(super) fn respond(item: &Item<'_>) -> Option<Respond> {
    let mut table = item.table()?;
    let mut status = RESPOND_STATUS_DEFAULT;
    table.number("status", RESPOND_STATUS, &mut status);
    let body = body(&mut table);
    let content_type = content_type(&mut table);
    let headers = added(&mut table, "headers");
    table.finish();
    Some(Respond {
        status,
        body: body.map(|(_, body)| body).unwrap_or_default(),
        content_type,
        headers,
    })
}

fn content_type(table: &mut Table<'_>) -> Option<String> {
    table
        .take("content_type")
        .and_then(|item| text(&item, "a media type such as \"application/json\""))
}

/// The text of `body` or `body_file`, and the setting that it comes from.
fn body<'a>(table: &mut Table<'a>) -> Option<(Item<'a>, Bytes)> {
    match (table.take("body"), table.take("body_file")) {
        (Some(_), Some(file)) => {
            file.found_key("both `body` and `body_file`", "one of the two", None);
            None
        }
        (Some(item), None) => {
            let expected = format!("a text of at most {BODY_BYTES_MAX} bytes");
            let body = item.parsed(&expected, |text| {
                (text.len() <= BODY_BYTES_MAX).then(|| Bytes::copy_from_slice(text.as_bytes()))
            })?;
            Some((item, body))
        }
        (None, Some(item)) => {
            let (_, bytes) = item.notes.named_file(
                &item,
                "a file with the answer's body",
                BODY_FILE_BYTES_MAX,
            )?;
            Some((item, bytes.into()))
        }
        (None, None) => None,
    }
}

fn text(item: &Item<'_>, expected: &str) -> Option<String> {
    item.text(expected).map(str::to_owned)
}
