//! What the live page shows of the past: the metrics of each second of the last ten minutes, and
//! for each series how it grew. Bounded, and read from the metrics: requests do nothing for it.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;

use crate::telemetry::{HistogramSnapshot, Metrics, names};

/// Seconds that are remembered.
pub(super) const SPAN_S: f64 = 600.0;
/// Samples that are remembered: one a second, and one before them.
const SAMPLES_MAX: usize = 602;
/// Seconds that make one point of a chart.
pub(super) const POINT_S: f64 = 5.0;
/// Seconds that make one slot of a series.
const SLOT_S: f64 = 10.0;
/// Slots of a series that are remembered.
const SLOTS_MAX: usize = 60;
/// Slots that make a minute.
const SLOTS_OF_A_MINUTE: usize = 6;
/// Seconds whose times make one point of a chart of times: in fewer, a quiet proxy has too few.
const TIMES_S: f64 = 15.0;

/// Kinds of replies, as a chart shows them.
pub(super) const REPLIES: [&str; 4] = ["1xx to 3xx", "429", "other 4xx", "5xx"];
/// Kinds of decisions, as a chart shows them, each with the values of its label.
pub(super) const DECISIONS: [(&str, &[&str]); 4] = [
    ("admitted", &["admitted", "bypassed"]),
    ("refused", &["refused", "denied"]),
    ("let through uncounted", &["degraded", "local", "uncounted"]),
    ("refused undecided", &["unavailable", "failed"]),
];

/// Metrics at a moment.
#[derive(Clone, Debug, Default)]
pub(super) struct Totals {
    /// Replies, by [`REPLIES`].
    pub(super) replies: [u64; REPLIES.len()],
    /// Decisions, by [`DECISIONS`].
    pub(super) decisions: [u64; DECISIONS.len()],
    /// How long Weir took to decide.
    pub(super) deciding: HistogramSnapshot,
    /// How long upstreams took to answer.
    pub(super) upstream: HistogramSnapshot,
}

/// Metrics at a moment, and when that was.
#[derive(Clone, Debug, Default)]
struct Sample {
    /// The time in seconds since the history began.
    at_s: f64,
    totals: Totals,
}

/// A counter's series, and how each grew.
#[derive(Debug, Default)]
pub(super) struct Growth(BTreeMap<Vec<String>, Series>);

#[derive(Debug, Default)]
struct Series {
    total: u64,
    /// What was added in each slot, the newest last.
    slots: VecDeque<u32>,
}

/// How some series grew together.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Sum {
    /// The growth in each slot, the oldest first.
    pub(super) slots: Vec<f64>,
    /// The growth in the whole span.
    pub(super) all: u64,
    /// The growth in the last minute.
    pub(super) minute: u64,
}

/// The last ten minutes.
#[derive(Debug)]
pub(super) struct History {
    /// The oldest first.
    samples: VecDeque<Sample>,
    /// The number of the current slot.
    slot: u64,
    /// Requests by route and status code.
    pub(super) requests: Growth,
    /// Refusals by route and cause.
    pub(super) route_refusals: Growth,
    /// Decisions by policy and decision.
    pub(super) decisions: Growth,
    /// Counts by policy and limit.
    pub(super) limit_refusals: Growth,
    /// Counts by policy and limit.
    pub(super) would_refuse: Growth,
    /// Errors by policy and cause.
    pub(super) policy_errors: Growth,
    /// Errors by upstream and cause.
    pub(super) upstream_errors: Growth,
    /// The times of each upstream, once for each slot, the oldest first.
    upstreams: VecDeque<BTreeMap<String, HistogramSnapshot>>,
}

impl Default for History {
    /// Begins when the metrics do.
    fn default() -> Self {
        Self {
            samples: VecDeque::from([Sample::default()]),
            slot: 0,
            requests: Growth::default(),
            route_refusals: Growth::default(),
            decisions: Growth::default(),
            limit_refusals: Growth::default(),
            would_refuse: Growth::default(),
            policy_errors: Growth::default(),
            upstream_errors: Growth::default(),
            // The first is what they had before: nothing.
            upstreams: VecDeque::from([BTreeMap::new(), BTreeMap::new()]),
        }
    }
}

