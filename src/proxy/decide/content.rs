//! A request's body, read before the decision where the route's policy asks for facts of it.
//!
//! It is read up to the route's `inspect_bytes`, and forwarded as it came. A longer one is refused,
//! or forwarded without having been read, as the route says. Nothing is read on routes whose policy
//! asks for no such fact.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use bytes::{Buf as _, Bytes};
use http::HeaderMap;

use crate::inspect::{Selection, Selector};
use crate::proxy::refusal::Refusal;
use crate::proxy::settings::{Inspect, Oversized};
use crate::wire::{self, Body, BodyEnd, BodyError, Charge, Fields, Known, Source, counted};

/// How a policy's facts of bodies are found on a route.
#[derive(Debug)]
pub(in crate::proxy) struct BodyReader {
    /// The selection, in the order of the queries for its values.
    selection: Selection,
    inspect: Inspect,
    /// How many bytes the process may buffer.
    buffered_bytes_max: usize,
}

/// Fields of a form, at most.
const FORM_FIELDS_MAX: usize = 1_000;

/// What a body is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::proxy) enum BodyType {
    /// There is none.
    Empty,
    /// A JSON document that is not declared as a form. Any other declared type does not matter, as
    /// the upstream may read it as JSON all the same.
    Json,
    /// Declared as an HTML form's.
    Form,
    /// Anything else, and all that is compressed.
    Other,
    /// Longer than the route's `inspect_bytes`.
    Large,
}

impl BodyType {
    /// The word that policies see.
    pub(in crate::proxy) fn word(self) -> &'static str {
        match self {
            Self::Empty => "empty",
            Self::Json => "json",
            Self::Form => "form",
            Self::Other => "other",
            Self::Large => "large",
        }
    }
}

/// A body that was read.
#[derive(Debug)]
pub(in crate::proxy) struct ReadBody {
    pub(in crate::proxy) body_type: BodyType,
    /// Its length, if known.
    pub(in crate::proxy) length: Option<u64>,
    /// All of it, unless it is too long.
    pub(in crate::proxy) bytes: Bytes,
    /// The values found in it, with the index of the query.
    pub(in crate::proxy) values: Vec<(usize, String)>,
    /// What came after it.
    trailers: Option<HeaderMap>,
}

/// A body to forward, and what was read of it.
type Inspected = Result<(Body, Option<ReadBody>), Refusal>;

/// What a request's fields say of its body.
struct DeclaredBody {
    form: bool,
    coded: bool,
    charset: Charset,
}

/// How the bytes of texts are to be read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Charset {
    Utf8,
    /// As in ASCII, as far as that goes, with a byte for each character.
    Extended,
    /// Not as they are written: in UTF-7, `+AGI-` is a `b`.
    Other,
}

impl Charset {
    /// What the fields say, each parameter of each of them.
    fn of(fields: &Fields) -> Self {
        const EXTENDED: [&str; 5] = ["iso-8859-", "iso8859-", "latin", "windows-125", "cp125"];
        let mut charset = Self::Utf8;
        let all = fields.get_all(Known::ContentType);
        for parameter in all.flat_map(|value| value.split(|byte| *byte == b';').skip(1)) {
            let parameter = String::from_utf8_lossy(parameter).to_ascii_lowercase();
            let Some((name, value)) = parameter.split_once('=') else { continue };
            let value = value.trim().trim_matches(['"', '\'']).trim();
            charset = match value {
                _ if !name.contains("charset") => charset,
                _ if charset == Self::Other || name.trim() != "charset" => Self::Other,
                "utf-8" | "utf8" | "us-ascii" | "ascii" => charset,
                _ if EXTENDED.iter().any(|family| value.starts_with(family)) => Self::Extended,
                _ => Self::Other,
            };
        }
        if fields.get_all(Known::ContentType).nth(1).is_some() { Self::Other } else { charset }
    }

    /// Whether everybody reads these bytes in the same way.
    fn is_clear(self, bytes: &[u8]) -> bool {
        match self {
            Self::Utf8 => true,
            Self::Extended => bytes.is_ascii(),
            Self::Other => false,
        }
    }
}

impl DeclaredBody {
    fn of(fields: &Fields) -> Self {
        let media = fields.get(Known::ContentType).unwrap_or_default();
        let media = media.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
        let coded = |value: &[u8]| !value.trim_ascii().eq_ignore_ascii_case(b"identity");
        Self {
            form: media.eq_ignore_ascii_case(b"application/x-www-form-urlencoded"),
            coded: fields.get_all("content-encoding").any(coded),
            charset: Charset::of(fields),
        }
    }
}

impl BodyReader {
    /// The reader for a route with these settings, and a policy that asks for these values.
    pub(in crate::proxy) fn new(
        wanted: Vec<Selector>,
        inspect: Inspect,
        buffered_bytes_max: usize,
    ) -> Self {
        Self { selection: Selection::new(wanted), inspect, buffered_bytes_max }
    }

