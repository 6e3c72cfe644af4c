//! Reads and checks an upstream's endpoints, `http://host:port` or `unix:/path`. Resolves nothing
//! and connects to nothing.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use http::uri::Authority;
use rustls::pki_types::ServerName;

use super::hash;
use super::settings::EndpointSettings;
use crate::clock::LogThrottle;
use crate::telemetry::SettingError;

/// Maximum number of endpoints of one upstream.
const ENDPOINTS_MAX: usize = 256;
const EXPECTED: &str =
    "http://host:port or https://host:port, without a path, or unix:/path/of/a/socket";
/// How the schemes of services end.
const SERVICE: &str = "+srv";
/// How the URL of a Unix socket begins.
const UNIX: &str = "unix:";
/// Maximum length of the path of a Unix socket, in bytes: what `sockaddr_un` holds on all systems.
const UNIX_PATH_BYTES_MAX: usize = 103;

/// One endpoint.
#[derive(Debug)]
pub(super) struct Endpoint {
    pub(super) location: Location,
    /// The endpoint as configured.
    pub(super) text: String,
    /// The authority of a request without a `Host`.
    pub(super) authority: Authority,
    /// The name to verify; `None` without TLS.
    pub(super) server_name: Option<ServerName<'static>>,
    /// How much of the requests it gets, compared with the others.
    pub(super) weight: u32,
    pub(super) zone: Option<String>,
    pub(super) backup: bool,
    pub(super) warned: LogThrottle,
}

/// Where a connection goes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum HostAddress {
    /// TCP.
    Ip(SocketAddr),
    /// The path of a Unix socket.
    Unix(Arc<Path>),
}

impl HostAddress {
    /// A number that stands for it, the same in all processes of one build.
    #[must_use]
    pub fn tag(&self) -> u64 {
        hash::of(self)
    }
}

impl fmt::Display for HostAddress {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(address) => address.fmt(out),
            Self::Unix(path) => write!(out, "{UNIX}{}", path.display()),
        }
    }
}

/// An address or a name to resolve.
#[derive(Debug)]
pub(super) enum Location {
    Address(HostAddress),
    Name {
        host: String,
        port: u16,
    },
    /// The name of SRV records.
    Service(String),
}

/// Reads all endpoints of the upstream `name`. With TLS, `server_name` is verified, or else each
/// endpoint's host.
pub(super) fn parse_all(
    endpoints: &[EndpointSettings],
    server_name: Option<&str>,
) -> Result<Vec<Endpoint>, Vec<SettingError>> {
    let setting = "endpoints";
    if endpoints.is_empty() || endpoints.len() > ENDPOINTS_MAX {
        return Err(vec![SettingError::new(
            setting,
            format!("{} endpoints", endpoints.len()),
            format!("1 to {ENDPOINTS_MAX} endpoints"),
        )]);
    }
    let mut read: Vec<Endpoint> = Vec::with_capacity(endpoints.len());
    let mut errors = Vec::new();
    for (index, written) in endpoints.iter().enumerate() {
        let text = &written.url;
        let error_at = |expected: &str| {
            SettingError::new(format!("{setting}[{index}]"), format!("{text:?}"), expected)
        };
        match parse(written, server_name) {
            Ok(endpoint)
                if read.first().is_some_and(|first| first.is_tls() != endpoint.is_tls()) =>
            {
                errors.push(error_at(
                    "the same scheme as the others: TLS to all endpoints or to none",
                ));
            }
            Ok(endpoint) => read.push(endpoint),
            Err(expected) => errors.push(error_at(expected)),
        }
    }
    if errors.is_empty() { Ok(read) } else { Err(errors) }
}

fn parse(written: &EndpointSettings, server_name: Option<&str>) -> Result<Endpoint, &'static str> {
    let text = written.url.as_str();
    if let Some(path) = text.strip_prefix(UNIX) {
        return unix(written, path);
    }
    let uri: http::Uri = text.parse().map_err(|_| EXPECTED)?;
    let scheme = uri.scheme_str().ok_or(EXPECTED)?;
    let (scheme, is_service) = match scheme.strip_suffix(SERVICE) {
        Some(scheme) => (scheme, true),
        None => (scheme, false),
    };
    let (tls, default_port) = match scheme {
        "http" => (false, 80),
        "https" => (true, 443),
        _ => return Err(EXPECTED),
    };
    if uri.query().is_some() || !matches!(uri.path(), "" | "/") {
        return Err(EXPECTED);
    }
    let authority = uri.authority().ok_or(EXPECTED)?;
    let host = authority.host();
    // The rest is the port. `Authority::port` does not report an invalid one.
    if is_service && authority.as_str() != host {
        return Err("a service without a port: its records say which");
    }
    let port = match authority.as_str().strip_prefix(host).ok_or("no user name or password")? {
        "" => default_port,
        port => port
            .strip_prefix(':')
            .and_then(|port| port.parse().ok())
            .filter(|port| *port != 0)
            .ok_or("a port from 1 to 65535")?,
    };
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    if bare.is_empty() {
        return Err(EXPECTED);
    }
    let location = match bare.parse::<IpAddr>() {
        Ok(_) if is_service => return Err("the name of a service, such as _http._tcp.example.com"),
        Err(_) if is_service => Location::Service(bare.to_owned()),
        Ok(ip) => Location::Address(HostAddress::Ip(SocketAddr::new(ip, port))),
        Err(_) => Location::Name { host: bare.to_owned(), port },
    };
    if tls && is_service && server_name.is_none() {
        return Err("`tls.server_name` with a service: its certificates are for another name");
    }
    let server_name = server_name.unwrap_or(bare);
    let server_name = if tls {
        Some(
            ServerName::try_from(server_name.to_owned())
                .map_err(|_| "a host that a certificate can name")?,
        )
    } else {
        None
    };
    Ok(Endpoint::new(written, location, authority.clone(), server_name))
}

