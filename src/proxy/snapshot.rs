//! Everything a request needs, built as a whole from one configuration and never changed. Knows how
//! things are found, not what is done with them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Method, StatusCode};

use crate::limit::Limiter;
use crate::listen::Serves;
use crate::proxy::decide::Decider;
use crate::proxy::decide::facts::RouteTraits;
use crate::proxy::forward::extras::RequestExtras;
use crate::proxy::forward::trailers::ChangedFields;
use crate::proxy::forward::tunnel::Upgrades;
use crate::proxy::handle::{PolicyScope, RouteHandle};
use crate::proxy::receive::target::Target;
use crate::proxy::refusal::{Check, Refusal};
use crate::proxy::reply::extras::{self, ReplyExtras};
use crate::proxy::reply::page::Page;
use crate::proxy::route::redirect::Redirection;
use crate::proxy::route::routes::{Matcher, RoutingError};
use crate::proxy::route::tables::{Table, Tables};
use crate::proxy::route::trie::{Match, Pattern, UnreachedRoute};
use crate::proxy::settings::{
    self, EncodedSlash, FieldStyle, Maintenance, Paths, Respond, RouteSettings, Settings, Unrouted,
};
use crate::proxy::tally::NO_ROUTE;
use crate::telemetry::{Metrics, SettingError};
use crate::upstream::{Overrides, Upstream};
use crate::wire::{Fields, Known, Request};

use crate::proxy::decide::facts::{self, RequestView};
use crate::proxy::decide::variants::Condition;
use crate::proxy::forward::mirror::Mirror;
use crate::proxy::forward::rules;
use crate::proxy::forward::sender::HostQuery;
use crate::proxy::receive::path;
use crate::proxy::route::cors;

/// Everything a request needs, built as a whole from one configuration and never changed. A reload
/// replaces it as a whole.
#[derive(Debug)]
pub struct Snapshot {
    pub(super) settings: Settings,
    tables: Tables,
    pub(super) limiter: Arc<Limiter>,
    table: Vec<Route>,
    /// The routes of calls for decisions by their domains, by index.
    domains: HashMap<String, usize>,
    /// The handle for requests that match no route.
    no_route: RouteHandle,
}

/// A route, built.
#[derive(Debug)]
pub(super) struct Route {
    pub(super) action: Action,
    pub(super) decider: Option<Decider>,
    pub(super) body_bytes_max: u64,
    pub(super) request_timeout: Option<Duration>,
    /// The routes that take some of its requests, by index, in the order in which they are asked.
    pub(super) variants: Vec<usize>,
    /// Whether its path ends in a slash, if it redirects and that makes a difference to it.
    slash: Option<bool>,
    /// Which requests it takes, if it is a variant.
    condition: Option<Condition>,
    /// Which host of the upstream a request belongs to, if it may belong to one.
    pub(super) host_query: Option<Box<HostQuery>>,
    /// What it asks of the upstream instead of the upstream's own settings.
    pub(super) overrides: Option<Arc<Overrides>>,
    /// Where its requests are copied to.
    pub(super) mirror: Option<Box<Mirror>>,
    /// How much its requests matter, unless the policy says so.
    pub(super) priority: u8,
    /// Whether it is being worked on, if that may be.
    pub(super) maintenance: Option<Maintenance>,
    pub(super) extras: Option<Box<RequestExtras>>,
    /// The header fields that it changes or its policy reads.
    pub(super) touched: ChangedFields,
    pub(super) upgrades: Upgrades,
    /// Its path is spelt in the form in which routes are matched.
    is_folded: bool,
    handle: RouteHandle,
}

/// The routes without conditions, by the requests that they are for.
#[derive(Default)]
struct KnownRoutes(HashMap<Requests, (usize, Pattern)>);

/// Host, path, methods and listeners, as written.
type Requests = (Option<String>, String, Vec<String>, Vec<String>);

