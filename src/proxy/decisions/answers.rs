//! Answers to calls with an `Idempotency-Key`: a call that is sent again gets its first answer, and
//! is not made a second time (draft-ietf-httpapi-idempotency-key-header). They are kept in this
//! process alone.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::watch;

use crate::clock;

/// How long an answer is kept.
const KEPT_FOR: Duration = Duration::from_secs(600);
/// Maximum number of answers that are kept, of all tokens together: each has an equal share, in
/// which the oldest go first.
const ANSWERS_MAX: usize = 65_536;
/// Maximum bytes of them, likewise. They are no bytes that are buffered for anybody.
const BYTES_MAX: usize = 64 << 20;

/// The answers that are kept, by the names of tokens.
#[derive(Default)]
pub(in crate::proxy) struct Answers(Mutex<HashMap<String, OwnAnswers>>);

/// Those of one token.
#[derive(Default)]
struct OwnAnswers {
    by_key: HashMap<blake3::Hash, Entry>,
    /// The keys in the order of their calls, with when they came. Some of them are gone.
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
    owner: String,
    key: blake3::Hash,
    came: Instant,
    sender: watch::Sender<Option<Answer>>,
}

impl Answers {
    /// Begins a call at `path` with an idempotency key, of one of so many owners.
    pub(super) fn begin(
        self: &Arc<Self>,
        (owner, owners): (&str, usize),
        path: &str,
        key: &[u8],
        body: &[u8],
    ) -> Begun {
        let key = {
            let mut hasher = blake3::Hasher::new();
            // No path has a line break.
            for part in [path.as_bytes(), b"\n", key] {
                hasher.update(part);
            }
            hasher.finalize()
        };
        let (call, now) = (blake3::hash(body), clock::monotonic());
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Those of tokens that are gone, too.
        all.retain(|_, own| {
            own.forget_old(now);
            !own.by_key.is_empty()
        });
        let own = all.entry(owner.to_owned()).or_default();
        own.forget_more_than(owners.max(1));
        match own.by_key.get(&key) {
            Some(entry) if entry.call == call => return Begun::Again(entry.answer.clone()),
            Some(_) => return Begun::Differs,
            None => {}
        }
        let (sender, answer) = watch::channel(None);
        own.by_key.insert(key, Entry { call, came: now, answer, bytes: 0 });
        own.order.push_back((key, now));
        let (answers, owner) = (Arc::clone(self), owner.to_owned());
        Begun::First(OpenAnswer { answers, owner, key, came: now, sender })
    }
}

impl OwnAnswers {
    /// Forgets the answers to calls that came too long ago. A call that is not answered yet stays,
    /// as below.
    fn forget_old(&mut self, now: Instant) {
        for _ in 0..self.order.len() {
            let Some((key, came)) = self.order.front().copied() else { break };
            if now.saturating_duration_since(came) < KEPT_FOR {
                break;
            }
            self.order.pop_front();
            if self.is_open(&key, came) {
                // Behind younger ones, which keeps its answer a while longer.
                self.order.push_back((key, came));
            } else {
                self.remove(&key, came);
            }
        }
    }

    /// Whether this call is not answered yet.
    fn is_open(&self, key: &blake3::Hash, came: Instant) -> bool {
        self.by_key.get(key).is_some_and(|entry| entry.came == came && entry.bytes == 0)
    }

