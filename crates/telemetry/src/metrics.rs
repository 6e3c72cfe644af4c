//! All metrics of one running Weir, by their names and the values of their labels. Knows neither
//! how they are counted (`counter`, `histogram`) nor how `/metrics` shows them (`exposition`).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use super::counter::{Counter, Gauge};
use super::histogram::{Histogram, HistogramSnapshot};
use super::label::{CounterSet, Label};
use super::names::{self, Kind, Name};

/// Maximum number of label sets of one metric; later ones are counted under `other`. As many as the
/// routes that a configuration may have, with some status codes each.
const SERIES_MAX: usize = 50_000;
/// Maximum number of label sets of one metric that share their first label. A policy that invents
/// names of limits thus leaves room for others, and all status codes of a route fit. Later ones are
/// counted under `other`, with the first label.
const SERIES_OF_ONE_MAX: usize = 512;

/// Reads numbers of this process, and calls its argument with each of them.
pub type Measure = fn(&mut dyn FnMut(Name, f64));

/// All metrics of one running Weir. Clones share them.
#[derive(Clone, Debug)]
pub struct Metrics(Arc<Inner>);

/// What is counted under one name, by the values of its labels.
type Series<T> = BTreeMap<Vec<String>, T>;

#[derive(Debug)]
struct Inner {
    workers: usize,
    counters: Mutex<BTreeMap<&'static str, (Name, Series<Counter>)>>,
    gauges: Mutex<BTreeMap<&'static str, (Name, Gauge)>>,
    histograms: Mutex<BTreeMap<&'static str, (Name, Series<Histogram>)>>,
    infos: Mutex<BTreeMap<&'static str, (Name, Vec<String>)>>,
    measure: OnceLock<Measure>,
}

impl Metrics {
    /// Metrics for `workers` worker threads.
    #[must_use]
    pub fn new(workers: usize) -> Self {
        let metrics = Self(Arc::new(Inner {
            workers,
            counters: Mutex::default(),
            gauges: Mutex::default(),
            histograms: Mutex::default(),
            infos: Mutex::default(),
            measure: OnceLock::new(),
        }));
        for name in names::ALL {
            match name.kind {
                Kind::Counter => {
                    locked(&metrics.0.counters).insert(name.name, (*name, Series::new()));
                }
                Kind::Gauge => drop(metrics.gauge(*name)),
                Kind::Histogram if name.labels.is_empty() => drop(metrics.histogram(*name)),
                Kind::Histogram => {
                    locked(&metrics.0.histograms).insert(name.name, (*name, Series::new()));
                }
                Kind::OptionalGauge | Kind::Info | Kind::MeasuredCounter | Kind::MeasuredGauge => {}
            }
        }
        metrics
    }

    /// The series of `name` with these label values, in the order of the name's labels. Takes a
    /// lock: keep the answer where it is hot.
    #[must_use]
    pub fn counter(&self, name: Name, values: &[&str]) -> Counter {
        let mut counters = locked(&self.0.counters);
        let (_, series) = counters.entry(name.name).or_insert_with(|| (name, Series::new()));
        of(series, name, values, || Counter::new(self.0.workers))
    }

    /// Calls `see` with the values of the labels of each series of the counter `name`, and with its
    /// sum. Takes a lock: not for hot paths.
    pub fn each(&self, name: Name, mut see: impl FnMut(&[String], u64)) {
        if let Some((_, series)) = locked(&self.0.counters).get(name.name) {
            series.iter().for_each(|(values, counter)| see(values, counter.get()));
        }
    }

    /// A counter that `/metrics` does not show.
    #[must_use]
    pub fn unshown(&self) -> Counter {
        Counter::new(self.0.workers)
    }

    /// Adds one to a series. Looks it up each time, so it is not for hot paths.
    pub fn count(&self, name: Name, values: &[&str]) {
        self.counter(name, values).inc();
    }

