//! `make soak`: hours of mixed traffic on proxies that are never restarted, with a fault in the
//! middle of every ten minutes. What grows, what slows down and what is miscounted shows.
//!
//! It goes on where it was stopped, on whichever machine: what each piece saw is a line of a file
//! in the repository, and `page` draws them all. A new run begins with new processes, so memory is
//! compared within a run.

mod faults;
mod page;
mod pieces;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::Run;
use crate::load::{Load, Log, Sent, Target, p99};
use crate::stage::{HUGE, Route, Setting, Stage};

use faults::Fault;
use pieces::Piece;

/// Requests a second: what leaves half of two cores free.
const RATE: u32 = 300;
/// Decisions in a row that show that all serve.
const SERVES: usize = 20;
/// The units of a leased limit that is used up in some minutes. It refuses from then on.
const LEASED: u64 = 1_000;
/// The deadline of a call of the store: long enough for a planned failover. A program that was not
/// built for a release is slower than that on a busy machine.
const DEADLINE: Duration = Duration::from_millis(250);
const DEADLINE_DEBUG: Duration = Duration::from_secs(8);

/// What is asked for.
pub struct Soak {
    pub hours: f64,
    /// How long a piece lasts.
    pub piece: Duration,
    /// Where each piece is a line.
    pub state: PathBuf,
    /// The commit that the program is built from.
    pub commit: String,
    /// Where the page goes, with its picture beside it in `pictures`.
    pub page: Option<PathBuf>,
}

/// Runs what is left of the hours. Returns whether everything was as promised.
pub fn run(run: &Run, soak: &Soak) -> bool {
    let mut pieces = pieces::read(&soak.state);
    let wanted = (soak.hours * 3_600.0 / soak.piece.as_secs_f64()).ceil() as usize;
    if pieces.len() < wanted {
        let mut going = Going::start(run);
        let of_run = pieces.iter().map(|piece| piece.run + 1).max().unwrap_or(0);
        while pieces.len() < wanted {
            let faults = faults::of(soak.piece);
            let fault = faults[pieces.len() % faults.len()];
            let at = (of_run, pieces.len());
            let seen = AssertUnwindSafe(|| going.piece(fault, soak.piece, at));
            let piece = catch_unwind(seen).unwrap_or_else(|_| Piece::failed(of_run, fault.name()));
            let piece = Piece { commit: soak.commit.clone(), ..piece };
            let has_failed = piece.has_failed;
            eprintln!("soak: {} of {wanted}: {}", pieces.len() + 1, piece.text());
            pieces::append(&soak.state, &piece);
            pieces.push(piece);
            write(&pieces, soak);
            if has_failed {
                break;
            }
        }
    }
    write(&pieces, soak);
    let wrong: Vec<String> = pieces.iter().flat_map(Piece::wrong).collect();
    wrong.iter().for_each(|line| eprintln!("soak: {line}"));
    wrong.is_empty()
}

fn write(pieces: &[Piece], soak: &Soak) {
    if let Some(path) = &soak.page {
        page::write(path, pieces, soak);
    }
}

/// What goes on from piece to piece.
struct Going {
    stage: Stage,
    targets: Vec<Target>,
    rng: fastrand::Rng,
    /// Of all pieces so far.
    so_far: SoFar,
}

/// Sums of all pieces of a run so far.
#[derive(Clone, Copy, Debug, Default)]
struct SoFar {
    /// Units charged too much, and units missing.
    more: u64,
    less: u64,
    unknown: u64,
    upstream_astray: u64,
    leased_over: u64,
}

impl Going {
    fn start(run: &Run) -> Self {
        let mut rng = run.rng("soak");
        let routes = routes();
        let deadline = if run.weir.is_some() { DEADLINE } else { DEADLINE_DEBUG };
        let setting = Setting { routes: &routes, ..Setting::new(deadline) };
        let mut stage = Stage::start(run, &setting);
        let mut targets =
            stage.targets(&[("/huge", 4), ("/several", 4), ("/ever", 4), ("/leased", 1)], &mut rng);
        // Their counters go away, so that no shard is theirs for sure.
        for path in ["/rate", "/bucket", "/log", "/places"] {
            let target = |shard| Target { path, tenant: format!("{:08x}", rng.u32(..)), shard };
            targets.extend((0..3).map(target));
        }
        let so_far = SoFar { unknown: stage.unknown(), ..SoFar::default() };
        Self { stage, targets, rng, so_far }
    }

    /// The targets whose counters show what was charged.
    fn exact(&self) -> Vec<Target> {
        let exact = |target: &&Target| ["/huge", "/several", "/ever"].contains(&target.path);
        self.targets.iter().filter(exact).cloned().collect()
    }

