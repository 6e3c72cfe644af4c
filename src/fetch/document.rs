//! One document: a GET of its URL, and what is wrong with the reply. Knows nothing of when it is
//! time to fetch.

use std::future::poll_fn;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::pin::Pin;

use http::header::{HOST, HeaderValue, USER_AGENT};
use http::{HeaderMap, StatusCode, Uri};
use http_body::Body as _;

use super::{FETCH_TIME_MAX, FetchResult, Reply, Settings};
use crate::telemetry::{Label as _, Metrics, SettingError};
use crate::upstream::{self, Cause, Ejection, Retry, Upstream};
use crate::wire::{Body, BodyError, Request};

const EXPECTED: &str = "a URL such as \"https://id.example.org/jwks.json\"";
const EXPECTED_TLS: &str =
    "https://, or http:// to this machine alone: without TLS, anybody may have sent it";
const EXPECTED_OPEN: &str = "a URL without a user name or password";

/// A document, its settings checked.
#[derive(Debug)]
pub struct Document {
    settings: Settings,
    /// The URL as it is shown: a query may hold secrets.
    shown: String,
    /// Path and query.
    target: String,
    upstream: Upstream,
    fields: HeaderMap,
}

/// Why a document was not fetched, or not kept.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// No connection, no reply in time, or a reply that broke off.
    #[error("{0}")]
    Unreached(String),
    /// A status other than 200.
    #[error("it answered {0}, expected 200 OK{hint}", hint = if .0.is_redirection() { " (redirects are not followed)" } else { "" })]
    Status(StatusCode),
    /// More bytes than the settings allow.
    #[error("the document has more than {0} bytes")]
    TooLarge(u64),
    /// It can't be used.
    #[error("the document is refused: {0}")]
    Refused(String),
    /// The file can't be written.
    #[error("{path} can't be written: {error}")]
    Unwritten {
        /// Where.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
}

impl FetchError {
    /// The label under which the metric counts it.
    #[must_use]
    pub fn label(&self) -> FetchResult {
        match self {
            Self::Unreached(_) => FetchResult::Unreached,
            Self::Status(_) => FetchResult::Status,
            Self::TooLarge(_) => FetchResult::TooLarge,
            Self::Refused(_) => FetchResult::Refused,
            Self::Unwritten { .. } => FetchResult::Unwritten,
        }
    }
}

impl Document {
    /// Checks the settings. Connects to nothing yet.
    ///
    /// # Errors
    /// An invalid URL (`url`), certificates that can't be used (`tls.ca`).
    pub fn build(settings: &Settings) -> Result<Self, Vec<SettingError>> {
        let wrong = |expected: &str| {
            let found = format!("{:?}", strip_secrets(&settings.url));
            vec![SettingError::new("url", found, expected)]
        };
        let UrlParts { origin, authority, path, target } = place(&settings.url).map_err(wrong)?;
        let to = upstream::Settings {
            tls: settings.tls.clone(),
            connect: FETCH_TIME_MAX,
            response_header: FETCH_TIME_MAX,
            // A document is fetched every few minutes, so a connection is not worth keeping.
            pool_idle_per_worker: 0,
            retry: Retry::Unsent,
            ejection: Ejection { failures: 0, ..Ejection::default() },
            logs_failures: false,
            ..upstream::Settings::new(settings.setting.clone(), vec![origin.clone()])
        };
        // Its upstream metrics are discarded: fetches are counted instead.
        let upstream = Upstream::build(&to, &Metrics::new(1)).map_err(|found| {
            let at_url = |error: SettingError| match error.setting.as_str() {
                "endpoints[0]" => SettingError { setting: "url".to_owned(), ..error },
                _ => error,
            };
            found.into_iter().map(at_url).collect::<Vec<_>>()
        })?;
        let host = HeaderValue::try_from(authority).map_err(|_| wrong(EXPECTED))?;
        let agent = HeaderValue::from_static(concat!("weir/", env!("CARGO_PKG_VERSION")));
        let fields = HeaderMap::from_iter([(HOST, host), (USER_AGENT, agent)]);
        let shown = format!("{origin}{path}");
        Ok(Self { settings: settings.clone(), shown, target, upstream, fields })
    }

    /// Whether it was made from these settings.
    #[must_use]
    pub fn is_of(&self, settings: &Settings) -> bool {
        self.settings == *settings
    }

    /// Its settings.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Its URL, without a query.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.shown
    }

    /// Fetches it once, within [`FETCH_TIME_MAX`].
    ///
    /// # Errors
    /// See [`FetchError`]. Nothing is written here.
    pub async fn fetch(&self) -> Reply {
        let exchange = tokio::time::timeout(FETCH_TIME_MAX, self.exchange());
        exchange.await.unwrap_or_else(|_| Err(FetchError::Unreached(late())))
    }

    async fn exchange(&self) -> Reply {
        let mut request = http::Request::get(&self.target)
            .body(Body::empty())
            .map_err(|error| FetchError::Unreached(error.to_string()))?;
        request.headers_mut().clone_from(&self.fields);
        let reply = match self.upstream.send(Request::from(request)).await {
            Ok(reply) => reply,
            Err(error) => return Err(FetchError::Unreached(self.why(error.cause).await)),
        };
        let (head, body) = reply.into_http().into_parts();
        if head.status != StatusCode::OK {
            return Err(FetchError::Status(head.status));
        }
        self.read(body).await
    }

    async fn read(&self, body: Body) -> Reply {
        let (mut body, mut bytes) = (body.limit(self.settings.bytes_max), Vec::new());
        while let Some(frame) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
            let frame = frame.map_err(|error| match error {
                BodyError::TooLarge { limit_bytes } => FetchError::TooLarge(limit_bytes),
                broken => FetchError::Unreached(broken.to_string()),
            })?;
            if let Some(data) = frame.data_ref() {
                bytes.extend_from_slice(data);
            }
        }
        Ok(bytes)
    }

    /// Why there is no reply. A connection that failed is tried once more for the reason, since a
    /// cause says little: not why a certificate is not accepted.
    async fn why(&self, cause: Cause) -> String {
        match cause {
            Cause::Timeout => return late(),
            Cause::Connect | Cause::Tls => {}
            _ => return format!("no reply ({})", cause.label()),
        }
        let reached = self.upstream.reach().await;
        let why = reached.into_iter().find_map(|(_, answer)| answer.err());
        format!("it can't be reached: {}", why.unwrap_or_else(|| cause.label().to_owned()))
    }
}

