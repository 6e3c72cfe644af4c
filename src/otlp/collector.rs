//! The collector that is exported to: one POST at a time, and what its reply means (OTLP/HTTP).
//! Knows nothing of when it is time to export.

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST, HeaderName, HeaderValue, RETRY_AFTER, USER_AGENT};
use http::{HeaderMap, StatusCode, Uri};
use http_body::Body as _;
use prost::Message as _;

use super::buffer::Sampling;
use super::schema::Exported;
use super::settings::{Header, Settings};
use crate::telemetry::{Label as _, Metrics, SettingError};
use crate::upstream::{self, Ejection, Retry, Upstream};
use crate::wire::{Body, Request};

/// Maximum number of bytes read of a reply.
const REPLY_BYTES_MAX: u64 = 64 << 10;
/// Maximum number of characters logged of what a collector says.
const MESSAGE_CHARS_MAX: usize = 200;
/// Fields that the export itself sets.
const OWN_FIELDS: [&str; 5] =
    ["content-type", "content-length", "host", "transfer-encoding", "connection"];
const EXPECTED: &str = "http://host:port or https://host:port, perhaps with a path";

/// A collector, its settings checked.
#[derive(Debug)]
pub struct Collector {
    pub(super) settings: Settings,
    /// The endpoint as it is logged.
    pub(super) endpoint: String,
    upstream: Upstream,
    fields: HeaderMap,
    traces_path: String,
    metrics_path: String,
}

/// A reply that accepted the export.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ExportReply {
    /// Spans or data points of it that the collector rejected.
    pub(super) rejected: u64,
    /// Why, or a warning.
    pub(super) message: String,
}

/// Why an export failed.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ExportError {
    pub(super) why: String,
    /// Whether the same may be sent again, and how long to wait, if the collector has said so.
    pub(super) again: RetryAdvice,
}

/// Whether a failed export may be sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RetryAdvice {
    No,
    After(Option<Duration>),
}

impl Collector {
    /// Checks the settings. Connects to nothing yet.
    ///
    /// # Errors
    /// An invalid endpoint (`endpoint`), fields that can't be sent (`headers.NAME`,
    /// `headers_file.NAME`, `headers_env.NAME`), certificates that can't be used (`tls.key`).
    pub fn build(settings: &Settings) -> Result<Self, Vec<SettingError>> {
        let mut errors = Vec::new();
        let place = place(&settings.endpoint).map_err(|expected| {
            let found = format!("{:?}", strip_user_info(&settings.endpoint));
            errors.push(SettingError::new("endpoint", found, expected));
        });
        let fields = fields(&settings.headers, &mut errors);
        let Ok((origin, authority, path)) = place else { return Err(errors) };
        let to = upstream::Settings {
            tls: settings.tls.clone(),
            connect: settings.timeout,
            response_header: settings.timeout,
            pool_idle_per_worker: 2,
            retry: Retry::Unsent,
            ejection: Ejection { failures: 0, ..Ejection::default() },
            logs_failures: false,
            ..upstream::Settings::new("otlp", vec![origin.clone()])
        };
        // Its upstream metrics are discarded: exports are counted instead.
        let upstream = Upstream::build(&to, &Metrics::new(1)).map_err(|found| {
            let at_endpoint = |error: SettingError| match error.setting.as_str() {
                "endpoints[0]" => SettingError { setting: "endpoint".to_owned(), ..error },
                _ => error,
            };
            errors.extend(found.into_iter().map(at_endpoint));
        });
        let (Ok(upstream), Ok(host), true) =
            (upstream, HeaderValue::try_from(authority), errors.is_empty())
        else {
            return Err(errors);
        };
        let mut all = HeaderMap::from_iter([
            (HOST, host),
            (CONTENT_TYPE, HeaderValue::from_static("application/x-protobuf")),
            (
                USER_AGENT,
                HeaderValue::from_static(concat!("weir-otlp/", env!("CARGO_PKG_VERSION"))),
            ),
        ]);
        all.extend(fields);
        Ok(Self {
            settings: settings.clone(),
            endpoint: format!("{origin}{path}"),
            upstream,
            fields: all,
            traces_path: format!("{path}/v1/traces"),
            metrics_path: format!("{path}/v1/metrics"),
        })
    }

    /// Whether it was made from these settings.
    #[must_use]
    pub fn is_of(&self, settings: &Settings) -> bool {
        self.settings == *settings
    }

    /// Connects once to each of its addresses. Returns what was asked, and why it can't be reached.
    pub async fn reach(&self) -> Vec<(String, Result<(), String>)> {
        self.upstream.reach().await
    }

    /// The share of requests that are traced. `None` if none is.
    pub(super) fn sampling(&self) -> Option<Sampling> {
        self.settings.traces.then_some(self.settings.sampling)
    }

