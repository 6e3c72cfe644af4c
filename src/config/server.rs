//! `[[listeners]]`, `[server]`, `[admin]`, `[log]`.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use ipnet::IpNet;

use super::finding::Mark;
use super::reader::{Item, Notes, Table};
use super::settings::server::{
    ACCESS_HEADERS_MAX, admin, certificates, explain, limits, listeners, log, paths, server,
    timeouts, top,
};
use super::settings::{Is, Kind as _, LISTENERS_MAX};
use super::store::{self, Store};
use super::{acme, caps, check_name, files};
use crate::admin::{Settings as AdminSettings, Token};
use crate::listen::{Certificate, Serves};
use crate::telemetry::{
    ACCESS_HEADER, AccessField, AccessFields, AccessHeaders, Label as _, SettingError, WORKERS_MAX,
};
use crate::wire::Rate;
use crate::{insight, listen, plan, policy, proxy, telemetry};
use weir_acme::{Authority, ChallengeKind};
use weir_tls::Identity;

/// Maximum number of certificates of one listener.
const CERTIFICATES_MAX: usize = 1_024;
const LISTENER_DEFAULT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8080);
/// The default address of the operator's pages.
pub const ADMIN_DEFAULT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9901);
/// Maximum size of a host's name (RFC 1035), and of a header field in an access line, in bytes.
const HOST_BYTES_MAX: usize = 253;
const ACCESS_HEADER_BYTES_MAX: usize = 64;

/// If the setting is missing, one client address may have one in this many of `connections`, and at
/// least so many.
const ADDRESS_PART: usize = 10;
const ADDRESS_CONNECTIONS_MIN: usize = 100;

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
    pub(super) inspect_bytes_max: u64,
    /// What leaky buckets are bounded by.
    pub(super) waiting_max: usize,
    /// Where this process is.
    pub(super) zone: Option<String>,
    /// What all policies share.
    pub(super) policies: policy::RuntimeSettings,
}

pub(super) fn listeners(
    root: &mut Table<'_>,
    authority: Option<&Authority>,
) -> Vec<listen::Settings> {
    let Some(written) = root.take("listeners") else {
        return vec![listen::Settings::plain(LISTENER_DEFAULT)];
    };
    let items = written.list(LISTENERS_MAX);
    if items.is_empty() && written.value.is_array() {
        written.found("no listener", "one `[[listeners]]` or more", None);
    }
    let (mut seen, mut names) = (HashSet::new(), HashSet::new());
    items.iter().filter_map(|item| listener(item, &mut seen, &mut names, authority)).collect()
}

fn listener(
    item: &Item<'_>,
    seen: &mut HashSet<SocketAddr>,
    names: &mut HashSet<String>,
    authority: Option<&Authority>,
) -> Option<listen::Settings> {
    let mut table = item.table()?;
    let name = table.item(&listeners::NAME).and_then(|item| {
        let name = item.text("a name")?;
        check_name(name, &item);
        if !names.insert(name.to_owned()) {
            item.wrong("a name that no other listener has");
        }
        Some(name.to_owned())
    });
    let address = table.required(&listeners::ADDRESS).and_then(|item| {
        let address = socket_address(&item)?;
        if address.port() != 0 && !seen.insert(address) {
            item.wrong("an address that no other listener has");
        }
        Some(address)
    });
    let certificates = table.take("certificates").map(|item| certificates(&item, authority));
    let clients = clients(&mut table, certificates.is_some());
    let proxy_protocol = table.read(&listeners::PROXY_PROTOCOL);
    let redirect_to_https = table.item(&listeners::REDIRECT).and_then(|item| {
        if certificates.is_some() {
            let why = "requests that come over TLS are where they should be";
            item.found_key(
                "`redirect_to_https`",
                "a listener without `certificates`",
                Some(why.into()),
            );
        }
        listeners::REDIRECT.kind.kind.read(&item)?
    });
    let serves = table.read(&listeners::SERVES);
    if serves != Serves::Requests && redirect_to_https.is_some() {
        let expected = "no `redirect_to_https` beside it: a proxy that asks takes no redirect";
        table.found("`serves` with another proxy's calls", expected);
    }
    if let (Some(clients), Some(authority)) = (&clients, authority) {
        seen_by_authority(&table, clients, certificates.as_deref().unwrap_or_default(), authority);
    }
    table.finish();
    address.map(|address| listen::Settings {
        setting: item.path.clone(),
        name,
        address,
        certificates: certificates.unwrap_or_default(),
        clients,
        proxy_protocol,
        redirect_to_https,
        serves,
    })
}

