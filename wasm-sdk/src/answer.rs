//! Builders for what a policy answers. The types are the contract's own; whatever is not set here
//! has the contract's default. A source that uses them, and no literals of these types, still
//! compiles when a later contract has more fields.

use std::time::Duration;

use weir_algorithms::{AMOUNT_MAX, PERIOD_MS_MAX};

use crate::bindings::weir::policy::types::{
    Body, BodyChange, Bucket, FixedWindow, LeakyBucket, Named, Script, SlidingBuckets,
};
use crate::{
    Adjustment, Algorithm, Alignment, Calendar, Change, Debt, Decision, Denial, Enforcement,
    Fallback, Limit, Manifest, Quota, Rate, Refund, Settlement, Value, Verdict, bounded_key,
};

/// Maximum length of a label's value, in bytes.
const LABEL_BYTES_MAX: usize = 256;

impl Decision {
    fn of(verdict: Verdict) -> Self {
        Self {
            verdict,
            upstream_headers: Vec::new(),
            response_headers: Vec::new(),
            labels: Vec::new(),
            settle_with: None,
            settle_on_refusal: false,
            body_changes: Vec::new(),
            metering: None,
            valid_until_ms: None,
            options: Vec::new(),
        }
    }

    /// Lets the request through without counting anything.
    #[must_use]
    pub fn bypass() -> Self {
        Self::of(Verdict::Bypass)
    }

    /// Charges every limit, or none.
    #[must_use]
    pub fn check(limits: impl IntoIterator<Item = Limit>) -> Self {
        Self::of(Verdict::Check(limits.into_iter().collect()))
    }

    /// Refuses without checking any limit.
    #[must_use]
    pub fn deny(denial: Denial) -> Self {
        Self::of(Verdict::Deny(denial))
    }

    /// Sets a field on the request to the upstream. Framing, hop-by-hop fields and Host are
    /// refused, and so is a value of more than 4,096 characters, with a blank at an end, with
    /// control characters, or with characters beyond U+00FF, of which each below is one byte: what
    /// clients choose has to be checked before.
    #[must_use]
    pub fn upstream_header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.upstream_headers.push((name.into(), value.into()));
        self
    }

    /// Sets a field on the response. Framing and hop-by-hop fields are refused, and values as in
    /// [`Decision::upstream_header`].
    #[must_use]
    pub fn response_header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.response_headers.push((name.into(), value.into()));
        self
    }

    /// Adds a label to the access log, and to the metrics where the configuration lists it. The
    /// name is `[a-z0-9._-]{1,64}`. Of a long value 256 bytes are kept, and control characters
    /// become blanks. A decision has 16 labels at most, and of two with one name the later.
    #[must_use]
    pub fn label(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        set(&mut self.labels, name.into(), label_value(value.into()));
        self
    }

    /// Asks for a call of [`Policy::settle`](crate::Policy::settle) at the end of the response,
    /// with this memo of at most 4,096 bytes.
    #[must_use]
    pub fn settle_with(mut self, memo: impl Into<String>) -> Self {
        self.settle_with = Some(memo.into());
        self
    }

    /// [`Policy::settle`](crate::Policy::settle) is called too if a limit refuses the request, with
    /// [`Outcome::Refused`]. It may then charge the limits, of which nothing was taken. Has no
    /// effect without [`Decision::settle_with`].
    #[must_use]
    pub fn settle_refusals(mut self) -> Self {
        self.settle_on_refusal = true;
        self
    }

    /// Sets a value in the request's JSON body. `json` is the value as JSON: `true`, `"text"`.
    #[must_use]
    pub fn body_change(mut self, pointer: impl Into<String>, json: impl Into<String>) -> Self {
        self.body_changes.push(BodyChange { pointer: pointer.into(), json: json.into() });
        self
    }

    /// Sets the time until which this decision is right, in milliseconds since 1970. If the
    /// manifest says [`pure`](Manifest::pure), the proxy may remember it until then, even if it
    /// depends on the time. [`LocalTime::next`](crate::LocalTime::next) is when clocks show an hour
    /// next.
    #[must_use]
    pub fn valid_until_ms(mut self, unix_ms: u64) -> Self {
        self.valid_until_ms = Some(unix_ms);
        self
    }

    /// Sets how much the request matters where an upstream can't have all of them at once: 0 to 7,
    /// and more goes first. Without it, the route says so.
    #[must_use]
    pub fn priority(self, priority: u8) -> Self {
        self.option("priority", priority.to_string())
    }

    /// Sets whose request it is where those who wait for an upstream share what there is. Without
    /// it, requests with equal keys of all limits are one sender's. A long key is bounded as
    /// [`bounded_key`] does it.
    #[must_use]
    pub fn fair_key(self, key: impl Into<String>) -> Self {
        self.option("fair-key", bounded_key(key.into()))
    }

    /// What a limit refuses is answered with this text, of at most 64 KiB, instead of a problem
    /// document. `{retry_after}` (seconds), `{when}` (`in 12 seconds`, or `later`), `{limit}` (the
    /// limits that refused), `{detail}`, `{status}`, `{title}`, `{request_id}` and `{route}` in it
    /// stand for what is known then; other braces are text. In JSON, write `{` of a client's words
    /// as an escape.
    #[must_use]
    pub fn refusal_body(self, media_type: impl Into<String>, text: impl Into<String>) -> Self {
        self.option("refusal-type", media_type).option("refusal-body", text)
    }

    /// Sets the status of that reply, 200 or 400 to 599, instead of 429. Only with
    /// [`refusal_body`](Self::refusal_body).
    #[must_use]
    pub fn refusal_status(self, status: u16) -> Self {
        self.option("refusal-status", status.to_string())
    }

    /// Sets an option of the contract by its name. The proxy refuses one that it does not know.
    #[must_use]
    pub fn option(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        set(&mut self.options, name.into(), value.into());
        self
    }

    /// The limits to be charged: none if the request is let through or refused outright.
    #[must_use]
    pub fn limits(&self) -> &[Limit] {
        match &self.verdict {
            Verdict::Check(limits) => limits,
            Verdict::Bypass | Verdict::Deny(_) => &[],
        }
    }
}

