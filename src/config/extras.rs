//! What a route does besides deciding and forwarding: answers of its own, header rules, rewriting,
//! CORS, bodies of refusals. Names of fields, paths and origins are checked by the module that uses
//! them.

use bytes::Bytes;

use super::reader::{Item, Table};
use super::settings::routes::{
    BODY_TEXT_BYTES_MAX, ENCODINGS, compress, cors, refusals, respond, rewrite, route, rules,
    upgrade,
};
use super::settings::{Else, Kind as _, List, Setting, Text};
use crate::proxy::settings::{
    Compress, Cors, Extras, HeaderRules, RefusalPage, Respond, Rewrite, SecretField, Upgrade,
};

/// Maximum number of pages in one list, and of statuses of one page.
const PAGES_MAX: usize = 64;
const STATUSES_MAX: usize = 64;
/// Maximum size of an answer in a file of its own, in bytes.
const BODY_FILE_BYTES_MAX: u64 = 1 << 20;

pub(super) fn extras(table: &mut Table<'_>) -> Extras {
    Extras {
        request_headers: header_rules(table, "request_headers"),
        response_headers: header_rules(table, "response_headers"),
        upstream_host: table.read_if_any(&route::UPSTREAM_HOST),
        rewrite: table.item(&route::REWRITE).and_then(|item| rewrite(&item)),
        cors: table.take("cors").and_then(|item| cors(&item)),
        compress: table.take("compress").and_then(|item| compress(&item)),
        upgrade: upgrade(table),
        refusals: refusals(table),
    }
}

fn upgrade(table: &mut Table<'_>) -> Upgrade {
    let mut settings = Upgrade::default();
    let mut upgrade = table.section("upgrade");
    if let Some(item) = upgrade.item(&upgrade::PROTOCOLS) {
        let items = item.list(upgrade::PROTOCOLS.kind.max);
        let protocol = |item| text(item, "a protocol such as \"websocket\"");
        settings.protocols = items.iter().filter_map(protocol).collect();
    }
    settings.idle = upgrade.read(&upgrade::IDLE);
    upgrade.finish();
    settings
}

fn cors(item: &Item<'_>) -> Option<Cors> {
    let mut table = item.table()?;
    let origins = table
        .required_list(&cors::ORIGINS)?
        .list(cors::ORIGINS.kind.max)
        .iter()
        .filter_map(|item| text(item, "an origin such as \"https://app.example.com\""))
        .collect();
    let cors = Cors {
        origins,
        credentials: table.read(&cors::CREDENTIALS),
        preflight: table.read(&cors::PREFLIGHT),
    };
    table.finish();
    Some(cors)
}

/// `compress = true`, or a table of what differs from the defaults.
fn compress(item: &Item<'_>) -> Option<Compress> {
    let mut settings = Compress::default();
    match item.value.as_bool() {
        Some(true) => return Some(settings),
        Some(false) => return None,
        None if !item.value.is_table() => {
            item.wrong("true, false, or a table such as { min_bytes = \"1KiB\" }");
            return None;
        }
        None => {}
    }
    let mut table = item.table()?;
    if let Some(item) = table.item(&compress::ENCODINGS) {
        let items = item.list(compress::ENCODINGS.kind.max);
        let codings = items.iter().filter_map(|item| ENCODINGS.read(item));
        settings.encodings = codings.collect();
        not_empty(&item, items.len());
    }
    if let Some(item) = table.item(&compress::TYPES) {
        let items = item.list(compress::TYPES.kind.max);
        let expected = "a media type such as \"application/json\"";
        settings.types = items.iter().filter_map(|item| text(item, expected)).collect();
        not_empty(&item, items.len());
    }
    settings.min_bytes = table.read(&compress::MIN_BYTES);
    settings.level = table.read(&compress::LEVEL);
    table.finish();
    Some(settings)
}

/// A list that leaves nothing to compress is a mistake: `compress = false` says it better.
fn not_empty(item: &Item<'_>, count: usize) {
    if count == 0 && item.value.is_array() {
        item.found("an empty array", "at least one, or `compress = false`", None);
    }
}

/// `[[refusals]]`: those of a route, or those that hold everywhere.
pub(super) fn refusals(table: &mut Table<'_>) -> Vec<RefusalPage> {
    table.list("refusals", PAGES_MAX).iter().filter_map(refusal).collect()
}

