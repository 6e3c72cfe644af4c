//! What a request uses, as its reply reports: the meters of its policy's decision, and what was
//! taken while the reply streamed.

use std::mem;
use std::sync::{Arc, Mutex, PoisonError};

use super::cut::{Cut, CutBody, SharedExtension};
use crate::inspect::Reading;
use crate::limit::{ExtraTakes, Grant};
use crate::plan::{Adjustment, Change, Limit, Plan};
use crate::policy::{Bodies, HardCut, Verdict};
use crate::proxy::decide::Decided;
use crate::proxy::handle::RouteHandle;
use crate::wire::{Body, Fields, Known, ReadOn};

/// The facts that say the units taken of a [`Partial`](crate::policy::Partial) and by a hard cut's
/// steps, and that the meters have read a reply to its end although its client left.
const TAKEN: &str = "usage.taken";
const EXTENDED: &str = "usage.extended";
const WHOLE: &str = "usage.whole";

/// Steps of a hard cut that are settled without letting other requests run.
const STEPS_AT_ONCE: usize = 256;

/// What is known of a request's usage.
#[derive(Debug, Default)]
pub(in crate::proxy) struct Usage {
    /// The client left, but the reply was read on to its end.
    pub(in crate::proxy) rest_read: bool,
    /// The meters, shared with the reply's body.
    reading: Option<Arc<Mutex<Reading>>>,
    /// What was taken while the reply streamed, shared with its body.
    extended: Option<SharedExtension>,
}

impl Usage {
    /// What `settle` is told of it.
    pub(in crate::proxy) fn facts(&self) -> Vec<(String, String)> {
        let mut facts = Vec::new();
        if let Some(extended) = &self.extended {
            let extended = extended.lock().unwrap_or_else(PoisonError::into_inner);
            facts.push((EXTENDED.to_owned(), extended.units.to_string()));
        }
        if self.rest_read && self.cut().is_none() {
            facts.push((WHOLE.to_owned(), "true".to_owned()));
        }
        if let Some(reading) = &self.reading {
            let mut reading = reading.lock().unwrap_or_else(PoisonError::into_inner);
            reading.finish();
            let read = reading.values().filter_map(|(meter, value)| {
                let name = format!("usage.{}:{}", meter.gather.word(), meter.pointer);
                Some((name, value?.to_string()))
            });
            facts.extend(read);
        }
        facts
    }

    /// Why the reply was ended before its end, if it was.
    pub(in crate::proxy) fn cut(&self) -> Option<Cut> {
        self.extended.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner).cut
    }

    /// Has `settle` settle what was taken in steps: what the adjustments give back is given back of
    /// the last step first. Returns the adjustments for the request's own grant. Many steps are
    /// settled in a task, so that other requests of the worker wait for a few of them at most.
    pub(in crate::proxy) fn settle_steps(
        &self,
        mut adjustments: Vec<Adjustment>,
        settle: impl Fn(Grant, &[Adjustment]) + Send + 'static,
    ) -> Vec<Adjustment> {
        let Some(extended) = &self.extended else { return adjustments };
        let grants = mem::take(&mut extended.lock().unwrap_or_else(PoisonError::into_inner).grants);
        let steps = grants.into_iter().rev().map(|grant| {
            let own = adjustments.iter_mut().filter_map(|adjustment| {
                let Change::Units(units @ ..0) = &mut adjustment.change else { return None };
                let cost = grant.cost_of(&adjustment.limit)?;
                let back = i64::try_from(units.unsigned_abs().min(cost)).ok()?;
                *units += back;
                Some(Adjustment { limit: adjustment.limit.clone(), change: Change::Units(-back) })
            });
            let own: Vec<Adjustment> = own.collect();
            (grant, own)
        });
        let mut steps: Vec<(Grant, Vec<Adjustment>)> = steps.collect();
        let later = steps.split_off(steps.len().min(STEPS_AT_ONCE));
        steps.into_iter().for_each(|(grant, own)| settle(grant, &own));
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) if !later.is_empty() => {
                runtime.spawn(async move {
                    for (nth, (grant, own)) in later.into_iter().enumerate() {
                        if nth % STEPS_AT_ONCE == 0 {
                            tokio::task::yield_now().await;
                        }
                        settle(grant, &own);
                    }
                });
            }
            _ => later.into_iter().for_each(|(grant, own)| settle(grant, &own)),
        }
        adjustments
    }
}

/// The fact of the units that were taken instead of the cost, if they were.
pub(super) fn taken(decided: &Decided) -> Option<(String, String)> {
    decided.taken.map(|taken| (TAKEN.to_owned(), taken.to_string()))
}

