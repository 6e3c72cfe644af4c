//! Traces and metrics as messages of OTLP. Pure: reads no clock and sends nothing.

use std::borrow::Cow;
use std::time::Instant;

use bytes::Bytes;
use prost::Message as _;

use super::schema::{
    Any, AnyValue, ArrayValue, ExportMetrics, ExportTraces, Gauge, Histogram, HistogramPoint,
    KeyValue, Metric, Number, NumberPoint, Points, Resource, ResourceMetrics, ResourceSpans, Scope,
    ScopeMetrics, ScopeSpans, SpanKind, SpanMessage, Status, StatusCode, Sum, Temporality,
};
use super::span::{Kind, Span, Trace, Value};
use crate::telemetry::{HistogramSnapshot, Metrics, Name, Reading, SeriesValue, names};

/// The approximate size of one request, in bytes. A collector takes 20 MiB by default.
const BATCH_BYTES: usize = 1 << 20;
/// Maximum number of spans of one request.
const BATCH_SPANS_MAX: usize = 2_048;
/// The flags of a span: the trace is sampled, and it is known whether its parent is remote.
const FLAGS: u32 = 0x101;
/// Another process has made the parent.
const PARENT_IS_REMOTE: u32 = 0x200;

/// One moment, by both clocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Anchor {
    pub(super) monotonic: Instant,
    /// Microseconds since 1970.
    pub(super) wall_us: i64,
}

/// The body of one request, and how many spans or data points it has.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) body: Bytes,
    pub(super) count: u64,
}

/// What all messages of a process begin with.
#[derive(Debug)]
pub(super) struct Encoder {
    resource: Resource,
    /// When the process began to count, in nanoseconds since 1970.
    started_ns: u64,
}

impl Anchor {
    /// When that was, in nanoseconds since 1970.
    fn ns(&self, instant: Instant) -> u64 {
        let ns = |time: std::time::Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let before = ns(self.monotonic.saturating_duration_since(instant));
        let after = ns(instant.saturating_duration_since(self.monotonic));
        wall_ns(self.wall_us).saturating_sub(before).saturating_add(after)
    }
}

fn wall_ns(wall_us: i64) -> u64 {
    u64::try_from(wall_us).unwrap_or(0).saturating_mul(1_000)
}

impl Encoder {
    /// An encoder for a process with these attributes that began to count at `started_us`.
    pub(super) fn new<'a>(
        attributes: impl Iterator<Item = (&'a str, &'a str)>,
        started_us: i64,
    ) -> Self {
        let attributes = attributes.map(|(key, value)| text(key, value.to_owned())).collect();
        Self { resource: Resource { attributes }, started_ns: wall_ns(started_us) }
    }

    /// The traces, in as few requests as their size allows.
    pub(super) fn traces(
        &self,
        traces: Vec<Trace>,
        anchor: Anchor,
    ) -> impl Iterator<Item = Batch> + use<'_> {
        let mut left = traces.into_iter().peekable();
        std::iter::from_fn(move || {
            let (mut spans, mut bytes) = (Vec::new(), 0);
            // The first trace is always taken, even if it is larger than a batch should be.
            while let Some(trace) = left.next_if(|trace| {
                let size = trace.bytes();
                let first = spans.is_empty();
                let fits = bytes + size <= BATCH_BYTES
                    && spans.len() + trace.spans.len() <= BATCH_SPANS_MAX;
                bytes += size;
                first || fits
            }) {
                spans
                    .extend(trace.spans.into_iter().map(|one| span(trace.id.bytes(), one, anchor)));
            }
            (!spans.is_empty()).then(|| self.of_spans(spans))
        })
    }

    fn of_spans(&self, spans: Vec<SpanMessage>) -> Batch {
        let count = spans.len() as u64;
        let export = ExportTraces {
            resource_spans: vec![ResourceSpans {
                resource: Some(self.resource.clone()),
                scope_spans: vec![ScopeSpans { scope: Some(scope()), spans }],
            }],
        };
        Batch { body: export.encode_to_vec().into(), count }
    }

    /// All metrics as they are now, in as few requests as their size allows.
    pub(super) fn metrics(&self, metrics: &Metrics, wall_us: i64) -> Vec<Batch> {
        let mut batches = Vec::new();
        let (mut group, mut bytes, mut points) = (Vec::new(), 0, 0);
        metrics.walk(|name, series| {
            if series.is_empty() {
                return;
            }
            let metric = self.metric(name, series, wall_ns(wall_us));
            let size = metric.encoded_len();
            if bytes + size > BATCH_BYTES && !group.is_empty() {
                batches.push(self.of_metrics(std::mem::take(&mut group), points));
                (bytes, points) = (0, 0);
            }
            (bytes, points) = (bytes + size, points + series.len() as u64);
            group.push(metric);
        });
        if !group.is_empty() {
            batches.push(self.of_metrics(group, points));
        }
        batches
    }

    fn of_metrics(&self, metrics: Vec<Metric>, count: u64) -> Batch {
        let export = ExportMetrics {
            resource_metrics: vec![ResourceMetrics {
                resource: Some(self.resource.clone()),
                scope_metrics: vec![ScopeMetrics { scope: Some(scope()), metrics }],
            }],
        };
        Batch { body: export.encode_to_vec().into(), count }
    }

    fn metric(&self, name: Name, series: &[Reading<'_>], now_ns: u64) -> Metric {
        let number = |of: &Reading<'_>, value| NumberPoint {
            attributes: labels(name, of),
            start_time_unix_nano: self.started_ns,
            time_unix_nano: now_ns,
            value: Some(value),
        };
        let numbers = || {
            let points = series.iter().filter_map(|one| Some(number(one, number_of(&one.value)?)));
            points.collect::<Vec<_>>()
        };
        let points = match name.kind {
            names::Kind::Counter | names::Kind::MeasuredCounter => Points::Sum(Sum {
                points: numbers(),
                temporality: Temporality::Cumulative.into(),
                is_monotonic: true,
            }),
            names::Kind::Gauge
            | names::Kind::OptionalGauge
            | names::Kind::Info
            | names::Kind::MeasuredGauge => Points::Gauge(Gauge { points: numbers() }),
            names::Kind::Histogram => {
                let point = |one: &Reading<'_>| match &one.value {
                    SeriesValue::Times(times) => Some(HistogramPoint {
                        attributes: labels(name, one),
                        start_time_unix_nano: self.started_ns,
                        time_unix_nano: now_ns,
                        count: times.count(),
                        sum: Some(times.sum_s()),
                        bucket_counts: times.counts().to_vec(),
                        explicit_bounds: HistogramSnapshot::bounds_s().collect(),
                    }),
                    _ => None,
                };
                Points::Histogram(Histogram {
                    points: series.iter().filter_map(point).collect(),
                    temporality: Temporality::Cumulative.into(),
                })
            }
        };
        Metric {
            name: name.name.to_owned(),
            description: name.help.to_owned(),
            unit: unit(name.name).to_owned(),
            points: Some(points),
        }
    }
}

