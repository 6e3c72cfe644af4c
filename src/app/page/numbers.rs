//! What the live page shows of traffic: the current numbers, and charts of the last ten minutes.

use std::fmt::Write as _;

use super::history::{DECISIONS, History, REPLIES, Totals};
use super::html::{NOTHING, rate, thousands, time};
use crate::chart::{AxisScale, Chart, Layout, Series, Unit, escaped};
use crate::telemetry::{HistogramSnapshot, Metrics, names};

/// Seconds over which current rates are taken.
const NOW_S: f64 = 5.0;
/// Seconds over which current times are taken.
const TIMES_S: f64 = 60.0;
/// Shares of all requests whose times are shown.
const SHARES: [(&str, f64); 2] = [("p50", 0.5), ("p99", 0.99)];

/// The current numbers, as a list of terms and their values.
pub(super) fn now(history: &History, metrics: &Metrics) -> String {
    let requests = history.per_second(NOW_S, |totals| totals.replies.iter().sum());
    let kind = |kind: usize| {
        history.per_second(NOW_S, |totals| totals.decisions.get(kind).copied().unwrap_or_default())
    };
    let decided: f64 = (0..DECISIONS.len()).map(kind).sum();
    let (refused, undecided) = (kind(1), kind(3));
    let share = if decided > 0.0 { (refused + undecided) / decided } else { 0.0 };
    let mut of_decisions =
        format!("{} of decisions", Unit::Share.label((share * 1e3).round() / 1e3, 1.0));
    if undecided > 0.0 {
        let _ = write!(of_decisions, ", {} undecided", per_second(undecided));
    }
    let errors =
        history.per_second(NOW_S, |totals| totals.replies.last().copied().unwrap_or_default());
    let deciding = history.times(TIMES_S, |totals| &totals.deciding);
    let upstream = history.times(TIMES_S, |totals| &totals.upstream);
    let open = metrics.gauge(names::CONNECTIONS_OPEN).get();
    let mut out = String::from("<dl>");
    let mut tile = |term: &str, value: &str, unit: &str, more: &str| {
        let _ = write!(
            out,
            "<div><dt>{}</dt><dd><b>{}</b>{}<span>{}</span></dd></div>",
            escaped(term),
            escaped(value),
            if unit.is_empty() { String::new() } else { format!("<i>{}</i>", escaped(unit)) },
            escaped(more)
        );
    };
    tile("Requests", &rate(requests), "/s", &format!("{} answered 5xx", per_second(errors)));
    tile("Decisions", &rate(decided), "/s", &format!("{} admitted", per_second(kind(0))));
    tile("Refused", &rate(refused + undecided), "/s", &of_decisions);
    let (value, more) = times(&deciding);
    tile("Weir decides in", &value, "", &more);
    let (value, more) = times(&upstream);
    tile("Upstreams answer in", &value, "", &more);
    let open = u64::try_from(open).unwrap_or(0);
    let tunnels = metrics.gauge(names::TUNNELS_OPEN).get();
    tile("Connections", &thousands(open), "", &format!("{tunnels} of them tunnels"));
    out.push_str("</dl>");
    out
}

fn per_second(of: f64) -> String {
    format!("{}/s", rate(of))
}

/// The median, and the other shares as a sentence.
fn times(times: &HistogramSnapshot) -> (String, String) {
    let shown = |share: f64| times.quantile_s(share).map_or_else(|| NOTHING.to_owned(), time);
    (shown(0.5), format!("p99 {}, last minute", shown(0.99)))
}

/// Requests by what was answered.
pub(super) fn requests(history: &History) -> String {
    let series = REPLIES.iter().enumerate().map(|(kind, name)| Series {
        name: (*name).to_owned(),
        points: history.rates(|totals| totals.replies.get(kind).copied().unwrap_or_default()),
    });
    rates(
        "Requests per second, by status",
        history.per_second(NOW_S, |totals| totals.replies.iter().sum()),
        series.collect(),
    )
}

