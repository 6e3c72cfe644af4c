//! The thread that lets a running guest be stopped: it moves wasmtime's epoch on, so that guests
//! look up and their CPU time is looked at.
//!
//! While no guest runs it rests: a thousand wake-ups a second would take more from a core than the
//! decisions that are remembered.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::Thread;
use std::time::Duration;

use wasmtime::EngineWeak;

/// How often a running guest's CPU time is looked at.
const TICK: Duration = Duration::from_millis(1);
/// Ticks that nobody wanted before the thread rests.
const IDLE_TICKS: u32 = 100;
/// A tick while resting. It ends the thread after its engine, and it meets a guest whose own thread
/// stood still for all the idle ticks.
const REST: Duration = Duration::from_millis(50);

#[derive(Debug, Default)]
pub(super) struct Ticker {
    /// A guest was started, or was met by a tick, since the last tick.
    wanted: AtomicBool,
    resting: AtomicBool,
    thread: OnceLock<Thread>,
}

impl Ticker {
    /// Starts ticking for `engine`, until that is gone.
    ///
    /// # Errors
    /// There is no thread to be had.
    pub(super) fn start(engine: EngineWeak) -> std::io::Result<Arc<Self>> {
        let ticker = Arc::new(Self::default());
        let theirs = Arc::clone(&ticker);
        let handle = std::thread::Builder::new()
            .name("weir-policy-tick".into())
            .spawn(move || theirs.run(&engine))?;
        // Nobody has set it before: it is ours.
        let _ = ticker.thread.set(handle.thread().clone());
        Ok(ticker)
    }

    /// A guest is about to run, or is running: tick.
    pub(super) fn want(&self) {
        // Looked at before it is written, so that workers that all want the same don't fight for
        // the line.
        if !self.wanted.load(Ordering::SeqCst) {
            self.wanted.store(true, Ordering::SeqCst);
        }
        if self.resting.load(Ordering::SeqCst)
            && let Some(thread) = self.thread.get()
        {
            thread.unpark();
        }
    }

    fn run(&self, engine: &EngineWeak) {
        let mut idle = 0;
        loop {
            if idle < IDLE_TICKS {
                std::thread::sleep(TICK);
            } else {
                self.rest();
            }
            match engine.upgrade() {
                Some(engine) => engine.increment_epoch(),
                None => return,
            }
            idle = if self.wanted.swap(false, Ordering::SeqCst) {
                0
            } else {
                (idle + 1).min(IDLE_TICKS)
            };
        }
    }

    /// Whoever wants ticks writes `wanted` and then reads `resting`; here it is the other way
    /// round, so that one of the two sees the other.
    fn rest(&self) {
        self.resting.store(true, Ordering::SeqCst);
        if !self.wanted.load(Ordering::SeqCst) {
            std::thread::park_timeout(REST);
        }
        self.resting.store(false, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::monotonic;

    #[test]
    fn it_rests_when_nobody_wants_it_and_comes_back_at_once() {
        let engine = wasmtime::Engine::default();
        let ticker = Ticker::start(engine.weak()).unwrap();
        let start = monotonic();
        for _ in 0..3 {
            while !ticker.resting.load(Ordering::SeqCst) {
                assert!(start.elapsed() < Duration::from_secs(20), "it never rests");
                std::thread::yield_now();
            }
            ticker.want();
            while ticker.wanted.load(Ordering::SeqCst) {
                assert!(start.elapsed() < Duration::from_secs(20), "it never comes back");
                std::thread::yield_now();
            }
        }
        drop(engine);
        while Arc::strong_count(&ticker) > 1 {
            assert!(start.elapsed() < Duration::from_secs(20), "it outlives its engine");
            std::thread::yield_now();
        }
    }
}
