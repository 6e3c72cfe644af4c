//! Row 8: the replica that takes over has a clock that is an hour wrong.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::moves::failover;
use crate::Run;
use crate::harness::held::HeldTime;
use crate::load::{Load, Log, Target, slowest};
use crate::report::{Line, ms, s};
use crate::stage::{Route, Setting, Stage};

/// Units of each limit, for each period.
const QUOTA: u64 = 40;
const HOUR_S: i64 = 3_600;
/// The shards whose replicas' clocks are ahead and behind.
const AHEAD: usize = 0;
const BEHIND: usize = 1;
/// What a failover and a busy machine may take.
const SLACK: Duration = Duration::from_secs(3);

/// Each with a route of its own.
const ALGORITHMS: [(&str, &str); 5] = [
    ("/fixed", "algorithm = \"fixed_window\""),
    ("/gcra", "algorithm = \"gcra\""),
    ("/tokens", "algorithm = \"token_bucket\""),
    ("/log", "algorithm = \"sliding_window_log\""),
    ("/counter", "algorithm = \"sliding_window_counter\""),
];

pub fn all(run: &Run) -> Vec<Line> {
    let mut rng = run.rng("8");
    let period = run.pick(Duration::from_secs(3), Duration::from_secs(10));
    let routes = ALGORITHMS.map(|(path, algorithm)| Route {
        name: path.trim_start_matches('/'),
        limits: vec![format!("{algorithm}, quota = {QUOTA}, period = \"{}s\"", period.as_secs())],
        more: "",
    });
    let time = HeldTime::running();
    let environment = |node: usize| match node.checked_sub(3) {
        Some(AHEAD) => time.environment_ahead(HOUR_S),
        Some(BEHIND) => time.environment_ahead(-HOUR_S),
        _ => Vec::new(),
    };
    let setting = Setting {
        routes: &routes,
        environment: &environment,
        ..Setting::new(Duration::from_secs(8))
    };
    let mut stage = Stage::start(run, &setting);
    let wanted = ALGORITHMS.map(|(path, _)| (path, 1));
    let targets: Vec<Target> = stage
        .targets(&wanted, &mut rng)
        .into_iter()
        .filter(|target| [AHEAD, BEHIND].contains(&target.shard))
        .collect();
    // Three times what the limits admit.
    let rate = 3 * QUOTA as u32 * targets.len() as u32 / period.as_secs() as u32;
    let began = Instant::now();
    let load = Load::start(&stage.addresses(), &targets, rate, &mut rng);
    std::thread::sleep(period + period / 2);
    let moved = [AHEAD, BEHIND].map(|shard| {
        failover(&stage, shard + 3);
        Instant::now()
    });
    std::thread::sleep(period * 2);
    let log = load.stop();
    let (times, causes) = ((began.elapsed(), period), stage.errors());
    vec![
        judge("8a", "ahead of", AHEAD, moved[0], &log, times, &causes),
        judge("8b", "behind", BEHIND, moved[1], &log, times, &causes),
    ]
}

fn judge(
    number: &'static str,
    side: &str,
    shard: usize,
    moved: Instant,
    log: &Log,
    (lasted, period): (Duration, Duration),
    causes: &BTreeMap<String, u64>,
) -> Line {
    let mut line = Line::new(
        number,
        format!("a planned failover to a replica whose clock is an hour {side} its master's"),
        "under every algorithm at most one burst more than without it; units come back within a period",
    );
    // What a limit admits at most in this time, from a full allowance: a burst, and what the
    // periods that it touches bring.
    let periods = lasted.as_secs_f64() / period.as_secs_f64();
    let without = QUOTA + (QUOTA as f64 * periods).ceil() as u64;
    for (path, _) in ALGORITHMS {
        let admitted: Vec<Instant> = log
            .of(|target, sent| target.shard == shard && target.path == path && sent.status == 200)
            .iter()
            .map(|sent| sent.ended())
            .collect();
        let extra = (admitted.len() as u64).saturating_sub(without);
        let back = admitted.iter().filter(|at| **at >= moved).min();
        let back = back.map_or(lasted, |at| at.duration_since(moved));
        let name = path.trim_start_matches('/');
        line.judge(
            extra <= QUOTA,
            format!("{name}: {} admitted of {without} and a burst of {QUOTA}", admitted.len()),
        );
        line.judge(back <= period + SLACK, format!("the next after {}", s(back)));
    }
    let failed = log.of(|target, sent| target.shard == shard && !sent.decided());
    let slowest = slowest(&failed);
    line.tell(if failed.is_empty() {
        "no failed request".to_owned()
    } else {
        format!("failed {:?} ({causes:?}), the slowest in {}", Log::statuses(&failed), ms(slowest))
    });
    line
}