/// Decisions by kind.
pub(super) fn decisions(history: &History) -> String {
    let series = DECISIONS.iter().enumerate().map(|(kind, (name, _))| Series {
        name: (*name).to_owned(),
        points: history.rates(|totals| totals.decisions.get(kind).copied().unwrap_or_default()),
    });
    rates(
        "Decisions per second, by kind",
        history.per_second(NOW_S, |totals| totals.decisions.iter().sum()),
        series.collect(),
    )
}

fn rates(title: &str, now: f64, series: Vec<Series>) -> String {
    let chart = Chart {
        title: title.to_owned(),
        description: format!("The last ten minutes. Now {} a second.", rate(now)),
        layout: Layout::Stacked,
        x: Unit::Ago,
        scale: AxisScale::Linear,
        marks: Vec::new(),
        y: Unit::Count,
        series,
    };
    chart.svg()
}

/// How long Weir takes to decide.
pub(super) fn deciding(history: &History) -> String {
    quantiles("Time to decide", history, |totals| &totals.deciding)
}

/// How long upstreams take to answer.
pub(super) fn upstream(history: &History) -> String {
    quantiles("Time until an upstream answers", history, |totals| &totals.upstream)
}

fn quantiles(title: &str, history: &History, of: impl Fn(&Totals) -> &HistogramSnapshot) -> String {
    let series = SHARES.iter().map(|(name, share)| Series {
        name: (*name).to_owned(),
        points: history.quantiles(*share, &of),
    });
    let (median, more) = times(&history.times(TIMES_S, &of));
    let chart = Chart {
        title: title.to_owned(),
        description: format!("The last ten minutes. Median {median}, {more}."),
        layout: Layout::Lines,
        x: Unit::Ago,
        scale: AxisScale::Linear,
        marks: Vec::new(),
        y: Unit::Seconds,
        series: series.collect(),
    };
    chart.svg()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn traffic_is_in_the_numbers_and_in_the_charts() {
        let (metrics, mut history) = (Metrics::new(1), History::default());
        let empty = now(&history, &metrics);
        assert!(empty.contains("<dt>Requests</dt><dd><b>0</b><i>/s</i>"), "{empty}");
        assert!(empty.contains("<b>\u{2013}</b><span>p99 \u{2013}, last minute"), "{empty}");
        for second in 1..=10 {
            metrics.counter(names::REQUESTS, &["api", "200"]).add(3);
            metrics.counter(names::REQUESTS, &["api", "429"]).add(1);
            metrics.counter(names::DECISIONS, &["public", "admitted"]).add(3);
            metrics.counter(names::DECISIONS, &["public", "refused"]).add(1);
            metrics.times_of(names::UPSTREAM_SECONDS, &["a"]).observe(Duration::from_millis(2));
            history.note(&metrics, f64::from(second));
        }
        let now = now(&history, &metrics);
        for part in [
            "<dt>Requests</dt><dd><b>4</b><i>/s</i><span>0/s answered 5xx",
            "<dt>Refused</dt><dd><b>1</b><i>/s</i><span>25% of decisions",
            "<dt>Upstreams answer in</dt><dd><b>1.75ms</b>",
        ] {
            assert!(now.contains(part), "{part}: {now}");
        }
        for chart in [requests(&history), decisions(&history), upstream(&history)] {
            assert!(chart.contains("class=\"legend\"") && !chart.contains("NaN"), "{chart}");
        }
        assert!(requests(&history).contains("Now 4 a second."));
    }

    #[test]
    fn what_nobody_could_decide_was_refused_too() {
        let (metrics, mut history) = (Metrics::new(1), History::default());
        for second in 1..=10 {
            metrics.counter(names::DECISIONS, &["public", "admitted"]).add(1);
            metrics.counter(names::DECISIONS, &["public", "unavailable"]).add(3);
            history.note(&metrics, f64::from(second));
        }
        let now = now(&history, &metrics);
        let tile = "<dt>Refused</dt><dd><b>3</b><i>/s</i><span>75% of decisions, 3/s undecided";
        assert!(now.contains(tile), "{now}");
    }
}
