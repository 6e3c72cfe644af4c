//! `[[listeners]]`, `[server]`, `[admin]`, `[log]`.

use std::collections::HashSet;
use std::io::IsTerminal;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::time::Duration;

use ipnet::IpNet;

use super::files;
use super::reader::{Item, Table};
use crate::proxy::{EncodedSlash, PathParameters};
use crate::telemetry::{Access, Format, WORKERS_MAX};
use crate::wire::{Identity, Rate};
use crate::{admin, limit, listen, proxy, telemetry};

const LISTENERS_MAX: usize = 64;
/// Certificates of one listener, at most.
const CERTIFICATES_MAX: usize = 1_024;
const LISTENER_DEFAULT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8080);
/// Where the operator's pages are, unless `[admin]` says otherwise.
pub const ADMIN_DEFAULT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9901);
/// Names of the admin's listener, at most, and bytes of one (RFC 1035).
const ADMIN_HOSTS_MAX: usize = 64;
const HOST_BYTES_MAX: usize = 253;
const TRUSTED_PROXIES_MAX: usize = 1_024;

const SHUTDOWN_GRACE_DEFAULT: Duration = Duration::from_secs(30);
const SHUTDOWN_GRACE: RangeInclusive<Duration> = Duration::ZERO..=Duration::from_secs(3_600);

const CONNECTIONS: RangeInclusive<u64> = 1..=1_000_000;
/// What one client address may have of `connections` unless it is written, and the least of it.
const ADDRESS_PART: usize = 10;
const ADDRESS_CONNECTIONS_MIN: usize = 100;
/// From a provider's block to a single address.
const IPV6_PREFIX: RangeInclusive<u64> = 16..=128;
/// The low end is what an HTTP/1 connection reads at a time. With the high end a head of HTTP/2,
/// whose fields count 32 bytes more than they have, stays below the 24,576 fields that a
/// `HeaderMap` can hold.
const HEADER_BYTES: RangeInclusive<u64> = 8 << 10..=512 << 10;
const STREAMS: RangeInclusive<u64> = 1..=10_000;
/// Each holds its connection and, of a body, what the client has sent of it. With 0 none waits.
const WAITING: RangeInclusive<u64> = 0..=1_000_000;
const URI_BYTES_DEFAULT: u64 = 8 << 10;
/// The `http` crate itself refuses a URI of 64 KiB.
const URI_BYTES: RangeInclusive<u64> = 64..=63 << 10;
const BUFFERED_BYTES_DEFAULT: u64 = 1 << 30;
/// The low end is what a worker's connections with large bodies hold, and far above what workers
/// have counted and not handed on.
const BUFFERED_BYTES: RangeInclusive<u64> = 4 << 20..=1 << 44;
const BODY_BYTES_DEFAULT: u64 = 100 << 20;
/// A request's body, also on a route. With 0 no request may have one.
pub(super) const BODY_BYTES: RangeInclusive<u64> = 0..=1 << 40;

/// Bytes a second; with 0 a client may be as slow as it likes.
const BODY_RATE_DEFAULT: u64 = 240;
const RATE: RangeInclusive<u64> = 0..=1 << 30;
const RATE_GRACE_DEFAULT: Duration = Duration::from_secs(10);

const TIMEOUT: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(3_600);
const BODY_IDLE_DEFAULT: Duration = Duration::from_secs(30);

/// `[server]`.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) workers: usize,
    pub(super) shutdown_grace: Duration,
    pub(super) trusted_proxies: Vec<IpNet>,
    pub(super) connections: listen::ConnectionSettings,
    pub(super) uri_bytes_max: usize,
    pub(super) paths: proxy::Paths,
    pub(super) underscores_in_headers: bool,
    pub(super) buffered_bytes_max: usize,
    pub(super) body_bytes_max: u64,
    /// Of leaky buckets.
    pub(super) waiting_max: usize,
    pub(super) body_idle: Duration,
    pub(super) body_rate: Option<Rate>,
}

