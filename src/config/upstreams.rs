//! `[upstreams.*]`. Endpoints are checked by the module that connects to them.

use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;

use super::reader::{Item, Table, integer};
use super::routes::fact;
use super::settings::upstreams::{
    concurrency, dns, ejection, endpoint, health, http2, sticky, upstream, upstream_timeouts,
};
use super::settings::{Is, Kind as _};
use super::{NAMED_MAX, check_name, tls};
use crate::upstream::{
    Concurrency, Dns, Ejection, EndpointSettings, HealthCheck, Http2Settings, Probe, Protocol,
    ProxyVersion, STATUSES_WELL, Settings, StickyCookie,
};

/// The port of DNS servers that are written without one.
const DNS_PORT: u16 = 53;
/// Maximum length of the name of a gRPC service, in bytes.
const SERVICE_BYTES_MAX: usize = 127;

/// `zone` is the one that this process is in.
pub(super) fn upstreams(root: &mut Table<'_>, zone: Option<&str>) -> Vec<Settings> {
    let table = root.section("upstreams");
    let named = table.named();
    if named.len() > NAMED_MAX {
        table.found(format!("{} upstreams", named.len()), format!("at most {NAMED_MAX}"));
    }
    let named = named.into_iter().take(NAMED_MAX);
    named.filter_map(|(name, item)| upstream(name, &item, zone)).collect()
}

fn upstream(name: String, item: &Item<'_>, zone: Option<&str>) -> Option<Settings> {
    check_name(&name, item);
    let mut table = item.table()?;
    let endpoints =
        table.required_list(&upstream::ENDPOINTS).map_or_else(Vec::new, |item| endpoints(&item));
    let mut timeouts = table.section("timeouts");
    let protocol = table.read(&upstream::PROTOCOL);
    let health = health(table.section("health"), protocol);
    let settings = Settings {
        name,
        endpoints,
        hash: table.item(&upstream::HASH).and_then(|item| fact(&item, upstream::HASH.expected())),
        sticky: sticky(table.section("sticky")),
        zone: zone.map(ToOwned::to_owned),
        zone_min: table.read(&upstream::ZONE_MIN),
        protocol,
        proxy_protocol: proxy_protocol(&mut table, protocol),
        tls: tls::client(table.section("tls")),
        http2: http2(table.section("http2")),
        connect: timeouts.read(&upstream_timeouts::CONNECT),
        response_header: timeouts.read(&upstream_timeouts::RESPONSE_HEADER),
        idle: timeouts.read(&upstream_timeouts::IDLE),
        pool_idle_per_worker: table.read(&upstream::POOL_IDLE_PER_WORKER),
        requests_per_worker: table.read(&upstream::REQUESTS_PER_WORKER),
        resolve_every: table.read(&upstream::RESOLVE_EVERY),
        dns: dns(&mut table),
        retry: table.read(&upstream::RETRY),
        retry_percent: table.read(&upstream::RETRY_PERCENT),
        ejection: ejection(table.section("ejection")),
        concurrency: concurrency(table.section("concurrency")),
        health,
        logs_failures: true,
    };
    timeouts.finish();
    table.finish();
    Some(settings)
}

/// How its connections say whose they are. Those of HTTP/2 are many clients'.
fn proxy_protocol(table: &mut Table<'_>, protocol: Protocol) -> Option<ProxyVersion> {
    let item = table.item(&upstream::PROXY_PROTOCOL)?;
    let version = upstream::PROXY_PROTOCOL.kind.kind.read(&item).flatten();
    if version.is_some() && protocol == Protocol::H2 {
        item.wrong("no `protocol = \"h2\"` with it, whose connections many clients share");
    }
    version
}

