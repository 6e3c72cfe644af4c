//! What is compressed, how its head changes, and that nothing is lost or held back.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io::Read;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use http::{HeaderMap, Method};
use proptest::prelude::*;

use super::*;
use crate::proxy::settings::CompressionLevel;
use crate::wire::{BodyEnd, BodyError, Source};

const CODINGS: [ContentCoding; 3] =
    [ContentCoding::Zstd, ContentCoding::Brotli, ContentCoding::Gzip];
const LEVELS: [CompressionLevel; 3] =
    [CompressionLevel::Fast, CompressionLevel::Default, CompressionLevel::Best];

fn rules(written: settings::Compress) -> Compress {
    let mut errors = Vec::new();
    let rules = Compress::build(&written, "compress", &mut errors);
    assert!(errors.is_empty(), "{errors:?}");
    rules
}

fn fields(pairs: &[(&str, &str)]) -> Fields {
    let mut fields = Fields::new();
    pairs.iter().for_each(|(name, value)| fields.append(*name, *value));
    fields
}

/// The head of a reply that a client of gzip gets, as lines, and whether its body is compressed.
#[track_caller]
fn begun(method: Method, status: u16, pairs: &[(&str, &str)], bytes: usize) -> (Vec<String>, bool) {
    begun_for(&[("accept-encoding", "gzip")], method, status, pairs, bytes)
}

#[track_caller]
fn begun_for(
    request: &[(&str, &str)],
    method: Method,
    status: u16,
    pairs: &[(&str, &str)],
    bytes: usize,
) -> (Vec<String>, bool) {
    let rules = rules(settings::Compress::default());
    let offer = rules.offer(&fields(request), false);
    let body = Body::full(vec![b'a'; bytes].into());
    let mut reply = Response {
        fields: fields(pairs),
        ..Response::new(StatusCode::from_u16(status).unwrap(), body)
    };
    let compression = rules.begin(method == Method::HEAD, offer, &mut reply);
    let line = |(name, value): (&[u8], &[u8])| {
        format!("{}: {}", String::from_utf8_lossy(name), String::from_utf8_lossy(value))
    };
    (reply.fields.iter().map(line).collect(), compression.is_some())
}

const JSON: (&str, &str) = ("content-type", "application/json");
const VARY: &str = "vary: Accept-Encoding";

#[test]
fn a_head_is_that_of_the_compressed_reply() {
    let (lines, is_compressed) = begun(
        Method::GET,
        200,
        &[
            JSON,
            ("content-length", "2000"),
            ("etag", "\"v1\""),
            ("accept-ranges", "bytes"),
            ("content-digest", "sha-256=:AA==:"),
            ("Repr-Digest", "sha-256=:AA==:"),
            ("digest", "sha-256=AA=="),
            ("content-md5", "AA=="),
            ("vary", "origin"),
            ("vary", "Cookie"),
            ("x-kept", "1"),
        ],
        2_000,
    );
    assert!(is_compressed);
    assert_eq!(
        lines,
        [
            "content-type: application/json",
            "x-kept: 1",
            "vary: origin, Cookie, Accept-Encoding",
            "etag: W/\"v1\"",
            "content-encoding: gzip",
        ]
    );
}

#[test]
fn what_could_be_compressed_varies_for_every_client() {
    for accepted in ["", "identity", "gzip;q=0", "x-other"] {
        let head = begun_for(
            &[("accept-encoding", accepted)],
            Method::GET,
            200,
            &[JSON, ("etag", "\"v1\"")],
            2_000,
        );
        let lines =
            ["content-type: application/json", "etag: \"v1\"", VARY].map(str::to_owned).to_vec();
        assert_eq!(head, (lines, false), "{accepted:?}");
    }
    for (vary, kept) in [("*", "vary: *"), ("a, accept-ENCODING", "vary: a, accept-ENCODING")] {
        let (lines, is_compressed) = begun(Method::GET, 200, &[JSON, ("vary", vary)], 2_000);
        let found: Vec<&String> = lines.iter().filter(|line| line.starts_with("vary")).collect();
        assert_eq!((found, is_compressed), (vec![&kept.to_owned()], true));
    }
}

