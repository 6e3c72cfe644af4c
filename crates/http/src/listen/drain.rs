//! What the listeners of a process share: the signals that stop accepting and close connections,
//! and the connection permits. Knows nothing about HTTP.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use arc_swap::access::DynAccess;
use tokio::sync::watch;

use super::permits::Permits;
use super::{ConfigSource, ListenConfig};

/// Starts a drain, and waits for one to start.
#[derive(Clone, Debug, Default)]
pub struct Drain(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    stage: watch::Sender<Stage>,
    /// How many sockets connections are accepted on.
    accepting: watch::Sender<usize>,
    /// Whether accepting is paused: connections wait in the sockets' queues.
    paused: watch::Sender<bool>,
    groups: Mutex<Vec<Group>>,
}

/// How far the drain has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    #[default]
    Running,
    Draining,
    Cut,
}

/// A socket on which connections are accepted.
#[derive(Debug)]
pub(super) struct AcceptingSocket(Drain);

impl Drop for AcceptingSocket {
    fn drop(&mut self) {
        self.0.0.accepting.send_modify(|sockets| *sockets -= 1);
    }
}

/// Listeners that share their configuration share a connection limit. The admin listener has its
/// own, so a full proxy does not lock the operator out.
#[derive(Debug)]
struct Group {
    config: Weak<dyn DynAccess<ListenConfig> + Send + Sync>,
    permits: Arc<Permits>,
}

impl Drain {
    /// Creates a drain; one serves a whole process.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Starts the drain: accepting stops, idle connections close, busy ones finish their requests.
    pub fn start(&self) {
        self.reach(Stage::Draining);
    }

    /// Pauses accepting, and lets the open connections end: another process is about to serve. New
    /// connections wait in the sockets' queues, for that process or for [`resume`](Self::resume). A
    /// drain that starts meanwhile leaves them there.
    pub fn pause(&self) {
        self.0.paused.send_replace(true);
    }

    /// Accepts again.
    pub fn resume(&self) {
        self.0.paused.send_replace(false);
    }

    /// Waits until no more connections are accepted.
    pub async fn accepts_no_more(&self) {
        // This fails only if the sender is dropped, and `self` holds it.
        let _ = self.0.accepting.subscribe().wait_for(|sockets| *sockets == 0).await;
    }

    /// Whether accepting is paused.
    pub(super) fn is_paused(&self) -> bool {
        *self.0.paused.borrow()
    }

    /// Waits until accepting is paused, or not.
    pub(super) async fn paused(&self, paused: bool) {
        // As above.
        let _ = self.0.paused.subscribe().wait_for(|now| *now == paused).await;
    }

    /// Counts a socket for as long as the answer lives.
    pub(super) fn accepting(&self) -> AcceptingSocket {
        self.0.accepting.send_modify(|sockets| *sockets += 1);
        AcceptingSocket(self.clone())
    }

    /// Ends the grace period: all connections close at once.
    pub fn cut(&self) {
        self.reach(Stage::Cut);
    }

    fn reach(&self, stage: Stage) {
        self.0.stage.send_if_modified(|now| {
            let later = *now < stage;
            *now = stage.max(*now);
            later
        });
    }

    /// Whether [`start`](Self::start) was called.
    #[must_use]
    pub fn started(&self) -> bool {
        *self.0.stage.borrow() >= Stage::Draining
    }

    /// Waits until the drain starts.
    pub async fn wait(&self) {
        self.reached(Stage::Draining).await;
    }

    /// Waits until the grace period is over.
    pub async fn wait_cut(&self) {
        self.reached(Stage::Cut).await;
    }

    async fn reached(&self, stage: Stage) {
        // This fails only if the sender is dropped, and `self` holds it.
        let _ = self.0.stage.subscribe().wait_for(|now| *now >= stage).await;
    }

    /// The permits of the listeners that use `config`.
    pub(super) fn permits_under(&self, config: &ConfigSource) -> Arc<Permits> {
        let mut groups = self.0.groups.lock().unwrap_or_else(PoisonError::into_inner);
        groups.retain(|group| group.config.strong_count() > 0);
        let same = |group: &&Group| std::ptr::addr_eq(group.config.as_ptr(), Arc::as_ptr(config));
        if let Some(group) = groups.iter().find(same) {
            return Arc::clone(&group.permits);
        }
        let permits = Arc::<Permits>::default();
        groups.push(Group { config: Arc::downgrade(config), permits: Arc::clone(&permits) });
        permits
    }
}