impl History {
    /// Adds what the metrics say now, `at_s` seconds after the history began.
    pub(super) fn note(&mut self, metrics: &Metrics, at_s: f64) {
        let slot = number_of(at_s, SLOT_S);
        let passed = usize::try_from(slot.saturating_sub(self.slot)).unwrap_or(usize::MAX);
        self.slot = slot.max(self.slot);
        let mut totals = Totals::default();
        self.requests.note(metrics, names::REQUESTS, passed, |labels, total| {
            let kind = labels.get(1).map_or(0, |code| reply_kind(code));
            add(&mut totals.replies, kind, total);
        });
        self.decisions.note(metrics, names::DECISIONS, passed, |labels, total| {
            let named = |(_, names): &(_, &[&str])| {
                labels.get(1).is_some_and(|label| names.contains(&label.as_str()))
            };
            if let Some(kind) = DECISIONS.iter().position(named) {
                add(&mut totals.decisions, kind, total);
            }
        });
        let ignored = |_: &[String], _: u64| ();
        self.route_refusals.note(metrics, names::ROUTE_REFUSALS, passed, ignored);
        self.limit_refusals.note(metrics, names::LIMIT_REFUSALS, passed, ignored);
        self.would_refuse.note(metrics, names::LIMIT_WOULD_REFUSE, passed, ignored);
        self.policy_errors.note(metrics, names::POLICY_ERRORS, passed, ignored);
        self.upstream_errors.note(metrics, names::UPSTREAM_ERRORS, passed, ignored);
        totals.deciding = metrics.histogram(names::DECISION_SECONDS).times();
        let upstreams: BTreeMap<String, HistogramSnapshot> = metrics
            .times(names::UPSTREAM_SECONDS)
            .into_iter()
            .filter_map(|(labels, times)| Some((labels.into_iter().next()?, times)))
            .collect();
        upstreams.values().for_each(|times| totals.upstream.add(times));
        if passed > 0 {
            while self.upstreams.len() > SLOTS_OF_A_MINUTE {
                self.upstreams.pop_front();
            }
            self.upstreams.push_back(upstreams);
        } else if let Some(last) = self.upstreams.back_mut() {
            *last = upstreams;
        }
        // By time, too: a machine that was asleep has fewer samples.
        let is_old = |sample: &Sample| at_s - sample.at_s > SPAN_S + POINT_S;
        while self.samples.len() >= SAMPLES_MAX || self.samples.front().is_some_and(is_old) {
            self.samples.pop_front();
        }
        self.samples.push_back(Sample { at_s, totals });
    }

    /// Seconds since the history began, at the last sample.
    fn now_s(&self) -> f64 {
        self.samples.back().map_or(0.0, |sample| sample.at_s)
    }

    /// The last sample, and the newest that is at least `ago_s` older; else the oldest.
    fn last(&self, ago_s: f64) -> Option<(&Sample, &Sample)> {
        let now = self.samples.back()?;
        let before = self.samples.iter().rev().find(|sample| now.at_s - sample.at_s >= ago_s);
        Some((before.or(self.samples.front())?, now))
    }

    /// How much `of` grew in a second, over the last `ago_s` seconds.
    pub(super) fn per_second(&self, ago_s: f64, of: impl Fn(&Totals) -> u64) -> f64 {
        self.last(ago_s).map_or(0.0, |(before, now)| rate(before, now, of))
    }

    /// The times of the last `ago_s` seconds.
    pub(super) fn times(
        &self,
        ago_s: f64,
        of: impl Fn(&Totals) -> &HistogramSnapshot,
    ) -> HistogramSnapshot {
        self.last(ago_s).map_or_else(HistogramSnapshot::default, |(before, now)| {
            of(&now.totals).since(of(&before.totals))
        })
    }

