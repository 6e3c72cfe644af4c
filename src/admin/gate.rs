//! Decides who may see the operator's pages.
//!
//! A browser on a machine that reaches this listener runs untrusted scripts. An attacker can point
//! a host name of theirs at this address (DNS rebinding), and a script from there would read the
//! pages as its own. So a request must name this listener by an address, `localhost` or a
//! configured name. A script of another origin is refused by its `Origin`. Where a token is
//! configured, it is required, and sufficient.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use http::{Method, StatusCode};

use crate::wire::{Known, Request};

/// `[admin]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The section's path in the configuration, for messages.
    pub section: &'static str,
    /// The listener's address.
    pub address: SocketAddr,
    /// Names, in lower case, that requests may use for this listener, besides addresses and
    /// `localhost`.
    pub hosts: Vec<String>,
    /// Required if set, except for probes and for the live page's files.
    pub token: Option<Token>,
}

/// A bearer token. It is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

/// Why a request is not answered: a status, and a sentence for the operator.
pub(super) type GateRefusal = (StatusCode, String);

impl Settings {
    /// Settings for pages at `address`, without further names and without a token.
    #[must_use]
    pub fn plain(address: SocketAddr) -> Self {
        Self { section: "admin", address, hosts: Vec::new(), token: None }
    }

    /// Whether a request may be answered; `is_open` if it asks for a page that
    /// needs no token.
    pub(super) fn admits(&self, request: &Request, is_open: bool) -> Result<(), GateRefusal> {
        if let Some(token) = &self.token
            && !is_open
        {
            let refused = || {
                (
                    StatusCode::UNAUTHORIZED,
                    format!(
                        "Expected `Authorization: Bearer` with the token of [{}].",
                        self.section
                    ),
                )
            };
            return if token.is_in(request) { Ok(()) } else { Err(refused()) };
        }
        let host = host(request)?;
        if let Some(host) = host.as_deref().filter(|host| !self.knows(name_of(host))) {
            let why = format!(
                "Found the host {host:?}, expected an address, localhost, or a name in `{}.hosts`.",
                self.section
            );
            return Err((StatusCode::MISDIRECTED_REQUEST, why));
        }
        if request
            .fields
            .get_all(Known::Origin)
            .any(|origin| !is_same_origin(origin, host.as_deref()))
        {
            return Err((
                StatusCode::FORBIDDEN,
                "Scripts of other origins may not read these pages.".to_owned(),
            ));
        }
        let reads = matches!(request.method, Method::GET | Method::HEAD);
        // Another site's page may link here. If it loads a page of these as an image or in a frame,
        // it can't read it, but it can take a viewer's place or start a search of counters.
        if is_cross_site(request) && !(reads && is_navigation(request)) {
            return Err((
                StatusCode::FORBIDDEN,
                "Pages of other sites may link here, and neither load nor change anything."
                    .to_owned(),
            ));
        }
        if !reads && !self.address.ip().is_loopback() {
            let why = format!(
                "Changes here need a token: `{0}.token_file` or `{0}.token_env`, since the address is not a loopback address.",
                self.section
            );
            return Err((StatusCode::FORBIDDEN, why));
        }
        Ok(())
    }

    /// Whether this listener has the name. An address is always fine: unlike a name, nobody can
    /// point it elsewhere.
    fn knows(&self, name: &str) -> bool {
        let address =
            name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
        let name = name.strip_suffix('.').unwrap_or(name);
        address.parse::<IpAddr>().is_ok()
            || name.eq_ignore_ascii_case("localhost")
            || self.hosts.iter().any(|host| host.eq_ignore_ascii_case(name))
    }
}

/// The host that the request names, with its port. HTTP/1.0, which no browser speaks, may name
/// none.
fn host(request: &Request) -> Result<Option<String>, GateRefusal> {
    if let Some(authority) = request.authority() {
        return Ok(Some(authority.to_owned()));
    }
    let mut hosts = request.fields.get_all(Known::Host);
    let first = hosts.next().map(|host| String::from_utf8_lossy(host).into_owned());
    if hosts.next().is_some() {
        Err((StatusCode::BAD_REQUEST, "Found more than one Host field.".to_owned()))
    } else {
        Ok(first)
    }
}

