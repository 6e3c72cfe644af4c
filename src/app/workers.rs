//! The threads: one for each worker, with a single-threaded runtime and listening sockets of its
//! own, and one for the operator's pages.

use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::task::JoinSet;

use super::views::Pages;
use super::{Instance, StartError, shown};
use crate::admin::Admin;
use crate::clock;
use crate::listen::{ConfigSource, Drain, Handler, Listener};
use crate::policy;
use crate::proxy::{Proxy, watch_load};
use crate::telemetry::{self, Label as _};
use crate::wire;

/// Stack of a thread, besides that of a guest that runs on it.
const OWN_STACK_BYTES: usize = 1 << 20;
/// Time beyond the grace period in which threads notice that it is over.
const JOIN_SLACK: Duration = Duration::from_secs(2);
/// How long the store may take to answer at the start, before that is said.
const STORE_WAIT: Duration = Duration::from_secs(1);
/// Between two questions to it.
const ASK_AGAIN: Duration = Duration::from_millis(100);
/// Between two looks at the dates of certificates, besides those of reloads.
const CERTIFICATES_EVERY: Duration = Duration::from_hours(24);

/// All threads of a running Weir.
#[derive(Debug)]
pub(super) struct Workers {
    threads: Vec<JoinHandle<()>>,
    /// What each thread reports at its end: whether everything that it served had finished.
    finished: Receiver<bool>,
    /// The operator's pages. They end last, so that a drain can be watched and `/ready` can answer
    /// no.
    admin: Option<JoinHandle<()>>,
    admin_drain: Drain,
}

impl Workers {
    /// Starts `count` workers with the sockets `public[listener][..]`, of which each worker gets an
    /// equal share, and the admin thread if there are sockets for it.
    pub(super) fn start(
        running: &Arc<Instance>,
        public: Vec<Vec<Listener>>,
        admin: Vec<Listener>,
        count: usize,
    ) -> Result<Self, StartError> {
        let mut sockets: Vec<Vec<Listener>> =
            (0..count).map(|_| Vec::with_capacity(public.len())).collect();
        for (index, socket) in public.into_iter().flat_map(|of_one| of_one.into_iter().enumerate())
        {
            if let Some(mine) = sockets.get_mut(index % count) {
                mine.push(socket);
            }
        }
        // One for all workers: connections that share it are counted together.
        let clients = running.current.clients();
        let (finish, finished) = channel();
        let guests = running.current.load().built.policy_runtime.stack_bytes;
        let stack_bytes = OWN_STACK_BYTES + guests;
        let mut threads = Vec::with_capacity(count);
        for (index, mine) in sockets.into_iter().enumerate() {
            let (running, clients) = (Arc::clone(running), Arc::clone(&clients));
            let finish = finish.clone();
            let work = async move || {
                telemetry::enter_worker(index);
                policy::share_cache(count);
                if index == 0 {
                    // They end with the worker's runtime.
                    drop(tokio::spawn(report_store(Arc::clone(&running))));
                    drop(tokio::spawn(report_certificates(Arc::clone(&running))));
                }
                let finished = serve(&running, &clients, mine).await;
                // After the grace period nothing receives this: the answer is known to be no.
                let _ = finish.send(finished);
            };
            threads.push(spawn(format!("weir-worker-{index}"), stack_bytes, work)?);
        }
        let admin = if admin.is_empty() { None } else { Some(start_admin(running, admin)?) };
        Ok(Self { threads, finished, admin, admin_drain: running.admin_drain.clone() })
    }

