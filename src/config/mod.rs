//! Reads and checks `proxy.toml` and turns it into the settings of each module. The only module
//! that knows TOML and the position of a setting in the file.
//!
//! [`Config::load`] reads the text, and `toml` parses it into a tree with spans. The files named
//! after sections walk that tree with the help of `reader`, which notes every error and goes on.
//! `source` renders all errors into one text. Errors that show only when something is built (an
//! invalid path, a limit that a guest refuses) come back to [`Source::locate`] and are rendered the
//! same way.

mod absent;
mod acme;
mod brackets;
mod caps;
mod changes;
mod data;
mod decisions;
mod documents;
mod extras;
mod files;
mod finding;
mod json;
mod otlp;
mod policies;
mod policy_json;
mod quick;
mod reader;
mod requests;
mod routes;
mod scripts;
mod secrets;
mod server;
pub mod setting;
mod settings;
mod source;
mod store;
mod syntax;
#[cfg(test)]
mod tests;
mod tls;
mod units;
mod upstreams;

use std::borrow::Cow;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use toml::de::DeTable;

use crate::limit::Scope;
use crate::plan::{NAME_BYTES_MAX, OnStoreError};
use crate::proxy::settings::{
    Extras, FieldStyle, HashBy, Inspect, Maintenance, Redirect, Respond, When,
};
use crate::reload::Watch;
pub use crate::telemetry::OF_POLICY;
use crate::telemetry::{Label as _, Lint, LintKind, SettingError};
use crate::upstream::Overrides;
use crate::{admin, engine, insight, limit, listen, policy, proxy, telemetry, upstream};
use finding::{Finding, join};
use reader::{GivenFiles, Item, Notes, Table};

pub use changes::{CHANGES_SHOWN_MAX, Change, Changes, Effect, Outline};
pub(crate) use files::is_plain;
pub use quick::quick;
pub use requests::{Entry, Expectation, Requests, ScheduledReply, policy_alone};
pub use server::ADMIN_DEFAULT;
pub use settings::reference;

/// A key secret with fewer bytes can be guessed.
const KEY_SECRET_BYTES_GOOD: usize = 16;
/// Maximum number of times that a configuration is read because its files changed meanwhile.
const READS_MAX: usize = 5;
/// Maximum number of upstreams, and of policies.
const NAMED_MAX: usize = 1_024;

/// A configuration without errors, as far as this module can tell.
#[derive(Debug)]
pub struct Config {
    /// `[[listeners]]`.
    pub listeners: Vec<listen::Settings>,
    /// `[acme]`. None without that section.
    pub acme: Option<Arc<weir_acme::Authority>>,
    /// `[server]`: worker threads.
    pub workers: usize,
    /// `[server]`: how long to keep serving once the shutdown is announced.
    pub shutdown_delay: Duration,
    /// `[server]`: time to finish what is under way.
    pub shutdown_grace: Duration,
    /// `[server.limits]`, `[server.timeouts]`.
    pub connections: listen::ConnectionSettings,
    /// `[server]`, `[log]`.
    pub requests: proxy::Settings,
    /// `[admin]`.
    pub admin: Option<admin::Settings>,
    /// What is remembered of requests. Nothing without admin pages.
    pub insight: insight::Settings,
    /// `[log]`.
    pub log: telemetry::Settings,
    /// `[telemetry.otlp]`. None without that section.
    pub otlp: Option<crate::otlp::Settings>,
    /// `[store]`.
    pub engine: engine::Settings,
    /// `[store]`, without its scripts: they are tested when the configuration is built.
    pub limiter: limit::Settings,
    /// `[store] scripts`.
    pub scripts: Vec<engine::ScriptFile>,
    /// `[upstreams.*]`, by name.
    pub upstreams: Vec<upstream::Settings>,
    /// `[server.policies]`, `[server] cache_folder` and `cache_bytes`.
    pub policy_runtime: policy::RuntimeSettings,
    /// `[policies.*]`, by name.
    pub policies: Vec<policy::Settings>,
    /// Members of policies' configurations that are fetched, and kept in files. Here they hold what
    /// is in those files.
    pub documents: Vec<crate::fetch::Settings>,
    /// `[[routes]]`, in the file's order.
    pub routes: Vec<Route>,
    /// What to watch: the file itself and every file that it names, with what was read there.
    pub watched: Vec<Watch>,
    /// What is allowed but probably unintended: say, a policy that no route names.
    pub warnings: Vec<Warning>,
    /// The position of each setting.
    pub source: Arc<Source>,
    /// What it says, to be compared with another configuration.
    pub outline: Outline,
}

