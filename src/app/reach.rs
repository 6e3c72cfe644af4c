//! `weir check --connect`: whether what a configuration names can be reached from here.

use std::time::Duration;

use super::build::Built;
use crate::clock;
use crate::engine::{Engine, EngineError};
use crate::telemetry::Label as _;

/// How long the store is asked until it answers: its own deadline is short, and connections are
/// opened first.
const STORE_WAIT: Duration = Duration::from_secs(5);
/// Between two questions.
const ASK_AGAIN: Duration = Duration::from_millis(50);

/// The answer of one thing that was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reached {
    /// What was asked, as in `upstreams.api: http://10.0.0.1:80`.
    pub what: String,
    /// Why it can't be used, if it can't.
    pub problem: Option<String>,
}

/// Asks the store and all upstreams.
pub(super) async fn all(built: &Built) -> Vec<Reached> {
    let mut all = store(&built.engine).await;
    let mut upstreams: Vec<_> = built.upstreams.iter().collect();
    upstreams.sort_unstable_by_key(|(name, _)| *name);
    for (name, (_, upstream)) in upstreams {
        for (what, answer) in upstream.reach().await {
            all.push(Reached { what: format!("upstreams.{name}: {what}"), problem: answer.err() });
        }
    }
    all
}

async fn store(engine: &Engine) -> Vec<Reached> {
    if matches!(engine, Engine::Embedded(_)) {
        return Vec::new();
    }
    let until = clock::monotonic() + STORE_WAIT;
    let answer = loop {
        match engine.ping().await {
            Ok(failing) if failing.is_empty() => break Ok(failing),
            answer if clock::monotonic() > until => break answer,
            _ => tokio::time::sleep(ASK_AGAIN).await,
        }
    };
    let of = |what: String, problem| Reached { what, problem };
    match answer {
        Ok(failing) if failing.is_empty() => vec![of("store: all of Redis".into(), None)],
        Ok(failing) => failing
            .into_iter()
            .map(|(node, cause)| of(format!("store: Redis {node}"), Some(cause.label().into())))
            .collect(),
        Err(EngineError { cause, .. }) => {
            vec![of("store: Redis".into(), Some(cause.label().into()))]
        }
    }
}
