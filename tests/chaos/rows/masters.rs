//! Rows 1 to 3: one of three masters is killed, frozen, or can't be reached any more, by all or by
//! some.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::Run;
use crate::load::{Load, Log, Sent, Target, p99, slowest};
use crate::report::{Line, ms, s};
use crate::stage::{BACK_WITHIN, NODE_TIMEOUT, PROXIES, Setting, Stage, TIGHT};

/// The shard whose master is lost.
const LOST: usize = 0;
/// Time that the suite's own machine may add to a response.
const SLACK: Duration = Duration::from_millis(25);
/// A response that waited for nobody.
const AT_ONCE: Duration = Duration::from_millis(5);
/// What the fault may add to the other shards' slowest requests but one in a hundred.
const ADDED: Duration = Duration::from_millis(5);
/// The breakers are open this long after the fault: after three calls in a row without an answer.
const OPEN_AFTER: Duration = Duration::from_secs(1);
/// The time in which a master that is cut off stops serving: it asks a node of which it heard
/// nothing for half of node_timeout, waits node_timeout for the answer, and looks at this now and
/// then.
const NOTICED_WITHIN: Duration = Duration::from_secs(4);
/// Decisions in a row that show that a shard serves again.
const SERVES: usize = 20;

const REQUIRED: &str = "other shards: no error, p99 within 5 ms of before; its own requests answered within the deadline, and at once when the breaker is open; back within node_timeout + 4 s; at most 0.1 % of a limit too many";

#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    Kill,
    Freeze,
    Silence,
}

pub fn killed(run: &Run) -> Vec<Line> {
    let done = "kill -9 of a master, which does not come back";
    vec![lose(run, Fault::Kill, Line::new("1", done, REQUIRED))]
}

pub fn frozen(run: &Run) -> Vec<Line> {
    let done = "SIGSTOP of a master until its replica has taken over, then SIGCONT";
    vec![lose(run, Fault::Freeze, Line::new("2", done, REQUIRED))]
}

pub fn silent(run: &Run) -> Vec<Line> {
    let done = format!(
        "a master's client port falls silent for {}, while the other nodes still see it",
        s(silence(run))
    );
    let required = REQUIRED.replace("back within", "after the silence back within");
    vec![lose(run, Fault::Silence, Line::new("3", done, required))]
}

/// Longer than the time in which a lost shard is back: here nobody takes over.
fn silence(run: &Run) -> Duration {
    run.pick(Duration::from_secs(2), Duration::from_secs(8))
}

fn lose(run: &Run, fault: Fault, mut line: Line) -> Line {
    let mut rng = run.rng(line.number);
    let deadline = run.pick(Duration::from_secs(1), Duration::from_millis(50));
    let relayed: &[usize] = if fault == Fault::Silence { &[LOST] } else { &[] };
    let mut stage = Stage::start(run, &Setting { relayed, ..Setting::new(deadline) });
    let targets = stage.targets(&[("/huge", 6), ("/tight", 2)], &mut rng);
    let calm = run.pick(Duration::from_secs(1), Duration::from_secs(8));
    let unknown = stage.unknown();
    let load = Load::start(&stage.addresses(), &targets, run.pick(180, 900), &mut rng);
    load.await_decided("a calm start", SERVES, |_| true);
    std::thread::sleep(calm);

    let began = Instant::now();
    let ended = apply(run, fault, &mut stage, &load);
    std::thread::sleep(calm);
    let log = load.stop();
    if fault == Fault::Kill {
        stage.cluster.nodes[LOST].start_again();
    }
    stage.book(&log);
    let calm_from = began - calm;
    others(run, &mut line, &log, calm_from, began, ended);
    own(run, &mut line, &log, deadline, began, ended);
    counters(&mut line, &mut stage, &targets, unknown);
    line
}