/// An authority that checks a name in a handshake shows no certificate of its own.
fn seen_by_authority(
    table: &Table<'_>,
    clients: &listen::ClientCertificates,
    certificates: &[Certificate],
    authority: &Authority,
) {
    let ordered = certificates.iter().any(|one| matches!(one, Certificate::Ordered(_)));
    if ordered
        && clients.required
        && authority.challenges.first() == Some(&ChallengeKind::TlsAlpn01)
    {
        table.found(
            "certificates that are ordered, on a listener that requires certificates of its clients",
            "`challenges = [\"http-01\"]` in `[acme]`, as the authority shows none in a handshake",
        );
    }
}

fn certificates(written: &Item<'_>, authority: Option<&Authority>) -> Vec<Certificate> {
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
        if table.read(&certificates::ACME) {
            let ordered = acme::ordered(&mut table, item.notes, authority);
            table.finish();
            return ordered.map(Certificate::Ordered);
        }
        if let Some(names) = table.item(&certificates::NAMES) {
            names.found_key("`names` without `acme = true`", "`acme = true` with it", None);
        }
        let certificate = table
            .required(&certificates::CERTIFICATE)
            .and_then(|item| item.pem(certificates::CERTIFICATE.expected()));
        let key = table
            .required(&certificates::KEY)
            .and_then(|item| item.pem(certificates::KEY.expected()));
        table.finish();
        Some(Certificate::Files(Identity { certificate: certificate?, key: key? }))
    };
    items.iter().filter_map(identity).collect()
}

/// Whether clients show certificates. A file of authorities that no client is checked against would
/// look like protection, so it is an error.
fn clients(table: &mut Table<'_>, secured: bool) -> Option<listen::ClientCertificates> {
    let (ca, required) =
        (table.item(&listeners::CLIENT_CA), table.item(&listeners::CLIENT_CERTIFICATES));
    let crl = table.item(&listeners::CLIENT_CRL);
    let any = ca.as_ref().or(required.as_ref()).or(crl.as_ref());
    if let Some(item) = any.filter(|_| !secured) {
        item.found_key(
            "a setting for clients' certificates",
            "a listener with `certificates`",
            Some("plain HTTP has none".into()),
        );
        return None;
    }
    if let (None, Some(item)) = (&ca, any) {
        item.found_key(
            "no `client_ca` with it",
            "`client_ca` with the authorities that issue clients' certificates",
            None,
        );
        return None;
    }
    let crl = crl.and_then(|item| item.pem(listeners::CLIENT_CRL.expected()));
    let Is { kind, default } = &listeners::CLIENT_CERTIFICATES.kind;
    let required = required.map_or(Some(*default), |item| kind.read(&item));
    Some(listen::ClientCertificates {
        ca: ca?.pem(listeners::CLIENT_CA.expected())?,
        required: required?,
        crl,
    })
}

fn socket_address(item: &Item<'_>) -> Option<SocketAddr> {
    item.parsed(listeners::ADDRESS.expected(), |text| text.parse().ok())
}

