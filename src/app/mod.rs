//! Wires all modules together and runs them: the only module that knows every other.
//!
//! [`App`] is Weir as a library, too: another Rust program can start the same proxy, on sockets
//! that it hands in or that Weir binds. `build` turns a checked configuration into what serves it,
//! and `applied` is that as one value, which a reload swaps. `workers` runs the threads, `views`
//! shows the operator the state, `counters` finds counters for a person who asks, `explain` shows
//! how requests were decided and `top` which keys use most, `descriptors` divides the files that
//! the process may have open, `process` reports what the system knows about this process, `memory`
//! gives back what closed connections and expired counters leave, `snapshots` saves counters,
//! `handover` and `sockets` replace a process with a new one, `manager` talks to systemd, `check`
//! looks for what is probably unintended, `reach` asks what a configuration names, `documents` has
//! those of its files fetched that it names by URL, `certificates` has certificates ordered,
//! `challenges` shows their authority that a name is ours, `signals` says what each signal does,
//! `folder` is where the process was started, `logging` starts the log, `reloads` remembers how
//! reloads ended, `page` draws the operator's live page, `simulation` runs requests in virtual
//! time, `replay` those of whole logs, with `counting` for other quotas, and `demo` is the small
//! upstream of `weir demo`.

mod applied;
mod build;
mod certificates;
mod challenges;
mod check;
mod counters;
mod counting;
mod demo;
mod descriptors;
mod documents;
mod explain;
mod folder;
mod handover;
mod health;
mod logging;
mod manager;
mod memory;
mod operations;
mod page;
mod process;
mod reach;
mod reloads;
mod replay;
mod serve;
mod shown;
mod signals;
mod simulation;
mod snapshots;
mod sockets;
#[cfg(test)]
mod tests;
mod top;
mod views;
mod workers;

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::clock::{self, Clock};
use crate::config::{Changes, Config, ConfigErrors};
use crate::engine::{Engine, ReceiveError};
use crate::fetch::Documents;
use crate::limit::{Limiter, RetiredLimiter};
use crate::listen::{Drain, Listener};
use crate::otlp::Otlp;
use crate::proxy::{Insight, Live, Observers};
use crate::reload::{Reason, Watch};
use crate::telemetry::{self, Metrics, names};

pub use crate::admin::page_paths;
pub use crate::telemetry::json_for_terminals;
pub use check::{Checked, check, check_and_reach, outline};
pub use counters::{
    CounterError, CounterQuery, KeySelector, counters, load_needed, needed as needed_by_counters,
};
pub use demo::DemoUpstream;
pub use documents::load_to_serve;
pub use explain::rejection_json;
pub use logging::{flush_log, start_log, start_quiet_log};
pub use reach::ReachResult;
pub use replay::{ReplayError, ReplayObserver, ReplayRun, replay};
pub use serve::serve;
pub use signals::{Signals, ignore_early_signals};
pub use simulation::{SimulatedReply, Simulation};
pub use sockets::InheritedSockets;

use applied::{AppliedConfig, CurrentConfig};
use build::{Builder, ConfigBuild, CounterOrigin};
use certificates::Certificates;
use descriptors::Descriptors;
use handover::{Abort, CommandLine, HandOverError, Predecessor};
use health::HealthChecks;
use memory::Memory;
use operations::Operations;
use page::LivePage;
use reloads::{Record, ReloadEnd, Reloads};
use snapshots::Snapshots;
use sockets::{Socket, SocketRole, bind, bind_one, given, handles, numbered};
use workers::Workers;

/// How long a process that hands over waits for its workers to stop accepting.
const ACCEPTING_MAX: Duration = Duration::from_secs(2);

/// How long a process that has handed over takes at most to send the last that it decided.
const OPERATIONS_MAX: Duration = Duration::from_secs(2);

/// A running Weir. Dropping it without [`App::shutdown`] cuts what is under way.
#[derive(Debug)]
pub struct App {
    running: Arc<Instance>,
    /// None once [`App::shutdown`] has taken them.
    workers: Option<Workers>,
    addresses: Vec<SocketAddr>,
    admin: Option<SocketAddr>,
    /// Ended by [`App::shutdown`], or where another process takes over.
    snapshots: Snapshots,
    /// The listening sockets, for a process that takes over.
    sockets: Vec<Socket>,
    /// The process that this one takes over from.
    predecessor: Option<Arc<Predecessor>>,
    /// What that one still decides.
    received: Option<Operations>,
    /// What is still decided here, once another process has taken over.
    sent: Option<Operations>,
    _memory: Memory,
}

