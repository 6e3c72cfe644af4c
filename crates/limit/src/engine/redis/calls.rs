//! The calls on one connection: the bytes to write, and the calls that wait for a reply, in the
//! order of their writing. Redis answers in that order. Knows no socket and no clock.

use std::collections::VecDeque;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use ::redis::Value;
use slab::Slab;

use super::resp;
use crate::engine::{Cause, EngineError, Execution};

/// Capacity that the output buffer keeps when everything is written.
const OUT_KEPT_BYTES: usize = 64 << 10;

/// When a call ends.
#[derive(Clone, Copy, Debug)]
pub(super) struct Time {
    pub(super) until: Instant,
    /// Whether that is so soon that its timing out says nothing about the node.
    pub(super) is_short: bool,
}

/// All calls on one connection.
#[derive(Debug, Default)]
pub(super) struct Calls {
    out: Vec<u8>,
    /// How much of `out` is written.
    out_written: usize,
    /// Bytes of this connection before `out`.
    before: u64,
    calls: Slab<Call>,
    /// The calls that Redis has not answered, in the order of their writing.
    order: VecDeque<usize>,
    /// The calls in `order` that somebody still waits for.
    waiting: usize,
    /// Wakers to call as soon as no lock is held.
    woken: Vec<Waker>,
}

#[derive(Debug)]
struct Call {
    /// Where its bytes begin in all that is sent on this connection.
    begins: u64,
    until: Instant,
    /// Whether it was given so little time that its timing out says nothing about the node.
    is_short: bool,
    /// Whether Redis has not answered it.
    is_open: bool,
    progress: Progress,
}

#[derive(Debug)]
enum Progress {
    Waiting(Option<Waker>),
    Done(Result<Value, EngineError>),
    /// Nobody waits for it. Its reply is still to come.
    Abandoned,
}

impl Calls {
    /// The number of calls that Redis has not answered.
    pub(super) fn open(&self) -> usize {
        self.order.len()
    }

    /// The number of calls that wait for their reply and have not timed out.
    pub(super) fn waiting(&self) -> usize {
        self.waiting
    }

    /// Adds a call, which `write` writes; returns its number. With `asking`, ASKING comes first, in
    /// the same write: other calls share the connection.
    pub(super) fn push(
        &mut self,
        Time { until, is_short }: Time,
        asking: bool,
        write: impl FnOnce(&mut Vec<u8>),
    ) -> usize {
        if asking {
            let id = self.insert(until, is_short, Progress::Abandoned);
            self.order.push_back(id);
            resp::begin(&mut self.out, 1);
            resp::word(&mut self.out, b"ASKING");
        }
        let id = self.insert(until, is_short, Progress::Waiting(None));
        self.order.push_back(id);
        self.waiting += 1;
        write(&mut self.out);
        id
    }

    fn insert(&mut self, until: Instant, is_short: bool, progress: Progress) -> usize {
        let begins = self.before + self.out.len() as u64;
        self.calls.insert(Call { begins, until, is_short, is_open: true, progress })
    }