impl Denial {
    /// A refusal with a status of 400 to 599.
    #[must_use]
    pub fn new(status: u16, reason: impl Into<String>) -> Self {
        Self {
            status,
            reason: reason.into(),
            retry_after_ms: None,
            headers: Vec::new(),
            body: None,
        }
    }

    /// Answers with this text, of at most 16 KiB, instead of a problem document.
    #[must_use]
    pub fn body(mut self, media_type: impl Into<String>, text: impl Into<String>) -> Self {
        self.body = Some(Body { media_type: media_type.into(), text: text.into() });
        self
    }

    /// Tells the client when to retry, after 400 days at most.
    #[must_use]
    pub fn retry_after(mut self, wait: Duration) -> Self {
        self.retry_after_ms = Some(milliseconds(wait).min(PERIOD_MS_MAX));
        self
    }

    /// Sets a field on the response.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }
}

impl Limit {
    /// A limit of cost 1 that is enforced and never given back.
    #[must_use]
    pub fn new(name: impl Into<String>, key: impl Into<String>, algorithm: Algorithm) -> Self {
        Self {
            name: name.into(),
            key: key.into(),
            tag: None,
            algorithm,
            cost: 1,
            unit: None,
            enforcement: Enforcement::Enforce,
            refund: Refund::Never,
            debt: None,
            on_store_error: Fallback::RouteDefault,
            options: Vec::new(),
        }
    }

    /// Sets an option of the contract by its name. The proxy refuses one that it does not know.
    #[must_use]
    pub fn option(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        set(&mut self.options, name.into(), value.into());
        self
    }

    /// Sets the tag: limits with the same tag are decided in one atomic script.
    #[must_use]
    pub fn tag(mut self, tag: impl Into<String>) -> Self {
        self.tag = Some(tag.into());
        self
    }

    /// Sets the units that this request takes.
    #[must_use]
    pub fn cost(mut self, cost: u64) -> Self {
        self.cost = cost;
        self
    }

    /// Counts and reports, never refuses.
    #[must_use]
    pub fn shadow(mut self) -> Self {
        self.enforcement = Enforcement::Shadow;
        self
    }

    /// Lets charges of [`Adjustment::debt`] go this far beyond what is left.
    #[must_use]
    pub fn debt(mut self, debt: Debt) -> Self {
        self.debt = Some(debt);
        self
    }