    /// The times of an upstream in the last minute.
    pub(super) fn upstream_times(&self, name: &str) -> HistogramSnapshot {
        let of = |at: Option<&BTreeMap<String, HistogramSnapshot>>| {
            at.and_then(|times| times.get(name)).cloned().unwrap_or_default()
        };
        of(self.upstreams.back()).since(&of(self.upstreams.front()))
    }

    /// The points of a chart: how long ago it was in seconds (negative), and what `value(before,
    /// now)` says of the samples at both ends.
    fn points(&self, value: impl Fn(usize, &Sample) -> f64) -> Vec<(f64, f64)> {
        let now_s = self.now_s();
        // The axis begins here, whatever is known about that time.
        let mut points = vec![(-SPAN_S, f64::NAN)];
        let mut samples = self.samples.iter().enumerate().peekable();
        let mut before: Option<usize> = None;
        while let Some((index, sample)) = samples.next() {
            let point = number_of(sample.at_s, POINT_S);
            let ends =
                samples.peek().is_none_or(|(_, next)| number_of(next.at_s, POINT_S) != point);
            if !ends {
                continue;
            }
            let ago_s = now_s - sample.at_s;
            if let Some(before) = before.filter(|_| ago_s < SPAN_S) {
                points.push((-ago_s, value(before, sample)));
            }
            before = Some(index);
        }
        points
    }

    /// How much `of` grew in a second, over time.
    pub(super) fn rates(&self, of: impl Fn(&Totals) -> u64) -> Vec<(f64, f64)> {
        self.points(|before, now| {
            self.samples.get(before).map_or(f64::NAN, |before| rate(before, now, &of))
        })
    }

    /// The time that a share of all times did not exceed, over time. Without any there is a gap.
    pub(super) fn quantiles(
        &self,
        share: f64,
        of: impl Fn(&Totals) -> &HistogramSnapshot,
    ) -> Vec<(f64, f64)> {
        self.points(|before, now| {
            let early = self.samples.iter().take(before + 1).rev();
            let early = early.take_while(|sample| now.at_s - sample.at_s <= TIMES_S).last();
            early
                .or(self.samples.get(before))
                .and_then(|before| of(&now.totals).since(of(&before.totals)).quantile_s(share))
                .unwrap_or(f64::NAN)
        })
    }

    /// Seconds that the last minute of a [`Sum`] has: the current slot has not ended.
    pub(super) fn minute_s(&self) -> f64 {
        let now_s = self.now_s();
        let full = (SLOTS_OF_A_MINUTE - 1) as f64 * SLOT_S;
        (full + now_s % SLOT_S).min(now_s).max(1.0)
    }
}

impl Growth {
    /// Adds what each series has now. `passed` slots have ended since the last call.
    fn note(
        &mut self,
        metrics: &Metrics,
        name: names::Name,
        passed: usize,
        mut see: impl FnMut(&[String], u64),
    ) {
        for series in self.0.values_mut().filter(|_| passed > 0) {
            for _ in 0..passed.min(SLOTS_MAX) {
                series.slots.push_back(0);
            }
            while series.slots.len() > SLOTS_MAX {
                series.slots.pop_front();
            }
        }
        // As many series as the metric has, which are bounded.
        metrics.each(name, |labels, total| {
            see(labels, total);
            if !self.0.contains_key(labels) {
                let slots = VecDeque::from([0]);
                self.0.insert(labels.to_vec(), Series { total: 0, slots });
            }
            let Some(series) = self.0.get_mut(labels) else { return };
            let grown = u32::try_from(total.saturating_sub(series.total)).unwrap_or(u32::MAX);
            series.total = total;
            if let Some(slot) = series.slots.back_mut() {
                *slot = slot.saturating_add(grown);
            }
        });
    }

    /// How this series grew.
    pub(super) fn of(&self, labels: &[String]) -> Sum {
        Self::together(self.0.get(labels))
    }

    /// How the series grew that have this first label, together.
    pub(super) fn sum(&self, first: &str) -> Sum {
        self.sum_of(first, |_| true)
    }

