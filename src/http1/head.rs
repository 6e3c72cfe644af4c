//! A head out of a buffer: found, checked, and taken apart. Knows no connection.
//!
//! httparse reads the syntax; what it lets pass and others read differently is refused here: a line
//! that ends in LF alone, a version other than 1.0 and 1.1, a target that is no URI. A head that
//! comes whole, as nearly all do, is read by httparse at once; one that comes in pieces is first
//! looked for, so that no byte is looked at again with each piece.

use std::mem::MaybeUninit;
use std::ops::Range;

use http::{Method, StatusCode, Version};
use memchr::memchr;

use super::framing::{self, Framing};
use crate::wire::{Fields, Known, KnownSet, Request, Response, Span};

/// Fields of one head, at most: above, 431 for a request and a failure for a reply.
pub(crate) const FIELDS_MAX: usize = 100;

/// Why a head is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeadError {
    /// It is not HTTP, or can be read in two ways: 400.
    Malformed(&'static str),
    /// It has too many fields: 431.
    TooManyFields,
    /// A transfer coding other than `chunked`: 501.
    UnknownCoding,
}

impl std::fmt::Display for HeadError {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(match self {
            Self::Malformed(why) => why,
            Self::TooManyFields => "too many fields",
            Self::UnknownCoding => "an unknown transfer coding",
        })
    }
}

impl HeadError {
    /// What a client is told.
    pub(crate) fn status(self) -> StatusCode {
        match self {
            Self::Malformed(_) => StatusCode::BAD_REQUEST,
            Self::TooManyFields => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            Self::UnknownCoding => StatusCode::NOT_IMPLEMENTED,
        }
    }
}

/// Looks for a head's end, and remembers where it was when the bytes ran out.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Scan {
    /// Bytes before this one were looked at.
    seen: usize,
    /// Where the line began in which `seen` lies.
    line: usize,
    /// Where the head begins: after empty lines (RFC 9112, 2.2).
    start: usize,
    /// A line ended in LF alone.
    bare: bool,
}

impl Scan {
    /// Where the head is in `bytes`, its empty line included; none where it has not all come.
    /// `bytes` are those of the last call and more.
    ///
    /// # Errors
    /// A line ends in LF alone, unless `lenient`.
    pub(super) fn find(
        &mut self,
        bytes: &[u8],
        lenient: bool,
    ) -> Result<Option<Range<usize>>, HeadError> {
        while let Some(found) = bytes.get(self.seen..).and_then(|rest| memchr(b'\n', rest)) {
            let end = self.seen + found;
            let line = bytes.get(self.line..end).unwrap_or_default();
            let text = line.strip_suffix(b"\r");
            self.bare |= text.is_none();
            if self.bare && !lenient {
                return Err(BARE);
            }
            let is_first = self.line == self.start;
            (self.seen, self.line) = (end + 1, end + 1);
            match (text.unwrap_or(line).is_empty(), is_first) {
                (true, true) => self.start = self.line,
                (true, false) => return Ok(Some(self.start..self.line)),
                (false, _) => {}
            }
        }
        self.seen = bytes.len();
        Ok(None)
    }

    /// The request's head at the beginning of `bytes`, and its length with the empty lines before
    /// it; none where it has not all come. `bytes` are those of the last call and more.
    ///
    /// # Errors
    /// It is no head that we take.
    pub(crate) fn request(
        &mut self,
        bytes: &[u8],
    ) -> Result<Option<(RequestHead, usize)>, HeadError> {
        if self.seen == 0
            && let Ok(whole) = whole_request(bytes)
        {
            self.seen = whole.1;
            return Ok(Some(whole));
        }
        let Some(head) = self.find(bytes, false)? else { return Ok(None) };
        let end = head.end;
        request(bytes.get(head).unwrap_or_default()).map(|head| Some((head, end)))
    }

    /// The same of a reply to a `method` request. Its lines may end in LF alone.
    ///
    /// # Errors
    /// It is no head that we take.
    pub(crate) fn reply(
        &mut self,
        bytes: &[u8],
        method: &Method,
    ) -> Result<Option<(ReplyHead, usize)>, HeadError> {
        if self.seen == 0
            && !bytes.is_empty()
            && let Ok(whole) = whole_reply(bytes, method)
        {
            self.seen = whole.1;
            return Ok(Some(whole));
        }
        let Some(head) = self.find(bytes, true)? else { return Ok(None) };
        let end = head.end;
        reply(bytes.get(head).unwrap_or_default(), method).map(|head| Some((head, end)))
    }

    /// Whether anything but empty lines has come.
    pub(crate) fn has_begun(&self) -> bool {
        self.seen > self.start
    }
}

const NOT_HTTP: HeadError = HeadError::Malformed("the head is not HTTP");
const BARE: HeadError = HeadError::Malformed("a line ends without a carriage return");

