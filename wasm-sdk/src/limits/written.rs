//! One limit as it stands in the configuration, and every range that it must keep.

use std::fmt::Display;

use serde::Deserialize;
use serde_json::Value;

use crate::bindings::weir::policy::types::{self, Bucket, FixedWindow};
use crate::config::join;
use crate::limits::built;
use crate::limits::missing::Missing;
use crate::limits::period::Period;
use crate::mistakes::Mistakes;
use crate::names::{NAME_EXPECTED, is_name};
use crate::{Conditions, Enforcement, Limit, Rate, Template};

const AMOUNT_MAX: u64 = 1 << 31;
const PERIOD_MS_MAX: u64 = 400 * 24 * 3_600_000;
const PERIOD_MS_MAX_FOR_MICROSECONDS: u64 = 3_600_000;
const BURST_PERIOD_MAX: u64 = 1 << 52;

/// What has no default is an `Option` too: what is missing is then reported together with everything else.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Written {
    name: Option<String>,
    #[serde(default, deserialize_with = "built::algorithm")]
    algorithm: Option<Algorithm>,
    quota: Option<u64>,
    period: Option<Period>,
    burst: Option<u64>,
    alignment: Option<Alignment>,
    key: Option<Template>,
    missing: Option<Missing>,
    when: Option<Conditions>,
    #[serde(default = "one")]
    cost: u64,
    #[serde(default)]
    shadow: bool,
    #[serde(default)]
    refund: Refund,
    #[serde(default, deserialize_with = "built::on_store_error")]
    on_store_error: Option<Fallback>,
    unit: Option<String>,
}

/// Which requests a limit is about, and whose allowance it counts.
#[derive(Clone, Debug)]
pub(super) struct Extent {
    pub(super) key: Option<Template>,
    pub(super) missing: Option<Missing>,
    pub(super) when: Option<Conditions>,
}

impl Extent {
    /// Whether some request may have no such key: those facts that each request has are no reason.
    pub(super) fn may_lack_key(&self) -> bool {
        let always = ["client-ip", "method", "scheme", "path", "route", "http.version"];
        self.key.as_ref().is_some_and(|key| key.facts().any(|fact| !always.contains(&fact)))
    }
}

