//! Active health checks: each address is asked at an interval. One task asks for
//! all workers, which read one flag of each host. Knows nothing of requests.
//!
//! A host is healthy until it has failed `fall` checks in a row, and again once it has passed
//! `rise` of them. An unhealthy host gets no requests, unless fewer than
//! [`HealthCheck::healthy_min`] are healthy. Ejection (`host`) is independent: a host gets requests
//! if it is healthy and not ejected.

use std::collections::{HashMap, HashSet, VecDeque};
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use http::header::{CONTENT_TYPE, HOST, HeaderName, HeaderValue, TE, USER_AGENT};
use http_body::Body as _;
use rustls::pki_types::ServerName;
use tokio::time::{sleep, timeout};

use super::endpoint::HostAddress;
use super::host::Host;
use super::hosts::Hosts;
use super::{Cause, CheckMethod, Ejection, HealthCheck, Inner, Probe, Retry, Settings, Upstream};
use crate::clock;
use crate::telemetry::{Label as _, Metrics, SettingError, labels};
use crate::wire::{Body, BodyError, Request, Response, full};

/// Addresses of an upstream that are asked at the same time, at most.
const PROBES_MAX: usize = 256;
/// Why a check failed whose answer did not come.
const LATE: &str = "no answer in time";
/// Bytes of an answer that are read, so that its connection can be used again.
const ANSWER_BYTES_MAX: usize = 65_536;
/// The interval varies by one part in so many, in both directions, so that proxies do not ask in
/// step.
const JITTER: u32 = 10;

labels! {
    /// The result of a check: a metric's label.
    pub(super) enum CheckResult {
        /// The expected answer.
        Passed = "passed",
        /// No answer, or another one.
        Failed = "failed",
    }
}

/// Whether a request can be made of these settings.
pub(super) fn check_settings(check: &HealthCheck) -> Result<(), Vec<SettingError>> {
    let mut errors = Vec::new();
    let mut wrong = |setting: &str, found: &str, expected: &str| {
        errors.push(SettingError::new(setting, format!("{found:?}"), expected));
    };
    if let Probe::Http { path, .. } = &check.probe
        && !(path.starts_with('/') && path.parse::<http::uri::PathAndQuery>().is_ok())
    {
        wrong("health.path", path, "a path that begins with /, such as \"/healthz\"");
    }
    if let Some(host) = &check.host
        && (host.contains('@') || host.parse::<http::uri::Authority>().is_err())
    {
        wrong("health.host", host, "a host name");
    }
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}

impl From<&CheckMethod> for http::Method {
    fn from(method: &CheckMethod) -> Self {
        match method {
            CheckMethod::Get => Self::GET,
            CheckMethod::Head => Self::HEAD,
            CheckMethod::Options => Self::OPTIONS,
        }
    }
}

/// What is asked of one host, and what it answered.
struct Prober {
    /// An upstream of this address alone, with its own connections and without retries.
    upstream: Result<Upstream, String>,
    /// Checks in a row that contradict what the host is held to be.
    against: u32,
}

/// Names a host for as long as it is one of the upstream's.
type HostKey = (usize, HostAddress);

/// The probers of an upstream's hosts, and whose turn it is.
#[derive(Default)]
struct Probers {
    all: HashMap<HostKey, Slot>,
    /// Those whose check is due, the longest waiting first.
    due: VecDeque<HostKey>,
}

struct Slot {
    /// Absent while it asks.
    prober: Option<Prober>,
    is_due: bool,
}