pub(super) fn listeners(root: &mut Table<'_>) -> Vec<listen::Settings> {
    let Some(written) = root.take("listeners") else {
        return vec![listen::Settings::plain(LISTENER_DEFAULT)];
    };
    let items = written.list(LISTENERS_MAX);
    if items.is_empty() && written.value.is_array() {
        written.found("no listener", "one `[[listeners]]` or more", None);
    }
    let mut seen = HashSet::new();
    items.iter().filter_map(|item| listener(item, &mut seen)).collect()
}

fn listener(item: &Item<'_>, seen: &mut HashSet<SocketAddr>) -> Option<listen::Settings> {
    let mut table = item.table()?;
    let address =
        table.need("address", "an address and port, such as \"127.0.0.1:8080\"").and_then(|item| {
            let address = socket_address(&item)?;
            if address.port() != 0 && !seen.insert(address) {
                item.wrong("an address that no other listener has");
            }
            Some(address)
        });
    let certificates = table.take("certificates").map(|item| certificates(&item));
    let clients = clients(&mut table, certificates.is_some());
    table.finish();
    address.map(|address| listen::Settings {
        setting: item.path.clone(),
        address,
        certificates: certificates.unwrap_or_default(),
        clients,
    })
}

fn certificates(written: &Item<'_>) -> Vec<Identity> {
    let items = written.list(CERTIFICATES_MAX);
    if items.is_empty() && written.value.is_array() {
        written.found(
            "no certificate",
            "one or more, such as [{ certificate = \"tls/api.pem\", key = \"tls/api.key\" }]",
            None,
        );
    }
    let identity = |item: &Item<'_>| {
        let mut table = item.table()?;
        let certificate = table
            .need("certificate", "the path of a PEM file")
            .and_then(|item| item.pem("a PEM file with a certificate"));
        let key = table
            .need("key", "the path of a PEM file")
            .and_then(|item| item.pem("a PEM file with a private key"));
        table.finish();
        Some(Identity { certificate: certificate?, key: key? })
    };
    items.iter().filter_map(identity).collect()
}

/// Whether clients show certificates. A file of authorities that nobody is checked against would
/// look like a locked door.
fn clients(table: &mut Table<'_>, secured: bool) -> Option<listen::ClientCertificates> {
    let (ca, required) = (table.take("client_ca"), table.take("client_certificates"));
    if let Some(item) = ca.as_ref().or(required.as_ref()).filter(|_| !secured) {
        item.found_key(
            "a setting for clients' certificates",
            "a listener with `certificates`",
            Some("plain HTTP has none".into()),
        );
        return None;
    }
    if let (None, Some(required)) = (&ca, &required) {
        required.found_key(
            "no `client_ca` beside it",
            "`client_ca` with the authorities that clients' certificates come from",
            None,
        );
        return None;
    }
    let required = required
        .map_or(Some(true), |item| item.choice(&[("required", true), ("optional", false)], &[]));
    Some(listen::ClientCertificates {
        ca: ca?.pem("a PEM file with certificate authorities")?,
        required: required?,
    })
}

fn socket_address(item: &Item<'_>) -> Option<SocketAddr> {
    item.parsed("an address and port, such as \"127.0.0.1:8080\" or \"[::]:8080\"", |text| {
        text.parse().ok()
    })
}

