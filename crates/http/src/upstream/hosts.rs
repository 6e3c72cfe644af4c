//! All addresses of an upstream: the configured ones, and those that its names currently resolve
//! to. Knows nothing of requests.
//!
//! Names are resolved again in the background while the upstream is in use. Workers notice a change
//! by one number, which is read without a lock.

use std::fmt;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::net::lookup_host;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::Inner;
use super::endpoint::{Endpoint, HostAddress, Location};
use super::host::Host;

/// Maximum addresses used of one name.
const ADDRESSES_MAX: usize = 64;
/// How long the system may take to resolve a name. A resolver waits five seconds for each of its
/// servers, so this gives the second one a chance.
const RESOLVE_MAX: Duration = Duration::from_secs(12);
/// Minimum time between two resolutions, however many connections fail.
const RESOLVE_INTERVAL_MIN_MS: u64 = 1_000;
const NEVER: u64 = u64::MAX;

/// The addresses of a name.
pub(super) type Addresses = Pin<Box<dyn Future<Output = io::Result<Vec<SocketAddr>>> + Send>>;

/// Resolves names: the system, or a test's substitute.
pub(super) trait Resolver: fmt::Debug + Send + Sync {
    /// All addresses of `host`, with `port`.
    fn resolve(&self, host: String, port: u16) -> Addresses;
}

/// `getaddrinfo`, on one of the runtime's blocking threads.
#[derive(Debug)]
pub(super) struct SystemResolver;

impl Resolver for SystemResolver {
    fn resolve(&self, host: String, port: u16) -> Addresses {
        Box::pin(async move { Ok(lookup_host((host, port)).await?.collect()) })
    }
}

/// See the file's head.
#[derive(Debug)]
pub(super) struct Hosts {
    generation: AtomicU64,
    list: Mutex<Arc<[Arc<Host>]>>,
    /// So few hosts are healthy that health checks decide nothing.
    ignores_health: AtomicBool,
    /// Whether there are names to resolve.
    names: bool,
    /// When names were last resolved, in milliseconds since the upstream's creation.
    resolved_ms: AtomicU64,
    /// Held while names are being resolved.
    resolving: Arc<tokio::sync::Mutex<()>>,
    resolver: Arc<dyn Resolver>,
}

impl Hosts {
    pub(super) fn new(endpoints: &[Endpoint], resolver: Arc<dyn Resolver>) -> Self {
        let list = merge(endpoints, &[], Vec::new());
        Self {
            generation: AtomicU64::new(0),
            list: Mutex::new(list),
            ignores_health: AtomicBool::new(false),
            names: endpoints
                .iter()
                .any(|endpoint| matches!(endpoint.location, Location::Name { .. })),
            resolved_ms: AtomicU64::new(NEVER),
            resolving: Arc::default(),
            resolver,
        }
    }