    /// Sends spans.
    pub(super) async fn post_traces(&self, body: Bytes) -> Result<ExportReply, ExportError> {
        self.post(&self.traces_path, body).await
    }

    /// Sends data points.
    pub(super) async fn post_metrics(&self, body: Bytes) -> Result<ExportReply, ExportError> {
        self.post(&self.metrics_path, body).await
    }

    async fn post(&self, path: &str, body: Bytes) -> Result<ExportReply, ExportError> {
        let limit = self.settings.timeout;
        match tokio::time::timeout(limit, self.exchange(path, body)).await {
            Ok(result) => result,
            Err(_) => Err(ExportError::unreached(format!("no reply within {limit:?}"))),
        }
    }

    async fn exchange(&self, path: &str, body: Bytes) -> Result<ExportReply, ExportError> {
        let mut request = http::Request::post(path)
            .body(Body::full(body))
            .map_err(|error| ExportError { why: error.to_string(), again: RetryAdvice::No })?;
        request.headers_mut().clone_from(&self.fields);
        let reply = self.upstream.send(Request::from(request)).await.map_err(|error| {
            let why = match error.cause {
                upstream::Cause::Connect => "no server answers there".to_owned(),
                cause => cause.label().to_owned(),
            };
            ExportError::unreached(why)
        })?;
        let (head, body) = reply.into_http().into_parts();
        let text = read(body).await;
        if head.status.is_success() {
            return Ok(accepted(&text));
        }
        Err(ExportError {
            why: refusal(head.status),
            again: retry_advice(head.status, &head.headers),
        })
    }
}

impl ExportError {
    /// The collector can't be reached: it may be away for a moment.
    fn unreached(why: String) -> Self {
        Self { why, again: RetryAdvice::After(None) }
    }
}

impl fmt::Display for ExportError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.why.fmt(out)
    }
}

fn refusal(status: StatusCode) -> String {
    format!("it answered {status}")
}

/// Whether OTLP calls this status retryable, and how long to wait.
fn retry_advice(status: StatusCode, fields: &HeaderMap) -> RetryAdvice {
    if !matches!(status.as_u16(), 429 | 502 | 503 | 504) {
        return RetryAdvice::No;
    }
    let seconds =
        fields.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.trim().parse().ok());
    RetryAdvice::After(seconds.map(Duration::from_secs))
}

/// What a reply with a status of success says.
fn accepted(body: &[u8]) -> ExportReply {
    // Even if the body can't be decoded, the export was accepted.
    let partial = Exported::decode(body).unwrap_or_default().partial_success.unwrap_or_default();
    ExportReply {
        rejected: u64::try_from(partial.rejected).unwrap_or(0),
        message: partial.error_message.chars().take(MESSAGE_CHARS_MAX).collect(),
    }
}

/// Reads the body of a reply, if all of it comes and it is short. Nothing but what is counted
/// depends on it.
async fn read(body: Body) -> Vec<u8> {
    let (mut body, mut text) = (body.limit(REPLY_BYTES_MAX), Vec::new());
    while let Some(frame) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
        let Ok(frame) = frame else { return Vec::new() };
        if let Some(data) = frame.data_ref() {
            text.extend_from_slice(data);
        }
    }
    text
}

/// An endpoint's origin, authority and path. The error is what was expected.
fn place(endpoint: &str) -> Result<(String, String, String), &'static str> {
    let uri: Uri = endpoint.parse().map_err(|_| EXPECTED)?;
    let scheme = uri.scheme_str().filter(|scheme| matches!(*scheme, "http" | "https"));
    let (Some(scheme), Some(authority)) = (scheme, uri.authority()) else { return Err(EXPECTED) };
    if uri.query().is_some() {
        return Err(EXPECTED);
    }
    if authority.as_str().contains('@') {
        return Err("an endpoint without a user name or password, which belong in `headers_file`");
    }
    let path = uri.path().trim_end_matches('/');
    if path.ends_with("/v1/traces") || path.ends_with("/v1/metrics") {
        return Err("an endpoint without `/v1/traces` or `/v1/metrics`, which are appended");
    }
    Ok((format!("{scheme}://{authority}"), authority.to_string(), path.to_owned()))
}

/// The endpoint as a message may show it.
fn strip_user_info(endpoint: &str) -> String {
    match endpoint.rsplit_once('@') {
        Some((before, rest)) => {
            let scheme = before.split_once("://").map_or("", |(scheme, _)| scheme);
            format!("{scheme}://***@{rest}")
        }
        None => endpoint.to_owned(),
    }
}

