//! Fetches documents that the configuration names by URL, such as an issuer's keys, and keeps each
//! in a file. Knows no policy and no request: whether a document can be used is asked of a function
//! that is passed in, and a changed file is applied as every other one, by a reload.
//!
//! A thread of its own does it, so a server that is slow or away costs requests nothing. A fetch
//! that fails, or whose document is refused, leaves the file as it is. `document` sends one request
//! and says what was wrong with its reply, `file` replaces a file, `keep` decides when it is time.

mod document;
mod file;
mod keep;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use tokio::sync::watch;

use crate::clock::Clock;
use crate::telemetry::{CounterSet, Metrics, SettingError, labels, names};
use weir_tls::ClientTls;

pub use document::{Document, FetchError};
pub use file::replace;

/// The time for one fetch, from connecting to the end of the document.
pub const FETCH_TIME_MAX: Duration = Duration::from_secs(10);

/// A document that is kept in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The setting that names it: `policies.users.config_files.keys`.
    pub setting: String,
    /// The policy that it belongs to.
    pub policy: String,
    /// The member of the policy's configuration that it is.
    pub member: String,
    /// `https://`, or `http://` to this machine.
    pub url: String,
    /// How the server is verified.
    pub tls: ClientTls,
    /// Where it is kept.
    pub file: PathBuf,
    /// How often it is fetched.
    pub every: Duration,
    /// Its maximum size, in bytes.
    pub bytes_max: u64,
}

labels! {
    /// What a fetch led to: a metric's label.
    pub enum FetchResult {
        /// Another document, which is in the file now.
        New = "new",
        /// What the file holds already.
        Unchanged = "unchanged",
        /// The server can't be reached, or was too slow.
        Unreached = "unreached",
        /// A status other than 200.
        Status = "status",
        /// The document is too large.
        TooLarge = "too_large",
        /// The document can't be used.
        Refused = "refused",
        /// The file can't be written.
        Unwritten = "unwritten",
    }
}

/// The last fetches of a document.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// When it was last fetched and found fit for use, in Unix seconds.
    pub succeeded_s: Option<i64>,
    /// When it was last tried, in Unix seconds. `None` before the first time.
    pub tried_s: Option<i64>,
    /// Why the last try failed, if it did.
    pub error: Option<String>,
}

/// What a fetch has brought.
pub type Reply = Result<Vec<u8>, FetchError>;

/// Decides whether a document can be used. The error says why not.
type Accept = dyn Fn(&Document, &[u8]) -> Result<(), String> + Send + Sync;

/// The documents of one process, which outlive its configurations.
pub struct Documents {
    shared: Arc<Shared>,
    /// What the configuration names.
    current: watch::Sender<Vec<Arc<Document>>>,
    accept: OnceLock<Arc<Accept>>,
    /// Whether the thread runs: it does once there is something to fetch.
    started: Mutex<bool>,
}

/// What the thread uses.
struct Shared {
    metrics: Metrics,
    clock: Clock,
    /// The states by the document's setting.
    states: Mutex<BTreeMap<String, State>>,
}

impl Documents {
    /// Fetches nothing until [`keep`](Self::keep).
    #[must_use]
    pub fn new(metrics: &Metrics, clock: &Clock, documents: &[Arc<Document>]) -> Self {
        let shared =
            Shared { metrics: metrics.clone(), clock: clock.clone(), states: Mutex::default() };
        Self {
            shared: Arc::new(shared),
            current: watch::Sender::new(documents.to_vec()),
            accept: OnceLock::new(),
            started: Mutex::default(),
        }
    }

    /// Replaces the documents with these. Those that were among them before are left alone.
    ///
    /// # Errors
    /// The thread can't be started. Nothing is fetched then.
    pub fn apply(&self, documents: &[Arc<Document>]) -> io::Result<()> {
        let mut states = self.shared.states();
        states.retain(|setting, _| documents.iter().any(|one| one.settings().setting == *setting));
        drop(states);
        self.current.send_replace(documents.to_vec());
        self.start()
    }

