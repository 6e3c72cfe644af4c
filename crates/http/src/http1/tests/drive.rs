//! Reads a stream of requests, or one reply, from bytes that arrive in pieces, as `listen/http1`
//! and `upstream/http1/mod.rs` do. Returns the messages and why reading stopped. The fuzz targets
//! include this file too.

use std::task::Poll;

use http::{HeaderMap, Method, StatusCode, Version};

use crate::http1::{BodyPart, Decoder, Framing, ReplyHead, RequestHead, Scan};
use crate::wire::{Buffer, Fields, PLAIN_BYTES};

/// Maximum bytes of a head.
pub(crate) const HEAD_BYTES_MAX: usize = 64 << 10;

/// Names in lower case, with their values.
pub(crate) type Pairs = Vec<(String, Vec<u8>)>;

/// A message, or the part of it that has arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) start: Start,
    pub(crate) version: Version,
    pub(crate) fields: Pairs,
    pub(crate) body: Vec<u8>,
    pub(crate) trailers: Pairs,
    /// The body is complete.
    pub(crate) whole: bool,
}

/// The start line of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    Request { method: Method, target: String, authority: Option<String> },
    Reply(StatusCode),
}

/// Why reading stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// More bytes are needed.
    More,
    /// The connection closes after this message.
    Closes,
    /// A head was refused.
    HeadRejected(StatusCode),
    /// A body's framing is broken.
    Broken,
}

/// The result of reading some bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Parsed {
    pub(crate) messages: Vec<Message>,
    /// Where each complete message ended in the stream.
    pub(crate) ends: Vec<usize>,
    pub(crate) stop: Stop,
}

/// Who sent the bytes.
#[derive(Clone, Debug)]
enum Sender {
    Client,
    /// An upstream, in reply to a request with this method.
    Upstream(Method),
}

/// The reading side of a connection.
struct Reader {
    sender: Sender,
    input: Buffer,
    scan: Scan,
    /// The body that is being read, and whether the connection stays open after it.
    body: Option<(Decoder, bool)>,
    parsed: Parsed,
    used: usize,
}

/// Reads the requests in `pieces`.
pub(crate) fn requests<'b>(pieces: impl IntoIterator<Item = &'b [u8]>) -> Parsed {
    Reader::new(Sender::Client).read(pieces, false)
}

/// Reads the reply to a `method` request. `closes`: the upstream closes after the last byte.
pub(crate) fn reply<'b>(
    pieces: impl IntoIterator<Item = &'b [u8]>,
    method: &Method,
    closes: bool,
) -> Parsed {
    Reader::new(Sender::Upstream(method.clone())).read(pieces, closes)
}

/// Cuts `bytes` into pieces that end at each of `cuts`, which are in ascending order.
pub(crate) fn cut<'b>(bytes: &'b [u8], cuts: &[usize]) -> Vec<&'b [u8]> {
    let mut from = 0;
    let mut pieces = Vec::new();
    for cut in cuts.iter().copied().chain([bytes.len()]) {
        let cut = cut.clamp(from, bytes.len());
        pieces.push(&bytes[from..cut]);
        from = cut;
    }
    pieces
}

impl Reader {
    fn new(sender: Sender) -> Self {
        let parsed = Parsed { messages: Vec::new(), ends: Vec::new(), stop: Stop::More };
        Self {
            sender,
            input: Buffer::default(),
            scan: Scan::default(),
            body: None,
            parsed,
            used: 0,
        }
    }