/// One `[[routes]]` as written, its names checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The name in metrics and logs.
    pub name: String,
    /// Exact, or `*.host`.
    pub host: Option<String>,
    /// `/v1/*`; empty of a route with a domain.
    pub path: String,
    /// Any where empty.
    pub methods: Vec<String>,
    /// The names of its listeners; all where empty.
    pub listeners: Vec<String>,
    /// What answers.
    pub action: RouteAction,
    /// An existing policy's name.
    pub policy: Option<String>,
    /// `on_policy_error = "allow"`.
    pub allow_on_policy_error: bool,
    /// What to do when the store fails: the route's setting, or else the store's.
    pub on_store_error: OnStoreError,
    /// `on_store_error = "policy"`: a limit may be looser.
    pub limit_decides: bool,
    /// `limit_scope = "route"`.
    pub scope_is_route: bool,
    /// `ratelimit_fields`.
    pub fields: FieldStyle,
    /// Maximum size of a request's body, in bytes.
    pub body_bytes_max: u64,
    /// How far bodies are read for a policy that asks for facts of them.
    pub inspect: Inspect,
    /// `timeouts.request`.
    pub request_timeout: Option<Duration>,
    /// `retry`, and the times of `timeouts` that an upstream has as well.
    pub overrides: Overrides,
    /// `hash`.
    pub hash: Option<HashBy>,
    /// `mirror`.
    pub mirror: Option<Mirror>,
    /// `maintenance`, and whether its file is there.
    pub maintenance: Option<Maintenance>,
    /// `priority`.
    pub priority: u8,
    /// Which requests it takes of those of another route, if not all.
    pub when: Option<When>,
    /// Header rules, rewriting and the like: checked when the configuration is built.
    pub extras: Extras,
}

/// `[[routes]] mirror`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mirror {
    /// An existing upstream's name.
    pub upstream: String,
    /// The share of the requests, in hundredths of a percent. `None`: all.
    pub share: Option<u32>,
    /// Requests with longer bodies are not copied.
    pub body_bytes_max: u64,
}

impl Route {
    /// Whether its requests go to this upstream, or copies of them do.
    fn names_upstream(&self, name: &str) -> bool {
        matches!(&self.action, RouteAction::Upstream(used) if used == name)
            || self.mirror.as_ref().is_some_and(|mirror| mirror.upstream == name)
    }

    /// The name under which the route's limits are counted; none where nothing is limited.
    #[must_use]
    pub fn scope(&self) -> Option<String> {
        let policy = self.policy.as_ref()?;
        Some(Scope::name_of(policy, self.scope_is_route.then_some(self.name.as_str())))
    }
}

/// What answers on a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouteAction {
    /// An existing upstream's name.
    Upstream(String),
    /// Weir itself.
    Respond(Respond),
    /// Another place.
    Redirect(Redirect),
    /// Nothing: it decides what others ask about this domain.
    Decide(String),
}

/// The file's text, and the position of each setting in it.
#[derive(Default)]
pub struct Source {
    page: source::Page,
    /// Files whose contents are the values of single settings.
    data: Vec<source::Data>,
    watched: Vec<Watch>,
}

/// A setting that says what should be, and what is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The setting's path.
    pub setting: String,
    /// What was found instead.
    pub found: String,
    /// What it says.
    pub expected: String,
    /// The reason, in one line.
    pub help: Option<String>,
}

/// All errors of a file, as one text in which they are marked.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub struct ConfigErrors {
    /// How many.
    pub count: usize,
    /// The text for people: each error with file, line, the text marked, what was expected, and
    /// the nearest known key.
    pub text: String,
    /// The errors one by one, without the text that is marked, in the same order. As many as are
    /// shown.
    pub each: Vec<ErrorAt>,
    /// The files that were read: the watcher goes on watching them.
    pub watched: Vec<Watch>,
    /// Whether the errors may go away without a change of the configuration: a document could not
    /// be fetched.
    pub may_pass: bool,
    rest: Option<Box<PartialConfig>>,
}