/// Has a reply's body read by the meters of the decision, if it has any. Returns the body, and
/// where what it uses can be read.
pub(in crate::proxy) fn metered(
    decided: Option<&Decided>,
    handle: &Arc<RouteHandle>,
    fields: &mut Fields,
    body: Body,
) -> (Body, Option<Box<Usage>>) {
    let metered = decided.and_then(|decided| {
        let bodies = decided.bodies()?;
        (!bodies.meters.list().is_empty()).then_some((decided, bodies))
    });
    let Some((decided, bodies)) = metered else { return (body, None) };
    let content_type = fields.get(Known::ContentType).unwrap_or_default();
    let codings: Vec<_> = fields.get_all("content-encoding").map(String::from_utf8_lossy).collect();
    let reading = Reading::new(&bodies.meters, content_type, &codings.join(","));
    let (read_on, can_end) = (bodies.read_on, reading.is_events());
    let reading = Arc::new(Mutex::new(reading));
    let steps = if can_end { steps(decided, bodies) } else { None };
    let body = match &steps {
        Some((rule, more, extended)) => {
            fields.remove(Known::ContentLength);
            let (rule, more, extended) = (rule.clone(), more.clone(), Arc::clone(extended));
            CutBody::of(body, Arc::clone(&reading), rule, more, extended)
        }
        None => body,
    };
    let usage = Usage {
        rest_read: false,
        reading: Some(Arc::clone(&reading)),
        extended: steps.map(|(.., extended)| extended),
    };
    let see = move |piece: &[u8]| {
        reading.lock().unwrap_or_else(PoisonError::into_inner).feed(piece);
    };
    let handle = Arc::clone(handle);
    let may = Box::new(move || !handle.is_cut());
    (body.watched(Box::new(see), ReadOn { wait: read_on, may }), Some(Box::new(usage)))
}

/// What is needed to take more for a reply, if the decision has it cut.
fn steps(decided: &Decided, bodies: &Bodies) -> Option<(HardCut, ExtraTakes, SharedExtension)> {
    let rule = bodies.hard_cut.clone()?;
    let Verdict::Check(plan) = &decided.decision.as_ref()?.verdict else { return None };
    let limits = plan.limits().iter().filter(|limit| rule.limits.contains(&limit.name));
    let limits = limits.map(|limit| Limit { cost: rule.step, ..limit.clone() }).collect();
    let more = ExtraTakes::new(decided.grant.as_ref()?, Plan::new(limits).ok()?.quiet());
    Some((rule, more, SharedExtension::default()))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::clock::Clock;
    use crate::engine::{EmbeddedSettings, Engine, Settings as EngineSettings};
    use crate::limit::{Limiter, Scope, Settings};
    use crate::plan::{Algorithm, Concurrency, OnStoreError};
    use crate::telemetry::Metrics;

    #[tokio::test]
    async fn many_steps_of_a_hard_cut_are_settled_while_others_run() {
        let (metrics, clock) = (Metrics::new(1), Clock::system());
        let engine = EngineSettings::Embedded(EmbeddedSettings::new(10));
        let engine = Arc::new(Engine::build(&engine, clock.clone(), &metrics).unwrap());
        let limiter = Limiter::new(Settings::default(), engine, clock, metrics);
        let scope = Arc::new(Scope::new("s".into(), "s".into(), OnStoreError::Deny, false));
        let limit = Limit::new("l", "k", Algorithm::Concurrency(Concurrency { amount: 1 }));
        let plan = Arc::new(Plan::new(vec![limit]).unwrap());
        let count = 10 * STEPS_AT_ONCE + 1;
        let extended = SharedExtension::default();
        extended.lock().unwrap().grants =
            (0..count).map(|_| limiter.empty_grant(&scope, &plan)).collect();
        let usage = Usage { extended: Some(extended), ..Usage::default() };
        let settled = Arc::new(AtomicUsize::new(0));
        let seen = Arc::clone(&settled);
        usage.settle_steps(Vec::new(), move |grant, _| {
            drop(grant);
            seen.fetch_add(1, Ordering::Relaxed);
        });
        let mut before = settled.load(Ordering::Relaxed);
        assert_eq!(before, STEPS_AT_ONCE);
        while before < count {
            tokio::task::yield_now().await;
            let now = settled.load(Ordering::Relaxed);
            assert!(now <= before + STEPS_AT_ONCE, "{} at once", now - before);
            before = now;
        }
    }
}
