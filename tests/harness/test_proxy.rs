//! Weir with two listeners, one plain and one with TLS, and the ways in which curl can reach it.

use std::net::SocketAddr;
use std::path::PathBuf;

use super::pki::{IssuedCertificate, Pki};
use super::toml::Toml;
use super::transfer::{Transfer, curl, try_curl_to_nowhere};
use super::weir::Weir;

/// A running proxy with two listeners.
pub struct TestProxy {
    pub weir: Weir,
    secure: SocketAddr,
}

impl TestProxy {
    pub fn start(toml: &Toml) -> Self {
        Self::with(toml, &Pki::new())
    }

    /// Starts it after `change` was applied to the configuration's text.
    pub fn start_text(toml: &Toml, change: impl Fn(String) -> String) -> Self {
        Self::changed(toml, &Pki::new(), change)
    }

    /// Starts it with certificates of this authority, so that it can also sign the upstreams'
    /// certificates. It is next to the configuration as `ca.pem`.
    pub(crate) fn with(toml: &Toml, pki: &Pki) -> Self {
        Self::changed(toml, pki, |text| text)
    }

    fn changed(toml: &Toml, pki: &Pki, change: impl Fn(String) -> String) -> Self {
        let secure = "[[listeners]]\naddress = \"127.0.0.1:0\"\ncertificates = [{ certificate = \"server.pem\", key = \"server.key\" }]";
        let builder = Weir::build(&change(toml.clone().more(secure).text()));
        let weir =
            builder.identity("server", &identity(pki)).file("ca.pem", pki.ca.as_bytes()).start();
        let secure = *weir.listeners().get(1).expect("two listeners");
        Self { weir, secure }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.weir.http)
    }

    pub fn secure_url(&self) -> String {
        format!("https://{}", self.secure)
    }

    /// The authority's certificate, for clients.
    pub fn ca(&self) -> String {
        self.weir.folder().join("ca.pem").to_string_lossy().into_owned()
    }

    /// All combinations of TLS and HTTP version that curl speaks.
    pub fn ways(&self) -> Vec<Way> {
        let ca = self.ca();
        let way = |name, version, url: String, options: &[&str]| {
            let options = options.iter().map(|option| (*option).to_owned()).collect();
            Way { name, version, url, options }
        };
        vec![
            way("h1", "1.1", self.url(), &["--http1.1"]),
            way("h2", "2", self.url(), &["--http2-prior-knowledge"]),
            way("TLS, h1", "1.1", self.secure_url(), &["--http1.1", "--cacert", &ca]),
            way("TLS, h2", "2", self.secure_url(), &["--http2", "--cacert", &ca]),
        ]
    }
}

/// The certificate of servers in these tests, which are reached by address.
pub(crate) fn identity(pki: &Pki) -> IssuedCertificate {
    pki.server(&["127.0.0.1", "localhost"])
}

/// A certificate and its key in files, for other people's programs. The files exist as long as this
/// value.
pub struct IdentityFiles {
    _folder: tempfile::TempDir,
    pub certificate: PathBuf,
    pub key: PathBuf,
}

impl IdentityFiles {
    pub(crate) fn of(pki: &Pki) -> Self {
        let (folder, issued) = (tempfile::tempdir().expect("a temporary folder"), identity(pki));
        let (certificate, key) =
            (folder.path().join("server.pem"), folder.path().join("server.key"));
        std::fs::write(&certificate, issued.certificate).expect("a file");
        std::fs::write(&key, issued.key).expect("a file");
        Self { _folder: folder, certificate, key }
    }

    /// The two paths as arguments.
    pub fn arguments(&self) -> [&str; 2] {
        [&self.certificate, &self.key].map(|path| path.to_str().expect("a plain path"))
    }
}

/// One combination of TLS and HTTP version in which curl can speak to Weir.
pub struct Way {
    pub name: &'static str,
    version: &'static str,
    /// Weir's URL, without a path.
    pub url: String,
    options: Vec<String>,
}

impl Way {
    /// A transfer that must succeed with this version of HTTP.
    pub fn curl(&self, target: &str, options: &[&str]) -> Transfer {
        self.checked(curl(
            &self.arguments(target, options).iter().map(String::as_str).collect::<Vec<_>>(),
        ))
    }

    /// Like [`Way::curl`], for a body that is too large to keep.
    pub fn curl_to_nowhere(&self, target: &str, options: &[&str]) -> Transfer {
        let done = try_curl_to_nowhere(
            &self.arguments(target, options).iter().map(String::as_str).collect::<Vec<_>>(),
        );
        assert_eq!(done.exit, 0, "{}: {done:?}", self.name);
        self.checked(done)
    }

    fn arguments(&self, target: &str, options: &[&str]) -> Vec<String> {
        let options = options.iter().map(|option| (*option).to_owned());
        self.options
            .iter()
            .cloned()
            .chain(options)
            .chain([format!("{}{target}", self.url)])
            .collect()
    }

    fn checked(&self, done: Transfer) -> Transfer {
        assert_eq!(done.version, self.version, "{}: {done:?}", self.name);
        done
    }
}