/// One error of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErrorAt {
    /// The file.
    pub file: String,
    /// The line in it, from 1, where it is known.
    pub line: Option<usize>,
    /// Setting, what was found, what was expected.
    pub text: String,
}

/// What could be read of a file with errors. Other modules may find more errors in it.
#[derive(Debug)]
struct PartialConfig {
    /// The configuration, with a default in place of each invalid setting.
    config: Config,
    findings: Vec<Finding>,
}

/// What is allowed but probably unintended. Shown as one line for the log: `file:line:column`, what
/// is suspicious, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// Its kind, as `weir check --allow` takes it.
    pub name: Cow<'static, str>,
    /// `file:line:column`, or only the file.
    pub place: String,
    /// What is suspicious.
    pub text: String,
    /// What to do about it.
    pub remedy: Option<String>,
    /// The text for people, with the lines of the file and the setting marked.
    pub rendering: String,
}

impl Warning {
    /// The names of all kinds but those that only a policy knows, which begin with
    /// [`OF_POLICY`].
    pub fn names() -> impl Iterator<Item = &'static str> {
        LintKind::ALL.iter().map(|kind| kind.label())
    }
}

impl fmt::Display for Warning {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}: {}", self.place, self.text)?;
        self.remedy.iter().try_for_each(|remedy| write!(out, "; {remedy}"))
    }
}

impl ConfigErrors {
    /// The only error that can be reported of a file: nothing in it could be read.
    fn single(file: &str, line: Option<usize>, found: &str, watched: Vec<Watch>) -> Self {
        let at = line.map_or_else(|| file.to_owned(), |line| format!("{file}:{line}"));
        let text = if at.is_empty() { found.to_owned() } else { format!("{at}: {found}") };
        let each = vec![ErrorAt { file: file.to_owned(), line, text: found.to_owned() }];
        Self {
            count: 1,
            text: format!("error: {text}"),
            each,
            watched,
            may_pass: false,
            rest: None,
        }
    }

    /// What policies share, as far as it could be read.
    #[must_use]
    pub fn policy_runtime(&self) -> policy::RuntimeSettings {
        let rest = self.rest.as_ref();
        rest.map(|rest| rest.config.policy_runtime.clone()).unwrap_or_default()
    }

    /// Documents to fetch whose files are not there yet.
    #[must_use]
    pub fn unfetched(&self) -> Vec<crate::fetch::Settings> {
        let all = self.rest.iter().flat_map(|rest| &rest.config.documents);
        all.filter(|document| !document.file.exists()).cloned().collect()
    }

    /// Adds the errors that `look` finds in what could be read, so that all are reported at once.
    /// `look` gets whether the routes can be checked: with a default in place of an invalid path,
    /// two routes might seem to conflict.
    #[must_use]
    pub fn and_those_of(mut self, look: impl FnOnce(Config, bool) -> Vec<SettingError>) -> Self {
        let Some(PartialConfig { config, mut findings }) = self.rest.take().map(|rest| *rest)
        else {
            return self;
        };
        let source = Arc::clone(&config.source);
        let routes_stand =
            !findings.iter().any(|finding| finding.error.setting.starts_with("routes"));
        let more = look(config, routes_stand);
        if more.is_empty() {
            // With what was said about them as a whole.
            return self;
        }
        for error in more {
            let known = findings
                .iter_mut()
                .find(|finding| finding.general && finding.error.setting == error.setting);
            match known {
                Some(finding) => finding.error.expected = error.expected,
                None => findings.push(Finding::elsewhere(error)),
            }
        }
        source.report(findings)
    }
}