impl KnownRoutes {
    fn key(written: &RouteSettings) -> Requests {
        let RouteSettings { host, path, methods, listeners, .. } = written;
        let (mut methods, mut listeners) = (methods.clone(), listeners.clone());
        methods.sort_unstable();
        listeners.sort_unstable();
        (host.clone(), path.clone(), methods, listeners)
    }

    fn add(&mut self, index: usize, written: &RouteSettings, pattern: Pattern) {
        self.0.insert(Self::key(written), (index, pattern));
    }

    /// The route for the requests of this one, or the route itself.
    fn of(&self, written: &RouteSettings) -> Option<(usize, &Pattern)> {
        self.0.get(&Self::key(written)).map(|(index, pattern)| (*index, pattern))
    }
}

/// The domain of a route that is for all that have none of their own.
const ANY_DOMAIN: &str = "*";
/// The message to a client whose escaped slash some upstreams would read as a slash.
const ESCAPED_SLASH: &str =
    "the path has an escaped slash, and is another resource without the escape";

/// What a route does with a request: a [`RouteAction`](settings::RouteAction), built.
#[derive(Debug)]
pub(super) enum Action {
    Upstream(Arc<Upstream>),
    Respond(Box<DirectResponse>),
    Redirect(Box<Redirection>),
    Decide,
}

/// A response of Weir's own.
#[derive(Debug, Default)]
pub(super) struct DirectResponse {
    pub(super) status: StatusCode,
    pub(super) fields: Fields,
    pub(super) body: Bytes,
}

impl Snapshot {
    /// Builds the routes.
    ///
    /// # Errors
    /// All errors: invalid paths, hosts, methods and statuses, and routes of which neither is
    /// more specific (settings `routes[0].path` ...).
    pub fn build(
        settings: Settings,
        routes: Vec<RouteSettings>,
        limiter: Arc<Limiter>,
        metrics: &Metrics,
    ) -> Result<Self, Vec<SettingError>> {
        let differ = routes.iter().any(|route| !route.listeners.is_empty());
        let mut tables = Tables::new(settings.paths, &settings.listeners, differ);
        let mut table = Vec::with_capacity(routes.len());
        let mut errors = Vec::new();
        let mut known = KnownRoutes::default();
        let pages: Arc<[Page]> = extras::pages(&settings.refusals, "refusals", &mut errors).into();
        let mut domains = HashMap::new();
        // Those with conditions come after those that have what they leave.
        for (index, written) in routes.iter().enumerate() {
            if written.when.is_none() {
                let redirects = match &written.action {
                    settings::RouteAction::Respond(own) => (300..400).contains(&own.status),
                    settings::RouteAction::Redirect(_) => true,
                    settings::RouteAction::Upstream(_) => false,
                    settings::RouteAction::Decide(domain) => {
                        add_domain(&mut domains, domain, index, &mut errors);
                        continue;
                    }
                };
                let matcher = Matcher {
                    host: written.host.as_deref(),
                    path: &written.path,
                    methods: &written.methods,
                    redirects,
                };
                match tables.add(index, matcher, &written.listeners) {
                    Ok(pattern) => known.add(index, written, pattern),
                    Err(error) => errors.push(error),
                }
            }
        }
        let mut variants: Vec<(usize, usize)> = Vec::new();
        let no_path = Pattern::default();
        for (index, written) in routes.into_iter().enumerate() {
            let found = match &written.action {
                settings::RouteAction::Decide(_) => Some((index, &no_path)),
                _ => known.of(&written),
            };
            let Some((of, pattern)) = found else {
                if written.when.is_some() {
                    errors.push(SettingError::new(
                        format!("routes[{index}].when"),
                        "no route for the same requests without `when`",
                        "one with the same host, path, methods and listeners, for those that do \
                         not meet the conditions",
                    ));
                }
                continue;
            };
            if written.when.is_some() {
                variants.push((of, index));
            }
            let pattern = pattern.clone();
            table.push(Route::build(
                index,
                written,
                &pattern,
                &pages,
                (&settings, metrics),
                &mut errors,
            ));
        }
        if !errors.is_empty() {
            return Err(errors);
        }
        for (of, index) in variants {
            if let Some(route) = table.get_mut(of) {
                route.variants.push(index);
            }
        }
        let mut no_route =
            RouteHandle::new(NO_ROUTE.to_owned(), FieldStyle::Off, None, &settings, metrics);
        no_route.extras = ReplyExtras::no_route(&pages).map(Arc::new);
        let mut reached = table.iter().filter(|route| !matches!(route.action, Action::Decide));
        let is_limited = reached.next().map(|route| route.decider.is_some());
        let mixed = reached.any(|route| Some(route.decider.is_some()) != is_limited);
        if !mixed {
            tables.drop_exact();
        }
        Ok(Self { settings, tables, limiter, table, domains, no_route })
    }