fn fields(headers: &[Header], errors: &mut Vec<SettingError>) -> Vec<(HeaderName, HeaderValue)> {
    let mut fields: Vec<(HeaderName, HeaderValue)> = Vec::new();
    for Header { key, name, value } in headers {
        let mut wrong = |found: String, expected: &str| {
            let error = SettingError::new(format!("{key}.{name}"), found, expected);
            errors.push(error.in_key());
        };
        let Ok(field) = HeaderName::try_from(name.as_str()) else {
            wrong(format!("the name {name:?}"), "the name of a header field");
            continue;
        };
        let Ok(mut value) = HeaderValue::try_from(value.as_str()) else {
            wrong(
                "a value that no field can have".to_owned(),
                "a value without control characters",
            );
            continue;
        };
        if OWN_FIELDS.contains(&field.as_str()) {
            wrong(format!("the field {field}"), "a field that the export does not set itself");
        } else if fields.iter().any(|(known, _)| *known == field) {
            wrong(format!("the field {field} a second time"), "each field once");
        } else {
            value.set_sensitive(true);
            fields.push((field, value));
        }
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(endpoint: &str) -> Settings {
        Settings { endpoint: endpoint.to_owned(), ..Settings::default() }
    }

    fn errors(settings: &Settings) -> Vec<String> {
        let found = Collector::build(settings).unwrap_err();
        found.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn paths_are_appended_to_the_endpoints_own() {
        for (endpoint, traces) in [
            ("http://127.0.0.1:4318", "/v1/traces"),
            ("http://127.0.0.1:4318/", "/v1/traces"),
            ("http://collector.internal:4318/api/otlp/", "/api/otlp/v1/traces"),
        ] {
            let collector = Collector::build(&with(endpoint)).unwrap();
            assert_eq!(collector.traces_path, traces, "{endpoint}");
            assert_eq!(collector.metrics_path, traces.replace("traces", "metrics"));
        }
    }

    #[test]
    fn an_endpoint_that_is_none_is_an_error() {
        for endpoint in ["", "127.0.0.1:4318", "grpc://a:4317", "http://a/?x", "http://a:99999"] {
            let found = errors(&with(endpoint));
            assert!(found[0].starts_with("endpoint: found "), "{found:?}");
        }
        let found = errors(&with("http://me:secret@a:4318"));
        assert!(found[0].contains("***@a:4318") && !found[0].contains("secret"), "{found:?}");
        let found = errors(&with("http://a:4318/v1/traces"));
        assert!(found[0].contains("which are appended"), "{found:?}");
    }

    #[test]
    fn fields_that_cant_be_sent_are_errors_and_show_no_value() {
        let header = |name: &str, value: &str| Header {
            key: "headers_file",
            name: name.to_owned(),
            value: value.to_owned(),
        };
        let headers = vec![
            header("x y", "hidden"),
            header("x-a", "hidden\n"),
            header("Content-Type", "hidden"),
            header("x-b", "hidden"),
            header("X-B", "hidden"),
        ];
        let settings = Settings { headers, ..with("http://127.0.0.1:4318") };
        let found = errors(&settings);
        assert_eq!(found.len(), 4, "{found:?}");
        assert!(found.iter().all(|error| error.starts_with("headers_file.")), "{found:?}");
        assert!(!format!("{found:?} {settings:?}").contains("hidden"));
    }

    #[test]
    fn only_retryable_statuses_are_retried() {
        let mut fields = HeaderMap::new();
        let of = |status, fields: &HeaderMap| {
            retry_advice(StatusCode::from_u16(status).unwrap(), fields)
        };
        for status in [400, 401, 404, 408, 413, 500, 501] {
            assert_eq!(of(status, &fields), RetryAdvice::No, "{status}");
        }
        for status in [429, 502, 503, 504] {
            assert_eq!(of(status, &fields), RetryAdvice::After(None), "{status}");
        }
        fields.insert(RETRY_AFTER, HeaderValue::from_static("7"));
        assert_eq!(of(503, &fields), RetryAdvice::After(Some(Duration::from_secs(7))));
        fields.insert(RETRY_AFTER, HeaderValue::from_static("Mon, 23 Nov 2026 16:00:00 GMT"));
        assert_eq!(of(503, &fields), RetryAdvice::After(None));
    }

    #[test]
    fn a_partial_success_is_read_from_the_collectors_reply() {
        use opentelemetry_proto::tonic::collector::trace::v1 as official;
        let partial = official::ExportTracePartialSuccess {
            rejected_spans: 3,
            error_message: "too many".to_owned(),
        };
        let reply = official::ExportTraceServiceResponse { partial_success: Some(partial) };
        let expected = ExportReply { rejected: 3, message: "too many".to_owned() };
        assert_eq!(accepted(&reply.encode_to_vec()), expected);
        assert_eq!(accepted(b""), ExportReply::default());
        assert_eq!(accepted(b"{}"), ExportReply::default());
    }
}