    /// One piece: calm, a fault, and calm again.
    fn piece(&mut self, fault: Fault, lasts: Duration, (run, number): (usize, usize)) -> Piece {
        let load = Load::start(&self.stage.addresses(), &self.targets, RATE, &mut self.rng);
        let began = Instant::now();
        load.await_decided("all serve", SERVES, |_| true);
        std::thread::sleep((began + lasts / 2).saturating_duration_since(Instant::now()));
        let hit = Instant::now();
        faults::apply(fault, &mut self.stage, &load, number);
        // Each proxy finds by itself that a shard serves again.
        let exact = self.exact();
        self.stage.await_deciding(&exact);
        load.await_decided("all serve again", SERVES, |_| true);
        let over = Instant::now();
        std::thread::sleep((began + lasts).saturating_duration_since(Instant::now()));
        let (memory_kib, descriptors) = (self.stage.memory_kib(), descriptors(&self.stage));
        let log = load.stop();
        self.stage.book(&log);
        self.stage.await_deciding(&exact);
        let difference = self.stage.difference(&exact);
        let leased = self.targets.iter().filter(|target| target.path == "/leased");
        let over_leased = leased.map(|target| self.stage.admitted(target).saturating_sub(LEASED));
        let now = SoFar {
            more: difference.more,
            less: difference.less,
            unknown: self.stage.unknown(),
            upstream_astray: difference.astray,
            leased_over: over_leased.max().unwrap_or(0),
        };
        let before = std::mem::replace(&mut self.so_far, now);
        Piece {
            run,
            commit: String::new(),
            fault: fault.name().to_owned(),
            seconds: began.elapsed().as_secs_f64(),
            requests: log.sent.len() as u64,
            refused: count(&log, |sent| sent.status == 429),
            undecided: count(&log, |sent| !sent.decided()),
            undecided_calm: count(&log, |sent| {
                !sent.decided() && (sent.ended() < hit || sent.at > over)
            }),
            p50_us: half(&log).as_micros() as u64,
            p99_us: p99(&log.of(|_, sent| sent.ended() < hit)).as_micros() as u64,
            memory_kib,
            descriptors,
            keys: self.stage.cluster.keys().max(0) as u64,
            more: now.more.saturating_sub(before.more),
            less: now.less.saturating_sub(before.less),
            unknown: now.unknown - before.unknown,
            upstream_astray: now.upstream_astray.saturating_sub(before.upstream_astray),
            leased_over: now.leased_over.saturating_sub(before.leased_over),
            has_failed: false,
        }
    }
}

/// Limits of every kind, beside those that each stage has.
fn routes() -> Vec<Route> {
    let fixed = "algorithm = \"fixed_window\", period = \"400d\"";
    let route = |name, limits: &[String]| Route { name, limits: limits.to_vec(), more: "" };
    vec![
        route(
            "several",
            &[
                format!("{fixed}, quota = {HUGE}"),
                format!(
                    "algorithm = \"sliding_window_counter\", period = \"400d\", quota = {HUGE}"
                ),
                format!("{fixed}, quota = {HUGE}, key = \"other/{{header.x-tenant}}\""),
            ],
        ),
        route("ever", &[format!("algorithm = \"quota\", calendar = \"forever\", quota = {HUGE}")]),
        route("leased", &[format!("{fixed}, quota = {LEASED}, lease = \"200ms\"")]),
        // Half of what comes is refused.
        route("rate", &["algorithm = \"gcra\", quota = 3, period = \"1s\", burst = 5".to_owned()]),
        route(
            "bucket",
            &["algorithm = \"token_bucket\", quota = 3, period = \"1s\", lease = \"200ms\""
                .to_owned()],
        ),
        route(
            "log",
            &["algorithm = \"sliding_window_log\", quota = 100, period = \"1m\"".to_owned()],
        ),
        route("places", &["algorithm = \"concurrency\", quota = 2".to_owned()]),
    ]
}

fn count(log: &Log, wanted: impl Fn(&Sent) -> bool) -> u64 {
    log.sent.iter().filter(|sent| wanted(sent)).count() as u64
}

/// The median of all response times.
fn half(log: &Log) -> Duration {
    let mut times: Vec<Duration> = log.sent.iter().map(|sent| sent.took).collect();
    times.sort();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

/// The descriptors that all proxies have open.
fn descriptors(stage: &Stage) -> u64 {
    let of = |pid: i32| std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count);
    let each = stage.proxies.iter().map(|weir| of(weir.pid().as_raw_nonzero().get()));
    each.sum::<usize>() as u64
}