    /// The same for those whose labels `wanted` accepts.
    pub(super) fn sum_of(&self, first: &str, wanted: impl Fn(&[String]) -> bool) -> Sum {
        // Sorted by the first label, so they are neighbours: not all series are looked at.
        let from = [first.to_owned()];
        let from: (Bound<&[String]>, _) = (Bound::Included(&from), Bound::Unbounded);
        let series = self.0.range::<[String], _>(from);
        let series = series.take_while(|(labels, _)| labels.first().is_some_and(|it| it == first));
        Self::together(series.filter(|(labels, _)| wanted(labels)).map(|(_, series)| series))
    }

    fn together<'a>(all: impl IntoIterator<Item = &'a Series>) -> Sum {
        let mut sum = Sum { slots: vec![0.0; SLOTS_MAX], ..Sum::default() };
        for series in all {
            for (slot, grown) in sum.slots.iter_mut().rev().zip(series.slots.iter().rev()) {
                *slot += f64::from(*grown);
            }
            sum.all += series.slots.iter().map(|grown| u64::from(*grown)).sum::<u64>();
            let minute = series.slots.iter().rev().take(SLOTS_OF_A_MINUTE);
            sum.minute += minute.map(|grown| u64::from(*grown)).sum::<u64>();
        }
        sum
    }

    /// The labels of all series.
    pub(super) fn labels(&self) -> impl Iterator<Item = &[String]> {
        self.0.keys().map(Vec::as_slice)
    }
}

fn add(sums: &mut [u64], index: usize, n: u64) {
    if let Some(sum) = sums.get_mut(index) {
        *sum += n;
    }
}

fn reply_kind(code: &str) -> usize {
    match code.as_bytes() {
        b"429" => 1,
        [b'4', ..] => 2,
        [b'5', ..] => 3,
        _ => 0,
    }
}

fn rate(before: &Sample, now: &Sample, of: impl Fn(&Totals) -> u64) -> f64 {
    let passed_s = now.at_s - before.at_s;
    if passed_s <= 0.0 {
        return 0.0;
    }
    of(&now.totals).saturating_sub(of(&before.totals)) as f64 / passed_s
}