    /// Sets when units are given back.
    #[must_use]
    pub fn refund(mut self, refund: Refund) -> Self {
        self.refund = refund;
        self
    }
}

impl Adjustment {
    /// Gives back `units`, but never more than the request took: `u64::MAX` gives all of it back.
    /// The limit's refund must be [`Refund::BySettle`].
    #[must_use]
    pub fn give_back(limit: impl Into<String>, units: u64) -> Self {
        let units = units.min(AMOUNT_MAX);
        Self { limit: limit.into(), change: Change::Units(0_i64.saturating_sub_unsigned(units)) }
    }

    /// Charges `units` more, 2^52 at most, if they still fit, else nothing.
    #[must_use]
    pub fn charge(limit: impl Into<String>, units: u64) -> Self {
        let units = units.min(AMOUNT_MAX);
        Self { limit: limit.into(), change: Change::Units(0_i64.saturating_add_unsigned(units)) }
    }

    /// Charges `units` more, 2^52 at most, whatever is left: into debt, as far as the limit's
    /// [`Limit::debt`] allows.
    #[must_use]
    pub fn debt(limit: impl Into<String>, units: u64) -> Self {
        Self { limit: limit.into(), change: Change::Debt(units.min(AMOUNT_MAX)) }
    }

    /// Resets the limit's counter: its key has the whole allowance again. The limit's refund must
    /// be [`Refund::BySettle`].
    #[must_use]
    pub fn reset(limit: impl Into<String>) -> Self {
        Self { limit: limit.into(), change: Change::Reset }
    }
}

impl Settlement {
    /// Changes nothing.
    #[must_use]
    pub fn nothing() -> Self {
        Self {
            adjustments: Vec::new(),
            labels: Vec::new(),
            amounts: Vec::new(),
            options: Vec::new(),
        }
    }

    /// Changes what one limit took.
    #[must_use]
    pub fn adjust(mut self, adjustment: Adjustment) -> Self {
        self.adjustments.push(adjustment);
        self
    }

    /// Adds a label to those of the decision, as [`Decision::label`] does. It replaces one of the
    /// decision with its name.
    #[must_use]
    pub fn label(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        set(&mut self.labels, name.into(), label_value(value.into()));
        self
    }

    /// Adds an amount to the access log, and to the metrics where the configuration lists it. The
    /// name is `[a-z0-9._-]{1,64}`. Two with one name are added up. More than 2^52 is 2^52.
    #[must_use]
    pub fn amount(mut self, name: impl Into<String>, units: u64) -> Self {
        let name = name.into();
        match self.amounts.iter_mut().find(|(known, _)| *known == name) {
            Some((_, sum)) => *sum = sum.saturating_add(units).min(AMOUNT_MAX),
            None => self.amounts.push((name, units.min(AMOUNT_MAX))),
        }
        self
    }
}

impl Default for Settlement {
    fn default() -> Self {
        Self::nothing()
    }
}

impl From<Vec<Adjustment>> for Settlement {
    fn from(adjustments: Vec<Adjustment>) -> Self {
        Self { adjustments, ..Self::nothing() }
    }
}

impl FromIterator<Adjustment> for Settlement {
    fn from_iter<I: IntoIterator<Item = Adjustment>>(adjustments: I) -> Self {
        Self::from(Vec::from_iter(adjustments))
    }
}

impl From<Adjustment> for Settlement {
    fn from(adjustment: Adjustment) -> Self {
        Self::nothing().adjust(adjustment)
    }
}

impl Algorithm {
    /// At most `quota` in each window of `period`. A window starts with its first request.
    #[must_use]
    pub fn fixed_window(quota: u64, period: Duration) -> Self {
        Self::FixedWindow(FixedWindow {
            rate: rate(quota, period),
            alignment: Alignment::FirstRequest,
        })
    }

    /// `quota` each `period` on average, and at most `burst` at once.
    #[must_use]
    pub fn token_bucket(quota: u64, period: Duration, burst: u64) -> Self {
        Self::TokenBucket(Bucket { burst, rate: rate(quota, period) })
    }

    /// The same guarantee as a token bucket, stored as one instant.
    #[must_use]
    pub fn gcra(quota: u64, period: Duration, burst: u64) -> Self {
        Self::Gcra(Bucket { burst, rate: rate(quota, period) })
    }

