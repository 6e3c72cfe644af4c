//! The threads: one single-threaded runtime a worker, each with its own listening sockets, and one
//! for the operator's pages.

use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::task::JoinSet;

use super::views::Pages;
use super::{Connections, Running, StartError};
use crate::admin::{self, Admin};
use crate::clock;
use crate::listen::{Drain, Handler, Listener};
use crate::proxy::Proxy;
use crate::telemetry;

/// Beyond the grace period, for threads to notice that it is over.
const JOIN_SLACK: Duration = Duration::from_secs(2);

/// All threads of a running Weir.
#[derive(Debug)]
pub(super) struct Workers {
    threads: Vec<JoinHandle<()>>,
    /// Each thread's last word: whether everything that it served had finished.
    finished: Receiver<bool>,
    /// The operator's pages: they end last, so that a drain can be watched and `/ready` can say no.
    admin: Option<JoinHandle<()>>,
    admin_drain: Drain,
}

impl Workers {
    /// Starts `count` workers, `public[listener][worker]` being their sockets, and the admin's
    /// thread where it has sockets.
    pub(super) fn start(
        running: &Arc<Running>,
        public: Vec<Vec<Listener>>,
        admin: Vec<Listener>,
        count: usize,
    ) -> Result<Self, StartError> {
        let mut sockets: Vec<Vec<Listener>> =
            (0..count).map(|_| Vec::with_capacity(public.len())).collect();
        for per_worker in public {
            sockets.iter_mut().zip(per_worker).for_each(|(mine, socket)| mine.push(socket));
        }
        let (finish, finished) = channel();
        let mut threads = Vec::with_capacity(count);
        for (index, mine) in sockets.into_iter().enumerate() {
            let (running, finish) = (Arc::clone(running), finish.clone());
            let work = async move || {
                telemetry::enter_worker(index);
                let finished = serve(&running, mine).await;
                // Nobody listens any more when the grace period is over: then the answer is known
                // to be no.
                let _ = finish.send(finished);
            };
            threads.push(spawn(format!("weir-worker-{index}"), work)?);
        }
        let admin = match &running.admin {
            Some(settings) if !admin.is_empty() => Some(start_admin(running, settings, admin)?),
            _ => None,
        };
        Ok(Self { threads, finished, admin, admin_drain: running.admin_drain.clone() })
    }

    /// Waits for all threads, at most `grace`; those that are still busy then are left to the
    /// process's end.
    pub(super) fn join(self, grace: Duration) -> bool {
        let deadline = clock::monotonic() + grace + JOIN_SLACK;
        let mut all = true;
        for _ in 0..self.threads.len() {
            let left = deadline.saturating_duration_since(clock::monotonic());
            match self.finished.recv_timeout(left) {
                Ok(finished) => all &= finished,
                Err(_) => return false,
            }
        }
        self.admin_drain.start();
        all && self.threads.into_iter().chain(self.admin).all(|thread| thread.join().is_ok())
    }
}

fn start_admin(
    running: &Arc<Running>,
    settings: &Arc<arc_swap::ArcSwap<admin::Settings>>,
    sockets: Vec<Listener>,
) -> Result<JoinHandle<()>, StartError> {
    let (running, settings) = (Arc::clone(running), Arc::clone(settings));
    spawn("weir-admin".into(), async move || {
        let handler =
            Admin::new(Arc::new(Pages(Arc::clone(&running))), running.metrics.clone(), settings);
        let drain = &running.admin_drain;
        let mut serving =
            start_serving(sockets, &handler, &running.admin_connections, drain, &running);
        drain.wait().await;
        if tokio::time::timeout(CUT_MAX, all(&mut serving)).await.is_err() {
            drain.cut();
        }
    })
}

/// A thread with a runtime of its own, for `work` and whatever that spawns.
fn spawn(
    name: String,
    work: impl AsyncFnOnce() + Send + 'static,
) -> Result<JoinHandle<()>, StartError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(StartError::Worker)?;
    let body = move || {
        runtime.block_on(work());
        // A name may be looked up in a thread of the runtime's, and the system's resolver may never
        // answer: dropping the runtime would wait for it.
        runtime.shutdown_background();
    };
    std::thread::Builder::new().name(name).spawn(body).map_err(StartError::Worker)
}

fn start_serving<H: Handler>(
    sockets: Vec<Listener>,
    handler: &H,
    settings: &Arc<Connections>,
    drain: &Drain,
    running: &Running,
) -> JoinSet<()> {
    sockets
        .into_iter()
        .map(|socket| {
            socket.serve(
                handler.clone(),
                Arc::clone(settings),
                drain.clone(),
                running.metrics.clone(),
            )
        })
        .collect()
}

/// Serves clients until told to drain, then lets connections finish and settles what they held.
async fn serve(running: &Arc<Running>, sockets: Vec<Listener>) -> bool {
    let handler = Proxy::new(Arc::clone(&running.live));
    let mut serving =
        start_serving(sockets, &handler, &running.connections, &running.drain, running);
    running.drain.wait().await;
    let ended = clock::monotonic() + running.shutdown_grace;
    let finished = tokio::time::timeout(running.shutdown_grace, all(&mut serving)).await.is_ok();
    if !finished {
        // Ended before the settling, so that what these requests held is settled too, and each has
        // its log line.
        running.live.cut();
        running.drain.cut();
        let _ = tokio::time::timeout(CUT_MAX, all(&mut serving)).await;
    }
    let ended = ended.max(clock::monotonic() + SETTLE_MIN);
    let left = || ended.saturating_duration_since(clock::monotonic());
    // Each worker waits for all: what a limiter settles runs on the worker that charged. The one of
    // now first: a reload that replaces it meanwhile has put it among the retired ones before.
    let limiter = Arc::clone(&running.serving.load().limiter);
    let retired = running.retired.lock().unwrap_or_else(PoisonError::into_inner).clone();
    for limiter in &retired {
        limiter.drain(left()).await;
    }
    limiter.drain(left()).await;
    finished
}

async fn all(serving: &mut JoinSet<()>) {
    while serving.join_next().await.is_some() {}
}

/// Settling gets at least this long, also where connections have used up the grace period.
const SETTLE_MIN: Duration = Duration::from_millis(500);
/// Connections that are cut get this long to let go of what they hold.
const CUT_MAX: Duration = Duration::from_millis(500);
