//! Wires all rooms together and runs them: the only room that knows every other.
//!
//! [`App`] is Weir as a library, too: it starts the same house from another Rust program, on
//! sockets it is given or binds itself. `counters` finds counters for a person who asks; `build`
//! turns a checked configuration into a house; `workers` runs the threads; `views` shows the
//! operator what stands; `demo` is the small upstream of `weir demo`; `descriptors` divides the
//! files that the process may have open; `memory` gives back what closed connections leave.

mod build;
mod counters;
mod demo;
mod descriptors;
mod memory;
mod serve;
#[cfg(test)]
mod tests;
mod views;
mod workers;

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::admin;
use crate::clock::Clock;
use crate::config::{Config, Mistakes};
use crate::engine::Engine;
use crate::limit::{Limiter, Retired};
use crate::listen::{ConnectionSettings, CurrentTls, Drain, Listener};
use crate::plan::OnStoreError;
use crate::reload::Watch;
use crate::telemetry::{self, Metrics, names};
use crate::upstream::{Budget, Upstream};

pub use counters::{CounterQuery, NoCounters, counters};
pub use demo::DemoUpstream;
pub use serve::serve;

use build::{Builder, Built};
use descriptors::Descriptors;
use memory::Memory;
use workers::Workers;

/// A running Weir. Dropping it without [`App::shutdown`] cuts what is under way.
#[derive(Debug)]
pub struct App {
    house: Arc<Running>,
    /// None once [`App::shutdown`] has taken them.
    workers: Option<Workers>,
    addresses: Vec<SocketAddr>,
    admin: Option<SocketAddr>,
    _memory: Memory,
}

/// What a reload changes and what the views show.
#[derive(Debug)]
struct Running {
    builder: Builder,
    /// Held while a reload builds, which takes as long as compiling guests does: nobody who has to
    /// answer may wait for it.
    current: Mutex<Built>,
    /// Of the start: a reload changes none.
    shutdown_grace: Duration,
    /// What serving needs of `current`, without that wait.
    serving: arc_swap::ArcSwap<Serving>,
    /// Those that reloads have replaced, while requests still hold something of them.
    retired: Mutex<Vec<Retired>>,
    live: Arc<crate::proxy::Live>,
    connections: Arc<Connections>,
    /// Of each listener.
    security: Vec<CurrentTls>,
    /// The operator's own: clients who take all places must not shut out whoever looks why.
    admin_connections: Arc<Connections>,
    /// Who may see the operator's pages; none are served where there are no settings.
    admin: Option<Arc<arc_swap::ArcSwap<admin::Settings>>>,
    metrics: Metrics,
    clock: Clock,
    descriptors: Descriptors,
    drain: Drain,
    /// The operator's pages are served until everything else has ended.
    admin_drain: Drain,
    views: views::State,
}

impl Running {
    /// A shutdown has to wait for what this limiter's requests settle, as for the others'.
    fn retire(&self, limiter: &Limiter) {
        let mut retired = self.retired.lock().unwrap_or_else(PoisonError::into_inner);
        retired.retain(|limiter| !limiter.is_over());
        retired.push(limiter.retire());
    }
}

type Connections = arc_swap::ArcSwap<ConnectionSettings>;

/// Connections to the operator's pages at once, at most.
const ADMIN_CONNECTIONS_MAX: usize = 256;

/// What stands now, for whoever asks while the next is being built.
#[derive(Debug)]
struct Serving {
    engine: Arc<Engine>,
    limiter: Arc<Limiter>,
    /// Some route refuses its clients when the store does not answer.
    store_is_needed: bool,
    charges: Vec<counters::Charges>,
    /// By name.
    upstreams: Vec<(String, Arc<Upstream>)>,
}

impl Serving {
    fn of(built: &Built) -> Self {
        let store_is_needed = built
            .routes
            .iter()
            .any(|route| route.policy.is_some() && route.on_store_error != OnStoreError::Allow);
        let mut upstreams: Vec<_> = built
            .upstreams
            .iter()
            .map(|(name, (_, upstream))| (name.clone(), Arc::clone(upstream)))
            .collect();
        upstreams.sort_by(|(one, _), (other, _)| one.cmp(other));
        let charges = counters::Charges::of(
            &built.routes,
            built.policies.values().map(|(settings, _)| settings),
        );
        Self {
            engine: Arc::clone(&built.engine),
            limiter: Arc::clone(&built.limiter),
            store_is_needed,
            charges,
            upstreams,
        }
    }
}

