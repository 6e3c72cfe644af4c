//! Writes messages as `listen/http1` and `upstream/http1/mod.rs` do, to a connection that takes
//! few bytes at a time, and reads them back. The fuzz targets include this file too.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Version};
use tokio::io::AsyncWrite;

use super::check::ordered;
use super::drive::{self, Message, Pairs, Start, Stop};
use super::reference;
use crate::http1::{self, Encoding, Outbox, Scan, SendError};
use crate::wire::{Body, BodyEnd, BodyError, Known, KnownSet, Source};

/// Hop-by-hop fields.
const HOP: KnownSet = KnownSet::of(&[
    Known::Connection,
    Known::KeepAlive,
    Known::ProxyConnection,
    Known::Upgrade,
    Known::TransferEncoding,
]);

/// Pseudo-random numbers from a seed: splitmix64.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    /// Seeds it with a hash of `bytes`.
    pub(crate) fn of(bytes: &[u8]) -> Self {
        Self(bytes.iter().fold(0xCBF2_9CE4_8422_2325, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01B3)
        }))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number below `most`, which must not be 0.
    pub(crate) fn below(&mut self, most: usize) -> usize {
        usize::try_from(self.next() % most as u64).unwrap()
    }
}

/// Messages with more fields are not written again, because added fields could exceed the parser's
/// limit.
const FIELDS_MAX: usize = 95;

/// A body that arrives in pieces, some of them late.
pub(crate) struct Pieces {
    pub(crate) pieces: Vec<Vec<u8>>,
    /// The length that its sender declares.
    pub(crate) declared: Option<u64>,
    pub(crate) trailers: Option<HeaderMap>,
    /// Each piece is pending once before it arrives.
    pub(crate) late: bool,
    taken: usize,
    waited: bool,
    /// The next piece has arrived.
    here: bool,
    /// It was polled after its last piece, which is when the end of chunks is known.
    ended: bool,
}

impl Pieces {
    /// `body` in pieces of up to `most` bytes.
    pub(crate) fn of(body: &[u8], most: usize) -> Self {
        let pieces = body.chunks(most.max(1)).rev().map(<[u8]>::to_vec).collect();
        Self {
            pieces,
            declared: None,
            trailers: None,
            late: false,
            taken: 0,
            waited: false,
            here: false,
            ended: false,
        }
    }
}

impl Source for Pieces {
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BodyError>> {
        if self.late && !std::mem::replace(&mut self.waited, true) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        (self.here, self.ended) = (true, self.pieces.is_empty());
        Poll::Ready(Ok(()))
    }

    fn data(&self) -> &[u8] {
        self.pieces.last().filter(|_| self.here).map_or(&[], |piece| &piece[self.taken..])
    }

    fn consume(&mut self, bytes: usize) {
        self.taken += bytes;
        self.declared = self.declared.map(|left| left.saturating_sub(bytes as u64));
        if self.data().is_empty() {
            self.pieces.pop();
            (self.taken, self.waited, self.here) = (0, false, false);
        }
    }

    fn remaining(&self) -> Option<u64> {
        self.declared
    }

    fn is_end(&self) -> bool {
        self.pieces.is_empty() && (self.ended || self.declared == Some(0))
    }

    fn take_trailers(&mut self) -> Option<HeaderMap> {
        self.trailers.take()
    }

    fn finish(self: Box<Self>, _: &BodyEnd) {}
}

/// A connection that takes up to this many bytes per write, and is pending every second time.
pub(crate) struct Slow {
    pub(crate) taken: Vec<u8>,
    pub(crate) most: usize,
    pub(crate) hesitates: bool,
    hesitated: bool,
}

impl Slow {
    pub(crate) fn new(most: usize, hesitates: bool) -> Self {
        Self { taken: Vec::new(), most, hesitates, hesitated: false }
    }
}