/// Whether a browser says that another site's page sent this. A form can send a POST without asking
/// first, and a page can leave its origin out.
fn is_cross_site(request: &Request) -> bool {
    let mut sites = request.fields.get_all("sec-fetch-site");
    sites.any(|site| site != b"same-origin" && site != b"none")
}

/// A host without its port.
fn name_of(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port))
            if port.bytes().all(|byte| byte.is_ascii_digit())
                && (!name.contains(':') || name.ends_with(']')) =>
        {
            name
        }
        _ => host,
    }
}

/// Whether the origin is the host that the request names. The scheme is not compared: TLS may be
/// terminated in front of this listener.
fn is_same_origin(origin: &[u8], host: Option<&str>) -> bool {
    let origin =
        std::str::from_utf8(origin).ok().and_then(|origin| Some(origin.split_once("://")?.1));
    origin.zip(host).is_some_and(|(origin, host)| origin.eq_ignore_ascii_case(host))
}

/// Whether a browser says that it is to show the answer as a page of its own, and not in a frame.
fn is_navigation(request: &Request) -> bool {
    let is = |name: &str, expected: &[u8]| {
        let mut values = request.fields.get_all(name);
        values.next() == Some(expected) && values.next().is_none()
    };
    is("sec-fetch-mode", b"navigate") && is("sec-fetch-dest", b"document")
}

