//! One limit as it stands in the configuration, and every range that it must keep.

use std::fmt::Display;

use serde::Deserialize;
use serde_json::Value;

use crate::bindings::weir::policy::types::{self, Bucket, FixedWindow, LeakyBucket, Quota, SlidingBuckets};
use crate::config::join;
use crate::limits::period::Period;
use crate::limits::template::Template;
use crate::mistakes::Mistakes;
use crate::{Enforcement, Limit, Rate};

const AMOUNT_MAX: u64 = 1 << 31;
const PERIOD_MS_MAX: u64 = 400 * 24 * 3_600_000;
const PERIOD_MS_MAX_FOR_MICROSECONDS: u64 = 3_600_000;
const BURST_PERIOD_MAX: u64 = 1 << 52;
const LOG_QUOTA_MAX: u64 = 10_000;
const BUCKETS_MAX: u32 = 1_000;
const NAME_BYTES_MAX: usize = 64;
const BUCKETS_DEFAULT: u32 = 60;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Written {
    name: String,
    algorithm: Algorithm,
    quota: u64,
    period: Option<Period>,
    burst: Option<u64>,
    alignment: Option<Alignment>,
    buckets: Option<u32>,
    max_delay: Option<Period>,
    calendar: Option<Calendar>,
    time_zone: Option<String>,
    anchor_day: Option<u8>,
    conditional: Option<bool>,
    key: Option<Template>,
    #[serde(default = "one")]
    cost: u64,
    #[serde(default)]
    shadow: bool,
    #[serde(default)]
    refund: Refund,
    on_store_error: Option<Fallback>,
    unit: Option<String>,
}

