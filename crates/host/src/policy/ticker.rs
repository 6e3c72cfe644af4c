//! The thread that interrupts running guests: it increments wasmtime's epoch, so that each guest
//! yields and its CPU time is checked.
//!
//! While no guest runs the thread rests: a thousand wake-ups a second would cost more CPU time than
//! cached decisions do.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::Thread;
use std::time::Duration;

use wasmtime::EngineWeak;

/// How often a running guest's CPU time is checked.
const TICK: Duration = Duration::from_millis(1);
/// Ticks without a running guest before the thread rests.
const IDLE_TICKS: u32 = 100;
/// The interval of ticks while resting. They notice that the engine is gone, and interrupt a guest
/// whose thread was not scheduled during all the idle ticks.
const REST: Duration = Duration::from_millis(50);

#[derive(Debug, Default)]
pub(super) struct Ticker {
    /// A guest was started or interrupted since the last tick.
    wanted: AtomicBool,
    resting: AtomicBool,
    thread: OnceLock<Thread>,
}

impl Ticker {
    /// Starts ticking for `engine`, until that is gone.
    ///
    /// # Errors
    /// The thread can't be started.
    pub(super) fn start(engine: EngineWeak) -> std::io::Result<Arc<Self>> {
        let ticker = Arc::new(Self::default());
        let theirs = Arc::clone(&ticker);
        let handle = std::thread::Builder::new()
            .name("weir-policy-tick".into())
            .spawn(move || theirs.run(&engine))?;
        // It is empty: only this function sets it.
        let _ = ticker.thread.set(handle.thread().clone());
        Ok(ticker)
    }

    /// Requests ticks: a guest is about to run, or is running.
    pub(super) fn want(&self) {
        // Read before it is written, so that workers don't contend for the cache line.
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

    /// [`want`](Self::want) writes `wanted` and then reads `resting`. Here the order is reversed,
    /// so at least one of the two sees what the other wrote.
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
