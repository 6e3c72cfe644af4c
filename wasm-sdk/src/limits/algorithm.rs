//! The algorithms of the limits table: which keys belong to which, and every range that their
//! numbers must keep.
//!
//! The ranges are those of the proxy's own plans. It checks them again for each answer; here an
//! operator reads of them at the line that is wrong.

use serde::Deserialize;

use crate::Rate;
use crate::bindings::weir::policy::types::{
    self, Bucket, FixedWindow, LeakyBucket, Quota, Script, SlidingBuckets,
};
use crate::limits::period::{DELAY, PERIOD};
use crate::limits::written::{Report, Written};
use crate::names::is_name;

/// The algorithms that may be written.
pub(super) const ALGORITHMS: &str = "one of `fixed_window`, `sliding_window_counter`, `sliding_window_log`, `sliding_window_buckets`, \
                                     `token_bucket`, `gcra`, `leaky_bucket`, `concurrency`, `quota`, `script`";

const PERIOD_MS_MAX: u64 = 400 * 24 * 3_600_000;
const PERIOD_MS_MAX_FOR_MICROSECONDS: u64 = 3_600_000;
const BURST_PERIOD_MAX: u64 = 1 << 52;
/// Units that a log remembers, at most, and that a request takes of a log or of what may be in
/// flight.
const MEMBERS_MAX: u64 = 10_000;
const BUCKETS_MAX: u64 = 1_000;
const BUCKETS_DEFAULT: u32 = 60;
/// Of a leaky bucket: what is shaped passes one by one unless it is said otherwise.
const LEAKY_BURST_DEFAULT: u64 = 1;
/// Numbers of a script, and the largest of them.
const ARGUMENTS_MAX: usize = 6;
const ARGUMENT_MAX: u64 = 1 << 53;
const TIME_ZONE_DEFAULT: &str = "UTC";

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub(super) enum Algorithm {
    FixedWindow,
    SlidingWindowCounter,
    SlidingWindowLog,
    SlidingWindowBuckets,
    TokenBucket,
    Gcra,
    LeakyBucket,
    Concurrency,
    Quota,
    Script,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Alignment {
    FirstRequest,
    Clock,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub(super) enum Calendar {
    Hour,
    Day,
    Week,
    Month,
    Forever,
}

impl Algorithm {
    /// Its name, as it is written.
    fn name(self) -> &'static str {
        ALGORITHMS.split('`').skip(1).step_by(2).nth(self as usize).unwrap_or_default()
    }

    fn is_bucket(self) -> bool {
        matches!(self, Self::TokenBucket | Self::Gcra | Self::LeakyBucket)
    }

    fn has_rate(self) -> bool {
        !matches!(self, Self::Concurrency | Self::Quota | Self::Script)
    }

    /// The keys that don't belong to it, each with those that it belongs to.
    fn foreign_keys(self) -> impl Iterator<Item = (&'static str, &'static str)> {
        let keys = [
            (self != Self::Script, "quota", "Weir's own algorithms"),
            (self.has_rate(), "period", "algorithms with a rate"),
            (self.is_bucket(), "burst", "token_bucket, gcra and leaky_bucket"),
            (self == Self::FixedWindow, "alignment", "fixed_window"),
            (self == Self::SlidingWindowBuckets, "buckets", "sliding_window_buckets"),
            (self == Self::LeakyBucket, "max_delay", "leaky_bucket"),
            (self == Self::Quota, "calendar", "quota"),
            (self == Self::Quota, "time_zone", "quota"),
            (self == Self::Quota, "anchor_day", "quota"),
            (self == Self::Quota, "conditional", "quota"),
            (self == Self::Script, "script", "script"),
            (self == Self::Script, "arguments", "script"),
        ];
        keys.into_iter().filter(|(own, ..)| !own).map(|(_, key, only)| (key, only))
    }
}

/// Checks everything of a limit that its algorithm gives a meaning to.
pub(super) fn check(limit: &Written, report: &mut Report) {
    report.needed("algorithm", limit.algorithm.as_ref(), ALGORITHMS);
    if let Some(algorithm) = limit.algorithm {
        for (key, only) in algorithm.foreign_keys() {
            if let Some(value) = report.item.get(key) {
                report.add(
                    key,
                    value,
                    format_args!(
                        "nothing: `{key}` does not belong to {}, only to {only}",
                        algorithm.name()
                    ),
                );
            }
        }
    }
    let units = match limit.algorithm {
        Some(Algorithm::Concurrency) => "how many requests may be in flight, such as `quota = 10`",
        _ => "the units that each period allows, such as `quota = 100`",
    };
    if limit.algorithm == Some(Algorithm::Script) {
        limit.check_script(report);
        return;
    }
    report.needed("quota", limit.quota.as_ref(), units);
    let quota_fits = limit.quota.is_none_or(|quota| report.amount("quota", quota));
    let burst_fits = limit.written_burst().is_none_or(|burst| report.amount("burst", burst));
    match limit.algorithm {
        Some(Algorithm::Concurrency) => {}
        Some(Algorithm::Quota) => limit.check_calendar(report),
        Some(_) => limit.check_rate(quota_fits && burst_fits, report),
        // It may be one that has no period.
        None if report.item.get("algorithm").is_some() => {}
        None => limit.check_rate(quota_fits && burst_fits, report),
    }
    match (limit.algorithm, limit.quota, limit.buckets) {
        (Some(Algorithm::SlidingWindowLog), Some(quota), _) if quota > MEMBERS_MAX => {
            report.add(
                "quota",
                quota,
                format_args!("at most {MEMBERS_MAX}: a log remembers each unit"),
            );
        }
        (Some(Algorithm::SlidingWindowBuckets), _, Some(buckets))
            if !(1..=BUCKETS_MAX).contains(&buckets) =>
        {
            report.add("buckets", buckets, format_args!("1 to {BUCKETS_MAX} sub-windows"));
        }
        _ => {}
    }
    limit.check_cost(report);
}

impl Written {
    /// What a bucket's burst is, where the algorithm is a bucket and a burst is written.
    fn written_burst(&self) -> Option<u64> {
        self.burst.filter(|_| self.algorithm.is_some_and(Algorithm::is_bucket))
    }

    /// How many units may come at once. A burst that didn't fit is unknown, not the default.
    fn capacity(&self, report: &Report) -> Option<u64> {
        match (self.algorithm?, self.burst) {
            (algorithm, Some(burst)) if algorithm.is_bucket() => Some(burst),
            (algorithm, None) if algorithm.is_bucket() && report.item.get("burst").is_some() => {
                None
            }
            (Algorithm::LeakyBucket, None) => Some(LEAKY_BURST_DEFAULT),
            _ => self.quota,
        }
    }

    /// The largest cost that can ever pass, where that is known and there is one.
    fn most(&self, report: &Report) -> Option<u64> {
        match self.algorithm? {
            Algorithm::Quota if self.conditional == Some(false) => None,
            Algorithm::LeakyBucket => {
                let waiting =
                    self.max_delay?.ms.checked_mul(self.quota?)?.checked_div(self.period?.ms)?;
                self.capacity(report)?.checked_add(waiting)
            }
            _ => self.capacity(report),
        }
    }

    /// The period, and that its products stay whole numbers in every engine.
    fn check_rate(&self, amounts_fit: bool, report: &mut Report) {
        report.needed("period", self.period.as_ref(), "a duration, such as `period = \"1m\"`");
        if self.algorithm == Some(Algorithm::LeakyBucket) {
            report.needed(
                "max_delay",
                self.max_delay.as_ref(),
                "the longest that a request may wait, such as `max_delay = \"500ms\"`",
            );
        }
        let delay_ms = self
            .max_delay
            .filter(|_| self.algorithm == Some(Algorithm::LeakyBucket))
            .map_or(0, |delay| delay.ms);
        if delay_ms > PERIOD_MS_MAX {
            report.add("max_delay", report.written("max_delay"), DELAY);
        }
        let Some(per_ms) = self.period.map(|period| period.ms) else { return };
        if per_ms == 0 || per_ms > PERIOD_MS_MAX {
            report.add("period", report.written("period"), PERIOD);
            return;
        }
        // Above the amounts' own range the product says nothing new.
        let Some(capacity) =
            self.capacity(report).filter(|_| amounts_fit && delay_ms <= PERIOD_MS_MAX)
        else {
            return;
        };
        // Time is counted in microseconds where the period is short, and else in milliseconds.
        let a_ms = if per_ms <= PERIOD_MS_MAX_FOR_MICROSECONDS { 1_000 } else { 1 };
        let units = per_ms * a_ms;
        let burst = capacity.saturating_mul(units);
        if burst > BURST_PERIOD_MAX {
            let field = if self.written_burst().is_some() { "burst" } else { "quota" };
            let most = BURST_PERIOD_MAX / units;
            report.add(
                field,
                capacity,
                format_args!("0 to {most} with a period of {}", report.written("period")),
            );
            return;
        }
        // What may wait is debt like the burst.
        let waiting = (delay_ms * a_ms).saturating_mul(self.quota.unwrap_or(0));
        if waiting.saturating_add(burst) > BURST_PERIOD_MAX {
            let most_ms = (BURST_PERIOD_MAX - burst) / (a_ms * self.quota.unwrap_or(1).max(1));
            let expected = format_args!(
                "\"0ms\" to \"{most_ms}ms\" with this quota, burst and a period of {}",
                report.written("period")
            );
            report.add("max_delay", report.written("max_delay"), expected);
        }
    }

    fn check_calendar(&self, report: &mut Report) {
        report.needed(
            "calendar",
            self.calendar.as_ref(),
            "one of `hour`, `day`, `week`, `month`, `forever`",
        );
        if let Some(zone) = self.time_zone.as_deref() {
            // The zones' names are the proxy's to know: it checks them at the same line.
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_+-/".contains(&byte);
            if self.calendar == Some(Calendar::Forever) {
                report.add(
                    "time_zone",
                    format_args!("{zone:?}"),
                    "nothing: `forever` begins nowhere",
                );
            } else if zone.is_empty() || !zone.bytes().all(plain) {
                report.add(
                    "time_zone",
                    format_args!("{zone:?}"),
                    "a name of the IANA database, such as \"Europe/Berlin\"",
                );
            }
        }
        if let Some(day) = self.anchor_day {
            if self.calendar.is_some_and(|calendar| calendar != Calendar::Month) {
                report.add(
                    "anchor_day",
                    day,
                    "nothing: only a `month` begins on a day that is chosen",
                );
            } else if !(1..=31).contains(&day) {
                report.add("anchor_day", day, "1 to 31");
            }
        }
    }

    /// Whether there is such a script is the proxy's to know: it checks the name at the same line.
    fn check_script(&self, report: &mut Report) {
        report.needed(
            "script",
            self.script.as_ref(),
            "the name of a script, such as `script = \"mine\"` for `mine.lua`",
        );
        if let Some(name) = self.script.as_deref().filter(|name| !is_name(name)) {
            report.add("script", format_args!("{name:?}"), "the name of a script, without `.lua`");
        }
        let arguments = self.arguments.as_deref().unwrap_or_default();
        if arguments.len() > ARGUMENTS_MAX {
            report.add(
                "arguments",
                format_args!("{} numbers", arguments.len()),
                format_args!("at most {ARGUMENTS_MAX}"),
            );
        }
        if let Some(far) = arguments.iter().find(|argument| argument.unsigned_abs() > ARGUMENT_MAX)
        {
            report.add("arguments", far, "whole numbers of at most 2^53 either way");
        }
        report.amount("cost", self.cost);
    }

    /// That some request can pass. A quota of 0 is how a limit is written that lets none pass, and
    /// is left alone.
    fn check_cost(&self, report: &mut Report) {
        if !report.amount("cost", self.cost) {
            return;
        }
        let members =
            matches!(self.algorithm, Some(Algorithm::SlidingWindowLog | Algorithm::Concurrency));
        if members && self.cost > MEMBERS_MAX {
            report.add(
                "cost",
                self.cost,
                format_args!("at most {MEMBERS_MAX}: each unit is remembered"),
            );
            return;
        }
        if self.quota.is_none_or(|quota| quota == 0) {
            return;
        }
        if self.most(report) == Some(0) {
            report.add(
                "burst",
                0,
                "1 or more: with 0 no request could ever pass (to refuse all, write `quota = 0`)",
            );
        } else if let Some(most) = self.most(report).filter(|most| self.cost > *most) {
            let what = match self.algorithm {
                Some(Algorithm::LeakyBucket) => "the burst and what may wait",
                _ if self.written_burst().is_some() => "the burst",
                _ => "the quota",
            };
            report.add(
                "cost",
                self.cost,
                format_args!("at most {what}, {most}: such a request could never pass"),
            );
        }
    }

    /// The algorithm with its numbers: of a limit without mistakes.
    pub(super) fn algorithm(&self) -> Option<types::Algorithm> {
        if self.algorithm == Some(Algorithm::Script) {
            let arguments = self.arguments.clone().unwrap_or_default();
            return Some(types::Algorithm::Script(Script {
                name: self.script.clone()?,
                arguments,
            }));
        }
        let quota = self.quota?;
        let rate = || Some(Rate { amount: quota, per_ms: self.period?.ms });
        let bucket = || Some(Bucket { burst: self.burst.unwrap_or(quota), rate: rate()? });
        Some(match self.algorithm? {
            Algorithm::FixedWindow => {
                let alignment = match self.alignment {
                    None | Some(Alignment::FirstRequest) => types::Alignment::FirstRequest,
                    Some(Alignment::Clock) => types::Alignment::Clock,
                };
                types::Algorithm::FixedWindow(FixedWindow { rate: rate()?, alignment })
            }
            Algorithm::SlidingWindowCounter => types::Algorithm::SlidingWindowCounter(rate()?),
            Algorithm::SlidingWindowLog => types::Algorithm::SlidingWindowLog(rate()?),
            Algorithm::SlidingWindowBuckets => {
                let buckets = self
                    .buckets
                    .map_or(Some(BUCKETS_DEFAULT), |buckets| u32::try_from(buckets).ok())?;
                types::Algorithm::SlidingWindowBuckets(SlidingBuckets { rate: rate()?, buckets })
            }
            Algorithm::TokenBucket => types::Algorithm::TokenBucket(bucket()?),
            Algorithm::Gcra => types::Algorithm::Gcra(bucket()?),
            Algorithm::LeakyBucket => {
                let burst = self.burst.unwrap_or(LEAKY_BURST_DEFAULT);
                types::Algorithm::LeakyBucket(LeakyBucket {
                    burst,
                    rate: rate()?,
                    max_delay_ms: self.max_delay?.ms,
                })
            }
            Algorithm::Concurrency => types::Algorithm::Concurrency(quota),
            Algorithm::Quota => types::Algorithm::Quota(Quota {
                amount: quota,
                calendar: match self.calendar? {
                    Calendar::Hour => types::Calendar::Hour,
                    Calendar::Day => types::Calendar::Day,
                    Calendar::Week => types::Calendar::Week,
                    Calendar::Month => types::Calendar::Month,
                    Calendar::Forever => types::Calendar::Forever,
                },
                time_zone: self.time_zone.clone().unwrap_or_else(|| TIME_ZONE_DEFAULT.to_owned()),
                anchor_day: u8::try_from(self.anchor_day.unwrap_or(1)).ok()?,
                conditional: self.conditional.unwrap_or(true),
            }),
            // Above: it has no quota.
            Algorithm::Script => return None,
        })
    }
}

#[cfg(test)]
mod tests;
