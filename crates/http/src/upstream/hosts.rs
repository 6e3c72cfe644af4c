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
use super::host::{Host, KeptState, Share, Standing};
use super::settings::Settings;

/// Maximum addresses used of one name.
const ADDRESSES_MAX: usize = 64;
/// How long the system may take to resolve a name. A resolver waits five seconds for each of its
/// servers, so this gives the second one a chance.
const RESOLVE_MAX: Duration = Duration::from_secs(12);
/// Minimum time between two resolutions, however many connections fail.
const RESOLVE_INTERVAL_MIN_MS: u64 = 1_000;
/// What a backup's rank begins with: above all that answers say, which are of 16 bits.
const BACKUP_RANK: u32 = 1 << 16;
/// When a name is asked for again for which there was no answer, if answers say how long they hold.
const RESOLVE_AGAIN: Duration = Duration::from_secs(5);
const NEVER: u64 = u64::MAX;

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Question {
    /// All addresses of `host`, with `port`.
    Name { host: String, port: u16 },
    /// The servers of a service.
    Service(String),
}

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) found: Vec<Found>,
    /// How long it holds, if that is said.
    pub(super) ttl: Option<Duration>,
}

/// One address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Found {
    pub(super) address: SocketAddr,
    pub(super) share: Share,
}

impl Found {
    /// One of many that are alike.
    pub(super) fn at(address: SocketAddr) -> Self {
        Self { address, share: Share::default() }
    }
}

/// An answer to come.
pub(super) type Resolving = Pin<Box<dyn Future<Output = io::Result<Answer>> + Send>>;

/// Resolves names: the system, DNS servers, or a test's substitute.
pub(super) trait Resolver: fmt::Debug + Send + Sync {
    /// Answers a question.
    fn resolve(&self, question: Question) -> Resolving;
}

/// `getaddrinfo`, on one of the runtime's blocking threads.
#[derive(Debug)]
pub(super) struct SystemResolver;