impl Token {
    /// A token with any text. One that is not a valid field value can never match.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The token's text, for a client of the pages.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Compares digests, in constant time, so that timing reveals nothing about the token.
    fn is_in(&self, request: &Request) -> bool {
        let mut values = request.fields.get_all(Known::Authorization);
        let (Some(value), None) = (values.next(), values.next()) else { return false };
        let Some((scheme, token)) = value.split_at_checked(7) else { return false };
        scheme.eq_ignore_ascii_case(b"bearer ")
            // A field has no blanks at its ends, whatever a file has.
            && blake3::hash(token.trim_ascii()) == blake3::hash(self.0.trim_ascii().as_bytes())
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Token(...)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Body;

    fn request(method: &str, fields: &[(&str, &str)]) -> Request {
        let mut request = http::Request::builder().method(method).uri("/status");
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        Request::from(request.body(Body::empty()).unwrap())
    }

    fn status(settings: &Settings, method: &str, path: &str, fields: &[(&str, &str)]) -> u16 {
        settings
            .admits(&request(method, fields), matches!(path, "/live" | "/ready"))
            .map_or_else(|(status, _)| status.as_u16(), |()| 200)
    }

    fn settings(address: &str) -> Settings {
        Settings {
            hosts: vec!["weir.internal".into()],
            ..Settings::plain(address.parse().unwrap())
        }
    }

    #[test]
    fn a_request_names_this_listener() {
        let settings = settings("127.0.0.1:9901");
        let get = |host: &str| status(&settings, "GET", "/status", &[("host", host)]);
        for host in [
            "127.0.0.1:9901",
            "127.0.0.1",
            "10.0.0.7:9901",
            "[::1]:9901",
            "[::1]",
            "localhost:9901",
            "LOCALHOST",
            "localhost.",
            "weir.internal:9901",
            "Weir.Internal",
        ] {
            assert_eq!(get(host), 200, "{host}");
        }
        for host in [
            "evil.example:9901",
            "evil.example",
            "127.0.0.1.evil.example",
            "localhost.evil.example",
            "",
            ":9901",
            "xlocalhost",
            "[::1",
            "::x",
        ] {
            assert_eq!(get(host), 421, "{host}");
        }
        assert_eq!(status(&settings, "GET", "/live", &[("host", "evil.example")]), 421);
        assert_eq!(
            status(&settings, "GET", "/status", &[("host", "localhost"), ("host", "localhost")]),
            400
        );
        assert_eq!(status(&settings, "GET", "/status", &[]), 200, "as HTTP/1.0 asks");
    }

    #[test]
    fn a_script_of_another_origin_is_refused() {
        let settings = settings("127.0.0.1:9901");
        let of = |origin: &str| {
            status(&settings, "GET", "/status", &[("host", "localhost:9901"), ("origin", origin)])
        };
        assert_eq!((of("http://localhost:9901"), of("https://LOCALHOST:9901")), (200, 200));
        for origin in [
            "http://evil.example",
            "null",
            "http://localhost:3000",
            "http://127.0.0.1:9901",
            "localhost:9901",
            "",
        ] {
            assert_eq!(of(origin), 403, "{origin}");
        }
    }

    #[test]
    fn a_page_of_another_site_changes_nothing() {
        let settings = settings("127.0.0.1:9901");
        let of = |method: &str, site: &str| {
            let fields = [("host", "localhost:9901"), ("sec-fetch-site", site)];
            status(&settings, method, "/reload", &fields)
        };
        assert_eq!((of("POST", "same-origin"), of("POST", "none")), (200, 200));
        for site in ["cross-site", "same-site", ""] {
            assert_eq!((of("POST", site), of("DELETE", site)), (403, 403), "{site}");
            let get = |mode: &str, dest: &str| {
                let (host, site) = (("host", "localhost:9901"), ("sec-fetch-site", site));
                let fields = [host, site, ("sec-fetch-mode", mode), ("sec-fetch-dest", dest)];
                status(&settings, "GET", "/events", &fields)
            };
            assert_eq!(get("navigate", "document"), 200, "a page that is opened by a link");
            assert_eq!(get("navigate", "iframe"), 403, "{site}");
            assert_eq!((get("no-cors", "image"), of("GET", site)), (403, 403), "{site}");
        }
        assert_eq!(of("GET", "same-origin"), 200);
    }

    #[test]
    fn a_token_is_needed_where_there_is_one() {
        let settings = Settings { token: Some(Token::new("s3cret")), ..settings("0.0.0.0:9901") };
        let with = |value: &str| {
            status(
                &settings,
                "DELETE",
                "/counters",
                &[("host", "any.example"), ("authorization", value)],
            )
        };
        assert_eq!((with("Bearer s3cret"), with("bearer s3cret")), (200, 200));
        let token = Some(Token::new("s3cret "));
        let blank = Settings { token, ..self::settings("0.0.0.0:9901") };
        let bearer = [("authorization", "Bearer s3cret ")];
        assert_eq!(status(&blank, "DELETE", "/counters", &bearer), 200, "as a file may have it");
        for value in
            ["Bearer s3cre", "Bearer s3cret1", "Bearer", "Bearer ", "Basic s3cret", "s3cret", ""]
        {
            assert_eq!(with(value), 401, "{value}");
        }
        let twice = [("authorization", "Bearer s3cret"), ("authorization", "Bearer s3cret")];
        assert_eq!(status(&settings, "GET", "/status", &twice), 401);
        assert_eq!(status(&settings, "GET", "/metrics", &[("host", "127.0.0.1")]), 401);
        assert_eq!(status(&settings, "GET", "/ready", &[("host", "127.0.0.1")]), 200);
        assert_eq!(format!("{settings:?}").matches("s3cret").count(), 0);
    }

    #[test]
    fn nothing_is_changed_for_everybody_on_the_network() {
        for (method, path) in [("DELETE", "/counters"), ("POST", "/reload")] {
            let changes =
                |address: &str| status(&settings(address), method, path, &[("host", "127.0.0.1")]);
            assert_eq!(
                (
                    changes("127.0.0.1:9901"),
                    changes("[::1]:9901"),
                    changes("0.0.0.0:9901"),
                    changes("10.0.0.1:9901")
                ),
                (200, 200, 403, 403)
            );
        }
        assert_eq!(
            status(&settings("0.0.0.0:9901"), "GET", "/counters", &[("host", "127.0.0.1")]),
            200
        );
    }
}
