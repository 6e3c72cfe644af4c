//! Ten million counters in memory: what each costs, the longest call while they come, while they
//! are saved and while they expire, and what a snapshot and its restoration take.
//!
//! `cargo bench --bench counters`, or with another number of counters as its argument. It needs
//! 3 GiB of memory and 600 MB of disk for ten million.

#![allow(
    clippy::expect_used,
    clippy::missing_docs_in_private_items,
    missing_docs,
    reason = "a benchmark may fail loudly"
)]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use weir::clock::Clock;
use weir::engine::{
    Cell, Cells, EmbeddedSettings, Engine, Key, Kind, Part, Program, Settings, SnapshotSettings,
    Space,
};
use weir::telemetry::Metrics;

/// The limit refills within this time, and its counters expire soon after.
const PERIOD: Duration = Duration::from_secs(3_600);
const START_US: i64 = 1_700_000_000_000_000;

static GCRA: Program = Program {
    name: "gcra",
    text: include_str!("../lua/gcra.lua"),
    kind: Kind::Numbers,
    state: 3,
    numbers: 4,
};

fn main() {
    let count = std::env::args().skip(1).find_map(|argument| argument.parse().ok());
    let count: u64 = count.unwrap_or(10_000_000);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("weir.snapshot");
    let clock = Clock::virtual_at(START_US);
    let (engine, cells) = (Arc::new(engine(&path, &clock)), Calls::new());
    let before = resident_kib();

    let longest = Longest::default().of(0..count, |number| cells.take(&engine, number));
    let each = (resident_kib() - before) * 1024 / count;
    println!("{count} counters: {each} bytes of memory each");
    longest.print("new counters");
    Longest::default()
        .of(0..count / 10, |number| cells.take(&engine, number))
        .print("known counters");

    let beside = |work: &(dyn Fn() + Sync), number_of: &dyn Fn(u64) -> u64| {
        let working = AtomicBool::new(true);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                work();
                working.store(false, Ordering::Relaxed);
            });
            let busy = (0..).take_while(|_| working.load(Ordering::Relaxed));
            Longest::default().of(busy, |number| cells.take(&engine, number_of(number)))
        })
    };
    let save = || {
        let saved = engine.save().expect("a writable folder").expect("counters to save");
        println!("saved {} MB in {:?}", saved.bytes >> 20, saved.took);
    };
    beside(&save, &|number| number % count).print("known counters during the save");

    let began = Instant::now();
    engine.release_snapshot();
    let restored = self::engine(&path, &clock);
    restored.restore();
    println!("restored in {:?}", began.elapsed());
    drop(restored);

    clock.step(i64::try_from(2 * PERIOD.as_micros()).unwrap_or(i64::MAX));
    let sweep = || (0..500).for_each(|_| engine.sweep());
    beside(&sweep, &|number| number % 1_000).print("known counters while all others expire");
    let began = Instant::now();
    trim();
    println!("memory given back in {:?}", began.elapsed());
    println!("{} MiB are left", (resident_kib().saturating_sub(before)) >> 10);
}

fn engine(path: &Path, clock: &Clock) -> Engine {
    let snapshot = SnapshotSettings { path: path.to_owned(), every: Duration::from_secs(5) };
    let settings =
        EmbeddedSettings { snapshot: Some(snapshot), ..EmbeddedSettings::new(1_000_000_000) };
    Engine::build(&Settings::Embedded(settings), clock.clone(), &Metrics::new(1))
        .expect("an engine in memory")
}

/// Takes of one GCRA limit.
struct Calls(Cell);

impl Calls {
    fn new() -> Self {
        let period_us = i64::try_from(PERIOD.as_micros()).unwrap_or(i64::MAX);
        let space = Arc::new(Space { text: "bench/gcra/1h".into(), digest: 1 });
        Self(Cell {
            program: &GCRA,
            key: Key { tag: 0, key: 0, space },
            unit_us: 1,
            shadow: false,
            part: Part::Alone,
            cost: 1,
            numbers: [1_000, period_us, 1_000, 0, 0, 0, 0],
            member: 0,
        })
    }

    fn take(&self, engine: &Engine, number: u64) {
        // As a digest would be: every bit depends on the number.
        let digest = u128::from(number)
            .wrapping_add(1)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
        let key =
            Key { tag: digest ^ (digest >> 64), key: digest, space: Arc::clone(&self.0.key.space) };
        let Engine::Embedded(engine) = engine else { return };
        let cells = Cells::from_iter([Cell { key, ..self.0.clone() }]);
        assert!(engine.take(&cells).is_ok_and(|taken| taken.admitted));
    }
}

/// How long calls took.
#[derive(Default)]
struct Longest {
    calls: u64,
    longest: Duration,
    /// The longest call by CPU time, which counts no other thread's turn on this core.
    longest_cpu: Duration,
    above: u64,
    total: Duration,
}

impl Longest {
    fn of(mut self, numbers: impl Iterator<Item = u64>, mut call: impl FnMut(u64)) -> Self {
        for number in numbers {
            let (began, cpu) = (Instant::now(), weir::clock::thread_cpu());
            call(number);
            let (took, cpu) = (began.elapsed(), weir::clock::thread_cpu() - cpu);
            self.calls += 1;
            self.total += took;
            self.longest = self.longest.max(took);
            self.longest_cpu = self.longest_cpu.max(cpu);
            self.above += u64::from(took > Duration::from_millis(1));
        }
        self
    }

    fn print(&self, what: &str) {
        println!(
            "{what}: {} calls, {:?} on average, longest {:?} ({:?} of CPU time), {} above 1 ms",
            self.calls,
            self.total / u32::try_from(self.calls.max(1)).unwrap_or(u32::MAX),
            self.longest,
            self.longest_cpu,
            self.above
        );
    }
}

/// Memory of this process, in KiB.
fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// Has the allocator give back what it does not use, as the proxy does after many have expired.
#[allow(unsafe_code, reason = "a call of the C library without a safe wrapper")]
fn trim() {
    // SAFETY: malloc_trim may be called at any time and from any thread.
    unsafe { libc::malloc_trim(0) };
}