impl Resolver for SystemResolver {
    fn resolve(&self, question: Question) -> Resolving {
        Box::pin(async move {
            let Question::Name { host, port } = question else {
                return Err(io::Error::other("the system does not find services"));
            };
            let found = lookup_host((host, port)).await?.map(Found::at).collect();
            Ok(Answer { found, ttl: None })
        })
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
    /// How long the answers hold, in milliseconds.
    holds_ms: AtomicU64,
    /// Held while names are being resolved.
    resolving: Arc<tokio::sync::Mutex<()>>,
    resolver: Arc<dyn Resolver>,
}

impl Hosts {
    /// Addresses that the upstream `before` has keep their state.
    pub(super) fn new(
        endpoints: &[Endpoint],
        settings: &Settings,
        resolver: Arc<dyn Resolver>,
        before: Option<&Arc<Inner>>,
    ) -> Self {
        let known = before.map(|before| before.hosts.current()).unwrap_or_default();
        // What was found out with other settings may not be so with these.
        let keeps = before.map_or(KeptState::NONE, |before| KeptState {
            health: settings.health.is_some() && before.settings.health.is_some(),
            ejection: settings.ejection.failures != 0 && settings.connects_like(&before.settings),
        });
        let known_names = |index: usize| -> Vec<(HostAddress, Share)> {
            let (Some(before), Some(endpoint)) = (before, endpoints.get(index)) else {
                return Vec::new();
            };
            let same = |host: &&Arc<Host>| before.text_of(host) == endpoint.text;
            known.iter().filter(same).map(|host| host.found()).collect()
        };
        let host_of = |endpoint, address: HostAddress, standing| {
            let before = known.iter().find(|host| host.address == address);
            Arc::new(match before {
                Some(before) => Host::after(before, endpoint, standing, keeps),
                None => Host::new(endpoint, address, standing),
            })
        };
        let list = list(endpoints, settings.zone.as_deref(), known_names, host_of);
        // Names that are new are asked for at once.
        let is_resolved = endpoints.iter().enumerate().all(|(index, endpoint)| {
            !endpoint.is_name() || list.iter().any(|host| host.endpoint == index)
        });
        let resolved_ms = before.filter(|_| is_resolved).map(|before| &before.hosts.resolved_ms);
        let asked = before.filter(|before| before.settings.dns == settings.dns);
        let holds_ms = match (&settings.dns, asked) {
            (None, _) => millis(settings.resolve_every),
            (Some(_), Some(before)) => before.hosts.holds_ms(),
            (Some(dns), None) => millis(*dns.ttl.start()),
        };
        let hosts = Self {
            generation: AtomicU64::new(0),
            list: Mutex::new(list),
            ignores_health: AtomicBool::new(false),
            names: endpoints.iter().any(Endpoint::is_name),
            holds_ms: AtomicU64::new(holds_ms),
            resolved_ms: AtomicU64::new(
                resolved_ms.map_or(NEVER, |resolved| resolved.load(Ordering::Relaxed)),
            ),
            resolving: Arc::default(),
            resolver,
        };
        if let Some(check) = &settings.health {
            hosts.judge(check.healthy_min);
        }
        hosts
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

    /// Counts who is healthy: if fewer than `healthy_min` of a hundred are, in this zone and in the
    /// others, all get requests, unless there are healthy ones of a higher rank.
    pub(super) fn judge(&self, healthy_min: usize) {
        let list = self.current();
        // Those that get requests at all, while they can; the others are for when they can't.
        let rank = list.iter().map(|host| host.standing.rank).min();
        let (first, rest): (Vec<_>, Vec<_>) =
            list.iter().partition(|host| Some(host.standing.rank) == rank);
        // Each zone by itself: a large one that is well must not hide that the other is not, nor
        // take all requests for one that only the check takes to be down.
        let (near, far): (Vec<_>, Vec<_>) =
            first.into_iter().partition(|host| host.standing.is_local);
        let are_well = |hosts: &[&Arc<Host>]| {
            let healthy = hosts.iter().filter(|host| host.is_healthy()).count();
            !hosts.is_empty() && healthy * 100 >= hosts.len() * healthy_min
        };
        let ignores = !list.is_empty()
            && !are_well(&near)
            && !are_well(&far)
            && !rest.iter().any(|host| host.is_healthy());
        self.ignores_health.store(ignores, Ordering::Relaxed);
    }

    /// Ejects `host` until then, unless too many hosts already are: `max_percent` of them, rounded
    /// down, but at least one. That does not hold while another zone or a backup can take its
    /// requests. Returns whether it did.
    pub(super) fn eject(&self, host: &Host, ejected_until_ms: u64, max_percent: usize) -> bool {
        // Locked throughout, so that workers that eject at the same time don't exceed the share.
        let list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        let others = list
            .iter()
            .filter(|other| !std::ptr::eq(Arc::as_ptr(other), host) && other.is_ejected())
            .count();
        // One that others stand in for may always be ejected.
        let stands_in = |other: &Arc<Host>| {
            let (other_standing, standing) = (other.standing, host.standing);
            let is_later = (other_standing.rank, !other_standing.is_local)
                > (standing.rank, !standing.is_local);
            is_later && other.is_able(self.ignores_health())
        };
        let fits = others < (list.len() * max_percent / 100).max(1) || list.iter().any(stands_in);
        if fits {
            host.eject_until(ejected_until_ms);
        }
        fits
    }

    /// Whether names should be resolved again.
    pub(super) fn is_due(&self, upstream: &Inner) -> bool {
        self.is_older(upstream, self.holds_ms())
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
        let every = upstream.hosts.holds_ms();
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

    /// How long the answers hold.
    #[cfg(test)]
    pub(super) fn holds(&self) -> Duration {
        Duration::from_millis(self.holds_ms())
    }

    fn holds_ms(&self) -> u64 {
        self.holds_ms.load(Ordering::Relaxed)
    }

    /// Resolves all names and adopts each answer as it comes, so that one silent name server does
    /// not delay the others. A name without an answer keeps its previous addresses.
    async fn ask(&self, upstream: &Inner) {
        let mut questions = JoinSet::new();
        for (index, endpoint) in upstream.endpoints.iter().enumerate() {
            let question = match &endpoint.location {
                Location::Address(_) => continue,
                Location::Name { host, port } => Question::Name { host: host.clone(), port: *port },
                Location::Service(name) => Question::Service(name.clone()),
            };
            let answer = self.resolver.resolve(question);
            questions.spawn(async move {
                let answer = timeout(RESOLVE_MAX, answer).await;
                (index, answer.unwrap_or_else(|late| Err(late.into())))
            });
        }
        let mut holds = None;
        while let Some(answered) = questions.join_next().await {
            let Ok((index, answer)) = answered else { continue };
            // One that failed is asked again soon.
            let mut ttl = Some(RESOLVE_AGAIN);
            match answer {
                Ok(answer) if !answer.found.is_empty() => {
                    ttl = answer.ttl;
                    self.take_over(upstream, index, answer.found);
                }
                Ok(_) => upstream.warn_unresolved(index, &"the name has no address"),
                Err(error) => upstream.warn_unresolved(index, &error),
            }
            holds = holds.into_iter().chain(ttl).min();
        }
        if let (Some(dns), Some(holds)) = (&upstream.settings.dns, holds) {
            let holds = holds.clamp(*dns.ttl.start(), *dns.ttl.end());
            self.holds_ms.store(millis(holds), Ordering::Relaxed);
        }
        self.resolved_ms.store(upstream.now_ms(), Ordering::Relaxed);
    }

    /// Adopts the addresses of an endpoint's name. Hosts that were there before are kept, with
    /// their state.
    fn take_over(&self, upstream: &Inner, endpoint: usize, found: Vec<Found>) {
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        let before = Arc::clone(&list);
        let of = |index: usize| before.iter().filter(move |host| host.endpoint == index);
        let addresses_of = |index: usize| match index == endpoint {
            true => {
                let one = |found: &Found| (HostAddress::Ip(found.address), found.share);
                found.iter().map(one).collect()
            }
            false => of(index).map(|host| host.found()).collect(),
        };
        let host_of = |index, address: HostAddress, standing| match of(index)
            .find(|host| host.address == address)
        {
            Some(host) if host.standing == standing => Arc::clone(host),
            Some(host) => Arc::new(Host::after(host, index, standing, KeptState::ALL)),
            None => Arc::new(Host::new(index, address, standing)),
        };
        let zone = upstream.settings.zone.as_deref();
        let new = self::list(&upstream.endpoints, zone, addresses_of, host_of);
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
        Self::begin(upstream, upstream.hosts.holds_ms());
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

/// The hosts of all endpoints: by rank, those of this process' zone first, and then in the
/// configuration's order. `addresses_of` has those of a name, each with its share among them, and
/// `host_of` makes a host or keeps one.
fn list(
    endpoints: &[Endpoint],
    zone: Option<&str>,
    mut addresses_of: impl FnMut(usize) -> Vec<(HostAddress, Share)>,
    host_of: impl Fn(usize, HostAddress, Standing) -> Arc<Host>,
) -> Arc<[Arc<Host>]> {
    let mut all: Vec<Arc<Host>> = Vec::new();
    for (index, endpoint) in endpoints.iter().enumerate() {
        let mut addresses = match &endpoint.location {
            Location::Address(address) => vec![(address.clone(), Share::default())],
            Location::Name { .. } | Location::Service(_) => addresses_of(index),
        };
        // Name servers rotate the order from answer to answer.
        addresses.sort_unstable();
        addresses.dedup_by(|next, one| next.0 == one.0);
        addresses.truncate(ADDRESSES_MAX);
        let is_local = zone.is_some() && endpoint.zone.as_deref() == zone;
        all.extend(addresses.into_iter().map(|(address, share)| {
            let weight = endpoint.weight.saturating_mul(share.weight.max(1));
            let rank = share.rank + if endpoint.backup { BACKUP_RANK } else { 0 };
            host_of(index, address, Standing { weight, rank, is_local, share })
        }));
    }
    all.sort_by_key(|host| (host.standing.rank, !host.standing.is_local));
    all.into()
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(NEVER)
}