    /// Leaves room for one more in the share of one of so many owners. What is not answered yet
    /// stays: forgetting it would have it made twice.
    fn forget_more_than(&mut self, owners: usize) {
        let mut looked_at = 0;
        while looked_at < self.order.len()
            && (self.by_key.len() >= ANSWERS_MAX / owners || self.bytes >= BYTES_MAX / owners)
            && let Some((key, came)) = self.order.pop_front()
        {
            if self.is_open(&key, came) {
                self.order.push_back((key, came));
                looked_at += 1;
            } else {
                self.remove(&key, came);
            }
        }
        if self.order.len() > 2 * self.by_key.len() + SPARE {
            let Self { order, by_key, .. } = self;
            order.retain(|(key, came)| by_key.get(key).is_some_and(|entry| entry.came == *came));
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

/// Keys in the order that may be gone, beside as many as there are.
const SPARE: usize = 64;

impl OpenAnswer {
    /// Answers those who wait for it. Unless it has failed, it is kept for those who come later.
    pub(super) fn end(self, answer: Answer, is_kept: bool) {
        let mut all = self.answers.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = all.get_mut(&self.owner) {
            let bytes = answer.body.len() + answer.content_type.len();
            if !is_kept {
                own.remove(&self.key, self.came);
            } else if let Some(entry) =
                own.by_key.get_mut(&self.key).filter(|entry| entry.came == self.came)
            {
                entry.bytes = bytes;
                own.bytes += bytes;
            }
        }
        drop(all);
        // Nobody may be waiting.
        let _ = self.sender.send(Some(answer));
    }
}

impl Drop for OpenAnswer {
    fn drop(&mut self) {
        if self.sender.borrow().is_none() {
            let mut all = self.answers.0.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(own) = all.get_mut(&self.owner) {
                own.remove(&self.key, self.came);
            }
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
        let begin = |owner, path, body: &[u8]| answers.begin((owner, 2), path, b"k", body);
        first(begin("a", "/v1/decide", b"1")).end(answer(b"one"), true);
        let Begun::Again(again) = begin("a", "/v1/decide", b"1") else { panic!() };
        assert_eq!(again.borrow().as_ref().unwrap().body, "one");
        assert!(matches!(begin("a", "/v1/decide", b"2"), Begun::Differs));
        drop((first(begin("b", "/v1/decide", b"2")), first(begin("a", "/v1/take", b"2"))));
    }

    #[test]
    fn a_failure_reaches_those_who_wait_and_the_key_is_as_new() {
        let answers = Arc::new(Answers::default());
        let begin = |body: &[u8]| answers.begin(("", 1), "/v1/decide", b"k", body);
        first(answers.begin(("", 1), "/v1/decide", b"other", b"1")).end(answer(b"one"), true);
        let open = first(begin(b"1"));
        let Begun::Again(waiting) = begin(b"1") else { panic!() };
        open.end(answer(b"failed"), false);
        assert_eq!(waiting.borrow().as_ref().unwrap().body, "failed");
        let open = first(begin(b"1"));
        let Begun::Again(waiting) = begin(b"1") else { panic!() };
        drop(open);
        assert!(waiting.has_changed().is_err(), "nobody answers any more");
        // What is left of the others in the order does not touch this one.
        first(begin(b"2")).end(answer(b"two"), true);
        let mut all = answers.0.lock().unwrap();
        let own = all.get_mut("").unwrap();
        let gone = own.order.clone().into_iter();
        let gone = gone.filter(|(key, came)| own.by_key.get(key).unwrap().came != *came);
        let gone: Vec<_> = gone.collect();
        assert_eq!(gone.len(), 2);
        gone.iter().for_each(|(key, came)| own.remove(key, *came));
        drop(all);
        assert!(matches!(begin(b"1"), Begun::Differs));
    }

    #[test]
    fn the_oldest_answers_of_a_token_go_first_and_none_of_another() {
        let answers = Arc::new(Answers::default());
        let begin =
            |owner, key: &str| answers.begin((owner, 2), "/v1/decide", key.as_bytes(), b"1");
        first(begin("other", "k")).end(answer(b"one"), true);
        let open = first(begin("a", "open"));
        for nth in 0..ANSWERS_MAX / 2 {
            first(begin("a", &nth.to_string())).end(answer(b"one"), true);
        }
        assert!(matches!(begin("a", &(ANSWERS_MAX / 2 - 1).to_string()), Begun::Again(_)));
        assert!(matches!(begin("a", "open"), Begun::Again(_)), "it is not answered yet");
        assert!(matches!(begin("other", "k"), Begun::Again(_)));
        first(begin("a", "0")).end(answer(b"again"), true);
        // Calls that fail leave nothing behind.
        for nth in 0..1_000 {
            first(begin("a", &format!("failed {nth}"))).end(answer(b"failed"), false);
        }
        drop(open);
        let all = answers.0.lock().unwrap();
        let own = &all["a"];
        assert!(own.by_key.len() <= ANSWERS_MAX / 2 && own.order.len() <= ANSWERS_MAX + SPARE);
        assert_eq!(own.bytes, own.by_key.values().map(|entry| entry.bytes).sum::<usize>());
    }
}
