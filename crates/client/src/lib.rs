//! A client of Weir's decision API.
#![doc = include_str!("../README.md")]

mod connect;
#[cfg(feature = "tls")]
mod tls;
mod types;

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Bytes;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue, InvalidHeaderValue};
use hyper::{Request, StatusCode, Uri};
use hyper_util::client::legacy::Client as Http;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use serde::Serialize;
use serde_json::Value;

use crate::connect::{Connector, was_stale};
pub use crate::types::{Decision, Kind, Limit, Outcome, Question, Settlement};

/// How many bytes a call, or a batch, may have: Weir takes no more.
pub const MAX_CALL: usize = 1 << 20;
/// How many bytes the answer to one call may have. A longer one is no decision.
pub const MAX_ANSWER: usize = 1 << 20;
/// How many bytes the answer to a batch may have.
pub const MAX_BATCH_ANSWER: usize = 16 * MAX_ANSWER;

const MAX_IDLE: usize = 16;

/// What holds while Weir gives no decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnError {
    /// Requests are allowed.
    Allow,
    /// Requests are refused with status 503.
    Deny,
}

/// A mistake of the caller. That Weir can't be reached is none: see [`OnError`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The call itself is wrong: bad request, bad token, no such domain, too long.
    #[error("{status}: {detail}")]
    Mistake {
        /// Of Weir's HTTP answer: 400, 401, 403, 404, 405, 409, 413, 415, 422 or 431.
        status: u16,
        /// What is wrong.
        detail: String,
    },
    /// The address of Weir is not `http://HOST[:PORT][/PATH]`, or the same with `https`, which
    /// needs the feature `tls`.
    #[error("not an http address: {0}")]
    Address(String),
    /// There is no certificate authority to trust: see [`Builder::tls`].
    #[cfg(feature = "tls")]
    #[error("{0}")]
    Authorities(String),
    /// The token can't be sent.
    #[error("the token can't be sent in a header field")]
    Token(#[from] InvalidHeaderValue),
    /// The idempotency key is not 1 to 255 printable ASCII characters.
    #[error("an idempotency key has 1 to 255 printable ASCII characters")]
    Key,
    /// The call can't be written as JSON, or not to the address.
    #[error("the call can't be encoded")]
    Encode(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// Sets up a [`Client`].
#[derive(Debug, Clone)]
#[must_use]
pub struct Builder {
    url: String,
    token: Option<String>,
    deadline: Duration,
    on_error: OnError,
    #[cfg(feature = "tls")]
    tls: Option<Arc<rustls::ClientConfig>>,
}

impl Builder {
    /// The token that Weir asks for. None if not set.
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(token.into());
        self
    }

    /// How long a whole call may take, from connecting to the answer's last byte: 250 ms if
    /// not set.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// What holds while Weir gives no decision. [`OnError::Deny`] if not set.
    pub fn on_error(mut self, on_error: OnError) -> Self {
        self.on_error = on_error;
        self
    }

    /// The authorities to trust and the client's own certificate, for an address with `https`. If
    /// not set, the system's authorities are trusted.
    #[cfg(feature = "tls")]
    pub fn tls(mut self, config: impl Into<Arc<rustls::ClientConfig>>) -> Self {
        self.tls = Some(config.into());
        self
    }

    /// The client. Nothing is sent yet.
    ///
    /// # Errors
    /// [`Error::Address`], [`Error::Token`] and `Error::Authorities`.
    pub fn build(self) -> Result<Client, Error> {
        let url = self.url.trim_end_matches('/').to_owned();
        if !is_address(&url) {
            return Err(Error::Address(self.url));
        }
        let mut token = None;
        if let Some(text) = self.token {
            token.insert(HeaderValue::try_from(format!("Bearer {text}"))?).set_sensitive(true);
        }
        #[cfg(feature = "tls")]
        if self.tls.is_some() && !is_https(&url) {
            return Err(Error::Address(format!("{url} has settings of TLS and no https")));
        }
        #[cfg(feature = "tls")]
        let tls = if is_https(&url) {
            let config =
                self.tls.map_or_else(tls::of_the_system, Ok).map_err(Error::Authorities)?;
            Some(tls::Tls::new(config, self.deadline))
        } else {
            None
        };
        let connector = Connector::new(
            self.deadline,
            #[cfg(feature = "tls")]
            tls,
        );
        let http = |idle| {
            Http::builder(TokioExecutor::new())
                .pool_timer(TokioTimer::new())
                .pool_max_idle_per_host(idle)
                .build(connector.clone())
        };
        Ok(Client {
            inner: Arc::new(Inner {
                pooled: http(MAX_IDLE),
                fresh: http(0),
                url,
                token,
                deadline: self.deadline,
                on_error: self.on_error,
                keys: RandomState::new(),
                calls: AtomicU64::new(0),
            }),
        })
    }
}

/// Asks Weir. Make one, and clone it: the clones share its connections. Its methods need a Tokio
/// runtime with I/O and time.
#[derive(Debug, Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    pooled: Http<Connector, Full<Bytes>>,
    /// For what is sent again, as another idle connection may have been closed as well.
    fresh: Http<Connector, Full<Bytes>>,
    url: String,
    token: Option<HeaderValue>,
    deadline: Duration,
    on_error: OnError,
    /// Secret and random: what it makes of the number of a call can't be foretold.
    keys: RandomState,
    calls: AtomicU64,
}

