//! What the listeners of a process share: the words that end accepting and then everything, and the
//! places for connections. Knows nothing of HTTP.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use arc_swap::ArcSwap;
use tokio::sync::watch;

use super::ConnectionSettings;
use super::places::Places;

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

/// Listeners with the same settings count together; the admin's, with its own, is not shut out by a
/// full house.
#[derive(Debug)]
struct Count {
    settings: Weak<ArcSwap<ConnectionSettings>>,
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

    /// The places for connections under `settings`.
    pub(super) fn places_under(&self, settings: &Arc<ArcSwap<ConnectionSettings>>) -> Arc<Places> {
        let mut counts = self.0.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts.retain(|count| count.settings.strong_count() > 0);
        if let Some(count) =
            counts.iter().find(|count| std::ptr::eq(count.settings.as_ptr(), Arc::as_ptr(settings)))
        {
            return Arc::clone(&count.places);
        }
        let places = Arc::<Places>::default();
        counts.push(Count { settings: Arc::downgrade(settings), places: Arc::clone(&places) });
        places
    }
}
