//! `weir check --connect`: whether what a configuration names can be reached from here.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::build::ConfigBuild;
use crate::clock;
use crate::config::setting;
use crate::engine::{self, Advice, Cause, EngineError};
use crate::limit::ProbeError;
use crate::plan::Algorithm;
use crate::telemetry::Label as _;

/// How long the store is asked until it answers: its own deadline is short, and connections are
/// opened first.
const STORE_WAIT: Duration = Duration::from_secs(5);
/// The time between two questions.
const ASK_AGAIN: Duration = Duration::from_millis(50);

/// The result of asking one thing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReachResult {
    /// What was asked, as in `upstreams.api: http://10.0.0.1:80`.
    pub what: String,
    /// Why it can't be used, if it can't.
    pub problem: Option<String>,
    /// What should be changed about it although it can be used, a sentence each.
    pub warnings: Vec<String>,
}

impl ReachResult {
    pub(super) fn new(what: String, problem: Option<String>) -> Self {
        Self { what, problem, warnings: Vec::new() }
    }
}

/// Asks the store, all upstreams, the collector of traces and metrics, and where documents come
/// from. What is fetched is not kept.
pub(super) async fn all(built: &ConfigBuild) -> Vec<ReachResult> {
    let mut all = store(built).await;
    all.extend(scripts(built).await);
    let mut upstreams: Vec<_> = built.upstreams.iter().collect();
    upstreams.sort_unstable_by_key(|(name, _)| *name);
    for (name, (_, upstream)) in upstreams {
        for (what, answer) in upstream.reach().await {
            all.push(ReachResult::new(
                format!("{}: {what}", setting::upstream(name)),
                answer.err(),
            ));
        }
    }
    if let Some(collector) = &built.collector {
        for (what, answer) in collector.reach().await {
            all.push(ReachResult::new(format!("{}: {what}", setting::OTLP), answer.err()));
        }
    }
    for document in &built.documents {
        let what = format!("{}: {}", document.settings().setting, document.url());
        let problem = document.fetch().await.err().map(|failed| failed.to_string());
        all.push(ReachResult::new(what, problem));
    }
    all
}

async fn store(built: &ConfigBuild) -> Vec<ReachResult> {
    let engine::Settings::Redis(settings) = &built.engine_settings else { return Vec::new() };
    let engine = &built.engine;
    let until = clock::monotonic() + STORE_WAIT;
    let answer = loop {
        match engine.ping().await {
            Ok(failing) if failing.is_empty() => break Ok(failing),
            answer if clock::monotonic() > until => break answer,
            _ => tokio::time::sleep(ASK_AGAIN).await,
        }
    };
    let unreached = engine.unreached();
    // Nodes that answer may say more about themselves.
    let answers = match &answer {
        Ok(failing) => failing.iter().all(|(_, cause)| !cause.is_about_the_node()),
        Err(error) => !error.cause.is_about_the_node(),
    };
    let advice = if answers { engine.advice().await } else { Advice::default() };
    let mut found = match answer {
        Ok(failing) if failing.is_empty() => counting(built, until).await,
        Ok(failing) => failing
            .iter()
            .map(|(node, cause)| {
                let why = unreached.iter().find(|(unreached, _)| unreached == node);
                failed(node, *cause, why.map(|(_, why)| why.as_str()))
            })
            .collect(),
        Err(EngineError { cause, .. }) if unreached.is_empty() => {
            vec![failed(&settings.nodes.join(", "), cause, None)]
        }
        Err(EngineError { cause, .. }) => {
            unreached.iter().map(|(node, why)| failed(node, cause, Some(why))).collect()
        }
    };
    let wrong = advice.wrong.into_iter();
    found.extend(wrong.map(|wrong| ReachResult::new("store".into(), Some(wrong))));
    if found.iter().all(|one| one.problem.is_none()) {
        let mut all = ReachResult::new("store: all of Redis".into(), None);
        all.warnings = advice.doubtful;
        found.push(all);
    }
    found
}

/// What can't be counted although all nodes answer, for each algorithm that policies say they use.
async fn counting(built: &ConfigBuild, until: Instant) -> Vec<ReachResult> {
    let limits = built.policies.values().flat_map(|(_, policy)| policy.limits());
    let used: BTreeMap<&str, &Algorithm> =
        limits.map(|limit| (limit.algorithm.name(), &limit.algorithm)).collect();
    let mut found = Vec::new();
    for (name, algorithm) in used {
        let tried = loop {
            match built.limiter.probe(algorithm).await {
                Err(ProbeError { error, .. })
                    if error.cause.is_about_the_node() && clock::monotonic() < until =>
                {
                    tokio::time::sleep(ASK_AGAIN).await;
                }
                tried => break tried,
            }
        };
        if let Err(ProbeError { node, error }) = tried {
            let failed = failed(&node, error.cause, None);
            found.push(ReachResult { what: format!("{}, {name}", failed.what), ..failed });
        }
    }
    found
}

/// The scripts that Redis can't load, although they passed their trial.
async fn scripts(built: &ConfigBuild) -> Vec<ReachResult> {
    // A store that does not answer is said elsewhere.
    let failing = built.engine.try_scripts(&built.limiter_settings.scripts).await;
    let failing = failing.unwrap_or_default().into_iter();
    failing
        .map(|(name, said)| {
            let what = format!("{}.scripts: {name}.lua", setting::STORE);
            ReachResult::new(what, Some(format!("Redis can't load it: {said}")))
        })
        .collect()
}

/// A node that can't decide: why, and what to do about it.
fn failed(node: &str, cause: Cause, why: Option<&str>) -> ReachResult {
    let why = why.map(|why| format!(": {why}")).unwrap_or_default();
    let nodes = match cause {
        Cause::Connection => format!(" {} names the servers", setting::REDIS_NODES),
        _ => String::new(),
    };
    let problem = format!("{}{why}; {}{nodes}", cause.label(), cause.remedy());
    ReachResult::new(format!("store: Redis {node}"), Some(problem))
}
