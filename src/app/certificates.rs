//! The thread that keeps certificates which are ordered from an authority: one for the process,
//! with a task for each of them. A certificate that is issued is written into its file, and a
//! reload applies it like any other file that has changed.

use std::io;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use serde_json::{Value, json};
use tokio::sync::{Notify, watch};
use tokio::task::{AbortHandle, spawn_local};

use super::Instance;
use super::build::ConfigBuild;
use super::challenges;
use crate::clock::Clock;
use crate::listen::OrderedCertificate;
use crate::telemetry::{CounterSet, Metrics, labels, names};
use weir_acme::{Event, Keeper, OrderError};

labels! {
    /// How an order ended: a metric's label.
    enum OrderResult {
        /// The certificate is in its file.
        Issued = "issued",
        /// The authority can't be reached.
        Unreached = "unreached",
        /// It refuses.
        Refused = "refused",
        /// It has had too many orders.
        RateLimited = "rate_limited",
        /// It could not see that a name is served here.
        Unproven = "unproven",
        /// It has not answered in time.
        Late = "late",
        /// What it issued can't be used.
        Unusable = "unusable",
        /// The folder can't be written.
        Unwritten = "unwritten",
    }
}

/// The certificates of one process, which outlive its configurations.
#[derive(Debug)]
pub(super) struct Certificates {
    /// What is kept.
    current: watch::Sender<Vec<Arc<Keeper>>>,
    results: Arc<CounterSet<OrderResult>>,
    clock: Clock,
    /// Whether the thread runs: it does once there is something to keep.
    started: Mutex<bool>,
}

impl Certificates {
    pub(super) fn new(metrics: &Metrics, clock: &Clock) -> Self {
        Self {
            current: watch::Sender::default(),
            results: Arc::new(metrics.counters(names::ACME_ORDERS, &[])),
            clock: clock.clone(),
            started: Mutex::default(),
        }
    }

    /// Keeps those of this configuration from now on. Those that were kept before are kept on.
    ///
    /// # Errors
    /// The thread can't be started. Nothing is kept then.
    pub(super) fn apply(&self, built: &ConfigBuild, running: &Weak<Instance>) -> io::Result<()> {
        let mut wanted: Vec<Arc<Keeper>> = Vec::new();
        for OrderedCertificate { names, file, .. } in ordered(built) {
            let Some(authority) = &built.acme else { continue };
            if wanted.iter().any(|keeper| keeper.file() == file) {
                continue;
            }
            let kept = self.current.borrow().iter().find_map(|keeper| {
                let same = keeper.authority() == authority
                    && keeper.names() == names
                    && keeper.file() == file;
                same.then(|| Arc::clone(keeper))
            });
            wanted.push(kept.unwrap_or_else(|| {
                let (authority, names) = (Arc::clone(authority), names.clone());
                Arc::new(Keeper::new(authority, names, file.clone(), self.clock.clone()))
            }));
        }
        self.replace(wanted, running)
    }

    /// Keeps none any more.
    pub(super) fn stop(&self) {
        // Only starting can fail.
        let _ = self.replace(Vec::new(), &Weak::new());
    }

