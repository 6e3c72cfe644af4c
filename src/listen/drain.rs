//! What the listeners of a process share: the words that end accepting and then everything, and the
//! places for connections. Knows nothing of HTTP.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use arc_swap::ArcSwap;
use tokio::sync::watch;

use super::ConnectionSettings;
use super::permits::Permits;

/// Stops the accepting and waits for what is under way.
#[derive(Clone, Debug, Default)]
pub struct Drain(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    stage: watch::Sender<Stage>,
    groups: Mutex<Vec<Group>>,
}

/// What was said so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    #[default]
    Running,
    Draining,
    Cut,
}

/// Listeners with the same settings count together; the admin's, with its own, is not shut out by a
/// full house.
#[derive(Debug)]
struct Group {
    settings: Weak<ArcSwap<ConnectionSettings>>,
    permits: Arc<Permits>,
}

impl Drain {
    /// One for a whole process.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Says it: accepting stops, idle connections close, busy ones finish what they do.
    pub fn start(&self) {
        self.reach(Stage::Draining);
    }

    /// Says that the grace is over: connections end at once, whatever they do.
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

    /// Whether [`start`](Self::start) was said.
    #[must_use]
    pub fn started(&self) -> bool {
        *self.0.stage.borrow() >= Stage::Draining
    }

    /// Waits until it is said.
    pub async fn wait(&self) {
        self.reached(Stage::Draining).await;
    }

    /// Waits until the grace is over.
    pub(super) async fn wait_cut(&self) {
        self.reached(Stage::Cut).await;
    }

    async fn reached(&self, stage: Stage) {
        // An error would mean that the sender is gone, and we hold it.
        let _ = self.0.stage.subscribe().wait_for(|now| *now >= stage).await;
    }

    /// The places for connections under `settings`.
    pub(super) fn permits_under(
        &self,
        settings: &Arc<ArcSwap<ConnectionSettings>>,
    ) -> Arc<Permits> {
        let mut groups = self.0.groups.lock().unwrap_or_else(PoisonError::into_inner);
        groups.retain(|group| group.settings.strong_count() > 0);
        if let Some(group) =
            groups.iter().find(|group| std::ptr::eq(group.settings.as_ptr(), Arc::as_ptr(settings)))
        {
            return Arc::clone(&group.permits);
        }
        let permits = Arc::<Permits>::default();
        groups.push(Group { settings: Arc::downgrade(settings), permits: Arc::clone(&permits) });
        permits
    }
}
