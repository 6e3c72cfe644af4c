//! Wires all modules together and runs them: the only module that knows every other.
//!
//! [`App`] is Weir as a library, too: another Rust program can start the same proxy, on sockets
//! that it hands in or that Weir binds. `build` turns a checked configuration into what serves it,
//! and `applied` is that as one value, which a reload swaps. `workers` runs the threads, `views`
//! shows the operator the state, `counters` finds counters for a person who asks, `descriptors`
//! divides the files that the process may have open, `memory` gives back what closed connections
//! and expired counters leave, `snapshots` saves counters, and `demo` is the small upstream of
//! `weir demo`.

mod applied;
mod build;
mod counters;
mod demo;
mod descriptors;
mod memory;
mod serve;
mod snapshots;
#[cfg(test)]
mod tests;
mod views;
mod workers;

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use crate::clock::Clock;
use crate::config::{Config, Mistakes};
use crate::limit::{Limiter, Retired};
use crate::listen::{Drain, Listener};
use crate::proxy::Live;
use crate::reload::Watch;
use crate::telemetry::{self, Metrics, names};

pub use crate::admin::page_paths;
pub use counters::{CounterQuery, NoCounters, counters};
pub use demo::DemoUpstream;
pub use serve::serve;

use applied::{Applied, Current};
use build::{Builder, Built};
use descriptors::Descriptors;
use memory::Memory;
use snapshots::Snapshots;
use workers::Workers;

/// A running Weir. Dropping it without [`App::shutdown`] cuts what is under way.
#[derive(Debug)]
pub struct App {
    running: Arc<Running>,
    /// None once [`App::shutdown`] has taken them.
    workers: Option<Workers>,
    addresses: Vec<SocketAddr>,
    admin: Option<SocketAddr>,
    /// None once [`App::shutdown`] has taken it.
    snapshots: Option<Snapshots>,
    _memory: Memory,
}

/// What the threads, the reloads and the operator's pages share.
#[derive(Debug)]
struct Running {
    builder: Builder,
    /// What serves now.
    current: Current,
    /// Tells the workers when `current` has changed.
    live: Arc<Live>,
    /// Held by a reload while it builds, which takes as long as compiling guests does. Nothing that
    /// serves or answers the operator waits for it.
    reloading: Mutex<()>,
    /// Limiters that reloads have replaced, while requests still use them.
    retired: Mutex<Vec<Retired>>,
    metrics: Metrics,
    clock: Clock,
    descriptors: Descriptors,
    drain: Drain,
    /// The operator's pages are served until everything else has ended.
    admin_drain: Drain,
    started_us: i64,
    last_reload: Mutex<Option<views::LastReload>>,
}

impl Running {
    /// Makes `applied` serve: the one place where what serves changes, and where metrics learn of
    /// it.
    fn swap(&self, applied: Applied) {
        self.current.swap(applied);
        self.live.renew();
        self.show_applied();
    }

    fn show_applied(&self) {
        let applied_s = self.clock.wall_us() / 1_000_000;
        self.metrics.gauge(names::CONFIG_APPLIED).set(applied_s);
        match self.current.load().built.first_expiry_s() {
            Some(first) => self.metrics.gauge(names::CERTIFICATES_EXPIRE).set(first),
            None => self.metrics.forget_gauge(names::CERTIFICATES_EXPIRE),
        }
    }

    /// A shutdown waits for what this limiter's requests settle, as for those of the current one.
    fn retire(&self, limiter: &Limiter) {
        let mut retired = self.retired.lock().unwrap_or_else(PoisonError::into_inner);
        retired.retain(|limiter| !limiter.is_over());
        retired.push(limiter.retire());
    }
}

