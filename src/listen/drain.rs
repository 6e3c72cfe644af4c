//! What the listeners of a process share: the words that end accepting and then everything, and the
//! places for connections. Knows nothing of HTTP.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use arc_swap::access::DynAccess;
use tokio::sync::watch;

use super::places::Places;
use super::{ConfigSource, ListenConfig};

/// Stops the accepting and waits for what is under way.
#[derive(Clone, Debug, Default)]
pub struct Drain(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    stage: watch::Sender<Stage>,
    counts: Mutex<Vec<Count>>,
}

/// What was said so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    #[default]
    Open,
    Draining,
    Over,
}

/// Listeners that share their configuration count together. The admin listener has its own, and is
/// not shut out when all other places are taken.
#[derive(Debug)]
struct Count {
    config: Weak<dyn DynAccess<ListenConfig> + Send + Sync>,
    places: Arc<Places>,
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
        self.reach(Stage::Over);
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
        self.reached(Stage::Over).await;
    }

    async fn reached(&self, stage: Stage) {
        // An error would mean that the sender is gone, and we hold it.
        let _ = self.0.stage.subscribe().wait_for(|now| *now >= stage).await;
    }

    /// The places for connections under `config`.
    pub(super) fn places_under(&self, config: &ConfigSource) -> Arc<Places> {
        let mut counts = self.0.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts.retain(|count| count.config.strong_count() > 0);
        let same = |count: &&Count| std::ptr::addr_eq(count.config.as_ptr(), Arc::as_ptr(config));
        if let Some(count) = counts.iter().find(same) {
            return Arc::clone(&count.places);
        }
        let places = Arc::<Places>::default();
        counts.push(Count { config: Arc::downgrade(config), places: Arc::clone(&places) });
        places
    }
}
