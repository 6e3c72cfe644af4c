//! A plain OTLP receiver: the upstream of these tests takes the requests, and the schema that
//! OpenTelemetry generates from its protocol definition reads them.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue, any_value};
use opentelemetry_proto::tonic::metrics::v1::{Metric, metric, number_data_point};
use prost::Message as _;

use super::upstream::{Seen, Upstream};
use super::{eventually, upstream};

/// A running receiver; nothing listens there once it is dropped.
pub struct Receiver {
    http: Upstream,
}

/// A span as it was received.
#[derive(Clone, Debug)]
pub struct Span {
    pub trace: String,
    pub id: String,
    /// Empty for none.
    pub parent: String,
    pub name: String,
    pub kind: i32,
    pub start_ns: u64,
    pub end_ns: u64,
    pub failed: bool,
    pub attributes: BTreeMap<String, String>,
    /// The attributes of the process that it comes from.
    pub resource: BTreeMap<String, String>,
}

impl Span {
    /// An attribute's value as text, empty if there is none.
    pub fn get(&self, name: &str) -> &str {
        self.attributes.get(name).map_or("", String::as_str)
    }
}

impl Receiver {
    pub fn start() -> Self {
        // Unlike `upstream::listener`, std lets another socket have this address later.
        let socket = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        Self { http: Upstream::on(socket) }.answering()
    }

    /// Where another one was before. The system may still hold connections of it.
    pub fn start_at(address: SocketAddr) -> Self {
        let socket = eventually("the address is free", || {
            TcpListener::bind(address).map_err(|error| error.to_string())
        });
        Self { http: Upstream::on(socket) }.answering()
    }

    fn answering(self) -> Self {
        self.http.answer(200, &[("content-type", "application/x-protobuf")], "");
        self
    }

    pub fn address(&self) -> SocketAddr {
        self.http.address
    }

    /// The upstream that it is made of: to have it answer something else, or later.
    pub fn http(&self) -> &Upstream {
        &self.http
    }

    /// `[telemetry.otlp]` for it, with these lines.
    pub fn section(&self, lines: &str) -> String {
        format!("[telemetry.otlp]\nendpoint = \"http://{}\"\n{lines}", self.address())
    }

    fn seen(&self, path: &str) -> Vec<upstream::Seen> {
        self.http.seen().into_iter().filter(|seen| seen.target == path).collect()
    }

    /// The spans that have come.
    pub fn spans(&self) -> Vec<Span> {
        self.seen("/v1/traces").iter().flat_map(spans_of).collect()
    }

    /// The spans of one request, once they have come: that of the request itself first.
    pub fn of_request(&self, request_id: &str) -> Vec<Span> {
        eventually("the spans of a request", || {
            let all = self.spans();
            let root = all.iter().find(|span| span.get("weir.request_id") == request_id);
            let root = root.ok_or_else(|| format!("{} spans", all.len()))?.clone();
            let children = all.into_iter().filter(|span| span.parent == root.id);
            Ok(std::iter::once(root.clone()).chain(children).collect())
        })
    }

    /// The metrics of the last export that has come.
    pub fn metrics(&self) -> Vec<Metric> {
        let Some(last) = self.seen("/v1/metrics").pop() else { return Vec::new() };
        let export = ExportMetricsServiceRequest::decode(last.body).expect("an export of metrics");
        let scopes = export.resource_metrics.into_iter().flat_map(|of| of.scope_metrics);
        scopes.flat_map(|scope| scope.metrics).collect()
    }
}

fn spans_of(seen: &Seen) -> Vec<Span> {
    assert_eq!(seen.header("content-type").as_deref(), Some("application/x-protobuf"));
    let export = ExportTraceServiceRequest::decode(seen.body.clone()).expect("an export of traces");
    let mut spans = Vec::new();
    for of in export.resource_spans {
        let resource = texts(&of.resource.expect("a resource").attributes);
        for span in of.scope_spans.into_iter().flat_map(|scope| scope.spans) {
            spans.push(Span {
                trace: hex(&span.trace_id),
                id: hex(&span.span_id),
                parent: hex(&span.parent_span_id),
                name: span.name,
                kind: span.kind,
                start_ns: span.start_time_unix_nano,
                end_ns: span.end_time_unix_nano,
                failed: span.status.is_some_and(|status| status.code == 2),
                attributes: texts(&span.attributes),
                resource: resource.clone(),
            });
        }
    }
    spans
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn texts(attributes: &[KeyValue]) -> BTreeMap<String, String> {
    let text = |one: &KeyValue| (one.key.clone(), one.value.as_ref().map(text_of));
    attributes.iter().map(text).map(|(key, text)| (key, text.expect("a value"))).collect()
}

fn text_of(value: &AnyValue) -> String {
    match value.value.as_ref().expect("a value") {
        any_value::Value::StringValue(text) => text.clone(),
        any_value::Value::IntValue(number) => number.to_string(),
        any_value::Value::ArrayValue(list) => {
            list.values.iter().map(text_of).collect::<Vec<_>>().join(",")
        }
        other => panic!("{other:?}"),
    }
}

/// The sum over all series of a counter with these labels.
pub fn sum(metrics: &[Metric], name: &str, labels: &[(&str, &str)]) -> i64 {
    let metric = metrics.iter().find(|metric| metric.name == name);
    let Some(metric::Data::Sum(sum)) = metric.and_then(|metric| metric.data.as_ref()) else {
        return 0;
    };
    let wanted = |attributes: &[KeyValue]| {
        let found = texts(attributes);
        labels.iter().all(|(key, value)| found.get(*key).map(String::as_str) == Some(*value))
    };
    let points = sum.data_points.iter().filter(|point| wanted(&point.attributes));
    points
        .map(|point| match point.value {
            Some(number_data_point::Value::AsInt(number)) => number,
            _ => 0,
        })
        .sum()
}