/// Asks all hosts until the upstream is gone. A host that is slow to answer is asked again when the
/// next interval begins, and delays no other host.
pub(super) async fn watch(upstream: &Arc<Inner>, check: &HealthCheck) {
    let mut probers = Probers::default();
    let mut asked = FuturesUnordered::new();
    loop {
        let began = clock::monotonic();
        if upstream.hosts.current().is_empty() {
            // Whoever does not answer in time may be asked in the next round.
            let _ = timeout(check.timeout, Hosts::resolve_now(upstream)).await;
        } else {
            Hosts::resolve_in_background(upstream);
        }
        probers.begin_round(upstream);
        upstream.hosts.judge(check.healthy_min);
        let next = began + jittered(check.interval);
        let mut interval = pin!(sleep(next.saturating_duration_since(clock::monotonic())));
        loop {
            while asked.len() < PROBES_MAX
                && let Some((key, prober)) = probers.next()
            {
                asked.push(prober.ask(upstream, key, check));
            }
            tokio::select! {
                Some((key, mut prober, answer)) = asked.next() => {
                    // It may have moved while it was asked.
                    let hosts = upstream.hosts.current();
                    let host = hosts.iter().find(|host| key_of(host) == key);
                    if let Some((host, answer)) = host.zip(answer) {
                        prober.note(upstream, host, check, answer);
                        upstream.hosts.judge(check.healthy_min);
                    }
                    probers.give_back(&key, prober);
                }
                () = &mut interval => break,
            }
        }
    }
}

fn key_of(host: &Arc<Host>) -> HostKey {
    (host.endpoint, host.address.clone())
}

impl Probers {
    /// Makes a check due of each host that has none due or under way, and forgets hosts that are
    /// gone.
    fn begin_round(&mut self, upstream: &Inner) {
        let hosts = upstream.hosts.current();
        let known: HashSet<HostKey> = hosts.iter().map(key_of).collect();
        self.all.retain(|key, _| known.contains(key));
        for host in hosts.iter() {
            let key = key_of(host);
            let new = || Slot { prober: Some(Prober::new(upstream, host)), is_due: false };
            let slot = self.all.entry(key.clone()).or_insert_with(new);
            if slot.prober.is_some() && !slot.is_due {
                slot.is_due = true;
                self.due.push_back(key);
            }
        }
    }

    /// The one that has waited the longest.
    fn next(&mut self) -> Option<(HostKey, Prober)> {
        loop {
            let key = self.due.pop_front()?;
            // Hosts that are gone are skipped.
            if let Some(slot) = self.all.get_mut(&key)
                && std::mem::take(&mut slot.is_due)
                && let Some(prober) = slot.prober.take()
            {
                return Some((key, prober));
            }
        }
    }

    fn give_back(&mut self, key: &HostKey, prober: Prober) {
        if let Some(slot) = self.all.get_mut(key) {
            slot.prober.get_or_insert(prober);
        }
    }
}

/// The time, up to a [`JITTER`]th shorter or longer.
fn jittered(time: Duration) -> Duration {
    time - time / JITTER + (time * 2 / JITTER).mul_f64(fastrand::f64())
}

impl Prober {
    fn new(upstream: &Inner, host: &Host) -> Self {
        Self { upstream: private(upstream, host), against: 0 }
    }

    /// Asks. No answer if that says nothing of the host.
    async fn ask(
        mut self,
        upstream: &Inner,
        key: HostKey,
        check: &HealthCheck,
    ) -> (HostKey, Self, Option<Result<(), String>>) {
        if self.upstream.is_err()
            && let Some(host) = upstream.hosts.current().iter().find(|host| key_of(host) == key)
        {
            self.upstream = private(upstream, host);
        }
        let authority = upstream.endpoints.get(key.0).map(|endpoint| &endpoint.authority);
        let authority = authority.map_or_else(String::new, ToString::to_string);
        let answer = match &self.upstream {
            Ok(prober) => ask(prober, check, &authority).await.ok(),
            Err(why) => Some(Err(why.clone())),
        };
        (key, self, answer)
    }

    /// Counts what the host answered, and changes its state if that is now to be believed.
    fn note(
        &mut self,
        upstream: &Inner,
        host: &Host,
        check: &HealthCheck,
        answer: Result<(), String>,
    ) {
        let is_healthy = answer.is_ok();
        let result = if is_healthy { CheckResult::Passed } else { CheckResult::Failed };
        upstream.count_check(host, result);
        if is_healthy == host.is_healthy() {
            self.against = 0;
        } else {
            self.against += 1;
            if self.against >= if is_healthy { check.rise } else { check.fall } {
                self.against = 0;
                change(upstream, host, answer.as_ref().err());
            }
        }
        host.note_check(answer.err());
    }
}

/// A check that says nothing of the host: it failed for want of our own descriptors.
struct Skipped;

