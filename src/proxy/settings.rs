//! What a snapshot is built from: routes with the objects that they name, and the settings that
//! concern requests. Knows no TOML.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::limit::Scope;
use crate::listen::Serves;
use crate::policy::Policy;
use crate::telemetry::{Access, AccessFields, AccessHeaders};
use crate::upstream::{Overrides, Upstream};
use crate::wire::Rate;

pub use super::callers::{CallScope, Caller, Callers, TokenDigest};
pub use super::route::maintenance::Maintenance;

/// One `[[routes]]`, with the objects that it names already built.
#[derive(Clone, Debug)]
pub struct RouteSettings {
    /// The name in metrics and logs.
    pub name: String,
    /// Exact host or `*.host`. `None` matches any.
    pub host: Option<String>,
    /// `/v1/*`, `/users/{id}`.
    pub path: String,
    /// Empty matches any.
    pub methods: Vec<String>,
    /// The names of the listeners that it is on. Empty: all.
    pub listeners: Vec<String>,
    /// Which requests it takes of those of another route, if not all.
    pub when: Option<When>,
    /// What the route does with a request.
    pub action: RouteAction,
    /// The policy that decides. `None`: every request is admitted.
    pub policy: Option<RoutePolicy>,
    /// Which fields report the limits.
    pub fields: FieldStyle,
    /// Maximum bytes of a request's body. More is a 413.
    pub body_bytes_max: u64,
    /// How far bodies are read for a policy that asks for facts of them.
    pub inspect: Inspect,
    /// Time for the whole request, from its head to its reply's last byte. `None`: no limit.
    pub request_timeout: Option<Duration>,
    /// What it asks of its upstream instead of the upstream's own settings.
    pub overrides: Overrides,
    /// By what its requests are spread over the upstream's hosts. `None`: by what the upstream
    /// says.
    pub hash: Option<HashBy>,
    /// Where its requests are copied to.
    pub mirror: Option<Mirror>,
    /// Whether it is being worked on: its requests are answered with 503 then.
    pub maintenance: Option<Maintenance>,
    /// How much its requests matter where the upstream can't have all at once, 0 to
    /// [`PRIORITY_MAX`](crate::plan::PRIORITY_MAX), unless the policy says so.
    pub priority: u8,
    /// Optional features.
    pub extras: Extras,
}

/// By what requests are spread over an upstream's hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HashBy {
    /// By nothing: each goes to the less busy of two.
    Nothing,
    /// By a fact: those for which it is equal go to the same host.
    Fact(String),
}

/// `mirror`.
#[derive(Clone, Debug)]
pub struct Mirror {
    /// The upstream that gets copies of requests.
    pub upstream: Arc<Upstream>,
    /// The share of the requests, in hundredths of a percent. `None`: all.
    pub share: Option<u32>,
    /// Requests with longer bodies are not copied.
    pub body_bytes_max: u64,
}

/// Which requests a route takes of those that another one is for as well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct When {
    /// Facts that all have to hold, each with the values of which it has one. `*` is any.
    pub facts: Vec<(String, Vec<String>)>,
    /// The share of the senders, in hundredths of a percent.
    pub share: Option<u32>,
    /// The fact that says who the sender is.
    pub by: String,
}

/// How far bodies are read before the decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inspect {
    /// The bytes of a body that are read and held in memory, at most.
    pub bytes_max: u64,
    /// What happens to a longer one.
    pub oversized: Oversized,
}

impl Default for Inspect {
    fn default() -> Self {
        Self { bytes_max: 1 << 20, oversized: Oversized::default() }
    }
}

/// What happens to a request whose body is too long to be read before the decision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Oversized {
    /// It is refused with 413.
    #[default]
    Refuse,
    /// The policy decides without facts of the body, which is forwarded unread.
    Pass,
}

/// What a route does with a request.
#[derive(Clone, Debug)]
pub enum RouteAction {
    /// Forwards it to an upstream.
    Upstream(Arc<Upstream>),
    /// Answers it itself.
    Respond(Respond),
    /// Sends the client elsewhere.
    Redirect(Redirect),
    /// Decides what others ask about this domain, `*` for any other: no request is for it.
    Decide(String),
}

/// Where a route redirects to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redirect {
    /// A path, or a URL, with the route's parameters: `https://www.example.com/users/{id}`. Without
    /// a path, the client's own. The query is kept.
    pub to: String,
    /// A regular expression that the client's path has to match as a whole. Its groups are then the
    /// parameters.
    pub pattern: Option<String>,
    /// The status, 300 to 399.
    pub status: u16,
}

