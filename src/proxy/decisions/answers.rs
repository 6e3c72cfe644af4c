//! Answers to calls with an `Idempotency-Key`, so that a call which is sent again is answered again
//! and not made again (draft-ietf-httpapi-idempotency-key-header). They are this process' own.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::watch;

use crate::clock;
use crate::wire::Charge;

/// How long an answer is kept.
const KEPT_FOR: Duration = Duration::from_secs(600);
/// Maximum number of answers that are kept; then the oldest go first.
const ANSWERS_MAX: usize = 65_536;
/// Maximum bytes of them together; then the oldest go first.
const BYTES_MAX: usize = 64 << 20;

/// The answers that are kept.
#[derive(Default)]
pub(in crate::proxy) struct Answers(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    by_key: HashMap<blake3::Hash, Entry>,
    /// The keys in the order of their calls, with when they came.
    order: VecDeque<(blake3::Hash, Instant)>,
    bytes: usize,
}

struct Entry {
    /// Of the call's body.
    call: blake3::Hash,
    /// Tells two calls with one key apart, of which the first is forgotten already.
    came: Instant,
    answer: watch::Receiver<Option<Answer>>,
    bytes: usize,
    charge: Charge,
}

/// What a call was answered.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    pub(super) status: http::StatusCode,
    pub(super) content_type: Bytes,
    pub(super) body: Bytes,
}

/// What a call with a key is.
pub(super) enum Begun {
    /// The first with it: answer it.
    First(OpenAnswer),
    /// The same call again: its answer, as soon as it is there.
    Again(watch::Receiver<Option<Answer>>),
    /// Another call had this key.
    Differs,
}

/// A call that is being answered. If it is dropped without an answer, its key is as new.
pub(super) struct OpenAnswer {
    answers: Arc<Answers>,
    key: blake3::Hash,
    came: Instant,
    sender: watch::Sender<Option<Answer>>,
}

impl Answers {
    /// Begins a call of `owner` at `path` with an idempotency key.
    pub(super) fn begin(
        self: &Arc<Self>,
        (owner, path): (&str, &str),
        key: &[u8],
        body: &[u8],
    ) -> Begun {
        let key = {
            let mut hasher = blake3::Hasher::new();
            // No name and no path has a line break.
            for part in [owner.as_bytes(), b"\n", path.as_bytes(), b"\n", key] {
                hasher.update(part);
            }
            hasher.finalize()
        };
        let (call, now) = (blake3::hash(body), clock::monotonic());
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        inner.forget(now);
        match inner.by_key.get(&key) {
            Some(entry) if entry.call == call => return Begun::Again(entry.answer.clone()),
            Some(_) => return Begun::Differs,
            None => {}
        }
        let (sender, answer) = watch::channel(None);
        let entry = Entry { call, came: now, answer, bytes: 0, charge: Charge::nothing() };
        inner.by_key.insert(key, entry);
        inner.order.push_back((key, now));
        Begun::First(OpenAnswer { answers: Arc::clone(self), key, came: now, sender })
    }
}

impl Inner {
    /// Forgets what is too old or too much.
    fn forget(&mut self, now: Instant) {
        while let Some((key, came)) = self.order.front().copied() {
            let is_old = now.saturating_duration_since(came) >= KEPT_FOR;
            if !is_old && self.order.len() < ANSWERS_MAX && self.bytes < BYTES_MAX {
                return;
            }
            self.order.pop_front();
            self.remove(&key, came);
        }
    }

    fn remove(&mut self, key: &blake3::Hash, came: Instant) {
        if self.by_key.get(key).is_some_and(|entry| entry.came == came)
            && let Some(entry) = self.by_key.remove(key)
        {
            self.bytes -= entry.bytes;
        }
    }
}

impl OpenAnswer {
    /// Keeps the answer, and tells those who wait for it.
    pub(super) fn keep(self, answer: Answer) {
        let mut inner = self.answers.0.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = answer.body.len() + answer.content_type.len();
        if let Some(entry) = inner.by_key.get_mut(&self.key).filter(|it| it.came == self.came) {
            entry.bytes = bytes;
            entry.charge.set(bytes);
            inner.bytes += bytes;
        }
        drop(inner);
        // Nobody may be waiting.
        let _ = self.sender.send(Some(answer));
    }
}

impl Drop for OpenAnswer {
    fn drop(&mut self) {
        if self.sender.borrow().is_none() {
            let mut inner = self.answers.0.lock().unwrap_or_else(PoisonError::into_inner);
            inner.remove(&self.key, self.came);
        }
    }
}

impl fmt::Debug for Answers {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Answers").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(body: &'static [u8]) -> Answer {
        let content_type = Bytes::from_static(b"application/json");
        Answer { status: http::StatusCode::OK, content_type, body: Bytes::from_static(body) }
    }

    fn first(begun: Begun) -> OpenAnswer {
        match begun {
            Begun::First(open) => open,
            Begun::Again(_) => panic!("again"),
            Begun::Differs => panic!("differs"),
        }
    }

    #[test]
    fn a_key_belongs_to_one_call_of_one_caller_at_one_path() {
        let answers = Arc::new(Answers::default());
        let begin = |owner, path, body: &[u8]| answers.begin((owner, path), b"k", body);
        first(begin("a", "/v1/decide", b"1")).keep(answer(b"one"));
        let Begun::Again(again) = begin("a", "/v1/decide", b"1") else { panic!() };
        assert_eq!(again.borrow().as_ref().unwrap().body, "one");
        assert!(matches!(begin("a", "/v1/decide", b"2"), Begun::Differs));
        drop((first(begin("b", "/v1/decide", b"2")), first(begin("a", "/v1/take", b"2"))));
    }

    #[test]
    fn without_an_answer_the_key_is_as_new_and_who_waits_is_told() {
        let answers = Arc::new(Answers::default());
        let begin = |body: &[u8]| answers.begin(("", "/v1/decide"), b"k", body);
        let open = first(begin(b"1"));
        let Begun::Again(waiting) = begin(b"1") else { panic!() };
        drop(open);
        assert!(waiting.has_changed().is_err(), "nobody answers any more");
        // What is left of the first in the order does not touch the second.
        first(begin(b"2")).keep(answer(b"two"));
        let mut inner = answers.0.lock().unwrap();
        let (key, came) = inner.order[0];
        inner.remove(&key, came);
        drop(inner);
        assert!(matches!(begin(b"1"), Begun::Differs));
    }

    #[test]
    fn the_oldest_go_first() {
        let answers = Arc::new(Answers::default());
        let begin = |key: &str| answers.begin(("", "/v1/decide"), key.as_bytes(), b"1");
        for nth in 0..ANSWERS_MAX {
            first(begin(&nth.to_string())).keep(answer(b"one"));
        }
        assert!(matches!(begin(&(ANSWERS_MAX - 1).to_string()), Begun::Again(_)));
        first(begin("one more")).keep(answer(b"one"));
        assert!(matches!(begin("one more"), Begun::Again(_)));
        first(begin("0")).keep(answer(b"again"));
        let inner = answers.0.lock().unwrap();
        assert!(inner.by_key.len() <= ANSWERS_MAX && inner.order.len() <= ANSWERS_MAX);
        assert_eq!(inner.bytes, inner.by_key.values().map(|entry| entry.bytes).sum::<usize>());
    }
}