    fn read<'b>(mut self, pieces: impl IntoIterator<Item = &'b [u8]>, closes: bool) -> Parsed {
        for piece in pieces {
            let mut rest = piece;
            while !rest.is_empty() && self.parsed.stop == Stop::More {
                let most = if self.body.is_some() { PLAIN_BYTES } else { HEAD_BYTES_MAX };
                let read = self.input.poll_fill(most, |room| {
                    let bytes = room.len().min(rest.len());
                    room[..bytes].copy_from_slice(&rest[..bytes]);
                    Poll::Ready(Ok(bytes))
                });
                let Poll::Ready(Ok(bytes)) = read else {
                    panic!("neither used nor refused, and yet there is no room")
                };
                rest = &rest[bytes..];
                self.advance();
            }
        }
        if closes
            && let Some((decoder, _)) = &mut self.body
            && decoder.close()
        {
            self.advance();
        }
        self.parsed
    }

    /// Reads as much of the input as possible.
    fn advance(&mut self) {
        while self.parsed.stop == Stop::More {
            let goes_on = if self.body.is_some() { self.content() } else { self.head() };
            if !goes_on {
                return;
            }
        }
    }

    fn consume(&mut self, bytes: usize) {
        self.used += bytes;
        self.input.consume(bytes);
    }

    /// Reads a head. Returns whether there was one.
    fn head(&mut self) -> bool {
        let bytes = self.input.bytes();
        let found = match &self.sender {
            Sender::Client => self
                .scan
                .request(bytes)
                .map(|found| found.map(|(head, end)| (of_request(head), end))),
            Sender::Upstream(method) => self
                .scan
                .reply(bytes, method)
                .map(|found| found.map(|(head, end)| (of_reply(&head), end))),
        };
        let ((message, framing, keep_alive), end) = match found {
            Ok(Some(found)) => found,
            Ok(None) if bytes.len() >= HEAD_BYTES_MAX => {
                return self.stop(Stop::HeadRejected(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE));
            }
            Ok(None) => return false,
            Err(refused) => return self.stop(Stop::HeadRejected(refused.status())),
        };
        self.consume(end);
        self.scan = Scan::default();
        if let Start::Reply(status) = message.start
            && status.is_informational()
        {
            // No upgrade was requested; other interim replies are skipped.
            return status != StatusCode::SWITCHING_PROTOCOLS
                || self.stop(Stop::HeadRejected(StatusCode::BAD_GATEWAY));
        }
        self.parsed.messages.push(message);
        self.body = Some((Decoder::new(framing), keep_alive));
        true
    }

    /// Reads content. Returns whether there was any, or the end of the body.
    fn content(&mut self) -> bool {
        let Some((decoder, keep_alive)) = &mut self.body else { return false };
        let mut skipped = 0;
        let next = decoder.next(self.input.bytes(), |bytes| skipped += bytes);
        self.used += skipped;
        self.input.consume(skipped);
        let message = self.parsed.messages.last_mut().unwrap();
        match next {
            Ok(BodyPart::Data(bytes)) => {
                message.body.extend_from_slice(&self.input.bytes()[..bytes]);
                decoder.consumed(bytes);
                self.consume(bytes);
                true
            }
            Ok(BodyPart::More) => false,
            Ok(BodyPart::End) => {
                message.trailers =
                    decoder.take_trailers().map(|trailers| of_map(&trailers)).unwrap_or_default();
                message.whole = true;
                self.parsed.ends.push(self.used);
                let closes = !*keep_alive || matches!(self.sender, Sender::Upstream(_));
                self.body = None;
                !closes || self.stop(Stop::Closes)
            }
            Err(_) => self.stop(Stop::Broken),
        }
    }

    fn stop(&mut self, stop: Stop) -> bool {
        self.parsed.stop = stop;
        false
    }
}

fn of_request(head: RequestHead) -> Read {
    let request = &head.request;
    let (target, authority) = (request.target().to_owned(), request.authority().map(str::to_owned));
    let start = Start::Request { method: request.method.clone(), target, authority };
    (message(start, request.version, &request.fields), head.framing, head.keep_alive)
}

fn of_reply(head: &ReplyHead) -> Read {
    (
        message(Start::Reply(head.reply.status), Version::HTTP_11, &head.reply.fields),
        head.framing,
        head.keep_alive,
    )
}

type Read = (Message, Framing, bool);

fn message(start: Start, version: Version, fields: &Fields) -> Message {
    Message {
        start,
        version,
        fields: of_fields(fields),
        body: Vec::new(),
        trailers: Vec::new(),
        whole: false,
    }
}

/// The fields with names in lower case, in their order.
pub(crate) fn of_fields(fields: &Fields) -> Pairs {
    fields
        .iter()
        .map(|(name, value)| {
            (String::from_utf8(name.to_ascii_lowercase()).unwrap(), value.to_vec())
        })
        .collect()
}

pub(crate) fn of_map(map: &HeaderMap) -> Pairs {
    map.iter().map(|(name, value)| (name.as_str().to_owned(), value.as_bytes().to_vec())).collect()
}
