//! Wires all rooms together and runs them: the only room that knows every other.
//!
//! [`App`] is Weir as a library, too: it starts the same house from another Rust program, on sockets it is given or binds itself.
//! `build` turns a checked configuration into a house; `workers` runs the threads; `views` shows the operator what stands; `demo` is the small
//! upstream of `weir demo`.

mod build;
mod demo;
mod serve;
mod views;
mod workers;

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::clock::Clock;
use crate::config::{Config, Mistakes};
use crate::listen::{Drain, Listener};
use crate::reload::Watch;
use crate::telemetry::{self, Metrics, names};

pub use demo::DemoUpstream;
pub use serve::serve;

use build::{Builder, Built};
use workers::Workers;

/// A running Weir. Dropping it without [`App::shutdown`] cuts what is under way.
#[derive(Debug)]
pub struct App {
    house: Arc<Running>,
    workers: Workers,
    addresses: Vec<SocketAddr>,
    admin: Option<SocketAddr>,
    grace: Duration,
}

/// What a reload changes and what the views show.
#[derive(Debug)]
struct Running {
    builder: Builder,
    current: Mutex<Built>,
    live: Arc<crate::proxy::Live>,
    connections: Arc<arc_swap::ArcSwap<crate::listen::ConnectionSettings>>,
    metrics: Metrics,
    clock: Clock,
    drain: Drain,
    views: views::State,
}

/// Why Weir did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration can't stand; nothing was bound.
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
    /// Starts what `config` says, on the addresses it names.
    ///
    /// # Errors
    /// See [`StartError`]: nothing keeps running then.
    pub fn start(config: Config) -> Result<Self, StartError> {
        Self::start_on(config, Vec::new())
    }

    /// Starts on `sockets` instead of the configuration's listeners, where there are any: for programs that bind their own.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start_on(config: Config, sockets: Vec<TcpListener>) -> Result<Self, StartError> {
        let (workers, clock) = (config.workers.max(1), Clock::system());
        let metrics = Metrics::new(workers);
        let builder = Builder::new(metrics.clone(), clock.clone(), &config)?;
        warn(&config);
        let (built, house) = builder.build(config, None)?;
        let public = if sockets.is_empty() { bind(&built, workers)? } else { given(sockets, workers)? };
        let admin = built.admin.map(|address| bind_one(address, 1)).transpose()?;
        let addresses = public.iter().filter_map(|per_worker| per_worker.first().map(Listener::address)).collect();
        let admin_address = admin.as_ref().and_then(|bound| bound.first().map(Listener::address));

        let connections = Arc::new(arc_swap::ArcSwap::from_pointee(built.connections.clone()));
        let grace = built.shutdown_grace;
        let running = Arc::new(Running {
            views: views::State::new(&built, clock.wall_us()),
            current: Mutex::new(built),
            live: crate::proxy::Live::new(house),
            builder,
            connections,
            metrics,
            clock,
            drain: Drain::new(),
        });
        running.metrics.gauge(names::CONFIG_APPLIED).set(running.clock.wall_us() / 1_000_000);
        let workers = Workers::start(&running, public, admin.unwrap_or_default(), workers)?;
        Ok(Self { house: running, workers, addresses, admin: admin_address, grace })
    }

    /// Where clients are served, in the order of the configuration's listeners.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Where the operator's pages are.
    #[must_use]
    pub fn admin_address(&self) -> Option<SocketAddr> {
        self.admin
    }

    /// What this Weir counts.
    #[must_use]
    pub fn metrics(&self) -> &Metrics {
        &self.house.metrics
    }

    /// A handle that applies new configurations; keep it where the watching is done.
    #[must_use]
    pub fn reloader(&self) -> Reloader {
        Reloader(Arc::clone(&self.house))
    }

    /// Stops accepting, lets what is under way finish within the configured grace, settles, and ends all threads.
    /// Says whether all of it finished in time.
    pub fn shutdown(self) -> bool {
        self.house.drain.start();
        self.workers.join(self.grace)
    }
}

/// Applies new configurations to a running [`App`].
#[derive(Clone, Debug)]
pub struct Reloader(Arc<Running>);

impl Reloader {
    /// Reads `path`, builds a house aside and swaps it in. The old one serves on when anything is wrong.
    ///
    /// # Errors
    /// All mistakes; nothing has changed then.
    pub fn reload(&self, path: &Path) -> Result<Vec<Watch>, Mistakes> {
        let outcome = Config::load(path).and_then(|config| self.apply(config));
        self.0.views.reloaded(outcome.as_ref().err(), self.0.clock.wall_us());
        outcome
    }

    /// Applies a configuration that is read already. Answers the files to watch from now on.
    ///
    /// # Errors
    /// What the rooms found when they were built; nothing has changed then.
    pub fn apply(&self, config: Config) -> Result<Vec<Watch>, Mistakes> {
        let running = &self.0;
        warn(&config);
        // One reload at a time: a second one waits here, and then compares with what the first has built.
        let mut current = running.current.lock().unwrap_or_else(PoisonError::into_inner);
        let (built, house) = running.builder.build(config, Some(&current))?;
        for setting in current.needs_restart(&built) {
            tracing::warn!(setting, "this setting changed, but is applied only at a restart");
        }
        running.connections.store(Arc::new(built.connections.clone()));
        running.live.swap(house);
        let watched = built.watched.clone();
        running.views.applied(&built);
        *current = built;
        Ok(watched)
    }

    /// The files that the running configuration is made of.
    #[must_use]
    pub fn watched(&self) -> Vec<Watch> {
        self.0.current.lock().unwrap_or_else(PoisonError::into_inner).watched.clone()
    }
}

fn warn(config: &Config) {
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
}

fn bind(built: &Built, workers: usize) -> Result<Vec<Vec<Listener>>, StartError> {
    built.listeners.iter().map(|settings| bind_one(settings.address, workers)).collect()
}

fn bind_one(address: SocketAddr, workers: usize) -> Result<Vec<Listener>, StartError> {
    Listener::bind(&crate::listen::Settings { address }, workers).map_err(|source| StartError::Bind { address, source })
}

fn given(sockets: Vec<TcpListener>, workers: usize) -> Result<Vec<Vec<Listener>>, StartError> {
    sockets
        .into_iter()
        .map(|socket| (0..workers).map(|_| socket.try_clone().and_then(Listener::from_std)).collect())
        .collect::<std::io::Result<_>>()
        .map_err(StartError::Worker)
}

/// Builds everything that `config` names, guests included, and lets it go again: what `weir check` does.
///
/// # Errors
/// All mistakes of all rooms.
pub fn check(config: Config) -> Result<(), Mistakes> {
    Builder::new(Metrics::new(1), Clock::system(), &config)?.build(config, None).map(drop)
}

/// Starts the log as `config` says: what a program does first, once.
pub fn start_log(config: &Config) {
    telemetry::start(&config.log);
}
