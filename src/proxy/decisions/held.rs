//! Decisions that are held: what was let through goes on elsewhere, and whoever asked says how it
//! ends. Each is settled once: by that, when its time is over, or when this process ends.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};
use std::time::Duration;

use tokio::task::AbortHandle;

use crate::proxy::receive::call::api::End;
use crate::proxy::receive::id::Id;

/// Maximum number of decisions that are held at a time. Each takes about two kilobytes.
pub(super) const HELD_MAX: usize = 65_536;
/// Parts of the table, so that workers seldom wait for each other.
const SHARDS: usize = 16;

/// All decisions that this process holds.
pub(in crate::proxy) struct Held {
    shards: [Mutex<HashMap<String, Entry>>; SHARDS],
    /// Those in the table, and the places that are reserved.
    count: AtomicUsize,
}

/// What was let through. It ends in one of these ways.
pub(in crate::proxy) trait HeldDecision: Send {
    /// As whoever asked for it says.
    fn end(self: Box<Self>, end: &End);
    /// It came to nothing: all that was taken is given back.
    fn give_back(self: Box<Self>);
    /// Nobody has said how, in its time.
    fn expire(self: Box<Self>);
}

/// One of them.
struct Entry {
    context: Box<dyn HeldDecision>,
    /// The name of the token that it was asked for with; empty for none.
    owner: String,
    /// Ends it when its time is over.
    timer: AbortHandle,
    /// The worker whose runtime has the timer.
    worker: ThreadId,
}

/// A place for a decision. Given back when it is dropped.
pub(super) struct Place {
    held: Arc<Held>,
    id: Id,
    is_filled: bool,
}

impl Held {
    /// Reserves a place. `None` if as many are held as may be.
    pub(super) fn reserve(self: &Arc<Self>) -> Option<Place> {
        let more = |count: usize| (count < HELD_MAX).then_some(count + 1);
        self.count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(Place { held: Arc::clone(self), id: Id::fresh(), is_filled: false })
    }

    /// Takes out what `owner` holds under `id`.
    pub(super) fn take(&self, id: &str, owner: &str) -> Option<Box<dyn HeldDecision>> {
        let mut shard = self.shard(id);
        if shard.get(id)?.owner != owner {
            return None;
        }
        let entry = shard.remove(id)?;
        drop(shard);
        self.count.fetch_sub(1, Ordering::Relaxed);
        entry.timer.abort();
        Some(entry.context)
    }

    /// Ends those whose time this worker watches: it watches no longer.
    pub(in crate::proxy) fn end_of_worker(&self) {
        let worker = thread::current().id();
        self.end(|entry| entry.worker == worker);
    }

    /// Ends all of them.
    pub(in crate::proxy) fn end_all(&self) {
        self.end(|_| true);
    }

    fn end(&self, ends: impl Fn(&Entry) -> bool) {
        for shard in &self.shards {
            let mut locked = shard.lock().unwrap_or_else(PoisonError::into_inner);
            let over: Vec<Entry> =
                locked.extract_if(|_, entry| ends(entry)).map(|(_, entry)| entry).collect();
            drop(locked);
            self.count.fetch_sub(over.len(), Ordering::Relaxed);
            for Entry { context, timer, .. } in over {
                timer.abort();
                context.expire();
            }
        }
    }

    fn shard(&self, id: &str) -> MutexGuard<'_, HashMap<String, Entry>> {
        let index = id.bytes().fold(0, |sum: usize, byte| sum.wrapping_mul(31) + usize::from(byte));
        let [first, ..] = &self.shards;
        let shard = self.shards.get(index % SHARDS).unwrap_or(first);
        shard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for Held {
    fn default() -> Self {
        Self { shards: Default::default(), count: AtomicUsize::new(0) }
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Held").field("count", &self.count).finish_non_exhaustive()
    }
}

impl Place {
    /// What the decision will be held under.
    pub(super) fn id(&self) -> &str {
        self.id.as_str()
    }

    /// Holds a decision for so long at most.
    pub(super) fn fill(mut self, context: Box<dyn HeldDecision>, owner: &str, hold: Duration) {
        self.is_filled = true;
        let held = Arc::clone(&self.held);
        let (id, owner) = (self.id.as_str().to_owned(), owner.to_owned());
        // Locked until it is in the table, which the timer is the first to look for.
        let mut shard = self.held.shard(&id);
        let timer = tokio::spawn({
            let (held, id, owner) = (Arc::downgrade(&held), id.clone(), owner.clone());
            async move {
                tokio::time::sleep(hold).await;
                let context = held.upgrade().and_then(|held| held.take(&id, &owner));
                if let Some(context) = context {
                    context.expire();
                }
            }
        });
        let (timer, worker) = (timer.abort_handle(), thread::current().id());
        shard.insert(id, Entry { context, owner, timer, worker });
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if !self.is_filled {
            self.held.count.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_given_back_if_it_is_not_filled() {
        let held = Arc::new(Held::default());
        let places: Vec<_> = (0..HELD_MAX).map(|_| held.reserve().unwrap()).collect();
        assert!(held.reserve().is_none());
        drop(places);
        assert_eq!(held.count.load(Ordering::Relaxed), 0);
        assert!(held.take(held.reserve().unwrap().id(), "").is_none());
    }
}