#[test]
fn other_replies_stay_as_they_are() {
    for (status, pairs, bytes) in [
        (200, vec![("content-type", "image/png")], 2_000),
        (200, vec![], 2_000),
        (200, vec![JSON], 1_023),
        (200, vec![JSON], 0),
        (200, vec![JSON, ("content-encoding", "br")], 2_000),
        (200, vec![JSON, ("cache-control", "public"), ("cache-control", "a, No-Transform")], 2_000),
        (200, vec![JSON, ("content-range", "bytes 0-1999/9000")], 2_000),
        (200, vec![("content-type", "application/grpc+json")], 2_000),
        (204, vec![JSON], 2_000),
        (205, vec![JSON], 2_000),
        (206, vec![JSON], 2_000),
        (226, vec![JSON], 2_000),
        (301, vec![JSON], 2_000),
        (404, vec![JSON], 2_000),
        (500, vec![JSON], 2_000),
    ] {
        let written: Vec<String> =
            pairs.iter().map(|(name, value)| format!("{name}: {value}")).collect();
        assert_eq!(begun(Method::GET, status, &pairs, bytes), (written, false), "{status}");
    }
}

#[test]
fn the_head_for_head_is_that_for_get() {
    let pairs = [JSON, ("content-length", "2000"), ("etag", "\"v1\"")];
    let (head, is_compressed) = begun(Method::HEAD, 200, &pairs, 0);
    assert!(!is_compressed, "there is no body");
    assert_eq!(head, begun(Method::GET, 200, &pairs, 2_000).0);
    let short = [JSON, ("content-length", "20")];
    assert_eq!(begun(Method::HEAD, 200, &short, 0).0, begun(Method::GET, 200, &short, 20).0);
}

#[test]
fn a_304_has_the_validator_of_the_reply_that_the_client_has() {
    let asked = |tags, etag| {
        let request = [("accept-encoding", "gzip"), ("if-none-match", tags)];
        begun_for(&request, Method::GET, 304, &[("etag", etag)], 0).0
    };
    assert_eq!(asked("W/\"v1\"", "\"v1\""), ["etag: W/\"v1\"", VARY]);
    assert_eq!(asked("\"v1\"", "\"v1\""), ["etag: \"v1\""]);
    assert_eq!(asked("W/\"v1\"", "W/\"v1\""), ["etag: W/\"v1\""]);
}

#[test]
fn where_memory_is_short_nothing_is_compressed() {
    let rules = rules(settings::Compress::default());
    let request = fields(&[("accept-encoding", "gzip")]);
    assert_eq!(rules.offer(&request, false).coding, Some(ContentCoding::Gzip));
    assert_eq!(rules.offer(&request, true).coding, None);
}

#[test]
fn a_wrong_type_is_an_error() {
    let written =
        settings::Compress { types: vec!["text/*".into(), "json".into()], ..Default::default() };
    let mut errors = Vec::new();
    Compress::build(&written, "routes[0].compress", &mut errors);
    assert_eq!(errors.len(), 1);
    assert_eq!(errors[0].setting, "routes[0].compress.types[1]");
}

/// What an upstream sends, a step at a time.
#[derive(Clone, Debug)]
enum Step {
    Piece(Vec<u8>),
    /// Nothing more for now.
    Wait,
    Cut,
}

struct Upstream {
    steps: Arc<Mutex<VecDeque<Step>>>,
    /// More steps may be added, so that none are left is no end.
    is_open: bool,
    piece: Vec<u8>,
    trailers: Option<HeaderMap>,
}

impl Source for Upstream {
    fn poll_fill(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), BodyError>> {
        if !self.piece.is_empty() {
            return Poll::Ready(Ok(()));
        }
        match self.steps.lock().unwrap().pop_front() {
            Some(Step::Piece(piece)) => self.piece = piece,
            Some(Step::Wait) => return Poll::Pending,
            Some(Step::Cut) => return Poll::Ready(Err(BodyError::Reset)),
            None if self.is_open => return Poll::Pending,
            None => {}
        }
        Poll::Ready(Ok(()))
    }

