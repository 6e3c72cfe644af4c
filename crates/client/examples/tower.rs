//! A Tower layer that asks Weir before it passes a request on, in a small server:
//! `tower LISTEN WEIR_URL`. WEIR_TOKEN is Weir's token, if any, WEIR_DOMAIN whose policy decides
//! ("api" if not set), and WEIR_OWN_FIELDS the header fields that only the policy may set.

use std::env;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use hyper::server::conn::http1;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tower::{Layer, Service, service_fn};
use weir_client::{Client, Error, Question};

#[derive(Clone)]
struct LimitLayer {
    weir: Client,
    domain: String,
    /// The fields that only the policy may set: one that a client sends is not passed on.
    own: Vec<HeaderName>,
}

impl<S> Layer<S> for LimitLayer {
    type Service = Limit<S>;

    fn layer(&self, next: S) -> Limit<S> {
        Limit { next, layer: self.clone() }
    }
}

#[derive(Clone)]
struct Limit<S> {
    next: S,
    layer: LimitLayer,
}

impl<S, A, B> Service<Request<A>> for Limit<S>
where
    S: Service<Request<A>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send,
    A: Send + 'static,
    B: From<String>,
{
    type Response = Response<B>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<B>, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.next.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<A>) -> Self::Future {
        // The one that was polled ready is used up by this call, and its clone by the next.
        let spare = self.next.clone();
        let mut next = std::mem::replace(&mut self.next, spare);
        let LimitLayer { weir, domain, own } = self.layer.clone();
        let question = question(domain, &request);
        Box::pin(async move {
            let decision = match weir.decide(&question).await {
                Ok(decision) => decision,
                // Of what whoever asks can choose, only a path can be none.
                Err(Error::Mistake { status: 400, .. }) => {
                    return Ok(answer(StatusCode::BAD_REQUEST, "bad request\n".into()));
                }
                Err(error) => {
                    // A mistake of ours.
                    eprintln!("{error}");
                    let status = StatusCode::INTERNAL_SERVER_ERROR;
                    return Ok(answer(status, "could not ask\n".into()));
                }
            };
            let mut response = if decision.allowed {
                for name in own {
                    request.headers_mut().remove(name);
                }
                set(request.headers_mut(), &decision.request_fields);
                next.call(request).await?
            } else {
                let status = StatusCode::from_u16(decision.status);
                let status = status.unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
                answer(status, decision.body.unwrap_or_default())
            };
            set(response.headers_mut(), &decision.fields);
            Ok(response)
        })
    }
}

fn answer<B: From<String>>(status: StatusCode, body: String) -> Response<B> {
    let mut response = Response::new(B::from(body));
    *response.status_mut() = status;
    response
}

fn question<A>(domain: String, request: &Request<A>) -> Question {
    let mut question = Question::new(domain)
        .fact("method", request.method().as_str())
        .fact("path", request.uri().path());
    if let Some(peer) = request.extensions().get::<SocketAddr>() {
        question = question.fact("client-ip", peer.ip().to_canonical().to_string());
    }
    for key in request.headers().get_all("x-api-key") {
        // Each byte is a character, as for Weir: otherwise all bytes that are no UTF-8 would be one
        // character, and different keys would share a counter.
        let key: String = key.as_bytes().iter().copied().map(char::from).collect();
        question = question.fact("header.x-api-key", key);
    }
    question
}

/// Gives `headers` these fields in place of any of the same name.
fn set(headers: &mut HeaderMap, fields: &[(String, String)]) {
    for (name, _) in fields {
        headers.remove(name);
    }
    for (name, value) in fields {
        // Each character was a byte.
        let bytes = value.chars().map(u8::try_from).collect::<Result<Vec<_>, _>>();
        let value = bytes.ok().and_then(|bytes| HeaderValue::from_bytes(&bytes).ok());
        if let (Ok(name), Some(value)) = (name.parse::<HeaderName>(), value) {
            headers.append(name, value);
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = env::args().skip(1);
    let (Some(listen), Some(url)) = (args.next(), args.next()) else {
        return Err("usage: tower LISTEN WEIR_URL".into());
    };
    let mut weir = Client::builder(url);
    if let Ok(token) = env::var("WEIR_TOKEN") {
        weir = weir.token(token);
    }
    if let Ok(milliseconds) = env::var("WEIR_DEADLINE_MS") {
        weir = weir.deadline(Duration::from_millis(milliseconds.parse()?));
    }
    let domain = env::var("WEIR_DOMAIN").unwrap_or_else(|_| "api".into());
    let hello = service_fn(|request: Request<Incoming>| async move {
        let plan = request.headers().get("x-plan").and_then(|plan| plan.to_str().ok());
        let text = format!("hello {} {}\n", request.uri().path(), plan.unwrap_or_default());
        let body = Full::<Bytes>::from(text);
        Ok::<_, std::convert::Infallible>(Response::new(body))
    });
    let own = env::var("WEIR_OWN_FIELDS").unwrap_or_default();
    let own = own.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
    let service = LimitLayer { weir: weir.build()?, domain, own }.layer(hello);
    let listener = TcpListener::bind(listen).await?;
    loop {
        let (stream, peer) = listener.accept().await?;
        let mut service = service.clone();
        let with_peer = service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(peer);
            service.call(request)
        });
        tokio::spawn(async move {
            let served = http1::Builder::new()
                .timer(TokioTimer::new())
                .serve_connection(TokioIo::new(stream), TowerToHyperService::new(with_peer))
                .await;
            if let Err(error) = served {
                eprintln!("{peer}: {error}");
            }
        });
    }
}