    /// Reads a body, and returns one with the same content to forward.
    ///
    /// Boxed: few policies read bodies, and every connection would carry the state.
    ///
    /// # Errors
    /// It is too long, came too slowly, or broke off.
    pub(in crate::proxy) fn read<'r>(
        &'r self,
        body: Body,
        fields: &Fields,
        deadline: Option<Instant>,
    ) -> Pin<Box<dyn Future<Output = Inspected> + Send + 'r>> {
        let declared = DeclaredBody::of(fields);
        Box::pin(async move {
            let (body, read) = self.read_up_to(body, declared, deadline).await?;
            Ok((body, Some(read)))
        })
    }

    async fn read_up_to(
        &self,
        body: Body,
        declared: DeclaredBody,
        deadline: Option<Instant>,
    ) -> Result<(Body, ReadBody), Refusal> {
        let max = self.inspect.bytes_max;
        let mut body = match deadline {
            Some(deadline) => body.with_deadline(deadline),
            None => body,
        };
        let mut read = Vec::new();
        let mut charge = Charge::nothing();
        let mut large = body.length().is_some_and(|length| length > max);
        while !large && poll_fn(|cx| body.poll_fill(cx)).await.transpose()?.is_some() {
            let data = body.data();
            read.extend_from_slice(data);
            let bytes = data.len();
            body.consume(bytes);
            body.end_if_read();
            charge.set(read.capacity());
            if wire::buffered_bytes() > self.buffered_bytes_max {
                return Err(Refusal::TooMuchBuffered);
            }
            large = read.len() as u64 > max;
        }
        // Counted with the bytes from here on.
        read.shrink_to_fit();
        drop(charge);
        if !large {
            return Ok(self.whole(body, counted(read.into()), &declared));
        }
        if self.inspect.oversized == Oversized::Refuse {
            return Err(Refusal::BodyTooLarge { limit_bytes: max });
        }
        let length = body.length().map(|rest| rest + read.len() as u64);
        let read_body = ReadBody {
            body_type: BodyType::Large,
            length,
            bytes: Bytes::new(),
            values: Vec::new(),
            trailers: None,
        };
        Ok((Replay::of(counted(read.into()), body), read_body))
    }

    /// Whether what calls itself a form is an object or an array in JSON: some upstreams look for
    /// that first, whatever it calls itself.
    fn is_document(&self, bytes: &[u8]) -> bool {
        let begins = bytes.trim_ascii_start().first();
        matches!(begins, Some(b'{' | b'[')) && self.selection.of(bytes).is_some()
    }

    /// A body of which nothing is left to be read but its trailers.
    fn whole(&self, mut body: Body, bytes: Bytes, declared: &DeclaredBody) -> (Body, ReadBody) {
        let (body_type, values) = match () {
            () if bytes.is_empty() => (BodyType::Empty, None),
            () if declared.coded => (BodyType::Other, None),
            () if !declared.charset.is_clear(&bytes) => (BodyType::Other, None),
            () if declared.form && is_form(&bytes) && !self.is_document(&bytes) => {
                (BodyType::Form, None)
            }
            () if declared.form => (BodyType::Other, None),
            () => match self.selection.of(&bytes) {
                Some(values) => (BodyType::Json, Some(values)),
                None => (BodyType::Other, None),
            },
        };
        let read = ReadBody {
            body_type,
            length: Some(bytes.len() as u64),
            bytes: bytes.clone(),
            values: values.unwrap_or_default(),
            trailers: body.take_trailers(),
        };
        (Replay::whole(bytes, read.trailers.clone()), read)
    }
}

/// Whether a form has no more fields than anybody fills in, and is text: others are read in as many
/// ways as there are readers.
fn is_form(bytes: &[u8]) -> bool {
    memchr::memchr_iter(b'&', bytes).count() < FORM_FIELDS_MAX && std::str::from_utf8(bytes).is_ok()
}

impl ReadBody {
    /// A body with another content, followed by the same trailers.
    pub(in crate::proxy) fn replaced(self, content: Bytes) -> Body {
        Replay::whole(counted(content), self.trailers)
    }
}

/// A body that is there as a whole, and what comes after it.
pub(in crate::proxy) fn whole(content: Bytes, trailers: Option<HeaderMap>) -> Body {
    Replay::whole(content, trailers)
}

/// A body whose beginning was read already.
struct Replay {
    begin: Bytes,
    rest: Body,
    trailers: Option<HeaderMap>,
}

impl Replay {
    fn of(begin: Bytes, rest: Body) -> Body {
        Body::source(Box::new(Self { begin, rest, trailers: None }))
    }

    fn whole(begin: Bytes, trailers: Option<HeaderMap>) -> Body {
        match trailers {
            None => Body::full(begin),
            trailers => Body::source(Box::new(Self { begin, rest: Body::empty(), trailers })),
        }
    }
}

impl Source for Replay {
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BodyError>> {
        if !self.begin.is_empty() {
            return Poll::Ready(Ok(()));
        }
        Poll::Ready(ready!(self.rest.poll_fill(cx)).unwrap_or(Ok(())))
    }

    fn data(&self) -> &[u8] {
        if self.begin.is_empty() { self.rest.data() } else { &self.begin }
    }

    fn consume(&mut self, bytes: usize) {
        if self.begin.is_empty() {
            self.rest.consume(bytes);
        } else {
            self.begin.advance(bytes.min(self.begin.len()));
        }
    }

    fn remaining(&self) -> Option<u64> {
        self.rest.length().map(|rest| rest + self.begin.len() as u64)
    }

    fn is_end(&self) -> bool {
        self.begin.is_empty() && http_body::Body::is_end_stream(&self.rest)
    }

    fn is_lent(&self) -> bool {
        self.rest.is_lent()
    }

    fn take_trailers(&mut self) -> Option<HeaderMap> {
        self.trailers.take().or_else(|| self.rest.take_trailers())
    }

    fn poll_background(&mut self, cx: &mut Context<'_>) {
        self.rest.poll_background(cx);
    }

    fn finish(self: Box<Self>, _end: &BodyEnd) {}
}