/// Status and JSON (none if it isn't any) of an answer. None if no answer came.
type Answer = Option<(StatusCode, Option<Value>)>;

impl Client {
    /// Sets up a client of the Weir at `url`, e.g. `http://127.0.0.1:8082`.
    pub fn builder(url: impl Into<String>) -> Builder {
        let (deadline, on_error) = (Duration::from_millis(250), OnError::Deny);
        Builder {
            url: url.into(),
            token: None,
            deadline,
            on_error,
            #[cfg(feature = "tls")]
            tls: None,
        }
    }

    /// Takes `hits` units by the policy of the question's domain.
    ///
    /// # Errors
    /// Only mistakes of the caller: [`Error::Mistake`], [`Error::Key`] and [`Error::Encode`].
    pub async fn decide(&self, question: &Question) -> Result<Decision, Error> {
        self.ask(Kind::Decide, question).await
    }

    /// As [`decide`](Self::decide), but by the question's own limits, counted by its entries.
    ///
    /// # Errors
    /// As for [`decide`](Self::decide).
    pub async fn take(&self, question: &Question) -> Result<Decision, Error> {
        self.ask(Kind::Take, question).await
    }

    /// What would be decided. Takes nothing.
    ///
    /// # Errors
    /// As for [`decide`](Self::decide).
    pub async fn look(&self, question: &Question) -> Result<Decision, Error> {
        self.ask(Kind::Look, question).await
    }

    /// Asks up to 1,024 questions at once. The results are in their order. Their idempotency keys
    /// are not used: the batch as a whole has a random one.
    ///
    /// # Errors
    /// As for [`decide`](Self::decide): of the whole batch outside, of a question inside.
    pub async fn batch(
        &self,
        kind: Kind,
        questions: &[Question],
    ) -> Result<Vec<Result<Decision, Error>>, Error> {
        let calls: Vec<_> = questions.iter().map(|question| question.to_call(kind)).collect();
        let key = (kind != Kind::Look).then(|| self.new_key());
        let answer = self.send(kind.path(), &calls, key, MAX_BATCH_ANSWER).await?;
        match answer {
            Some((StatusCode::OK, Some(Value::Array(parts)))) if parts.len() == calls.len() => {
                Ok(parts.into_iter().map(|part| self.read_part(part)).collect())
            }
            // No single decision can be read from it, so this is a mistake or a fallback.
            other => {
                let all =
                    self.read(other.map(|(status, value)| {
                        (status, value.filter(|_| status != StatusCode::OK))
                    }))?;
                Ok(calls.iter().map(|_| Ok(all.clone())).collect())
            }
        }
    }

    /// Closes a held decision. False if that could not be delivered, or the id is not known (any
    /// more).
    ///
    /// # Errors
    /// [`Error::Mistake`] and [`Error::Encode`].
    pub async fn settle(&self, settlement: &Settlement) -> Result<bool, Error> {
        self.close("/v1/settle", settlement, "settled").await
    }

    /// Gives back all that a held decision took. False as for [`settle`](Self::settle).
    ///
    /// # Errors
    /// As for [`settle`](Self::settle).
    pub async fn give_back(&self, id: &str) -> Result<bool, Error> {
        self.close("/v1/give-back", &serde_json::json!({ "id": id }), "settled").await
    }

    /// Holds a held decision for as long from now on. False as for [`settle`](Self::settle).
    ///
    /// # Errors
    /// As for [`settle`](Self::settle).
    pub async fn renew(&self, id: &str, hold: Duration) -> Result<bool, Error> {
        let hold_ms = u64::try_from(hold.as_millis()).unwrap_or(u64::MAX);
        let renewal = serde_json::json!({ "id": id, "hold_ms": hold_ms });
        self.close("/v1/renew", &renewal, "renewed").await
    }

    async fn ask(&self, kind: Kind, question: &Question) -> Result<Decision, Error> {
        let key = match (kind, &question.idempotency_key) {
            (Kind::Look, _) => None,
            (_, None) => Some(self.new_key()),
            (_, Some(key)) => Some(key.clone()),
        };
        let call = question.to_call(kind);
        self.read(self.send(kind.path(), &call, key, MAX_ANSWER).await?)
    }

    async fn close(&self, path: &str, call: &impl Serialize, done: &str) -> Result<bool, Error> {
        let Some((status, answer)) = self.send(path, call, None, MAX_ANSWER).await? else {
            return Ok(false);
        };
        if status != StatusCode::NOT_FOUND {
            check(status, answer.as_ref())?;
        }
        let is_done = answer.as_ref().and_then(|answer| answer.get(done));
        Ok(status == StatusCode::OK && is_done == Some(&Value::Bool(true)))
    }

