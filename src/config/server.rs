//! `[[listeners]]`, `[server]`, `[admin]`, `[log]`.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::time::Duration;

use ipnet::IpNet;

use super::reader::{Item, Mark, Notes, Table};
use super::store::{self, Store};
use super::{caps, check_name, files};
use crate::proxy::{EncodedSlash, PathParameters};
use crate::telemetry::{
    ACCESS_HEADER, Access, AccessField, AccessFields, AccessHeaders, Format, Label as _, Mistake,
    WORKERS_MAX,
};
use crate::wire::Rate;
use crate::{admin, insight, limit, listen, plan, policy, proxy, telemetry};
use weir_tls::Identity;

pub(super) const LISTENERS_MAX: usize = 64;
/// Certificates of one listener, at most.
const CERTIFICATES_MAX: usize = 1_024;
const LISTENER_DEFAULT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8080);
/// The default address of the operator's pages.
pub const ADMIN_DEFAULT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9901);
/// Names of the admin's listener, at most, and bytes of one (RFC 1035).
const ADMIN_HOSTS_MAX: usize = 64;
const HOST_BYTES_MAX: usize = 253;
const TRUSTED_PROXIES_MAX: usize = 1_024;

/// Header fields in an access line, at most, and bytes of the name of one.
const ACCESS_HEADERS_MAX: usize = 16;
const ACCESS_HEADER_BYTES_MAX: usize = 64;

/// Requests that are remembered.
const REMEMBERED: RangeInclusive<u64> = 0..=1_000_000;
const SAMPLE_ONE_IN: RangeInclusive<u64> = 0..=1_000_000_000;
const REMEMBERED_BYTES: RangeInclusive<u64> = 64 << 10..=1 << 34;
/// Keys of a limit that are counted on a worker.
const TOP_KEYS: RangeInclusive<u64> = 0..=16_384;
const TOP_WINDOW: RangeInclusive<Duration> = Duration::from_secs(2)..=Duration::from_secs(86_400);

const SHUTDOWN_GRACE_DEFAULT: Duration = Duration::from_secs(30);
const SHUTDOWN_DELAY: RangeInclusive<Duration> = Duration::ZERO..=Duration::from_secs(600);
const SHUTDOWN_GRACE: RangeInclusive<Duration> = Duration::ZERO..=Duration::from_secs(3_600);

const CONNECTIONS: RangeInclusive<u64> = 1..=1_000_000;
/// Where it is not written, one client address may have this part of `connections`, and at least so
/// many.
const ADDRESS_PART: usize = 10;
const ADDRESS_CONNECTIONS_MIN: usize = 100;
/// From a provider's block to a single address.
const IPV6_PREFIX: RangeInclusive<u64> = 16..=128;
/// The low end is what an HTTP/1 connection reads at a time. With the high end a head of HTTP/2,
/// whose fields count 32 bytes more than they have, stays below the 24,576 fields that a
/// `HeaderMap` can hold.
const HEADER_BYTES: RangeInclusive<u64> = 8 << 10..=512 << 10;
const STREAMS: RangeInclusive<u64> = 1..=10_000;
/// Each waiting request holds its connection, and what the client has sent of its body. With 0 none
/// waits.
const WAITING: RangeInclusive<u64> = 0..=1_000_000;
/// The `http` crate itself refuses a URI of 64 KiB.
const URI_BYTES: RangeInclusive<u64> = 64..=63 << 10;
/// The low end is what a worker's connections with large bodies hold. It is far above the bytes
/// that workers have counted but not yet reported.
const BUFFERED_BYTES: RangeInclusive<u64> = 4 << 20..=1 << 44;
const BODY_BYTES_DEFAULT: u64 = 100 << 20;
/// A request's body, also on a route. With 0 no request may have one.
pub(super) const BODY_BYTES: RangeInclusive<u64> = 0..=1 << 40;
/// Of a body that is read for a policy, and held in memory.
pub(super) const INSPECT_BYTES: RangeInclusive<u64> = 0..=64 << 20;

/// Bytes a second. With 0 a client may be as slow as it likes.
const RATE_DEFAULT: u64 = 240;
const RATE: RangeInclusive<u64> = 0..=1 << 30;
const RATE_GRACE_DEFAULT: Duration = Duration::from_secs(10);

const TIMEOUT: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_secs(3_600);