/// What the threads, the reloads and the operator's pages share.
#[derive(Debug)]
struct Instance {
    builder: Builder,
    /// What serves now.
    current: CurrentConfig,
    /// Tells the workers when `current` has changed.
    live: Arc<Live>,
    /// Held by a reload while it builds, which takes as long as compiling guests does. Nothing that
    /// serves or answers the operator waits for it.
    reloading: Mutex<()>,
    /// Limiters that reloads have replaced, while requests still use them.
    retired: Mutex<Vec<RetiredLimiter>>,
    metrics: Metrics,
    /// What is remembered of requests.
    insight: Insight,
    /// What is exported of them, and of the metrics.
    otlp: Otlp,
    /// What is fetched, and kept in files that the configuration names.
    documents: Documents,
    health: HealthChecks,
    /// What is ordered from an authority.
    certificates: Certificates,
    clock: Clock,
    descriptors: Descriptors,
    drain: Drain,
    /// The operator's pages are served until everything else has ended.
    admin_drain: Drain,
    /// The shutdown is announced: `/ready` says no, and everything is still served.
    leaving: AtomicBool,
    started_us: i64,
    reloads: Reloads,
    page: LivePage,
}

impl Instance {
    /// Makes `applied` serve: the one place where what serves changes, and where metrics learn of
    /// it.
    fn swap(self: &Arc<Self>, applied: AppliedConfig) {
        self.insight.apply(&applied.built.insight);
        if let Err(error) = self.otlp.apply(applied.built.collector.as_ref()) {
            tracing::error!(%error, "can't start the thread that exports traces and metrics");
        }
        if let Err(error) = self.documents.apply(&applied.built.documents) {
            tracing::error!(%error, "can't start the thread that fetches documents");
        }
        self.check_health(&applied.built);
        self.keep_certificates(&applied.built);
        self.current.swap(applied);
        self.live.renew();
        self.show_applied();
    }

    fn show_applied(&self) {
        let applied_s = self.clock.wall_us() / 1_000_000;
        self.metrics.gauge(names::CONFIG_APPLIED).set(applied_s);
        let built = &self.current.load().built;
        self.metrics
            .gauge(names::CONFIG_HASH)
            .set(i64::from_ne_bytes(built.outline.number().to_ne_bytes()));
        let store = match *built.engine {
            Engine::Embedded(_) => "embedded",
            Engine::Redis(_) => "redis",
        };
        self.metrics.inform(names::BUILD, &[env!("CARGO_PKG_VERSION"), store]);
        match built.first_expiry_s() {
            Some(first) => self.metrics.gauge(names::CERTIFICATES_EXPIRE).set(first),
            None => self.metrics.forget_gauge(names::CERTIFICATES_EXPIRE),
        }
    }

    /// Ends what is in flight, and the operator's pages.
    fn cut(&self) {
        self.live.cut();
        self.drain.cut();
        self.admin_drain.cut();
    }