    /// The same for trials, of whose requests none is a check of an authority, or a question of
    /// another proxy.
    #[must_use]
    pub fn for_trials(mut self) -> Self {
        let settings = &mut self.settings;
        let redirects =
            settings.unrouted.take().filter(|it| it.https_ports.iter().any(Option::is_some));
        settings.unrouted = redirects
            .map(|it| Arc::new(Unrouted { challenges: None, https_ports: it.https_ports.clone() }));
        let asked = |serves: &Serves| match serves {
            Serves::Decisions => Serves::Decisions,
            _ => Serves::Requests,
        };
        settings.serves = settings.serves.take().map(|all| all.iter().map(asked).collect());
        self
    }

    /// The listener that a trial's requests come to, unless they name one: the first whose requests
    /// are for routes.
    pub(super) fn trial_listener(&self) -> usize {
        let Settings { listeners, unrouted, .. } = &self.settings;
        let redirects = |index: usize| {
            unrouted.as_ref().is_some_and(|it| matches!(it.https_ports.get(index), Some(Some(_))))
        };
        let is_routed =
            |index: &usize| self.settings.serves(*index) != Serves::Decisions && !redirects(*index);
        (0..listeners.len()).find(is_routed).unwrap_or(0)
    }

    /// The route for a request. A preflight without a route of its own gets the route of the
    /// request that it announces, if that route has CORS rules.
    ///
    /// # Errors
    /// There is none, or the path has an escaped slash and would be decided on differently if that
    /// were a slash.
    pub(super) fn find<'r>(
        &self,
        target: Target<'r>,
        request: &Request,
    ) -> Result<Match<'r>, Refusal> {
        let found = self.find_as_read(target, request);
        if target.paths.encoded_slash == EncodedSlash::Compare
            && let Some(decoded) = path::with_decoded_slashes(target.path, target.paths)
        {
            let decoded = decoded.map_err(|found| Refusal::BadRequest(Check::Path.wrong(found)))?;
            let other = self.find_as_read(Target { path: &decoded, ..target }, request);
            if !self.agree(found.as_ref().ok(), other.as_ref().ok(), target.paths) {
                return Err(Refusal::BadRequest(Check::Path.wrong(ESCAPED_SLASH)));
            }
        }
        found.map_err(Refusal::from)
    }

    /// Whether two readings of a path are decided on in the same way.
    #[cold]
    fn agree(&self, one: Option<&Match<'_>>, other: Option<&Match<'_>>, paths: Paths) -> bool {
        let (Some(one), Some(other)) = (one, other) else {
            return one.is_none() && other.is_none();
        };
        let route = self.route(one.route);
        let variants = route.iter().flat_map(|route| &route.variants);
        let variants = variants.filter_map(|index| self.route(*index));
        let mut all = route.into_iter().chain(variants);
        let both = [&*one.parameters, &*other.parameters];
        one.route == other.route
            && all.all(|route| {
                let decider = route.decider.as_ref();
                decider.is_none_or(|decider| facts::agree(&decider.queries, both, paths))
                    && route.condition.as_ref().is_none_or(|it| it.agrees(both, paths))
            })
    }

    fn find_as_read<'r>(
        &self,
        target: Target<'r>,
        request: &Request,
    ) -> Result<Match<'r>, RoutingError> {
        let Some(table) = self.tables.of(target.listener) else {
            return Err(RoutingError::NotFound);
        };
        let host = if table.know_hosts() { target.authority.host() } else { "" };
        let path = target.path;
        match table.find(host, path, &request.method) {
            Ok(found) => Ok(self
                .with_policy(table, host, path, &request.method, found.route)
                .unwrap_or(found)),
            Err(unrouted) => {
                self.announced_by_preflight(table, host, path, request).ok_or(unrouted)
            }
        }
    }

    /// The route of the request that a preflight announces, if it has CORS rules.
    fn announced_by_preflight<'r>(
        &self,
        table: &Table,
        host: &str,
        path: &'r str,
        request: &Request,
    ) -> Option<Match<'r>> {
        let method = cors::preflight(&request.method, &request.fields)?;
        let found = table.find(host, path, &method).ok()?;
        let extras = self.route(found.route)?.handle.extras.as_ref()?;
        extras.cors.is_some().then_some(found)
    }

    /// The route for the path exactly as spelt, if that route has a policy and route `unlimited`
    /// forwards without one. `/STATIC/x` may be another resource than `/static/x`, and must not be
    /// unlimited because `/static/x` is.
    fn with_policy<'r>(
        &self,
        table: &Table,
        host: &str,
        path: &'r str,
        method: &Method,
        unlimited: usize,
    ) -> Option<Match<'r>> {
        let forwards =
            |route: &Route| route.decider.is_none() && matches!(route.action, Action::Upstream(_));
        let unlimited = self.route(unlimited).filter(|route| forwards(route))?;
        if unlimited.is_folded && is_folded(path) {
            return None;
        }
        let found = table.find_exact(host, path, method)?;
        self.route(found.route).is_some_and(|route| route.decider.is_some()).then_some(found)
    }

    /// The route for the path exactly as spelt, instead of the variant `taken` of the route `of`,
    /// if that variant has no policy: see [`with_policy`](Self::with_policy).
    ///
    /// # Errors
    /// As for [`find`](Self::find).
    pub(super) fn limited_instead<'r>(
        &self,
        target: Target<'r>,
        request: &Request,
        (of, taken): (usize, usize),
    ) -> Result<Option<Match<'r>>, Refusal> {
        let Some(table) = self.tables.of(target.listener).filter(|_| of != taken) else {
            return Ok(None);
        };
        let host = if table.know_hosts() { target.authority.host() } else { "" };
        let method = &request.method;
        // Its own route leaves such requests to it.
        let on_another = |found: &Match<'_>| found.route != of;
        let found = self.with_policy(table, host, target.path, method, taken).filter(on_another);
        if target.paths.encoded_slash == EncodedSlash::Compare
            && let Some(Ok(decoded)) = path::with_decoded_slashes(target.path, target.paths)
        {
            let other = self.with_policy(table, host, &decoded, method, taken);
            let other = other.as_ref().filter(|it| on_another(it));
            if !self.agree(found.as_ref(), other, target.paths) {
                return Err(Refusal::BadRequest(Check::Path.wrong(ESCAPED_SLASH)));
            }
        }
        Ok(found)
    }

    #[cfg(test)]
    pub(super) fn has_route(&self, path: &str) -> bool {
        self.tables.of(0).is_some_and(|table| table.find("", path, &Method::GET).is_ok())
    }

    /// The index of the route for calls about a domain.
    pub(super) fn domain(&self, name: &str) -> Option<usize> {
        self.domains.get(name).or_else(|| self.domains.get(ANY_DOMAIN)).copied()
    }

    /// The route at `index` in the configuration.
    pub(super) fn route(&self, index: usize) -> Option<&Route> {
        self.table.get(index)
    }

    /// Whether `/login/` is another spelling of `/login`.
    #[must_use]
    pub fn ignores_trailing_slash(&self) -> bool {
        !self.settings.paths.trailing_slash_exact
    }

    /// The routes that no request reaches, or none that clients usually send.
    #[must_use]
    pub fn unreached(&self) -> Vec<UnreachedRoute> {
        self.tables.unreached(self.settings.uri_bytes_max)
    }

    /// Facts that a route's policy reads but the route never has, each with the route's index.
    pub fn missing_facts(&self) -> impl Iterator<Item = (usize, &str)> {
        let deciders = self
            .table
            .iter()
            .enumerate()
            .filter_map(|(index, route)| Some((index, route.decider.as_ref()?)));
        deciders.flat_map(|(index, decider)| {
            decider.missing_facts.iter().map(move |fact| (index, fact.as_str()))
        })
    }

    /// The variant of the route at `index` that takes a request, or else the route itself.
    pub(super) fn variant(&self, index: usize, view: RequestView<'_>) -> usize {
        let Some(route) = self.route(index) else { return index };
        // As for routes without conditions: a redirect from `/docs` to `/docs/` must not match its
        // own target.
        let is_slashed = path::ends_in_slash(view.target.path, view.target.paths);
        let takes = |variant: &&usize| {
            self.route(**variant).is_some_and(|route| {
                route.slash.is_none_or(|slash| slash == is_slashed)
                    && route.condition.as_ref().is_some_and(|condition| condition.holds(view))
            })
        };
        route.variants.iter().find(takes).copied().unwrap_or(index)
    }

    /// The handle of each route, in order.
    pub(super) fn handles(&self) -> impl Iterator<Item = &RouteHandle> {
        self.table.iter().map(|route| &route.handle)
    }

    /// The handle for requests that match no route.
    pub(super) fn no_route(&self) -> &RouteHandle {
        &self.no_route
    }
}

