//! The streams of quotas that are open in this process, so that they end when their worker stops,
//! and how many of them have the same bucket, so that they share.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{self, ThreadId};

use tokio::sync::Notify;

/// Maximum number of buckets of all streams, of all tokens together: each has an equal share. One
/// takes some kilobytes.
const BUCKETS_MAX: usize = 65_536;

/// All streams.
#[derive(Debug, Default)]
pub(in crate::proxy) struct Streams {
    open: Mutex<Vec<(ThreadId, Weak<Notify>)>>,
    /// Workers that have stopped.
    stopped: Mutex<HashSet<ThreadId>>,
    buckets: Mutex<Buckets>,
}

/// How many streams have each bucket, by its domain and its entries.
#[derive(Debug, Default)]
struct Buckets {
    holders: HashMap<(String, String), u64>,
    /// How many the streams of each token have.
    counts: HashMap<String, usize>,
}

/// A stream's part in a bucket, until it is dropped.
#[derive(Debug)]
pub(super) struct Part {
    streams: Arc<Streams>,
    owner: String,
    name: (String, String),
}

impl Streams {
    /// A stream begins on this worker. It ends when it is notified.
    pub(super) fn begin(&self) -> Arc<Notify> {
        let mut open = lock(&self.open);
        open.retain(|(_, stream)| stream.strong_count() > 0);
        let stream = Arc::new(Notify::new());
        let worker = thread::current().id();
        open.push((worker, Arc::downgrade(&stream)));
        if lock(&self.stopped).contains(&worker) {
            stream.notify_one();
        }
        stream
    }

    /// Ends the streams of this worker, and those that begin here from now on.
    pub(in crate::proxy) fn end_of_worker(&self) {
        let worker = thread::current().id();
        let open = lock(&self.open);
        lock(&self.stopped).insert(worker);
        for (_, stream) in open.iter().filter(|(thread, _)| *thread == worker) {
            if let Some(stream) = stream.upgrade() {
                stream.notify_one();
            }
        }
    }

    /// Takes part in a bucket, for one of so many owners. `None` if that has its share.
    pub(super) fn join(
        self: &Arc<Self>,
        (owner, owners): (&str, usize),
        domain: &str,
        bucket: &str,
    ) -> Option<Part> {
        let mut buckets = lock(&self.buckets);
        let count = buckets.counts.entry(owner.to_owned()).or_default();
        if *count >= BUCKETS_MAX / owners.max(1) {
            return None;
        }
        *count += 1;
        let name = (domain.to_owned(), bucket.to_owned());
        *buckets.holders.entry(name.clone()).or_default() += 1;
        Some(Part { streams: Arc::clone(self), owner: owner.to_owned(), name })
    }
}

impl Part {
    /// How many streams have the bucket, this one included.
    pub(super) fn holders(&self) -> u64 {
        lock(&self.streams.buckets).holders.get(&self.name).copied().unwrap_or(1)
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let mut buckets = lock(&self.streams.buckets);
        if let Some(count) = buckets.counts.get_mut(&self.owner) {
            *count -= 1;
            if *count == 0 {
                buckets.counts.remove(&self.owner);
            }
        }
        if let Some(holders) = buckets.holders.get_mut(&self.name) {
            *holders -= 1;
            if *holders == 0 {
                buckets.holders.remove(&self.name);
            }
        }
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_share_the_buckets_that_they_have_in_common() {
        let streams = Arc::new(Streams::default());
        let first = streams.join(("", 1), "edge", "a").unwrap();
        let other = streams.join(("", 1), "other", "a").unwrap();
        let second = streams.join(("", 1), "edge", "a").unwrap();
        assert_eq!((first.holders(), second.holders(), other.holders()), (2, 2, 1));
        drop(second);
        assert_eq!(first.holders(), 1);
        drop((first, other));
        let buckets = lock(&streams.buckets);
        assert!(buckets.holders.is_empty() && buckets.counts.is_empty());
    }

    #[test]
    fn each_token_has_its_share_of_the_buckets() {
        let streams = Arc::new(Streams::default());
        let name = |nth: usize| nth.to_string();
        let join = |owner, nth| streams.join((owner, 2), "edge", &name(nth));
        let parts: Vec<_> = (0..BUCKETS_MAX / 2).map(|nth| join("a", nth).unwrap()).collect();
        assert!(join("a", BUCKETS_MAX).is_none() && join("b", 0).is_some());
        drop(parts);
        assert!(join("a", 0).is_some());
    }
}