    /// The series of `name` for each value of its last label. `values` are those of the labels
    /// before it.
    #[must_use]
    pub fn counters<L: Label>(&self, name: Name, values: &[&str]) -> CounterSet<L> {
        CounterSet::new(|label: L| {
            let all: Vec<&str> = values.iter().copied().chain([label.label()]).collect();
            self.counter(name, &all)
        })
    }

    /// The gauge of `name`.
    #[must_use]
    pub fn gauge(&self, name: Name) -> Gauge {
        let mut gauges = locked(&self.0.gauges);
        gauges.entry(name.name).or_insert_with(|| (name, Gauge::default())).1.clone()
    }

    /// The value of a gauge, if it has one.
    #[must_use]
    pub fn gauge_value(&self, name: Name) -> Option<i64> {
        locked(&self.0.gauges).get(name.name).map(|(_, gauge)| gauge.get())
    }

    /// No longer shows the gauge of `name`: it has no value any more.
    pub fn forget_gauge(&self, name: Name) {
        locked(&self.0.gauges).remove(name.name);
    }

    /// Shows `name` with these label values, in the order of its labels, in place of those before.
    pub fn inform(&self, name: Name, values: &[&str]) {
        debug_assert_eq!(name.labels.len(), values.len(), "{}", name.name);
        let values = values.iter().map(|value| (*value).to_owned()).collect();
        locked(&self.0.infos).insert(name.name, (name, values));
    }

    /// Shows what `measure` reads at each scrape. A second call changes nothing.
    pub fn measure(&self, measure: Measure) {
        self.0.measure.get_or_init(|| measure);
    }

    /// The histogram of `name`, which has no labels. Takes a lock: keep the answer where it is hot.
    #[must_use]
    pub fn histogram(&self, name: Name) -> Histogram {
        self.times_of(name, &[])
    }

    /// The histogram of `name` with these label values. Takes a lock, as above.
    #[must_use]
    pub fn times_of(&self, name: Name, values: &[&str]) -> Histogram {
        let mut histograms = locked(&self.0.histograms);
        let (_, series) = histograms.entry(name.name).or_insert_with(|| (name, Series::new()));
        of(series, name, values, || Histogram::new(self.0.workers))
    }

    /// What each histogram of `name` holds, with the values of its labels.
    #[must_use]
    pub fn times(&self, name: Name) -> Vec<(Vec<String>, HistogramSnapshot)> {
        let histograms = locked(&self.0.histograms);
        let series = histograms.get(name.name).into_iter().flat_map(|(_, series)| series);
        series.map(|(values, histogram)| (values.clone(), histogram.times())).collect()
    }

    /// Calls `see` with each metric and all of its series. Locks are held meanwhile: not for hot
    /// paths. A counter without labels always has its one series.
    pub fn walk(&self, mut see: impl FnMut(Name, &[Reading<'_>])) {
        for (name, series) in locked(&self.0.counters).values() {
            if name.labels.is_empty() {
                let total = series.values().map(Counter::get).sum();
                see(*name, &[Reading { labels: &[], value: SeriesValue::Count(total) }]);
                continue;
            }
            let read =
                |(labels, counter): (_, &Counter)| (labels, SeriesValue::Count(counter.get()));
            see(*name, &readings(series.iter().map(read)));
        }
        for (name, gauge) in locked(&self.0.gauges).values() {
            see(*name, &[Reading { labels: &[], value: SeriesValue::Level(gauge.get()) }]);
        }
        for (name, series) in locked(&self.0.histograms).values() {
            let read =
                |(labels, times): (_, &Histogram)| (labels, SeriesValue::Times(times.times()));
            see(*name, &readings(series.iter().map(read)));
        }
        for (name, labels) in locked(&self.0.infos).values() {
            see(*name, &[Reading { labels, value: SeriesValue::Level(1) }]);
        }
        if let Some(measure) = self.0.measure.get() {
            measure(&mut |name, value| {
                see(name, &[Reading { labels: &[], value: SeriesValue::Number(value) }]);
            });
        }
    }
}

/// One series of a metric as it is read.
#[derive(Clone, Debug)]
pub struct Reading<'a> {
    /// The values of its labels, in the order of the metric's labels.
    pub labels: &'a [String],
    /// What it says.
    pub value: SeriesValue,
}

/// What a series says.
#[derive(Clone, Debug, PartialEq)]
pub enum SeriesValue {
    /// A counter's sum.
    Count(u64),
    /// A gauge's value.
    Level(i64),
    /// A number that the system reports.
    Number(f64),
    /// A histogram's counts.
    Times(HistogramSnapshot),
}

fn readings<'a>(series: impl Iterator<Item = (&'a Vec<String>, SeriesValue)>) -> Vec<Reading<'a>> {
    series.map(|(labels, value)| Reading { labels, value }).collect()
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The series with these label values. Beyond the maximum it is that of `other`.
fn of<T: Clone>(series: &mut Series<T>, name: Name, values: &[&str], new: impl FnOnce() -> T) -> T {
    debug_assert_eq!(name.labels.len(), values.len(), "{}", name.name);
    let mut labels: Vec<String> = values.iter().map(|value| (*value).to_owned()).collect();
    if !series.contains_key(&labels) {
        let whole = series.len() >= SERIES_MAX;
        let kept = usize::from(!whole);
        if whole || is_full(series, &labels) {
            labels.iter_mut().skip(kept).for_each(|label| "other".clone_into(label));
        }
    }
    series.entry(labels).or_insert_with(new).clone()
}

