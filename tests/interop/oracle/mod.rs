//! Spellings of one request, sent through Weir to real upstreams which report what they read.
//!
//! Two requests that an upstream reads as the same key must be one key for Weir, or be refused. And
//! what a route or a policy removes or sets never reaches an upstream under that name. The test
//! knows nothing of how Weir compares: it groups by what the upstream said.
//!
//! `WEIR_SPELLINGS` sets the number of requests (`make test-long` sends more), `WEIR_SEED` the
//! seed, which a failure prints.

mod readers;
mod spell;

use std::collections::BTreeMap;

use bytes::Bytes;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};

use crate::harness::client::{raw, statuses};
use crate::harness::toml::Toml;
use crate::harness::weir::Weir;
use crate::harness::{TIMEOUT, guest};
use readers::{Read, Reader};
use spell::{KINDS, Spelled};

const REQUESTS: usize = 4_000;

/// The fact by which each kind is counted.
fn fact(kind: &str) -> &'static str {
    match kind {
        "header" => "header.x-api-key",
        "bearer" => "bearer",
        "query" => "query.username",
        "form" => "form.username",
        _ => "cookie.session",
    }
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
}

/// A proxy with a route for each kind.
fn proxy(reader: &Reader, server: &str) -> Weir {
    let url = format!("http://{}", reader.address);
    let mut config = Toml::new().upstream("api", &url, "").server(server);
    for kind in KINDS {
        config = config
            .more(&format!(
                "[policies.{kind}]\nwasm = \"shown.wasm\"\nconfig.fact = \"{}\"",
                fact(kind)
            ))
            .route(&format!(
                "path = \"/{kind}\"\nupstream = \"api\"\npolicy = \"{kind}\"\n\
                 request_headers = {{ remove = [\"X-Internal\"], set = {{ X-User = \"weir\" }} }}"
            ));
    }
    let module = std::fs::read(guest::shown()).expect("the module");
    Weir::build(&config.text()).file("shown.wasm", &module).start()
}

/// What became of a request: the key that Weir counted by, and the upstream's reply.
struct Answer {
    status: u16,
    key: String,
    body: String,
}

fn over_http1(weir: &Weir, spelled: &Spelled) -> Answer {
    let reply = raw(weir.http, &spelled.to_bytes(), TIMEOUT);
    let (head, body) = reply.split_once("\r\n\r\n").unwrap_or((&reply, ""));
    let key = head.lines().find_map(|line| line.strip_prefix("x-shown: ")).unwrap_or_default();
    // Without the sizes of chunks.
    let body = body.find('{').zip(body.rfind('}')).map_or(body, |(from, to)| &body[from..=to]);
    let status = statuses(&reply).first().copied().unwrap_or_default();
    Answer { status, key: key.to_owned(), body: body.to_owned() }
}

type Body = BoxBody<Bytes, std::convert::Infallible>;

async fn over_http2(sender: &mut SendRequest<Body>, spelled: &Spelled) -> Option<Answer> {
    let target = String::from_utf8_lossy(&spelled.target);
    let method = if spelled.body.is_some() { "POST" } else { "GET" };
    let mut request =
        http::Request::builder().method(method).uri(format!("http://api.example{target}"));
    for (name, value) in &spelled.fields {
        if !name.eq_ignore_ascii_case("connection") {
            let value = http::HeaderValue::from_bytes(value).ok()?;
            request = request.header(name.to_ascii_lowercase(), value);
        }
    }
    let mut frames = Vec::new();
    frames.extend(spelled.body.clone().map(|body| Ok(Frame::data(Bytes::from(body)))));
    let mut trailers = http::HeaderMap::new();
    for (name, value) in &spelled.trailers {
        let name = http::HeaderName::from_bytes(name.to_ascii_lowercase().as_bytes()).ok()?;
        trailers.append(name, http::HeaderValue::from_bytes(value).ok()?);
    }
    if !trailers.is_empty() {
        frames.push(Ok(Frame::trailers(trailers)));
    }
    let body = BodyExt::boxed(StreamBody::new(futures_util::stream::iter(frames)));
    let reply = sender.send_request(request.body(body).ok()?).await.expect("a reply");
    let key = reply.headers().get("x-shown");
    let key = key.map(|key| key.to_str().expect("text").to_owned()).unwrap_or_default();
    let status = reply.status().as_u16();
    // A request with malformed trailers is reset behind the head of its reply.
    let body = reply.into_body().collect().await.map(http_body_util::Collected::to_bytes);
    let body = String::from_utf8_lossy(&body.unwrap_or_default()).into_owned();
    Some(Answer { status, key, body })
}

