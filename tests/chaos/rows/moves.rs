//! Row 4: what an operator does on a cluster that is in use, and what must cost no request.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::Run;
use crate::harness::eventually;
use crate::harness::redis::Value;
use crate::load::{Load, Log, Target, slowest};
use crate::report::{Line, ms};
use crate::stage::{HUGE, NODE_TIMEOUT, Route, Setting, Stage};

const REQUIRED: &str = "no failed request, counters exact";
/// Masters vote for a replica of the same master once in two node timeouts. A failover that asks
/// sooner is refused, and Redis holds all calls to the shard for up to ten seconds meanwhile.
const BETWEEN_VOTES: Duration =
    NODE_TIMEOUT.saturating_mul(2).saturating_add(Duration::from_millis(500));
/// Requests to the moving shard between two steps of moving a slot.
const MEANWHILE: usize = 2;
/// Redis gives a failover up after five seconds.
const ASK_AGAIN: Duration = Duration::from_secs(11);

pub fn all(run: &Run) -> Vec<Line> {
    let mut rng = run.rng("4");
    // docs/operations.md says to set at least 250 ms before a planned failover.
    let deadline = run.pick(Duration::from_secs(8), Duration::from_millis(250));
    let fixed = "algorithm = \"fixed_window\", period = \"400d\"";
    let several = Route {
        name: "several",
        // Two counters on one slot, and one elsewhere.
        limits: vec![
            format!("{fixed}, quota = {HUGE}"),
            format!("algorithm = \"sliding_window_counter\", period = \"400d\", quota = {HUGE}"),
            format!("{fixed}, quota = {HUGE}, key = \"other/{{header.x-tenant}}\""),
        ],
        more: "",
    };
    let setting = Setting { routes: &[several], ..Setting::new(deadline) };
    let mut stage = Stage::start(run, &setting);
    let each = run.pick(6, 30);
    let targets = stage.targets(&[("/huge", each), ("/several", each)], &mut rng);
    let mut under = |line: Line, fault: &mut dyn FnMut(&mut Stage, &Load)| {
        under(run, &mut stage, &targets, &mut rng, line, fault)
    };
    let turns = run.pick(3, 20);
    let flushed = run.pick(Duration::from_secs(2), Duration::from_secs(15));
    let dead = run.pick(Duration::from_secs(1), Duration::from_secs(5));
    vec![
        under(Line::new("4a", format!("{turns} planned failovers"), REQUIRED), &mut |stage, _| {
            failovers(stage, turns)
        }),
        under(
            Line::new(
                "4b",
                "every slot in use of one master moved to another, one after the other, with plans of one and of several limits",
                REQUIRED,
            ),
            &mut reshard,
        ),
        under(
            Line::new(
                "4c",
                format!("SCRIPT FLUSH on every node each second for {} s", flushed.as_secs()),
                REQUIRED,
            ),
            &mut |stage, _| flush(stage, flushed),
        ),
        under(Line::new("4d", "a replica killed", REQUIRED), &mut |stage, _| {
            let replica = (3..6).chain(0..3).find(|node| !stage.leads(*node)).unwrap();
            stage.cluster.nodes[replica].kill();
            std::thread::sleep(dead);
            stage.cluster.nodes[replica].start_again();
        }),
    ]
}

/// Causes a fault under load, and judges the load's requests and the counters.
fn under(
    run: &Run,
    stage: &mut Stage,
    targets: &[Target],
    rng: &mut fastrand::Rng,
    mut line: Line,
    fault: &mut dyn FnMut(&mut Stage, &Load),
) -> Line {
    let load = Load::start(&stage.addresses(), targets, run.pick(150, 600), rng);
    load.await_decided("a calm start", 20, |_| true);
    fault(stage, &load);
    load.await_decided("requests after the fault", 20, |_| true);
    let log = load.stop();
    stage.book(&log);
    let failed = log.of(|_, sent| sent.status != 200);
    line.judge(
        failed.is_empty(),
        if failed.is_empty() {
            format!("all of {} admitted, the slowest in {}", log.sent.len(), ms(slowest(&log.sent)))
        } else {
            format!("of {} requests: {:?}", log.sent.len(), Log::statuses(&log.sent))
        },
    );
    let difference = stage.difference(targets);
    line.judge(difference.exact(), difference.text());
    line
}

/// Fails over one shard after the other, in turns.
fn failovers(stage: &mut Stage, turns: usize) {
    let mut last = [None::<Instant>; 3];
    for turn in 0..turns {
        let shard = turn % 3;
        if let Some(last) = last[shard] {
            std::thread::sleep((last + BETWEEN_VOTES).saturating_duration_since(Instant::now()));
        }
        let next = if stage.leads(shard) { shard + 3 } else { shard };
        failover(stage, next);
        last[shard] = Some(Instant::now());
    }
}

/// Makes a replica the master of its shard, without losing anything.
pub fn failover(stage: &Stage, next: usize) {
    let mut connection = stage.cluster.nodes[next].connect();
    eventually("a replica that is up to date", || {
        let info = connection.ask(&["INFO", "replication"]).text();
        if info.contains("master_link_status:up") { Ok(()) } else { Err(info) }
    });
    let mut asked = None;
    eventually("the failover", || {
        if asked.is_none_or(|at: Instant| at.elapsed() > ASK_AGAIN) {
            asked = Some(Instant::now());
            let _ = connection.command(&["CLUSTER", "FAILOVER"]);
        }
        if stage.leads(next) { Ok(()) } else { Err("it is still a replica".into()) }
    });
}

/// Moves every slot that has counters from one master to another, while its counters are in use.
fn reshard(stage: &mut Stage, load: &Load) {
    let sent = || load.so_far(|target, _| target.shard == 0).len();
    let meanwhile = || {
        let before = sent();
        eventually("requests meanwhile", || {
            if sent() >= before + MEANWHILE { Ok(()) } else { Err("too few".into()) }
        });
    };
    let (from, to) = (stage.master(0), stage.master(1));
    let (mut source, mut target) = (from.connect(), to.connect());
    let ids = [&mut source, &mut target].map(|node| node.ask(&["CLUSTER", "MYID"]).text());
    let keys = source.ask(&["KEYS", "*"]);
    let mut slots = BTreeSet::new();
    for key in keys.list() {
        slots.insert(source.ask(&["CLUSTER", "KEYSLOT", &key.text()]).text());
    }
    let port = to.address.port().to_string();
    for slot in &slots {
        target.ask(&["CLUSTER", "SETSLOT", slot, "IMPORTING", &ids[0]]);
        source.ask(&["CLUSTER", "SETSLOT", slot, "MIGRATING", &ids[1]]);
        meanwhile();
        loop {
            let keys = source.ask(&["CLUSTER", "GETKEYSINSLOT", slot, "1"]);
            let Some(key) = keys.list().first().map(Value::text) else { break };
            source.ask(&["MIGRATE", "127.0.0.1", &port, &key, "0", "5000"]);
            meanwhile();
        }
        for node in [&mut target, &mut source] {
            node.ask(&["CLUSTER", "SETSLOT", slot, "NODE", &ids[1]]);
        }
    }
}

/// Forgets all scripts each second.
fn flush(stage: &mut Stage, lasting: Duration) {
    let (began, done) = (Instant::now(), AtomicBool::new(false));
    while !done.load(Ordering::SeqCst) {
        for node in &stage.cluster.nodes {
            node.connect().ask(&["SCRIPT", "FLUSH"]);
        }
        std::thread::sleep(Duration::from_secs(1));
        done.store(began.elapsed() >= lasting, Ordering::SeqCst);
    }
}