    /// Waits until no thread accepts connections: a matter of microseconds, unless one is busy.
    fn await_no_accepting(&self) {
        let waits = async {
            self.drain.accepts_no_more().await;
            self.admin_drain.accepts_no_more().await;
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        let ended = runtime.is_ok_and(|runtime| {
            runtime.block_on(async { tokio::time::timeout(ACCEPTING_MAX, waits).await.is_ok() })
        });
        if !ended {
            tracing::warn!(
                "a worker still accepts connections: what it decides is not handed over"
            );
        }
    }

    /// A shutdown waits for what this limiter's requests settle, as for those of the current one.
    fn retire(&self, limiter: &Limiter) {
        let mut retired = self.retired.lock().unwrap_or_else(PoisonError::into_inner);
        retired.retain(|limiter| !limiter.is_over());
        retired.push(limiter.retire());
    }
}

/// What requests leave behind: what is remembered of them, and what is exported.
fn observing(
    built: &ConfigBuild,
    metrics: &Metrics,
    clock: &Clock,
) -> Result<(Insight, Otlp), StartError> {
    let (insight, otlp) = (Insight::new(built.workers), Otlp::new(built.workers, metrics, clock));
    insight.apply(&built.insight);
    otlp.apply(built.collector.as_ref()).map_err(StartError::Worker)?;
    Ok((insight, otlp))
}

/// Why Weir did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration is wrong; nothing was bound.
    #[error("{0}")]
    Mistakes(#[from] ConfigErrors),
    /// An address could not be bound.
    #[error("can't listen on {address}: {source}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// The system does not let this process handle signals.
    #[error("can't watch for signals: {0}")]
    Signals(std::io::Error),
    /// A thread or its runtime could not be started.
    #[error("can't start a worker: {0}")]
    Worker(std::io::Error),
    /// The process that this one was to take over from did not send its counters.
    #[error("can't take over from the old process: {0}")]
    Predecessor(#[from] ReceiveError),
}

impl App {
    /// Starts what `config` says, on the addresses it names. Raises the number of files that the
    /// process may have open to its hard limit.
    ///
    /// # Errors
    /// See [`StartError`]: nothing keeps running then.
    pub fn start(config: Config) -> Result<Self, StartError> {
        Self::start_on(config, Vec::new())
    }

    /// Starts on `sockets` instead of the configuration's listeners, where there are any: for
    /// programs that bind their own. The first socket speaks TLS where the first listener has
    /// certificates, and so on.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start_on(config: Config, sockets: Vec<TcpListener>) -> Result<Self, StartError> {
        Self::start_with(config, sockets, InheritedSockets::default(), || Ok(()))
            .map(|(app, ())| app)
    }

    /// Starts with what another process passed on: its sockets where the configuration names their
    /// addresses, and, if it is a Weir that hands over, its counters. Returns when that one accepts
    /// no more connections and this one does. [`serve`] then tells it to end. From the first
    /// connection on, signals wait for [`serve`].
    ///
    /// # Errors
    /// See [`StartError`]. A Weir that hands over then goes on.
    pub fn start_inheriting(
        config: Config,
        inherited: InheritedSockets,
    ) -> Result<(Self, Signals), StartError> {
        Self::start_with(config, Vec::new(), inherited, Signals::new)
    }

    /// Also returns what `prepare` does right before connections are accepted.
    fn start_with<T>(
        config: Config,
        sockets: Vec<TcpListener>,
        mut inherited: InheritedSockets,
        prepare: impl FnOnce() -> std::io::Result<T>,
    ) -> Result<(Self, T), StartError> {
        let (workers, clock, descriptors) =
            (config.workers.max(1), Clock::system(), Descriptors::raise());
        let metrics = Metrics::new(workers);
        metrics.measure(process::measure);
        let predecessor = inherited.predecessor.take().map(Predecessor::new).transpose();
        let predecessor = predecessor.map_err(StartError::Worker)?.map(Arc::new);
        let counters = predecessor
            .as_ref()
            .map_or(CounterOrigin::Snapshot, |one| CounterOrigin::Predecessor(Arc::clone(one)));
        let builder = Builder::new(metrics.clone(), clock.clone(), &config.policy_runtime)
            .map_err(|error| config.source.locate(&[error]))?
            .serving(counters);
        let (built, snapshot) = builder.build(config, None)?;
        built.warn(None);
        built.prepare();
        let public = match sockets.is_empty() {
            true => bind(&built.listeners, &mut inherited, workers),
            false => sockets.into_iter().map(|socket| given(vec![socket], workers)).collect(),
        };
        let public = numbered(public?);
        let admin = built.admin.as_ref().map(|admin| admin.address);
        let pages = admin
            .map(|address| bind_one(SocketRole::Operators, address, &mut inherited, 1))
            .transpose()?
            .unwrap_or_default();
        inherited.close_left();
        let first = |per_worker: &Vec<Listener>| per_worker.first().map(Listener::address);
        let addresses = public.iter().filter_map(first).collect();
        let admin_address = pages.first().map(Listener::address);
        let sockets = handles((&built.listeners, &public), (admin, &pages));

        let (insight, otlp) = observing(&built, &metrics, &clock)?;
        let observers = Observers { insight: insight.clone(), tracer: otlp.tracer() };
        let applied = AppliedConfig::new(built, snapshot, None, descriptors, &builder.budget);
        let reloads = Reloads::since(&applied.built.outline);
        let current = CurrentConfig::new(applied);
        let running = Arc::new(Instance {
            live: Live::observed(current.snapshot(), observers),
            insight,
            otlp,
            health: HealthChecks::new(),
            certificates: Certificates::new(&metrics, &clock),
            documents: Documents::new(&metrics, &clock, &current.load().built.documents),
            current,
            reloading: Mutex::default(),
            retired: Mutex::default(),
            builder,
            started_us: clock.wall_us(),
            reloads,
            page: LivePage::default(),
            metrics,
            clock,
            descriptors,
            drain: Drain::new(),
            admin_drain: Drain::new(),
            leaving: AtomicBool::new(false),
        });
        running.begin();
        // From here on this process decides, and the old one does not.
        let engine = Arc::clone(&running.current.load().built.engine);
        let received = predecessor.as_ref().map(|predecessor| predecessor.take_over(&engine));
        let received = received.transpose()?.flatten();
        let memory = Memory::watch(&running).map_err(StartError::Worker)?;
        let snapshots = Snapshots::start(&running).map_err(StartError::Worker)?;
        let prepared = prepare().map_err(StartError::Signals)?;
        let workers = Workers::start(&running, public, pages, workers).inspect_err(|_| {
            // Stops the workers that did start.
            running.drain.cut();
        })?;
        let app = Self {
            running,
            workers: Some(workers),
            addresses,
            admin: admin_address,
            snapshots,
            sockets,
            predecessor,
            received,
            sent: None,
            _memory: memory,
        };
        Ok((app, prepared))
    }

    /// The addresses that serve clients, in the order of the configuration's listeners.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// The address of the operator's pages.
    #[must_use]
    pub fn admin_address(&self) -> Option<SocketAddr> {
        self.admin
    }

    /// What this Weir counts.
    #[must_use]
    pub fn metrics(&self) -> &Metrics {
        &self.running.metrics
    }

    /// A handle that applies new configurations.
    #[must_use]
    pub fn reloader(&self) -> Reloader {
        Reloader(Arc::clone(&self.running))
    }

    /// Has `/ready` answer no, so that load balancers send no more requests, and keeps serving.
    /// Returns how long the configuration wants to wait for that.
    pub fn announce_shutdown(&self) -> Duration {
        self.running.leaving.store(true, Ordering::SeqCst);
        self.running.live.announce_shutdown();
        self.running.current.load().built.shutdown_delay
    }

    /// Starts the command `command_line` as a new process that takes over: listening sockets,
    /// counters, and all connections from then on. This one has to be [shut down](Self::shutdown)
    /// next, which lets what is under way finish.
    ///
    /// # Errors
    /// The new process failed, and this one keeps serving. If that was late, connections that were
    /// open are closed after their reply.
    fn hand_over(
        &mut self,
        command_line: &CommandLine,
        abort: &Abort,
    ) -> Result<(), HandOverError> {
        let running = Arc::clone(&self.running);
        // No reload replaces the engine meanwhile.
        let _reloading = running.reloading.lock().unwrap_or_else(PoisonError::into_inner);
        let engine = &running.current.load().built.engine;
        let successor = handover::start(command_line, &self.sockets, engine, abort)?;
        // The file is the new process's from now on.
        self.snapshots.end(engine);
        running.drain.pause();
        running.admin_drain.pause();
        running.await_no_accepting();
        match successor.finish() {
            Ok((pid, operations)) => {
                abort.over();
                self.sent = Some(operations);
                running.drain.start();
                running.admin_drain.start();
                tracing::info!(
                    pid,
                    "handed over to a new process: requests in flight here may finish"
                );
                Ok(())
            }
            Err(error) => {
                engine.end_operations();
                running.drain.resume();
                running.admin_drain.resume();
                if let Err(error) = self.snapshots.restart(&running) {
                    tracing::error!(%error, "counters are not saved any more");
                }
                Err(error)
            }
        }
    }

    /// Tells the process that this one has taken over from, if there is one, that this one serves.
    fn say_serving(&mut self) {
        if let Some(predecessor) = self.predecessor.take() {
            predecessor.serving();
        }
    }

    /// Stops accepting, lets what is under way finish within the configured grace, settles, saves
    /// counters in memory, and ends all threads. Returns whether everything finished in time.
    pub fn shutdown(mut self) -> bool {
        self.running.drain.start();
        self.running.stop_fetching();
        let built = &self.running.current.load().built;
        let until = clock::monotonic() + built.shutdown_grace;
        let left = || until.saturating_duration_since(clock::monotonic());
        let finished = self.workers.take().is_none_or(|workers| workers.join(built.shutdown_grace));
        if let Some(received) = self.received.take() {
            received.join(left());
        }
        built.engine.end_operations();
        if let Some(sent) = self.sent.take() {
            sent.join(left().max(OPERATIONS_MAX));
        }
        // Last, with all that requests have settled.
        self.snapshots.finish(&built.engine);
        self.running.otlp.finish();
        finished
    }
}

impl Drop for App {
    /// Also runs after [`App::shutdown`], whose grace is over then.
    fn drop(&mut self) {
        self.running.cut();
    }
}

/// Applies new configurations to a running [`App`].
#[derive(Clone, Debug)]
pub struct Reloader(Arc<Instance>);

impl Reloader {
    /// Reads `path`, builds what it says aside, and swaps it in. If anything is wrong, the old
    /// configuration stays in use.
    ///
    /// # Errors
    /// All errors; nothing has changed then.
    pub fn reload(&self, path: &Path) -> Result<Vec<Watch>, ConfigErrors> {
        self.reload_for(path, None).0
    }

