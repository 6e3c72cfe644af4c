//! Why a connection ended early: for the log, and as the label under which it is counted. Knows no
//! route.

use std::error::Error;
use std::fmt;
use std::io;

use crate::telemetry::{CounterSet, Metrics, labels, names};

/// Why a connection ended early.
#[derive(Debug)]
pub(super) enum Failure {
    /// The handshake.
    Tls(TlsCause, io::Error),
    /// HTTP/2, or the stream below it.
    Http2(hyper::Error),
    /// A head that is not HTTP.
    Malformed(&'static str),
    HeadTooLarge,
    /// A connection on which no request came in time.
    Silent,
    /// A client that takes nothing of its reply.
    SendTimeout,
    /// A client that takes its reply more slowly than the rate allows.
    SendSlow,
    /// A request that took longer than its route allows.
    Overdue,
    /// A reply that ended before its end.
    ReplyCut,
    /// A client that speaks TLS where nobody does.
    TlsHello,
    /// The socket itself.
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
        Closed = "closed",
        Other = "other",
    }
}

impl TlsCause {
    /// What rustls says, in few words.
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

/// A worker's counters of them.
#[derive(Debug)]
pub(super) struct Failures {
    tls: CounterSet<TlsCause>,
    http: CounterSet<HttpCause>,
}

impl Failures {
    pub(super) fn new(metrics: &Metrics) -> Self {
        Self {
            tls: metrics.counters(names::TLS_HANDSHAKES_FAILED, &[]),
            http: metrics.counters(names::CONNECTION_ERRORS, &[]),
        }
    }

    pub(super) fn count(&self, failure: &Failure) {
        let cause = match failure {
            Failure::Tls(cause, _) => return self.tls.inc(*cause),
            Failure::Http2(error) => HttpCause::of(error),
            Failure::Malformed(_) => HttpCause::Malformed,
            Failure::HeadTooLarge => HttpCause::HeadTooLarge,
            Failure::Silent => HttpCause::HeadTimeout,
            Failure::SendTimeout => HttpCause::SendTimeout,
            Failure::SendSlow => HttpCause::SendSlow,
            Failure::Overdue => HttpCause::RequestTimeout,
            Failure::ReplyCut => HttpCause::ReplyCut,
            Failure::TlsHello => HttpCause::TlsHello,
            Failure::Socket(_) => HttpCause::Closed,
        };
        self.http.inc(cause);
    }
}

impl From<hyper::Error> for Failure {
    fn from(error: hyper::Error) -> Self {
        Self::Http2(error)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Socket(error)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tls(TlsCause::PlainText, _) => {
                write!(out, "TLS handshake: the client speaks plain HTTP")
            }
            Self::Tls(TlsCause::Timeout, _) => write!(out, "TLS handshake: not done in time"),
            Self::Tls(_, error) => write!(out, "TLS handshake: {error}"),
            Self::Http2(error) => with_sources(error, out),
            Self::TlsHello => {
                write!(out, "the client speaks TLS, and this listener has no certificates")
            }
            Self::Silent => write!(out, "no request came in time"),
            Self::Malformed(why) => write!(out, "{why}"),
            Self::HeadTooLarge => write!(out, "the head is too large"),
            Self::SendTimeout => write!(out, "the client takes nothing of its reply"),
            Self::SendSlow => write!(out, "the client takes its reply too slowly"),
            Self::Overdue => write!(out, "the request took longer than its route allows"),
            Self::ReplyCut => write!(out, "the reply ended early"),
            Self::Socket(error) => write!(out, "{error}"),
        }
    }
}

/// hyper prints only the outermost of its causes.
fn with_sources(error: &(dyn Error + 'static), out: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(out, "{error}")?;
    let mut source = error.source();
    while let Some(error) = source {
        write!(out, ": {error}")?;
        source = error.source();
    }
    Ok(())
}