/// `[server]`.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) workers: usize,
    pub(super) shutdown_delay: Duration,
    pub(super) shutdown_grace: Duration,
    /// What concerns connections.
    pub(super) connections: listen::ConnectionSettings,
    /// What concerns requests.
    pub(super) requests: proxy::Settings,
    /// What routes inherit.
    pub(super) body_bytes_max: u64,
    /// How far bodies are read before the decision.
    pub(super) inspect: proxy::Inspect,
    /// What leaky buckets are bounded by.
    pub(super) waiting_max: usize,
    /// What all policies share.
    pub(super) policies: policy::RuntimeSettings,
}

pub(super) fn listeners(root: &mut Table<'_>) -> Vec<listen::Settings> {
    let Some(written) = root.take("listeners") else {
        return vec![listen::Settings::plain(LISTENER_DEFAULT)];
    };
    let items = written.list(LISTENERS_MAX);
    if items.is_empty() && written.value.is_array() {
        written.found("no listener", "one `[[listeners]]` or more", None);
    }
    let (mut seen, mut names) = (HashSet::new(), HashSet::new());
    items.iter().filter_map(|item| listener(item, &mut seen, &mut names)).collect()
}

fn listener(
    item: &Item<'_>,
    seen: &mut HashSet<SocketAddr>,
    names: &mut HashSet<String>,
) -> Option<listen::Settings> {
    let mut table = item.table()?;
    let name = table.take("name").and_then(|item| {
        let name = item.text("a name")?;
        check_name(name, &item);
        if !names.insert(name.to_owned()) {
            item.wrong("a name that no other listener has");
        }
        Some(name.to_owned())
    });
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
        name,
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

/// Whether clients show certificates. A file of authorities that no client is checked against would
/// look like protection, so it is a mistake.
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
    let required =
        required.map_or(Some(true), |item| item.choice(&[("required", true), ("optional", false)]));
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
    let mut server = Server {
        workers: cores(),
        shutdown_delay: Duration::ZERO,
        shutdown_grace: SHUTDOWN_GRACE_DEFAULT,
        connections: listen::ConnectionSettings::default(),
        requests: proxy::Settings::default(),
        body_bytes_max: BODY_BYTES_DEFAULT,
        inspect: proxy::Inspect::default(),
        waiting_max: limit::Settings::default().waiting_max,
        policies: policy::RuntimeSettings::default(),
    };
    let mut table = root.section("server");
    if let Some(workers) = table.take("workers").and_then(|item| workers(&item)) {
        server.workers = workers;
    }
    table.duration("shutdown_delay", SHUTDOWN_DELAY, &mut server.shutdown_delay);
    table.duration("shutdown_grace", SHUTDOWN_GRACE, &mut server.shutdown_grace);
    let Server { connections, requests, .. } = &mut server;
    let trusted_proxies: Vec<IpNet> =
        table.list("trusted_proxies", TRUSTED_PROXIES_MAX).iter().filter_map(network).collect();
    connections.trusted_proxies.clone_from(&trusted_proxies);
    requests.trusted_proxies = trusted_proxies;
    table.flag("underscores_in_headers", &mut requests.underscores_in_headers);
    paths(&mut table, &mut requests.paths);
    server.policies = caps::runtime(&mut table, server.workers);
    let rates = limits(&mut table, &mut server);
    timeouts(&mut table, &mut server, &rates);
    table.finish();
    server
}

/// How slow clients may be, in bytes a second.
struct Rates {
    body: u64,
    send: u64,
}

/// `[server.limits]`.
fn limits(table: &mut Table<'_>, server: &mut Server) -> Rates {
    let Server { connections, requests, .. } = server;
    let mut limits = table.section("limits");
    limits.number("connections", CONNECTIONS, &mut connections.connections_max);
    connections.connections_per_address_max =
        (connections.connections_max / ADDRESS_PART).max(ADDRESS_CONNECTIONS_MIN);
    let per_address = &mut connections.connections_per_address_max;
    limits.number("connections_per_address", CONNECTIONS, per_address);
    // However few there are, one address never has all of them.
    *per_address = (*per_address).min((connections.connections_max / 2).max(1));
    limits.number("ipv6_prefix", IPV6_PREFIX, &mut connections.ipv6_prefix);
    requests.ipv6_prefix = connections.ipv6_prefix;
    limits.size("header_bytes", HEADER_BYTES, &mut connections.header_bytes_max);
    limits.size("uri_bytes", URI_BYTES, &mut requests.uri_bytes_max);
    limits.size("buffered_bytes", BUFFERED_BYTES, &mut requests.buffered_bytes_max);
    limits.size("body_bytes", BODY_BYTES, &mut server.body_bytes_max);
    limits.size("inspect_bytes", INSPECT_BYTES, &mut server.inspect.bytes_max);
    limits.number("streams_per_connection", STREAMS, &mut connections.streams_max);
    limits.number("waiting_per_worker", WAITING, &mut server.waiting_max);
    let mut rates = Rates { body: RATE_DEFAULT, send: RATE_DEFAULT };
    limits.size("body_rate", RATE, &mut rates.body);
    limits.size("send_rate", RATE, &mut rates.send);
    limits.finish();
    rates
}

