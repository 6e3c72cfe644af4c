//! Metrics as the OpenMetrics text that `/metrics` shows. Knows how they are read, and not how they
//! are counted.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use super::histogram::HistogramSnapshot;
use super::metrics::{Metrics, Reading, SeriesValue};
use super::names::{Kind, Name};

impl Metrics {
    /// Everything in the OpenMetrics text format.
    #[must_use]
    pub fn encode(&self) -> String {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(self.clone()));
        let mut text = String::new();
        // Writing to a String can't fail. An error of the encoder's would cut the text short, and a
        // scraper would notice the missing `# EOF`.
        let _ = prometheus_client::encoding::text::encode(&mut text, &registry);
        text
    }
}

impl Collector for Metrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let mut encoded = Ok(());
        self.walk(|name, series| {
            encoded = encoded.and_then(|()| metric(&mut encoder, name, series));
        });
        encoded
    }
}

fn metric(
    encoder: &mut DescriptorEncoder<'_>,
    name: Name,
    series: &[Reading<'_>],
) -> Result<(), fmt::Error> {
    let kind = match name.kind {
        Kind::Counter | Kind::MeasuredCounter => MetricType::Counter,
        Kind::Gauge | Kind::OptionalGauge | Kind::Info | Kind::MeasuredGauge => MetricType::Gauge,
        Kind::Histogram => MetricType::Histogram,
    };
    let mut metric = encoder.encode_descriptor(name.name, name.help, None, kind)?;
    match series {
        [only] if only.labels.is_empty() => value(metric, kind, &only.value),
        _ => series.iter().try_for_each(|one| {
            let labels = name.labels.iter().copied().zip(one.labels.iter().map(String::as_str));
            let labels: Vec<(&str, &str)> = labels.collect();
            value(metric.encode_family(&labels)?, kind, &one.value)
        }),
    }
}

fn value(
    metric: MetricEncoder<'_>,
    kind: MetricType,
    value: &SeriesValue,
) -> Result<(), fmt::Error> {
    match value {
        SeriesValue::Count(count) => ConstCounter::new(*count).encode(metric),
        SeriesValue::Level(level) => ConstGauge::new(*level).encode(metric),
        SeriesValue::Number(number) if matches!(kind, MetricType::Counter) => {
            ConstCounter::new(*number).encode(metric)
        }
        SeriesValue::Number(number) => ConstGauge::new(*number).encode(metric),
        SeriesValue::Times(read) => times(metric, read),
    }
}

fn times(mut metric: MetricEncoder<'_>, times: &HistogramSnapshot) -> Result<(), fmt::Error> {
    let bounds = HistogramSnapshot::bounds_s().chain([f64::INFINITY]);
    let buckets: Vec<(f64, u64)> = bounds.zip(times.counts().iter().copied()).collect();
    metric.encode_histogram::<NoLabelSet>(times.sum_s(), times.count(), &buckets, None)
}