    /// Fetches from now on, until this is dropped. A document that `accept` refuses is not kept.
    ///
    /// # Errors
    /// The thread can't be started. Nothing is fetched then.
    pub fn keep<A>(&self, accept: A) -> io::Result<()>
    where
        A: Fn(&Document, &[u8]) -> Result<(), String> + Send + Sync + 'static,
    {
        // The first one stays: a process has one configuration file.
        let _ = self.accept.set(Arc::new(accept));
        self.start()
    }

    fn start(&self) -> io::Result<()> {
        let Some(accept) = self.accept.get() else { return Ok(()) };
        let mut started = self.started.lock().unwrap_or_else(PoisonError::into_inner);
        if *started || self.current.borrow().is_empty() {
            return Ok(());
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (shared, accept) = (Arc::clone(&self.shared), Arc::clone(accept));
        let documents = self.current.subscribe();
        let keep = move || {
            let local = tokio::task::LocalSet::new();
            runtime.block_on(local.run_until(keep::run(&shared, &accept, documents)));
            drop(local);
            // Dropping the runtime would wait for a DNS lookup in progress.
            runtime.shutdown_background();
        };
        thread::Builder::new().name("weir-fetch".into()).spawn(keep)?;
        *started = true;
        Ok(())
    }

    /// Each document, with what became of its last fetches.
    #[must_use]
    pub fn states(&self) -> Vec<(Arc<Document>, State)> {
        let states = self.shared.states();
        let current = self.current.borrow();
        let state = |one: &Arc<Document>| {
            let state = states.get(&one.settings().setting).cloned().unwrap_or_default();
            (Arc::clone(one), state)
        };
        current.iter().map(state).collect()
    }
}

impl Shared {
    fn states(&self) -> MutexGuard<'_, BTreeMap<String, State>> {
        self.states.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes how a fetch ended. Returns the state before it.
    fn note(&self, document: &Document, result: &Result<FetchResult, FetchError>) -> State {
        let Settings { setting, policy, member, .. } = document.settings();
        let counters: CounterSet<FetchResult> =
            self.metrics.counters(names::DOCUMENTS_FETCHED, &[policy, member]);
        counters.inc(match result {
            Ok(fetched) => *fetched,
            Err(failed) => failed.label(),
        });
        let now_s = self.clock.wall_us() / 1_000_000;
        let mut states = self.states();
        let state = states.entry(setting.clone()).or_default();
        let before = state.clone();
        state.tried_s = Some(now_s);
        match result {
            Ok(_) => (state.succeeded_s, state.error) = (Some(now_s), None),
            Err(failed) => state.error = Some(failed.to_string()),
        }
        before
    }
}

impl fmt::Debug for Documents {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Documents").field("states", &self.states()).finish_non_exhaustive()
    }
}

/// Fetches each of these documents once, all at the same time, and waits for the replies, for
/// [`FETCH_TIME_MAX`] at most.
///
/// # Errors
/// Errors in the settings; nothing is fetched then.
pub fn now(all: &[Settings]) -> Result<Vec<(Document, Reply)>, Vec<SettingError>> {
    let (mut documents, mut errors) = (Vec::new(), Vec::new());
    for settings in all {
        match Document::build(settings) {
            Ok(document) => documents.push(document),
            Err(found) => errors.extend(found),
        }
    }
    if !errors.is_empty() {
        return Err(errors);
    }
    let fetch = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let each = documents.iter().map(Document::fetch);
        let fetched = runtime.block_on(futures_util::future::join_all(each));
        runtime.shutdown_background();
        io::Result::Ok(fetched)
    };
    // The caller's thread may run a runtime of its own, in which no other one can.
    let ended = thread::scope(|scope| scope.spawn(fetch).join());
    let fetched = ended.unwrap_or_else(|_| Err(io::Error::other("its thread panicked")));
    let results = fetched.unwrap_or_else(|error| {
        documents.iter().map(|_| Err(FetchError::Unreached(error.to_string()))).collect()
    });
    Ok(documents.into_iter().zip(results).collect())
}