pub(super) fn server(root: &mut Table<'_>) -> Server {
    let mut table = root.section("server");
    let workers = table.take("workers").and_then(|item| workers(&item));
    let trusted_proxies: Vec<IpNet> =
        table.list("trusted_proxies", TRUSTED_PROXIES_MAX).iter().filter_map(network).collect();
    let shutdown_grace = table.duration("shutdown_grace", SHUTDOWN_GRACE, SHUTDOWN_GRACE_DEFAULT);

    let mut limits = table.section("limits");
    let default = listen::ConnectionSettings::default();
    let connections_max = limits.count("connections", CONNECTIONS, default.connections_max);
    let of_an_address = (connections_max / ADDRESS_PART).max(ADDRESS_CONNECTIONS_MIN);
    let connections_per_address_max =
        limits.count("connections_per_address", CONNECTIONS, of_an_address);
    let ipv6_prefix = limits.whole("ipv6_prefix", IPV6_PREFIX, default.ipv6_prefix.into());
    let header_bytes_max =
        bytes(limits.size("header_bytes", HEADER_BYTES, default.header_bytes_max as u64));
    let uri_bytes_max = bytes(limits.size("uri_bytes", URI_BYTES, URI_BYTES_DEFAULT));
    let buffered_bytes_max =
        bytes(limits.size("buffered_bytes", BUFFERED_BYTES, BUFFERED_BYTES_DEFAULT));
    let body_bytes_max = limits.size("body_bytes", BODY_BYTES, BODY_BYTES_DEFAULT);
    let streams_max = limits.whole("streams_per_connection", STREAMS, default.streams_max.into());
    let waiting_max =
        limits.count("waiting_per_worker", WAITING, limit::Settings::default().waiting_max);
    let body_rate = limits.size("body_rate", RATE, BODY_RATE_DEFAULT);
    let send_rate = limits.size("send_rate", RATE, BODY_RATE_DEFAULT);
    limits.finish();

    let mut timeouts = table.section("timeouts");
    let tls_handshake = timeouts.duration("tls_handshake", TIMEOUT, default.tls_handshake);
    let request_header = timeouts.duration("request_header", TIMEOUT, default.request_header);
    let body_idle = timeouts.duration("body_idle", TIMEOUT, BODY_IDLE_DEFAULT);
    let send_idle = timeouts.duration("send_idle", TIMEOUT, default.send_idle);
    let rate_grace = timeouts.duration("rate_grace", TIMEOUT, RATE_GRACE_DEFAULT);
    let half_close = timeouts.duration("half_close", TIMEOUT, default.half_close);
    let keep_alive = timeouts.duration("keep_alive", TIMEOUT, default.keep_alive);
    timeouts.finish();
    let paths = paths(&mut table);
    let underscores_in_headers =
        table.take("underscores_in_headers").and_then(|item| item.flag()).unwrap_or(false);
    table.finish();
    Server {
        workers: workers.unwrap_or_else(cores),
        shutdown_grace,
        connections: listen::ConnectionSettings {
            connections_max,
            connections_per_address_max,
            ipv6_prefix: u8::try_from(ipv6_prefix).unwrap_or(128),
            trusted_proxies: trusted_proxies.clone(),
            header_bytes_max,
            streams_max: u32::try_from(streams_max).unwrap_or(u32::MAX),
            tls_handshake,
            request_header,
            keep_alive,
            send_idle,
            send_rate: Rate::new(send_rate, rate_grace),
            half_close,
        },
        trusted_proxies,
        uri_bytes_max,
        paths,
        underscores_in_headers,
        buffered_bytes_max,
        body_bytes_max,
        waiting_max,
        body_idle,
        body_rate: Rate::new(body_rate, rate_grace),
    }
}

/// `[server.paths]`.
fn paths(server: &mut Table<'_>) -> proxy::Paths {
    let mut table = server.section("paths");
    let slashes = [
        ("reject", EncodedSlash::Reject),
        ("keep", EncodedSlash::Keep),
        ("decode", EncodedSlash::Decode),
    ];
    let parameters = [
        ("ignore", PathParameters::Ignore),
        ("keep", PathParameters::Keep),
        ("strip", PathParameters::Strip),
        ("reject", PathParameters::Reject),
    ];
    let exact = [("ignore", false), ("exact", true)];
    let paths = proxy::Paths {
        encoded_slash: table
            .take("encoded_slash")
            .and_then(|item| item.choice(&slashes, &[]))
            .unwrap_or_default(),
        parameters: table
            .take("parameters")
            .and_then(|item| item.choice(&parameters, &[]))
            .unwrap_or_default(),
        control_characters: table
            .take("control_characters")
            .and_then(|item| item.choice(&[("reject", false), ("keep", true)], &[]))
            .unwrap_or_default(),
        trailing_slash_exact: table
            .take("trailing_slash")
            .and_then(|item| item.choice(&exact, &[]))
            .unwrap_or_default(),
        case_exact: table
            .take("case")
            .and_then(|item| item.choice(&exact, &[]))
            .unwrap_or_default(),
    };
    table.finish();
    paths
}

/// Sizes that are held in memory are far below what any `usize` holds.
pub(super) fn bytes(size: u64) -> usize {
    usize::try_from(size).unwrap_or(usize::MAX)
}

