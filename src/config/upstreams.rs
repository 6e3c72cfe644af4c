//! `[upstreams.*]`. Endpoints are checked by the module that connects to them.

use std::ops::RangeInclusive;
use std::time::Duration;

use super::reader::{Item, Table};
use super::{NAMED_MAX, check_name, tls, units};
use crate::upstream::{Ejection, Http2Settings, Protocol, Retry, Settings};

const ENDPOINTS_MAX: usize = 256;
const TIMEOUT: RangeInclusive<Duration> =
    Duration::from_millis(1)..=Duration::from_secs(24 * 3_600);
const POOL_IDLE: RangeInclusive<u64> = 0..=10_000;
const REQUESTS: RangeInclusive<u64> = 1..=1_000_000;
const PERCENT: RangeInclusive<u64> = 0..=100;
const FAILURES: RangeInclusive<u64> = 0..=1_000;
const EJECTED: RangeInclusive<Duration> =
    Duration::from_millis(100)..=Duration::from_secs(24 * 3_600);
/// Not 0: `failures = 0` turns ejection off.
const EJECTED_PERCENT: RangeInclusive<u64> = 1..=100;
const RESOLVE_EVERY: RangeInclusive<Duration> =
    Duration::from_secs(1)..=Duration::from_secs(24 * 3_600);
const CONNECTIONS: RangeInclusive<u64> = 1..=1_000;
const STREAMS: RangeInclusive<u64> = 1..=10_000;
const PING_INTERVAL: RangeInclusive<Duration> =
    Duration::from_secs(1)..=Duration::from_secs(24 * 3_600);

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
    let mut settings = Settings::new(name, endpoints.unwrap_or_default());
    table.choice("protocol", &[("h1", Protocol::H1), ("h2", Protocol::H2)], &mut settings.protocol);
    settings.tls = tls::client(table.section("tls"));
    http2(&mut table, &mut settings.http2);
    let mut timeouts = table.section("timeouts");
    timeouts.duration("connect", TIMEOUT, &mut settings.connect);
    timeouts.duration("response_header", TIMEOUT, &mut settings.response_header);
    timeouts.duration("idle", TIMEOUT, &mut settings.idle);
    timeouts.finish();
    table.number("pool_idle_per_worker", POOL_IDLE, &mut settings.pool_idle_per_worker);
    table.number("requests_per_worker", REQUESTS, &mut settings.requests_per_worker);
    table.duration("resolve_every", RESOLVE_EVERY, &mut settings.resolve_every);
    let words = [("idempotent", Retry::Idempotent), ("unsent", Retry::Unsent), ("off", Retry::Off)];
    table.choice("retry", &words, &mut settings.retry);
    table.number("retry_percent", PERCENT, &mut settings.retry_percent);
    ejection(&mut table, &mut settings.ejection);
    table.finish();
    Some(settings)
}

fn ejection(table: &mut Table<'_>, ejection: &mut Ejection) {
    let mut table = table.section("ejection");
    table.number("failures", FAILURES, &mut ejection.failures);
    table.duration("time", EJECTED, &mut ejection.time);
    ejection.time_max = ejection.time_max.max(ejection.time);
    table.duration("time_max", EJECTED, &mut ejection.time_max);
    if ejection.time_max < ejection.time {
        table.found(
            "a `time_max` that is shorter than `time`",
            "a `time_max` that is `time` or longer",
        );
    }
    table.number("max_percent", EJECTED_PERCENT, &mut ejection.max_percent);
    table.finish();
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

fn http2(table: &mut Table<'_>, http2: &mut Http2Settings) {
    let mut table = table.section("http2");
    table.number("connections_per_worker", CONNECTIONS, &mut http2.connections_per_worker);
    table.number("streams_per_connection", STREAMS, &mut http2.streams_per_connection);
    http2.ping_interval = table.take("ping_interval").and_then(|item| ping_interval(&item));
    table.duration("ping_timeout", TIMEOUT, &mut http2.ping_timeout);
    table.finish();
}

fn ping_interval(item: &Item<'_>) -> Option<Duration> {
    let read = |text: &str| match text {
        "off" => Some(None),
        text => units::duration(text).filter(|interval| PING_INTERVAL.contains(interval)).map(Some),
    };
    item.parsed("\"off\" or a duration from \"1s\" to \"1d\"", read).flatten()
}