/// What the listeners may have of what `built` says, and the admin pages: what the descriptors
/// allow.
fn within(
    descriptors: Descriptors,
    built: &Built,
    before: Option<&Built>,
    budget: &Budget,
) -> (ConnectionSettings, ConnectionSettings) {
    let public = &built.connections;
    let shares = descriptors.share(
        public.connections_max,
        ADMIN_CONNECTIONS_MAX,
        built.workers,
        built.listeners.len(),
    );
    if before.is_none_or(|before| before.connections.connections_max != public.connections_max) {
        shares.warn(public.connections_max);
    }
    budget.set(shares.upstreams, built.workers);
    // Where there are fewer places than was thought, one address has no more than half of them.
    let of_an_address = if shares.clients < public.connections_max {
        (shares.clients / 2).max(1)
    } else {
        usize::MAX
    };
    let clients = ConnectionSettings {
        connections_max: shares.clients,
        connections_per_address_max: public.connections_per_address_max.min(of_an_address),
        ..public.clone()
    };
    // Scrapers and people behind one address share them.
    let admin = ConnectionSettings {
        connections_max: shares.admin,
        connections_per_address_max: ADMIN_CONNECTIONS_MAX,
        ..public.clone()
    };
    (clients, admin)
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
            .map_err(|mistake| config.source.locate(&[mistake]))?;
        let (built, house) = builder.build(config, None)?;
        built.warn(None);
        built.prepare();
        let public =
            if sockets.is_empty() { bind(&built, workers)? } else { given(sockets, workers)? };
        show_expiry(&metrics, &built);
        let security: Vec<CurrentTls> = built.tls.iter().cloned().map(CurrentTls::new).collect();
        let public = secure(public, &security);
        let pages = built.admin.as_ref().map(|admin| bind_one(admin.address, 1)).transpose()?;
        let addresses = public
            .iter()
            .filter_map(|per_worker| per_worker.first().map(Listener::address))
            .collect();
        let admin_address = pages.as_ref().and_then(|bound| bound.first().map(Listener::address));

        let (clients, operators) = within(descriptors, &built, None, &builder.budget);
        let running = Arc::new(Running {
            views: views::State::new(&built, clock.wall_us()),
            shutdown_grace: built.shutdown_grace,
            serving: arc_swap::ArcSwap::from_pointee(Serving::of(&built)),
            retired: Mutex::default(),
            admin_connections: Arc::new(Connections::from_pointee(operators)),
            admin: built
                .admin
                .clone()
                .map(|settings| Arc::new(arc_swap::ArcSwap::from_pointee(settings))),
            current: Mutex::new(built),
            live: crate::proxy::Live::new(house),
            builder,
            connections: Arc::new(Connections::from_pointee(clients)),
            security,
            metrics,
            clock,
            descriptors,
            drain: Drain::new(),
            admin_drain: Drain::new(),
        });
        running.metrics.gauge(names::CONFIG_APPLIED).set(running.clock.wall_us() / 1_000_000);
        let memory = Memory::watch(&running.metrics).map_err(StartError::Worker)?;
        let workers = Workers::start(&running, public, pages.unwrap_or_default(), workers)
            .inspect_err(|_| {
                // Those that did start must not serve on.
                running.drain.cut();
            })?;
        Ok(Self {
            house: running,
            workers: Some(workers),
            addresses,
            admin: admin_address,
            _memory: memory,
        })
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

    /// Stops accepting, lets what is under way finish within the configured grace, settles, and
    /// ends all threads. Says whether all of it finished in time.
    pub fn shutdown(mut self) -> bool {
        self.house.drain.start();
        self.workers.take().is_none_or(|workers| workers.join(self.house.shutdown_grace))
    }
}

impl Drop for App {
    /// Also after [`App::shutdown`], whose grace is over then.
    fn drop(&mut self) {
        self.house.live.cut();
        self.house.drain.cut();
        self.house.admin_drain.cut();
    }
}

/// Applies new configurations to a running [`App`].
#[derive(Clone, Debug)]
pub struct Reloader(Arc<Running>);

impl Reloader {
    /// Reads `path`, builds a house aside and swaps it in. The old one serves on when anything is
    /// wrong.
    ///
    /// # Errors
    /// All mistakes; nothing has changed then.
    pub fn reload(&self, path: &Path) -> Result<Vec<Watch>, Mistakes> {
        let outcome = Config::load(path)
            .map_err(|mistakes| self.complete(mistakes))
            .and_then(|config| self.apply(config));
        self.0.views.reloaded(outcome.as_ref().err(), self.0.clock.wall_us());
        outcome
    }

    fn complete(&self, mistakes: Mistakes) -> Mistakes {
        let current = self.0.current.lock().unwrap_or_else(PoisonError::into_inner);
        self.0.builder.complete(mistakes, Some(&current))
    }

