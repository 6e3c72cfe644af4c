//! `[telemetry.otlp]`.

use super::*;

/// Maximum size of an attribute's name or value, in bytes.
pub(in crate::config) const ATTRIBUTE_BYTES_MAX: usize = 256;
/// Maximum number of header fields, and of attributes.
const FIELDS_MAX: usize = 64;

section! {
    otlp = ["[telemetry.otlp]"],
        "Traces and metrics for an OpenTelemetry collector; nothing is exported without this \
         section.";
    ENDPOINT "endpoint": Else<Text> = text("a URL such as \"http://127.0.0.1:4318\"", "required"),
        "The collector, by OTLP over HTTP (protobuf); `/v1/traces` and `/v1/metrics` are appended.";
    TRACES "traces": Is<Flag> = flag(true),
        "Whether traces of requests are exported.";
    METRICS "metrics": Is<Flag> = flag(true),
        "Whether metrics are exported.";
    SAMPLE "sample": Else<Text> = text("a share of requests from 0 to 1, such as 0.01", "0.01"),
        "The share of requests that are traced; a trusted proxy's `traceparent` takes precedence.";
    INTERVAL "interval": Is<Time> = time(s(1)..=s(3_600), s(60)),
        "How often metrics are exported.";
    TIMEOUT "timeout": Is<Time> = time(ms(100)..=s(60), s(10)),
        "Time for one export.";
    SERVICE "service": Else<Text> = text("a text of 1 to 256 bytes", "\"weir\""),
        "The resource's `service.name`.";
    ATTRIBUTES "attributes": List = list("table of texts of 1 to 256 bytes", FIELDS_MAX, "{}"),
        "More attributes of the resource.";
    HEADERS "headers": List = list("table of header fields", FIELDS_MAX, "{}"),
        "Header fields of each export.";
    HEADERS_FILE "headers_file": List =
        list("table of header fields, each with the file that holds its value", FIELDS_MAX, "{}"),
        "The same, with values that are secrets.";
    HEADERS_ENV "headers_env": List = list(
        "table of header fields, each with the environment variable that holds its value",
        FIELDS_MAX,
        "{}",
    ),
        "The same, from the environment.";
}