    fn data(&self) -> &[u8] {
        &self.piece
    }

    fn consume(&mut self, bytes: usize) {
        self.piece.drain(..bytes);
    }

    fn remaining(&self) -> Option<u64> {
        None
    }

    fn is_end(&self) -> bool {
        !self.is_open && self.piece.is_empty() && self.steps.lock().unwrap().is_empty()
    }

    fn take_trailers(&mut self) -> Option<HeaderMap> {
        self.trailers.take()
    }

    fn finish(self: Box<Self>, _end: &BodyEnd) {}
}

fn compressed(
    coding: ContentCoding,
    level: CompressionLevel,
    steps: Vec<Step>,
    trailers: Option<HeaderMap>,
) -> Body {
    let steps = Arc::new(Mutex::new(steps.into()));
    let upstream = Upstream { steps, is_open: false, piece: Vec::new(), trailers };
    let inner = Body::source(Box::new(upstream));
    Compression(Encoder::new(coding, level, None).unwrap()).of(inner)
}

/// Decodes as far as that is possible. The error is how it ended.
fn decode(coding: ContentCoding, bytes: &[u8]) -> (Vec<u8>, std::io::Result<usize>) {
    let mut out = Vec::new();
    let end = match coding {
        ContentCoding::Gzip => flate2::read::GzDecoder::new(bytes).read_to_end(&mut out),
        ContentCoding::Brotli => brotli::Decompressor::new(bytes, 4_096).read_to_end(&mut out),
        ContentCoding::Zstd => {
            zstd::stream::read::Decoder::new(bytes).unwrap().read_to_end(&mut out)
        }
    };
    (out, end)
}

/// Notes that it was woken.
#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// What comes out until the body waits for its upstream, or ends.
fn read(body: &mut Body, out: &mut Vec<u8>) -> Poll<Option<BodyError>> {
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    let mut cx = Context::from_waker(&waker);
    loop {
        match body.poll_fill(&mut cx) {
            Poll::Ready(Some(Ok(()))) => {
                out.extend_from_slice(body.data());
                body.consume(body.data().len());
            }
            Poll::Ready(Some(Err(error))) => return Poll::Ready(Some(error)),
            Poll::Ready(None) => return Poll::Ready(None),
            // It lets others have their turn.
            Poll::Pending if woken.0.swap(false, Ordering::Relaxed) => {}
            Poll::Pending => return Poll::Pending,
        }
    }
}

fn text(bytes: usize) -> Vec<u8> {
    (0..)
        .flat_map(|n: u32| format!("{{\"id\":{n},\"of\":{}}}\n", n / 7).into_bytes())
        .take(bytes)
        .collect()
}

#[test]
fn what_has_come_is_let_out_while_the_upstream_waits() {
    for (coding, level) in CODINGS.into_iter().flat_map(|one| LEVELS.map(|level| (one, level))) {
        let pieces: Vec<Vec<u8>> = vec![b"data: 1\n\n".to_vec(), text(100_000), b"x".to_vec()];
        let steps = Arc::new(Mutex::new(VecDeque::new()));
        let (is_open, trailers) = (true, None);
        let upstream = Upstream { steps: Arc::clone(&steps), is_open, piece: Vec::new(), trailers };
        let encoder = Encoder::new(coding, level, None).unwrap();
        let mut body = Compression(encoder).of(Body::source(Box::new(upstream)));
        let (mut out, mut sent) = (Vec::new(), Vec::new());
        for piece in pieces {
            sent.extend_from_slice(&piece);
            steps.lock().unwrap().push_back(Step::Piece(piece));
            assert!(read(&mut body, &mut out).is_pending());
            assert!(decode(coding, &out).0 == sent, "{coding:?} {level:?}: {}", sent.len());
        }
    }
}