/// Whether a path is spelt in the form in which routes are matched. If a route's and a request's
/// both are, no other reading of them exists.
fn is_folded(path: &str) -> bool {
    !path.ends_with(['/', '.'])
        && !path.contains("./")
        && !path.bytes().any(|byte| byte.is_ascii_uppercase() || matches!(byte, b';' | b'%'))
}

impl Route {
    /// Errors are added to `errors`. The route is then never used.
    fn build(
        index: usize,
        written: RouteSettings,
        pattern: &Pattern,
        pages: &Arc<[Page]>,
        (settings, metrics): (&Settings, &Metrics),
        errors: &mut Vec<SettingError>,
    ) -> Self {
        let at = format!("routes[{index}]");
        let extras = RequestExtras::build(&written.extras, pattern, &at, errors);
        let upgrades = Upgrades::build(&written.extras.upgrade, &format!("{at}.upgrade"), errors);
        let reply_extras = ReplyExtras::build(&written.extras, written.fields, pages, &at, errors);
        let action = match written.action {
            settings::RouteAction::Upstream(upstream) => Action::Upstream(upstream),
            settings::RouteAction::Decide(_) => Action::Decide,
            settings::RouteAction::Respond(own) => Action::Respond(Box::new(
                DirectResponse::build(own, &format!("{at}.respond"), errors),
            )),
            settings::RouteAction::Redirect(to) => {
                match Redirection::build(&to, pattern, &format!("{at}.redirect")) {
                    Ok(redirection) => Action::Redirect(Box::new(redirection)),
                    Err(error) => {
                        errors.push(error);
                        Action::Respond(Box::default())
                    }
                }
            }
        };
        let policy = written.policy.as_ref().map(|policy| PolicyScope {
            policy: Arc::clone(&policy.policy),
            scope: Arc::clone(&policy.scope),
        });
        let name = written.name.clone();
        let mut handle = RouteHandle::new(written.name, written.fields, policy, settings, metrics);
        handle.extras = reply_extras.map(Arc::new);
        handle.path.clone_from(&written.path);
        handle.priority = written.priority;
        let parameters: Vec<&String> = pattern.parameters().collect();
        let facts = written.policy.iter().flat_map(|policy| policy.policy.request_facts());
        let touched = ChangedFields::of(
            extras.iter().flat_map(|extras| extras.changed()),
            facts.map(String::as_str),
        );
        let traits = RouteTraits {
            parameters: &parameters,
            underscores: settings.underscores_in_headers,
            rewriting: extras.as_ref().and_then(|extras| extras.rewriting()),
            decides: matches!(action, Action::Decide),
        };
        let condition = written.when.as_ref().map(|when| {
            let at = format!("{at}.when");
            Condition::build(when, &name, (traits, &at, settings.paths), errors)
        });
        handle.may_withdraw = matches!(&action, Action::Upstream(of) if of.may_queue());
        let host_query =
            host_query(&action, written.hash.as_ref(), traits).unwrap_or_else(|found| {
                errors.push(found.under(&at));
                None
            });
        let mirror = written
            .mirror
            .as_ref()
            .map(|to| Box::new(Mirror::new(to, (&name, settings.buffered_bytes_max), metrics)));
        let overrides = Some(written.overrides).filter(|it| !it.is_empty()).map(Arc::new);
        let decider =
            written.policy.map(|policy| Decider::new(policy, traits, settings, written.inspect));
        let (body_bytes_max, request_timeout) = (written.body_bytes_max, written.request_timeout);
        let (priority, maintenance) = (written.priority, written.maintenance);
        let is_folded = is_folded(&written.path);
        Self {
            slash: redirects_with_slash(&action, pattern),
            action,
            decider,
            body_bytes_max,
            request_timeout,
            variants: Vec::new(),
            condition,
            host_query,
            overrides,
            mirror,
            priority,
            maintenance,
            extras,
            touched,
            upgrades,
            is_folded,
            handle,
        }
    }
}