/// Why Weir did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration is wrong; nothing was bound.
    #[error("{0}")]
    Mistakes(#[from] Mistakes),
    /// An address could not be bound.
    #[error("can't listen on {address}: {source}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// A thread or its runtime could not be started.
    #[error("can't start a worker: {0}")]
    Worker(std::io::Error),
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
        let (workers, clock, descriptors) =
            (config.workers.max(1), Clock::system(), Descriptors::raise());
        let metrics = Metrics::new(workers);
        let builder = Builder::new(metrics.clone(), clock.clone())
            .map_err(|mistake| config.source.locate(&[mistake]))?
            .serving();
        let (built, snapshot) = builder.build(config, None)?;
        built.warn(None);
        built.prepare();
        let public =
            if sockets.is_empty() { bind(&built, workers)? } else { given(sockets, workers)? };
        let public = numbered(public);
        let pages = built.admin.as_ref().map(|admin| bind_one(admin.address, 1)).transpose()?;
        let addresses = public
            .iter()
            .filter_map(|per_worker| per_worker.first().map(Listener::address))
            .collect();
        let admin_address = pages.as_ref().and_then(|bound| bound.first().map(Listener::address));

        let applied = Applied::new(built, snapshot, None, descriptors, &builder.budget);
        let current = Current::new(applied);
        let running = Arc::new(Running {
            live: Live::new(current.snapshot()),
            current,
            reloading: Mutex::default(),
            retired: Mutex::default(),
            builder,
            started_us: clock.wall_us(),
            last_reload: Mutex::default(),
            metrics,
            clock,
            descriptors,
            drain: Drain::new(),
            admin_drain: Drain::new(),
        });
        running.show_applied();
        let memory = Memory::watch(&running).map_err(StartError::Worker)?;
        let snapshots = Snapshots::start(&running).map_err(StartError::Worker)?;
        let workers = Workers::start(&running, public, pages.unwrap_or_default(), workers)
            .inspect_err(|_| {
                // Stops the workers that did start.
                running.drain.cut();
            })?;
        Ok(Self {
            running,
            workers: Some(workers),
            addresses,
            admin: admin_address,
            snapshots: Some(snapshots),
            _memory: memory,
        })
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

    /// Stops accepting, lets what is under way finish within the configured grace, settles, and
    /// ends all threads. Returns whether everything finished in time.
    pub fn shutdown(mut self) -> bool {
        self.running.drain.start();
        let built = &self.running.current.load().built;
        let finished = self.workers.take().is_none_or(|workers| workers.join(built.shutdown_grace));
        // Last, with all that requests have settled.
        if let Some(snapshots) = self.snapshots.take() {
            snapshots.finish(&built.engine);
        }
        finished
    }
}

impl Drop for App {
    /// Also runs after [`App::shutdown`], whose grace is over then.
    fn drop(&mut self) {
        self.running.live.cut();
        self.running.drain.cut();
        self.running.admin_drain.cut();
    }
}

/// Applies new configurations to a running [`App`].
#[derive(Clone, Debug)]
pub struct Reloader(Arc<Running>);

impl Reloader {
    /// Reads `path`, builds what it says aside, and swaps it in. If anything is wrong, the old
    /// configuration serves on.
    ///
    /// # Errors
    /// All mistakes; nothing has changed then.
    pub fn reload(&self, path: &Path) -> Result<Vec<Watch>, Mistakes> {
        let outcome = Config::load(path)
            .map_err(|mistakes| self.complete(mistakes))
            .and_then(|config| self.apply(config));
        let reload = views::LastReload::new(outcome.as_ref().err(), self.0.clock.wall_us());
        *self.0.last_reload.lock().unwrap_or_else(PoisonError::into_inner) = Some(reload);
        outcome
    }

    fn complete(&self, mistakes: Mistakes) -> Mistakes {
        self.0.builder.complete(mistakes, Some(&self.0.current.load().built))
    }