fn workers(item: &Item<'_>) -> Option<usize> {
    if item.value.as_str() == Some("auto") {
        return Some(cores());
    }
    let number = super::reader::integer(item.value)
        .and_then(|n| usize::try_from(n).ok())
        .filter(|n| (1..=WORKERS_MAX).contains(n));
    if number.is_none() {
        item.wrong(format!("\"auto\" or a whole number from 1 to {WORKERS_MAX}"));
    }
    number
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get).min(WORKERS_MAX)
}

/// `10.0.0.0/8`, or one address. Bits behind the prefix are refused: they show that the writer
/// meant another network.
pub(super) fn network(item: &Item<'_>) -> Option<IpNet> {
    let expected = "a network such as \"10.0.0.0/8\", or one address";
    let network = item.parsed(expected, |text| {
        text.parse::<IpNet>().ok().or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from))
    })?;
    if network != network.trunc() {
        item.wrong_with(
            expected,
            Some(format!("the network of {network} is \"{}\"", network.trunc())),
        );
        return None;
    }
    Some(network)
}

/// `[admin]`: its own listener, or none with `address = "off"`.
pub(super) fn admin(
    root: &mut Table<'_>,
    listeners: &[listen::Settings],
) -> Option<admin::Settings> {
    let mut table = root.section("admin");
    let item = table.take("address");
    let hosts = table.list("hosts", ADMIN_HOSTS_MAX).iter().filter_map(admin_host).collect();
    let token = files::secret(&mut table, "token_file", "token_env")
        .map(|secret| admin::Token::new(secret.0));
    table.finish();
    let settings =
        |address| Some(admin::Settings { hosts, token, ..admin::Settings::plain(address) });
    let Some(item) = item else { return settings(ADMIN_DEFAULT) };
    if item.value.as_str() == Some("off") {
        return None;
    }
    let address = item
        .parsed("an address and port, such as \"127.0.0.1:9901\", or \"off\"", |text| {
            text.parse::<SocketAddr>().ok()
        })?;
    if address.port() != 0 && listeners.iter().any(|listener| listener.address == address) {
        item.wrong("an address that no listener has");
    }
    settings(address)
}

fn admin_host(item: &Item<'_>) -> Option<String> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    let is_name =
        |text: &str| (1..=HOST_BYTES_MAX).contains(&text.len()) && text.bytes().all(plain);
    item.parsed("a host name without a port, such as \"weir.internal\"", |text| {
        is_name(text).then(|| text.to_ascii_lowercase())
    })
}

pub(super) fn log(root: &mut Table<'_>) -> telemetry::Settings {
    let mut table = root.section("log");
    let default = telemetry::Settings::default();
    let levels = ["error", "warn", "info", "debug", "trace"].map(|level| (level, level.to_owned()));
    let formats = [("auto", Format::Auto), ("text", Format::Text), ("json", Format::Json)];
    let accesses = [("all", Access::All), ("refused", Access::Refused), ("off", Access::Off)];
    let level =
        table.take("level").and_then(|item| item.choice(&levels, &[])).unwrap_or(default.level);
    let format =
        table.take("format").and_then(|item| item.choice(&formats, &[])).unwrap_or(default.format);
    let access =
        table.take("access").and_then(|item| item.choice(&accesses, &[])).unwrap_or(default.access);
    table.finish();
    telemetry::Settings { level, format, access }
}

/// What of `[server]` and `[log]` concerns requests.
pub(super) fn requests(
    server: &Server,
    log: &telemetry::Settings,
    refusals: Vec<proxy::RefusalPage>,
) -> proxy::Settings {
    proxy::Settings {
        refusals,
        trusted_proxies: server.trusted_proxies.clone(),
        uri_bytes_max: server.uri_bytes_max,
        paths: server.paths,
        underscores_in_headers: server.underscores_in_headers,
        buffered_bytes_max: server.buffered_bytes_max,
        body_idle: server.body_idle,
        body_rate: server.body_rate,
        ipv6_prefix: server.connections.ipv6_prefix,
        access: log.access,
        access_json: match log.format {
            Format::Auto => !std::io::stdout().is_terminal(),
            Format::Text => false,
            Format::Json => true,
        },
    }
}
