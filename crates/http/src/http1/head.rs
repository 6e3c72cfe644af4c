//! Finds, checks and parses heads. Knows nothing about connections.
//!
//! httparse does the syntax. What it accepts although others read it differently is refused here:
//! lines that end in LF alone, versions other than 1.0 and 1.1, targets that are not a URI. Nearly
//! all heads arrive in one piece, and httparse parses those directly. For a head in several pieces
//! the end is found first, so that no byte is scanned again with each piece.

use std::mem::MaybeUninit;
use std::ops::Range;

use http::{Method, StatusCode, Version};
use memchr::memchr;

use super::error::HeadError;
use super::framing::{self, Framing};
use crate::wire::{Fields, Known, KnownSet, Request, Response, Span};

/// Maximum fields of a head. Above it a request is answered 431, and a reply fails.
pub(crate) const FIELDS_MAX: usize = 100;

/// Finds the end of a head that may arrive in pieces, and continues where it stopped.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Scan {
    /// The bytes before this position were scanned.
    seen: usize,
    /// Where the line that contains `seen` begins.
    line: usize,
    /// Where the head begins, after empty lines (RFC 9112, 2.2).
    start: usize,
    /// Whether a line ended in LF alone.
    bare_lf: bool,
}

impl Scan {
    /// Finds the head in `bytes`, including its empty line; `None` if it is incomplete. `bytes`
    /// must begin with those of the last call.
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
            self.bare_lf |= text.is_none();
            if self.bare_lf && !lenient {
                return Err(BARE_LF);
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

    /// Parses the request's head at the start of `bytes`. Returns its length too, including empty
    /// lines before it; `None` if it is incomplete. `bytes` must begin with those of the last call.
    ///
    /// # Errors
    /// The head is refused.
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

    /// Parses the head of the reply to a `method` request, likewise. Its lines may end in LF alone.
    ///
    /// # Errors
    /// The head is refused.
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

    /// Whether anything but empty lines has arrived.
    pub(crate) fn has_begun(&self) -> bool {
        self.seen > self.start
    }
}

const NOT_HTTP: HeadError = HeadError::Malformed("the head is not HTTP");
const BARE_LF: HeadError = HeadError::Malformed("a line ends without a carriage return");

/// A request's head.
#[derive(Debug)]
pub(crate) struct RequestHead {
    pub(crate) request: Request,
    pub(crate) framing: Framing,
    /// The client may send another request on this connection.
    pub(crate) keep_alive: bool,
    /// The client waits for a 100 (Continue) before it sends the body.
    pub(crate) expects_continue: bool,
}

/// Parses the head of a request; `head` is exactly the head.
pub(super) fn request(head: &[u8]) -> Result<RequestHead, HeadError> {
    match whole_request(head)? {
        (read, bytes) if bytes == head.len() => Ok(read),
        _ => Err(NOT_HTTP),
    }
}

/// Parses the head at the start of `bytes` and returns its length too. An incomplete head, or an
/// empty line before it, is an error like any other.
fn whole_request(bytes: &[u8]) -> Result<(RequestHead, usize), HeadError> {
    let mut lines = [const { MaybeUninit::uninit() }; FIELDS_MAX];
    let mut parsed = httparse::Request::new(&mut []);
    let status = httparse::ParserConfig::default().parse_request_with_uninit_headers(
        &mut parsed,
        bytes,
        &mut lines,
    );
    let (head, end) = whole(bytes, status)?;
    let (Some(method), Some(raw), Some(minor)) = (parsed.method, parsed.path, parsed.version)
    else {
        return Err(NOT_HTTP);
    };
    let version = if minor == 0 { Version::HTTP_10 } else { Version::HTTP_11 };
    let is_connect = method == "CONNECT";
    let method = Method::from_bytes(method.as_bytes())
        .map_err(|_| HeadError::Malformed("the method is not valid"))?;
    let (target, authority) = target(raw, is_connect)?;
    let base = offset(head, raw.as_bytes());
    let span = |range: Range<usize>| Span::new(base + range.start..base + range.end);
    let fields = fields(head, parsed.headers).ok_or(BARE_LF)?;
    let mut request = Request::new(method, version, fields, span(target), authority.map(span));
    let framing = framing::of_request(&mut request)?;
    let keep_alive = keeps_alive(&request.fields, version);
    let expects_continue = version == Version::HTTP_11
        && framing != Framing::Length(0)
        && request
            .fields
            .get(Known::Expect)
            .is_some_and(|value| value.eq_ignore_ascii_case(b"100-continue"));
    Ok((RequestHead { request, framing, keep_alive, expects_continue }, end))
}

/// The head that httparse has parsed, and its length.
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
    /// The reply without its body.
    pub(crate) reply: Response,
    pub(crate) framing: Framing,
    pub(crate) keep_alive: bool,
    pub(crate) version: Version,
}

/// Parses the head of the reply to a `method` request; `head` is exactly the head.
pub(super) fn reply(head: &[u8], method: &Method) -> Result<ReplyHead, HeadError> {
    match whole_reply(head, method)? {
        (read, bytes) if bytes == head.len() => Ok(read),
        _ => Err(NOT_HTTP),
    }
}