/// A request's head.
#[derive(Debug)]
pub(crate) struct RequestHead {
    pub(crate) request: Request,
    pub(crate) framing: Framing,
    /// The client would send another request on this connection.
    pub(crate) keep_alive: bool,
    /// It waits for a 100 before it sends its body.
    pub(crate) expects_continue: bool,
}

/// Reads the head of a request: `head` is all of it.
pub(super) fn request(head: &[u8]) -> Result<RequestHead, HeadError> {
    match whole_request(head)? {
        (read, bytes) if bytes == head.len() => Ok(read),
        _ => Err(NOT_HTTP),
    }
}

/// Reads the head at the beginning of `bytes`, and says how long it is. Where it has not all come,
/// or begins with an empty line, it is an error like any other.
fn whole_request(bytes: &[u8]) -> Result<(RequestHead, usize), HeadError> {
    let mut lines = [const { MaybeUninit::uninit() }; FIELDS_MAX];
    let mut parsed = httparse::Request::new(&mut []);
    let status = httparse::ParserConfig::default().parse_request_with_uninit_headers(
        &mut parsed,
        bytes,
        &mut lines,
    );
    let (head, end) = whole(bytes, status)?;
    let (Some(method), Some(asked), Some(minor)) = (parsed.method, parsed.path, parsed.version)
    else {
        return Err(NOT_HTTP);
    };
    let version = if minor == 0 { Version::HTTP_10 } else { Version::HTTP_11 };
    let is_connect = method == "CONNECT";
    let method = Method::from_bytes(method.as_bytes())
        .map_err(|_| HeadError::Malformed("the method is none"))?;
    let (target, authority) = target(asked, is_connect)?;
    let base = offset(head, asked.as_bytes());
    let place = |range: Range<usize>| Span::new(base + range.start..base + range.end);
    let fields = fields(head, parsed.headers).ok_or(BARE)?;
    let request = Request::new(method, version, fields, place(target), authority.map(place));
    let framing = framing::of_request(&request)?;
    let keep_alive = keeps_alive(&request.fields, version);
    let expects_continue = version == Version::HTTP_11
        && framing != Framing::Length(0)
        && request
            .fields
            .get(Known::Expect)
            .is_some_and(|value| value.eq_ignore_ascii_case(b"100-continue"));
    Ok((RequestHead { request, framing, keep_alive, expects_continue }, end))
}

/// The head that httparse has read, and its length.
fn whole(bytes: &[u8], status: httparse::Result<usize>) -> Result<(&[u8], usize), HeadError> {
    match status {
        Ok(httparse::Status::Complete(end)) => {
            let head = bytes.get(..end).filter(|head| !matches!(head.first(), Some(b'\r' | b'\n')));
            head.map(|head| (head, end)).ok_or(NOT_HTTP)
        }
        Err(httparse::Error::TooManyHeaders) => Err(HeadError::TooManyFields),
        Ok(httparse::Status::Partial) | Err(_) => Err(NOT_HTTP),
    }
}

/// A reply's head.
#[derive(Debug)]
pub(crate) struct ReplyHead {
    /// Without its body.
    pub(crate) reply: Response,
    pub(crate) framing: Framing,
    pub(crate) keep_alive: bool,
    pub(crate) version: Version,
}

/// Reads the head of a reply to a `method` request: `head` is all of it.
pub(super) fn reply(head: &[u8], method: &Method) -> Result<ReplyHead, HeadError> {
    match whole_reply(head, method)? {
        (read, bytes) if bytes == head.len() => Ok(read),
        _ => Err(NOT_HTTP),
    }
}

/// Reads the head at the beginning of `bytes`, as [`whole_request`] does.
fn whole_reply(bytes: &[u8], method: &Method) -> Result<(ReplyHead, usize), HeadError> {
    let mut lines = [const { MaybeUninit::uninit() }; FIELDS_MAX];
    let mut parsed = httparse::Response::new(&mut []);
    let status = httparse::ParserConfig::default().parse_response_with_uninit_headers(
        &mut parsed,
        bytes,
        &mut lines,
    );
    let (head, end) = whole(bytes, status)?;
    let version = if parsed.version == Some(0) { Version::HTTP_10 } else { Version::HTTP_11 };
    let status = parsed.code.and_then(|code| StatusCode::from_u16(code).ok()).ok_or(NOT_HTTP)?;
    let reason = parsed
        .reason
        .filter(|reason| !reason.is_empty() && status.canonical_reason() != Some(reason));
    let mut reply = Response::new(status, crate::wire::Body::empty());
    reply.reason = reason.map(|reason| reason.as_bytes().into());
    reply.fields = fields(head, parsed.headers).unwrap_or_else(|| {
        // Written anew, since lines that end in LF alone can't be passed on as they are.
        let mut fields = Fields::new();
        parsed.headers.iter().for_each(|field| fields.append(field.name, field.value));
        fields
    });
    let framing = framing::of_reply(&mut reply, method, version)?;
    let keep_alive = keeps_alive(&reply.fields, version) && framing != Framing::UntilClose;
    Ok((ReplyHead { reply, framing, keep_alive, version }, end))
}