/// The servers that are asked for names; `None` if the system is.
fn dns(upstream: &mut Table<'_>) -> Option<Dns> {
    let mut table = upstream.section("dns");
    if !table.is_present() {
        return None;
    }
    upstream.useless(
        upstream::RESOLVE_EVERY.key,
        "`ttl_min` and `ttl_max` of `dns`: its answers say how long they hold",
    );
    let server = |item: &Item<'_>| {
        item.parsed("an address and port, such as \"10.0.0.2:53\"", |text| {
            text.parse::<SocketAddr>().ok().or_else(|| {
                text.parse::<IpAddr>().ok().map(|address| SocketAddr::new(address, DNS_PORT))
            })
        })
    };
    let servers = table.items(&dns::SERVERS).iter().filter_map(server).collect();
    let (ttl_min, ttl_max) = (table.read(&dns::TTL_MIN), table.read(&dns::TTL_MAX));
    if ttl_max < ttl_min {
        table
            .found("a `ttl_max` that is shorter than `ttl_min`", "one that is `ttl_min` or longer");
    }
    table.finish();
    Some(Dns { servers, ttl: ttl_min..=ttl_max.max(ttl_min) })
}

/// The cookie that names a server; `None` if there is none.
fn sticky(mut table: Table<'_>) -> Option<StickyCookie> {
    if !table.is_present() {
        return None;
    }
    let name = table.required(&sticky::COOKIE).and_then(|item| {
        let expected = "a name of letters, digits, `-`, `_` and `.`";
        let fits = |text: &str| !text.is_empty() && text.bytes().all(is_cookie_byte);
        item.parsed(expected, |text| fits(text).then(|| text.to_owned()))
    });
    let max_age = table.read_if_any(&sticky::MAX_AGE);
    let same_site = table.read(&sticky::SAME_SITE);
    table.finish();
    Some(StickyCookie { name: name?, max_age, same_site })
}

fn is_cookie_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-_.".contains(&byte)
}

fn ejection(mut table: Table<'_>) -> Ejection {
    let time = table.read(&ejection::TIME);
    let written = table.item(&ejection::TIME_MAX);
    let Is { kind, default } = &ejection::TIME_MAX.kind;
    let time_max = written.and_then(|item| kind.read(&item)).unwrap_or(time.max(*default));
    if time_max < time {
        table.found(
            "a `time_max` that is shorter than `time`",
            "a `time_max` that is `time` or longer",
        );
    }
    let settings = Ejection {
        failures: table.read(&ejection::FAILURES),
        time,
        time_max,
        max_percent: table.read(&ejection::MAX_PERCENT),
    };
    table.finish();
    settings
}

/// How many requests it has at once; `None` if that is not limited.
fn concurrency(mut table: Table<'_>) -> Option<Concurrency> {
    if !table.is_present() {
        return None;
    }
    let adaptive = table.read(&concurrency::ADAPTIVE);
    let written_min = table.item(&concurrency::MIN);
    let Is { kind, default } = &concurrency::MIN.kind;
    let min = written_min.as_ref().and_then(|item| kind.read(item)).unwrap_or(*default);
    if !adaptive && let Some(item) = &written_min {
        item.wrong("nothing: without `adaptive = true` the limit is `max`");
    }
    let written_max = table.item(&concurrency::MAX);
    if !adaptive && written_max.is_none() {
        table.missing("max", "`max = 64`, or `adaptive = true`");
    }
    let read_max = written_max.as_ref().and_then(|item| concurrency::MAX.kind.kind.read(item));
    let max = read_max.unwrap_or(Concurrency::default().max.max(min));
    if adaptive && max < min {
        table.found("a `max` that is less than `min`", "a `max` that is `min` or more");
    }
    let settings = Concurrency {
        adaptive,
        min: min.min(max),
        max,
        queue: table.read(&concurrency::QUEUE),
        max_wait: table.read(&concurrency::MAX_WAIT),
    };
    table.finish();
    Some(settings)
}