    /// Waits for all threads, for at most `grace`. Threads that are busy even then run on until the
    /// process ends.
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

/// Says in the log if the store does not answer when the process starts, and when it does. Later,
/// the requests that need it do.
async fn report_store(running: Arc<Instance>) {
    let until = clock::monotonic() + STORE_WAIT;
    let mut is_reported = false;
    loop {
        // A reload may have named another one.
        let engine = Arc::clone(&running.current.load().built.engine);
        let Err(error) = engine.ping().await else { break };
        if !is_reported && clock::monotonic() > until {
            tracing::warn!(
                cause = error.cause.label(),
                error = engine.explain(&error),
                "the store does not answer: all limits follow on_store_error until it does"
            );
            is_reported = true;
        }
        tokio::time::sleep(if is_reported { STORE_WAIT } else { ASK_AGAIN }).await;
    }
    if is_reported {
        tracing::info!("the store answers");
    }
}

/// Says in the log each day which certificates are too old, or soon will be.
async fn report_certificates(running: Arc<Instance>) {
    loop {
        tokio::time::sleep(CERTIFICATES_EVERY).await;
        let now_s = running.clock.wall_us() / 1_000_000;
        shown::warn_of_old(&running.current.load().built.tls, now_s);
    }
}

fn start_admin(
    running: &Arc<Instance>,
    sockets: Vec<Listener>,
) -> Result<JoinHandle<()>, StartError> {
    let running = Arc::clone(running);
    spawn("weir-admin".into(), 2 * OWN_STACK_BYTES, async move || {
        let views = Arc::new(Pages(Arc::clone(&running)));
        let handler = Admin::new(views, running.metrics.clone(), running.current.admin());
        let drain = &running.admin_drain;
        let operators = running.current.operators();
        let mut serving = start_serving(sockets, &handler, &operators, drain, &running);
        // Until the drain starts.
        running.page.run(&running).await;
        if tokio::time::timeout(CUT_MAX, all(&mut serving)).await.is_err() {
            drain.cut();
        }
    })
}

/// Starts a thread with a runtime of its own, for `work` and the tasks that it spawns.
fn spawn(
    name: String,
    stack_bytes: usize,
    work: impl AsyncFnOnce() + Send + 'static,
) -> Result<JoinHandle<()>, StartError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .on_thread_unpark(clock::woke_up)
        .build()
        .map_err(StartError::Worker)?;
    let body = move || {
        runtime.block_on(work());
        // A name may be looked up on one of the runtime's threads, and the system's resolver may
        // never answer. Dropping the runtime would wait for it.
        runtime.shutdown_background();
    };
    std::thread::Builder::new()
        .name(name)
        .stack_size(stack_bytes)
        .spawn(body)
        .map_err(StartError::Worker)
}

fn start_serving<H: Handler>(
    sockets: Vec<Listener>,
    handler: &H,
    config: &ConfigSource,
    drain: &Drain,
    running: &Instance,
) -> JoinSet<()> {
    sockets
        .into_iter()
        .map(|socket| {
            socket.serve(
                handler.clone(),
                Arc::clone(config),
                drain.clone(),
                running.metrics.clone(),
            )
        })
        .collect()
}

/// Serves clients until the drain starts, then lets connections finish and settles what they held.
/// A cut, as by a second signal, ends the grace period.
async fn serve(running: &Instance, clients: &ConfigSource, sockets: Vec<Listener>) -> bool {
    let handler = Proxy::new(Arc::clone(&running.live));
    let load = watch_load(Arc::clone(&running.live), running.metrics.clone());
    // It ends with the worker's runtime.
    drop(tokio::spawn(load));
    let mut serving = start_serving(sockets, &handler, clients, &running.drain, running);
    running.drain.wait().await;
    running.live.end_streams();
    let grace = running.current.load().built.shutdown_grace;
    let ended = clock::monotonic() + grace;
    let finished = tokio::select! {
        biased;
        () = running.drain.wait_cut() => false,
        // A cut ends requests first, and connections then.
        finished = tokio::time::timeout(grace, all(&mut serving)) => {
            finished.is_ok() && !running.live.is_cut()
        }
    };
    if !finished {
        // Before the settling, so that what these requests held is settled too, and each has its
        // log line.
        running.live.cut();
        running.drain.cut();
        let _ = tokio::time::timeout(CUT_MAX, all(&mut serving)).await;
    }
    running.live.end_held();
    let ended = ended.max(clock::monotonic() + SETTLE_MIN);
    let left = || ended.saturating_duration_since(clock::monotonic());
    // Each worker waits for all limiters, since a limiter settles on the worker that charged. The
    // current one is read first: a reload retires a limiter before it replaces it, so none is
    // missed.
    let limiter = Arc::clone(&running.current.load().built.limiter);
    let retired = running.retired.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let settled = async {
        for limiter in &retired {
            limiter.drain(left()).await;
        }
        limiter.drain(left()).await;
    };
    let cut = async {
        running.drain.wait_cut().await;
        tokio::time::sleep(SETTLE_MIN).await;
    };
    tokio::select! {
        () = settled => {}
        () = cut => {}
    }
    finished
}

/// All connections, and all replies that are read on after their clients have left.
async fn all(serving: &mut JoinSet<()>) {
    while serving.join_next().await.is_some() {}
    wire::wait_for_read_on().await;
}

/// Minimum time for settling, even where connections have used up the grace period.
pub(super) const SETTLE_MIN: Duration = Duration::from_millis(500);
/// Time for connections that are cut to release what they hold.
pub(super) const CUT_MAX: Duration = Duration::from_millis(500);