/// An upstream of this address alone.
fn private(upstream: &Inner, host: &Host) -> Result<Upstream, String> {
    let settings = settings_of(upstream, host)?;
    // Its metrics are discarded: checks are counted instead.
    Upstream::build_within(&settings, &Metrics::new(1), &upstream.budget, None)
        .map_err(|errors| errors.first().map_or_else(String::new, |error| error.expected.clone()))
}

/// Changes the state of the host: it is unhealthy for this reason, or healthy again.
fn change(upstream: &Inner, host: &Host, why: Option<&String>) {
    host.set_healthy(upstream, why.is_none());
    upstream.count_change(host, why.is_none());
    let (name, endpoint) = (&upstream.settings.name, upstream.text_of(host));
    let address = &host.address;
    // Each one, so that the log never ends with a state that is over. `rise` and `fall` bound them.
    match why {
        None => {
            tracing::info!(upstream = name, endpoint, %address, "an endpoint is healthy again");
        }
        Some(why) => {
            tracing::warn!(upstream = name, endpoint, %address, why, "an endpoint is unhealthy");
        }
    }
}

/// Settings for an upstream of this address alone, reached as `upstream` reaches it.
fn settings_of(upstream: &Inner, host: &Host) -> Result<Settings, String> {
    let endpoint = upstream.endpoints.get(host.endpoint).ok_or("it is gone")?;
    let settings = &upstream.settings;
    let scheme = if endpoint.is_tls() { "https" } else { "http" };
    let mut tls = settings.tls.clone();
    if let Some(ServerName::DnsName(name)) = &endpoint.server_name {
        tls.server_name = Some(name.as_ref().to_owned());
    }
    let address = match &host.address {
        HostAddress::Ip(address) => format!("{scheme}://{address}"),
        unix @ HostAddress::Unix(_) => unix.to_string(),
    };
    Ok(Settings {
        protocol: settings.protocol,
        proxy_protocol: settings.proxy_protocol,
        tls,
        http2: settings.http2.clone(),
        connect: settings.connect,
        pool_idle_per_worker: 1,
        // A kept connection may be closed just as it is used.
        retry: Retry::Idempotent,
        retry_percent: 100,
        ejection: Ejection { failures: 0, ..Ejection::default() },
        logs_failures: false,
        ..Settings::new(settings.name.clone(), vec![address])
    })
}

/// Asks once. The answer may take the time that the check has, and its body as long again.
async fn ask(
    upstream: &Upstream,
    check: &HealthCheck,
    authority: &str,
) -> Result<Result<(), String>, Skipped> {
    let request = match request(check, authority) {
        Ok(request) => request,
        Err(why) => return Ok(Err(why)),
    };
    let reply = match timeout(check.timeout, upstream.send(request)).await {
        Ok(Ok(reply)) => reply,
        Ok(Err(error))
            if matches!(error.cause, Cause::Descriptors | Cause::Overload | Cause::Shed) =>
        {
            return Err(Skipped);
        }
        Ok(Err(error)) => return Ok(Err(format!("no reply ({})", error.cause.label()))),
        Err(_) => return Ok(Err(LATE.to_owned())),
    };
    Ok(judge(check, reply).await)
}

fn request(check: &HealthCheck, authority: &str) -> Result<Request, String> {
    let host = check.host.as_deref().unwrap_or(authority);
    let (method, path, body) = match &check.probe {
        Probe::Http { method, path, .. } => (method.into(), path.as_str(), Body::empty()),
        Probe::Grpc { service } => {
            (http::Method::POST, "/grpc.health.v1.Health/Check", full(grpc_request(service)))
        }
    };
    let mut request = http::Request::builder()
        .method(method)
        .uri(path)
        .body(body)
        .map_err(|it| it.to_string())?;
    let fields = request.headers_mut();
    fields.insert(HOST, HeaderValue::from_str(host).map_err(|error| error.to_string())?);
    fields.insert(USER_AGENT, HeaderValue::from_static("weir-health"));
    if matches!(check.probe, Probe::Grpc { .. }) {
        fields.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        fields.insert(TE, HeaderValue::from_static("trailers"));
    }
    Ok(Request::from(request))
}

