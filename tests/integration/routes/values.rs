//! One value has one meaning: spellings that upstreams read alike are counted alike, or refused,
//! and what a route or a policy sets can't be set by the client. The random cases are in `oracle`;
//! here is one of each kind.

use bytes::Bytes;
use http::{HeaderMap, HeaderValue};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Empty, StreamBody};
use hyper::body::Frame;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};

use crate::harness::TIMEOUT;
use crate::harness::client::{get, raw, statuses};
use crate::harness::toml::Toml;
use crate::harness::upstream::Upstream;
use crate::harness::weir::Weir;

const ONE: &str = "name = \"day\", algorithm = \"fixed_window\", quota = 1, period = \"1d\"";

/// A proxy whose one policy counts by `key`, once a day each, and refuses who has none.
fn counting_by(key: &str, more: &str) -> (Upstream, Weir) {
    let upstream = Upstream::start();
    let config = Toml::new()
        .upstream("api", &upstream.url(), "")
        .more(&format!(
            "[policies.keys]\nuse = \"keyed\"\nconfig.key = \"{key}\"\nconfig.missing = \"deny\"\n\
             config.limits = [{{ {ONE} }}]"
        ))
        .route(&format!("path = \"/*\"\nupstream = \"api\"\npolicy = \"keys\"\n{more}"));
    let weir = Weir::start(&config.text());
    (upstream, weir)
}

type Body = BoxBody<Bytes, std::convert::Infallible>;

async fn connect(weir: &Weir) -> SendRequest<Body> {
    let stream = tokio::net::TcpStream::connect(weir.http).await.unwrap();
    let (sender, connection) =
        http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    sender
}

fn request(name: &str, value: &[u8], body: Body) -> http::Request<Body> {
    let value = HeaderValue::from_bytes(value).unwrap();
    http::Request::builder().uri("http://a/").header(name, value).body(body).unwrap()
}

#[tokio::test]
async fn blanks_around_a_value_over_http2_are_malformed() {
    let (upstream, weir) = counting_by("{header.x-api-key}", "");
    let mut sender = connect(&weir).await;
    let mut status = async |value: &[u8]| {
        let request = request("x-api-key", value, Empty::new().boxed());
        sender.send_request(request).await.unwrap().status().as_u16()
    };
    assert_eq!(status(b"secret").await, 200);
    for padded in [&b" secret"[..], b"secret ", b"\tsecret", b"secret\t", b"  secret  ", b" "] {
        assert_eq!(status(padded).await, 400, "{padded:?}");
    }
    assert_eq!((status(b"secret").await, upstream.count()), (429, 1));
}

#[tokio::test]
async fn also_in_trailers() {
    let (upstream, weir) = counting_by("{header.x-api-key}", "");
    let mut sender = connect(&weir).await;
    let trailers =
        HeaderMap::from_iter([("x-sum".parse().unwrap(), HeaderValue::from_static(" 1"))]);
    let frames = [Ok(Frame::data(Bytes::from_static(b"hi"))), Ok(Frame::trailers(trailers))];
    let body = StreamBody::new(futures_util::stream::iter(frames)).boxed();
    let mut request = request("x-api-key", b"k", body);
    *request.method_mut() = http::Method::POST;
    request.headers_mut().insert("trailer", HeaderValue::from_static("x-sum"));
    let status = sender.send_request(request).await.map(|reply| reply.status().as_u16());
    assert_ne!(status.unwrap_or(400), 200);
    assert!(upstream.seen().iter().all(|seen| seen.header("x-sum").is_none()));
}

#[tokio::test]
async fn a_bearer_token_is_one_key_in_all_spellings() {
    let (_upstream, weir) = counting_by("{bearer}", "");
    for (authorization, expected) in [
        ("Bearer tok", 200),
        ("bEaReR tok", 429),
        ("Bearer     tok", 429),
        ("BEARER tok ", 429),
        ("Bearer other", 200),
        ("Bearer tok x", 400),
        ("Bearer\ttok", 400),
        ("Basic tok", 400),
    ] {
        let status = get(weir.http, "/", &[("authorization", authorization)]).await.status;
        assert_eq!(status, expected, "{authorization}");
    }
}

#[tokio::test]
async fn a_parameter_is_counted_under_each_name_that_an_upstream_may_read() {
    let (_upstream, weir) = counting_by("{query.username}", "");
    for (query, expected) in [
        ("username=victim", 200),
        ("%75sername=victim", 429),
        ("+username=victim", 429),
        ("username%00x=victim", 429),
        ("user%6eame[]=victim", 429),
        ("a=1;username=victim", 429),
        ("username=victim&+username=me", 400),
        ("username=me", 200),
    ] {
        assert_eq!(get(weir.http, &format!("/?{query}"), &[]).await.status, expected, "{query}");
    }
    let (_upstream, weir) = counting_by("{query.user_name}", "");
    for (query, expected) in [("user.name=v", 200), ("user_name=v", 429), ("user+name=v", 429)] {
        assert_eq!(get(weir.http, &format!("/?{query}"), &[]).await.status, expected, "{query}");
    }
}

#[tokio::test]
async fn a_cookie_is_one_key_with_and_without_quotes_and_escapes() {
    let (_upstream, weir) = counting_by("{cookie.session}", "");
    for (cookie, expected) in [
        ("session=abc", 200),
        ("session=%61bc", 429),
        ("session=\"abc\"", 429),
        ("a=1; session=ab%63", 429),
        ("session=\"\\141bc\"", 400),
        ("session=%zz", 400),
        ("session=abd", 200),
    ] {
        assert_eq!(get(weir.http, "/", &[("cookie", cookie)]).await.status, expected, "{cookie}");
    }
}

#[test]
fn fields_that_a_route_removes_or_sets_come_in_no_other_spelling_and_in_no_trailer() {
    let rules = "request_headers = { remove = [\"X-Internal\"], set = { X-User = \"weir\" } }";
    let (upstream, weir) = counting_by("{header.x-api-key}", rules);
    let names = ["X.Internal", "X~User", "x_internal", "X.Real.IP", "X.Forwarded-Port"];
    let trailers =
        ["X-Internal", "X-User", "X.User", "X-Api-Key", "Authorization", "X-Late", "X-Sum"];
    let mut request =
        String::from("POST / HTTP/1.1\r\nHost: a\r\nX-Api-Key: k\r\nConnection: close\r\n");
    names.iter().for_each(|name| request.push_str(&format!("{name}: forged\r\n")));
    let announced = trailers.iter().filter(|name| **name != "X-Late").copied();
    let announced = announced.collect::<Vec<_>>().join(", ");
    request.push_str(&format!(
        "Trailer: {announced}\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n"
    ));
    trailers.iter().for_each(|name| request.push_str(&format!("{name}: forged\r\n")));
    request.push_str("\r\n");
    assert_eq!(statuses(&raw(weir.http, request.as_bytes(), TIMEOUT)), [200]);
    let seen = upstream.last();
    for name in names {
        assert_eq!(seen.header(name), None, "{seen:?}");
    }
    assert_eq!(seen.header("x-user").as_deref(), Some("weir"));
    assert_eq!(seen.header("trailer").as_deref(), Some("x-sum"), "{seen:?}");
}