fn late() -> String {
    format!("no reply within {FETCH_TIME_MAX:?}")
}

/// The parts of a URL.
#[derive(Debug, PartialEq, Eq)]
struct UrlParts {
    origin: String,
    authority: String,
    path: String,
    target: String,
}

/// Takes a URL apart. The error is what was expected.
fn place(url: &str) -> Result<UrlParts, &'static str> {
    // A fragment is the reader's, and would be lost without a word.
    let uri: Uri = url.parse().map_err(|_| EXPECTED)?;
    let scheme = uri.scheme_str().filter(|scheme| matches!(*scheme, "http" | "https"));
    let (Some(scheme), Some(authority)) = (scheme, uri.authority()) else { return Err(EXPECTED) };
    if url.contains('#') {
        return Err("a URL without a fragment (`#`)");
    }
    if authority.as_str().contains('@') {
        return Err(EXPECTED_OPEN);
    }
    if scheme == "http" && !is_this_machine(authority.host()) {
        return Err(EXPECTED_TLS);
    }
    let target = uri.path_and_query().map_or("/", |target| target.as_str());
    Ok(UrlParts {
        origin: format!("{scheme}://{authority}"),
        authority: authority.to_string(),
        path: uri.path().to_owned(),
        target: target.to_owned(),
    })
}

fn is_this_machine(host: &str) -> bool {
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let address: Option<IpAddr> = bare.parse().ok();
    bare.eq_ignore_ascii_case("localhost") || address.is_some_and(|address| address.is_loopback())
}

/// The URL as a message may show it: a query and what is before the host may be secrets.
fn strip_secrets(url: &str) -> String {
    let url = url.split(['?', '#']).next().unwrap_or_default();
    match url.rsplit_once('@') {
        Some((before, rest)) => {
            let scheme = before.split_once("://").map_or("", |(scheme, _)| scheme);
            format!("{scheme}://***@{rest}")
        }
        None => url.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(url: &str) -> Settings {
        Settings {
            setting: "policies.p.config_files.keys".to_owned(),
            policy: "p".to_owned(),
            member: "keys".to_owned(),
            url: url.to_owned(),
            tls: weir_tls::ClientTls::default(),
            file: PathBuf::from("keys.json"),
            every: std::time::Duration::from_secs(600),
            bytes_max: 1 << 10,
        }
    }

    #[test]
    fn a_url_is_sent_as_it_is_written_and_shown_without_its_query() {
        for (url, target, shown) in [
            ("https://id.example.org/jwks.json", "/jwks.json", "https://id.example.org/jwks.json"),
            ("https://id.example.org", "/", "https://id.example.org/"),
            ("https://id.example.org:8443/k?p=s", "/k?p=s", "https://id.example.org:8443/k"),
            ("http://localhost:1/k", "/k", "http://localhost:1/k"),
            ("http://127.1.2.3/k", "/k", "http://127.1.2.3/k"),
            ("http://[::1]:1/k", "/k", "http://[::1]:1/k"),
        ] {
            let document = Document::build(&with(url)).unwrap();
            assert_eq!((document.target.as_str(), document.url()), (target, shown), "{url}");
        }
    }

    #[test]
    fn a_url_that_is_none_or_open_to_anybody_is_an_error() {
        for (url, expected) in [
            ("", EXPECTED),
            ("id.example.org/jwks.json", EXPECTED),
            ("/jwks.json", EXPECTED),
            ("file:///etc/keys", EXPECTED),
            ("ftp://id.example.org/k", EXPECTED),
            ("https://id.example.org/k#x", "a URL without a fragment (`#`)"),
            ("http://id.example.org/k", EXPECTED_TLS),
            ("http://localhost.example.org/k", EXPECTED_TLS),
            ("http://10.0.0.1/k", EXPECTED_TLS),
            ("https://me:secret@id.example.org/k", EXPECTED_OPEN),
        ] {
            let found = Document::build(&with(url)).unwrap_err();
            let [SettingError { setting, expected: told, found, .. }] = &found[..] else {
                panic!("{found:?}")
            };
            assert_eq!((setting.as_str(), told.as_str()), ("url", expected), "{url}");
            assert!(!found.contains("secret"), "{found}");
        }
        let found = Document::build(&with("https://id.example.org:99999/k")).unwrap_err();
        assert_eq!(found[0].setting, "url", "{found:?}");
    }
}