/// A Unix socket. Whoever may write to it is in the same system, so there is no TLS.
fn unix(written: &EndpointSettings, path: &str) -> Result<Endpoint, &'static str> {
    if !path.starts_with('/') || path.contains('\0') {
        return Err("unix: and the path of a socket from the root, such as unix:/run/api.sock");
    }
    if path.len() > UNIX_PATH_BYTES_MAX {
        return Err("the path of a socket of at most 103 bytes");
    }
    let location = Location::Address(HostAddress::Unix(Path::new(path).into()));
    Ok(Endpoint::new(written, location, Authority::from_static("localhost"), None))
}

impl Endpoint {
    fn new(
        written: &EndpointSettings,
        location: Location,
        authority: Authority,
        server_name: Option<ServerName<'static>>,
    ) -> Self {
        let EndpointSettings { url, weight, zone, backup } = written.clone();
        let warned = LogThrottle::default();
        Self { location, text: url, authority, server_name, weight, zone, backup, warned }
    }

    /// Whether its addresses have to be found out.
    pub(super) fn is_name(&self) -> bool {
        !matches!(self.location, Location::Address(_))
    }

    /// Whether its addresses are those of a service.
    pub(super) fn is_service(&self) -> bool {
        matches!(self.location, Location::Service(_))
    }

    /// Whether one of these is the same server.
    pub(super) fn is_also_in(&self, others: &[Self]) -> bool {
        others.iter().any(|other| other.text == self.text)
    }

    /// Whether the endpoint uses TLS.
    pub(super) fn is_tls(&self) -> bool {
        self.server_name.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(urls: &[&str]) -> Vec<EndpointSettings> {
        urls.iter().map(|url| (*url).to_owned().into()).collect()
    }

    #[test]
    fn addresses_names_and_default_ports_are_read() {
        for (text, expected) in [
            ("http://127.0.0.1:9000", "Address(127.0.0.1:9000)"),
            ("http://127.0.0.1:9000/", "Address(127.0.0.1:9000)"),
            ("http://[::1]:81", "Address([::1]:81)"),
            ("http://10.0.0.1", "Address(10.0.0.1:80)"),
            ("https://10.0.0.1", "Address(10.0.0.1:443)"),
            ("unix:/run/api.sock", "Address(unix:/run/api.sock)"),
        ] {
            let Location::Address(address) = parse(&text.to_owned().into(), None).unwrap().location
            else {
                panic!("a name: {text}")
            };
            assert_eq!(format!("Address({address})"), expected, "{text}");
        }
        let Location::Name { host, port, .. } =
            parse(&"http://api.internal:8080".to_owned().into(), None).unwrap().location
        else {
            panic!("not a name")
        };
        assert_eq!((host.as_str(), port), ("api.internal", 8080));
    }

    #[test]
    fn every_endpoint_that_is_none_is_reported_with_its_place() {
        let wrong = [
            "ftp://a",
            "a:80",
            "http://a/v1",
            "http://a:1/?x",
            "http://a:0",
            "http://a:99999",
            "http://a:",
            "http://u@a:1",
            "http://",
            "",
            "unix:",
            "unix:run/api.sock",
            "unix:/run/\0",
        ];
        let wrong = settings(&wrong);
        let errors = parse_all(&wrong, None).unwrap_err();
        let settings: Vec<&str> = errors.iter().map(|error| error.setting.as_str()).collect();
        let expected: Vec<String> =
            (0..wrong.len()).map(|index| format!("endpoints[{index}]")).collect();
        assert_eq!(settings, expected);
        assert_eq!(parse_all(&[], None).unwrap_err()[0].setting, "endpoints");
    }

    #[test]
    fn with_tls_the_name_to_verify_is_the_host_or_the_one_that_was_set() {
        let name = |text: &str, set| {
            parse(&text.to_owned().into(), set)
                .unwrap()
                .server_name
                .map(|name| name.to_str().into_owned())
        };
        assert_eq!(name("https://api.internal:8443", None).as_deref(), Some("api.internal"));
        assert_eq!(name("https://127.0.0.1", None).as_deref(), Some("127.0.0.1"));
        assert_eq!(
            name("https://127.0.0.1", Some("api.internal")).as_deref(),
            Some("api.internal")
        );
        assert_eq!(name("http://api.internal", Some("api.internal")), None);
        let mixed = parse_all(&settings(&["http://a", "https://b"]), None).unwrap_err();
        assert_eq!(mixed[0].setting, "endpoints[1]");
    }
}
