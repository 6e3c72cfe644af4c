//! A head out of a buffer: found, checked, and taken apart. Knows no connection.
//!
//! httparse reads the syntax; what it lets pass and others read differently is refused here: a line that ends in LF alone, a version other than 1.0
//! and 1.1, a target that is no URI. Each byte is looked at twice: once for the line ends, also where a head comes in pieces, and once by httparse.

use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::LazyLock;

use http::{Method, StatusCode, Version};
use memchr::memchr;
use memchr::memmem::Finder;

use super::framing::{self, Framing};
use crate::wire::{Fields, Known, KnownSet, Request, Response, Span};

/// Fields of one head, at most: above, 431 for a request and a failure for a reply.
pub(crate) const FIELDS_MAX: usize = 100;

/// Why a head is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// It is not HTTP, or can be read in two ways: 400.
    Malformed(&'static str),
    /// It has too many fields: 431.
    TooManyFields,
    /// A transfer coding other than `chunked`: 501.
    UnknownCoding,
}

impl Refused {
    /// What a client is told.
    pub(crate) fn status(self) -> StatusCode {
        match self {
            Self::Malformed(_) => StatusCode::BAD_REQUEST,
            Self::TooManyFields => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            Self::UnknownCoding => StatusCode::NOT_IMPLEMENTED,
        }
    }
}

