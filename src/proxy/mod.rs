//! The path of one request. Read [`handle`] first.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::limit::Limiter;
use crate::listen::Peer;
use crate::policy::Policy;
use crate::telemetry::{Access, Metrics, Mistake};
use crate::upstream::Upstream;
use crate::wire::Response;

/// One `[[routes]]`, with the rooms' things that it names already built.
#[derive(Clone, Debug)]
pub struct RouteSettings {
    /// For metrics and logs.
    pub name: String,
    /// Exact host or `*.host`; any where there is none.
    pub host: Option<String>,
    /// `/v1/*`, `/users/{id}`.
    pub path: String,
    /// Any where empty.
    pub methods: Vec<String>,
    /// What answers.
    pub target: Target,
    /// Who decides; nobody where there is none.
    pub policy: Option<RoutePolicy>,
    /// Which fields tell of limits.
    pub fields: FieldStyle,
    /// Bytes of a request's body, at most: above, 413.
    pub body_bytes_max: u64,
}

/// What answers on a route.
#[derive(Clone, Debug)]
pub enum Target {
    /// An upstream.
    Upstream(Arc<Upstream>),
    /// Weir itself.
    Respond {
        /// The status.
        status: u16,
        /// The body, text/plain.
        body: String,
    },
}

/// A route's policy and whose counters it charges.
#[derive(Clone, Debug)]
pub struct RoutePolicy {
    /// The guest.
    pub policy: Arc<Policy>,
    /// Whose counters.
    pub scope: Arc<crate::limit::Scope>,
    /// When the policy fails: let it through (and say so), or 503.
    pub allow_on_error: bool,
}

/// `ratelimit_fields`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FieldStyle {
    /// `RateLimit` and `RateLimit-Policy` of the IETF draft.
    #[default]
    Draft,
    /// `X-RateLimit-Limit`, `-Remaining`, `-Reset`.
    Legacy,
    /// Both.
    Both,
    /// None; Retry-After stays.
    Off,
}

/// What of `[server]` and `[log]` concerns requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Only they are believed in `X-Forwarded-For`.
    pub trusted_proxies: Vec<ipnet::IpNet>,
    /// Bytes of a request's target, at most: above, 414.
    pub uri_bytes_max: usize,
    /// Time between two pieces of a request's body.
    pub body_idle: std::time::Duration,
    /// Which requests are logged.
    pub access: Access,
    /// JSON lines, or text.
    pub access_json: bool,
}

/// Everything that one request needs, built whole from one configuration and never changed: a snapshot.
#[derive(Debug)]
pub struct House;

/// The house that serves now. Swapped on reload; a request keeps the one it began with until its headers are out.
#[derive(Debug)]
pub struct Live;

/// What listeners call.
#[derive(Clone, Debug)]
pub struct Proxy(#[allow(dead_code)] Arc<Live>);

impl House {
    /// Builds the routes.
    ///
    /// # Errors
    /// Paths, hosts or methods that are none, and routes of which none is more specific (settings `routes[0].path` ...).
    pub fn build(
        _settings: Settings,
        _routes: Vec<RouteSettings>,
        _limiter: Arc<Limiter>,
        _metrics: &Metrics,
    ) -> Result<Self, Vec<Mistake>> {
        todo!()
    }
}

impl Live {
    /// Begins with `house`.
    #[must_use]
    pub fn new(_house: House) -> Arc<Self> {
        todo!()
    }

    /// From now on, new requests see `house`.
    pub fn swap(&self, _house: House) {
        todo!()
    }
}

impl Proxy {
    /// A handler for listeners.
    #[must_use]
    pub fn new(live: Arc<Live>) -> Self {
        Self(live)
    }
}

impl crate::listen::Handler for Proxy {
    async fn call(&self, _request: http::Request<hyper::body::Incoming>, peer: &Arc<Peer>) -> Response {
        let _: SocketAddr = peer.address;
        todo!()
    }
}