fn refusal(item: &Item<'_>) -> Option<RefusalPage> {
    let mut table = item.table()?;
    let written = table.need(refusals::STATUS.key, "a status such as 429, or several in an array");
    let statuses = written.map(|item| statuses(&item)).unwrap_or_default();
    let content_type = table.read_if_any(&refusals::CONTENT_TYPE);
    let (body, body_file) = (&refusals::BODY, &refusals::BODY_FILE);
    let written = self::body(&mut table, body, body_file);
    if written.is_none() && !table.has(body.key) && !table.has(body_file.key) {
        table.missing(body.key, "`body = \"...\"` or `body_file = \"refused.html\"`");
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
    let one = |item: &Item<'_>| refusals::STATUS.kind.kind.read(item);
    if item.value.is_array() {
        item.list(STATUSES_MAX).iter().filter_map(one).collect()
    } else {
        one(item).into_iter().collect()
    }
}

fn header_rules(table: &mut Table<'_>, key: &'static str) -> HeaderRules {
    let mut rules = table.section(key);
    let set = fields(&mut rules, &rules::SET, |item| Vec::from_iter(text(item, "a field's value")));
    let add = added(&mut rules, &rules::ADD);
    let remove = rules
        .items(&rules::REMOVE)
        .iter()
        .filter_map(|item| text(item, "a field's name"))
        .collect();
    let mut secrets = Vec::new();
    for setting in [&rules::SET_FILE, &rules::ADD_FILE] {
        secrets.extend(secret_fields(&mut rules, setting, |item| item.secret_in_file()));
    }
    for setting in [&rules::SET_ENV, &rules::ADD_ENV] {
        secrets.extend(secret_fields(&mut rules, setting, |item| item.secret_in_env()));
    }
    rules.finish();
    HeaderRules { set, add, remove, secrets }
}

/// Fields whose values are in files or in the environment:
/// `set_file = { Authorization = "/run/secrets/upstream" }`.
fn secret_fields<'a>(
    rules: &mut Table<'a>,
    setting: &Setting<List>,
    read: impl Fn(&Item<'a>) -> Option<String>,
) -> Vec<SecretField> {
    let values = fields(rules, setting, |item| Vec::from_iter(read(item)));
    let field = |(name, value)| SecretField { key: setting.key, name, value };
    values.into_iter().map(field).collect()
}

/// Fields that may be repeated: the values are then in an array.
fn added(table: &mut Table<'_>, setting: &Setting<List>) -> Vec<(String, String)> {
    const EXPECTED: &str = "a field's value, or several in an array";
    fields(table, setting, |item| match item.value.is_array() {
        true => {
            item.list(setting.kind.max).iter().filter_map(|item| text(item, EXPECTED)).collect()
        }
        false => Vec::from_iter(text(item, EXPECTED)),
    })
}

fn fields<'a>(
    table: &mut Table<'a>,
    setting: &Setting<List>,
    values: impl Fn(&Item<'a>) -> Vec<String>,
) -> Vec<(String, String)> {
    let named = table.entries(setting, "fields").into_iter();
    named
        .flat_map(|(name, item)| values(&item).into_iter().map(move |value| (name.clone(), value)))
        .collect()
}

fn rewrite(item: &Item<'_>) -> Option<Rewrite> {
    if item.value.is_str() {
        return text(item, route::REWRITE.expected()).map(Rewrite::Template);
    }
    if !item.value.is_table() {
        item.wrong(route::REWRITE.expected());
        return None;
    }
    let mut table = item.table()?;
    let strip = table.read_if_any(&rewrite::STRIP_PREFIX);
    let add = table.read_if_any(&rewrite::ADD_PREFIX);
    let (pattern, to) = (table.read_if_any(&rewrite::MATCH), table.read_if_any(&rewrite::TO));
    table.finish();
    match (pattern, to) {
        (Some(pattern), Some(to)) if strip.is_none() && add.is_none() => {
            return Some(Rewrite::Expression { pattern, to });
        }
        (None, None) => {}
        _ => {
            let expected = "`match` with `to`, or `strip_prefix` and `add_prefix`";
            item.found("parts of two rewrites, or one half", expected, None);
            return None;
        }
    }
    if item.value.as_table().is_some_and(|table| table.is_empty()) {
        item.found("neither `strip_prefix` nor `add_prefix`", "one of the two, or both", None);
    }
    (strip.is_some() || add.is_some()).then_some(Rewrite::Prefix { strip, add })
}

/// `respond = { .. }`.
pub(super) fn respond(item: &Item<'_>) -> Option<Respond> {
    let mut table = item.table()?;
    let body = body(&mut table, &respond::BODY, &respond::BODY_FILE);
    let respond = Respond {
        status: table.read(&respond::STATUS),
        body: body.map(|(_, body)| body).unwrap_or_default(),
        content_type: table.read_if_any(&respond::CONTENT_TYPE),
        headers: added(&mut table, &respond::HEADERS),
    };
    table.finish();
    Some(respond)
}

/// The text of `body` or `body_file`, and the setting that it comes from.
fn body<'a>(
    table: &mut Table<'a>,
    body: &Setting<Else<Text>>,
    body_file: &Setting<Else<Text>>,
) -> Option<(Item<'a>, Bytes)> {
    match (table.item(body), table.item(body_file)) {
        (Some(_), Some(file)) => {
            file.found_key("both `body` and `body_file`", "one of the two", None);
            None
        }
        (Some(item), None) => {
            let body = item.parsed(body.expected(), |text| {
                (text.len() <= BODY_TEXT_BYTES_MAX).then(|| Bytes::copy_from_slice(text.as_bytes()))
            })?;
            Some((item, body))
        }
        (None, Some(item)) => {
            let (_, bytes) =
                item.notes.named_file(&item, body_file.expected(), BODY_FILE_BYTES_MAX)?;
            Some((item, bytes.into()))
        }
        (None, None) => None,
    }
}

fn text(item: &Item<'_>, expected: &str) -> Option<String> {
    item.text(expected).map(str::to_owned)
}