    /// The outcome of call `id`, which is then forgotten.
    pub(super) fn poll(
        &mut self,
        id: usize,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Value, EngineError>> {
        let Some(call) = self.calls.get_mut(id) else { return Poll::Ready(Err(GONE)) };
        match &mut call.progress {
            Progress::Waiting(waker) => {
                match waker {
                    Some(waker) => waker.clone_from(cx.waker()),
                    None => *waker = Some(cx.waker().clone()),
                }
                Poll::Pending
            }
            Progress::Done(_) | Progress::Abandoned => Poll::Ready(self.take(id)),
        }
    }

    fn take(&mut self, id: usize) -> Result<Value, EngineError> {
        let Some(call) = self.calls.get_mut(id) else { return Err(GONE) };
        let progress = std::mem::replace(&mut call.progress, Progress::Abandoned);
        if !call.is_open {
            self.calls.remove(id);
        }
        if let Progress::Done(outcome) = progress { outcome } else { Err(GONE) }
    }

    /// Nobody waits for call `id` any more.
    pub(super) fn abandon(&mut self, id: usize) {
        if let Some(Call { progress: Progress::Waiting(_), .. }) = self.calls.get(id) {
            self.waiting -= 1;
        }
        let _ = self.take(id);
    }

    /// What is still to be written.
    pub(super) fn unwritten(&self) -> &[u8] {
        self.out.get(self.out_written..).unwrap_or_default()
    }

    /// Records that this many more bytes were written.
    pub(super) fn wrote(&mut self, bytes: usize) {
        self.out_written += bytes;
        if self.out_written == self.out.len() {
            self.before += self.out.len() as u64;
            self.out.clear();
            self.out.shrink_to(OUT_KEPT_BYTES);
            self.out_written = 0;
        }
    }

    /// Gives a reply to the call that it answers. Returns whether somebody was still waiting for
    /// it, and `None` if no call is open.
    pub(super) fn answer(&mut self, reply: Value) -> Option<bool> {
        let id = self.order.pop_front()?;
        let call = self.calls.get_mut(id)?;
        call.is_open = false;
        match call.progress {
            Progress::Waiting(_) => {
                self.finish(id, Ok(reply));
                return Some(true);
            }
            Progress::Done(_) => {}
            Progress::Abandoned => _ = self.calls.remove(id),
        }
        Some(false)
    }

    fn finish(&mut self, id: usize, outcome: Result<Value, EngineError>) {
        let Some(call) = self.calls.get_mut(id) else { return };
        if let Progress::Waiting(waker) =
            std::mem::replace(&mut call.progress, Progress::Done(outcome))
        {
            self.waiting -= 1;
            self.woken.extend(waker);
        }
    }

    /// Ends the calls whose time is over, and returns how many of them say something about the
    /// node. They may have run, or run later: what is not written yet still will be.
    pub(super) fn expire(&mut self, now: Instant) -> usize {
        let mut count = 0;
        for at in 0..self.order.len() {
            let Some(id) = self.order.get(at).copied() else { break };
            let over = self
                .calls
                .get(id)
                .filter(|call| matches!(call.progress, Progress::Waiting(_)) && call.until <= now);
            if let Some(call) = over {
                count += usize::from(!call.is_short);
                let late = EngineError { cause: Cause::Timeout, ran: Execution::Unknown };
                self.finish(id, Err(late));
            }
        }
        count
    }

    /// The connection has ended: fails all calls, and forgets what was not written.
    pub(super) fn end(&mut self) {
        let written = self.before + self.out_written as u64;
        while let Some(id) = self.order.pop_front() {
            let Some(call) = self.calls.get_mut(id) else { continue };
            call.is_open = false;
            let ran = if call.begins < written { Execution::Unknown } else { Execution::No };
            match call.progress {
                Progress::Waiting(_) => {
                    self.finish(id, Err(EngineError { cause: Cause::Connection, ran }));
                }
                Progress::Done(_) => {}
                Progress::Abandoned => _ = self.calls.remove(id),
            }
        }
        self.out = Vec::new();
        (self.out_written, self.before) = (0, 0);
    }

    /// Whom to wake. They must not be woken, nor dropped, while a lock is held.
    pub(super) fn woken(&mut self) -> Vec<Waker> {
        std::mem::take(&mut self.woken)
    }
}

/// Somebody asked for a call that does not exist: a bug.
const GONE: EngineError = EngineError { cause: Cause::Script, ran: Execution::Unknown };

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::clock::monotonic;

    const NO_REPLY: Poll<Result<Value, EngineError>> = Poll::Pending;

    fn lost(cause: Cause, ran: Execution) -> Poll<Result<Value, EngineError>> {
        Poll::Ready(Err(EngineError { cause, ran }))
    }

    fn word(text: &'static str) -> impl FnOnce(&mut Vec<u8>) {
        move |out| out.extend_from_slice(text.as_bytes())
    }

    struct Rig {
        calls: Calls,
        now: Instant,
    }

    impl Rig {
        fn new() -> Self {
            Self { calls: Calls::default(), now: monotonic() }
        }

        fn push(&mut self, text: &'static str, ms: u64) -> usize {
            let time = Time { until: self.now + Duration::from_millis(ms), is_short: false };
            self.calls.push(time, false, word(text))
        }

        fn poll(&mut self, id: usize) -> Poll<Result<Value, EngineError>> {
            self.calls.poll(id, &mut Context::from_waker(Waker::noop()))
        }

        fn expire(&mut self, ms: u64) -> usize {
            self.calls.expire(self.now + Duration::from_millis(ms))
        }

        fn is_empty(&self) -> bool {
            let calls = &self.calls;
            calls.calls.is_empty() && calls.order.is_empty() && calls.waiting == 0
        }
    }

