//! Checks a limit's settings against its algorithm: which belong to it, which are required, and
//! their ranges. Uses the proxy's own tables (`weir-algorithms`), so a mistake is reported at its
//! line, before the proxy would refuse the answer.

use weir_algorithms::{
    Algorithm, Alignment, Breach, Calendar, Every, MEMBERS_MAX, NAMES, ROWS, Row, Setting,
};

use crate::Rate;
use crate::bindings::weir::policy::types::{
    self, Bucket, FixedWindow, LeakyBucket, Quota, Script, SlidingBuckets,
};
use crate::limits::written::{Report, Written};
use crate::names::is_name;

fn names() -> String {
    let quoted: Vec<String> = NAMES.iter().map(|name| format!("`{name}`")).collect();
    format!("one of {}", quoted.join(", "))
}

/// Checks all settings that depend on the algorithm, and builds the algorithm.
pub(super) fn check(limit: &Written, report: &mut Report) -> Option<Algorithm> {
    report.required("algorithm", limit.algorithm.as_ref(), &names());
    let named = limit.algorithm;
    // Without an algorithm, checked as the first one, so that other missing settings are reported
    // too.
    let unnamed = report.item.get("algorithm").is_none();
    let row = named.or_else(|| ROWS.first().filter(|_| unnamed));
    if let Some(row) = named {
        for setting in Setting::ALL.into_iter().filter(|one| !row.settings.contains(one)) {
            let key = setting.key();
            if let Some(value) = report.item.get(key) {
                let (name, owners) = (row.name, setting.owners());
                let expected =
                    format_args!("nothing: `{key}` does not belong to {name}, only to {owners}");
                report.add(key, value, expected);
            }
        }
    }
    for (setting, expected) in row.map_or(&[][..], |row| row.needed) {
        let written = report.item.get(setting.key());
        report.required(setting.key(), written.as_ref(), expected);
    }
    if let Some(name) = limit.script.as_deref().filter(|name| !is_name(name)) {
        report.add("script", format_args!("{name:?}"), "the name of a script, without `.lua`");
    }
    check_calendar(limit, report);
    // Missing settings are reported above. Placeholders allow the others' ranges to be checked.
    let written = limit.for_algorithm();
    let complete = weir_algorithms::Written {
        quota: written.quota.or(Some(1)),
        period_ms: written.period_ms.or(Some(1)),
        max_delay_ms: written.max_delay_ms.or(Some(0)),
        calendar: written.calendar.or(Some(Every::Forever)),
        script: written.script.or(Some("")),
        ..written
    };
    let algorithm = row.and_then(|row| (row.read)(&complete));
    let breaches = algorithm.as_ref().map(Algorithm::breaches).unwrap_or_default();
    breaches.iter().for_each(|breach| report_breach(breach, &written, report));
    // The largest possible cost is known only if these are valid.
    let bounds = [Setting::Quota, Setting::Period, Setting::Burst, Setting::MaxDelay];
    let known = bounds.into_iter().all(|setting| {
        let unfit = report.item.get(setting.key()).is_some() && !written.has(setting);
        !unfit && !breaches.iter().any(|breach| breach.setting == setting)
    });
    check_cost(limit, algorithm.as_ref().filter(|_| known), report);
    named.and_then(|row| (row.read)(&written))
}

/// The algorithm of a part of a limit, the setting `setting`.
pub(super) fn of_part(
    row: &Row,
    written: &weir_algorithms::Written<'_>,
    setting: &str,
    cost: u64,
    report: &mut Report<'_>,
) -> Option<types::Algorithm> {
    let algorithm = (row.read)(written)?;
    let quota = written.quota.unwrap_or(0);
    if let Some(breach) = algorithm.breaches().first() {
        report.add(setting, &breach.found, &breach.expected);
    }
    if quota > 0 && algorithm.cost_max().is_some_and(|most| cost > most) {
        report.add(setting, quota, format_args!("at least the cost, {cost}"));
    }
    Some(to_wit(algorithm))
}

/// Reports a setting that is out of range. A setting that is not written gets its value from the
/// quota, so then the quota is reported.
fn report_breach(breach: &Breach, written: &weir_algorithms::Written<'_>, report: &mut Report<'_>) {
    let absent = report.item.get(breach.setting.key()).is_none();
    let setting = if absent { Setting::Quota } else { breach.setting };
    if !written.has(setting) || report.has(setting.key()) {
        return;
    }
    let key = setting.key();
    let found = match setting {
        Setting::Arguments => breach.found.clone(),
        _ => report.written(key),
    };
    if breach.with_period {
        let period = report.written(Setting::Period.key());
        report.add(key, found, format_args!("{} {period}", breach.expected));
    } else {
        report.add(key, found, &breach.expected);
    }
}