impl AsyncWrite for Slow {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.hesitates && !std::mem::replace(&mut self.hesitated, true) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.hesitated = false;
        let now = bytes.len().min(self.most);
        self.taken.extend_from_slice(&bytes[..now]);
        Poll::Ready(Ok(now))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let all: Vec<u8> = slices.iter().flat_map(|slice| slice.iter().copied()).collect();
        self.as_mut().poll_write(cx, &all)
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// Sends what `outbox` holds and then `body`. Returns the bytes that were written.
pub(crate) fn send(
    outbox: &mut Outbox,
    body: &mut Body,
    mut connection: Slow,
) -> Result<Vec<u8>, SendError> {
    let sent = std::future::poll_fn(|cx| outbox.poll_send(cx, &mut connection, body));
    reference::run(std::pin::pin!(sent)).expect("it is woken when it can go on")?;
    Ok(connection.taken)
}

/// Checks that whatever is accepted of `bytes`, requests or a reply, is written so that it is read
/// back as the same message.
pub(crate) fn round_trip(bytes: &[u8]) {
    let mut random = Random::of(bytes);
    let mut from = 0;
    let answer = drive::requests([bytes]);
    for (message, end) in answer.messages.iter().zip(&answer.ends) {
        if message.fields.len() <= FIELDS_MAX {
            request(&bytes[from..*end], message, &mut random);
        }
        from = *end;
    }
    for method in [Method::GET, Method::HEAD] {
        let answer = drive::reply([bytes], &method, true);
        if let Some(message) = answer
            .messages
            .first()
            .filter(|message| message.whole && message.fields.len() <= FIELDS_MAX)
        {
            for version in [Version::HTTP_11, Version::HTTP_10] {
                reply(bytes, message, (&method, version), &mut random);
            }
        }
    }
}

fn request(bytes: &[u8], message: &Message, random: &mut Random) {
    let (head, _) = Scan::default().request(bytes).unwrap().unwrap();
    let (mut request, framing) = (head.request, head.framing);
    if request.method == Method::CONNECT {
        return;
    }
    request.fields.remove_all(HOP);
    if !request.target().starts_with(['/', '*']) {
        request.set_target(&format!("/{}", request.target()));
    }
    let mut body = body(message, framing != http1::Framing::Chunked, random);
    let declares = request.fields.has(Known::ContentLength)
        || matches!(request.method, Method::POST | Method::PUT | Method::PATCH);
    let encoding = match body.length() {
        Some(0) if !declares => Encoding::NoBody,
        Some(length) => Encoding::Length(length),
        None => Encoding::Chunked,
    };
    let target = request.target().to_owned();
    let mut outbox = Outbox::default();
    http1::request_head(outbox.begin(encoding), &mut request, encoding);
    let written = send(&mut outbox, &mut body, slow(random)).unwrap();

    let start = Start::Request { method: request.method.clone(), target, authority: None };
    let expected = Message {
        start,
        version: Version::HTTP_11,
        fields: framed(&message.fields, encoding),
        ..message.clone()
    };
    let again = drive::requests([written.as_slice()]);
    assert_eq!(
        (again.stop, again.ends.as_slice()),
        (Stop::More, [written.len()].as_slice()),
        "{}",
        written.escape_ascii()
    );
    is(&expected, &again.messages[0]);
    let seen = reference::requests(&written);
    assert!(!seen.failed && seen.messages.len() == 1, "{seen:?}\n{}", written.escape_ascii());
    is(&expected, &seen.messages[0]);
}

fn reply(
    bytes: &[u8],
    message: &Message,
    (method, version): (&Method, Version),
    random: &mut Random,
) {
    let Start::Reply(status) = message.start else { return };
    let (mut fields, reason, framing) = last_head(bytes, method);
    fields.remove_all(HOP);
    let mut body = body(message, matches!(framing, http1::Framing::Length(_)), random);
    let bodiless = *method == Method::HEAD
        || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
    let encoding = match body.length() {
        _ if bodiless => Encoding::NoBody,
        Some(length) => Encoding::Length(length),
        None if version == Version::HTTP_10 => Encoding::Close,
        None => Encoding::Chunked,
    };
    if status == StatusCode::NO_CONTENT {
        fields.remove(Known::ContentLength);
    }
    let closes = encoding == Encoding::Close || random.below(2) == 0;
    let mut outbox = Outbox::default();
    http1::reply_head(
        outbox.begin(encoding),
        (status, reason.as_deref()),
        &mut fields,
        encoding,
        (version, closes),
    );
    let written = send(&mut outbox, &mut body, slow(random)).unwrap();

    assert!(written.starts_with(if version == Version::HTTP_10 {
        b"HTTP/1.0 "
    } else {
        b"HTTP/1.1 "
    }));
    let mut expected = message.clone();
    expected.fields = framed(&message.fields, encoding);
    if status == StatusCode::NO_CONTENT {
        expected.fields.retain(|(name, _)| name != "content-length");
    }
    if encoding == Encoding::Close {
        expected.trailers.clear();
    }
    let again = drive::reply([written.as_slice()], method, true);
    assert_eq!(again.ends, [written.len()], "{again:?}\n{}", written.escape_ascii());
    is(&expected, &again.messages[0]);
    let seen = reference::reply(&written, method);
    assert!(!seen.failed && seen.messages.len() == 1, "{seen:?}\n{}", written.escape_ascii());
    is(&expected, &seen.messages[0]);
}

/// The head of the first reply that is not an interim one.
fn last_head(
    bytes: &[u8],
    method: &Method,
) -> (crate::wire::Fields, Option<Box<[u8]>>, http1::Framing) {
    let mut rest = bytes;
    loop {
        let (head, end) = Scan::default().reply(rest, method).unwrap().unwrap();
        if !head.reply.status.is_informational() {
            return (head.reply.fields.clone(), head.reply.reason, head.framing);
        }
        rest = &rest[end..];
    }
}

fn slow(random: &mut Random) -> Slow {
    let most = [1, 7, 100, 1 << 20][random.below(4)];
    Slow::new(most, random.below(2) == 0)
}

/// The message's body in pieces. `declared`: its length is known.
fn body(message: &Message, declared: bool, random: &mut Random) -> Body {
    if declared && message.body.is_empty() {
        return Body::empty();
    }
    let most = [1, 3, 50, 20 << 10][random.below(4)];
    let mut pieces = Pieces::of(&message.body, most);
    pieces.declared = declared.then_some(message.body.len() as u64);
    pieces.late = random.below(2) == 0;
    pieces.trailers = (!message.trailers.is_empty()).then(|| map(&message.trailers));
    Body::source(Box::new(pieces))
}

pub(crate) fn map(pairs: &Pairs) -> HeaderMap {
    pairs
        .iter()
        .map(|(name, value)| {
            (
                HeaderName::from_bytes(name.as_bytes()).unwrap(),
                HeaderValue::from_bytes(value).unwrap(),
            )
        })
        .collect()
}

/// The fields that are expected back after they were written with `encoding`.
fn framed(fields: &Pairs, encoding: Encoding) -> Pairs {
    let hop = |name: &str| {
        ["connection", "keep-alive", "proxy-connection", "upgrade", "transfer-encoding"]
            .contains(&name)
    };
    let mut fields = fields.clone();
    // A reply to HEAD keeps its length.
    fields.retain(|(name, _)| {
        !hop(name) && (name != "content-length" || encoding == Encoding::NoBody)
    });
    let mut framing =
        |name: &str, value: String| fields.push((name.to_owned(), value.into_bytes()));
    match encoding {
        Encoding::Length(length) => framing("content-length", length.to_string()),
        Encoding::Chunked => framing("transfer-encoding", "chunked".to_owned()),
        Encoding::NoBody | Encoding::Close => {}
    }
    fields
}

/// Checks that `read` equals `expected`, except for the fields that are added when it is written.
fn is(expected: &Message, read: &Message) {
    let besides = |name: &str, value: &[u8]| {
        name == "date" || (name == "connection" && (value == b"close" || value == b"keep-alive"))
    };
    let strip = |message: &Message| {
        let mut message = message.clone();
        message.fields.retain(|(name, value)| !besides(name, value));
        (message.fields, message.trailers) = (ordered(message.fields), ordered(message.trailers));
        if matches!(message.start, Start::Reply(_)) {
            message.version = Version::HTTP_11;
        }
        message
    };
    assert_eq!(strip(expected), strip(read));
}