/// The health checks; `None` if there are none.
fn health(mut table: Table<'_>, protocol: Protocol) -> Option<HealthCheck> {
    if !table.is_present() {
        return None;
    }
    let path = table.item(&health::PATH);
    let service = table.item(&health::GRPC);
    let method = table.read(&health::METHOD);
    let statuses = statuses(&mut table);
    let probe = match (path, service) {
        (Some(path), None) => path.text(health::PATH.expected()).map(|path| Probe::Http {
            method,
            path: path.to_owned(),
            statuses,
        }),
        (None, Some(service)) => service.text(health::GRPC.expected()).map(|text| {
            for setting in [health::METHOD.key, health::STATUSES.key] {
                table.useless(setting, "nothing: with `grpc` the protocol says what is asked");
            }
            if protocol != Protocol::H2 {
                service.wrong("`protocol = \"h2\"` beside it");
            } else if text.len() > SERVICE_BYTES_MAX {
                service.wrong(health::GRPC.expected());
            }
            Probe::Grpc { service: text.to_owned() }
        }),
        (Some(_), Some(service)) => {
            service.wrong("one of `path` and `grpc`");
            None
        }
        (None, None) => {
            table.missing("path", "what to ask for, such as `path = \"/healthz\"`, or `grpc`");
            None
        }
    };
    let host = table.item(&health::HOST);
    let host = host.and_then(|item| item.text(health::HOST.expected()).map(ToOwned::to_owned));
    let interval = table.read(&health::INTERVAL);
    let written = table.item(&health::TIMEOUT);
    let Is { kind, default } = &health::TIMEOUT.kind;
    let timeout = written.and_then(|item| kind.read(&item)).unwrap_or(interval.min(*default));
    if timeout > interval {
        table.found(
            "a `timeout` that is longer than `interval`",
            "one that is `interval` or shorter",
        );
    }
    let check = HealthCheck {
        // Of a table with a mistake, which is never used.
        probe: probe.unwrap_or(Probe::Grpc { service: String::new() }),
        host,
        interval,
        timeout,
        rise: table.read(&health::RISE),
        fall: table.read(&health::FALL),
        healthy_min: table.read(&health::HEALTHY_MIN),
        slow_start: table.read(&health::SLOW_START),
    };
    table.finish();
    Some(check)
}

/// The statuses of healthy hosts, as ranges.
fn statuses(table: &mut Table<'_>) -> Vec<RangeInclusive<u16>> {
    let Some(written) = table.item(&health::STATUSES) else { return vec![STATUSES_WELL] };
    let items = written.list(health::STATUSES.kind.max);
    if items.is_empty() {
        written.wrong(health::STATUSES.kind.of);
    }
    let range = |item: &Item<'_>| {
        let range = match item.value.as_str() {
            Some(text) => text
                .split_once('-')
                .and_then(|(from, to)| Some(from.trim().parse().ok()?..=to.trim().parse().ok()?)),
            None => integer(item.value).and_then(|status| {
                let status = u16::try_from(status).ok()?;
                Some(status..=status)
            }),
        };
        let fits = |range: &RangeInclusive<u16>| {
            let (from, to) = (*range.start(), *range.end());
            (100..600).contains(&from) && (from..600).contains(&to)
        };
        let range = range.filter(fits);
        if range.is_none() {
            item.wrong("a status such as 204, or a range such as \"200-399\"");
        }
        range
    };
    items.iter().filter_map(range).collect()
}

fn endpoints(written: &Item<'_>) -> Vec<EndpointSettings> {
    let items = written.list(upstream::ENDPOINTS.kind.max);
    if items.is_empty() && written.value.is_array() {
        written.found("no endpoint", "one URL or more, such as [\"http://127.0.0.1:9000\"]", None);
    }
    items.iter().filter_map(one_endpoint).collect()
}

/// A URL, or a table with one.
fn one_endpoint(item: &Item<'_>) -> Option<EndpointSettings> {
    if item.value.as_str().is_some() {
        return item.text(endpoint::URL.expected()).map(|url| url.to_owned().into());
    }
    if !item.value.is_table() {
        item.wrong("a URL such as \"http://127.0.0.1:9000\", or { url = \"...\", weight = 2 }");
        return None;
    }
    let mut table = item.table()?;
    let url = table
        .required(&endpoint::URL)
        .and_then(|item| item.text(endpoint::URL.expected()).map(ToOwned::to_owned));
    let weight = table.read(&endpoint::WEIGHT);
    let zone = table.read_if_any(&endpoint::ZONE);
    let backup = table.read(&endpoint::BACKUP);
    table.finish();
    Some(EndpointSettings { url: url?, weight, zone, backup })
}

fn http2(mut table: Table<'_>) -> Http2Settings {
    let settings = Http2Settings {
        connections_per_worker: table.read(&http2::CONNECTIONS_PER_WORKER),
        streams_per_connection: table.read(&http2::STREAMS_PER_CONNECTION),
        ping_interval: table.read(&http2::PING_INTERVAL),
        ping_timeout: table.read(&http2::PING_TIMEOUT),
    };
    table.finish();
    settings
}