    async fn send(
        &self,
        path: &str,
        call: &impl Serialize,
        key: Option<String>,
        bound: usize,
    ) -> Result<Answer, Error> {
        let inner = &*self.inner;
        let body = serde_json::to_vec(call).map_err(|error| Error::Encode(error.into()))?;
        if body.len() > MAX_CALL {
            // Weir's own answer can be lost while the rest is being sent.
            let detail = format!("{} bytes, not {MAX_CALL} at most", body.len());
            return Err(Error::Mistake { status: 413, detail });
        }
        let mut request = Request::post(format!("{}{path}", inner.url))
            .header(CONTENT_TYPE, "application/json")
            .body(Full::from(body))
            .map_err(|error| Error::Encode(error.into()))?;
        if let Some(token) = &inner.token {
            request.headers_mut().insert(AUTHORIZATION, token.clone());
        }
        if let Some(key) = key {
            let fits = (1..256).contains(&key.len()) && key.bytes().all(|b| matches!(b, 32..=126));
            let key = HeaderValue::try_from(key).ok().filter(|_| fits).ok_or(Error::Key)?;
            request.headers_mut().insert("idempotency-key", key);
        }
        let exchange = async {
            let answer = match inner.pooled.request(request.clone()).await {
                // What is sent again can't charge twice: it has a key, or takes nothing, or closes
                // what can be closed once.
                Err(error) if was_stale(&error) => inner.fresh.request(request).await,
                other => other,
            };
            let answer = answer.ok()?;
            let status = answer.status();
            match Limited::new(answer.into_body(), bound).collect().await {
                Ok(body) => Some((status, serde_json::from_slice(&body.to_bytes()).ok())),
                Err(error) if error.is::<LengthLimitError>() => Some((status, None)),
                Err(_) => None,
            }
        };
        Ok(tokio::time::timeout(inner.deadline, exchange).await.ok().flatten())
    }

    fn read(&self, answer: Answer) -> Result<Decision, Error> {
        let Some((status, value)) = answer else {
            return Ok(self.fall_back("unreachable"));
        };
        check(status, value.as_ref())?;
        if status != StatusCode::OK {
            let text = status.canonical_reason().unwrap_or(status.as_str());
            return Ok(self.fall_back(text));
        }
        let decision = value.and_then(|value| serde_json::from_value(value).ok());
        Ok(decision.unwrap_or_else(|| self.fall_back("bad answer")))
    }

    fn read_part(&self, part: Value) -> Result<Decision, Error> {
        let Some(problem) = part.get("error") else {
            return self.read(Some((StatusCode::OK, Some(part))));
        };
        let status = problem.get("status").and_then(Value::as_u64);
        let status = status.and_then(|status| u16::try_from(status).ok());
        let status = status.and_then(|status| StatusCode::from_u16(status).ok());
        self.read(Some((status.unwrap_or(StatusCode::OK), Some(problem.clone()))))
    }

    fn fall_back(&self, why: &str) -> Decision {
        let allowed = self.inner.on_error == OnError::Allow;
        Decision {
            allowed,
            status: if allowed { 200 } else { 503 },
            fields: Vec::new(),
            request_fields: Vec::new(),
            body: None,
            limits: Vec::new(),
            refused_by: Vec::new(),
            id: None,
            retry_after_ms: None,
            degraded: Some(why.to_owned()),
        }
    }

    fn new_key(&self) -> String {
        let call = self.inner.calls.fetch_add(1, Ordering::Relaxed);
        let half = |which: u8| self.inner.keys.hash_one((call, which));
        format!("{:016x}{:016x}", half(0), half(1))
    }
}

fn is_https(url: &str) -> bool {
    url.parse::<Uri>().is_ok_and(|uri| uri.scheme_str() == Some("https"))
}

/// Whether it is `http://HOST[:PORT][/PATH]`, or with `https` where TLS can be spoken.
fn is_address(url: &str) -> bool {
    let is_known =
        |uri: &Uri| uri.scheme_str() == Some("http") || (cfg!(feature = "tls") && is_https(url));
    let uri = url.parse::<Uri>().ok().filter(is_known);
    uri.as_ref().and_then(Uri::authority).is_some_and(|authority| {
        let is_port = authority.port_u16().is_some_and(|port| port > 0);
        !url.contains(['?', '#', '@']) && (is_port || authority.as_str() == authority.host())
    })
}

fn check(status: StatusCode, answer: Option<&Value>) -> Result<(), Error> {
    if !matches!(status.as_u16(), 400 | 401 | 403 | 404 | 405 | 409 | 413 | 415 | 422 | 431) {
        return Ok(());
    }
    let detail = answer.and_then(|answer| answer.get("detail")).and_then(Value::as_str);
    let detail = detail.or(status.canonical_reason()).unwrap_or_default().to_owned();
    Err(Error::Mistake { status: status.as_u16(), detail })
}