fn number_of(read: &SeriesValue) -> Option<Number> {
    match read {
        SeriesValue::Count(count) => Some(Number::Int(i64::try_from(*count).unwrap_or(i64::MAX))),
        SeriesValue::Level(level) => Some(Number::Int(*level)),
        SeriesValue::Number(number) => Some(Number::Double(*number)),
        SeriesValue::Times(_) => None,
    }
}

/// The unit that a metric's name ends with, as UCUM writes it.
fn unit(name: &str) -> &'static str {
    if name.ends_with("_seconds") {
        "s"
    } else if name.ends_with("_bytes") {
        "By"
    } else {
        ""
    }
}

fn labels(name: Name, of: &Reading<'_>) -> Vec<KeyValue> {
    name.labels.iter().zip(of.labels).map(|(key, value)| text(key, value.clone())).collect()
}

fn scope() -> Scope {
    Scope { name: "weir".to_owned(), version: env!("CARGO_PKG_VERSION").to_owned() }
}

fn text(key: &str, value: String) -> KeyValue {
    KeyValue { key: key.to_owned(), value: Some(any(Any::Text(value))) }
}

fn any(value: Any) -> AnyValue {
    AnyValue { value: Some(value) }
}

fn attribute((key, value): (&'static str, Value)) -> KeyValue {
    let value = match value {
        Value::Text(text) => Any::Text(text.into_owned()),
        Value::Number(number) => Any::Number(number),
        Value::Texts(texts) => Any::Array(ArrayValue {
            values: texts.into_iter().map(|text| any(Any::Text(text))).collect(),
        }),
    };
    KeyValue { key: key.to_owned(), value: Some(any(value)) }
}

fn span(trace: [u8; 16], span: Span, anchor: Anchor) -> SpanMessage {
    let kind = match span.kind {
        Kind::Internal => SpanKind::Internal,
        Kind::Server => SpanKind::Server,
        Kind::Client => SpanKind::Client,
    };
    SpanMessage {
        trace_id: trace.to_vec(),
        span_id: span.id.bytes().to_vec(),
        parent_span_id: span.parent.map(|parent| parent.bytes().to_vec()).unwrap_or_default(),
        name: match span.name {
            Cow::Borrowed(name) => name.to_owned(),
            Cow::Owned(name) => name,
        },
        kind: kind.into(),
        start_time_unix_nano: anchor.ns(span.start),
        end_time_unix_nano: anchor.ns(span.end),
        attributes: span.attributes.into_iter().map(attribute).collect(),
        status: span.failed.then(|| Status { code: StatusCode::Error.into() }),
        flags: if span.parent_is_remote { FLAGS | PARENT_IS_REMOTE } else { FLAGS },
    }
}

#[cfg(test)]
mod tests;