/// A response of Weir's own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Respond {
    /// The status, 200 to 599.
    pub status: u16,
    /// The body.
    pub body: Bytes,
    /// Its `Content-Type`. The default is `text/plain` if there is a body.
    pub content_type: Option<String>,
    /// More header fields.
    pub headers: Vec<(String, String)>,
}

/// What a route does besides deciding and forwarding. A route that uses none of it pays nothing for
/// it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Extras {
    /// Changes to the request to the upstream.
    pub request_headers: HeaderRules,
    /// Changes to every reply.
    pub response_headers: HeaderRules,
    /// The upstream's `Host`. `None`: the client's.
    pub upstream_host: Option<String>,
    /// The upstream's path. `None`: the client's.
    pub rewrite: Option<Rewrite>,
    /// The origins whose scripts may read Weir's own responses.
    pub cors: Option<Cors>,
    /// How replies are compressed that the upstream sent plain. `None`: they are passed on plain.
    pub compress: Option<Compress>,
    /// The protocols that its connections may be upgraded to.
    pub upgrade: Upgrade,
    /// Bodies of the route's own for refusals. They take precedence over [`Settings::refusals`].
    pub refusals: Vec<RefusalPage>,
}

/// `compress`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compress {
    /// The codings, the preferred one first.
    pub encodings: Vec<ContentCoding>,
    /// The media types that are compressed: `application/json`, `text/*`, `application/*+json`.
    pub types: Vec<String>,
    /// A reply that is known to be shorter is passed on plain.
    pub min_bytes: u64,
    /// How much work it may be.
    pub level: CompressionLevel,
}

impl Default for Compress {
    fn default() -> Self {
        let types = [
            "text/*",
            "application/json",
            "application/*+json",
            "application/x-ndjson",
            "application/javascript",
            "application/xml",
            "application/*+xml",
            "application/wasm",
            "image/svg+xml",
        ];
        Self {
            encodings: vec![ContentCoding::Zstd, ContentCoding::Brotli, ContentCoding::Gzip],
            types: types.map(str::to_owned).to_vec(),
            min_bytes: 1 << 10,
            level: CompressionLevel::default(),
        }
    }
}

/// A content coding that replies can be compressed with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentCoding {
    /// RFC 8878.
    Zstd,
    /// RFC 7932.
    Brotli,
    /// RFC 1952.
    Gzip,
}

impl ContentCoding {
    /// Its name in `Content-Encoding`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Zstd => "zstd",
            Self::Brotli => "br",
            Self::Gzip => "gzip",
        }
    }
}

/// How much work a compression may be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CompressionLevel {
    /// The least.
    Fast,
    /// What is usual for replies that are compressed as they come.
    #[default]
    Default,
    /// Several times as much, for a few percent.
    Best,
}

/// `upgrade`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upgrade {
    /// Protocols that are passed on if a client asks for them and the upstream agrees.
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
    /// They pass uncounted, whatever the policy says. The fields that the policy sets for the
    /// upstream are still set.
    #[default]
    Bypass,
    /// They are handled like any request.
    Limit,
}

/// A refusal body written by the operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusalPage {
    /// The statuses that it is for, 400 to 599.
    pub statuses: Vec<u16>,
    /// The default is `text/plain`.
    pub content_type: Option<String>,
    /// May contain placeholders: `{retry_after}`.
    pub body: String,
}

/// Changes to header fields: removed first, then set, then added.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeaderRules {
    /// Replaces what was there.
    pub set: Vec<(String, String)>,
    /// Added to what was there.
    pub add: Vec<(String, String)>,
    /// Removed.
    pub remove: Vec<String>,
    /// Set or added like the others, but never shown.
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

/// How the upstream's path is made. The query is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rewrite {
    /// Removes a prefix, then adds another.
    Prefix {
        /// A prefix of the route's own path.
        strip: Option<String>,
        /// The prefix to add.
        add: Option<String>,
    },
    /// A path with the route's parameters: `/v2/users/{id}`. A final `/*` stands for what the
    /// route's own `/*` matched.
    Template(String),
    /// A path of the groups of an expression: `/v2/{1}`.
    Expression {
        /// A regular expression that the client's path has to match as a whole. Others stay as they
        /// are.
        pattern: String,
        /// The path.
        to: String,
    },
}

/// A route's policy, and the scope that it charges.
#[derive(Clone, Debug)]
pub struct RoutePolicy {
    /// The policy.
    pub policy: Arc<Policy>,
    /// The scope of its counters.
    pub scope: Arc<Scope>,
    /// If the policy fails: let the request through with `Weir-Degraded`, or answer 503.
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
    /// None of them. `Retry-After` is kept.
    Off,
}