/// A head's last line and the empty one.
static END: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\r\n\r\n"));
const END_BYTES: usize = 4;

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
    /// Where the head is in `bytes`, its empty line included; none where it has not all come. `bytes` are those of the last call and more.
    ///
    /// # Errors
    /// A line ends in LF alone, unless `lenient`.
    pub(crate) fn find(&mut self, bytes: &[u8], lenient: bool) -> Result<Option<Range<usize>>, Refused> {
        // Nearly every head comes whole, begins with its first line and ends its lines as it should.
        if self.seen == 0
            && let Some(end) = END.find(bytes).filter(|end| *end > 0)
            && let Some(head) = bytes.get(..end + END_BYTES)
            && !head.starts_with(b"\r")
            && !has_bare_line_end(head)
        {
            (self.seen, self.line) = (head.len(), head.len());
            return Ok(Some(0..head.len()));
        }
        while let Some(found) = bytes.get(self.seen..).and_then(|rest| memchr(b'\n', rest)) {
            let end = self.seen + found;
            let line = bytes.get(self.line..end).unwrap_or_default();
            let text = line.strip_suffix(b"\r");
            self.bare |= text.is_none();
            if self.bare && !lenient {
                return Err(Refused::Malformed("a line ends without a carriage return"));
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

    /// Whether anything but empty lines has come.
    pub(crate) fn has_begun(&self) -> bool {
        self.seen > self.start
    }
}

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
pub(crate) fn request(head: &[u8]) -> Result<RequestHead, Refused> {
    let mut lines = [const { MaybeUninit::uninit() }; FIELDS_MAX];
    let mut parsed = httparse::Request::new(&mut []);
    let status = httparse::ParserConfig::default().parse_request_with_uninit_headers(&mut parsed, head, &mut lines);
    match status {
        Ok(httparse::Status::Complete(bytes)) if bytes == head.len() => {}
        Err(httparse::Error::TooManyHeaders) => return Err(Refused::TooManyFields),
        Ok(_) | Err(_) => return Err(Refused::Malformed("the head is not HTTP")),
    }
    let (Some(method), Some(asked), Some(minor)) = (parsed.method, parsed.path, parsed.version) else {
        return Err(Refused::Malformed("the head is not HTTP"));
    };
    let version = if minor == 0 { Version::HTTP_10 } else { Version::HTTP_11 };
    let is_connect = method == "CONNECT";
    let method = Method::from_bytes(method.as_bytes()).map_err(|_| Refused::Malformed("the method is none"))?;
    let (target, authority) = target(asked, is_connect)?;
    let place = |range: Range<usize>| {
        let base = offset(head, asked.as_bytes());
        Span::new(base + range.start..base + range.end)
    };
    let fields = fields(head, parsed.headers);
    let request = Request::new(method, version, fields, place(target), authority.map(place));
    let framing = framing::of_request(&request)?;
    let keep_alive = keeps_alive(&request.fields, version);
    let expects_continue = version == Version::HTTP_11
        && framing != Framing::Length(0)
        && request.fields.get(Known::Expect).is_some_and(|value| value.eq_ignore_ascii_case(b"100-continue"));
    Ok(RequestHead { request, framing, keep_alive, expects_continue })
}

/// A reply's head.
#[derive(Debug)]
pub(crate) struct ReplyHead {
    /// Without its body.
    pub(crate) reply: Response,
    pub(crate) framing: Framing,
    pub(crate) keep_alive: bool,
}

/// Reads the head of a reply to a `method` request: `head` is all of it.
pub(crate) fn reply(head: &[u8], method: &Method) -> Result<ReplyHead, Refused> {
    const NONE: Refused = Refused::Malformed("the head is not HTTP");
    let mut lines = [const { MaybeUninit::uninit() }; FIELDS_MAX];
    let mut parsed = httparse::Response::new(&mut []);
    let status = httparse::ParserConfig::default().parse_response_with_uninit_headers(&mut parsed, head, &mut lines);
    match status {
        Ok(httparse::Status::Complete(bytes)) if bytes == head.len() => {}
        Err(httparse::Error::TooManyHeaders) => return Err(Refused::TooManyFields),
        Ok(_) | Err(_) => return Err(NONE),
    }
    let version = if parsed.version == Some(0) { Version::HTTP_10 } else { Version::HTTP_11 };
    let status = parsed.code.and_then(|code| StatusCode::from_u16(code).ok()).ok_or(NONE)?;
    let reason = parsed.reason.filter(|reason| !reason.is_empty() && status.canonical_reason() != Some(reason));
    let mut reply = Response::new(status, crate::wire::Body::empty());
    reply.reason = reason.map(|reason| reason.as_bytes().into());
    reply.fields = if has_bare_line_end(head) {
        // Written anew, since its lines can't be passed on as they are.
        let mut fields = Fields::new();
        parsed.headers.iter().for_each(|field| fields.append(field.name, field.value));
        fields
    } else {
        fields(head, parsed.headers)
    };
    let framing = framing::of_reply(&mut reply, method, version)?;
    let keep_alive = keeps_alive(&reply.fields, version) && framing != Framing::UntilClose;
    Ok(ReplyHead { reply, framing, keep_alive })
}

/// Whether a line ends in LF alone. Looks at all pairs whatever it finds, so that many are looked at at once.
fn has_bare_line_end(head: &[u8]) -> bool {
    let pairs = head.iter().zip(head.get(1..).unwrap_or_default());
    head.first() == Some(&b'\n') || pairs.fold(false, |found, (before, byte)| found | ((*byte == b'\n') & (*before != b'\r')))
}

/// The lines of `head`, which httparse has taken apart.
fn fields(head: &[u8], lines: &[httparse::Header<'_>]) -> Fields {
    let mut fields = Fields::of_head(head);
    let mut lines = lines.iter().peekable();
    while let Some(line) = lines.next() {
        let name = offset(head, line.name.as_bytes());
        let name = name..name + line.name.len();
        let value = if line.value.is_empty() { name.end } else { offset(head, line.value) };
        // The last line ends where the empty one begins.
        let next = lines.peek().map_or(head.len() - 2, |next| offset(head, next.name.as_bytes()));
        fields.note(name, value..value + line.value.len(), next);
    }
    fields
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
        let tokens = fields.get_all(Known::Connection).flat_map(|value| value.split(|byte| *byte == b','));
        tokens.map(<[u8]>::trim_ascii).any(|token| token.eq_ignore_ascii_case(word))
    };
    !said(b"close") && (version == Version::HTTP_11 || said(b"keep-alive"))
}

/// Path and query, and the authority, of a target in any of its four forms (RFC 9112, 3.2).
fn target(asked: &str, is_connect: bool) -> Result<(Range<usize>, Option<Range<usize>>), Refused> {
    const NONE: Refused = Refused::Malformed("the target is no path and no URI");
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

/// How much of `asked` is path and query: a fragment is left off. None where a byte has no place in either.
fn path(asked: &str) -> Option<usize> {
    let length = memchr(b'#', asked.as_bytes()).unwrap_or(asked.len());
    let text = asked.get(..length)?;
    let query = memchr(b'?', text.as_bytes()).unwrap_or(length);
    // As RFC 3986 has it, with what clients send all the same: `"`, `{`, `}` and UTF-8 in the path, all that is visible in the query.
    let in_path = |byte: u8| matches!(byte, 0x21..=0x3B | 0x3D | 0x40..=0x5F | 0x61..=0x7E | 0x80..);
    let in_query = |byte: u8| matches!(byte, 0x21 | 0x24..=0x3B | 0x3D | 0x3F..=0x7E | 0x80..);
    let fits = text.as_bytes().get(..query)?.iter().all(|byte| in_path(*byte))
        && text.as_bytes().get(query + 1..).unwrap_or_default().iter().all(|byte| in_query(*byte));
    fits.then_some(length)
}