    /// About `quota` in each trailing `period`: approximate, in three integers per key.
    #[must_use]
    pub fn sliding_window_counter(quota: u64, period: Duration) -> Self {
        Self::SlidingWindowCounter(rate(quota, period))
    }

    /// At most `quota`, up to 10,000, in any span of `period`: each unit is stored.
    #[must_use]
    pub fn sliding_window_log(quota: u64, period: Duration) -> Self {
        Self::SlidingWindowLog(rate(quota, period))
    }

    /// At most `quota` in the last `buckets` sub-windows of `period`; 1 to 1,000 of them.
    #[must_use]
    pub fn sliding_window_buckets(quota: u64, period: Duration, buckets: u32) -> Self {
        Self::SlidingWindowBuckets(SlidingBuckets { rate: rate(quota, period), buckets })
    }

    /// Shapes: `burst` pass at once, requests that are early by at most `max_delay` wait for their
    /// turn, the rest are refused. At most one in a decision.
    #[must_use]
    pub fn leaky_bucket(quota: u64, period: Duration, burst: u64, max_delay: Duration) -> Self {
        Self::LeakyBucket(LeakyBucket {
            burst,
            rate: rate(quota, period),
            max_delay_ms: milliseconds(max_delay),
        })
    }

    /// At most `in_flight` requests at the same time.
    #[must_use]
    pub fn concurrency(in_flight: u64) -> Self {
        Self::Concurrency(in_flight)
    }

    /// The operator's own `NAME.lua`, with its arguments: at most six.
    #[must_use]
    pub fn script(name: impl Into<String>, arguments: impl Into<Vec<i64>>) -> Self {
        Self::Script(Script { name: name.into(), arguments: arguments.into() })
    }

    /// At most `quota` in each period of a calendar, in UTC, with months from their first day. Use
    /// [`Quota::new`] for other zones and days.
    #[must_use]
    pub fn quota(quota: u64, calendar: Calendar) -> Self {
        Self::Quota(Quota::new(quota, calendar))
    }

