//! `proxy.toml` as written, checked, and turned into each room's settings. The only room that knows TOML and where in the file a setting stands.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::plan::Fallback;
use crate::proxy::FieldStyle;
use crate::telemetry::Mistake;
use crate::{engine, limit, listen, policy, proxy, telemetry, upstream};

/// A configuration without mistakes, as far as this room can tell.
#[derive(Debug)]
pub struct Config {
    /// `[[listeners]]`.
    pub listeners: Vec<listen::Settings>,
    /// `[server]`: worker threads.
    pub workers: usize,
    /// `[server]`: time to finish what is under way.
    pub shutdown_grace: Duration,
    /// `[server.limits]`, `[server.timeouts]`.
    pub connections: listen::ConnectionSettings,
    /// `[server]`, `[log]`.
    pub requests: proxy::Settings,
    /// `[admin]`.
    pub admin: Option<SocketAddr>,
    /// `[log]`.
    pub log: telemetry::Settings,
    /// `[store]`.
    pub engine: engine::Settings,
    /// `[store]`.
    pub limiter: limit::Settings,
    /// `[upstreams.*]`, by name.
    pub upstreams: Vec<upstream::Settings>,
    /// `[policies.*]`, by name.
    pub policies: Vec<policy::Settings>,
    /// `[[routes]]`, in the file's order.
    pub routes: Vec<Route>,
    /// What to watch: the file itself and every file that it names.
    pub watched: Vec<PathBuf>,
    /// Where each setting stands.
    pub source: Arc<Source>,
}

/// One `[[routes]]` as written, its names checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// For metrics and logs.
    pub name: String,
    /// Exact, or `*.host`.
    pub host: Option<String>,
    /// `/v1/*`.
    pub path: String,
    /// Any where empty.
    pub methods: Vec<String>,
    /// What answers.
    pub target: RouteTarget,
    /// An existing policy's name.
    pub policy: Option<String>,
    /// `on_policy_error = "allow"`.
    pub allow_on_policy_error: bool,
    /// What to do when the store fails, store and route taken together.
    pub on_store_error: Fallback,
    /// `on_store_error = "policy"`: a limit may be looser.
    pub limit_decides: bool,
    /// `limit_scope = "route"`.
    pub scope_is_route: bool,
    /// `ratelimit_fields`.
    pub fields: FieldStyle,
    /// Bytes of a request's body, at most.
    pub body_bytes_max: u64,
}

/// What answers on a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouteTarget {
    /// An existing upstream's name.
    Upstream(String),
    /// Weir itself.
    Respond {
        /// The status.
        status: u16,
        /// The body.
        body: String,
    },
}

/// The file's text and where in it each setting stands.
#[derive(Debug)]
pub struct Source;

/// All mistakes of a file, as one text with the places marked.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub struct Mistakes {
    /// How many.
    pub count: usize,
    /// For a person: each with file, line, the text marked, what was expected, the nearest known key.
    pub text: String,
    /// What was read all the same: the watcher goes on watching these.
    pub watched: Vec<PathBuf>,
}

impl Config {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// All mistakes at once.
    pub fn load(_path: &Path) -> Result<Self, Mistakes> {
        todo!()
    }

    /// Checks a text as if it stood in the file `path`.
    ///
    /// # Errors
    /// All mistakes at once.
    pub fn parse(_text: &str, _path: &Path) -> Result<Self, Mistakes> {
        todo!()
    }
}

impl Source {
    /// Mistakes that other rooms found when they were built, with file and line.
    #[must_use]
    pub fn locate(&self, _mistakes: &[Mistake]) -> Mistakes {
        todo!()
    }
}