impl Config {
    /// The files that it was read from, those that are named in it included.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        self.watched.iter().map(Watch::path)
    }

    /// Reads and checks a file, and the files that it names. If one of them changes meanwhile, all
    /// are read again: where a mounted directory is replaced as a whole, what was read would
    /// otherwise be partly old and partly new, which nobody wrote.
    ///
    /// # Errors
    /// All errors at once.
    pub fn load(path: &Path) -> Result<Self, ConfigErrors> {
        let mut reads = 1;
        loop {
            let loaded = Self::read(path, Vec::new());
            let watched = match &loaded {
                Ok(config) => &config.watched,
                Err(errors) => &errors.watched,
            };
            // Files that change all the time are left to the watcher.
            if reads == READS_MAX || !files::is_plain(path) || !watched.iter().any(Watch::is_stale)
            {
                return loaded;
            }
            reads += 1;
        }
    }

    /// Reads and checks a file as if the files that it names had these contents, where a path and a
    /// content is given.
    ///
    /// # Errors
    /// All errors at once.
    pub fn load_given(path: &Path, given: Vec<(PathBuf, Vec<u8>)>) -> Result<Self, ConfigErrors> {
        Self::read(path, given)
    }

    fn read(path: &Path, given: Vec<GivenFiles>) -> Result<Self, ConfigErrors> {
        let file = path.display().to_string();
        let unread = |cause: String| {
            let found = format!("cannot be read: {cause}");
            ConfigErrors::single(&file, None, &found, vec![Watch::now(path)])
        };
        let bytes = files::read(path, files::CONFIG_BYTES_MAX).map_err(unread)?;
        // A pipe can't be watched: what was read from it is gone.
        let watch = files::is_plain(path).then(|| Watch::read(path, &bytes));
        match std::str::from_utf8(&bytes) {
            Ok(text) => read(text, path, watch, given),
            Err(error) => {
                let line =
                    bytes.iter().take(error.valid_up_to()).filter(|byte| **byte == b'\n').count()
                        + 1;
                let found = "found bytes that are not UTF-8, expected TOML";
                Err(ConfigErrors::single(&file, Some(line), found, watch.into_iter().collect()))
            }
        }
    }

    /// Checks a text as if it were the file `path`.
    ///
    /// # Errors
    /// All errors at once.
    pub fn parse(text: &str, path: &Path) -> Result<Self, ConfigErrors> {
        read(text, path, Some(Watch::read(path, text.as_bytes())), Vec::new())
    }
}

fn read(
    text: &str,
    path: &Path,
    watch: Option<Watch>,
    given: Vec<GivenFiles>,
) -> Result<Config, ConfigErrors> {
    let (root, errors) = DeTable::parse_recoverable(text);
    let source = Source::new(path, text, root.get_ref(), !errors.is_empty());
    let mut notes = Notes::new(path.parent().unwrap_or(Path::new("")), watch);
    notes.given = given;
    let config = walk(&notes, root.get_ref());
    let outline = Outline::new(root.get_ref(), &config, notes.contents.take());
    drop_flat(root.into_inner());
    let (mut findings, data, watched) = notes.into_parts();
    let source = source.with(data, watched.clone());
    // After most syntax errors the tree lacks some of the text, so errors found in it may be
    // false.
    let torn = errors.iter().any(|error| error.message() != syntax::DUPLICATE);
    if torn {
        findings.clear();
    }
    findings.extend(syntax::errors("", text, &errors));
    let source = Arc::new(source);
    if findings.is_empty() {
        let warnings = warnings(&config, &source);
        return Ok(Config { watched, warnings, source, outline, ..config });
    }
    let mut setting_errors = source.report(findings.clone());
    if !torn {
        let config = Config { source, ..config };
        setting_errors.rest = Some(Box::new(PartialConfig { config, findings }));
    }
    Err(setting_errors)
}

/// Reads each section, after those that it depends on. What was wrong is in `notes`, with a default
/// in its place.
fn walk(notes: &Notes, root: &DeTable<'_>) -> Config {
    let mut root = Table::new(notes, "", Some(root));
    let acme = acme::authority(notes, &mut root);
    let listeners = server::listeners(&mut root, acme.as_deref());
    let server = server::server(&mut root, &listeners);
    let (admin, insight) = server::admin(&mut root, &listeners);
    let callers = decisions::callers(&mut root, &listeners);
    let log = server::log(&mut root, insight.show_keys);
    let otlp = otlp::otlp(&mut root);
    let store = store::store(notes, &mut root, server.waiting_max);
    server::digests_of_headers(notes, &log, &store);
    let upstreams = upstreams::upstreams(&mut root, server.zone.as_deref());
    let policies = policies::policies(notes, &mut root, &store.scripts);
    let above = routes::RouteDefaults {
        upstreams: names_in(&root, "upstreams"),
        policies: names_in(&root, "policies"),
        listeners: listeners.iter().filter_map(|listener| listener.name.clone()).collect(),
        decides: listeners.iter().any(|listener| listener.serves == listen::Serves::Decisions),
        on_store_error: store.on_store_error,
        body_bytes_max: server.body_bytes_max,
        inspect_bytes_max: server.inspect_bytes_max,
    };
    let routes = routes::routes(&mut root, &above);
    let refusals = extras::refusals(&mut root);
    root.finish();
    Config {
        listeners,
        acme,
        workers: server.workers,
        shutdown_delay: server.shutdown_delay,
        shutdown_grace: server.shutdown_grace,
        requests: proxy::Settings {
            refusals,
            callers: Arc::new(callers),
            access: log.access,
            access_json: log.is_json(),
            access_fields: log.access_fields,
            access_headers: log.access_headers.clone(),
            ..server.requests
        },
        connections: server.connections,
        admin,
        insight,
        log,
        otlp,
        engine: store.engine,
        limiter: store.limiter,
        scripts: store.scripts,
        upstreams,
        policy_runtime: server.policies,
        policies,
        documents: notes.documents.take(),
        routes,
        watched: Vec::new(),
        warnings: Vec::new(),
        source: Arc::default(),
        outline: Outline::default(),
    }
}