fn one() -> u64 {
    1
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
enum Algorithm {
    FixedWindow,
    SlidingWindowCounter,
    SlidingWindowLog,
    SlidingWindowBuckets,
    TokenBucket,
    Gcra,
    LeakyBucket,
    Concurrency,
    Quota,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Alignment {
    FirstRequest,
    Clock,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
enum Calendar {
    Hour,
    Day,
    Week,
    Month,
    Forever,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Refund {
    #[default]
    Never,
    Unsent,
    UpstreamError,
    BySettle,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Fallback {
    Allow,
    Local,
    Deny,
}

/// Where mistakes of one limit go.
struct Report<'a> {
    at: &'a str,
    item: &'a Value,
    mistakes: &'a mut Mistakes,
    found: bool,
}

impl Report<'_> {
    fn add(&mut self, field: &str, found: impl Display, expected: impl Display) {
        self.found = true;
        self.mistakes.add(join(self.at, field), found, expected);
    }

    /// A setting that is needed and not there. One that was written and didn't fit is reported already.
    fn missing(&mut self, field: &str, expected: &str) {
        if self.item.get(field).is_none() {
            self.add("", format_args!("no `{field}`"), expected);
        }
    }

    fn amount(&mut self, field: &str, amount: u64, max: u64) {
        if amount > max {
            self.add(field, amount, format_args!("0 to {max}"));
        }
    }
}

impl Written {
    /// The limit that policies answer, with its key template; `None` after a mistake was reported. `item` is what `self` was read from.
    pub(super) fn check(self, at: &str, item: &Value, mistakes: &mut Mistakes) -> Option<(Limit, Option<Template>)> {
        let mut report = Report { at, item, mistakes, found: false };
        if !is_name(&self.name) {
            report.add("name", format_args!("{:?}", self.name), "1 to 64 of a-z 0-9 . _ -");
        }
        if let Some(unit) = self.unit.as_deref().filter(|unit| !is_name(unit)) {
            report.add("unit", format_args!("{unit:?}"), "1 to 64 of a-z 0-9 . _ -");
        }
        report.amount("cost", self.cost, AMOUNT_MAX);
        self.check_foreign(&mut report);
        let algorithm = self.check_algorithm(&mut report);
        if report.found {
            return None;
        }
        let limit = Limit {
            name: self.name,
            key: String::new(),
            tag: None,
            algorithm: algorithm?,
            cost: self.cost,
            unit: self.unit,
            enforcement: if self.shadow { Enforcement::Shadow } else { Enforcement::Enforce },
            refund: match self.refund {
                Refund::Never => types::Refund::Never,
                Refund::Unsent => types::Refund::Unsent,
                Refund::UpstreamError => types::Refund::UpstreamError,
                Refund::BySettle => types::Refund::BySettle,
            },
            on_store_error: match self.on_store_error {
                None => types::Fallback::RouteDefault,
                Some(Fallback::Allow) => types::Fallback::Allow,
                Some(Fallback::Local) => types::Fallback::Local,
                Some(Fallback::Deny) => types::Fallback::Deny,
            },
        };
        Some((limit, self.key))
    }

    /// A setting that this algorithm doesn't have would do nothing: that is said, not passed over.
    fn check_foreign(&self, report: &mut Report) {
        use Algorithm as A;
        let bucket = matches!(self.algorithm, A::TokenBucket | A::Gcra | A::LeakyBucket);
        let quota = self.algorithm == A::Quota;
        let here = [
            ("period", self.period.is_some(), !quota && self.algorithm != A::Concurrency, "no period with this algorithm"),
            ("burst", self.burst.is_some(), bucket, "a burst only with token_bucket, gcra or leaky_bucket"),
            ("alignment", self.alignment.is_some(), self.algorithm == A::FixedWindow, "an alignment only with fixed_window"),
            ("buckets", self.buckets.is_some(), self.algorithm == A::SlidingWindowBuckets, "buckets only with sliding_window_buckets"),
            ("max_delay", self.max_delay.is_some(), self.algorithm == A::LeakyBucket, "a delay only with leaky_bucket"),
            ("calendar", self.calendar.is_some(), quota, "a calendar only with quota"),
            ("time_zone", self.time_zone.is_some(), quota, "a time zone only with quota"),
            ("anchor_day", self.anchor_day.is_some(), quota, "an anchor day only with quota"),
            ("conditional", self.conditional.is_some(), quota, "this only with quota"),
        ];
        for (field, written, belongs, expected) in here {
            if written && !belongs {
                report.add(field, "it", expected);
            }
        }
    }

    fn check_algorithm(&self, report: &mut Report) -> Option<types::Algorithm> {
        use types::Algorithm as T;
        let quota_max = if self.algorithm == Algorithm::SlidingWindowLog { LOG_QUOTA_MAX } else { AMOUNT_MAX };
        report.amount("quota", self.quota, quota_max);
        Some(match self.algorithm {
            Algorithm::Concurrency => T::Concurrency(self.quota),
            Algorithm::Quota => T::Quota(self.check_quota(report)?),
            Algorithm::FixedWindow => {
                let alignment = match self.alignment {
                    None | Some(Alignment::FirstRequest) => types::Alignment::FirstRequest,
                    Some(Alignment::Clock) => types::Alignment::Clock,
                };
                T::FixedWindow(FixedWindow { rate: self.check_rate(report)?, alignment })
            }
            Algorithm::SlidingWindowCounter => T::SlidingWindowCounter(self.check_rate(report)?),
            Algorithm::SlidingWindowLog => T::SlidingWindowLog(self.check_rate(report)?),
            Algorithm::SlidingWindowBuckets => {
                let buckets = self.buckets.unwrap_or(BUCKETS_DEFAULT);
                if buckets == 0 || buckets > BUCKETS_MAX {
                    report.add("buckets", buckets, format_args!("1 to {BUCKETS_MAX}"));
                }
                T::SlidingWindowBuckets(SlidingBuckets { rate: self.check_rate(report)?, buckets })
            }
            Algorithm::TokenBucket => T::TokenBucket(Bucket { burst: self.capacity(), rate: self.check_rate(report)? }),
            Algorithm::Gcra => T::Gcra(Bucket { burst: self.capacity(), rate: self.check_rate(report)? }),
            Algorithm::LeakyBucket => {
                let max_delay_ms = self.max_delay.map_or(0, |delay| delay.ms);
                if max_delay_ms > PERIOD_MS_MAX {
                    report.add("max_delay", format_args!("{max_delay_ms} ms"), "at most 400 days");
                }
                T::LeakyBucket(LeakyBucket { burst: self.capacity(), rate: self.check_rate(report)?, max_delay_ms })
            }
        })
    }

    fn capacity(&self) -> u64 {
        self.burst.unwrap_or(self.quota)
    }

    /// Quota and period, and that their product stays a whole number in every engine.
    fn check_rate(&self, report: &mut Report) -> Option<Rate> {
        let Some(Period { ms: per_ms }) = self.period else {
            report.missing("period", "one");
            return None;
        };
        if per_ms == 0 || per_ms > PERIOD_MS_MAX {
            report.add("period", format_args!("{per_ms} ms"), "1ms to 400d");
            return None;
        }
        let burst = self.capacity();
        if self.burst.is_some() {
            report.amount("burst", burst, AMOUNT_MAX);
        }
        let (units, unit) =
            if per_ms <= PERIOD_MS_MAX_FOR_MICROSECONDS { (per_ms * 1_000, "microseconds") } else { (per_ms, "milliseconds") };
        // Above the amounts' own range the product says nothing new.
        if burst <= AMOUNT_MAX && burst.saturating_mul(units) > BURST_PERIOD_MAX {
            let field = if self.burst.is_some() { "burst" } else { "quota" };
            report.add(field, format_args!("{burst} in {units} {unit}"), "a product of both of at most 2^52");
        }
        Some(Rate { amount: self.quota, per_ms })
    }

    fn check_quota(&self, report: &mut Report) -> Option<Quota> {
        let Some(calendar) = self.calendar else {
            report.missing("calendar", "one of \"hour\", \"day\", \"week\", \"month\", \"forever\"");
            return None;
        };
        let anchor_day = self.anchor_day.unwrap_or(1);
        let last = if calendar == Calendar::Week { 7 } else { 31 };
        if anchor_day == 0 || anchor_day > last {
            report.add("anchor_day", anchor_day, format_args!("1 to {last}"));
        }
        Some(Quota {
            amount: self.quota,
            calendar: match calendar {
                Calendar::Hour => types::Calendar::Hour,
                Calendar::Day => types::Calendar::Day,
                Calendar::Week => types::Calendar::Week,
                Calendar::Month => types::Calendar::Month,
                Calendar::Forever => types::Calendar::Forever,
            },
            time_zone: self.time_zone.clone().unwrap_or_else(|| "UTC".to_owned()),
            anchor_day,
            conditional: self.conditional.unwrap_or(true),
        })
    }
}

fn is_name(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"._-".contains(&byte);
    !text.is_empty() && text.len() <= NAME_BYTES_MAX && text.bytes().all(plain)
}
