//! What a decision says about bodies.

use std::sync::Arc;
use std::time::Duration;

use super::super::abi::{types, usage};
use super::super::{Bodies, HardCut, Partial, Term, Verdict};
use super::shortened;
use crate::inspect::{Edit, Gather, Meter, Meters, Pointer};
use crate::plan::{self, AMOUNT_MAX, Limit, Plan, Refund};

/// Maximum number of changes to a body that a decision may name.
const CHANGES_MAX: usize = 16;
/// Maximum size of a value that is set, in bytes.
const VALUE_BYTES_MAX: usize = 1_024;
/// Maximum number of meters that a decision may name.
const METERS_MAX: usize = 32;
/// How long a reply may be read after its client has left.
const READ_ON_MS_MAX: u32 = 600_000;

/// Converts the fields of the answer that concern bodies. `None` if nothing has to be done with
/// them.
pub(super) fn of(
    changes: Vec<types::BodyChange>,
    metering: Option<usage::Metering>,
    verdict: &Verdict,
) -> Result<Option<Bodies>, String> {
    let nothing =
        usage::Metering { meters: Vec::new(), read_on_ms: 0, partial: None, hard_cut: None };
    let usage::Metering { meters, read_on_ms, partial, hard_cut } = metering.unwrap_or(nothing);
    let nothing =
        changes.is_empty() && meters.is_empty() && partial.is_none() && hard_cut.is_none();
    if nothing {
        return Ok(None);
    }
    at_most("body-changes", changes.len(), CHANGES_MAX)?;
    at_most("meters", meters.len(), METERS_MAX)?;
    if read_on_ms > READ_ON_MS_MAX {
        return Err(format!("read-on-ms: {read_on_ms}, at most {READ_ON_MS_MAX}"));
    }
    let limits = match verdict {
        Verdict::Check(plan) => plan.limits(),
        Verdict::Bypass | Verdict::Deny(_) => &[],
    };
    let meters: Vec<Meter> = meters
        .into_iter()
        .enumerate()
        .map(|(index, meter)| {
            let pointer = pointer(&format!("meters[{index}]"), &meter.pointer)?;
            Ok(Meter { pointer, gather: gather(meter.gather) })
        })
        .collect::<Result<_, String>>()?;
    if partial.is_some() && hard_cut.is_some() {
        return Err("partial and hard-cut: both, expected at most one of them".to_owned());
    }
    let partial = partial.map(|answered| self::partial(answered, limits)).transpose()?;
    let count = meters.len();
    let hard_cut = hard_cut.map(|answered| self::hard_cut(answered, limits, count)).transpose()?;
    Ok(Some(Bodies {
        edits: changes.into_iter().enumerate().map(edit).collect::<Result<_, _>>()?,
        meters: Arc::new(Meters::new(meters)),
        read_on: Duration::from_millis(u64::from(read_on_ms)),
        partial,
        hard_cut,
    }))
}

fn at_most(what: &str, count: usize, max: usize) -> Result<(), String> {
    if count > max { Err(format!("{what}: {count} of them, at most {max}")) } else { Ok(()) }
}

fn pointer(at: &str, text: &str) -> Result<Pointer, String> {
    Pointer::parse(text).map_err(|expected| {
        format!("{at}.pointer: found {:?}, expected {expected}", shortened(text))
    })
}

/// A pointer to one place.
fn place(at: &str, text: &str) -> Result<Pointer, String> {
    let pointer = pointer(at, text)?;
    if pointer.is_single() {
        Ok(pointer)
    } else {
        Err(format!("{at}.pointer: found {:?}, expected one without *", shortened(text)))
    }
}

fn edit((index, change): (usize, types::BodyChange)) -> Result<Edit, String> {
    let at = format!("body-changes[{index}]");
    let pointer = place(&at, &change.pointer)?;
    if change.json.len() > VALUE_BYTES_MAX {
        return Err(format!("{at}.json: longer than {VALUE_BYTES_MAX} bytes"));
    }
    if serde_json::from_str::<serde_json::Value>(&change.json).is_err() {
        return Err(format!("{at}.json: found {:?}, expected JSON", shortened(&change.json)));
    }
    Ok(Edit { pointer, json: change.json.into() })
}

fn gather(gather: usage::Gather) -> Gather {
    match gather {
        usage::Gather::Last => Gather::Last,
        usage::Gather::Max => Gather::Max,
        usage::Gather::Sum => Gather::Sum,
        usage::Gather::Bytes => Gather::Bytes,
        usage::Gather::Count => Gather::Count,
    }
}

fn partial(answered: usage::Partial, limits: &[Limit]) -> Result<Partial, String> {
    known("partial", &answered.limits, limits)?;
    let tell = answered.tell.iter().map(|text| place("partial.tell", text));
    let tell = tell.collect::<Result<Vec<_>, _>>()?;
    at_most("partial.tell", tell.len(), CHANGES_MAX)?;
    if answered.least == 0 || answered.least < answered.base {
        return Err(format!(
            "partial.least: {}, expected at least 1 and at least the base, {}",
            answered.least, answered.base
        ));
    }
    Ok(Partial { limits: answered.limits, least: answered.least, tell, base: answered.base })
}

fn hard_cut(answered: usage::HardCut, plan: &[Limit], meters: usize) -> Result<HardCut, String> {
    known("hard-cut", &answered.limits, plan)?;
    let usage::HardCut { limits, taken, step, used } = answered;
    if !(1..=AMOUNT_MAX).contains(&step) {
        return Err(format!("hard-cut.step: {step}, expected 1 to 2^52"));
    }
    // The proxy takes each step as a plan of its own.
    let steps = plan.iter().filter(|limit| limits.contains(&limit.name));
    let steps = steps.map(|limit| Limit { cost: step, ..limit.clone() }).collect();
    Plan::new(steps).map_err(|breach| format!("hard-cut: a step of {step}: {breach}"))?;
    at_most("hard-cut.used.terms", used.terms.len(), METERS_MAX)?;
    let term = |(index, term): (usize, usage::Term)| {
        let meter = usize::try_from(term.meter).unwrap_or(usize::MAX);
        if meter >= meters || term.per == 0 {
            return Err(format!(
                "hard-cut.used.terms[{index}]: expected one of {meters} meters, and a `per` above 0"
            ));
        }
        Ok(Term { group: term.group, meter, units: term.units, per: term.per })
    };
    let terms = used.terms.into_iter().enumerate().map(term).collect::<Result<_, _>>()?;
    Ok(HardCut { limits, taken, step, base: used.base, terms })
}

/// Checks that each name is that of a limit whose units can be given back.
fn known(at: &str, names: &[String], limits: &[Limit]) -> Result<(), String> {
    at_most(&format!("{at}.limits"), names.len(), plan::LIMITS_MAX)?;
    if names.is_empty() {
        return Err(format!("{at}.limits: none, expected at least one"));
    }
    for name in names {
        let limit = limits.iter().find(|limit| limit.name == *name);
        let settles = |limit: &Limit| limit.refund == Refund::BySettle && limit.algorithm.settles();
        if !limit.is_some_and(settles) {
            return Err(format!(
                "{at}.limits: found {:?}, expected the name of a limit with the refund by-settle",
                shortened(name)
            ));
        }
    }
    Ok(())
}
