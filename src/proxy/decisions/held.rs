//! Held decisions: the caller goes on with what was admitted, and reports how it ended. Each is
//! settled exactly once: by that report, when its time is over, or when this process ends.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};
use std::time::Duration;

use tokio::task::AbortHandle;

use crate::proxy::receive::call::api::End;
use crate::proxy::receive::id::Id;
use crate::telemetry::labels;

/// Maximum number of decisions that are held at a time, of all tokens together: each has an equal
/// share. One takes about two kilobytes.
pub(super) const HELD_MAX: usize = 65_536;
/// Parts of the table, so that workers seldom wait for each other.
const SHARDS: usize = 16;

/// All decisions that this process holds.
#[derive(Default)]
pub(in crate::proxy) struct Held {
    shards: [Mutex<HashMap<String, Entry>>; SHARDS],
    /// Those in the table, and the places that are reserved, of each token.
    counts: Mutex<HashMap<String, usize>>,
}

/// An admitted call that is held. It ends in one of these ways.
pub(in crate::proxy) trait HeldDecision: Send {
    /// As its caller reports.
    fn end(self: Box<Self>, end: &End);
    /// It came to nothing: all that was taken is given back.
    fn give_back(self: Box<Self>);
    /// Its caller has reported nothing.
    fn expire(self: Box<Self>, why: Expiry);
}

labels! {
    /// Why a held decision ended without a report.
    pub(in crate::proxy) enum Expiry {
        /// Its time is over.
        HoldOver = "hold-over",
        /// This process ends.
        Shutdown = "shutdown",
    }
}

/// One of them.
struct Entry {
    context: Box<dyn HeldDecision>,
    /// The name of the token that it was asked for with; empty for none.
    owner: String,
    domain: String,
    /// Ends it when its time is over.
    timer: AbortHandle,
    /// How often it was given more time: a timer of before that may be running already.
    renewals: u64,
    /// The worker whose runtime has the timer.
    worker: ThreadId,
}

/// A place for a decision. Given back when it is dropped.
pub(super) struct Place {
    held: Arc<Held>,
    id: Id,
    owner: String,
    is_filled: bool,
}

impl Held {
    /// Reserves a place for one of so many owners. `None` if it has its share.
    pub(super) fn reserve(self: &Arc<Self>, owner: &str, owners: usize) -> Option<Place> {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(owner.to_owned()).or_default();
        if *count >= HELD_MAX / owners.max(1) {
            return None;
        }
        *count += 1;
        let held = Arc::clone(self);
        Some(Place { held, id: Id::fresh(), owner: owner.to_owned(), is_filled: false })
    }

    /// Takes out what `owner` holds under `id`, if it may ask about its domain.
    pub(super) fn take(
        &self,
        id: &str,
        owner: &str,
        may_ask: impl FnOnce(&str) -> bool,
    ) -> Option<Box<dyn HeldDecision>> {
        self.take_if(id, |entry| entry.owner == owner && may_ask(&entry.domain))
    }

    fn take_if(
        &self,
        id: &str,
        is_it: impl FnOnce(&Entry) -> bool,
    ) -> Option<Box<dyn HeldDecision>> {
        let mut shard = self.shard(id);
        if !shard.get(id).is_some_and(is_it) {
            return None;
        }
        let Entry { context, owner, timer, .. } = shard.remove(id)?;
        drop(shard);
        self.leave(&owner);
        timer.abort();
        Some(context)
    }

    /// Whether something is held under an id.
    pub(super) fn holds(&self, id: &str) -> bool {
        self.shard(id).contains_key(id)
    }

    /// Holds what `owner` holds under `id` for so long from now on, if it may ask about its domain.
    /// Returns whether that is held.
    pub(super) fn renew(
        self: &Arc<Self>,
        id: &str,
        owner: &str,
        may_ask: impl FnOnce(&str) -> bool,
        hold: Duration,
    ) -> bool {
        // Locked until the new timer is in the table, as for a new entry.
        let mut shard = self.shard(id);
        let own = shard.get_mut(id).filter(|entry| entry.owner == owner);
        let Some(entry) = own.filter(|entry| may_ask(&entry.domain)) else { return false };
        entry.timer.abort();
        entry.renewals += 1;
        (entry.timer, entry.worker) = self.expire_after(hold, id, entry.renewals);
        true
    }

    /// Ends what is held under an id after a while, on this worker.
    fn expire_after(
        self: &Arc<Self>,
        hold: Duration,
        id: &str,
        renewals: u64,
    ) -> (AbortHandle, ThreadId) {
        let (held, id) = (Arc::downgrade(self), id.to_owned());
        let timer = tokio::spawn(async move {
            tokio::time::sleep(hold).await;
            let held = held.upgrade();
            let context =
                held.and_then(|held| held.take_if(&id, |entry| entry.renewals == renewals));
            if let Some(context) = context {
                context.expire(Expiry::HoldOver);
            }
        });
        (timer.abort_handle(), thread::current().id())
    }

    /// Gives a place back.
    fn leave(&self, owner: &str) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(owner) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                counts.remove(owner);
            }
        }
    }

    /// Ends those whose timers run on this worker, which is about to stop.
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
            for Entry { context, timer, owner, .. } in over {
                self.leave(&owner);
                timer.abort();
                context.expire(Expiry::Shutdown);
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

impl fmt::Debug for Held {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Held").finish_non_exhaustive()
    }
}

impl Place {
    /// What the decision will be held under.
    pub(super) fn id(&self) -> &str {
        self.id.as_str()
    }

    /// Holds a decision for so long at most.
    pub(super) fn fill(mut self, context: Box<dyn HeldDecision>, domain: String, hold: Duration) {
        self.is_filled = true;
        let held = Arc::clone(&self.held);
        let (id, owner) = (self.id.as_str().to_owned(), self.owner.clone());
        // Locked until it is in the table, which the timer is the first to look for.
        let mut shard = self.held.shard(&id);
        let (timer, worker) = held.expire_after(hold, &id, 0);
        shard.insert(id, Entry { context, owner, domain, timer, renewals: 0, worker });
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if !self.is_filled {
            self.held.leave(&self.owner);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_given_back_if_it_is_not_filled() {
        let held = Arc::new(Held::default());
        let places: Vec<_> = (0..HELD_MAX / 2).map(|_| held.reserve("a", 2).unwrap()).collect();
        assert!(held.reserve("a", 2).is_none() && held.reserve("b", 2).is_some());
        drop(places);
        assert!(held.counts.lock().unwrap().is_empty());
        let place = held.reserve("a", 2).unwrap();
        assert!(held.take(place.id(), "a", |_| true).is_none());
    }
}