#[tokio::test]
async fn a_cut_reply_is_cut_for_the_client() {
    for coding in CODINGS {
        let piece = || Step::Piece(text(50_000));
        for steps in [vec![piece(), Step::Wait, Step::Cut], vec![piece(), Step::Cut]] {
            let mut body = compressed(coding, CompressionLevel::Default, steps, None);
            let mut out = Vec::new();
            while read(&mut body, &mut out).is_pending() {}
            let (decoded, end) = decode(coding, &out);
            assert!(text(50_000) == decoded, "{coding:?}: what came before is held back");
            assert!(end.is_err(), "{coding:?}: it decodes as if it were complete");
            assert!(poll_fn(|cx| body.poll_fill(cx)).await.is_none(), "nothing follows the error");
        }
    }
}

#[test]
fn trailers_follow_without_what_is_no_longer_true() {
    for coding in CODINGS {
        let mut trailers = HeaderMap::new();
        trailers.insert("x-sum", "1".parse().unwrap());
        trailers.insert("content-digest", "sha-256=:AA==:".parse().unwrap());
        let steps = vec![Step::Piece(text(5_000))];
        let mut body = compressed(coding, CompressionLevel::Default, steps, Some(trailers));
        let mut out = Vec::new();
        assert!(matches!(read(&mut body, &mut out), Poll::Ready(None)));
        assert!(decode(coding, &out).0 == text(5_000));
        let trailers = body.take_trailers().unwrap();
        assert_eq!(trailers.keys().map(http::HeaderName::as_str).collect::<Vec<_>>(), ["x-sum"]);
    }
}

#[test]
fn others_have_their_turn_and_memory_is_bounded() {
    let mut cx = Context::from_waker(Waker::noop());
    for (coding, level) in CODINGS.into_iter().flat_map(|one| LEVELS.map(|level| (one, level))) {
        let mut body = compressed(coding, level, vec![Step::Piece(text(1 << 20))], None);
        let (mut turns, mut out) = (0, 0);
        loop {
            match body.poll_fill(&mut cx) {
                Poll::Pending => turns += 1,
                Poll::Ready(Some(Ok(()))) => {
                    assert!(body.data().len() <= 128 << 10, "{coding:?}: {}", body.data().len());
                    out += body.data().len();
                    body.consume(body.data().len());
                }
                Poll::Ready(end) => break assert!(end.is_none()),
            }
        }
        assert!(turns >= (1 << 20) / (16 << 10) - 1, "{coding:?}: {turns}");
        assert!(out < 400 << 10, "{coding:?} {level:?}: {out}");
    }
}

#[test]
fn a_compressor_holds_what_it_is_counted_as() {
    for level in LEVELS {
        let mut encoder = Encoder::new(ContentCoding::Zstd, level, None).unwrap();
        for piece in text(1 << 20).chunks(16 << 10) {
            encoder.feed(piece, &mut Vec::new()).unwrap();
        }
        assert!(encoder.held_bytes() < 800 << 10, "{level:?}: {}", encoder.held_bytes());
    }
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let piece = prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..200),
        (0..70_000_usize).prop_map(text),
        (0..70_000_usize, any::<u8>()).prop_map(|(bytes, byte)| vec![byte; bytes]),
    ];
    let step = prop_oneof![
        3 => piece.prop_filter("empty is the end", |piece| !piece.is_empty()).prop_map(Step::Piece),
        1 => Just(Step::Wait),
    ];
    proptest::collection::vec(step, 0..12)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn whatever_pieces_come_they_decode_to_the_same(
        steps in steps(), coding in 0..3_usize, level in 0..3_usize,
    ) {
        let coding = CODINGS[coding];
        let sent: Vec<u8> = steps.iter().flat_map(|step| match step {
            Step::Piece(piece) => piece.clone(),
            _ => Vec::new(),
        }).collect();
        let mut body = compressed(coding, LEVELS[level], steps, None);
        let mut out = Vec::new();
        while read(&mut body, &mut out).is_pending() {}
        let (decoded, end) = decode(coding, &out);
        prop_assert!(decoded == sent);
        if !sent.is_empty() {
            prop_assert!(end.is_ok());
        }
    }
}
