//! The thread that checks the health of upstreams: one for all workers, with a task for each
//! upstream that has health checks.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::watch;
use tokio::task::{AbortHandle, spawn_local};

use super::Instance;
use super::build::ConfigBuild;
use crate::upstream::Upstream;

/// The health checks of one process, which outlive its configurations.
#[derive(Debug)]
pub(super) struct HealthChecks {
    /// The upstreams that are asked.
    current: watch::Sender<Vec<Arc<Upstream>>>,
    /// Whether the thread runs: it does once there is something to ask.
    started: Mutex<bool>,
}

impl HealthChecks {
    pub(super) fn new() -> Self {
        Self { current: watch::Sender::default(), started: Mutex::default() }
    }

    /// Asks these from now on. Those that were asked before are asked on.
    ///
    /// # Errors
    /// The thread can't be started. Nothing is asked then.
    pub(super) fn apply(&self, upstreams: Vec<Arc<Upstream>>) -> io::Result<()> {
        let is_empty = upstreams.is_empty();
        self.current.send_replace(upstreams);
        let mut started = self.started.lock().unwrap_or_else(PoisonError::into_inner);
        if *started || is_empty {
            return Ok(());
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let upstreams = self.current.subscribe();
        let check = move || {
            let local = tokio::task::LocalSet::new();
            runtime.block_on(local.run_until(run(upstreams)));
            drop(local);
            // Dropping the runtime would wait for a DNS lookup in progress.
            runtime.shutdown_background();
        };
        std::thread::Builder::new().name("weir-health".into()).spawn(check)?;
        *started = true;
        Ok(())
    }
}

/// Asks until the sender is dropped.
async fn run(mut upstreams: watch::Receiver<Vec<Arc<Upstream>>>) {
    let mut all: Vec<(Arc<Upstream>, AbortHandle)> = Vec::new();
    loop {
        let current = upstreams.borrow_and_update().clone();
        all.retain(|(asked, task)| {
            let stays = current.iter().any(|upstream| Arc::ptr_eq(upstream, asked));
            if !stays {
                task.abort();
            }
            stays
        });
        for upstream in current {
            if all.iter().any(|(asked, _)| Arc::ptr_eq(&upstream, asked)) {
                continue;
            }
            let asked = Arc::clone(&upstream);
            let task = spawn_local(async move { asked.check_health().await }).abort_handle();
            all.push((upstream, task));
        }
        if upstreams.changed().await.is_err() {
            return;
        }
    }
}

impl Instance {
    /// Begins with the first configuration: shows that it serves, and checks its upstreams.
    pub(super) fn begin(self: &Arc<Self>) {
        self.show_applied();
        self.builder.serves();
        self.check_health(&self.current.load().built);
        self.keep_certificates(&self.current.load().built);
    }

    /// Has the upstreams of a configuration checked.
    pub(super) fn check_health(&self, built: &ConfigBuild) {
        let all = built.upstreams.values();
        let checked = all.filter(|(settings, _)| settings.health.is_some());
        let checked = checked.map(|(_, upstream)| Arc::clone(upstream)).collect();
        if let Err(error) = self.health.apply(checked) {
            tracing::error!(%error, "can't start the thread that checks upstreams");
        }
    }
}
