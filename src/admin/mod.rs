//! The operator's own listener and its pages: see [`PAGES`]. What the pages show is handed in;
//! `gate` decides who may see them. The live page's files are in `page/`; `events` is how it stays
//! up to date.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use arc_swap::access::{self, Access as _};
use bytes::Bytes;
use http::{Method, StatusCode};

use crate::listen::{Handler, Peer};
use crate::telemetry::{Metrics, json_for_terminals};
use crate::wire::{self, Body, Known, Request, Response};

mod counters;
mod events;
mod files;
mod gate;
#[cfg(test)]
mod tests;

pub use counters::{CounterQuery, KeySelector, TopQuery};
pub use events::{Events, SendOutcome, event};
pub use gate::{Settings, Token};

const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";
const EVENTS: &str = "text/event-stream";

/// A page for the operator.
#[derive(Debug)]
struct Page {
    path: &'static str,
    shows: PageKind,
    /// Whether it is answered without the token. Probes have none, and a browser asks for it with
    /// the live page's files, in which there is nothing of this proxy.
    is_open: bool,
    methods: &'static [Method],
}

/// What a page shows.
#[derive(Clone, Copy, Debug)]
enum PageKind {
    Metrics,
    Live,
    Ready,
    Status,
    Counters,
    Explain,
    Top,
    Reload,
    Events,
    File(&'static files::File),
}

/// All pages. The answer to other paths lists them, too.
const PAGES: &[Page] = &[
    Page { path: "/", shows: PageKind::File(&files::PAGE), is_open: true, methods: READ },
    Page { path: "/metrics", shows: PageKind::Metrics, is_open: false, methods: READ },
    Page { path: "/live", shows: PageKind::Live, is_open: true, methods: READ },
    Page { path: "/ready", shows: PageKind::Ready, is_open: true, methods: READ },
    Page { path: "/status", shows: PageKind::Status, is_open: false, methods: READ },
    // DELETE forgets counters.
    Page { path: "/counters", shows: PageKind::Counters, is_open: false, methods: READ_AND_DELETE },
    Page { path: "/explain", shows: PageKind::Explain, is_open: false, methods: READ },
    Page { path: "/top", shows: PageKind::Top, is_open: false, methods: READ },
    Page { path: "/reload", shows: PageKind::Reload, is_open: false, methods: POST },
    // What the live page shows, and its other files.
    Page { path: "/events", shows: PageKind::Events, is_open: false, methods: GET },
    Page { path: "/page.css", shows: PageKind::File(&files::STYLE), is_open: true, methods: READ },
    Page { path: "/page.js", shows: PageKind::File(&files::SCRIPT), is_open: true, methods: READ },
    Page { path: "/icon.svg", shows: PageKind::File(&files::ICON), is_open: true, methods: READ },
];

const READ: &[Method] = &[Method::GET, Method::HEAD];
const GET: &[Method] = &[Method::GET];
const POST: &[Method] = &[Method::POST];
const READ_AND_DELETE: &[Method] = &[Method::GET, Method::HEAD, Method::DELETE];

/// The paths of all pages for people and programs. The files of the live page are not among them.
pub fn page_paths() -> impl Iterator<Item = &'static str> {
    let is_part = |shows: PageKind| match shows {
        PageKind::File(file) => !file.is_page,
        _ => false,
    };
    PAGES.iter().filter(move |page| !is_part(page.shows)).map(|page| page.path)
}

/// The source of the current settings; none where no pages are served. A reload replaces them.
pub type SettingsSource = Arc<dyn access::DynAccess<Option<Settings>> + Send + Sync>;

/// What the admin pages show.
pub trait Views: Send + Sync + 'static {
    /// Whether requests can be served, as a sentence for the operator.
    ///
    /// # Errors
    /// The reason why not.
    fn ready(&self) -> impl Future<Output = Result<String, String>> + Send;
    /// `/status`: version, configuration, policies, last reloads, as JSON.
    fn status(&self) -> String;
    /// `/reload`: reads the configuration again and applies it. Returns what changed, or why it was
    /// not applied, as JSON.
    fn reload(&self) -> impl Future<Output = (StatusCode, String)> + Send;
    /// `/events`: what the live page shows, as events, for as long as somebody reads them. Called
    /// inside the runtime of the admin thread.
    ///
    /// # Errors
    /// A status and a sentence for the operator: there are too many readers.
    fn watch(&self) -> Result<Body, (StatusCode, String)>;
    /// `/counters`: those of one key as JSON. With `forget` they are deleted.
    ///
    /// # Errors
    /// A status and a sentence for the operator.
    fn counters(
        &self,
        query: CounterQuery,
        forget: bool,
    ) -> impl Future<Output = Result<String, (StatusCode, String)>> + Send;
    /// `/explain`: how the request with this id was decided, or the newest refusals, as JSON.
    ///
    /// # Errors
    /// A status and a sentence for the operator.
    fn explain(&self, request_id: Option<String>) -> Result<String, (StatusCode, String)>;
    /// `/top`: the keys that use most and that are refused most, by limit, as JSON.
    fn top(&self, query: TopQuery) -> String;
}