async fn connect(weir: &Weir) -> SendRequest<Body> {
    let stream = tokio::net::TcpStream::connect(weir.http).await.expect("a connection");
    let (sender, connection) =
        http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.expect("a handshake");
    tokio::spawn(connection);
    sender
}

/// What was seen of one upstream.
#[derive(Default)]
struct Seen {
    /// The key and the request, by kind and by what the upstream read.
    keys: BTreeMap<(&'static str, String), (String, String)>,
    admitted: BTreeMap<&'static str, usize>,
    wrong: Vec<String>,
}

impl Seen {
    fn note(&mut self, spelled: &Spelled, answer: &Answer, read: &Read) {
        for (touched, expected) in
            [("internal", None), ("user", Some("weir")), ("plan", Some("policy"))]
        {
            if read.get(touched).map(String::as_str) != expected {
                self.wrong.push(format!("{touched} is {:?}: {spelled:?}", read.get(touched)));
            }
        }
        let Some(value) = read.get(spelled.kind) else { return };
        *self.admitted.entry(spelled.kind).or_default() += 1;
        let request = String::from_utf8_lossy(&spelled.to_bytes()).into_owned();
        let place = (spelled.kind, value.clone());
        let (key, other) = self.keys.entry(place).or_insert((answer.key.clone(), request.clone()));
        if *key != answer.key {
            self.wrong.push(format!(
                "{} {value:?} is both {key:?} and {:?}:\n{other:?}\n{request:?}",
                spelled.kind, answer.key
            ));
        }
    }
}

/// Sends `requests` to each upstream, through a proxy with the line `server`.
fn ask_all(server: &str, requests: usize) {
    let seed = number("WEIR_SEED", 29);
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let readers = Reader::all();
    for reader in &readers {
        let weir = proxy(reader, server);
        let mut sender = runtime.block_on(connect(&weir));
        let (mut rng, mut seen) = (fastrand::Rng::with_seed(seed), Seen::default());
        // A process is started for each request.
        let requests = if reader.name == "lighttpd" { requests / 4 } else { requests };
        for index in 0..requests / readers.len() {
            let spelled = Spelled::random(KINDS[index % KINDS.len()], &mut rng);
            let answer = match spelled.h2 {
                true => runtime.block_on(over_http2(&mut sender, &spelled)),
                false => Some(over_http1(&weir, &spelled)),
            };
            let Some(answer) = answer.filter(|answer| answer.status == 200) else { continue };
            if let Some(read) = reader.read(&answer.body) {
                seen.note(&spelled, &answer, &read);
            }
        }
        let (wrong, first) = (seen.wrong.len(), seen.wrong.iter().take(5).collect::<Vec<_>>());
        assert!(
            wrong == 0,
            "{} ({server:?}), WEIR_SEED={seed}: {wrong} wrong, the first {first:#?}",
            reader.name
        );
        let kinds = match reader.name {
            "lighttpd" => &["header", "bearer"][..],
            // It reads names of parameters as they are written, so that few are the one it asks
            // for.
            "nginx" => &["header", "bearer", "cookie"],
            _ => &KINDS,
        };
        for kind in kinds {
            let count = seen.admitted.get(kind).copied().unwrap_or_default();
            assert!(
                count * 12 >= requests / readers.len() / KINDS.len(),
                "{}: {count} of {kind}: too few were read for the test to say anything",
                reader.name
            );
        }
    }
}

#[test]
fn spellings_that_an_upstream_reads_as_one_value_are_one_key_or_refused() {
    ask_all("", number("WEIR_SPELLINGS", REQUESTS as u64) as usize);
}

#[test]
fn also_where_ambiguous_names_are_kept() {
    ask_all(
        "underscores_in_headers = true",
        number("WEIR_SPELLINGS", REQUESTS as u64) as usize / 2,
    );
}