/// Includes entries with errors: a route that names one of them is not wrong.
fn names_in(root: &Table<'_>, key: &str) -> Vec<String> {
    root.below(key).into_iter().map(|(name, _)| name).collect()
}

fn warnings(config: &Config, source: &Source) -> Vec<Warning> {
    let upstreams = config
        .upstreams
        .iter()
        .map(|upstream| ("upstreams", &upstream.name))
        .filter(|(_, name)| !config.routes.iter().any(|route| route.names_upstream(name)));
    let policies = config.policies.iter().map(|policy| ("policies", &policy.name));
    let policies = policies.filter(|(_, name)| {
        !config.routes.iter().any(|route| route.policy.as_ref() == Some(*name))
    });
    let unused = |(section, name): (&str, &String)| {
        let setting = join(section, name);
        let text = format!("no route names {setting}");
        Lint::new(LintKind::Unused, setting, text).in_key()
    };
    let lints = upstreams.chain(policies).map(unused);
    let lints = lints.chain(without_key_secret(config)).chain(with_short_key_secret(config));
    lints.map(|lint| source.warn(&lint)).collect()
}

/// On Redis all proxies need the same secret.
fn without_key_secret(config: &Config) -> Option<Lint> {
    let open = store::has_open_digests(&config.engine, &config.limiter);
    let text = "no `key_secret_file` or `key_secret_env`: without a secret anybody can compute which clients' keys fall into one slot of the \
                cluster, and so overload one server";
    let remedy = "write the same secret on all proxies (their counters start afresh)";
    open.then(|| Lint::new(LintKind::NoKeySecret, "store", text).in_key().remedy(remedy))
}

/// A digest with a short secret can be tried out by whoever has read a counter's name.
fn with_short_key_secret(config: &Config) -> Option<Lint> {
    let bytes = config.limiter.key_secret.as_ref()?.0.len();
    let text = format!(
        "a key secret of {bytes} bytes: whoever has seen the name of a counter can try out what it is"
    );
    let remedy = format!(
        "write {KEY_SECRET_BYTES_GOOD} bytes or more, such as `openssl rand -base64 32` prints (counters start \
         afresh)"
    );
    let is_short = bytes < KEY_SECRET_BYTES_GOOD;
    is_short.then(|| Lint::new(LintKind::NoKeySecret, "store", text).in_key().remedy(remedy))
}

/// Whether this may name an upstream, a policy or a route: safe in metrics, logs and keys.
fn is_name(name: &str) -> bool {
    let plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
    plain && (1..=NAME_BYTES_MAX).contains(&name.len())
}

fn check_name(name: &str, item: &Item<'_>) {
    if !is_name(name) {
        item.wrong_key(name, format!("a name of 1 to {NAME_BYTES_MAX} of A-Z a-z 0-9 . _ -"));
    }
}

/// Drops a tree without recursion: deeply nested dotted keys could otherwise exhaust the stack.
fn drop_flat(root: DeTable<'_>) {
    let mut waiting = vec![toml::de::DeValue::Table(root)];
    while let Some(value) = waiting.pop() {
        match value {
            toml::de::DeValue::Table(table) => {
                waiting.extend(table.into_iter().map(|(_, value)| value.into_inner()))
            }
            toml::de::DeValue::Array(array) => {
                waiting.extend(array.into_iter().map(toml::Spanned::into_inner))
            }
            _ => {}
        }
    }
}