/// Whether the reply is that of a healthy host.
async fn judge(check: &HealthCheck, reply: Response) -> Result<(), String> {
    let (head, body) = reply.into_http().into_parts();
    match &check.probe {
        Probe::Http { statuses, .. } => {
            let status = head.status.as_u16();
            // Whatever it says, the status decides.
            let _ = timeout(check.timeout, read(body)).await;
            let is_expected = statuses.iter().any(|range| range.contains(&status));
            if is_expected { Ok(()) } else { Err(format!("status {status}")) }
        }
        Probe::Grpc { .. } => {
            if head.status != http::StatusCode::OK {
                return Err(format!("status {}", head.status.as_u16()));
            }
            let read = timeout(check.timeout, read(body)).await.map_err(|_| LATE.to_owned())?;
            let (message, trailers) = read.map_err(|error| error.to_string())?;
            let name = HeaderName::from_static("grpc-status");
            let status = trailers.get(&name).or_else(|| head.headers.get(&name));
            match status.map(HeaderValue::as_bytes) {
                Some(b"0") | None => {}
                Some(other) => {
                    return Err(format!("grpc-status {}", String::from_utf8_lossy(other)));
                }
            }
            match grpc_answer(&message) {
                Some(1) => Ok(()),
                Some(0) => Err("it says UNKNOWN".into()),
                Some(2) => Err("it says NOT_SERVING".into()),
                Some(3) => Err("it does not know the service".into()),
                _ => Err("no answer of gRPC's health protocol".into()),
            }
        }
    }
}

/// The body and the trailers.
async fn read(body: Body) -> Result<(Vec<u8>, http::HeaderMap), BodyError> {
    let (mut body, mut bytes) = (body.limit(ANSWER_BYTES_MAX as u64), Vec::new());
    let mut trailers = http::HeaderMap::new();
    while let Some(frame) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
        match frame?.into_data() {
            Ok(data) => bytes.extend_from_slice(&data),
            Err(frame) => {
                trailers.extend(frame.into_trailers().into_iter().next().unwrap_or_default())
            }
        }
    }
    Ok((bytes, trailers))
}

/// A `HealthCheckRequest` in a frame that is not compressed.
/// <https://github.com/grpc/grpc/blob/master/doc/health-checking.md>
fn grpc_request(service: &str) -> Bytes {
    let mut message = Vec::new();
    if !service.is_empty() {
        // Field 1, a text. The configuration allows 127 bytes, so that its length takes one.
        message.extend([0x0a, u8::try_from(service.len()).unwrap_or(0)]);
        message.extend_from_slice(service.as_bytes());
    }
    let length = u32::try_from(message.len()).unwrap_or(0).to_be_bytes();
    [&[0][..], &length, &message].concat().into()
}

/// The status in a framed `HealthCheckResponse`: its only field, a number.
fn grpc_answer(framed: &[u8]) -> Option<u8> {
    match framed {
        [0, 0, 0, 0, 0] => Some(0),
        [0, 0, 0, 0, 2, 0x08, status] => Some(*status),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_grpc_are_as_protobuf_has_them() {
        assert_eq!(&grpc_request("")[..], [0, 0, 0, 0, 0]);
        assert_eq!(&grpc_request("a.B")[..], b"\0\0\0\0\x05\x0a\x03a.B");
        assert_eq!(grpc_answer(b"\0\0\0\0\x02\x08\x01"), Some(1));
        assert_eq!(grpc_answer(b"\0\0\0\0\0"), Some(0));
        assert_eq!(grpc_answer(b"\x01\0\0\0\x02\x08\x01"), None);
        assert_eq!(grpc_answer(b""), None);
    }

    #[test]
    fn the_interval_varies_by_a_tenth() {
        let all: Vec<Duration> = (0..1_000).map(|_| jittered(Duration::from_secs(10))).collect();
        let (least, most) = (all.iter().min().unwrap(), all.iter().max().unwrap());
        assert!(*least >= Duration::from_secs(9) && *most <= Duration::from_secs(11));
        assert!(*most - *least > Duration::from_secs(1), "{least:?} {most:?}");
    }
}
