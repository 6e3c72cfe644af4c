//! What is encoded is what the official schema decodes.

use std::time::Duration;

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Official;
use opentelemetry_proto::tonic::metrics::v1::{metric::Data, number_data_point};
use prost::Message as _;
use smallvec::smallvec;

use super::super::context::{SpanId, TraceId};
use super::*;
use crate::clock;

const STARTED_US: i64 = 1_700_000_000_000_000;

fn encoder() -> Encoder {
    Encoder::new([("service.name", "weir")].into_iter(), STARTED_US)
}

fn one_span(parent: Option<SpanId>, anchor: Anchor) -> Span {
    Span {
        id: SpanId::random(),
        parent,
        parent_is_remote: parent.is_some(),
        name: "GET api".into(),
        kind: Kind::Server,
        start: anchor.monotonic.checked_sub(Duration::from_millis(5)).unwrap(),
        end: anchor.monotonic + Duration::from_nanos(7),
        attributes: vec![
            ("http.response.status_code", 200.into()),
            ("url.path", "/v1".into()),
            ("weir.refused_by", Value::Texts(vec!["a".into(), "b".into()])),
        ],
        failed: true,
    }
}

fn anchor() -> Anchor {
    Anchor { monotonic: clock::monotonic(), wall_us: STARTED_US + 1_000_000 }
}

#[test]
fn a_span_is_what_the_official_schema_reads() {
    let (anchor, id, parent) = (anchor(), TraceId::random(), SpanId::random());
    let span = one_span(Some(parent), anchor);
    let trace = Trace { id, spans: smallvec![span.clone()] };
    let batches: Vec<Batch> = encoder().traces(vec![trace], anchor).collect();
    let [batch] = &batches[..] else { panic!("{batches:?}") };
    let export = ExportTraceServiceRequest::decode(&batch.body[..]).unwrap();
    let resource = &export.resource_spans[0];
    let attribute = &resource.resource.as_ref().unwrap().attributes[0];
    assert_eq!(attribute.key, "service.name");
    assert_eq!(resource.scope_spans[0].scope.as_ref().unwrap().name, "weir");
    let found = &resource.scope_spans[0].spans[0];
    assert_eq!(found.trace_id, id.bytes());
    assert_eq!(
        (&found.span_id[..], &found.parent_span_id[..]),
        (&span.id.bytes()[..], &parent.bytes()[..])
    );
    assert_eq!((found.name.as_str(), found.kind, found.flags), ("GET api", 2, 0x301));
    let at_ns = (STARTED_US as u64 + 1_000_000) * 1_000;
    assert_eq!(found.start_time_unix_nano, at_ns - 5_000_000);
    assert_eq!(found.end_time_unix_nano, at_ns + 7);
    assert_eq!(found.status.as_ref().unwrap().code, 2);
    let values: Vec<_> = found
        .attributes
        .iter()
        .map(|one| (one.key.as_str(), one.value.as_ref().unwrap().value.as_ref().unwrap()))
        .collect();
    assert_eq!(values[0], ("http.response.status_code", &Official::IntValue(200)));
    assert_eq!(values[1], ("url.path", &Official::StringValue("/v1".to_owned())));
    let Official::ArrayValue(list) = values[2].1 else { panic!("{values:?}") };
    assert_eq!(list.values.len(), 2);
}

#[test]
fn many_traces_become_several_requests_of_bounded_size() {
    let anchor = anchor();
    let trace = || Trace { id: TraceId::random(), spans: smallvec![one_span(None, anchor); 2] };
    let traces: Vec<Trace> = (0..3_000).map(|_| trace()).collect();
    let encoder = encoder();
    let mut spans = 0;
    for batch in encoder.traces(traces, anchor) {
        assert!(batch.body.len() <= BATCH_BYTES && batch.count <= BATCH_SPANS_MAX as u64);
        let export = ExportTraceServiceRequest::decode(&batch.body[..]).unwrap();
        let found = export.resource_spans[0].scope_spans[0].spans.len();
        assert_eq!(found as u64, batch.count);
        assert_eq!(export.resource_spans[0].scope_spans[0].spans[0].flags, 0x101);
        spans += found;
    }
    assert_eq!(spans, 6_000);
    // One that is larger than a request may be is sent alone.
    let mut huge = one_span(None, anchor);
    huge.name = "x".repeat(2 * BATCH_BYTES).into();
    let traces = vec![trace(), Trace { id: TraceId::random(), spans: smallvec![huge] }, trace()];
    assert_eq!(
        encoder.traces(traces, anchor).map(|batch| batch.count).collect::<Vec<_>>(),
        [2, 1, 2]
    );
}

