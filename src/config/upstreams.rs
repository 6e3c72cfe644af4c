//! `[upstreams.*]`. Whether an endpoint is one is checked by the room that connects to it.

use std::ops::RangeInclusive;
use std::time::Duration;

use super::reader::{Item, Table};
use super::{NAMED_MAX, check_name, units};
use crate::upstream::{Ejection, Http2Settings, Protocol, Retry, Settings, TlsSettings};
use crate::wire::Identity;

const ENDPOINTS_MAX: usize = 256;
const TIMEOUT: RangeInclusive<Duration> =
    Duration::from_millis(1)..=Duration::from_secs(24 * 3_600);
const POOL_IDLE: RangeInclusive<u64> = 0..=10_000;
const REQUESTS: RangeInclusive<u64> = 1..=1_000_000;
const PERCENT: RangeInclusive<u64> = 0..=100;
const FAILURES: RangeInclusive<u64> = 0..=1_000;
const EJECTED: RangeInclusive<Duration> =
    Duration::from_millis(100)..=Duration::from_secs(24 * 3_600);
/// With 0 nothing would ever be ejected: `failures = 0` says so.
const EJECTED_PERCENT: RangeInclusive<u64> = 1..=100;
const RESOLVE_EVERY: RangeInclusive<Duration> =
    Duration::from_secs(1)..=Duration::from_secs(24 * 3_600);
const CONNECTIONS: RangeInclusive<u64> = 1..=1_000;
const STREAMS: RangeInclusive<u64> = 1..=10_000;
const PING_INTERVAL: RangeInclusive<Duration> =
    Duration::from_secs(1)..=Duration::from_secs(24 * 3_600);
const PEM: &str = "a PEM file";

pub(super) fn upstreams(root: &mut Table<'_>) -> Vec<Settings> {
    let table = root.section("upstreams");
    let named = table.named();
    if named.len() > NAMED_MAX {
        table.found(format!("{} upstreams", named.len()), format!("at most {NAMED_MAX}"));
    }
    named.into_iter().take(NAMED_MAX).filter_map(|(name, item)| upstream(name, &item)).collect()
}

fn upstream(name: String, item: &Item<'_>) -> Option<Settings> {
    check_name(&name, item);
    let mut table = item.table()?;
    let endpoints = table
        .need("endpoints", "an array of URLs, such as [\"http://127.0.0.1:9000\"]")
        .map(|item| endpoints(&item));
    let default = Settings::new(name, endpoints.unwrap_or_default());
    let words = [("h1", Protocol::H1), ("h2", Protocol::H2)];
    let protocol =
        table.take("protocol").and_then(|item| item.choice(&words, &[])).unwrap_or_default();
    let tls = tls(&mut table);
    let http2 = http2(&mut table, default.http2);
    let mut timeouts = table.section("timeouts");
    let connect = timeouts.duration("connect", TIMEOUT, default.connect);
    let response_header = timeouts.duration("response_header", TIMEOUT, default.response_header);
    let idle = timeouts.duration("idle", TIMEOUT, default.idle);
    timeouts.finish();
    let words = [("idempotent", Retry::Idempotent), ("unsent", Retry::Unsent), ("off", Retry::Off)];
    let settings = Settings {
        protocol,
        tls,
        http2,
        connect,
        response_header,
        idle,
        pool_idle_per_worker: table.count(
            "pool_idle_per_worker",
            POOL_IDLE,
            default.pool_idle_per_worker,
        ),
        requests_per_worker: table.count(
            "requests_per_worker",
            REQUESTS,
            default.requests_per_worker,
        ),
        resolve_every: table.duration("resolve_every", RESOLVE_EVERY, default.resolve_every),
        retry: table
            .take("retry")
            .and_then(|item| item.choice(&words, &[]))
            .unwrap_or(default.retry),
        retry_percent: table.count("retry_percent", PERCENT, default.retry_percent),
        ejection: ejection(&mut table, default.ejection),
        ..Settings::new(default.name, default.endpoints)
    };
    table.finish();
    Some(settings)
}

fn ejection(table: &mut Table<'_>, default: Ejection) -> Ejection {
    let mut table = table.section("ejection");
    let failures = u32::try_from(table.whole("failures", FAILURES, default.failures.into()))
        .unwrap_or(default.failures);
    let time = table.duration("time", EJECTED, default.time);
    let time_max = table.duration("time_max", EJECTED, default.time_max.max(time));
    if time_max < time {
        table.found(
            "a `time_max` that is shorter than `time`",
            "a `time_max` that is `time` or longer",
        );
    }
    let max_percent = table.count("max_percent", EJECTED_PERCENT, default.max_percent);
    table.finish();
    Ejection { failures, time, time_max, max_percent }
}

fn endpoints(written: &Item<'_>) -> Vec<String> {
    let items = written.list(ENDPOINTS_MAX);
    if items.is_empty() && written.value.is_array() {
        written.found("no endpoint", "one URL or more, such as [\"http://127.0.0.1:9000\"]", None);
    }
    items
        .iter()
        .filter_map(|item| {
            item.text("a URL such as \"http://127.0.0.1:9000\"").map(ToOwned::to_owned)
        })
        .collect()
}

fn tls(table: &mut Table<'_>) -> TlsSettings {
    let mut table = table.section("tls");
    let ca = table.take("ca").and_then(|item| item.pem(PEM));
    let (certificate, key) = (table.take("certificate"), table.take("key"));
    match (&certificate, &key) {
        (Some(_), None) => table.missing("key", "the certificate's key"),
        (None, Some(_)) => table.missing("certificate", "the key's certificate"),
        _ => {}
    }
    let identity =
        certificate.and_then(|item| item.pem(PEM)).zip(key.and_then(|item| item.pem(PEM)));
    let identity = identity.map(|(certificate, key)| Identity { certificate, key });
    let server_name =
        table.take("server_name").and_then(|item| item.text("a host name")).map(ToOwned::to_owned);
    table.finish();
    TlsSettings { ca, identity, server_name }
}

fn http2(table: &mut Table<'_>, default: Http2Settings) -> Http2Settings {
    let mut table = table.section("http2");
    let http2 = Http2Settings {
        connections_per_worker: table.count(
            "connections_per_worker",
            CONNECTIONS,
            default.connections_per_worker,
        ),
        streams_per_connection: table.count(
            "streams_per_connection",
            STREAMS,
            default.streams_per_connection,
        ),
        ping_interval: table.take("ping_interval").and_then(|item| ping_interval(&item)),
        ping_timeout: table.duration("ping_timeout", TIMEOUT, default.ping_timeout),
    };
    table.finish();
    http2
}

fn ping_interval(item: &Item<'_>) -> Option<Duration> {
    let read = |text: &str| match text {
        "off" => Some(None),
        text => units::duration(text).filter(|interval| PING_INTERVAL.contains(interval)).map(Some),
    };
    item.parsed("\"off\" or a duration from \"1s\" to \"1d\"", read).flatten()
}
