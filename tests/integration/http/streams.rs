//! HTTP/2 on both sides: streams in both directions at once, trailers, responses without a body,
//! and refusals in gRPC's form.

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue};
use http_body::Frame;
use http_body_util::BodyExt;
use http_body_util::combinators::BoxBody;
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::harness::redis::Redis;
use crate::harness::toml::Toml;
use crate::harness::weir::Weir;
use crate::harness::{TIMEOUT, eventually_async};

const TWO: &str = "name = \"day\", algorithm = \"fixed_window\", quota = 2, period = \"1d\"";
const MANY: &str = "name = \"day\", algorithm = \"fixed_window\", quota = 1000, period = \"1d\"";

/// The next piece of a body; an error resets its stream.
type Piece = Result<Frame<Bytes>, std::io::Error>;

/// A body whose frames come through a channel.
struct Pieces(mpsc::Receiver<Piece>);

impl http_body::Body for Pieces {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Piece>> {
        self.0.poll_recv(cx)
    }
}

type Reply = http::Response<BoxBody<Bytes, std::io::Error>>;

/// An echo: its response's head is sent at once, then each piece as it arrives, then `x-pieces` and
/// the request's own trailers as trailers. A path that is a number is the status of a response
/// without a body.
async fn echo(request: http::Request<Incoming>) -> Result<Reply, Infallible> {
    let mut reply = http::Response::builder().header("content-type", "application/grpc");
    for name in ["te", "x-forwarded-for"] {
        if let Some(value) = request.headers().get(name) {
            reply = reply.header(format!("x-saw-{name}"), value);
        }
    }
    reply = reply.header(
        "x-saw-authority",
        request.uri().authority().map_or("", |authority| authority.as_str()),
    );
    if let Ok(status) = request.uri().path().trim_start_matches('/').parse::<u16>() {
        return Ok(reply
            .status(status)
            .body(http_body_util::Empty::new().map_err(|never| match never {}).boxed())
            .unwrap());
    }
    let (pieces, body) = mpsc::channel(1);
    tokio::spawn(async move {
        let (mut body, mut count, mut trailers) = (request.into_body(), 0, HeaderMap::new());
        while let Some(Ok(frame)) = body.frame().await {
            match frame.into_trailers() {
                Ok(theirs) => trailers = theirs,
                Err(frame) => {
                    count += 1;
                    let _ = pieces.send(Ok(frame)).await;
                }
            }
        }
        trailers.insert("grpc-status", HeaderValue::from_static("0"));
        trailers.insert("x-pieces", HeaderValue::from(count));
        let _ = pieces.send(Ok(Frame::trailers(trailers))).await;
    });
    Ok(reply.body(Pieces(body).boxed()).unwrap())
}

async fn upstream() -> SocketAddr {
    let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let serving = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            tokio::spawn(serving.serve_connection(TokioIo::new(stream), service_fn(echo)));
        }
    });
    address
}

async fn weir(limit: &str) -> Weir {
    on(limit, None).await
}

/// Counts on `redis`, if there is one.
async fn on(limit: &str, redis: Option<SocketAddr>) -> Weir {
    let url = format!("http://{}", upstream().await);
    let route = "name = \"calls\"\npath = \"/*\"\nupstream = \"api\"\npolicy = \"public\"";
    let config = Toml::new()
        .upstream("api", &url, "protocol = \"h2\"")
        .policy("public", &[limit])
        .route(route);
    let config = match redis {
        Some(address) => config.redis("single", &[address]),
        None => config,
    };
    // The runtime must run while Weir starts.
    let text = config.text().replace("access = \"off\"", "access = \"all\"");
    tokio::task::spawn_blocking(move || Weir::start(&text)).await.unwrap()
}

async fn connect(weir: &Weir) -> SendRequest<Pieces> {
    let stream = tokio::net::TcpStream::connect(weir.http).await.unwrap();
    let (sender, connection) =
        http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    sender
}