#[test]
fn metrics_are_the_sums_gauges_and_histograms_that_are_shown() {
    let metrics = Metrics::new(1);
    metrics.counter(names::REQUESTS, &["api", "200"]).add(3);
    metrics.gauge(names::CONNECTIONS_OPEN).set(-4);
    metrics.times_of(names::REQUEST_SECONDS, &["api"]).observe(Duration::from_micros(2));
    metrics.inform(names::BUILD, &["1", "embedded"]);
    metrics.measure(|see| see(names::PROCESS_CPU, 1.5));
    let batches = encoder().metrics(&metrics, STARTED_US + 1_000_000);
    let [batch] = &batches[..] else { panic!("{}", batches.len()) };
    let export = ExportMetricsServiceRequest::decode(&batch.body[..]).unwrap();
    let all = &export.resource_metrics[0].scope_metrics[0].metrics;
    let of = |name: &str| all.iter().find(|metric| metric.name == name).unwrap();

    let Some(Data::Sum(requests)) = &of("weir_requests").data else { panic!("no sum") };
    assert!(requests.is_monotonic && requests.aggregation_temporality == 2);
    let point = &requests.data_points[0];
    assert_eq!(point.value, Some(number_data_point::Value::AsInt(3)));
    assert_eq!(point.start_time_unix_nano, STARTED_US as u64 * 1_000);
    assert_eq!(point.time_unix_nano, (STARTED_US as u64 + 1_000_000) * 1_000);
    let labels: Vec<&str> = point.attributes.iter().map(|label| label.key.as_str()).collect();
    assert_eq!(labels, ["route", "code"]);

    let Some(Data::Gauge(open)) = &of("weir_connections_open").data else { panic!("no gauge") };
    assert_eq!(open.data_points[0].value, Some(number_data_point::Value::AsInt(-4)));
    let Some(Data::Gauge(build)) = &of("weir_build_info").data else { panic!("no gauge") };
    assert_eq!(build.data_points[0].attributes.len(), 2);

    let seconds = of("weir_request_duration_seconds");
    let Some(Data::Histogram(times)) = &seconds.data else { panic!("no histogram") };
    assert_eq!((seconds.unit.as_str(), times.aggregation_temporality), ("s", 2));
    let point = &times.data_points[0];
    assert_eq!((point.count, point.sum), (1, Some(2e-6)));
    assert_eq!(point.bucket_counts.len(), point.explicit_bounds.len() + 1);
    assert_eq!((point.explicit_bounds[1], point.bucket_counts[1]), (2e-6, 1));

    let Some(Data::Sum(cpu)) = &of("process_cpu_seconds").data else { panic!("no sum") };
    assert_eq!(cpu.data_points[0].value, Some(number_data_point::Value::AsDouble(1.5)));
    let points: usize = all
        .iter()
        .map(|metric| match metric.data.as_ref().unwrap() {
            Data::Sum(sum) => sum.data_points.len(),
            Data::Gauge(gauge) => gauge.data_points.len(),
            Data::Histogram(histogram) => histogram.data_points.len(),
            _ => 0,
        })
        .sum();
    assert_eq!(points as u64, batch.count);
}

#[test]
fn thousands_of_series_become_several_requests() {
    let metrics = Metrics::new(1);
    for number in 0..2_000 {
        drop(metrics.times_of(names::REQUEST_SECONDS, &[&format!("route-{number}")]));
        drop(metrics.times_of(names::UPSTREAM_SECONDS, &[&format!("upstream-{number}")]));
    }
    let batches = encoder().metrics(&metrics, STARTED_US);
    assert!(batches.len() > 1, "{}", batches.len());
    let mut histograms = 0;
    for batch in batches {
        let export = ExportMetricsServiceRequest::decode(&batch.body[..]).unwrap();
        let all = &export.resource_metrics[0].scope_metrics[0].metrics;
        histograms += all.iter().filter(|one| one.name.ends_with("duration_seconds")).count();
    }
    assert_eq!(histograms, 3);
}