    #[test]
    fn replies_go_to_the_calls_in_the_order_of_their_writing() {
        let mut rig = Rig::new();
        let (a, b) = (rig.push("a", 50), rig.push("b", 50));
        assert_eq!(rig.calls.unwritten(), b"ab");
        assert_eq!(rig.poll(b), NO_REPLY);
        rig.calls.wrote(2);
        assert_eq!(rig.calls.answer(Value::Int(1)), Some(true));
        assert_eq!((rig.poll(b), rig.calls.woken().len()), (NO_REPLY, 0));
        assert_eq!(rig.calls.answer(Value::Int(2)), Some(true));
        assert_eq!((rig.poll(b), rig.calls.woken().len()), (Poll::Ready(Ok(Value::Int(2))), 1));
        assert_eq!(rig.poll(a), Poll::Ready(Ok(Value::Int(1))));
        assert!(rig.is_empty());
        assert_eq!(rig.calls.answer(Value::Nil), None, "nobody asked");
    }

    #[test]
    fn a_late_reply_is_not_given_to_the_next_call() {
        let mut rig = Rig::new();
        let (a, b) = (rig.push("a", 50), rig.push("b", 90));
        rig.calls.wrote(2);
        let short = Time { until: rig.now, is_short: true };
        let c = rig.calls.push(short, false, word("c"));
        assert_eq!(rig.expire(49), 0, "of no account");
        assert_eq!(rig.poll(c), lost(Cause::Timeout, Execution::Unknown));
        assert_eq!((rig.expire(50), rig.expire(50)), (1, 0));
        assert_eq!(rig.poll(a), lost(Cause::Timeout, Execution::Unknown));
        assert_eq!(rig.calls.answer(Value::Int(1)), Some(false));
        assert_eq!(rig.calls.answer(Value::Int(2)), Some(true));
        assert_eq!(rig.poll(b), Poll::Ready(Ok(Value::Int(2))));
        assert_eq!(rig.calls.answer(Value::Int(3)), Some(false));
        assert!(rig.is_empty());
    }

    #[test]
    fn a_call_that_nobody_waits_for_keeps_its_place() {
        let mut rig = Rig::new();
        let (a, b, c) = (rig.push("a", 50), rig.push("b", 50), rig.push("c", 50));
        rig.calls.wrote(3);
        rig.calls.abandon(a);
        assert_eq!((rig.calls.waiting(), rig.calls.open()), (2, 3));
        assert_eq!(rig.calls.answer(Value::Int(1)), Some(false));
        assert_eq!(rig.calls.answer(Value::Int(2)), Some(true));
        // Answered, and then abandoned.
        rig.calls.abandon(b);
        rig.expire(60);
        // Timed out, and then abandoned.
        rig.calls.abandon(c);
        assert_eq!(rig.calls.answer(Value::Int(3)), Some(false));
        assert!(rig.is_empty());
    }

    #[test]
    fn asking_has_a_reply_of_its_own() {
        let mut rig = Rig::new();
        let time = Time { until: rig.now, is_short: true };
        let id = rig.calls.push(time, true, word("a"));
        assert_eq!(rig.calls.unwritten(), b"*1\r\n$6\r\nASKING\r\na");
        assert_eq!(rig.calls.answer(Value::Okay), Some(false));
        assert_eq!(rig.calls.answer(Value::Int(1)), Some(true));
        assert_eq!(rig.poll(id), Poll::Ready(Ok(Value::Int(1))));
        assert!(rig.is_empty());
    }

    #[test]
    fn only_written_calls_may_have_run_when_the_connection_ends() {
        let mut rig = Rig::new();
        let (a, b, c) = (rig.push("aaa", 50), rig.push("bbb", 50), rig.push("ccc", 50));
        rig.calls.wrote(4);
        rig.calls.end();
        assert_eq!(rig.poll(a), lost(Cause::Connection, Execution::Unknown));
        assert_eq!(rig.poll(b), lost(Cause::Connection, Execution::Unknown), "a part of it");
        assert_eq!(rig.poll(c), lost(Cause::Connection, Execution::No));
        assert!(rig.is_empty() && rig.calls.unwritten().is_empty());
        // What was written before is remembered when the buffer is empty.
        let d = rig.push("d", 50);
        rig.calls.wrote(1);
        let e = rig.push("e", 50);
        rig.calls.end();
        assert_eq!(rig.poll(d), lost(Cause::Connection, Execution::Unknown));
        assert_eq!(rig.poll(e), lost(Cause::Connection, Execution::No));
        assert!(rig.is_empty());
    }
}