fn one() -> u64 {
    1
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub(super) enum Algorithm {
    FixedWindow,
    TokenBucket,
    Gcra,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Alignment {
    FirstRequest,
    Clock,
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
pub(super) enum Fallback {
    Allow,
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

    /// A setting that is needed. One that was written and didn't fit is reported already.
    fn needed<T>(&mut self, field: &str, value: Option<&T>, expected: &str) {
        if value.is_none() && self.item.get(field).is_none() {
            self.add("", format_args!("no `{field}`"), expected);
        }
    }

    /// Whether an amount keeps its range.
    fn amount(&mut self, field: &str, amount: u64) -> bool {
        if amount > AMOUNT_MAX {
            self.add(field, amount, format_args!("0 to {AMOUNT_MAX}"));
        }
        amount <= AMOUNT_MAX
    }

    /// A setting that this algorithm doesn't have would do nothing: that is said, not passed over.
    fn foreign(&mut self, field: &str, algorithm: &str, only: &str) {
        if let Some(value) = self.item.get(field) {
            self.add(field, value, format_args!("nothing: `{field}` does not belong to {algorithm}, only to {only}"));
        }
    }
}

impl Written {
    /// The limit that policies answer, with its key template; `None` after a mistake was reported. `item` is what `self` was read from.
    pub(super) fn check(self, at: &str, item: &Value, mistakes: &mut Mistakes) -> Option<(Limit, Extent)> {
        let mut report = Report { at, item, mistakes, found: false };
        report.needed("name", self.name.as_ref(), "a name, such as `name = \"per-minute\"`");
        if let Some(name) = self.name.as_deref().filter(|name| !is_name(name)) {
            report.add("name", format_args!("{name:?}"), NAME_EXPECTED);
        }
        if let Some(unit) = self.unit.as_deref().filter(|unit| !is_name(unit)) {
            report.add("unit", format_args!("{unit:?}"), NAME_EXPECTED);
        }
        report.needed("algorithm", self.algorithm.as_ref(), built::ALGORITHMS);
        self.check_foreign(&mut report);
        let rate = self.check_rate(&mut report);
        self.check_cost(&mut report);
        if report.found {
            return None;
        }
        let limit = Limit {
            algorithm: self.algorithm(rate?)?,
            name: self.name?,
            key: String::new(),
            tag: None,
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
                Some(Fallback::Deny) => types::Fallback::Deny,
            },
        };
        Some((limit, Extent { key: self.key, missing: self.missing, when: self.when }))
    }

    fn check_foreign(&self, report: &mut Report) {
        match self.algorithm {
            Some(Algorithm::FixedWindow) => report.foreign("burst", "fixed_window", "token_bucket and gcra"),
            Some(Algorithm::TokenBucket) => report.foreign("alignment", "token_bucket", "fixed_window"),
            Some(Algorithm::Gcra) => report.foreign("alignment", "gcra", "fixed_window"),
            None => {}
        }
    }

    /// What a bucket's burst is, where the algorithm is a bucket and a burst is written.
    fn written_burst(&self) -> Option<u64> {
        self.burst.filter(|_| matches!(self.algorithm, Some(Algorithm::TokenBucket | Algorithm::Gcra)))
    }

    /// The most units that this limit can hold. A burst that didn't fit is unknown, not the quota.
    fn capacity(&self, item: &Value) -> Option<u64> {
        match (self.algorithm?, self.burst) {
            (Algorithm::TokenBucket | Algorithm::Gcra, Some(burst)) => Some(burst),
            (Algorithm::TokenBucket | Algorithm::Gcra, None) if item.get("burst").is_some() => None,
            _ => self.quota,
        }
    }

    /// Quota and period, and that their product stays a whole number in every engine.
    fn check_rate(&self, report: &mut Report) -> Option<Rate> {
        report.needed("quota", self.quota.as_ref(), "the units that each period allows, such as `quota = 100`");
        let quota_fits = self.quota.is_none_or(|quota| report.amount("quota", quota));
        let burst_fits = self.written_burst().is_none_or(|burst| report.amount("burst", burst));
        // An algorithm that is known but not built may have no period.
        if self.algorithm.is_some() || report.item.get("algorithm").is_none() {
            report.needed("period", self.period.as_ref(), "a duration, such as `period = \"1m\"`");
        }
        let per_ms = self.period?.ms;
        if per_ms == 0 || per_ms > PERIOD_MS_MAX {
            report.add("period", format_args!("{per_ms} ms"), "1ms to 400d");
            return None;
        }
        let (units, unit) =
            if per_ms <= PERIOD_MS_MAX_FOR_MICROSECONDS { (per_ms * 1_000, "microseconds") } else { (per_ms, "milliseconds") };
        // Above the amounts' own range the product says nothing new.
        if let Some(capacity) = self.capacity(report.item).filter(|_| quota_fits && burst_fits)
            && capacity.saturating_mul(units) > BURST_PERIOD_MAX
        {
            let field = if self.written_burst().is_some() { "burst" } else { "quota" };
            report.add(field, format_args!("{capacity} in {units} {unit}"), "a product of both of at most 2^52");
        }
        Some(Rate { amount: self.quota?, per_ms })
    }

    /// That some request can pass. A quota of 0 is how a limit is written that lets none pass, and is left alone.
    fn check_cost(&self, report: &mut Report) {
        if !report.amount("cost", self.cost) || self.quota.is_none_or(|quota| quota == 0) {
            return;
        }
        let field = if self.written_burst().is_some() { "burst" } else { "quota" };
        match self.capacity(report.item) {
            Some(0) => report.add("burst", 0, "1 or more: with 0 no request could ever pass (to refuse all, write `quota = 0`)"),
            Some(most) if self.cost > most => {
                report.add("cost", self.cost, format_args!("at most the {field}, {most}: such a request could never pass"));
            }
            _ => {}
        }
    }

    fn algorithm(&self, rate: Rate) -> Option<types::Algorithm> {
        let burst = self.burst.unwrap_or(rate.amount);
        Some(match self.algorithm? {
            Algorithm::FixedWindow => {
                let alignment = match self.alignment {
                    None | Some(Alignment::FirstRequest) => types::Alignment::FirstRequest,
                    Some(Alignment::Clock) => types::Alignment::Clock,
                };
                types::Algorithm::FixedWindow(FixedWindow { rate, alignment })
            }
            Algorithm::TokenBucket => types::Algorithm::TokenBucket(Bucket { burst, rate }),
            Algorithm::Gcra => types::Algorithm::Gcra(Bucket { burst, rate }),
        })
    }
}