/// `[server.timeouts]`.
fn timeouts(table: &mut Table<'_>, server: &mut Server, rates: &Rates) {
    let Server { connections, requests, .. } = server;
    let mut timeouts = table.section("timeouts");
    timeouts.duration("tls_handshake", TIMEOUT, &mut connections.tls_handshake);
    timeouts.duration("request_header", TIMEOUT, &mut connections.request_header);
    timeouts.duration("body_idle", TIMEOUT, &mut requests.body_idle);
    timeouts.duration("send_idle", TIMEOUT, &mut connections.send_idle);
    timeouts.duration("half_close", TIMEOUT, &mut connections.half_close);
    timeouts.duration("keep_alive", TIMEOUT, &mut connections.keep_alive);
    let mut rate_grace = RATE_GRACE_DEFAULT;
    timeouts.duration("rate_grace", TIMEOUT, &mut rate_grace);
    connections.send_rate = Rate::new(rates.send, rate_grace);
    requests.body_rate = Rate::new(rates.body, rate_grace);
    timeouts.finish();
}

/// `[server.paths]`.
fn paths(server: &mut Table<'_>, paths: &mut proxy::Paths) {
    let slashes = [
        ("compare", EncodedSlash::Compare),
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
    let dots = [("exact", false), ("ignore", true)];
    let keep = [("reject", false), ("keep", true)];
    let mut table = server.section("paths");
    table.choice("encoded_slash", &slashes, &mut paths.encoded_slash);
    table.choice("parameters", &parameters, &mut paths.parameters);
    table.choice("control_characters", &keep, &mut paths.control_characters);
    table.choice("trailing_slash", &exact, &mut paths.trailing_slash_exact);
    table.choice("trailing_dots", &dots, &mut paths.trailing_dots_ignored);
    table.choice("case", &exact, &mut paths.case_exact);
    table.finish();
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

/// `10.0.0.0/8`, or one address. Bits after the prefix are a mistake: another network was probably
/// meant.
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

/// `[admin]`: its own listener, or none with `address = "off"`. Without one nothing is remembered,
/// since nobody could see it.
pub(super) fn admin(
    root: &mut Table<'_>,
    listeners: &[listen::Settings],
) -> (Option<admin::Settings>, insight::Settings) {
    let mut table = root.section("admin");
    let item = table.take("address");
    let hosts = table.list("hosts", ADMIN_HOSTS_MAX).iter().filter_map(admin_host).collect();
    let token = files::secret(&mut table, "token_file", "token_env")
        .map(|secret| admin::Token::new(secret.0));
    let insight = insight(&mut table);
    table.finish();
    let settings = |address| admin::Settings { hosts, token, ..admin::Settings::plain(address) };
    let Some(item) = item else { return (Some(settings(ADMIN_DEFAULT)), insight) };
    if item.value.as_str() == Some("off") {
        return (None, insight.off());
    }
    let address = item
        .parsed("an address and port, such as \"127.0.0.1:9901\", or \"off\"", |text| {
            text.parse::<SocketAddr>().ok()
        });
    let Some(address) = address else { return (None, insight.off()) };
    if address.port() != 0 && listeners.iter().any(|listener| listener.address == address) {
        item.wrong("an address that no listener has");
    }
    (Some(settings(address)), insight)
}

/// `show_keys`, `[admin.explain]` and `[admin.top]`.
fn insight(admin: &mut Table<'_>) -> insight::Settings {
    let mut settings = insight::Settings::default();
    admin.flag("show_keys", &mut settings.show_keys);
    let mut explain = admin.section("explain");
    explain.number("refusals", REMEMBERED, &mut settings.refusals);
    explain.number("samples", REMEMBERED, &mut settings.samples);
    explain.number("sample_one_in", SAMPLE_ONE_IN, &mut settings.sample_one_in);
    explain.size("bytes", REMEMBERED_BYTES, &mut settings.bytes);
    explain.finish();
    let mut top = admin.section("top");
    top.number("keys", TOP_KEYS, &mut settings.keys);
    top.duration("window", TOP_WINDOW, &mut settings.window);
    top.finish();
    settings
}

fn admin_host(item: &Item<'_>) -> Option<String> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    let is_name =
        |text: &str| (1..=HOST_BYTES_MAX).contains(&text.len()) && text.bytes().all(plain);
    item.parsed("a host name without a port, such as \"weir.internal\"", |text| {
        is_name(text).then(|| text.to_ascii_lowercase())
    })
}

/// `show_keys` is that of `[admin]`.
pub(super) fn log(root: &mut Table<'_>, show_keys: bool) -> telemetry::Settings {
    let levels = ["error", "warn", "info", "debug", "trace"].map(|level| (level, level.to_owned()));
    let formats = [("auto", Format::Auto), ("text", Format::Text), ("json", Format::Json)];
    let accesses = [("all", Access::All), ("refused", Access::Refused), ("off", Access::Off)];
    let mut settings = telemetry::Settings::default();
    let mut table = root.section("log");
    table.choice("level", &levels, &mut settings.level);
    table.choice("format", &formats, &mut settings.format);
    table.choice("access", &accesses, &mut settings.access);
    if let Some(item) = table.take("access_fields") {
        (settings.access_fields, settings.access_headers) = access_fields(&item, show_keys);
    }
    table.finish();
    settings
}

/// The fields of an access line. A line always has its level and `message`.
fn access_fields(written: &Item<'_>, show_keys: bool) -> (AccessFields, AccessHeaders) {
    let words: Vec<_> = AccessField::ALL.iter().map(|field| (field.label(), *field)).collect();
    let items = written.list(AccessField::ALL.len() + ACCESS_HEADERS_MAX);
    if items.is_empty() && written.value.is_array() {
        written.found(
            "no field",
            "one or more, such as [\"timestamp\", \"client\", \"path\", \"status\"]",
            Some("`access = \"off\"` writes no lines".into()),
        );
    }
    let mut fields = AccessFields::NONE;
    let mut headers: Vec<String> = Vec::new();
    for item in items {
        let of_header = |text: &str| text.strip_prefix(ACCESS_HEADER).map(str::to_ascii_lowercase);
        let is_new = if let Some(name) = item.value.as_str().and_then(of_header) {
            if !is_access_header(&item, &name) {
                continue;
            }
            let is_new = !headers.contains(&name);
            headers.push(name);
            is_new
        } else {
            let Some(field) = item.one_of(&words, "a field of an access line") else { continue };
            let is_new = !fields.has(field);
            fields = fields.and(field);
            is_new
        };
        if !is_new {
            item.wrong("a field that the list does not have yet");
        }
    }
    if headers.len() > ACCESS_HEADERS_MAX {
        let found = format!("{} header fields", headers.len());
        written.found(found, format!("at most {ACCESS_HEADERS_MAX}"), None);
    }
    if !headers.is_empty() {
        fields = fields.and_headers();
    }
    (fields, AccessHeaders::new(headers.iter().map(String::as_str), show_keys))
}

/// Whether an access line may show the header field `name`, which is in lower case.
fn is_access_header(item: &Item<'_>, name: &str) -> bool {
    if name.len() > ACCESS_HEADER_BYTES_MAX || !plan::is_token(name) {
        let expected = format!(
            "`header.` and the name of a header field, of 1 to {ACCESS_HEADER_BYTES_MAX} characters"
        );
        item.wrong_with(expected, Some("such as \"header.x-api-key\"".into()));
        return false;
    }
    if telemetry::is_credentials_header(name) {
        item.wrong("a header field without credentials: cookies, and what is named like a password or a token, are never shown");
        return false;
    }
    // One name for one thing: a replay of the log would take them for two fields.
    let own = [("host", "host"), ("referer", "referer"), ("user-agent", "user_agent")];
    if let Some((_, field)) = own.iter().find(|(header, _)| *header == name) {
        item.wrong(format!("\"{field}\", the field for this header field"));
        return false;
    }
    true
}

/// Digests of header fields that anybody can compute would show what clients sent to those who try
/// likely texts.
pub(super) fn digests_of_headers(notes: &Notes, log: &telemetry::Settings, store: &Store) {
    let are_shown = log.access_fields.has_headers() && !log.access_headers.as_text;
    if are_shown && store::has_open_digests(&store.engine, &store.limiter) {
        let mistake = Mistake::new(
            "log.access_fields",
            "header fields, which are shown as digests, and no secret for digests on Redis",
            "`key_secret_file` or `key_secret_env` in [store]",
        );
        let help = "[admin] show_keys = true shows what clients sent as text";
        notes.add(mistake, Mark::Value, Some(help.into()));
    }
}