    /// An algorithm by its name, with its arguments by theirs, for one that this SDK has no
    /// function for: `named("gcra", [("quota", 10.into()), ("period-ms", 1_000.into())])`.
    #[must_use]
    pub fn named<'a>(
        name: impl Into<String>,
        arguments: impl IntoIterator<Item = (&'a str, Value)>,
    ) -> Self {
        let arguments = arguments.into_iter().map(|(name, value)| (name.to_owned(), value));
        Self::Named(Named { name: name.into(), arguments: arguments.collect() })
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Self {
        Self::Number(number)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl Quota {
    /// At most `amount` in each period, in UTC, with months from their first day.
    #[must_use]
    pub fn new(amount: u64, calendar: Calendar) -> Self {
        Self { amount, calendar, time_zone: "UTC".to_owned(), anchor_day: 1, conditional: true }
    }

    /// Periods begin in this zone of the IANA database, such as `Europe/Berlin`.
    #[must_use]
    pub fn time_zone(mut self, name: impl Into<String>) -> Self {
        self.time_zone = name.into();
        self
    }

    /// Months begin on this day, 1 to 31.
    #[must_use]
    pub fn anchor_day(mut self, day: u8) -> Self {
        self.anchor_day = day;
        self
    }

    /// Counts and shows what is left, and refuses nothing.
    #[must_use]
    pub fn unconditional(mut self) -> Self {
        self.conditional = false;
        self
    }
}

impl From<Quota> for Algorithm {
    fn from(quota: Quota) -> Self {
        Self::Quota(quota)
    }
}

impl Manifest {
    /// A policy that reads these facts.
    #[must_use]
    pub fn reads<S: Into<String>>(facts: impl IntoIterator<Item = S>) -> Self {
        Self {
            request_facts: Vec::new(),
            response_facts: Vec::new(),
            pure: false,
            limits: Vec::new(),
            warnings: Vec::new(),
            options: Vec::new(),
        }
        .and(facts)
    }

    /// Adds these facts. A fact that is read already is added only once. Names of header fields are
    /// put in lower case, as the proxy shows them.
    #[must_use]
    pub fn and<S: Into<String>>(mut self, facts: impl IntoIterator<Item = S>) -> Self {
        add_facts(&mut self.request_facts, facts);
        self
    }

    /// Facts of the response that [`Policy::settle`](crate::Policy::settle) reads, as
    /// [`Manifest::and`] adds those of the request.
    #[must_use]
    pub fn and_of_response<S: Into<String>>(mut self, facts: impl IntoIterator<Item = S>) -> Self {
        add_facts(&mut self.response_facts, facts);
        self
    }

    /// Promises the same decision for the same facts: the proxy may remember it. If the call asked
    /// for the time ([`now_ms`](crate::now_ms)), it may only if the decision says until when
    /// ([`Decision::valid_until_ms`]).
    #[must_use]
    pub fn pure(mut self) -> Self {
        self.pure = true;
        self
    }
}

fn add_facts<S: Into<String>>(known: &mut Vec<String>, facts: impl IntoIterator<Item = S>) {
    for mut fact in facts.into_iter().map(Into::into) {
        if ["header.", "trailer."].iter().any(|family| fact.starts_with(family)) {
            fact.make_ascii_lowercase();
        }
        if !known.contains(&fact) {
            known.push(fact);
        }
    }
}

/// Sets a value by its name: an answer has each name once.
fn set(pairs: &mut Vec<(String, String)>, name: String, value: String) {
    match pairs.iter_mut().find(|(known, _)| *known == name) {
        Some((_, known)) => *known = value,
        None => pairs.push((name, value)),
    }
}

/// A label's value as the log and metrics can have it: with blanks instead of control characters,
/// and cut at [`LABEL_BYTES_MAX`].
fn label_value(mut value: String) -> String {
    if value.len() > LABEL_BYTES_MAX {
        let end = (0..=LABEL_BYTES_MAX).rev().find(|end| value.is_char_boundary(*end));
        value.truncate(end.unwrap_or(0));
    }
    if value.chars().any(char::is_control) {
        value = value.replace(char::is_control, " ");
    }
    value
}

fn rate(amount: u64, period: Duration) -> Rate {
    Rate { amount, per_ms: milliseconds(period) }
}

pub(crate) fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_field_is_named_in_lower_case_and_once() {
        let manifest = Manifest::reads(["header.X-Api-Key", "path"]).and(["header.x-api-key"]);
        assert_eq!(manifest.request_facts, ["header.x-api-key", "path"]);
        assert_eq!(Manifest::reads(["query.Page"]).request_facts, ["query.Page"]);
        let manifest = manifest.and_of_response(["header.X-Cost", "header.x-cost"]);
        assert_eq!(manifest.response_facts, ["header.x-cost"]);
    }

    #[test]
    fn an_answer_has_each_name_once() {
        let decision = Decision::bypass().label("a", "1").label("b", "2").label("a", "3");
        let pairs = [("a".to_owned(), "3".to_owned()), ("b".to_owned(), "2".to_owned())];
        assert_eq!(decision.labels, pairs);
        let decision = decision.fair_key("x").fair_key("y");
        assert_eq!(decision.options, [("fair-key".to_owned(), "y".to_owned())]);
        let settled = Settlement::nothing().label("a", "1").label("a", "2");
        assert_eq!(settled.labels, [("a".to_owned(), "2".to_owned())]);
        let settled = settled.amount("n", 3).amount("m", 1).amount("n", 4);
        assert_eq!(settled.amounts, [("n".to_owned(), 7), ("m".to_owned(), 1)]);
    }

    #[test]
    fn what_clients_choose_breaks_no_bound_of_an_answer() {
        let long = "\u{e9}".repeat(3_000);
        let decision = Decision::bypass().label("a", "x\ny").label("b", &*long).fair_key(&*long);
        assert_eq!(decision.labels[0].1, "x y");
        assert_eq!(decision.labels[1].1, "\u{e9}".repeat(128));
        assert!(decision.options[0].1.len() < 100);
        let settled = Settlement::nothing().amount("n", u64::MAX).label("a", "\u{1b}[0m");
        assert_eq!((settled.amounts[0].1, &*settled.labels[0].1), (AMOUNT_MAX, " [0m"));
        let most = i64::try_from(AMOUNT_MAX).unwrap();
        let change = |adjustment: Adjustment| adjustment.change;
        assert!(
            matches!(change(Adjustment::give_back("a", u64::MAX)), Change::Units(n) if n == -most)
        );
        assert!(matches!(change(Adjustment::charge("a", u64::MAX)), Change::Units(n) if n == most));
    }
}