/// Starts a call: its response's head has arrived, its request has not ended.
async fn call(
    sender: &mut SendRequest<Pieces>,
    method: &str,
    path: &str,
) -> (mpsc::Sender<Piece>, http::Response<Incoming>) {
    let (pieces, body) = mpsc::channel(1);
    let request = http::Request::builder().method(method).uri(format!("http://api.example{path}"));
    let request = request
        .header("content-type", "application/grpc+proto")
        .header("te", "trailers")
        .header("trailer", "x-sum, authorization")
        .body(Pieces(body))
        .unwrap();
    let reply = timeout(TIMEOUT, sender.send_request(request))
        .await
        .expect("a head before the request's end")
        .unwrap();
    (pieces, reply)
}

fn field<'a>(reply: &'a http::Response<Incoming>, name: &str) -> &'a str {
    reply.headers().get(name).map_or("", |value| value.to_str().unwrap())
}

#[tokio::test]
async fn both_directions_stream_at_once_and_end_in_trailers() {
    let weir = weir(MANY).await;
    let mut sender = connect(&weir).await;
    let (pieces, reply) = call(&mut sender, "POST", "/echo").await;
    assert_eq!(
        (reply.status().as_u16(), field(&reply, "x-saw-te"), field(&reply, "x-saw-authority")),
        (200, "trailers", "api.example")
    );
    assert_eq!(
        (field(&reply, "x-saw-x-forwarded-for"), field(&reply, "ratelimit").is_empty()),
        ("127.0.0.1", false)
    );
    let mut body = reply.into_body();
    for text in ["one", "two", "three"] {
        pieces.send(Ok(Frame::data(Bytes::from_static(text.as_bytes())))).await.unwrap();
        let frame = timeout(TIMEOUT, body.frame())
            .await
            .expect("an echo while the request goes on")
            .unwrap()
            .unwrap();
        assert_eq!(frame.into_data().unwrap(), text);
    }
    let trailers = [("x-sum", "6"), ("authorization", "forged"), ("x-forwarded-for", "1.1.1.1")];
    let trailers = trailers
        .iter()
        .map(|(name, value)| (name.parse().unwrap(), HeaderValue::from_static(value)))
        .collect();
    pieces.send(Ok(Frame::trailers(trailers))).await.unwrap();
    let trailers = body.frame().await.unwrap().unwrap().into_trailers().unwrap();
    let mut told: Vec<(&str, &str)> =
        trailers.iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap())).collect();
    told.sort_unstable();
    assert_eq!(told, [("grpc-status", "0"), ("x-pieces", "3"), ("x-sum", "6")]);
    assert!(body.frame().await.is_none());
}

#[tokio::test]
async fn a_client_that_cancels_ends_its_call_alone() {
    let weir = weir(MANY).await;
    let mut sender = connect(&weir).await;
    let (cancelled, reply) = call(&mut sender, "POST", "/echo").await;
    let (pieces, other) = call(&mut sender, "POST", "/echo").await;
    cancelled.send(Err(std::io::ErrorKind::Interrupted.into())).await.unwrap();
    timeout(TIMEOUT, reply.into_body().collect()).await.unwrap().unwrap_err();
    pieces.send(Ok(Frame::data(Bytes::from_static(b"still here")))).await.unwrap();
    drop(pieces);
    let collected = timeout(TIMEOUT, other.into_body().collect()).await.unwrap().unwrap();
    assert_eq!(collected.trailers().unwrap()["grpc-status"], "0");
    assert_eq!(collected.to_bytes(), "still here");
    let failures = eventually_async("both access lines", async || {
        let lines: Vec<_> = weir
            .output()
            .events()
            .into_iter()
            .filter(|event| event["message"] == "request")
            .collect();
        if lines.len() == 2 {
            Ok(lines.iter().map(|line| line["failure"].to_string()).collect::<Vec<_>>())
        } else {
            Err(format!("{lines:?}"))
        }
    })
    .await;
    assert!(
        failures.contains(&"\"client-gone\"".to_owned()) && failures.contains(&"null".to_owned()),
        "{failures:?}"
    );
}