/// Causes the fault, and waits until the lost shard serves again. Returns when the fault ended, or
/// began, if it lasts.
fn apply(run: &Run, fault: Fault, stage: &mut Stage, load: &Load) -> Instant {
    let began = Instant::now();
    let serves =
        || load.await_decided("the lost shard serves", SERVES, |target| target.shard == LOST);
    match fault {
        Fault::Kill => {
            stage.cluster.nodes[LOST].kill();
            fails(load, began);
            serves();
            began
        }
        Fault::Freeze => {
            let node = &stage.cluster.nodes[LOST];
            node.signal(Signal::STOP);
            fails(load, began);
            serves();
            // Longer than node_timeout in any case.
            std::thread::sleep(
                (began + NODE_TIMEOUT * 2).saturating_duration_since(Instant::now()),
            );
            node.signal(Signal::CONT);
            std::thread::sleep(run.pick(Duration::from_secs(1), NODE_TIMEOUT));
            began
        }
        Fault::Silence => {
            stage.relays[&LOST].silence(true);
            std::thread::sleep(silence(run));
            let ended = Instant::now();
            stage.relays[&LOST].silence(false);
            serves();
            ended
        }
    }
}

/// The other shards notice nothing.
fn others(
    run: &Run,
    line: &mut Line,
    log: &Log,
    calm_from: Instant,
    began: Instant,
    ended: Instant,
) {
    let until = back(log, began).max(ended);
    let of = |from: Instant, to: Instant| {
        log.of(|target, sent| target.shard != LOST && sent.at >= from && sent.at < to)
    };
    let all = log.of(|target, _| target.shard != LOST);
    let failed = all.iter().filter(|sent| !sent.decided()).count();
    line.judge(failed == 0, format!("other shards: {failed} errors in {} requests", all.len()));
    let (before, during) = (p99(&of(calm_from, began)), p99(&of(began, until)));
    line.time(
        run,
        during <= before + ADDED,
        format!("their p99 {} before, {} during", ms(before), ms(during)),
    );
}

/// When the last request to the lost shard that Redis did not decide was answered.
fn back(log: &Log, began: Instant) -> Instant {
    let failed = log.of(|target, sent| target.shard == LOST && !sent.decided());
    failed.iter().map(Sent::ended).max().unwrap_or(began)
}

/// The lost shard's own requests.
fn own(run: &Run, line: &mut Line, log: &Log, deadline: Duration, began: Instant, ended: Instant) {
    let back = back(log, began);
    let during = log.of(|target, sent| target.shard == LOST && sent.at >= began && sent.at <= back);
    let unanswered = during.iter().filter(|sent| !matches!(sent.status, 200 | 429 | 503)).count();
    let slowest = slowest(&during);
    line.judge(
        unanswered == 0,
        format!("its own: {} of {} answered", during.len() - unanswered, during.len()),
    );
    line.time(run, slowest <= deadline + SLACK, format!("the slowest in {}", ms(slowest)));
    let open: Vec<Sent> = during
        .iter()
        .filter(|sent| sent.status == 503 && sent.at >= began + OPEN_AFTER)
        .copied()
        .collect();
    let refused = p99(&open);
    line.time(
        run,
        refused <= AT_ONCE,
        format!("p99 {} of {} with an open breaker", ms(refused), open.len()),
    );
    let away = back.saturating_duration_since(ended);
    line.time(run, away <= BACK_WITHIN, format!("back after {}", s(away)));
}

/// What the counters say in the end.
fn counters(line: &mut Line, stage: &mut Stage, targets: &[Target], unknown_before: u64) {
    let (tight, huge): (Vec<Target>, Vec<Target>) =
        targets.iter().cloned().partition(|target| target.path == "/tight");
    stage.await_deciding(&tight);
    let exceeded = stage.exceeded(&tight);
    line.judge(
        exceeded * 1_000 <= TIGHT,
        format!("limits of {TIGHT} exceeded by at most {exceeded}"),
    );
    let difference = stage.difference(&huge);
    let unknown = stage.unknown() - unknown_before;
    line.judge(
        difference.more <= unknown && difference.astray == 0,
        format!("{}, {unknown} takes with an unknown outcome", difference.text()),
    );
}

