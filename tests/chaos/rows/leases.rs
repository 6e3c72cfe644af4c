//! Row 12: limits with leases, and children of limits, while proxies are killed with units in hand
//! and masters are lost with what they granted.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::Run;
use crate::load::{Load, Target};
use crate::report::{Line, s};
use crate::stage::{Route, Setting, Stage, TIGHT};

/// How long a lease lives.
const LIFE: Duration = Duration::from_secs(2);
/// The shard whose master is lost.
const LOST: usize = 0;
/// Requests of a target that Redis decides before and after a fault.
const SERVES: usize = 10;

/// A limit of [`TIGHT`] units in each algorithm that has leases. A bucket's burst at the store is
/// smaller by what flows in during a life, rounded up: one unit.
const LEASED: [(&str, &str, u64); 5] = [
    ("window", "fixed_window", TIGHT),
    ("counter", "sliding_window_counter", TIGHT),
    ("log", "sliding_window_log", TIGHT),
    ("ring", "sliding_window_buckets", TIGHT),
    ("bucket", "gcra", TIGHT + 1),
];
/// A parent of [`TIGHT`] units with one child for each tenant, which is sure of a tenth.
const CHILDREN: &str = "children";

pub fn all(run: &Run) -> Vec<Line> {
    vec![killed_proxy(run), killed_master(run)]
}

pub(super) fn routes() -> Vec<Route> {
    let leased = LEASED.map(|(name, algorithm, quota)| {
        let life = LIFE.as_secs();
        let limit = format!(
            "algorithm = \"{algorithm}\", quota = {quota}, period = \"30d\", lease = \"{life}s\""
        );
        Route { name, limits: vec![limit], more: "" }
    });
    let children = format!(
        "algorithm = \"gcra\", quota = {TIGHT}, period = \"400d\", key = \"{{header.x-tenant}}\", children = {{ key = \"{{header.x-tenant}}\", assured = {} }}",
        TIGHT / 10
    );
    let children = Route { name: CHILDREN, limits: vec![children], more: "" };
    leased.into_iter().chain([children]).collect()
}

/// A stage with these limits, and a tenant for each of them on each shard.
fn stage(run: &Run, replicas: bool, rng: &mut fastrand::Rng) -> (Stage, Vec<Target>) {
    let routes = routes();
    let deadline = run.pick(Duration::from_secs(1), Duration::from_millis(50));
    let setting = Setting { replicas, routes: &routes, ..Setting::new(deadline) };
    let mut stage = Stage::start(run, &setting);
    let paths = PATHS.map(|path| (path, 1));
    let targets = stage.targets(&paths, rng);
    (stage, targets)
}

/// The paths of those routes.
pub(super) const PATHS: [&str; 6] =
    ["/window", "/counter", "/log", "/ring", "/bucket", "/children"];

/// What all holders had in hand is spent, given back or lapsed after this.
fn lapse() {
    std::thread::sleep(LIFE * 2);
}

/// Judges by how much limits were exceeded, and tells how much of them was never used. A child's
/// own is charged to its parent, into debt if need be, so it may get as much on top.
pub(super) fn kept(line: &mut Line, stage: &mut Stage, targets: &[Target], more: u64) {
    let (children, leased): (Vec<Target>, Vec<Target>) =
        targets.iter().cloned().partition(|target| target.path == "/children");
    stage.exceeded(&leased);
    lapse();
    let exceeded = stage.exceeded(&leased);
    line.judge(
        exceeded <= more,
        format!("leased limits of {TIGHT} exceeded by at most {exceeded}"),
    );
    let least = leased.iter().map(|target| stage.admitted(target)).min().unwrap_or(0);
    line.tell(format!("at least {least} of each were used"));
    let exceeded = stage.exceeded(&children);
    let own = TIGHT / 10;
    line.judge(
        exceeded <= own + more,
        format!("parents of {TIGHT} exceeded by at most {exceeded}, with {own} assured"),
    );
}

fn killed_proxy(run: &Run) -> Line {
    let mut rng = run.rng("12a");
    let mut line = Line::new(
        "12a",
        "kill -9 of proxies with leases in hand, under load",
        "no limit is exceeded; what a proxy had in hand is out of use until it lapses",
    );
    let (mut stage, targets) = stage(run, false, &mut rng);
    let load = Load::start(&stage.addresses(), &targets, run.pick(360, 1_200), &mut rng);
    load.await_decided("a calm start", SERVES, |_| true);
    // They come back at other addresses, which the load does not know.
    for proxy in 0..run.pick(1, 2) {
        std::thread::sleep(LIFE);
        stage.restart(proxy, Signal::KILL);
    }
    std::thread::sleep(LIFE);
    let taken = stage.metric("weir_lease_units_total{event=\"taken\"}");
    stage.book(&load.stop());
    line.judge(taken > 0, format!("{taken} units were leased by those that live"));
    kept(&mut line, &mut stage, &targets, 0);
    line
}

fn killed_master(run: &Run) -> Line {
    let mut rng = run.rng("12b");
    // Half of what is left is granted at most, to the first holder.
    let lost = TIGHT / 2;
    let mut line = Line::new(
        "12b",
        "kill -9 of a master that has granted leases, which does not come back",
        format!(
            "units in hand are spent while nobody answers; limits exceeded by at most a grant that was not replicated ({lost})"
        ),
    );
    let (mut stage, targets) = stage(run, true, &mut rng);
    let load = Load::start(&stage.addresses(), &targets, run.pick(360, 1_200), &mut rng);
    load.await_decided("a calm start", SERVES, |_| true);
    std::thread::sleep(LIFE);
    let began = Instant::now();
    stage.cluster.nodes[LOST].kill();
    let failed = |target: &Target, sent: &crate::load::Sent| {
        target.shard == LOST && sent.at >= began && !sent.decided()
    };
    crate::harness::eventually("the lost shard fails", || {
        if load.so_far(failed).is_empty() { Err("no request failed".into()) } else { Ok(()) }
    });
    load.await_decided("the lost shard serves", SERVES, |target| target.shard == LOST);
    std::thread::sleep(LIFE);
    let log = load.stop();
    stage.cluster.nodes[LOST].start_again();
    stage.book(&log);
    let during = log.of(|target, sent| {
        target.shard == LOST && target.path != "/children" && sent.at >= began && sent.status == 503
    });
    let first = during.iter().map(|sent| sent.at).min().unwrap_or(began);
    line.tell(format!("the first 503 of a leased limit came after {}", s(first - began)));
    let others = log.of(|target, sent| target.shard != LOST && !sent.decided());
    line.judge(others.is_empty(), format!("other shards: {} errors", others.len()));
    stage.await_deciding(&targets);
    kept(&mut line, &mut stage, &targets, lost);
    line
}