/// The lines of `head`, which httparse has taken apart; none where one of them ends in LF alone.
fn fields(head: &[u8], lines: &[httparse::Header<'_>]) -> Option<Fields> {
    let mut fields = Fields::of_head(head);
    let mut index = fields.line_index(lines.len());
    // The last line ends where the empty one begins.
    let last = head.len().checked_sub(LINE_END.len())?;
    let mut next = lines.first().map_or(last, |line| offset(head, line.name.as_bytes()));
    let mut bare = !ends_line(head, next) || !ends_line(head, head.len());
    for (place, line) in lines.iter().enumerate() {
        let name = next..next + line.name.len();
        let value = if line.value.is_empty() { name.end } else { offset(head, line.value) };
        next = lines.get(place + 1).map_or(last, |next| offset(head, next.name.as_bytes()));
        bare |= !ends_line(head, next);
        index.push(name, value..value + line.value.len(), next);
    }
    (!bare).then_some(fields)
}

const LINE_END: &[u8] = b"\r\n";

/// Whether a line ends just before `place` as it should.
fn ends_line(head: &[u8], place: usize) -> bool {
    place.checked_sub(LINE_END.len()).and_then(|start| head.get(start..place)) == Some(LINE_END)
}

/// Where `part` begins in `whole`, of which it is a part.
fn offset(whole: &[u8], part: &[u8]) -> usize {
    part.as_ptr().addr().saturating_sub(whole.as_ptr().addr())
}

/// Whether the connection goes on after this message (RFC 9112, 9.3).
fn keeps_alive(fields: &Fields, version: Version) -> bool {
    const CONNECTION: KnownSet = KnownSet::of(&[Known::Connection]);
    if !fields.present().meets(CONNECTION) {
        return version == Version::HTTP_11;
    }
    let said = |word: &[u8]| {
        let tokens =
            fields.get_all(Known::Connection).flat_map(|value| value.split(|byte| *byte == b','));
        tokens.map(<[u8]>::trim_ascii).any(|token| token.eq_ignore_ascii_case(word))
    };
    !said(b"close") && (version == Version::HTTP_11 || said(b"keep-alive"))
}

/// Path and query, and the authority, of a target in any of its four forms (RFC 9112, 3.2).
fn target(
    asked: &str,
    is_connect: bool,
) -> Result<(Range<usize>, Option<Range<usize>>), HeadError> {
    const NONE: HeadError = HeadError::Malformed("the target is no path and no URI");
    if asked.starts_with('/') {
        return Ok((0..path(asked).ok_or(NONE)?, None));
    }
    if asked == "*" {
        return Ok((0..1, None));
    }
    if is_connect {
        return Ok((0..0, Some(0..asked.len())));
    }
    let (scheme, rest) = asked.split_once("://").ok_or(NONE)?;
    let is_scheme = scheme.eq_ignore_ascii_case("http") || scheme.eq_ignore_ascii_case("https");
    let start = scheme.len() + 3;
    let authority = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    if !is_scheme || authority == 0 {
        return Err(NONE);
    }
    let length = path(rest.get(authority..).unwrap_or_default()).ok_or(NONE)?;
    Ok((start + authority..start + authority + length, Some(start..start + authority)))
}

/// How much of `asked` is path and query: a fragment is left off. None where a byte has no place in
/// either.
fn path(asked: &str) -> Option<usize> {
    let mut bytes = asked.bytes().enumerate();
    let is = |byte: u8, place: u8| {
        PLACES.get(usize::from(byte)).is_some_and(|places| places & place != 0)
    };
    let Some((place, end)) = bytes.by_ref().find(|(_, byte)| !is(*byte, IN_PATH)) else {
        return Some(asked.len());
    };
    let (place, end) = match end {
        b'?' => match bytes.find(|(_, byte)| !is(*byte, IN_QUERY)) {
            Some(found) => found,
            None => return Some(asked.len()),
        },
        _ => (place, end),
    };
    (end == b'#').then_some(place)
}

const IN_PATH: u8 = 1;
const IN_QUERY: u8 = 2;

/// Where in a target each byte may stand. As RFC 3986 has it, with what clients send all the same:
/// `"`, `{`, `}` and UTF-8 in the path, all that is visible in the query.
static PLACES: [u8; 256] = places();

#[allow(
    clippy::indexing_slicing,
    reason = "evaluated at compile time, where an index out of bounds is an error of the build"
)]
const fn places() -> [u8; 256] {
    let mut places = [0; 256];
    let mut byte = 0;
    while byte < places.len() {
        if matches!(byte, 0x21..=0x22 | 0x24..=0x3B | 0x3D | 0x40..=0x5F | 0x61..=0x7E | 0x80..) {
            places[byte] |= IN_PATH;
        }
        if matches!(byte, 0x21 | 0x24..=0x3B | 0x3D | 0x3F..=0x7E | 0x80..) {
            places[byte] |= IN_QUERY;
        }
        byte += 1;
    }
    places
}
