//! Row 13: nothing is done to anybody. Three proxies use up limits of every algorithm, with and
//! without leases, at the same time. With `--beside PROGRAM` one of the proxies is another version
//! of Weir: this is how it is seen that two versions count together.

use std::time::Duration;

use super::leases;
use crate::Run;
use crate::load::{Load, Target};
use crate::report::Line;
use crate::stage::{Route, Setting, Stage, TIGHT};

/// Limits without leases, by path and algorithm.
const PLAIN: [(&str, &str); 7] = [
    ("plain-window", "algorithm = \"fixed_window\", period = \"30d\""),
    ("plain-counter", "algorithm = \"sliding_window_counter\", period = \"30d\""),
    ("plain-log", "algorithm = \"sliding_window_log\", period = \"30d\""),
    ("plain-ring", "algorithm = \"sliding_window_buckets\", period = \"30d\""),
    ("plain-bucket", "algorithm = \"token_bucket\", period = \"400d\""),
    ("plain-gcra", "algorithm = \"gcra\", period = \"400d\""),
    ("plain-quota", "algorithm = \"quota\", calendar = \"forever\""),
];
const PLAIN_PATHS: [&str; 7] = [
    "/plain-window",
    "/plain-counter",
    "/plain-log",
    "/plain-ring",
    "/plain-bucket",
    "/plain-gcra",
    "/plain-quota",
];

pub fn together(run: &Run) -> Vec<Line> {
    let mut rng = run.rng("13");
    let done = match &run.beside {
        Some(_) => "limits used up by three proxies, one of which is another version",
        None => "limits used up by three proxies",
    };
    let mut line =
        Line::new("13", done, "no limit is exceeded, all of each is used, counters exact");
    let plain = PLAIN.map(|(name, algorithm)| {
        let limits = vec![format!("{algorithm}, quota = {TIGHT}")];
        Route { name, limits, more: "" }
    });
    let routes: Vec<Route> = leases::routes().into_iter().chain(plain).collect();
    let deadline = run.pick(Duration::from_secs(1), Duration::from_millis(50));
    let setting = Setting { replicas: false, routes: &routes, ..Setting::new(deadline) };
    let mut stage = Stage::start(run, &setting);
    let paths: Vec<(&'static str, usize)> =
        leases::PATHS.into_iter().chain(PLAIN_PATHS).map(|path| (path, 1)).collect();
    let tight = stage.targets(&paths, &mut rng);
    let huge = stage.targets(&[("/huge", 2)], &mut rng);
    let all: Vec<Target> = tight.iter().chain(&huge).cloned().collect();
    let load = Load::start(&stage.addresses(), &all, run.pick(360, 1_200), &mut rng);
    load.await_decided("a calm start", 20, |_| true);
    std::thread::sleep(run.pick(Duration::from_secs(2), Duration::from_secs(10)));
    let log = load.stop();
    stage.book(&log);
    let failed = log.of(|_, sent| !sent.decided()).len();
    line.judge(failed == 0, format!("{failed} of {} requests undecided", log.sent.len()));
    leases::kept(&mut line, &mut stage, &tight, 0);
    let least = tight.iter().filter(|target| target.path.starts_with("/plain"));
    let least = least.map(|target| stage.admitted(target)).min().unwrap_or(0);
    line.judge(least == TIGHT, format!("{least} of {TIGHT} used of each without leases"));
    let difference = stage.difference(&huge);
    line.judge(difference.exact(), difference.text());
    vec![line]
}