/// Reports settings that have no meaning for the chosen calendar.
fn check_calendar(limit: &Written, report: &mut Report) {
    let Some(every) = limit.calendar else { return };
    if let Some(zone) = limit.time_zone.as_deref().filter(|_| every == Every::Forever) {
        report.add("time_zone", format_args!("{zone:?}"), "nothing: `forever` begins nowhere");
    }
    if let Some(day) = limit.anchor_day.filter(|_| every != Every::Month) {
        report.add("anchor_day", day, "nothing: only a `month` begins on a day that is chosen");
    }
}

/// Checks that some request can pass. A quota of 0 is allowed: it is how a limit that refuses all
/// is written. `algorithm` is `None` unless all its settings are valid.
fn check_cost(limit: &Written, algorithm: Option<&Algorithm>, report: &mut Report) {
    if !report.amount("cost", limit.cost) {
        return;
    }
    let Some(algorithm) = algorithm else { return };
    if algorithm.keeps_members() && limit.cost > MEMBERS_MAX {
        let expected = format_args!("at most {MEMBERS_MAX}: each unit is remembered");
        report.add("cost", limit.cost, expected);
        return;
    }
    if limit.quota.is_none_or(|quota| quota == 0) {
        return;
    }
    let Some(most) = algorithm.cost_max() else { return };
    if most == 0 {
        let expected =
            "1 or more: with 0 no request could ever pass (to refuse all, write `quota = 0`)";
        report.add("burst", 0, expected);
    } else if limit.cost > most {
        let written = limit.burst.is_some() || algorithm.queues();
        let what = if written { algorithm.cost_max_text() } else { "the quota" };
        let expected = format_args!("at most {what}, {most}: such a request could never pass");
        report.add("cost", limit.cost, expected);
    }
}

/// Converts the algorithm to the WIT type.
#[inline(never)]
pub(super) fn to_wit(algorithm: Algorithm) -> types::Algorithm {
    let rate = |rate: weir_algorithms::Rate| Rate { amount: rate.amount, per_ms: rate.per_ms };
    match algorithm {
        Algorithm::FixedWindow(it) => types::Algorithm::FixedWindow(FixedWindow {
            rate: rate(it.rate),
            alignment: match it.alignment {
                Alignment::FirstRequest => types::Alignment::FirstRequest,
                Alignment::Clock => types::Alignment::Clock,
            },
        }),
        Algorithm::SlidingWindowCounter(it) => {
            types::Algorithm::SlidingWindowCounter(rate(it.rate))
        }
        Algorithm::SlidingWindowLog(it) => types::Algorithm::SlidingWindowLog(rate(it.rate)),
        Algorithm::SlidingWindowBuckets(it) => {
            let (rate, buckets) = (rate(it.rate), it.buckets);
            types::Algorithm::SlidingWindowBuckets(SlidingBuckets { rate, buckets })
        }
        Algorithm::TokenBucket(it) => {
            types::Algorithm::TokenBucket(Bucket { burst: it.burst, rate: rate(it.rate) })
        }
        Algorithm::Gcra(it) => {
            types::Algorithm::Gcra(Bucket { burst: it.burst, rate: rate(it.rate) })
        }
        Algorithm::LeakyBucket(it) => types::Algorithm::LeakyBucket(LeakyBucket {
            burst: it.burst,
            rate: rate(it.rate),
            max_delay_ms: it.max_delay_ms,
        }),
        Algorithm::Concurrency(it) => types::Algorithm::Concurrency(it.amount),
        Algorithm::Quota(it) => {
            let (calendar, anchor_day) = match it.calendar {
                Calendar::Hour(_) => (types::Calendar::Hour, 1),
                Calendar::Day(_) => (types::Calendar::Day, 1),
                Calendar::Week(_) => (types::Calendar::Week, 1),
                Calendar::Month { anchor_day, .. } => (types::Calendar::Month, anchor_day),
                Calendar::Forever => (types::Calendar::Forever, 1),
            };
            let time_zone = it.calendar.time_zone().map_or("UTC", |zone| zone.name()).to_owned();
            let (amount, conditional) = (it.amount, it.conditional);
            types::Algorithm::Quota(Quota { amount, calendar, time_zone, anchor_day, conditional })
        }
        Algorithm::Script(it) => types::Algorithm::Script(Script {
            name: (*it.name).to_owned(),
            arguments: it.arguments.to_vec(),
        }),
    }
}

#[cfg(test)]
mod tests;
