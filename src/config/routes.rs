//! `[[routes]]`: as written, with the names checked. What a path means and which route wins is
//! decided by the module that routes.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use super::extras::{extras, respond};
use super::finding::Mark;
use super::reader::{Item, Table};
use super::settings::routes::{mirror, redirect, route, route_timeouts, when};
use super::{Mirror, NAME_BYTES_MAX, Route, RouteAction, check_name, is_name};
use crate::plan::OnStoreError;
use crate::proxy::settings::{HashBy, Inspect, Redirect, When};
use crate::telemetry::SettingError;
use crate::upstream::Overrides;

const ROUTES_MAX: usize = 10_000;
/// Maximum number of values of a condition.
const VALUES_MAX: usize = 100;
/// The fact that says who a sender is, for a share of the senders.
const SENDER: &str = "client-ip";
/// What a route may refer to, and what it inherits.
#[derive(Debug)]
pub(super) struct RouteDefaults {
    pub(super) upstreams: Vec<String>,
    pub(super) policies: Vec<String>,
    /// The names of the listeners that have one.
    pub(super) listeners: Vec<String>,
    /// Whether a listener serves decisions.
    pub(super) decides: bool,
    pub(super) on_store_error: OnStoreError,
    pub(super) body_bytes_max: u64,
    pub(super) inspect_bytes_max: u64,
}

pub(super) fn routes(root: &mut Table<'_>, above: &RouteDefaults) -> Vec<Route> {
    let Some(written) = root.need("routes", "one `[[routes]]` or more") else { return Vec::new() };
    let items = written.list(ROUTES_MAX);
    if items.is_empty() && written.value.is_array() {
        written.found("no route", "one `[[routes]]` or more", None);
    }
    let mut names = HashMap::new();
    items.iter().filter_map(|item| route(item, above, &mut names)).collect()
}

/// Which requests a route takes.
#[derive(Clone, PartialEq, Eq)]
struct Requests {
    host: Option<String>,
    path: String,
    domain: Option<String>,
    methods: Vec<String>,
    listeners: Vec<String>,
    /// Not all of them.
    is_variant: bool,
}

/// The names so far, each with the setting that it comes from and the route's requests.
type Names = HashMap<String, (String, Requests)>;

fn route(item: &Item<'_>, above: &RouteDefaults, names: &mut Names) -> Option<Route> {
    let mut table = item.table()?;
    let domain_item = table.item(&route::DOMAIN);
    let domain = domain_item.as_ref().map(|item| domain(item, &mut table, above));
    let (path_item, path) = match domain {
        Some(_) => (domain_item, Some("")),
        None => {
            let path_item = table.required(&route::PATH);
            let path = path_item.as_ref().and_then(|item| item.text(route::PATH.expected()));
            (path_item, path)
        }
    };
    let host = table.read_if_any(&route::HOST);
    let methods: Vec<String> = table
        .items(&route::METHODS)
        .iter()
        .filter_map(|item| item.text("a method such as \"GET\"").map(str::to_owned))
        .collect();
    let listeners = listeners(&mut table, &above.listeners);
    let requests = Requests {
        host: host.clone(),
        path: path.unwrap_or_default().to_owned(),
        domain: domain.clone().flatten(),
        methods: methods.clone(),
        listeners: listeners.clone(),
        is_variant: table.has("when"),
    };
    let made_from = domain.as_ref().map(|domain| domain.as_deref().unwrap_or_default());
    let name = name(&mut table, (path_item.as_ref(), made_from), requests, names);
    let action = match domain {
        Some(domain) => domain.map(RouteAction::Decide),
        None => action(&mut table, above),
    };
    let policy =
        table.item(&route::POLICY).and_then(|item| item.reference(&above.policies, "a policy"));
    let on_store_error = table.read_if_any(&route::ON_STORE_ERROR);
    let inspect = Inspect {
        bytes_max: table.read_if_any(&route::INSPECT_BYTES).unwrap_or(above.inspect_bytes_max),
        oversized: table.read(&route::INSPECT_OVERSIZED),
    };
    let body_bytes_max = table.read_if_any(&route::BODY_BYTES).unwrap_or(above.body_bytes_max);
    let allow_on_policy_error = table.read(&route::ON_POLICY_ERROR);
    let scope_is_route = table.read(&route::LIMIT_SCOPE);
    let fields = table.read(&route::RATELIMIT_FIELDS);
    let (request_timeout, overrides) = overrides(&mut table);
    let hash = table.item(&route::HASH).and_then(|item| hash(&item));
    let mirror = mirror(table.section("mirror"), &above.upstreams);
    let priority = table.read(&route::PRIORITY);
    let when = when(table.section("when"));
    let extras = extras(&mut table);
    let maintenance = table.item(&route::MAINTENANCE).and_then(|item| item.switch());
    match action {
        Some(RouteAction::Respond(_) | RouteAction::Redirect(_)) => of_upstreams_only(&table),
        Some(RouteAction::Decide(_)) => of_requests_only(&table),
        Some(RouteAction::Upstream(_)) | None => {}
    }
    table.finish();
    Some(Route {
        name,
        host,
        path: path?.to_owned(),
        methods,
        listeners,
        action: action?,
        policy,
        allow_on_policy_error,
        on_store_error: on_store_error.flatten().unwrap_or(above.on_store_error),
        limit_decides: on_store_error == Some(None),
        scope_is_route,
        fields,
        body_bytes_max,
        inspect,
        request_timeout,
        overrides,
        hash,
        mirror,
        priority,
        maintenance,
        when,
        extras,
    })
}

