//! Why a connection ended early, as a log message and as a metric label. Knows nothing about
//! routes.

use std::fmt;
use std::io;

use crate::telemetry::{CounterSet, Metrics, labels, names};

/// Why a connection ended early.
#[derive(Debug)]
pub(super) enum ConnectionError {
    /// The handshake failed, or was all that the client wanted.
    Tls(TlsCause, io::Error),
    /// HTTP/2 failed, or the stream below it.
    Http2(h2::Error),
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
    /// A trusted proxy has sent no header of the PROXY protocol, and this is wrong with it.
    ProxyHeader(&'static str),
    /// The client behind a proxy has as many connections as it may.
    ClientConnections,
    /// The socket failed.
    Socket(io::Error),
}

labels! {
    /// Why a TLS handshake failed: a metric's label.
    pub(super) enum TlsCause {
        Timeout = "timeout",
        Closed = "closed",
        PlainText = "plain_text",
        Incompatible = "incompatible",
        Certificate = "client_certificate",
        Alert = "alert",
        Malformed = "malformed",
        Challenge = "challenge",
    }
}

labels! {
    /// Why a connection ended early, after its handshake: a metric's label.
    enum HttpCause {
        Malformed = "malformed",
        TlsHello = "tls_hello",
        HeadTooLarge = "head_too_large",
        HeadTimeout = "head_timeout",
        SendTimeout = "send_timeout",
        SendSlow = "send_slow",
        RequestTimeout = "request_timeout",
        ReplyCut = "reply_cut",
        ProxyHeader = "proxy_header",
        Address = "address",
        Closed = "closed",
        Other = "other",
    }
}

impl TlsCause {
    /// Classifies an error of rustls.
    pub(super) fn of(error: &io::Error) -> Self {
        use rustls::Error as E;
        match error.get_ref().and_then(|inner| inner.downcast_ref::<E>()) {
            Some(E::AlertReceived(_)) => Self::Alert,
            Some(E::PeerIncompatible(_) | E::NoApplicationProtocol) => Self::Incompatible,
            Some(
                E::NoCertificatesPresented
                | E::InvalidCertificate(_)
                | E::InvalidCertRevocationList(_),
            ) => Self::Certificate,
            Some(_) => Self::Malformed,
            None => Self::Closed,
        }
    }
}

impl HttpCause {
    fn of(error: &h2::Error) -> Self {
        match error.get_io().map(io::Error::kind) {
            Some(io::ErrorKind::TimedOut) => Self::SendTimeout,
            Some(_) => Self::Closed,
            None => Self::Other,
        }
    }
}

impl ConnectionError {
    /// Why a head is refused, for the operator.
    pub(super) fn why(&self) -> &'static str {
        match self {
            Self::Malformed(why) => why,
            Self::HeadTooLarge => "the head is too large, or has more than 100 fields",
            Self::TlsHello => "the client speaks TLS, and this listener has no certificates",
            _ => "the head can't be read",
        }
    }
}

/// A worker's counters of connection errors.
#[derive(Debug)]
pub(super) struct ErrorCounters {
    tls: CounterSet<TlsCause>,
    http: CounterSet<HttpCause>,
}

impl ErrorCounters {
    pub(super) fn new(metrics: &Metrics) -> Self {
        Self {
            tls: metrics.counters(names::TLS_HANDSHAKES_FAILED, &[]),
            http: metrics.counters(names::CONNECTION_ERRORS, &[]),
        }
    }

    pub(super) fn count(&self, error: &ConnectionError) {
        let cause = match error {
            ConnectionError::Tls(cause, _) => return self.tls.inc(*cause),
            ConnectionError::Http2(error) => HttpCause::of(error),
            ConnectionError::Malformed(_) => HttpCause::Malformed,
            ConnectionError::HeadTooLarge => HttpCause::HeadTooLarge,
            ConnectionError::HeadTimeout => HttpCause::HeadTimeout,
            ConnectionError::SendTimeout => HttpCause::SendTimeout,
            ConnectionError::SendSlow => HttpCause::SendSlow,
            ConnectionError::RequestTimeout => HttpCause::RequestTimeout,
            ConnectionError::ReplyCut => HttpCause::ReplyCut,
            ConnectionError::TlsHello => HttpCause::TlsHello,
            ConnectionError::ProxyHeader(_) => HttpCause::ProxyHeader,
            ConnectionError::ClientConnections => HttpCause::Address,
            ConnectionError::Socket(_) => HttpCause::Closed,
        };
        self.http.inc(cause);
    }

    /// A stream of HTTP/2 was reset since its client did not read it in time.
    pub(super) fn count_unread(&self) {
        self.http.inc(HttpCause::SendTimeout);
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
            Self::Tls(TlsCause::Challenge, _) => {
                write!(out, "TLS handshake: an authority has checked a name")
            }
            Self::Tls(_, error) => write!(out, "TLS handshake: {error}"),
            Self::Http2(error) => write!(out, "{error}"),
            Self::TlsHello => write!(out, "{}", self.why()),
            Self::ProxyHeader(why) => write!(out, "{why}"),
            Self::ClientConnections => {
                write!(out, "the client has as many connections as it may")
            }
            Self::HeadTimeout => write!(out, "no request arrived in time"),
            Self::Malformed(why) => write!(out, "{why}"),
            Self::HeadTooLarge => write!(out, "the head is too large"),
            Self::SendTimeout => write!(out, "the client does not read its reply"),
            Self::SendSlow => write!(out, "the client reads its reply too slowly"),
            Self::RequestTimeout => write!(out, "the request took longer than its route allows"),
            Self::ReplyCut => write!(out, "the reply ended early"),
            Self::Socket(error) => write!(out, "{error}"),
        }
    }
}