/// Parses the head at the start of `bytes`, like [`whole_request`].
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
        // Written again, since lines that end in LF alone can't be passed on as they are.
        let mut fields = Fields::new();
        parsed.headers.iter().for_each(|field| fields.append(field.name, field.value));
        fields
    });
    let framing = framing::of_reply(&mut reply, method, version)?;
    let keep_alive = keeps_alive(&reply.fields, version) && framing != Framing::UntilClose;
    Ok((ReplyHead { reply, framing, keep_alive, version }, end))
}

/// The fields of `head`, as parsed by httparse. `None` if a line ends in LF alone.
fn fields(head: &[u8], lines: &[httparse::Header<'_>]) -> Option<Fields> {
    let mut fields = Fields::of_head(head);
    let mut line_index = fields.line_index(lines.len());
    // The last field's line ends where the empty line begins.
    let last = head.len().checked_sub(LINE_END.len())?;
    let mut next = lines.first().map_or(last, |line| offset(head, line.name.as_bytes()));
    let mut bare_lf = !ends_line(head, next) || !ends_line(head, head.len());
    for (index, line) in lines.iter().enumerate() {
        let name = next..next + line.name.len();
        let value = if line.value.is_empty() { name.end } else { offset(head, line.value) };
        next = lines.get(index + 1).map_or(last, |next| offset(head, next.name.as_bytes()));
        bare_lf |= !ends_line(head, next);
        line_index.push(name, value..value + line.value.len(), next);
    }
    (!bare_lf).then_some(fields)
}

const LINE_END: &[u8] = b"\r\n";

/// Whether there is a CRLF just before `position`.
fn ends_line(head: &[u8], position: usize) -> bool {
    position.checked_sub(LINE_END.len()).and_then(|start| head.get(start..position))
        == Some(LINE_END)
}

/// The position of `part`, a slice of `whole`.
fn offset(whole: &[u8], part: &[u8]) -> usize {
    part.as_ptr().addr().saturating_sub(whole.as_ptr().addr())
}

/// Whether the connection stays open after this message (RFC 9112, 9.3).
fn keeps_alive(fields: &Fields, version: Version) -> bool {
    const CONNECTION: KnownSet = KnownSet::of(&[Known::Connection]);
    if !fields.present().meets(CONNECTION) {
        return version == Version::HTTP_11;
    }
    let has_token = |word: &[u8]| {
        let tokens =
            fields.get_all(Known::Connection).flat_map(|value| value.split(|byte| *byte == b','));
        tokens.map(<[u8]>::trim_ascii).any(|token| token.eq_ignore_ascii_case(word))
    };
    !has_token(b"close") && (version == Version::HTTP_11 || has_token(b"keep-alive"))
}

/// The path and query, and the authority, of a target in any of its four forms (RFC 9112, 3.2).
fn target(raw: &str, is_connect: bool) -> Result<(Range<usize>, Option<Range<usize>>), HeadError> {
    const NONE: HeadError = HeadError::Malformed("the target is neither a path nor a URI");
    if raw.starts_with('/') {
        return Ok((0..path(raw).ok_or(NONE)?, None));
    }
    if raw == "*" {
        return Ok((0..1, None));
    }
    if is_connect {
        return Ok((0..0, Some(0..raw.len())));
    }
    let (scheme, rest) = raw.split_once("://").ok_or(NONE)?;
    let is_scheme = scheme.eq_ignore_ascii_case("http") || scheme.eq_ignore_ascii_case("https");
    let start = scheme.len() + 3;
    let authority = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    if !is_scheme || authority == 0 {
        return Err(NONE);
    }
    let length = path(rest.get(authority..).unwrap_or_default()).ok_or(NONE)?;
    Ok((start + authority..start + authority + length, Some(start..start + authority)))
}

/// The length of path and query; a fragment is left off. `None` if a byte is not allowed there.
fn path(raw: &str) -> Option<usize> {
    let mut bytes = raw.bytes().enumerate();
    let is = |byte: u8, position: u8| {
        ALLOWED.get(usize::from(byte)).is_some_and(|allowed| allowed & position != 0)
    };
    let Some((position, end)) = bytes.by_ref().find(|(_, byte)| !is(*byte, IN_PATH)) else {
        return Some(raw.len());
    };
    let (position, end) = match end {
        b'?' => match bytes.find(|(_, byte)| !is(*byte, IN_QUERY)) {
            Some(found) => found,
            None => return Some(raw.len()),
        },
        _ => (position, end),
    };
    (end == b'#').then_some(position)
}

const IN_PATH: u8 = 1;
const IN_QUERY: u8 = 2;

/// Where each byte may occur in a target. This follows RFC 3986, and allows what clients send in
/// practice: `"`, `{`, `}` and UTF-8 in the path, and all visible characters in the query.
static ALLOWED: [u8; 256] = allowed();

#[allow(
    clippy::indexing_slicing,
    reason = "evaluated at compile time, where an index out of bounds is an error of the build"
)]
const fn allowed() -> [u8; 256] {
    let mut allowed = [0; 256];
    let mut byte = 0;
    while byte < allowed.len() {
        if matches!(byte, 0x21..=0x22 | 0x24..=0x3B | 0x3D | 0x40..=0x5F | 0x61..=0x7E | 0x80..) {
            allowed[byte] |= IN_PATH;
        }
        if matches!(byte, 0x21 | 0x24..=0x3B | 0x3D | 0x3F..=0x7E | 0x80..) {
            allowed[byte] |= IN_QUERY;
        }
        byte += 1;
    }
    allowed
}