/// The master is cut off from the other nodes and from two of three proxies. It goes on serving the
/// third one until it notices that it is alone; what it admits then is lost when it comes back.
pub fn partition(run: &Run) -> Vec<Line> {
    let mut rng = run.rng("3b");
    let deadline = run.pick(Duration::from_secs(1), Duration::from_millis(50));
    let setting = Setting { partition: true, ..Setting::new(deadline) };
    let mut stage = Stage::start(run, &setting);
    let targets = stage.targets(&[("/huge", 6)], &mut rng);
    let unknown = stage.unknown();
    let rate = run.pick(180, 900);
    let load = Load::start(&stage.addresses(), &targets, rate, &mut rng);
    load.await_decided("a calm start", SERVES, |_| true);
    let began = Instant::now();
    let partition = stage.partition.as_ref().expect("a partition");
    partition.begin();
    fails(&load, began);
    load.await_decided("the lost shard serves", SERVES * 3, |target| target.shard == LOST);
    // The master notices that it is alone, and the proxy that still reaches it finds the new one.
    std::thread::sleep(NODE_TIMEOUT);
    partition.end();
    load.await_decided("requests after the partition", SERVES, |_| true);
    std::thread::sleep(run.pick(Duration::from_millis(500), NODE_TIMEOUT));
    let log = load.stop();
    stage.book(&log);
    vec![partitioned(run, &mut stage, &log, &targets, (began, rate, unknown))]
}

/// What came of the partition.
fn partitioned(
    run: &Run,
    stage: &mut Stage,
    log: &Log,
    targets: &[Target],
    (began, rate, unknown): (Instant, u32, u64),
) -> Line {
    let mut line = Line::new(
        "3b",
        "a master cut off from all nodes and two of three proxies, until its replica has taken over",
        "at most rate x node_timeout admissions lost, the rate being that of the proxy that still reaches it; other shards: no error; back within node_timeout + 4 s",
    );
    let others = log.of(|target, _| target.shard != LOST);
    let failed = others.iter().filter(|sent| !sent.decided()).count();
    line.judge(failed == 0, format!("other shards: {failed} errors in {} requests", others.len()));
    let own = log.of(|target, sent| target.shard == LOST && sent.proxy == 0 && sent.at >= began);
    let alone = own.iter().filter(|sent| !sent.decided()).map(|sent| sent.at).min();
    let served = own.iter().filter(|sent| alone.is_some_and(|at| sent.at < at)).map(|sent| sent.at);
    let served = served.max().map_or(Duration::ZERO, |at| at.duration_since(began));
    line.tell(format!("it went on serving one proxy for {}", s(served)));
    let away = back(log, began).saturating_duration_since(began);
    line.time(run, away <= BACK_WITHIN, format!("back after {}", s(away)));
    let lane = f64::from(rate) / (PROXIES * 3) as f64;
    let bound = lane * NODE_TIMEOUT.as_secs_f64();
    let difference = stage.difference(targets);
    line.by_design(
        difference.less as f64 <= bound,
        format!("{} admissions lost, with a bound of {bound:.0}", difference.less),
    );
    line.judge(
        difference.less as f64 <= lane * NOTICED_WITHIN.as_secs_f64(),
        format!("that is {:.1} s of the proxy's requests", difference.less as f64 / lane),
    );
    let unknown = stage.unknown() - unknown;
    line.judge(
        difference.more <= unknown && difference.astray == 0,
        format!("{}, {unknown} takes with an unknown outcome", difference.text()),
    );
    line
}

/// Waits until a request to the lost shard fails.
fn fails(load: &Load, began: Instant) {
    let failed =
        |target: &Target, sent: &Sent| target.shard == LOST && sent.at >= began && !sent.decided();
    crate::harness::eventually("the lost shard fails", || {
        if load.so_far(failed).is_empty() { Err("no request failed".into()) } else { Ok(()) }
    });
}