/// Which of the periods of `length_s` seconds this moment is in.
fn number_of(at_s: f64, length_s: f64) -> u64 {
    (at_s / length_s).max(0.0) as u64
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// A history of `seconds`, in each of which `each` is done before the sample.
    fn history(metrics: &Metrics, seconds: u32, mut each: impl FnMut(u32)) -> History {
        let mut history = History::default();
        for second in 1..=seconds {
            each(second);
            history.note(metrics, f64::from(second));
        }
        history
    }

    #[test]
    fn rates_are_those_of_the_time_that_passed() {
        let metrics = Metrics::new(1);
        let (ok, refused) = (
            metrics.counter(names::REQUESTS, &["api", "200"]),
            metrics.counter(names::REQUESTS, &["api", "429"]),
        );
        let history = history(&metrics, 20, |second| {
            ok.add(10);
            refused.add(u64::from(second > 10) * 4);
        });
        assert_eq!(history.per_second(5.0, |totals| totals.replies[0]), 10.0);
        assert_eq!(history.per_second(5.0, |totals| totals.replies[1]), 4.0);
        assert_eq!(history.per_second(100.0, |totals| totals.replies[1]), 2.0, "since the begin");
        let rates = history.rates(|totals| totals.replies[1]);
        assert_eq!(rates[0].0, -SPAN_S);
        assert!(rates[0].1.is_nan(), "nothing is known of that time");
        let known: Vec<_> = rates.into_iter().skip(1).collect();
        assert_eq!(known.first(), Some(&(-11.0, 0.0)));
        assert_eq!(known.last(), Some(&(0.0, 4.0)));
    }

    #[test]
    fn quantiles_are_of_the_last_seconds_and_leave_gaps() {
        let metrics = Metrics::new(1);
        let deciding = metrics.histogram(names::DECISION_SECONDS);
        let history = history(&metrics, 60, |second| {
            if second <= 10 {
                deciding.observe(Duration::from_micros(3));
            } else if second > 40 {
                deciding.observe(Duration::from_millis(20));
            }
        });
        let points = history.quantiles(0.5, |totals| &totals.deciding);
        let at = |ago: f64| points.iter().rev().find(|(at, _)| *at <= -ago).unwrap().1;
        assert!(at(51.0) < 5e-6 && at(0.0) > 0.01, "{points:?}");
        assert!(at(25.0).is_nan(), "{points:?}");
        assert!(history.times(10.0, |totals| &totals.deciding).count() == 10);
        assert!(history.times(1_000.0, |totals| &totals.deciding).count() == 30);
    }

    #[test]
    fn a_history_is_bounded() {
        let metrics = Metrics::new(1);
        let counter = metrics.counter(names::LIMIT_REFUSALS, &["public", "day"]);
        metrics.times_of(names::UPSTREAM_SECONDS, &["api"]).observe(Duration::from_millis(1));
        let history = history(&metrics, 2_000, |_| counter.inc());
        assert_eq!(history.samples.len(), SAMPLES_MAX);
        assert_eq!(history.upstreams.len(), SLOTS_OF_A_MINUTE + 1);
        let sum = history.limit_refusals.sum("public");
        assert_eq!((sum.slots.len(), sum.all), (SLOTS_MAX, 591));
        assert_eq!(sum.slots.iter().sum::<f64>(), 591.0);
        assert_eq!(sum.minute, 51, "the last slot has just begun");
        assert_eq!(history.minute_s(), 50.0);
        assert_eq!(
            history.limit_refusals.sum("publi"),
            Sum { slots: vec![0.0; 60], ..Sum::default() }
        );
        assert_eq!(history.upstream_times("api").count(), 0, "it was long ago");
        let points = history.rates(|totals| totals.replies[0]).len();
        assert!((119..=122).contains(&points), "{points}");
    }

    #[test]
    fn series_are_found_by_their_labels() {
        let metrics = Metrics::new(1);
        let all = [("api", "limit", 1), ("api", "policy", 2), ("apis", "limit", 4), ("a", "b", 8)];
        let history = history(&metrics, 1, |_| {
            for (route, cause, count) in all {
                metrics.counter(names::ROUTE_REFUSALS, &[route, cause]).add(count);
            }
        });
        let growth = &history.route_refusals;
        assert_eq!((growth.sum("api").all, growth.sum("apis").all, growth.sum("a").all), (3, 4, 8));
        assert_eq!(growth.sum_of("api", |labels| labels[1] == "policy").all, 2);
        let of = |route: &str, cause: &str| growth.of(&[route.into(), cause.into()]).all;
        assert_eq!((of("api", "limit"), of("a", "b"), of("api", "b")), (1, 8, 0));
    }

    #[test]
    fn a_machine_that_slept_has_no_points_of_long_ago() {
        let (metrics, mut history) = (Metrics::new(1), History::default());
        for at_s in [1.0, 2.0, 7.0, 590.0, 1_000.0, 1_001.0] {
            history.note(&metrics, at_s);
        }
        let points = history.rates(|totals| totals.replies[0]);
        let places: Vec<f64> = points.iter().map(|(at, _)| *at).collect();
        assert_eq!(places, [-SPAN_S, 0.0]);
    }

    #[test]
    fn a_series_that_is_new_begins_with_what_it_has() {
        let metrics = Metrics::new(1);
        let history = history(&metrics, 35, |second| {
            if second >= 25 {
                metrics.count(names::LIMIT_REFUSALS, &["public", "late"]);
            }
        });
        let sum = history.limit_refusals.of(&["public".into(), "late".into()]);
        assert_eq!((sum.all, sum.minute), (11, 11));
        assert_eq!(&sum.slots[57..], [0.0, 5.0, 6.0]);
    }
}
