//! What a house is built from: routes with the things that they name, and the settings that concern
//! requests. Knows no TOML.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::limit::Scope;
use crate::policy::Policy;
use crate::telemetry::Access;
use crate::upstream::Upstream;
use crate::wire::Rate;

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
    /// Time for the whole request, from its head to its reply's last byte; none where it is not
    /// bounded.
    pub request_timeout: Option<Duration>,
    /// What else it does.
    pub extras: Extras,
}

/// What answers on a route.
#[derive(Clone, Debug)]
pub enum Target {
    /// An upstream.
    Upstream(Arc<Upstream>),
    /// Weir itself.
    Respond(Respond),
}

/// What Weir itself answers on a route.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Respond {
    /// The status, 200 to 599.
    pub status: u16,
    /// The body.
    pub body: Bytes,
    /// Its `Content-Type`; `text/plain` where there is a body and nothing is said.
    pub content_type: Option<String>,
    /// Further fields.
    pub headers: Vec<(String, String)>,
}

/// What a route does beside deciding and forwarding. A route that names nothing of it pays nothing
/// for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Extras {
    /// Changes to the request, as the upstream gets it.
    pub request_headers: HeaderRules,
    /// Changes to every reply.
    pub response_headers: HeaderRules,
    /// The upstream's `Host`; the client's where there is none.
    pub upstream_host: Option<String>,
    /// The upstream's path; the client's where there is none.
    pub rewrite: Option<Rewrite>,
    /// Which scripts of which origins may read Weir's own answers.
    pub cors: Option<Cors>,
    /// What else than HTTP its connections may become.
    pub upgrade: Upgrade,
    /// Bodies of its own for refusals, before those of [`Settings::refusals`].
    pub refusals: Vec<RefusalPage>,
}

/// `upgrade`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upgrade {
    /// Which protocols are passed on when a client asks for them and the upstream agrees.
    pub protocols: Vec<String>,
    /// How long both directions may be silent.
    pub idle: Duration,
}

impl Default for Upgrade {
    fn default() -> Self {
        Self { protocols: vec!["websocket".into()], idle: Duration::from_secs(300) }
    }
}

/// `cors`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cors {
    /// `https://app.example.com`, `https://*.example.com`, or `*` alone.
    pub origins: Vec<String>,
    /// Whether scripts may send cookies.
    pub credentials: bool,
    /// What happens to preflights.
    pub preflight: Preflight,
}

/// What happens to preflights (`OPTIONS` with `Origin` and `Access-Control-Request-Method`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Preflight {
    /// Let through, whatever the policy says, and charged to no limit. The fields that the policy
    /// sets for the upstream are set.
    #[default]
    Bypass,
    /// As any request.
    Limit,
}

/// A body of the operator's own for refusals.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusalPage {
    /// For these, 400 to 599.
    pub statuses: Vec<u16>,
    /// `text/plain` where nothing is said.
    pub content_type: Option<String>,
    /// With placeholders: `{retry_after}`.
    pub body: String,
}

/// Changes to header fields: removed first, then set, then added.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeaderRules {
    /// In the place of what was there.
    pub set: Vec<(String, String)>,
    /// Beside what was there.
    pub add: Vec<(String, String)>,
    /// Taken off.
    pub remove: Vec<String>,
    /// Set or added like the others, and never shown.
    pub secrets: Vec<SecretField>,
}

/// A field whose value came from a file or the environment.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretField {
    /// The setting that names its source: `set_file`, `set_env`, `add_file` or `add_env`.
    pub key: &'static str,
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: String,
}

impl std::fmt::Debug for SecretField {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("SecretField")
            .field("key", &self.key)
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// What path the upstream is asked for. The query stays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rewrite {
    /// The first segments are taken off, others are put before the rest.
    Prefix {
        /// With which the route's own path begins.
        strip: Option<String>,
        /// What comes first instead.
        add: Option<String>,
    },
    /// A path with the route's parameters: `/v2/users/{id}`; a final `/*` stands for what the
    /// route's own matched.
    Template(String),
}

/// A route's policy and whose counters it charges.
#[derive(Clone, Debug)]
pub struct RoutePolicy {
    /// The guest.
    pub policy: Arc<Policy>,
    /// Whose counters.
    pub scope: Arc<Scope>,
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

/// `[server.paths]`: which spellings name the same resource. Many servers treat `/Login`, `/login/`
/// and `/login;x` as `/login`, so by default routing does too: otherwise a client could choose a
/// less specific route by the way it writes the path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Paths {
    /// What becomes of `%2F` and `%5C`.
    pub encoded_slash: EncodedSlash,
    /// What becomes of `;` and what follows it in a segment.
    pub parameters: PathParameters,
    /// Control characters other than NUL may stand in a path, escaped.
    pub control_characters: bool,
    /// `/login` and `/login/` are two paths.
    pub trailing_slash_exact: bool,
    /// `/login` and `/Login` are two paths.
    pub case_exact: bool,
}

impl Paths {
    /// The same with all spellings told apart that are forwarded.
    pub(super) fn exact(self) -> Self {
        Self {
            parameters: PathParameters::Keep,
            trailing_slash_exact: true,
            case_exact: true,
            ..self
        }
    }
}

/// `server.paths.encoded_slash`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EncodedSlash {
    /// 400.
    #[default]
    Reject,
    /// They are data within a segment, forwarded as they came.
    Keep,
    /// They separate segments, and are forwarded as slashes.
    Decode,
}

/// `server.paths.parameters`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PathParameters {
    /// Forwarded, and left out of what is matched and shown to policies.
    #[default]
    Ignore,
    /// They are data within a segment.
    Keep,
    /// Taken off, for the upstream too.
    Strip,
    /// 400.
    Reject,
}

/// What of `[server]` and `[log]` concerns requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Only they are believed in `X-Forwarded-For`.
    pub trusted_proxies: Vec<ipnet::IpNet>,
    /// Bytes of a request's target, at most: above, 414.
    pub uri_bytes_max: usize,
    /// Which spellings of a path are one.
    pub paths: Paths,
    /// Whether a request's fields are forwarded whose names have an underscore.
    pub underscores_in_headers: bool,
    /// Bytes that the process may hold for others to take: above, 503.
    pub buffered_bytes_max: usize,
    /// Time between two pieces of a request's body.
    pub body_idle: Duration,
    /// How slowly a client may send a request's body.
    pub body_rate: Option<Rate>,
    /// Bits of an IPv6 address that make one client, where requests under way are counted.
    pub ipv6_prefix: u8,
    /// Which requests are logged.
    pub access: Access,
    /// JSON lines, or text.
    pub access_json: bool,
    /// Bodies for refusals on every route, and where there is no route.
    pub refusals: Vec<RefusalPage>,
}

impl Default for Settings {
    /// What holds where `proxy.toml` says nothing.
    fn default() -> Self {
        Self {
            trusted_proxies: Vec::new(),
            uri_bytes_max: 8 << 10,
            paths: Paths::default(),
            underscores_in_headers: false,
            buffered_bytes_max: 1 << 30,
            body_idle: Duration::from_secs(30),
            body_rate: Rate::new(240, Duration::from_secs(10)),
            ipv6_prefix: 64,
            access: Access::default(),
            access_json: false,
            refusals: Vec::new(),
        }
    }
}
