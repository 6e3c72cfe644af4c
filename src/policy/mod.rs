//! Runs a policy: a WebAssembly guest that is shown facts about a request and answers with a plan.
//!
//! The only room that knows wasmtime. A guest can cost its own request, never the process: CPU time, memory, stack and the size of what it
//! answers are all bounded, and an instance that failed is thrown away.

use std::sync::Arc;
use std::time::Duration;

use crate::plan::Plan;
use crate::telemetry::{Metrics, Mistake};

/// One `[policies.NAME]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The policy's name in the configuration.
    pub name: String,
    /// Where the guest comes from.
    pub module: Module,
    /// CPU time of one call.
    pub cpu_time: Duration,
    /// Linear memory of one instance, in bytes.
    pub memory_bytes: usize,
    /// A fresh instance for each request.
    pub isolated: bool,
    /// `[policies.NAME.config]` as JSON.
    pub config_json: String,
}

/// Where a guest comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Module {
    /// One that ships inside the binary: `client-ip`.
    Shipped(String),
    /// A file's bytes, read by `config`, with its path for messages.
    File {
        /// As resolved against the configuration's folder.
        path: std::path::PathBuf,
        /// Its bytes.
        bytes: Arc<[u8]>,
    },
}

/// The names of the policies that ship inside the binary.
#[must_use]
pub fn shipped() -> &'static [&'static str] {
    &["client-ip"]
}

/// What all policies of a process share: the wasmtime engine and its epoch thread.
#[derive(Debug)]
pub struct Runtime;

/// A compiled, configured guest. Shared by all workers; each keeps instances of its own.
#[derive(Debug)]
pub struct Policy;

/// Something that a policy may ask to see.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FactName {
    /// As the manifest wrote it: the name under which the fact is shown.
    pub text: String,
    /// What it means.
    pub kind: FactKind,
}

/// Each known fact of a request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "each variant is the fact's name in policy.wit")]
pub enum FactKind {
    Method,
    Scheme,
    Authority,
    Path,
    Query,
    ClientIp,
    Route,
    Header(http_name::Lower),
    Cookie(String),
    QueryParameter(String),
    PathParameter(String),
    RequestLength,
    HttpVersion,
}

/// A header's name without the http crate: this room knows no HTTP.
pub mod http_name {
    /// Lower case.
    pub type Lower = String;
}

/// What a policy decided.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// What becomes of the request.
    pub verdict: Verdict,
    /// Set on the request to the upstream.
    pub upstream_headers: Vec<(String, String)>,
    /// Set on the reply.
    pub response_headers: Vec<(String, String)>,
    /// For the access log.
    pub labels: Vec<(String, String)>,
    /// When present, `settle` is called at the response's end and is given this back.
    pub settle_with: Option<String>,
}

/// What becomes of a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// Through, and nothing is counted.
    Bypass,
    /// Charge every limit or none.
    Check(Arc<Plan>),
    /// Refused without asking any limit.
    Deny(Denial),
}

/// A policy's own refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denial {
    /// 400 to 599.
    pub status: u16,
    /// For the problem document.
    pub reason: String,
    /// `Retry-After`, where waiting helps.
    pub retry_after_ms: Option<u64>,
    /// Set on the reply.
    pub headers: Vec<(String, String)>,
}

/// How a request ended, for `settle`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResponseView {
    /// How it ended.
    pub outcome: ResponseOutcome,
    /// The reply's status.
    pub status: u16,
    /// The response facts that the manifest named.
    pub facts: Vec<(String, String)>,
    /// What each limit answered: name, whether it fitted, what remained.
    pub limits: Vec<(String, bool, u64)>,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "each variant is the word in policy.wit")]
pub enum ResponseOutcome {
    Completed,
    UpstreamFailed,
    ClientGone,
}

/// A change of what a limit took, as `settle` asked: the limit's name and units, below zero to give back.
pub type Adjustment = (String, i64);

/// Why a guest gave no decision.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("policy {policy}: {cause:?}: {message}")]
pub struct PolicyError {
    /// The policy's name.
    pub policy: String,
    /// What went wrong.
    pub cause: Cause,
    /// For the log, bounded.
    pub message: String,
}

/// What went wrong in a guest, closed: a metric's label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// It trapped or panicked.
    Trap,
    /// It used up its CPU time.
    Time,
    /// It wanted more memory than it may have.
    Memory,
    /// It recursed too deep.
    Stack,
    /// It answered something outside the contract, or too much.
    Answer,
    /// It returned an error of its own.
    Guest,
    /// All instances are in use.
    Overload,
}

impl Runtime {
    /// Starts the engine and its clock thread.
    ///
    /// # Errors
    /// When this machine can't run wasmtime.
    pub fn new() -> Result<Arc<Self>, Mistake> {
        todo!()
    }
}

impl Policy {
    /// Compiles, instantiates and configures a guest; off the request path.
    ///
    /// # Errors
    /// All mistakes found: in the module (setting `policies.NAME.wasm`), or in its configuration as the guest's `configure` reports them
    /// (setting `policies.NAME.config.limits[0].quota`).
    pub fn build(_runtime: &Arc<Runtime>, _settings: &Settings, _metrics: &Metrics) -> Result<Self, Vec<Mistake>> {
        todo!()
    }

    /// The request facts that the guest reads.
    #[must_use]
    pub fn request_facts(&self) -> &[FactName] {
        todo!()
    }

    /// The names of the response facts that `settle` reads.
    #[must_use]
    pub fn response_facts(&self) -> &[String] {
        todo!()
    }

    /// Asks the guest. Runs on the calling thread, for at most the policy's CPU time.
    ///
    /// # Errors
    /// See [`Cause`].
    pub fn decide(&self, _facts: &[(&str, &str)]) -> Result<Arc<Decision>, PolicyError> {
        todo!()
    }

    /// Tells the guest how a request ended; it may adjust what its limits took.
    ///
    /// # Errors
    /// See [`Cause`].
    pub fn settle(&self, _memo: &str, _view: &ResponseView) -> Result<Vec<Adjustment>, PolicyError> {
        todo!()
    }
}