/// Whether the first of several labels has as many series as it may have.
fn is_full<T>(series: &Series<T>, labels: &[String]) -> bool {
    let [first, _, ..] = labels else { return false };
    let same =
        series.range(vec![first.clone()]..).take_while(|(known, _)| known.first() == Some(first));
    same.take(SERIES_OF_ONE_MAX).count() >= SERIES_OF_ONE_MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metric_without_labels_shows_from_the_start() {
        let text = Metrics::new(1).encode();
        assert!(text.contains("weir_takes_unknown_total 0"), "{text}");
        assert!(text.ends_with("# EOF\n"), "{text}");
    }

    #[test]
    fn a_label_set_beyond_the_maximum_is_counted_as_other() {
        let metrics = Metrics::new(1);
        for code in 0..SERIES_MAX + 5 {
            metrics.count(names::STORE_ERRORS, &[&code.to_string()]);
        }
        assert!(metrics.encode().contains("weir_store_errors_total{cause=\"other\"} 5"));
    }

    #[test]
    fn made_up_labels_leave_room_for_others() {
        let metrics = Metrics::new(1);
        for limit in 0..2 * SERIES_MAX {
            metrics.count(names::LIMIT_REFUSALS, &["noisy", &limit.to_string()]);
        }
        metrics.count(names::LIMIT_REFUSALS, &["quiet", "per-minute"]);
        let text = metrics.encode();
        let rest = 2 * SERIES_MAX - SERIES_OF_ONE_MAX;
        assert!(
            text.contains(&format!(
                "weir_limit_refusals_total{{policy=\"noisy\",limit=\"other\"}} {rest}\n"
            )),
            "{text}"
        );
        assert!(
            text.contains("weir_limit_refusals_total{policy=\"quiet\",limit=\"per-minute\"} 1\n"),
            "{text}"
        );
    }

    #[test]
    fn numbers_of_the_system_are_read_at_each_scrape() {
        let metrics = Metrics::new(1);
        metrics.inform(names::BUILD, &["0.9", "redis"]);
        metrics.inform(names::BUILD, &["1.0", "embedded"]);
        metrics.measure(|tell| {
            tell(names::PROCESS_CPU, 1.5);
            tell(names::PROCESS_FILES, 12.0);
        });
        let text = metrics.encode();
        for line in [
            "weir_build_info{version=\"1.0\",store=\"embedded\"} 1",
            "# TYPE process_cpu_seconds counter",
            "process_cpu_seconds_total 1.5",
            "# TYPE process_open_fds gauge",
            "process_open_fds 12.0",
        ] {
            assert!(text.contains(&format!("{line}\n")), "{line}: {text}");
        }
        assert!(!text.contains("0.9") && text.ends_with("# EOF\n"), "{text}");
    }
}