    /// Also returns a report for whoever asked for it, as JSON.
    fn reload_for(
        &self,
        path: &Path,
        reason: Option<Reason>,
    ) -> (Result<Vec<Watch>, ConfigErrors>, String) {
        let outcome = documents::load(path, &|config| self.0.try_out(config))
            .map_err(|errors| self.complete(errors))
            .and_then(|config| self.replace(config));
        let (outcome, ended) = match outcome {
            Ok((watched, Some(changes))) => (Ok(watched), ReloadEnd::Applied(changes)),
            Ok((watched, None)) => (Ok(watched), ReloadEnd::ShuttingDown),
            Err(mut errors) => {
                let running = self.0.current.load();
                reloads::follow_maintenance(&running.built.routes, &mut errors.watched);
                let ended = ReloadEnd::refused(&errors);
                (Err(errors), ended)
            }
        };
        let report = ended.report().to_string();
        let at_s = self.0.clock.wall_us() / 1_000_000;
        self.0.reloads.note(Record { at_s, reason, ended });
        (outcome, report)
    }

    fn complete(&self, errors: ConfigErrors) -> ConfigErrors {
        self.0.builder.complete(errors, Some(&self.0.current.load().built))
    }

    /// Applies a configuration that is read already. Returns the files to watch from now on.
    ///
    /// Once a shutdown has begun, nothing changes.
    ///
    /// # Errors
    /// The errors that showed when it was built; nothing has changed then.
    pub fn apply(&self, config: Config) -> Result<Vec<Watch>, ConfigErrors> {
        self.replace(config).map(|(watched, _)| watched)
    }