/// `[server.paths]`: which spellings name the same resource. Many servers treat `/Login`, `/login/`
/// and `/login;x` as `/login`, so by default routing does too. Otherwise a client could choose a
/// less specific route by the way it spells the path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Paths {
    /// How `%2F` and `%5C` are treated.
    pub encoded_slash: EncodedSlash,
    /// How `;` and what follows it in a segment are treated.
    pub parameters: PathParameters,
    /// Control characters other than NUL are allowed in a path, escaped.
    pub control_characters: bool,
    /// `/login` and `/login/` are distinct.
    pub trailing_slash_exact: bool,
    /// `/login` and `/Login` are distinct.
    pub case_exact: bool,
    /// `/login`, `/login.` and `/login%20` are the same, as IIS reads them.
    pub trailing_dots_ignored: bool,
}

impl Paths {
    /// The same settings with all forwarded spellings distinct.
    pub(super) fn exact(self) -> Self {
        Self {
            parameters: PathParameters::Keep,
            trailing_slash_exact: true,
            case_exact: true,
            trailing_dots_ignored: false,
            ..self
        }
    }
}

/// `server.paths.encoded_slash`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EncodedSlash {
    /// `%2F` is forwarded as it came where the route and the facts are the same whether it is data
    /// or a slash. The request is refused with 400 where they differ, or with `%5C`.
    #[default]
    Compare,
    /// The request is refused with 400.
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
    /// Removed, also for the upstream.
    Strip,
    /// The request is refused with 400.
    Reject,
}

/// What is answered before a route is looked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unrouted {
    /// What an authority that issues certificates asks for over HTTP.
    pub challenges: Option<weir_acme::Challenges>,
    /// The port of `https://` that a listener's requests are redirected to, by its number.
    pub https_ports: Vec<Option<u16>>,
}

/// The parts of `[server]` and `[log]` that concern requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Only these proxies are trusted in `X-Forwarded-For`.
    pub trusted_proxies: Vec<ipnet::IpNet>,
    /// The names of the listeners, in the order of their numbers; none for a listener without one.
    pub listeners: Vec<Option<String>>,
    /// What is answered before a route is looked for. None if nothing is.
    pub unrouted: Option<Arc<Unrouted>>,
    /// What comes to each listener, by its number. None if that is requests everywhere.
    pub serves: Option<Arc<[Serves]>>,
    /// Who may call for decisions.
    pub callers: Arc<Callers>,
    /// Maximum bytes of a request's target. More is a 414.
    pub uri_bytes_max: usize,
    /// Which spellings of a path are equal.
    pub paths: Paths,
    /// Whether header fields with an underscore in their names are forwarded.
    pub underscores_in_headers: bool,
    /// How many bytes the process may buffer for slow readers. Beyond that, requests get 503.
    pub buffered_bytes_max: usize,
    /// How late a worker may be before it turns requests away.
    pub worker_lag_max: Option<Duration>,
    /// Time between two pieces of a request's body.
    pub body_idle: Duration,
    /// The minimum rate at which a client must send a request's body.
    pub body_rate: Option<Rate>,
    /// The prefix length by which IPv6 clients are grouped when requests under way are counted.
    pub ipv6_prefix: u8,
    /// Which requests are logged.
    pub access: Access,
    /// JSON lines, or text.
    pub access_json: bool,
    /// What a line says of a request.
    pub access_fields: AccessFields,
    /// The header fields of requests among them.
    pub access_headers: AccessHeaders,
    /// Refusal bodies for every route, and for requests that match none.
    pub refusals: Vec<RefusalPage>,
}

impl Settings {
    /// What comes to a listener.
    #[must_use]
    #[inline]
    pub fn serves(&self, listener: usize) -> Serves {
        let known = self.serves.as_ref().and_then(|all| all.get(listener));
        known.copied().unwrap_or_default()
    }
}

impl Default for Settings {
    /// What holds where `proxy.toml` says nothing.
    fn default() -> Self {
        Self {
            unrouted: None,
            serves: None,
            callers: Arc::default(),
            trusted_proxies: Vec::new(),
            listeners: Vec::new(),
            uri_bytes_max: 8 << 10,
            paths: Paths::default(),
            underscores_in_headers: false,
            buffered_bytes_max: 1 << 30,
            worker_lag_max: Some(Duration::from_millis(250)),
            body_idle: Duration::from_secs(30),
            body_rate: Rate::new(240, Duration::from_secs(10)),
            ipv6_prefix: 64,
            access: Access::default(),
            access_json: false,
            access_fields: AccessFields::default(),
            access_headers: AccessHeaders::default(),
            refusals: Vec::new(),
        }
    }
}