    fn replace(&self, wanted: Vec<Arc<Keeper>>, running: &Weak<Instance>) -> io::Result<()> {
        let is_empty = wanted.is_empty();
        self.current.send_replace(wanted);
        let mut started = self.started.lock().unwrap_or_else(PoisonError::into_inner);
        if *started || is_empty {
            return Ok(());
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (wanted, results) = (self.current.subscribe(), Arc::clone(&self.results));
        let (changed, running) = (Arc::new(Notify::new()), running.clone());
        let keep = move || {
            let local = tokio::task::LocalSet::new();
            runtime.block_on(local.run_until(async {
                spawn_local(reload(Arc::clone(&changed), running));
                run(wanted, (&results, &changed)).await;
            }));
            drop(local);
            // Dropping the runtime would wait for a DNS lookup in progress.
            runtime.shutdown_background();
        };
        std::thread::Builder::new().name("weir-acme".into()).spawn(keep)?;
        *started = true;
        Ok(())
    }

    /// The certificates as `/status` shows them.
    pub(super) fn describe(&self) -> Vec<Value> {
        let one = |keeper: &Arc<Keeper>| {
            let state = keeper.state();
            json!({
                "names": keeper.names(),
                "file": keeper.file().display().to_string(),
                "expires": state.expires_s,
                "renew": state.renew_s,
                "error": state.error,
                "again": state.again_s,
            })
        };
        self.current.borrow().iter().map(one).collect()
    }
}

/// The certificates that are ordered.
fn ordered(built: &ConfigBuild) -> impl Iterator<Item = &OrderedCertificate> {
    built.listeners.iter().flat_map(|listener| challenges::ordered(&listener.certificates))
}

/// Keeps them until the sender is dropped.
async fn run(
    mut wanted: watch::Receiver<Vec<Arc<Keeper>>>,
    (results, reload): (&Arc<CounterSet<OrderResult>>, &Arc<Notify>),
) {
    let mut all: Vec<(Arc<Keeper>, AbortHandle)> = Vec::new();
    loop {
        let current = wanted.borrow_and_update().clone();
        all.retain(|(kept, task)| {
            let stays = current.iter().any(|keeper| Arc::ptr_eq(keeper, kept));
            if !stays {
                task.abort();
            }
            stays
        });
        for keeper in current {
            if all.iter().any(|(kept, _)| Arc::ptr_eq(kept, &keeper)) {
                continue;
            }
            let (kept, results, reload) =
                (Arc::clone(&keeper), Arc::clone(results), Arc::clone(reload));
            let task = spawn_local(async move {
                let told = |keeper: &Keeper, event: Event| {
                    report(keeper, &event, &results);
                    // Another process may have written the file, perhaps on another machine: the
                    // system tells of that only where the file system is local.
                    if matches!(event, Event::Replaced) {
                        reload.notify_one();
                    }
                };
                kept.run(told).await;
            });
            all.push((keeper, task.abort_handle()));
        }
        if wanted.changed().await.is_err() {
            return;
        }
    }
}

/// Reloads whenever it is notified.
async fn reload(changed: Arc<Notify>, running: Weak<Instance>) {
    loop {
        changed.notified().await;
        let Some(running) = running.upgrade() else { return };
        // What the answer says is in the log, too.
        let _ = running.reloads.ask().await;
    }
}

fn report(keeper: &Keeper, event: &Event, results: &CounterSet<OrderResult>) {
    let (names, file) = (keeper.names().join(", "), keeper.file().display());
    let result = match event {
        Event::Ordered(result) => result,
        Event::Replaced => return tracing::info!(names, %file, "a certificate was replaced"),
    };
    match result {
        Ok(()) => tracing::info!(names, %file, "a certificate was issued"),
        Err(error) => {
            let again_s = keeper.state().again_s;
            tracing::warn!(names, %error, again = again_s, "a certificate was not issued");
        }
    }
    results.inc(match result {
        Ok(()) => OrderResult::Issued,
        Err(OrderError::Unreached(_)) => OrderResult::Unreached,
        Err(OrderError::Refused(_)) => OrderResult::Refused,
        Err(OrderError::RateLimited(_)) => OrderResult::RateLimited,
        Err(OrderError::Unproven { .. }) => OrderResult::Unproven,
        Err(OrderError::Late) => OrderResult::Late,
        Err(OrderError::Unusable(_)) => OrderResult::Unusable,
        Err(OrderError::Folder { .. }) => OrderResult::Unwritten,
    });
}

impl Instance {
    /// Keeps the certificates that a configuration orders.
    pub(super) fn keep_certificates(self: &Arc<Self>, built: &ConfigBuild) {
        if let Err(error) = self.certificates.apply(built, &Arc::downgrade(self)) {
            tracing::error!(%error, "can't start the thread that orders certificates");
        }
    }
}
