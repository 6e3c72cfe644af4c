//! Why a connection ended early, as a log message and as a metric label. Knows nothing about
//! routes.

use std::error::Error;
use std::fmt;
use std::io;

use crate::telemetry::{Counter, Metrics, names};

/// Why a connection ended early.
#[derive(Debug)]
pub(super) enum ConnectionError {
    /// The handshake failed.
    Tls(TlsCause, io::Error),
    /// HTTP/2 failed, or the stream below it.
    Http2(hyper::Error),
    /// The head is not valid HTTP.
    Malformed(&'static str),
    HeadTooLarge,
    /// No request arrived in time.
    HeadTimeout,
    /// The client read nothing of its reply for too long.
    SendTimeout,
    /// The client reads its reply more slowly than the rate allows.
    SendSlow,
    /// The request took longer than its route allows.
    RequestTimeout,
    /// The reply's body ended early.
    ReplyCut,
    /// The client speaks TLS to a listener without certificates.
    TlsHello,
    /// The socket failed.
    Socket(io::Error),
}

/// Why a TLS handshake failed: the label values of `weir_tls_handshakes_failed_total`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TlsCause {
    Timeout,
    Closed,
    PlainText,
    Incompatible,
    Certificate,
    Alert,
    Malformed,
}

/// The label values of `weir_connection_errors_total`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HttpCause {
    Malformed,
    TlsHello,
    HeadTooLarge,
    HeadTimeout,
    SendTimeout,
    SendSlow,
    RequestTimeout,
    ReplyCut,
    Closed,
    Other,
}

impl TlsCause {
    const ALL: [(Self, &str); 7] = [
        (Self::Timeout, "timeout"),
        (Self::Closed, "closed"),
        (Self::PlainText, "plain_text"),
        (Self::Incompatible, "incompatible"),
        (Self::Certificate, "client_certificate"),
        (Self::Alert, "alert"),
        (Self::Malformed, "malformed"),
    ];

    /// Classifies an error of rustls.
    pub(super) fn of(error: &io::Error) -> Self {
        use rustls::Error as E;
        match error.get_ref().and_then(|inner| inner.downcast_ref::<E>()) {
            Some(E::AlertReceived(_)) => Self::Alert,
            Some(E::PeerIncompatible(_) | E::NoApplicationProtocol) => Self::Incompatible,
            Some(E::NoCertificatesPresented | E::InvalidCertificate(_)) => Self::Certificate,
            Some(_) => Self::Malformed,
            None => Self::Closed,
        }
    }
}

impl HttpCause {
    const ALL: [(Self, &str); 10] = [
        (Self::Malformed, "malformed"),
        (Self::TlsHello, "tls_hello"),
        (Self::HeadTooLarge, "head_too_large"),
        (Self::HeadTimeout, "head_timeout"),
        (Self::SendTimeout, "send_timeout"),
        (Self::SendSlow, "send_slow"),
        (Self::RequestTimeout, "request_timeout"),
        (Self::ReplyCut, "reply_cut"),
        (Self::Closed, "closed"),
        (Self::Other, "other"),
    ];

    fn of(error: &hyper::Error) -> Self {
        if error.is_parse_too_large() {
            return Self::HeadTooLarge;
        }
        if error.is_parse() {
            return Self::Malformed;
        }
        if error.is_timeout() {
            return Self::HeadTimeout;
        }
        if error.is_user() {
            return Self::ReplyCut;
        }
        let source = error.source();
        match source.and_then(|source| source.downcast_ref::<io::Error>()).map(io::Error::kind) {
            Some(io::ErrorKind::TimedOut) => Self::SendTimeout,
            Some(_) => Self::Closed,
            None if error.is_incomplete_message()
                || error.is_closed()
                || error.is_body_write_aborted() =>
            {
                Self::Closed
            }
            None => Self::Other,
        }
    }
}

/// A worker's counters of connection errors.
#[derive(Debug)]
pub(super) struct ErrorCounters {
    tls: [Counter; TlsCause::ALL.len()],
    http: [Counter; HttpCause::ALL.len()],
}

impl ErrorCounters {
    pub(super) fn new(metrics: &Metrics) -> Self {
        Self {
            tls: TlsCause::ALL
                .map(|(_, label)| metrics.counter(names::TLS_HANDSHAKES_FAILED, &[label])),
            http: HttpCause::ALL
                .map(|(_, label)| metrics.counter(names::CONNECTION_ERRORS, &[label])),
        }
    }

    pub(super) fn count(&self, error: &ConnectionError) {
        let http = |cause| {
            self.http
                .iter()
                .zip(HttpCause::ALL)
                .find(|(_, (known, _))| *known == cause)
                .map(|(counter, _)| counter)
        };
        let counter = match error {
            ConnectionError::Tls(cause, _) => self
                .tls
                .iter()
                .zip(TlsCause::ALL)
                .find(|(_, (known, _))| known == cause)
                .map(|(counter, _)| counter),
            ConnectionError::Http2(error) => http(HttpCause::of(error)),
            ConnectionError::Malformed(_) => http(HttpCause::Malformed),
            ConnectionError::HeadTooLarge => http(HttpCause::HeadTooLarge),
            ConnectionError::HeadTimeout => http(HttpCause::HeadTimeout),
            ConnectionError::SendTimeout => http(HttpCause::SendTimeout),
            ConnectionError::SendSlow => http(HttpCause::SendSlow),
            ConnectionError::RequestTimeout => http(HttpCause::RequestTimeout),
            ConnectionError::ReplyCut => http(HttpCause::ReplyCut),
            ConnectionError::TlsHello => http(HttpCause::TlsHello),
            ConnectionError::Socket(_) => http(HttpCause::Closed),
        };
        if let Some(counter) = counter {
            counter.inc();
        }
    }
}

impl From<hyper::Error> for ConnectionError {
    fn from(error: hyper::Error) -> Self {
        Self::Http2(error)
    }
}

impl From<io::Error> for ConnectionError {
    fn from(error: io::Error) -> Self {
        Self::Socket(error)
    }
}

impl fmt::Display for ConnectionError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tls(TlsCause::PlainText, _) => {
                write!(out, "TLS handshake: the client speaks plain HTTP")
            }
            Self::Tls(TlsCause::Timeout, _) => write!(out, "TLS handshake: timed out"),
            Self::Tls(_, error) => write!(out, "TLS handshake: {error}"),
            Self::Http2(error) => with_sources(error, out),
            Self::TlsHello => {
                write!(out, "the client speaks TLS, and this listener has no certificates")
            }
            Self::HeadTimeout => write!(out, "no request arrived in time"),
            Self::Malformed(why) => write!(out, "{why}"),
            Self::HeadTooLarge => write!(out, "the head is too large"),
            Self::SendTimeout => write!(out, "the client reads nothing of its reply"),
            Self::SendSlow => write!(out, "the client reads its reply too slowly"),
            Self::RequestTimeout => write!(out, "the request took longer than its route allows"),
            Self::ReplyCut => write!(out, "the reply ended early"),
            Self::Socket(error) => write!(out, "{error}"),
        }
    }
}

/// Prints the source errors too; hyper's `Display` shows only the outermost.
fn with_sources(error: &(dyn Error + 'static), out: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(out, "{error}")?;
    let mut source = error.source();
    while let Some(error) = source {
        write!(out, ": {error}")?;
        source = error.source();
    }
    Ok(())
}