/// Which requests it takes; `None` if all.
fn when(mut table: Table<'_>) -> Option<When> {
    if !table.is_present() {
        return None;
    }
    let share = table.read_if_any(&when::SHARE);
    let by = table.item(&when::BY);
    let by = by.as_ref().and_then(|item| fact(item, when::BY.expected()));
    let mut facts = Vec::new();
    let written = conditions("", &table, &mut facts);
    if share.is_none() && table.has(when::BY.key) {
        table.found("`by` without a `share`", "a `share` of those senders, such as `share = 5`");
    } else if written == 0 && !table.has(when::SHARE.key) {
        table.found("no condition", "a fact such as `header.x-version = \"2\"`, or a `share`");
    }
    Some(When { facts, share, by: by.unwrap_or_else(|| SENDER.to_owned()) })
}

/// The facts of a table, and of those in it: TOML reads `header.x-version` as a table in a table.
/// Returns how many are written.
fn conditions(start: &str, table: &Table<'_>, facts: &mut Vec<(String, Vec<String>)>) -> usize {
    let mut written = 0;
    for (key, item) in table.named() {
        if start.is_empty() && [when::SHARE.key, when::BY.key].contains(&key.as_str()) {
            continue;
        }
        let name = format!("{start}{key}");
        if item.value.is_table() {
            if let Some(inner) = item.table() {
                written += conditions(&format!("{name}."), &inner, facts);
            }
            continue;
        }
        written += 1;
        if ["upstream-path", "route"].contains(&name.as_str()) {
            item.found_key(format!("the fact `{name}`"), "a fact that is known before", None);
            continue;
        }
        if is_of_body(&name) || crate::proxy::fact_names().request.check("when", &name).is_err() {
            item.found_key(
                format!("the unknown key {name:?}"),
                "`share`, `by` or a fact of requests, except those of bodies: see docs/facts.md",
                None,
            );
            continue;
        }
        let expected = "a text, or an array of them, of which one has to be there; \"*\" for any, \
                        \"~...\" for a regular expression";
        let values: Vec<String> = match item.value.as_str() {
            Some(value) => vec![value.to_owned()],
            None if !item.value.is_array() => {
                item.wrong(expected);
                continue;
            }
            None => {
                let items = item.list(VALUES_MAX);
                items.iter().filter_map(|item| item.text(expected).map(str::to_owned)).collect()
            }
        };
        if values.is_empty() && item.value.is_array() {
            item.wrong("one value or more");
        }
        if name == "path" && values.iter().any(|value| !value.starts_with('~')) {
            item.found_key(
                "the fact `path`",
                "a route with this path, which takes all spellings that upstreams read alike; or a \
                 regular expression, such as \"~/v[0-9]+/.*\"",
                None,
            );
            continue;
        }
        let values = match name == SENDER {
            true => addresses(&item, &values),
            false => values,
        };
        facts.push((name, values));
    }
    written
}