pub(super) fn server(root: &mut Table<'_>, listeners: &[listen::Settings]) -> Server {
    let mut table = root.section("server");
    let (mut limits, mut timeouts) = (table.section("limits"), table.section("timeouts"));
    let workers = table.read(&server::WORKERS).unwrap_or_else(cores);
    let trusted_proxies: Vec<IpNet> =
        table.items(&server::TRUSTED_PROXIES).iter().filter_map(network).collect();
    if trusted_proxies.is_empty()
        && let Some(listener) = listeners.iter().find(|listener| listener.proxy_protocol)
    {
        let found = format!("`proxy_protocol` in {}, and nobody who may send it", listener.setting);
        let expected = "`trusted_proxies` with the addresses of the load balancers";
        table.found(&found, expected);
    }
    if trusted_proxies.is_empty()
        && let Some(listener) = listeners.iter().find(|one| one.serves.is_about_requests())
    {
        let found = format!(
            "`serves` with another proxy's requests in {}, and nobody who may ask",
            listener.setting
        );
        table.found(&found, "`trusted_proxies` with the addresses of the proxies that ask");
    }
    let rate_grace = timeouts.read(&timeouts::RATE_GRACE);
    let connections_max = limits.read(&limits::CONNECTIONS);
    let ipv6_prefix = limits.read(&limits::IPV6_PREFIX);
    let server = Server {
        workers,
        shutdown_delay: table.read(&server::SHUTDOWN_DELAY),
        shutdown_grace: table.read(&server::SHUTDOWN_GRACE),
        requests: proxy::Settings {
            trusted_proxies: trusted_proxies.clone(),
            uri_bytes_max: limits.read(&limits::URI_BYTES),
            paths: paths(&mut table),
            underscores_in_headers: table.read(&server::UNDERSCORES_IN_HEADERS),
            buffered_bytes_max: limits.read(&limits::BUFFERED_BYTES),
            worker_lag_max: limits.read(&limits::WORKER_LAG),
            body_idle: timeouts.read(&timeouts::BODY_IDLE),
            body_rate: Rate::new(limits.read(&limits::BODY_RATE), rate_grace),
            ipv6_prefix,
            ..proxy::Settings::default()
        },
        connections: listen::ConnectionSettings {
            connections_max,
            connections_per_address_max: per_address(&mut limits, connections_max),
            ipv6_prefix,
            trusted_proxies,
            header_bytes_max: limits.read(&limits::HEADER_BYTES),
            streams_max: limits.read(&limits::STREAMS_PER_CONNECTION),
            tls_handshake: timeouts.read(&timeouts::TLS_HANDSHAKE),
            request_header: timeouts.read(&timeouts::REQUEST_HEADER),
            keep_alive: timeouts.read(&timeouts::KEEP_ALIVE),
            send_idle: timeouts.read(&timeouts::SEND_IDLE),
            send_rate: Rate::new(limits.read(&limits::SEND_RATE), rate_grace),
            half_close: timeouts.read(&timeouts::HALF_CLOSE),
        },
        body_bytes_max: limits.read(&limits::BODY_BYTES),
        inspect_bytes_max: limits.read(&limits::INSPECT_BYTES),
        waiting_max: limits.read(&limits::WAITING_PER_WORKER),
        zone: zone(&mut table),
        policies: caps::runtime(&mut table, workers),
    };
    limits.finish();
    timeouts.finish();
    table.finish();
    server
}

/// Where this process is.
fn zone(table: &mut Table<'_>) -> Option<String> {
    let (written, named) = (table.item(&server::ZONE), table.item(&server::ZONE_ENV));
    match (written, named) {
        (Some(_), Some(named)) => {
            named.found_key("both `zone` and `zone_env`", "one of the two", None);
            None
        }
        (Some(written), None) => written.text(server::ZONE.expected()).map(str::to_owned),
        (None, Some(named)) => named.secret_in_env(),
        (None, None) => None,
    }
}

/// Connections of one address. However few there are, it never has all of them.
fn per_address(limits: &mut Table<'_>, connections_max: usize) -> usize {
    let default = (connections_max / ADDRESS_PART).max(ADDRESS_CONNECTIONS_MIN);
    let written = limits.read_if_any(&limits::CONNECTIONS_PER_ADDRESS);
    written.unwrap_or(default).min((connections_max / 2).max(1))
}

