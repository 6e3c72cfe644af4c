//! What must hold for any bytes. Cutting them into pieces changes nothing; hyper reads what we
//! accept in the same way; and what we write of it is read back as one message. The fuzz targets
//! include this file too.

use http::{Method, Version};

use super::drive::{self, Message, Pairs, Parsed, Start, Stop};
use super::naive;
use super::reference::{self, Seen};
use super::send::Random;
use crate::http1::{BodyPart, Decoder, Framing};

/// Up to this many bytes, they are also read one by one.
const SINGLE_BYTES_MAX: usize = 1 << 8;

/// Prints the bytes of a check that fails.
struct Shown<'b>(&'b [u8]);

impl Drop for Shown<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("these {} bytes: b\"{}\"", self.0.len(), self.0.escape_ascii());
        }
    }
}

/// Positions to cut `bytes` at: each single one, and a few derived from `bytes`.
fn cuttings(bytes: &[u8]) -> Vec<Vec<usize>> {
    let mut random = Random::of(bytes);
    let mut cuttings = Vec::new();
    if bytes.len() <= SINGLE_BYTES_MAX {
        cuttings.push((0..bytes.len()).collect());
    }
    for _ in 0..2 {
        let mut cuts: Vec<usize> =
            (0..random.below(4) + 1).map(|_| random.below(bytes.len() + 1)).collect();
        cuts.sort_unstable();
        cuttings.push(cuts);
    }
    cuttings
}

/// Checks a stream of requests.
pub(crate) fn requests(bytes: &[u8]) -> Parsed {
    let _shown = Shown(bytes);
    let whole = drive::requests([bytes]);
    for cuts in cuttings(bytes) {
        assert_eq!(drive::requests(drive::cut(bytes, &cuts)), whole, "cut at {cuts:?}");
    }
    compare(&whole, &reference::requests(bytes));
    whole
}

/// Checks the reply to a `method` request.
pub(crate) fn reply(bytes: &[u8], method: &Method) -> Parsed {
    let _shown = Shown(bytes);
    for closes in [false, true] {
        let whole = drive::reply([bytes], method, closes);
        for cuts in cuttings(bytes) {
            assert_eq!(
                drive::reply(drive::cut(bytes, &cuts), method, closes),
                whole,
                "cut at {cuts:?}, closes: {closes}"
            );
        }
    }
    let whole = drive::reply([bytes], method, true);
    if !whole.messages.is_empty() {
        compare(&whole, &reference::reply(bytes, method));
    }
    whole
}

/// Checks a chunked body and what follows it.
pub(crate) fn chunks(bytes: &[u8]) {
    let _shown = Shown(bytes);
    let whole = decoded([bytes]);
    for cuts in cuttings(bytes) {
        assert_eq!(decoded(drive::cut(bytes, &cuts)), whole, "cut at {cuts:?}");
    }
    let mut expected = naive::chunked(bytes);
    if let naive::Read::Whole { trailers, .. } = &mut expected {
        *trailers = ordered(std::mem::take(trailers));
    }
    match (&whole, &expected) {
        // Trailers are parsed once all of them have arrived.
        (
            naive::Read::Part { body, broken: false },
            naive::Read::Part { body: other, broken: true },
        ) => assert_eq!(body, other),
        _ => assert_eq!(whole, expected),
    }
}

fn decoded<'b>(pieces: impl IntoIterator<Item = &'b [u8]>) -> naive::Read {
    let mut decoder = Decoder::new(Framing::Chunked);
    let (mut waiting, mut body, mut end) = (Vec::new(), Vec::new(), 0);
    for piece in pieces {
        waiting.extend_from_slice(piece);
        loop {
            let mut skipped = 0;
            let next = decoder.next(&waiting, |bytes| skipped += bytes);
            waiting.drain(..skipped);
            end += skipped;
            match next {
                Ok(BodyPart::Data(bytes)) => {
                    body.extend(waiting.drain(..bytes));
                    end += bytes;
                    decoder.consumed(bytes);
                }
                Ok(BodyPart::More) => break,
                Ok(BodyPart::End) => {
                    let trailers = decoder
                        .take_trailers()
                        .map(|trailers| drive::of_map(&trailers))
                        .unwrap_or_default();
                    return naive::Read::Whole { body, trailers: ordered(trailers), end };
                }
                Err(_) => return naive::Read::Part { body, broken: true },
            }
        }
    }
    naive::Read::Part { body, broken: false }
}

/// Checks that hyper understood everything that we did, in the same way.
fn compare(ours: &Parsed, seen: &Seen) {
    for (at, message) in ours.messages.iter().enumerate() {
        if is_refused_later(message) {
            return;
        }
        let Some(other) = seen.messages.get(at) else {
            panic!("hyper has no message {at}: {message:?}\n{ours:?}")
        };
        let (mut message, mut other) = (comparable(message), comparable(other));
        if !message.whole {
            assert!(
                other.body.starts_with(&message.body),
                "message {at}: hyper refused its body earlier than we: {message:?}\n{other:?}"
            );
            assert!(
                !other.whole || ours.stop == Stop::Broken,
                "message {at} is over to hyper, and we wait: {message:?}\n{other:?}"
            );
            (message.whole, other.whole) = (false, false);
            other.body.clone_from(&message.body);
            other.trailers.clone_from(&message.trailers);
        }
        assert_eq!(message, other, "message {at}");
    }
}

/// We refuse an invalid authority when the request is routed; hyper refuses it when it parses.
fn is_refused_later(message: &Message) -> bool {
    let Start::Request { authority: Some(authority), .. } = &message.start else { return false };
    authority.parse::<http::uri::Authority>().is_err()
}

fn comparable(message: &Message) -> Message {
    let mut message = message.clone();
    let is_reply = matches!(message.start, Start::Reply(_));
    if let Start::Request { target, authority: Some(_), method } = &mut message.start
        && *method != Method::CONNECT
        && !target.starts_with('/')
    {
        target.insert(0, '/');
    }
    if is_reply {
        // We remove a length next to chunks, and merge repeated ones.
        message.fields.retain(|(name, _)| name != "content-length");
        message.version = Version::HTTP_11;
    }
    let mut lengths = 0;
    // hyper keeps the first of equal lengths.
    message
        .fields
        .retain(|(name, _)| name != "content-length" || std::mem::replace(&mut lengths, 1) == 0);
    message.fields = ordered(message.fields);
    message.trailers = ordered(message.trailers);
    message
}

/// Sorted by name; fields with the same name stay in order.
pub(crate) fn ordered(mut pairs: Pairs) -> Pairs {
    pairs.sort_by(|(a, _), (b, _)| a.cmp(b));
    pairs
}