    /// Applies a configuration that is read already. Answers the files to watch from now on.
    ///
    /// Once a shutdown has begun, nothing changes.
    ///
    /// # Errors
    /// What the rooms found when they were built; nothing has changed then.
    pub fn apply(&self, config: Config) -> Result<Vec<Watch>, Mistakes> {
        let running = &self.0;
        // One reload at a time: a second one waits here, and then compares with what the first has
        // built.
        let mut current = running.current.lock().unwrap_or_else(PoisonError::into_inner);
        let (built, house) = running.builder.build(config, Some(&current))?;
        if self.is_draining() {
            // What the requests under way still settle belongs to the limiters of now: the workers
            // wait for those.
            return Ok(built.watched);
        }
        // First, so that the warnings below are logged as the new configuration says.
        telemetry::apply(&built.log);
        built.warn(Some(&current));
        built.prepare();
        for setting in current.needs_restart(&built) {
            tracing::warn!(setting, "this setting changed, but is applied only at a restart");
        }
        for what in current.resets(&built) {
            tracing::warn!(what, "this reload resets counters");
        }
        let built = built.started_as(&current);
        built.settle_in();
        show_expiry(&running.metrics, &built);
        running
            .security
            .iter()
            .zip(&built.tls)
            .for_each(|(security, tls)| security.swap(tls.clone()));
        let (clients, operators) =
            within(running.descriptors, &built, Some(&current), &running.builder.budget);
        running.connections.store(Arc::new(clients));
        running.admin_connections.store(Arc::new(operators));
        if let (Some(running), Some(next)) = (&running.admin, &built.admin) {
            running.store(Arc::new(next.clone()));
        }
        if !Arc::ptr_eq(&current.limiter, &built.limiter) {
            running.retire(&current.limiter);
        }
        running.serving.store(Arc::new(Serving::of(&built)));
        running.live.swap(house);
        let watched = built.watched.clone();
        running.views.applied(&built);
        *current = built;
        Ok(watched)
    }

    /// Whether the shutdown has begun: then nothing is applied any more.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.0.drain.started()
    }

    /// The files that the running configuration is made of.
    #[must_use]
    pub fn watched(&self) -> Vec<Watch> {
        self.0.current.lock().unwrap_or_else(PoisonError::into_inner).watched.clone()
    }
}

/// For whoever forgot to renew. Shown while there is a certificate.
fn show_expiry(metrics: &Metrics, built: &Built) {
    match built.tls.iter().flatten().map(|tls| tls.expires_s()).min() {
        Some(first) => metrics.gauge(names::CERTIFICATES_EXPIRE).set(first),
        None => metrics.forget_gauge(names::CERTIFICATES_EXPIRE),
    }
}

fn bind(built: &Built, workers: usize) -> Result<Vec<Vec<Listener>>, StartError> {
    built.listeners.iter().map(|settings| bind_one(settings.address, workers)).collect()
}

/// Each listener's sockets, with its certificates.
fn secure(public: Vec<Vec<Listener>>, security: &[CurrentTls]) -> Vec<Vec<Listener>> {
    let plain = CurrentTls::default();
    let all = security.iter().chain(std::iter::repeat(&plain));
    public
        .into_iter()
        .zip(all)
        .map(|(sockets, security)| {
            sockets.into_iter().map(|socket| socket.with_tls(security)).collect()
        })
        .collect()
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

/// Reads a configuration. Where it has mistakes, what could be read of it is built all the same and
/// let go again, so that all mistakes are told at once: those of the rooms and of the guests too.
///
/// # Errors
/// All mistakes.
pub fn load(path: &Path) -> Result<Config, Mistakes> {
    Config::load(path).map_err(|mistakes| match Builder::new(Metrics::new(1), Clock::system()) {
        Ok(builder) => builder.complete(mistakes, None),
        // A machine that runs no guest: starting will say so.
        Err(_) => mistakes,
    })
}

/// Builds everything that `config` names, guests included, and lets it go again: what `weir check`
/// does. Answers what is allowed and yet probably not meant, a sentence each with file and line.
///
/// # Errors
/// All mistakes of all rooms.
pub fn check(config: Config) -> Result<Vec<String>, Mistakes> {
    let builder = Builder::new(Metrics::new(1), Clock::system())
        .map_err(|mistake| config.source.locate(&[mistake]))?;
    builder.build(config, None).map(|(built, _)| built.warnings)
}

/// Starts the log as `config` says: what a program does first, once.
pub fn start_log(config: &Config) {
    telemetry::start(&config.log);
}
