//! `[[routes]]`: as written, with the names checked. What a path means and which route wins is
//! decided by the module that routes.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use super::extras::{extras, respond};
use super::reader::{Item, Mark, Table};
use super::server::{BODY_BYTES, INSPECT_BYTES, LISTENERS_MAX};
use super::store::FALLBACKS;
use super::{NAME_BYTES_MAX, Route, RouteAction, check_name, is_name};
use crate::plan::OnStoreError;
use crate::proxy::{FieldStyle, Inspect, Oversized};
use crate::telemetry::Mistake;

const ROUTES_MAX: usize = 10_000;
const METHODS_MAX: usize = 32;
/// For a whole request: a download may take hours.
const REQUEST: RangeInclusive<Duration> =
    Duration::from_millis(1)..=Duration::from_secs(24 * 3_600);

/// What a route may refer to, and what it inherits.
#[derive(Debug)]
pub(super) struct Above {
    pub(super) upstreams: Vec<String>,
    pub(super) policies: Vec<String>,
    /// The names of the listeners that have one.
    pub(super) listeners: Vec<String>,
    pub(super) on_store_error: OnStoreError,
    pub(super) body_bytes_max: u64,
    pub(super) inspect: Inspect,
}

pub(super) fn routes(root: &mut Table<'_>, above: &Above) -> Vec<Route> {
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
    methods: Vec<String>,
    listeners: Vec<String>,
}

/// The names so far, each with the setting that it comes from and the route's requests.
type Names = HashMap<String, (String, Requests)>;

fn route(item: &Item<'_>, above: &Above, names: &mut Names) -> Option<Route> {
    let mut table = item.table()?;
    let path_item = table.need("path", "a path such as \"/*\" or \"/v1/users/{id}\"");
    let path = path_item.as_ref().and_then(|item| item.text("a path such as \"/*\""));
    let host = table.take("host").and_then(|item| {
        item.text("a host such as \"api.example.com\" or \"*.example.com\"").map(str::to_owned)
    });
    let methods = table.list("methods", METHODS_MAX);
    let methods: Vec<String> = methods
        .iter()
        .filter_map(|item| item.text("a method such as \"GET\"").map(str::to_owned))
        .collect();
    let listeners = listeners(&mut table, &above.listeners);
    let requests = Requests {
        host: host.clone(),
        path: path.unwrap_or_default().to_owned(),
        methods: methods.clone(),
        listeners: listeners.clone(),
    };
    let name = name(&mut table, path_item.as_ref(), requests, names);
    let action = action(&mut table, above);
    let policy = table.take("policy").and_then(|item| item.reference(&above.policies, "a policy"));
    let mut allow_on_policy_error = false;
    let on_policy_error = [("deny", false), ("allow", true)];
    table.choice("on_policy_error", &on_policy_error, &mut allow_on_policy_error);
    let (on_store_error, limit_decides) = on_store_error(&mut table, above.on_store_error);
    let mut scope_is_route = false;
    table.choice("limit_scope", &[("policy", false), ("route", true)], &mut scope_is_route);
    let styles = [
        ("draft", FieldStyle::Draft),
        ("legacy", FieldStyle::Legacy),
        ("both", FieldStyle::Both),
        ("off", FieldStyle::Off),
    ];
    let mut fields = FieldStyle::default();
    table.choice("ratelimit_fields", &styles, &mut fields);
    let mut body_bytes_max = above.body_bytes_max;
    table.size("body_bytes", BODY_BYTES, &mut body_bytes_max);
    let mut inspect = above.inspect;
    table.size("inspect_bytes", INSPECT_BYTES, &mut inspect.bytes_max);
    let oversized = [("refuse", Oversized::Refuse), ("pass", Oversized::Pass)];
    table.choice("inspect_oversized", &oversized, &mut inspect.oversized);
    let request_timeout = request_timeout(&mut table);
    let extras = extras(&mut table);
    if matches!(action, Some(RouteAction::Respond(_))) {
        of_upstreams_only(&table);
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
        on_store_error,
        limit_decides,
        scope_is_route,
        fields,
        body_bytes_max,
        inspect,
        request_timeout,
        extras,
    })
}

/// The name as written, or one made from the path. Never a number: if the name depended on the
/// order of routes, reordering them would change which counters a route charges.
fn name(
    table: &mut Table<'_>,
    path_item: Option<&Item<'_>>,
    requests: Requests,
    names: &mut Names,
) -> String {
    let written = table.take("name");
    let text = written.as_ref().and_then(|item| item.text("a name").map(|name| (name, item)));
    if let Some((name, item)) = text {
        check_name(name, item);
    }
    let name = text.map_or_else(|| name_of(&requests.path), |(name, _)| name.to_owned());
    let Some(item) = written.as_ref().or(path_item) else { return name };
    let Some((other, theirs)) = names.insert(name.clone(), (item.path.clone(), requests.clone()))
    else {
        return name;
    };
    // Two routes for the same requests can't be told apart, whatever their names. The router
    // reports that.
    if written.is_some() || theirs != requests {
        let help = if written.is_some() {
            None
        } else {
            Some("write a `name`; without one it is made from the path".to_owned())
        };
        let route = other.rsplit_once('.').map_or(other.as_str(), |(route, _)| route);
        let found = format!("the name \"{name}\", which {route} has");
        let mistake = Mistake::new(item.path.clone(), found, "a name that no other route has")
            .beside(other.clone(), format!("{route} is here"));
        item.notes.add(mistake, Mark::Value, help);
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
    let Some(written) = table.take("listeners") else { return Vec::new() };
    let items = written.list(LISTENERS_MAX);
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

fn action(table: &mut Table<'_>, above: &Above) -> Option<RouteAction> {
    match (table.take("upstream"), table.take("respond")) {
        (Some(upstream), None) => {
            upstream.reference(&above.upstreams, "an upstream").map(RouteAction::Upstream)
        }
        (None, Some(written)) => respond(&written).map(RouteAction::Respond),
        (None, None) => {
            table.missing(
                "upstream",
                "`upstream = \"NAME\"`, or `respond = { status = 200, body = \"ok\" }`",
            );
            None
        }
        (Some(_), Some(respond)) => {
            respond.found_key("both `upstream` and `respond`", "one of the two", None);
            None
        }
    }
}

/// Time for a whole request; unbounded where none is written.
fn request_timeout(table: &mut Table<'_>) -> Option<Duration> {
    let mut timeouts = table.section("timeouts");
    let request = timeouts.take("request").and_then(|item| item.duration(REQUEST));
    timeouts.finish();
    request
}

/// Settings without an effect on a route that has no upstream are mistakes: they were written to
/// have one.
fn of_upstreams_only(table: &Table<'_>) {
    for key in ["request_headers", "upstream_host", "rewrite", "timeouts", "upgrade"] {
        table.useless(key, "a route with an `upstream`");
    }
}

/// The store's setting, unless the route has its own; and whether a limit may be looser than that.
fn on_store_error(table: &mut Table<'_>, store: OnStoreError) -> (OnStoreError, bool) {
    let Some(item) = table.take("on_store_error") else { return (store, false) };
    let mut words = FALLBACKS.map(|(word, fallback)| (word, (fallback, false))).to_vec();
    words.push(("policy", (store, true)));
    item.choice(&words).unwrap_or((store, false))
}