/// Addresses of clients as facts write them: another spelling would never be there.
fn addresses(item: &Item<'_>, values: &[String]) -> Vec<String> {
    let one = |value: &String| {
        if value == "*" || value.starts_with('~') {
            return Some(value.clone());
        }
        let address: Option<IpAddr> = value.parse().ok();
        if address.is_none() {
            let expected = "addresses, such as \"2001:db8::1\"; for a network a regular \
                            expression, such as \"~10\\\\..*\"";
            item.found(format!("{value:?}"), expected, None);
        }
        address.map(|address| address.to_canonical().to_string())
    };
    values.iter().filter_map(one).collect()
}

/// Whether a fact is only known once the body is read.
fn is_of_body(name: &str) -> bool {
    ["body", "form"].iter().any(|family| name.starts_with(family))
}

/// The name of a fact that is there without the body.
pub(super) fn fact(item: &Item<'_>, expected: &str) -> Option<String> {
    let name = item.text(expected)?;
    match crate::proxy::fact_names().request.check("this", name) {
        Ok(name) if !is_of_body(&name) => Some(name),
        _ => {
            item.wrong(expected);
            None
        }
    }
}

/// The name as written, or one made from the path. Never a number: if the name depended on the
/// order of routes, reordering them would change which counters a route charges.
fn name(
    table: &mut Table<'_>,
    (path_item, domain): (Option<&Item<'_>>, Option<&str>),
    requests: Requests,
    names: &mut Names,
) -> String {
    let written = table.item(&route::NAME);
    let text = written.as_ref().and_then(|item| item.text("a name").map(|name| (name, item)));
    if let Some((name, item)) = text {
        check_name(name, item);
    }
    let made = || name_of(domain.unwrap_or(&requests.path));
    let name = text.map_or_else(made, |(name, _)| name.to_owned());
    let Some(item) = written.as_ref().or(path_item) else { return name };
    let Some((other, theirs)) = names.insert(name.clone(), (item.path.clone(), requests.clone()))
    else {
        return name;
    };
    // Two routes for the same requests can't be told apart, whatever their names. The router
    // reports that.
    if written.is_some() || theirs != requests || requests.is_variant {
        let route = other.rsplit_once('.').map_or(other.as_str(), |(route, _)| route);
        let from = if domain.is_some() { "domain" } else { "path" };
        let (found, help) = match written {
            Some(_) => (format!("the name \"{name}\", which {route} has"), None),
            None => (
                format!("no name, and the one made of the {from}, \"{name}\", which {route} has"),
                Some("write a `name`".to_owned()),
            ),
        };
        let error = SettingError::new(item.path.clone(), found, "a name that no other route has")
            .beside(other.clone(), format!("{route} is here"));
        item.notes.add(error, Mark::Value, help);
    }
    name
}

/// `/v1/users/{id}/*` is called `v1-users-id-all`, `/` is `root`.
fn name_of(path: &str) -> String {
    let words = path
        .split('/')
        .filter(|segment| !segment.is_empty())
        .map(|segment| if segment == "*" { "all" } else { segment });
    let joined = words.collect::<Vec<_>>().join("-");
    let kept: String = joined
        .chars()
        .filter(|c| is_name(c.encode_utf8(&mut [0; 4])))
        .take(NAME_BYTES_MAX)
        .collect();
    if kept.is_empty() { "root".into() } else { kept }
}

/// The listeners that it is on; all where none are written.
fn listeners(table: &mut Table<'_>, known: &[String]) -> Vec<String> {
    let Some(written) = table.item(&route::LISTENERS) else { return Vec::new() };
    let items = written.list(route::LISTENERS.kind.max);
    if items.is_empty() && written.value.is_array() {
        written.found(
            "no listener",
            "the names of one or more",
            Some("without this setting, a route is on all".into()),
        );
    }
    let mut names: Vec<String> = Vec::new();
    for item in &items {
        let Some(name) = item.reference(known, "a listener") else { continue };
        if names.contains(&name) {
            item.wrong("each listener once");
        }
        names.push(name);
    }
    names
}

fn action(table: &mut Table<'_>, above: &RouteDefaults) -> Option<RouteAction> {
    let redirected = table.item(&route::REDIRECT);
    match (table.item(&route::UPSTREAM), table.take("respond"), redirected) {
        (Some(upstream), None, None) => {
            upstream.reference(&above.upstreams, "an upstream").map(RouteAction::Upstream)
        }
        (None, Some(written), None) => respond(&written).map(RouteAction::Respond),
        (None, None, Some(written)) => redirect(&written).map(RouteAction::Redirect),
        (None, None, None) => {
            table.missing(
                "upstream",
                "`upstream = \"NAME\"`, or `respond = { status = 200, body = \"ok\" }`, or \
                 `redirect = \"/new/*\"`",
            );
            None
        }
        (Some(_), Some(respond), None) => {
            respond.found_key("both `upstream` and `respond`", "one of the two", None);
            None
        }
        (_, _, Some(redirect)) => {
            let found = "`redirect` with `upstream` or `respond`";
            redirect.found_key(found, "one of the three", None);
            None
        }
    }
}

/// `redirect`: a text, or a table.
fn redirect(item: &Item<'_>) -> Option<Redirect> {
    if item.value.is_str() {
        let to = item.text(route::REDIRECT.expected())?.to_owned();
        return Some(Redirect { to, pattern: None, status: redirect::STATUS.kind.default });
    }
    if !item.value.is_table() {
        item.wrong(route::REDIRECT.expected());
        return None;
    }
    let mut table = item.table()?;
    let to = table.required(&redirect::TO).and_then(|item| item.text(redirect::TO.expected()));
    let pattern = table.read_if_any(&redirect::MATCH);
    let status = table.read(&redirect::STATUS);
    table.finish();
    Some(Redirect { to: to?.to_owned(), pattern, status })
}

/// Time for a whole request, unbounded where none is written; and what holds instead of the
/// upstream's own settings.
fn overrides(table: &mut Table<'_>) -> (Option<Duration>, Overrides) {
    let retry = table.read_if_any(&route::RETRY);
    let mut timeouts = table.section("timeouts");
    let request = timeouts.read_if_any(&route_timeouts::REQUEST);
    let response_header = timeouts.read_if_any(&route_timeouts::RESPONSE_HEADER);
    let idle = timeouts.read_if_any(&route_timeouts::IDLE);
    timeouts.finish();
    (request, Overrides { retry, response_header, idle })
}

/// `hash`: a fact, or `"off"`.
fn hash(item: &Item<'_>) -> Option<HashBy> {
    if item.value.as_str() == Some("off") {
        return Some(HashBy::Nothing);
    }
    fact(item, route::HASH.expected()).map(HashBy::Fact)
}

/// Where requests are copied to.
fn mirror(mut table: Table<'_>, upstreams: &[String]) -> Option<Mirror> {
    if !table.is_present() {
        return None;
    }
    let upstream = table.required(&mirror::UPSTREAM);
    let upstream = upstream.and_then(|item| item.reference(upstreams, "an upstream"));
    let share = table.read_if_any(&mirror::SHARE);
    let body_bytes_max = table.read(&mirror::BODY_BYTES);
    table.finish();
    Some(Mirror { upstream: upstream?, share, body_bytes_max })
}

/// The domain of a route that decides what others ask.
fn domain(item: &Item<'_>, table: &mut Table<'_>, above: &RouteDefaults) -> Option<String> {
    if !above.decides {
        let found = "`domain`, and no listener for what is asked about it";
        item.found_key(found, "a `[[listeners]]` with `serves = \"decisions\"`", None);
    }
    if !table.has(route::POLICY.key) {
        table.missing("policy", "`policy = \"NAME\"`, which says what is limited");
    }
    // Settings that it can't have are read, and have no effect.
    let _ = (table.item(&route::PATH), table.item(&route::UPSTREAM));
    let _ = (table.take("respond"), table.item(&route::REDIRECT));
    let domain = item.text(route::DOMAIN.expected())?;
    if domain.is_empty() || domain.len() > NAME_BYTES_MAX {
        item.wrong("1 to 64 bytes");
        return None;
    }
    Some(domain.to_owned())
}

/// Settings without an effect on a route that has a domain.
fn of_requests_only(table: &Table<'_>) {
    of_upstreams_only(table);
    for key in [
        "path",
        "host",
        "methods",
        "listeners",
        "upstream",
        "respond",
        "redirect",
        "when",
        "cors",
        "response_headers",
        "compress",
        "body_bytes",
        "inspect_bytes",
        "inspect_oversized",
    ] {
        table.useless(key, "a route with a `path`");
    }
}

/// Settings without an effect on a route that has no upstream are errors: they were written to
/// have one.
fn of_upstreams_only(table: &Table<'_>) {
    for key in [
        "request_headers",
        "upstream_host",
        "rewrite",
        "timeouts",
        "upgrade",
        "retry",
        "hash",
        "mirror",
    ] {
        table.useless(key, "a route with an `upstream`");
    }
}
