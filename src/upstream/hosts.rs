//! All addresses of an upstream: those that were written, and those that its names have at the
//! moment. Knows nothing of requests.
//!
//! Names are asked again in the background while the upstream is in use. A worker sees by one
//! number, read without a lock, that the addresses have changed.

use std::fmt;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::net::lookup_host;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::Inner;
use super::endpoint::{Endpoint, Target};
use super::host::Host;

/// Addresses of one name that are used, at most.
const ADDRESSES_MAX: usize = 64;
/// How long the system may take to answer for a name.
/// A resolver waits five seconds for each of its servers: the second one is to have its chance.
const ASK_MAX: Duration = Duration::from_secs(12);
/// Between two questions, at least, however many connections fail.
const ASK_AGAIN_MIN_MS: u64 = 1_000;
const NEVER: u64 = u64::MAX;

/// What a name's addresses are.
pub(super) type Addresses = Pin<Box<dyn Future<Output = io::Result<Vec<SocketAddr>>> + Send>>;

/// Who knows names: the system, or a test.
pub(super) trait Resolve: fmt::Debug + Send + Sync {
    /// All addresses of `host`, with `port`.
    fn resolve(&self, host: String, port: u16) -> Addresses;
}

/// `getaddrinfo`, on one of the runtime's threads for what blocks.
#[derive(Debug)]
pub(super) struct System;

impl Resolve for System {
    fn resolve(&self, host: String, port: u16) -> Addresses {
        Box::pin(async move { Ok(lookup_host((host, port)).await?.collect()) })
    }
}

/// See the file's head.
#[derive(Debug)]
pub(super) struct Hosts {
    generation: AtomicU64,
    list: Mutex<Arc<[Arc<Host>]>>,
    /// Whether there is anything to ask.
    names: bool,
    /// When names were asked last, in the upstream's milliseconds.
    asked_ms: AtomicU64,
    /// Held by whoever asks.
    asking: Arc<tokio::sync::Mutex<()>>,
    resolver: Arc<dyn Resolve>,
}

impl Hosts {
    pub(super) fn new(endpoints: &[Endpoint], resolver: Arc<dyn Resolve>) -> Self {
        let list = merge(endpoints, &[], Vec::new());
        Self {
            generation: AtomicU64::new(0),
            list: Mutex::new(list),
            names: endpoints.iter().any(|endpoint| matches!(endpoint.target, Target::Name { .. })),
            asked_ms: AtomicU64::new(NEVER),
            asking: Arc::default(),
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

    /// Leaves `host` alone until then, unless that many of the hosts already are: `max_percent`,
    /// rounded down, but one at least. Says whether it did.
    pub(super) fn eject(&self, host: &Host, until_ms: u64, max_percent: usize) -> bool {
        // Held until it is done, so that workers that eject at the same time don't exceed the
        // share.
        let list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        let others = list
            .iter()
            .filter(|other| !std::ptr::eq(Arc::as_ptr(other), host) && other.is_ejected())
            .count();
        let fits = others < (list.len() * max_percent / 100).max(1);
        if fits {
            host.leave_alone(until_ms);
        }
        fits
    }

    /// Whether names should be asked again.
    pub(super) fn is_due(&self, upstream: &Inner) -> bool {
        self.is_older(upstream, Self::every_ms(upstream))
    }

    fn is_older(&self, upstream: &Inner, age_ms: u64) -> bool {
        if !self.names {
            return false;
        }
        let asked = self.asked_ms.load(Ordering::Relaxed);
        asked == NEVER || upstream.now_ms().saturating_sub(asked) >= age_ms
    }

    /// Waits before a request until somebody has asked: the addresses may be old, or there are
    /// none, and then the wait is not long. The question is a task of its own and goes on when the
    /// request's patience ends, so that a slow resolver is asked once and not once for each
    /// request.
    pub(super) async fn ask_now(upstream: &Arc<Inner>) {
        let every = Self::every_ms(upstream);
        Self::begin(
            upstream,
            if upstream.hosts.current().is_empty() { every.min(ASK_AGAIN_MIN_MS) } else { every },
        );
        let _asked = upstream.hosts.asking.lock().await;
    }

    fn every_ms(upstream: &Inner) -> u64 {
        u64::try_from(upstream.resolve_every.as_millis()).unwrap_or(NEVER)
    }

    /// Asks all names, and takes each answer over as it comes: one name whose servers are silent
    /// does not hold up the others. Who does not answer keeps the addresses that it had.
    async fn ask(&self, upstream: &Inner) {
        let mut questions = JoinSet::new();
        for (index, endpoint) in upstream.endpoints.iter().enumerate() {
            if let Target::Name { host, port } = &endpoint.target {
                let question = self.resolver.resolve(host.clone(), *port);
                questions.spawn(async move {
                    (
                        index,
                        timeout(ASK_MAX, question).await.unwrap_or_else(|late| Err(late.into())),
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
        self.asked_ms.store(upstream.now_ms(), Ordering::Relaxed);
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

    /// Begins to ask where it is time, and nobody does already.
    pub(super) fn ask_in_background(upstream: &Arc<Inner>) {
        Self::begin(upstream, Self::every_ms(upstream));
    }

    /// A host takes no connections: it may have moved.
    pub(super) fn ask_soon(upstream: &Arc<Inner>) {
        Self::begin(upstream, ASK_AGAIN_MIN_MS);
    }

    fn begin(upstream: &Arc<Inner>, age_ms: u64) {
        if !upstream.hosts.is_older(upstream, age_ms) {
            return;
        }
        // Whoever waits for the answers waits for this lock.
        let Ok(asking) = Arc::clone(&upstream.hosts.asking).try_lock_owned() else { return };
        let upstream = Arc::clone(upstream);
        tokio::spawn(async move {
            upstream.hosts.ask(&upstream).await;
            drop(asking);
        });
    }
}

/// The hosts of all endpoints in the configuration's order. Those that were there before stay as
/// they are, with what is known of them.
fn merge(
    endpoints: &[Endpoint],
    before: &[Arc<Host>],
    mut answers: Vec<(usize, Vec<SocketAddr>)>,
) -> Arc<[Arc<Host>]> {
    let mut all: Vec<Arc<Host>> = Vec::new();
    for (index, endpoint) in endpoints.iter().enumerate() {
        let had = || before.iter().filter(move |host| host.endpoint == index);
        let addresses = match &endpoint.target {
            Target::Address(address) => vec![*address],
            Target::Name { .. } => match answers.iter_mut().find(|(of, _)| *of == index) {
                Some((_, addresses)) => std::mem::take(addresses),
                None => had().map(|host| host.address).collect(),
            },
        };
        let mut addresses = addresses;
        // Servers turn the order round from answer to answer.
        addresses.sort_unstable();
        addresses.dedup();
        addresses.truncate(ADDRESSES_MAX);
        let host = |address: SocketAddr| {
            had()
                .find(|host| host.address == address)
                .map_or_else(|| Arc::new(Host::new(index, address)), Arc::clone)
        };
        all.extend(addresses.into_iter().map(host));
    }
    all.into()
}
