//! The threads: one single-threaded runtime a worker, each with its own listening sockets, and one for the operator's pages.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use super::views::Pages;
use super::{Connections, Running, StartError};
use crate::admin::Admin;
use crate::clock;
use crate::listen::{Handler, Listener};
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
}

impl Workers {
    /// Starts `count` workers, `public[listener][worker]` being their sockets, and the admin's thread where it has sockets.
    pub(super) fn start(
        running: &Arc<Running>,
        public: Vec<Vec<Listener>>,
        admin: Vec<Listener>,
        count: usize,
    ) -> Result<Self, StartError> {
        let mut sockets: Vec<Vec<Listener>> = (0..count).map(|_| Vec::with_capacity(public.len())).collect();
        for per_worker in public {
            sockets.iter_mut().zip(per_worker).for_each(|(mine, socket)| mine.push(socket));
        }
        let (finish, finished) = channel();
        let mut threads = Vec::with_capacity(count + 1);
        for (index, mine) in sockets.into_iter().enumerate() {
            let handler = Proxy::new(Arc::clone(&running.live));
            threads.push(spawn(format!("weir-worker-{index}"), index, running, &running.connections, mine, handler, finish.clone())?);
        }
        if !admin.is_empty() {
            let handler = Admin::new(Arc::new(Pages(Arc::clone(running))), running.metrics.clone());
            threads.push(spawn("weir-admin".into(), 0, running, &running.admin_connections, admin, handler, finish)?);
        }
        Ok(Self { threads, finished })
    }

    /// Waits for all threads, at most `grace`; those that are still busy then are left to the process's end.
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
        all && self.threads.into_iter().all(|thread| thread.join().is_ok())
    }
}

fn spawn<H: Handler>(
    name: String,
    index: usize,
    running: &Arc<Running>,
    settings: &Arc<Connections>,
    sockets: Vec<Listener>,
    handler: H,
    finish: Sender<bool>,
) -> Result<JoinHandle<()>, StartError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(StartError::Worker)?;
    let (running, settings) = (Arc::clone(running), Arc::clone(settings));
    let work = move || {
        telemetry::enter_worker(index);
        let finished = runtime.block_on(serve(&running, &settings, sockets, handler));
        // Nobody listens any more when the grace period is over: then the answer is known to be no.
        let _ = finish.send(finished);
    };
    std::thread::Builder::new().name(name).spawn(work).map_err(StartError::Worker)
}

/// Serves until told to drain, then lets connections finish and settles what they held.
async fn serve<H: Handler>(running: &Arc<Running>, settings: &Arc<Connections>, sockets: Vec<Listener>, handler: H) -> bool {
    let mut serving = tokio::task::JoinSet::new();
    for socket in sockets {
        serving.spawn(socket.serve(handler.clone(), Arc::clone(settings), running.drain.clone(), running.metrics.clone()));
    }
    running.drain.wait().await;
    let ended = clock::monotonic() + running.shutdown_grace;
    let finished = tokio::time::timeout(running.shutdown_grace, all(&mut serving)).await.is_ok();
    if !finished {
        // Ended before the settling, so that what these requests held is settled too, and each has its log line.
        running.drain.cut();
        let _ = tokio::time::timeout(CUT_MAX, all(&mut serving)).await;
    }
    let limiter = Arc::clone(&running.serving.load().limiter);
    limiter.drain(ended.saturating_duration_since(clock::monotonic()).max(SETTLE_MIN)).await;
    finished
}

async fn all(serving: &mut tokio::task::JoinSet<()>) {
    while serving.join_next().await.is_some() {}
}

/// Settling gets at least this long, also where connections have used up the grace period.
const SETTLE_MIN: Duration = Duration::from_millis(500);
/// Connections that are cut get this long to let go of what they hold.
const CUT_MAX: Duration = Duration::from_millis(500);
