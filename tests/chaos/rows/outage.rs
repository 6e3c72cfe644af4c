//! Row 5: all of Redis is gone, and comes back empty.

use std::time::{Duration, Instant};

use crate::Run;
use crate::harness::eventually;
use crate::load::{Load, Log, Mark, Sent, Target, p99};
use crate::report::{Line, ms, s};
use crate::stage::{PROXIES, Route, Setting, Stage};

/// What the outage may add to all requests but one in a hundred, while the breaker is open.
const ADDED: Duration = Duration::from_millis(1);
/// The breakers are open this long after the fault.
const OPEN_AFTER: Duration = Duration::from_secs(1);
/// The time from the moment that the cluster accepts writes until no request notices the outage any
/// more.
const CLOSED_WITHIN: Duration = Duration::from_secs(1);
/// The limit that each proxy counts its share of.
const SHARED: u64 = 60;

const ROUTES: [&str; 3] = ["/huge", "/allow", "/local"];

pub fn all(run: &Run) -> Vec<Line> {
    let mut rng = run.rng("5");
    let deadline = run.pick(Duration::from_secs(1), Duration::from_millis(50));
    let lasting = run.pick(Duration::from_secs(3), Duration::from_secs(60));
    let fixed = "algorithm = \"fixed_window\", period = \"400d\"";
    let routes = [
        Route {
            name: "allow",
            limits: vec![format!("{fixed}, quota = 1_000_000")],
            more: "on_store_error = \"allow\"",
        },
        Route {
            name: "local",
            limits: vec![format!("{fixed}, quota = {SHARED}")],
            more: "on_store_error = \"local\"",
        },
    ];
    let mut stage = Stage::start(run, &Setting { routes: &routes, ..Setting::new(deadline) });
    let targets = stage.targets(&[("/huge", 4), ("/allow", 4)], &mut rng);
    let local = stage.targets(&[("/local", 1)], &mut rng);
    let rate = run.pick(180, 600);
    let load = Load::start(&stage.addresses(), &targets, rate, &mut rng);
    load.await_decided("a calm start", 20, |_| true);
    let calm = run.pick(Duration::from_secs(1), Duration::from_secs(10));
    std::thread::sleep(calm);

    let began = Instant::now();
    stage.cluster.nodes.iter_mut().for_each(crate::harness::redis::Redis::kill);
    std::thread::sleep(OPEN_AFTER);
    let shares = Load::start(&stage.addresses(), &local, run.pick(180, 100), &mut rng);
    std::thread::sleep(lasting.saturating_sub(began.elapsed()));
    let shares = shares.stop();
    let ended = Instant::now();
    stage.cluster.nodes.iter_mut().for_each(crate::harness::redis::Redis::start_again);
    serving(&stage);
    let serves = Instant::now();
    load.await_decided("requests after the outage", 60, |_| true);
    std::thread::sleep(run.pick(Duration::from_millis(500), Duration::from_secs(3)));
    let log = load.stop();

    let during = |path: &'static str| {
        log.of(|target, sent| {
            target.path == path && sent.at >= began + OPEN_AFTER && sent.at < ended
        })
    };
    vec![
        times(run, &log, began - calm, began, ended, serves, lasting),
        route("5b", "deny", &during(ROUTES[0]), 503, Mark::None),
        route("5c", "allow", &during(ROUTES[1]), 200, Mark::Store),
        share(&shares, &local),
    ]
}

/// Waits until each shard accepts writes.
fn serving(stage: &Stage) {
    for node in &stage.cluster.nodes {
        let mut connection = node.connect();
        eventually("the cluster serves again", || {
            let info = connection.ask(&["CLUSTER", "INFO"]).text();
            let ok = info.contains("cluster_state:ok") && info.contains("cluster_slots_ok:16384");
            if ok { Ok(()) } else { Err(info) }
        });
    }
}

fn times(
    run: &Run,
    log: &Log,
    calm_from: Instant,
    began: Instant,
    ended: Instant,
    serves: Instant,
    lasting: Duration,
) -> Line {
    let mut line = Line::new(
        "5a",
        format!("all six nodes killed, and started again empty after {}", s(lasting)),
        "added p99 at most 1 ms while the breaker is open; closed at most 1 s after",
    );
    let of = |from: Instant, to: Instant| log.of(|_, sent| sent.at >= from && sent.at < to);
    let (before, during) = (p99(&of(calm_from, began)), p99(&of(began + OPEN_AFTER, ended)));
    line.time(
        run,
        during <= before + ADDED,
        format!("p99 {} before, {} with an open breaker", ms(before), ms(during)),
    );
    let last = log.of(|_, sent| !sent.decided()).iter().map(Sent::ended).max().unwrap_or(began);
    let closed = last.saturating_duration_since(serves);
    line.time(
        run,
        closed <= CLOSED_WITHIN,
        format!("the last request that noticed, {} after the cluster served again", s(closed)),
    );
    line
}

/// A route's requests during the outage: all with this status and this mark.
fn route(number: &'static str, says: &str, sent: &[Sent], status: u16, mark: Mark) -> Line {
    let marked = match mark {
        Mark::Store => " with `Weir-Degraded: store`",
        Mark::Local => " with `Weir-Degraded: local`",
        Mark::None => "",
    };
    let mut line = Line::new(
        number,
        format!("the same, on a route with on_store_error = \"{says}\""),
        format!("only {status}{marked}"),
    );
    let right = sent.iter().filter(|sent| sent.status == status && sent.mark == mark).count();
    line.judge(
        right == sent.len() && right > 0,
        format!("{right} of {} requests answered so", sent.len()),
    );
    line
}

/// What each proxy admitted of its share.
fn share(log: &Log, targets: &[Target]) -> Line {
    let share = SHARED / PROXIES as u64;
    let mut line = Line::new(
        "5d",
        "the same, on a route with on_store_error = \"local\"",
        format!(
            "each of {PROXIES} proxies admits its share, {share} of {SHARED}, with `Weir-Degraded: local`, and refuses the rest with 429"
        ),
    );
    let (mut counts, mut other, mut unrefused) = (Vec::new(), 0, 0);
    for proxy in 0..PROXIES {
        for index in 0..targets.len() {
            let sent = log.of(|_, sent| sent.proxy == proxy && sent.target == index);
            let count = |status, mark| {
                sent.iter().filter(|sent| (sent.status, sent.mark) == (status, mark)).count()
            };
            // A refusal is the same whoever counted.
            let refused = count(429, Mark::None) + count(429, Mark::Local);
            let admitted = count(200, Mark::Local);
            other += sent.len() - admitted - refused;
            unrefused += usize::from(refused == 0);
            counts.push(admitted as u64);
        }
    }
    line.judge(
        other == 0 && unrefused == 0,
        format!(
            "{} requests to {} limits, {other} answered otherwise",
            log.sent.len(),
            targets.len()
        ),
    );
    line.judge(counts.iter().all(|count| *count == share), format!("admitted {counts:?}"));
    line
}