/// Whether a route that redirects is for paths with a slash at their end. `None` if it does not, or
/// is for both.
fn redirects_with_slash(action: &Action, pattern: &Pattern) -> Option<bool> {
    let redirects = match action {
        Action::Redirect(_) => true,
        Action::Respond(own) => own.status.is_redirection(),
        Action::Upstream(_) | Action::Decide => false,
    };
    (redirects && !pattern.open).then(|| pattern.ends_in_slash())
}

/// Notes which route decides about a domain.
fn add_domain(
    domains: &mut HashMap<String, usize>,
    domain: &str,
    index: usize,
    errors: &mut Vec<SettingError>,
) {
    if let Some(other) = domains.insert(domain.to_owned(), index) {
        errors.push(SettingError::new(
            format!("routes[{index}].domain"),
            format!("{domain:?}, which routes[{other}] has"),
            "a domain that no other route has",
        ));
    }
}

/// How it is found which host of its upstream a request of a route belongs to.
fn host_query(
    action: &Action,
    written: Option<&settings::HashBy>,
    traits: RouteTraits<'_>,
) -> Result<Option<Box<HostQuery>>, SettingError> {
    let Action::Upstream(upstream) = action else { return Ok(None) };
    HostQuery::build(upstream, written, traits).map_err(|fact| {
        SettingError::new(
            "hash",
            format!("{fact:?}, which this route never has"),
            "a fact of its requests, such as a parameter of its path",
        )
    })
}

impl DirectResponse {
    fn build(written: Respond, at: &str, errors: &mut Vec<SettingError>) -> Self {
        let Respond { status, body, content_type, headers } = written;
        let known = StatusCode::from_u16(status).ok().filter(|_| (200..600).contains(&status));
        if known.is_none() {
            errors.push(SettingError::new(
                format!("{at}.status"),
                status.to_string(),
                "200 to 599",
            ));
        }
        let status = known.unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
        if matches!(status.as_u16(), 204 | 205 | 304) && !body.is_empty() {
            errors.push(SettingError::new(
                format!("{at}.status"),
                status.as_str(),
                "a status whose answer may have a body, or no body",
            ));
        }
        let mut fields = Fields::new();
        let content_type = match content_type {
            Some(written) => rules::content_type(&written, at, errors),
            None => {
                (!body.is_empty()).then(|| HeaderValue::from_static("text/plain; charset=utf-8"))
            }
        };
        if let Some(content_type) = content_type {
            fields.set(Known::ContentType, content_type);
        }
        for (name, value) in rules::fields(&headers, &format!("{at}.headers"), false, errors) {
            fields.append(&name, value);
        }
        Self { status, fields, body }
    }
}