    /// Changes when the addresses do.
    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    pub(super) fn current(&self) -> Arc<[Arc<Host>]> {
        Arc::clone(&self.list.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether health checks decide nothing, as too few hosts are healthy.
    pub(super) fn ignores_health(&self) -> bool {
        self.ignores_health.load(Ordering::Relaxed)
    }

    /// Counts who is healthy: if fewer than `healthy_min` of a hundred are, all get requests.
    pub(super) fn judge(&self, healthy_min: usize) {
        let list = self.current();
        let healthy = list.iter().filter(|host| host.is_healthy()).count();
        let ignores = healthy * 100 < list.len() * healthy_min;
        self.ignores_health.store(ignores, Ordering::Relaxed);
    }

    /// Ejects `host` until then, unless too many hosts already are: `max_percent` of them, rounded
    /// down, but at least one. Returns whether it did.
    pub(super) fn eject(&self, host: &Host, ejected_until_ms: u64, max_percent: usize) -> bool {
        // Locked throughout, so that workers that eject at the same time don't exceed the share.
        let list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        let others = list
            .iter()
            .filter(|other| !std::ptr::eq(Arc::as_ptr(other), host) && other.is_ejected())
            .count();
        let fits = others < (list.len() * max_percent / 100).max(1);
        if fits {
            host.eject_until(ejected_until_ms);
        }
        fits
    }

    /// Whether names should be resolved again.
    pub(super) fn is_due(&self, upstream: &Inner) -> bool {
        self.is_older(upstream, Self::interval_ms(upstream))
    }

    fn is_older(&self, upstream: &Inner, age_ms: u64) -> bool {
        if !self.names {
            return false;
        }
        let asked = self.resolved_ms.load(Ordering::Relaxed);
        asked == NEVER || upstream.now_ms().saturating_sub(asked) >= age_ms
    }

    /// Resolves names before a request, if the addresses are old or there are none. If there are
    /// none, a failed attempt is repeated sooner. Resolving runs in a task of its own and continues
    /// if the request stops waiting, so a slow resolver is asked once and not once per request.
    pub(super) async fn resolve_now(upstream: &Arc<Inner>) {
        let every = Self::interval_ms(upstream);
        Self::begin(
            upstream,
            if upstream.hosts.current().is_empty() {
                every.min(RESOLVE_INTERVAL_MIN_MS)
            } else {
                every
            },
        );
        let _asked = upstream.hosts.resolving.lock().await;
    }

    fn interval_ms(upstream: &Inner) -> u64 {
        u64::try_from(upstream.settings.resolve_every.as_millis()).unwrap_or(NEVER)
    }

    /// Resolves all names and adopts each answer as it comes, so that one silent name server does
    /// not delay the others. A name without an answer keeps its previous addresses.
    async fn ask(&self, upstream: &Inner) {
        let mut questions = JoinSet::new();
        for (index, endpoint) in upstream.endpoints.iter().enumerate() {
            if let Location::Name { host, port } = &endpoint.location {
                let question = self.resolver.resolve(host.clone(), *port);
                questions.spawn(async move {
                    (
                        index,
                        timeout(RESOLVE_MAX, question)
                            .await
                            .unwrap_or_else(|late| Err(late.into())),
                    )
                });
            }
        }
        while let Some(answered) = questions.join_next().await {
            let Ok((index, answer)) = answered else { continue };
            match answer {
                Ok(addresses) if !addresses.is_empty() => {
                    self.take_over(&upstream.endpoints, vec![(index, addresses)])
                }
                Ok(_) => upstream.warn_unresolved(index, &"the name has no address"),
                Err(error) => upstream.warn_unresolved(index, &error),
            }
        }
        self.resolved_ms.store(upstream.now_ms(), Ordering::Relaxed);
    }

    fn take_over(&self, endpoints: &[Endpoint], answers: Vec<(usize, Vec<SocketAddr>)>) {
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        let new = merge(endpoints, &list, answers);
        if new.len() == list.len()
            && new.iter().zip(list.iter()).all(|(new, old)| Arc::ptr_eq(new, old))
        {
            return;
        }
        *list = new;
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// Starts resolving if it is due and not already under way.
    pub(super) fn resolve_in_background(upstream: &Arc<Inner>) {
        Self::begin(upstream, Self::interval_ms(upstream));
    }

    /// Resolves soon, because a host takes no connections and may have moved.
    pub(super) fn resolve_soon(upstream: &Arc<Inner>) {
        Self::begin(upstream, RESOLVE_INTERVAL_MIN_MS);
    }

    fn begin(upstream: &Arc<Inner>, age_ms: u64) {
        if !upstream.hosts.is_older(upstream, age_ms) {
            return;
        }
        // Requests that need the answers wait for this lock.
        let Ok(resolving) = Arc::clone(&upstream.hosts.resolving).try_lock_owned() else { return };
        let upstream = Arc::clone(upstream);
        tokio::spawn(async move {
            upstream.hosts.ask(&upstream).await;
            drop(resolving);
        });
    }
}

/// The hosts of all endpoints in the configuration's order. Hosts that were there before are kept,
/// with their state.
fn merge(
    endpoints: &[Endpoint],
    before: &[Arc<Host>],
    mut answers: Vec<(usize, Vec<SocketAddr>)>,
) -> Arc<[Arc<Host>]> {
    let mut all: Vec<Arc<Host>> = Vec::new();
    for (index, endpoint) in endpoints.iter().enumerate() {
        let had = || before.iter().filter(move |host| host.endpoint == index);
        let addresses = match &endpoint.location {
            Location::Address(address) => vec![address.clone()],
            Location::Name { .. } => match answers.iter_mut().find(|(of, _)| *of == index) {
                Some((_, addresses)) => {
                    std::mem::take(addresses).into_iter().map(HostAddress::Ip).collect()
                }
                None => had().map(|host| host.address.clone()).collect(),
            },
        };
        let mut addresses = addresses;
        // Name servers rotate the order from answer to answer.
        addresses.sort_unstable();
        addresses.dedup();
        addresses.truncate(ADDRESSES_MAX);
        let host = |address: HostAddress| {
            had()
                .find(|host| host.address == address)
                .map_or_else(|| Arc::new(Host::new(index, address)), Arc::clone)
        };
        all.extend(addresses.into_iter().map(host));
    }
    all.into()
}