fn paths(server: &mut Table<'_>) -> proxy::settings::Paths {
    let mut table = server.section("paths");
    let paths = proxy::settings::Paths {
        encoded_slash: table.read(&paths::ENCODED_SLASH),
        parameters: table.read(&paths::PARAMETERS),
        control_characters: table.read(&paths::CONTROL_CHARACTERS),
        trailing_slash_exact: table.read(&paths::TRAILING_SLASH),
        trailing_dots_ignored: table.read(&paths::TRAILING_DOTS),
        case_exact: table.read(&paths::CASE),
    };
    table.finish();
    paths
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get).min(WORKERS_MAX)
}

/// `10.0.0.0/8`, or one address. Bits after the prefix are an error: another network was probably
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
) -> (Option<AdminSettings>, insight::Settings) {
    let mut table = root.section("admin");
    let item = table.item(&admin::ADDRESS);
    let hosts = table.items(&admin::HOSTS).iter().filter_map(admin_host).collect();
    let token = files::token(&mut table, &admin::TOKEN_FILE, &admin::TOKEN_ENV)
        .map(|secret| Token::new(secret.0));
    let insight = insight(&mut table);
    table.finish();
    let settings = |address| AdminSettings { hosts, token, ..AdminSettings::plain(address) };
    let Some(item) = item else { return (Some(settings(ADMIN_DEFAULT)), insight) };
    if item.value.as_str() == Some("off") {
        return (None, insight.off());
    }
    let address = item.parsed(admin::ADDRESS.expected(), |text| text.parse::<SocketAddr>().ok());
    let Some(address) = address else { return (None, insight.off()) };
    if address.port() != 0 && listeners.iter().any(|listener| listener.address == address) {
        item.wrong("an address that no listener has");
    }
    (Some(settings(address)), insight)
}

/// `show_keys`, `[admin.explain]` and `[admin.top]`.
fn insight(admin: &mut Table<'_>) -> insight::Settings {
    let (mut explain, mut top) = (admin.section("explain"), admin.section("top"));
    let settings = insight::Settings {
        show_keys: admin.read(&admin::SHOW_KEYS),
        refusals: explain.read(&explain::REFUSALS),
        samples: explain.read(&explain::SAMPLES),
        sample_one_in: explain.read(&explain::SAMPLE_ONE_IN),
        bytes: explain.read(&explain::BYTES),
        keys: top.read(&top::KEYS),
        window: top.read(&top::WINDOW),
    };
    explain.finish();
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

/// Reads `[log]`. `show_keys` is that of `[admin]`.
pub(super) fn log(root: &mut Table<'_>, show_keys: bool) -> telemetry::Settings {
    let mut table = root.section("log");
    let mut settings = telemetry::Settings {
        level: table.read(&log::LEVEL).to_owned(),
        format: table.read(&log::FORMAT),
        access: table.read(&log::ACCESS),
        ..telemetry::Settings::default()
    };
    if let Some(item) = table.item(&log::ACCESS_FIELDS) {
        (settings.access_fields, settings.access_headers) = access_fields(&item, show_keys);
    }
    table.finish();
    settings
}

/// The fields of an access line. A line always has its level and `message`.
fn access_fields(written: &Item<'_>, show_keys: bool) -> (AccessFields, AccessHeaders) {
    let words: Vec<_> = AccessField::ALL.iter().map(|field| (field.label(), *field)).collect();
    let items = written.list(log::ACCESS_FIELDS.kind.max);
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
        let error = SettingError::new(
            "log.access_fields",
            "header fields, which are shown as digests, and no secret for digests on Redis",
            "`key_secret_file` or `key_secret_env` in [store]",
        );
        let help = "[admin] show_keys = true shows what clients sent as text";
        notes.add(error, Mark::Value, Some(help.into()));
    }
}