#[tokio::test]
async fn replies_without_a_body_end_with_their_head() {
    let weir = weir(MANY).await;
    let mut sender = connect(&weir).await;
    for (method, path, status) in
        [("HEAD", "/echo", 200), ("GET", "/204", 204), ("GET", "/304", 304), ("GET", "/200", 200)]
    {
        let (pieces, reply) = call(&mut sender, method, path).await;
        drop(pieces);
        assert_eq!(reply.status().as_u16(), status, "{method} {path}");
        let body = timeout(TIMEOUT, reply.into_body().collect())
            .await
            .unwrap()
            .unwrap_or_else(|error| panic!("{method} {path}: {error}"));
        assert_eq!(body.to_bytes(), "", "{method} {path}");
    }
}

#[tokio::test]
async fn a_refused_call_ends_in_a_head_that_grpc_reads() {
    let weir = weir(TWO).await;
    let mut sender = connect(&weir).await;
    for _ in 0..2 {
        let (pieces, reply) = call(&mut sender, "POST", "/echo").await;
        drop(pieces);
        assert_eq!(
            reply.into_body().collect().await.unwrap().trailers().unwrap()["grpc-status"],
            "0"
        );
    }
    let (_pieces, refused) = call(&mut sender, "POST", "/echo").await;
    assert_eq!(
        (
            refused.status().as_u16(),
            field(&refused, "content-type"),
            field(&refused, "grpc-status")
        ),
        (200, "application/grpc", "8")
    );
    let pushback: u64 = field(&refused, "grpc-retry-pushback-ms").parse().unwrap();
    let retry_after: u64 = field(&refused, "retry-after").parse().unwrap();
    assert!(
        pushback.div_ceil(1_000) == retry_after && pushback > 0,
        "{pushback} ms, {retry_after} s"
    );
    assert!(hyper::body::Body::is_end_stream(refused.body()), "the head is all");
    let metric = "weir_requests_total{route=\"calls\",code=\"429\"}";
    assert_eq!(tokio::task::spawn_blocking(move || weir.metric(metric)).await.unwrap(), 1);
}

#[tokio::test]
async fn a_place_in_flight_is_held_until_the_streams_end() {
    let redis = Redis::start();
    for store in [None, Some(redis.address)] {
        let weir = on("name = \"in-flight\", algorithm = \"concurrency\", quota = 1", store).await;
        let mut sender = connect(&weir).await;
        // One ends normally, one is reset by its client.
        for resets in [false, true] {
            let (pieces, reply) = eventually_async("a free place", async || {
                let (pieces, reply) = call(&mut sender, "POST", "/echo").await;
                if field(&reply, "grpc-status").is_empty() {
                    Ok((pieces, reply))
                } else {
                    Err(format!("{reply:?}"))
                }
            })
            .await;
            let mut body = reply.into_body();
            for text in ["one", "two"] {
                let (_pieces, refused) = call(&mut sender, "POST", "/echo").await;
                assert_eq!(
                    field(&refused, "grpc-status"),
                    "8",
                    "{text}: its head is there, and its end is not"
                );
                pieces.send(Ok(Frame::data(Bytes::from_static(text.as_bytes())))).await.unwrap();
                timeout(TIMEOUT, body.frame()).await.unwrap().unwrap().unwrap();
            }
            if resets {
                pieces.send(Err(std::io::ErrorKind::Interrupted.into())).await.unwrap();
            }
            drop(pieces);
            assert_eq!(timeout(TIMEOUT, body.collect()).await.unwrap().is_err(), resets);
        }
        drop(sender);
        if store.is_some() {
            eventually_async("no lease is left", async || {
                match redis.connect().ask(&["KEYS", "*"]).list() {
                    [] => Ok(()),
                    keys => Err(format!("{keys:?}")),
                }
            })
            .await;
        }
    }
}
