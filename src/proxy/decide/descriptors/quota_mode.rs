//! Descriptors in quota mode, as envoyproxy/ratelimit has it: of those in a call, one with room is
//! enough. The others are answered as over their limit, and take nothing.
//!
//! All are taken together first. Where that is refused, those without room are left out, and the
//! rest is taken, so what is admitted is counted as ever.

use std::sync::Arc;

use super::super::admit::record;
use super::{Decided, Share, Shares};
use crate::limit::{Limiter, Take};
use crate::plan::{Enforcement, Limit, LimitOutcome, Plan, PlanOutcome};
use crate::policy::{Decision, Verdict as Answer};
use crate::proxy::receive::Received;
use crate::proxy::refusal::Refusal;
use crate::proxy::route::Routed;
use crate::proxy::verdict::Verdict;

/// Takes the limits of all descriptors, without those in quota mode that have no room. Notes in
/// `shares` which these are.
pub(super) async fn charge(
    limiter: &Limiter,
    decision: Arc<Decision>,
    shares: &mut Shares,
    (received, routed): (&Received, &Routed),
    decided: &mut Decided,
) -> Result<(), Refusal> {
    let handle = &*routed.handle;
    let Answer::Check(plan) = &decision.verdict else { return Ok(()) };
    let Some(scope) = handle.policy.as_ref().map(|policy| &policy.scope) else { return Ok(()) };
    let limits = plan.limits();
    let mut known = vec![LimitOutcome { fits: true, ..LimitOutcome::default() }; limits.len()];
    let mut is_first = true;
    // Each round leaves one more descriptor out, or is the last.
    let taken = loop {
        if shares.iter().filter(|share| share.is_optional).all(|share| share.is_over) {
            break None;
        }
        let asked: Vec<usize> = (0..limits.len()).filter(|at| is_asked(*at, shares)).collect();
        let part = asked.iter().filter_map(|at| limits.get(*at)).cloned().collect();
        // A part of a plan that is one.
        let Ok(part) = Plan::joined(part) else { break None };
        let part = Arc::new(if is_first { part } else { part.quiet() });
        is_first = false;
        let taken = limiter.take(scope, &part).await;
        let outcome = match &taken {
            Take::Granted(outcome, _) | Take::Refused(outcome) => outcome,
            Take::Unavailable(_) => break Some(taken),
        };
        for (at, of) in asked.iter().zip(&outcome.limits) {
            known.get_mut(*at).into_iter().for_each(|known| *known = *of);
        }
        let lacks = |at: &usize| known.get(*at).is_some_and(|of| !of.fits);
        let optional = shares.iter_mut().filter(|share| share.is_optional && !share.is_over);
        let without_room = optional.filter(|share| share.limits.iter().any(lacks));
        let left_out = without_room.map(|share| share.is_over = true).count();
        let is_refused = matches!(taken, Take::Refused(_));
        let others = shares.iter().filter(|share| !share.is_optional);
        let others_fit = !others.flat_map(|share| &share.limits).any(lacks);
        if !(is_refused && others_fit && left_out > 0) {
            break Some(taken);
        }
    };
    let limits = recorded(limits, &known, shares);
    let recorded = Plan::joined(limits).map(Arc::new).unwrap_or_else(|_| Arc::clone(plan));
    let verdict = Answer::Check(Arc::clone(&recorded));
    let decision = Arc::new(Decision { verdict, ..Decision::clone(&decision) });
    decided.decision = Some(Arc::clone(&decision));
    let all = |outcome: Option<PlanOutcome>, admitted| PlanOutcome {
        admitted,
        limits: known.clone(),
        store_failure: outcome.and_then(|outcome| outcome.store_failure),
    };
    let taken = match taken {
        Some(Take::Granted(outcome, grant)) => Take::Granted(all(Some(outcome), true), grant),
        Some(Take::Refused(outcome)) => Take::Refused(all(Some(outcome), false)),
        Some(Take::Unavailable(cause)) => Take::Unavailable(cause),
        // More hits than limits have units.
        None if is_first => {
            decided.conclude(Verdict::Refused, handle);
            return Err(Refusal::TooMany);
        }
        None => Take::Refused(all(None, false)),
    };
    let identities = handle.insight.counts_keys().then(|| limiter.identities(scope, &recorded));
    record(limiter, (&decision, &recorded), (taken, identities), (received, handle), decided)
}

/// Whether a limit is asked: one that only descriptors without room have is not.
fn is_asked(at: usize, shares: &[Share]) -> bool {
    shares.iter().any(|share| !(share.is_optional && share.is_over) && share.limits.contains(&at))
}

/// The limits as they counted: those of descriptors that were left out refused nothing. If none in
/// quota mode has room, the one that has some first is what the caller waits for.
fn recorded(limits: &[Limit], known: &[LimitOutcome], shares: &[Share]) -> Vec<Limit> {
    let wait = |share: &&Share| {
        let of = share.limits.iter().filter_map(|at| known.get(*at)).filter(|of| !of.fits);
        of.map(|of| of.retry_after_us.unwrap_or(u64::MAX)).max()
    };
    let optional = || shares.iter().filter(|share| share.is_optional);
    let none_has_room = optional().all(|share| share.is_over);
    let awaited = optional().filter(|_| none_has_room).min_by_key(wait);
    let counts =
        |at: usize| is_asked(at, shares) || awaited.is_some_and(|share| share.limits.contains(&at));
    let each = limits.iter().enumerate().map(|(at, limit)| match counts(at) {
        true => limit.clone(),
        false => Limit { enforcement: Enforcement::Shadow, ..limit.clone() },
    });
    each.collect()
}