    /// The files to watch, and what changed; none once a shutdown has begun.
    fn replace(&self, config: Config) -> Result<(Vec<Watch>, Option<Changes>), ConfigErrors> {
        let running = &self.0;
        // One reload at a time: a second one waits here, and then compares with what the first one
        // has built.
        let _reloading = running.reloading.lock().unwrap_or_else(PoisonError::into_inner);
        let applied = running.current.load();
        let current = &applied.built;
        let (built, snapshot) = running.builder.build(config, Some(current))?;
        if self.is_draining() {
            // The workers wait for what the current limiters still have to settle.
            return Ok((built.watched, None));
        }
        // First, so that the warnings below are logged as the new configuration says.
        telemetry::apply(&built.log);
        built.warn(Some(current));
        built.prepare();
        let changes = running.reloads.changes(&current.outline, &built.outline);
        reloads::log(&changes);
        let built = built.started_as(current);
        built.resize_engine();
        if !Arc::ptr_eq(&current.limiter, &built.limiter) {
            running.retire(&current.limiter);
        }
        if !Arc::ptr_eq(&current.engine, &built.engine) {
            // Its counters will be there if a later configuration names them again.
            snapshots::save_last(&current.engine);
        }
        let watched = built.watched.clone();
        let (descriptors, budget) = (running.descriptors, &running.builder.budget);
        let current = Some(current);
        running.swap(AppliedConfig::new(built, snapshot, current, descriptors, budget));
        Ok((watched, Some(changes)))
    }

    /// Whether the shutdown has begun. Then nothing is applied any more.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.0.drain.started()
    }

    /// Whether this process is about to end, or has handed over.
    fn is_leaving(&self) -> bool {
        self.is_draining() || self.0.leaving.load(Ordering::SeqCst)
    }

    /// The files that the running configuration is made of.
    #[must_use]
    pub fn watched(&self) -> Vec<Watch> {
        self.0.current.load().built.watched.clone()
    }
}

/// Reads a configuration. If it has errors, what could be read of it is built all the same and
/// dropped again, so that all errors are reported at once, including those of modules and guests.
///
/// # Errors
/// All errors.
pub fn load(path: &Path) -> Result<Config, ConfigErrors> {
    Config::load(path).map_err(complete_alone)
}

/// Adds the errors that modules find, where nothing runs yet.
fn complete_alone(errors: ConfigErrors) -> ConfigErrors {
    let runtime = errors.policy_runtime();
    match Builder::new(Metrics::new(1), Clock::system(), &runtime) {
        Ok(builder) => builder.complete(errors, None),
        // This machine can't run guests: starting will report that.
        Err(_) => errors,
    }
}