/// Answers the admin's requests.
pub struct Admin<V> {
    views: Arc<V>,
    metrics: Metrics,
    settings: SettingsSource,
}

impl<V> Clone for Admin<V> {
    fn clone(&self) -> Self {
        Self {
            views: Arc::clone(&self.views),
            metrics: self.metrics.clone(),
            settings: Arc::clone(&self.settings),
        }
    }
}

impl<V> fmt::Debug for Admin<V> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Admin").finish_non_exhaustive()
    }
}

impl<V: Views> Admin<V> {
    /// Admin pages over `views`, for requests that the current settings admit.
    pub fn new(views: Arc<V>, metrics: Metrics, settings: SettingsSource) -> Self {
        Self { views, metrics, settings }
    }

    async fn show(&self, page: &Page, method: &Method, query: &str) -> Response {
        match page.shows {
            PageKind::Metrics => reply(StatusCode::OK, OPENMETRICS, self.metrics.encode()),
            // A process that answers is alive. Whether it can serve is what `/ready` says.
            PageKind::Live => reply(StatusCode::OK, TEXT, "live\n"),
            PageKind::Ready => match self.views.ready().await {
                Ok(sentence) => reply(StatusCode::OK, TEXT, format!("{sentence}\n")),
                Err(reason) => reply(StatusCode::SERVICE_UNAVAILABLE, TEXT, format!("{reason}\n")),
            },
            PageKind::Status => reply(StatusCode::OK, JSON, self.views.status()),
            PageKind::File(file) => file.reply(),
            PageKind::Events => match self.views.watch() {
                Ok(events) => {
                    let mut reply = reply(StatusCode::OK, EVENTS, Bytes::new());
                    // A proxy between this and the browser must not wait for the end.
                    reply.fields.append("x-accel-buffering", "no");
                    Response { body: events, ..reply }
                }
                Err((status, sentence)) => reply(status, TEXT, format!("{sentence}\n")),
            },
            PageKind::Counters => self.counters(query, method == Method::DELETE).await,
            PageKind::Explain => shown(
                counters::parameters(query, ["request_id"])
                    .map_err(|error| (StatusCode::BAD_REQUEST, error))
                    .and_then(|[request_id]| self.views.explain(request_id)),
            ),
            PageKind::Top => shown(
                TopQuery::parse(query)
                    .map_err(|error| (StatusCode::BAD_REQUEST, error))
                    .map(|query| self.views.top(query)),
            ),
            PageKind::Reload => {
                let (status, json) = self.views.reload().await;
                reply(status, JSON, json_for_terminals(json))
            }
        }
    }

    async fn counters(&self, query: &str, forget: bool) -> Response {
        shown(match CounterQuery::parse(query) {
            Ok(query) => self.views.counters(query, forget).await,
            Err(error) => Err((StatusCode::BAD_REQUEST, error)),
        })
    }
}

/// A reply with JSON, or with why there is none.
fn shown(page: Result<String, (StatusCode, String)>) -> Response {
    match page {
        Ok(json) => reply(StatusCode::OK, JSON, json_for_terminals(json)),
        Err((status, sentence)) => reply(status, TEXT, format!("{sentence}\n")),
    }
}

impl<V: Views> Handler for Admin<V> {
    async fn call(&self, request: Request, _peer: &Arc<Peer>) -> Response {
        let target = request.target();
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let page = PAGES.iter().find(|page| page.path == path);
        let admitted = match &*self.settings.load() {
            Some(settings) => settings.admits(&request, page.is_some_and(|page| page.is_open)),
            None => return not_found(),
        };
        if let Err((status, sentence)) = admitted {
            let mut refused = reply(status, TEXT, format!("{sentence}\n"));
            if status == StatusCode::UNAUTHORIZED {
                refused.fields.set("www-authenticate", "Bearer");
            }
            return refused;
        }
        match page {
            // The body of a reply to HEAD is left out where it is sent.
            Some(page) if page.methods.contains(&request.method) => {
                self.show(page, &request.method, query).await
            }
            Some(page) => method_not_allowed(page.methods),
            None => not_found(),
        }
    }
}

fn method_not_allowed(methods: &[Method]) -> Response {
    let methods = methods.iter().map(Method::as_str).collect::<Vec<_>>().join(", ");
    let mut refused = reply(StatusCode::METHOD_NOT_ALLOWED, TEXT, format!("Only {methods}.\n"));
    refused.fields.set(Known::Allow, methods);
    refused
}

fn not_found() -> Response {
    let mut paths: Vec<&str> = page_paths().collect();
    let last = paths.pop().unwrap_or_default();
    let text = format!("There are {} and {last}.\n", paths.join(", "));
    reply(StatusCode::NOT_FOUND, TEXT, text)
}

fn reply(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Response {
    let mut reply = Response::new(status, wire::full(body));
    reply.fields.append(Known::ContentType, content_type);
    reply.fields.append(Known::CacheControl, "no-store");
    reply
}