    /// Applies a configuration that is read already. Returns the files to watch from now on.
    ///
    /// Once a shutdown has begun, nothing changes.
    ///
    /// # Errors
    /// The mistakes that showed when it was built; nothing has changed then.
    pub fn apply(&self, config: Config) -> Result<Vec<Watch>, Mistakes> {
        let running = &self.0;
        // One reload at a time: a second one waits here, and then compares with what the first one
        // has built.
        let _reloading = running.reloading.lock().unwrap_or_else(PoisonError::into_inner);
        let applied = running.current.load();
        let current = &applied.built;
        let (built, snapshot) = running.builder.build(config, Some(current))?;
        if self.is_draining() {
            // The workers wait for what the current limiters still have to settle.
            return Ok(built.watched);
        }
        // First, so that the warnings below are logged as the new configuration says.
        telemetry::apply(&built.log);
        built.warn(Some(current));
        built.prepare();
        for setting in current.needs_restart(&built) {
            tracing::warn!(setting, "this setting changed, but is applied only at a restart");
        }
        for what in current.resets(&built) {
            tracing::warn!(what, "this reload resets counters");
        }
        let built = built.started_as(current);
        built.resize_engine();
        if !Arc::ptr_eq(&current.limiter, &built.limiter) {
            running.retire(&current.limiter);
        }
        let watched = built.watched.clone();
        let budget = &running.builder.budget;
        running.swap(Applied::new(built, snapshot, Some(current), running.descriptors, budget));
        Ok(watched)
    }

    /// Whether the shutdown has begun. Then nothing is applied any more.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.0.drain.started()
    }

    /// The files that the running configuration is made of.
    #[must_use]
    pub fn watched(&self) -> Vec<Watch> {
        self.0.current.load().built.watched.clone()
    }
}

fn bind(built: &Built, workers: usize) -> Result<Vec<Vec<Listener>>, StartError> {
    built.listeners.iter().map(|settings| bind_one(settings.address, workers)).collect()
}

/// Each listener's sockets, with its number.
fn numbered(public: Vec<Vec<Listener>>) -> Vec<Vec<Listener>> {
    let number = |(index, sockets): (usize, Vec<Listener>)| {
        sockets.into_iter().map(|socket| socket.numbered(index)).collect()
    };
    public.into_iter().enumerate().map(number).collect()
}

fn bind_one(address: SocketAddr, workers: usize) -> Result<Vec<Listener>, StartError> {
    Listener::bind(&crate::listen::Settings::plain(address), workers)
        .map_err(|source| StartError::Bind { address, source })
}

fn given(sockets: Vec<TcpListener>, workers: usize) -> Result<Vec<Vec<Listener>>, StartError> {
    sockets
        .into_iter()
        .map(|socket| {
            (0..workers).map(|_| socket.try_clone().and_then(Listener::from_std)).collect()
        })
        .collect::<std::io::Result<_>>()
        .map_err(StartError::Worker)
}

/// Reads a configuration. If it has mistakes, what could be read of it is built all the same and
/// dropped again, so that all mistakes are reported at once, including those of modules and guests.
///
/// # Errors
/// All mistakes.
pub fn load(path: &Path) -> Result<Config, Mistakes> {
    Config::load(path).map_err(|mistakes| match Builder::new(Metrics::new(1), Clock::system()) {
        Ok(builder) => builder.complete(mistakes, None),
        // This machine can't run guests: starting will report that.
        Err(_) => mistakes,
    })
}

/// Builds everything that `config` names, guests included, and drops it again: what `weir check`
/// does. Returns what is allowed but probably not intended, a sentence each with file and line.
///
/// # Errors
/// All mistakes of all modules.
pub fn check(config: Config) -> Result<Vec<String>, Mistakes> {
    let builder = Builder::new(Metrics::new(1), Clock::system())
        .map_err(|mistake| config.source.locate(&[mistake]))?;
    builder.build(config, None).map(|(built, _)| built.warnings)
}

/// Starts the log as `config` says. A program does this once, before anything else.
pub fn start_log(config: &Config) {
    telemetry::start(&config.log);
}
