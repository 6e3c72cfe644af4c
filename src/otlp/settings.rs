//! What is exported where, as configured. Knows no file and no connection.

use std::fmt;
use std::time::Duration;

use super::buffer::Sampling;
use weir_tls::ClientTls;

/// `[telemetry.otlp]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The collector's URL, without `/v1/traces`.
    pub endpoint: String,
    /// Fields of each request to it.
    pub headers: Vec<Header>,
    /// How it is verified.
    pub tls: ClientTls,
    /// Whether traces are exported.
    pub traces: bool,
    /// Whether metrics are exported.
    pub metrics: bool,
    /// The share of requests that are traced, where no trusted proxy has decided.
    pub sampling: Sampling,
    /// Time for one export, from connecting to the end of the reply.
    pub timeout: Duration,
    /// The time between two exports of metrics.
    pub interval: Duration,
    /// `service.name`.
    pub service: String,
    /// Further attributes of what is exported.
    pub attributes: Vec<(String, String)>,
}

/// A header field of the requests to a collector. Its value may be a secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Header {
    /// The setting that it is written under: `headers`, `headers_file` or `headers_env`.
    pub key: &'static str,
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: String,
}

impl fmt::Debug for Header {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Header")
            .field("key", &self.key)
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            endpoint: "http://127.0.0.1:4318".to_owned(),
            headers: Vec::new(),
            tls: ClientTls::default(),
            traces: true,
            metrics: true,
            sampling: Sampling::of_share(0.01),
            timeout: Duration::from_secs(10),
            interval: Duration::from_secs(60),
            service: "weir".to_owned(),
            attributes: Vec::new(),
        }
    }
}
