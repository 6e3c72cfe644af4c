//! Decides how long a message's body is (RFC 9112, 6.3). Ambiguous messages are refused. Knows
//! nothing about the body's bytes.

use http::{Method, StatusCode, Version};

use super::error::HeadError;
use crate::wire::{Fields, Known, KnownSet, Request, Response};

/// Where a body ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    /// After this many bytes. 0 means that there is no body.
    Length(u64),
    /// The body ends with its last chunk.
    Chunked,
    /// When the connection closes.
    UntilClose,
}

const LENGTHS: KnownSet = KnownSet::of(&[Known::ContentLength, Known::TransferEncoding]);

/// The framing of a request's body. Merges repeated lengths.
pub(super) fn of_request(request: &mut Request) -> Result<Framing, HeadError> {
    let fields = &mut request.fields;
    if !fields.present().meets(LENGTHS) {
        return Ok(Framing::Length(0));
    }
    if !fields.has(Known::TransferEncoding) {
        let length =
            length(fields).ok_or(HeadError::Malformed("Content-Length is not a single number"))?;
        // An upstream over HTTP/2 may not accept two.
        fields.keep_first(Known::ContentLength);
        return Ok(Framing::Length(length));
    }
    if fields.has(Known::ContentLength) {
        return Err(HeadError::Malformed(
            "the request has both Content-Length and Transfer-Encoding",
        ));
    }
    if request.version == Version::HTTP_10 {
        return Err(HeadError::Malformed("HTTP/1.0 has no Transfer-Encoding"));
    }
    let mut codings = fields.get_all(Known::TransferEncoding).flat_map(list);
    match (codings.next(), codings.next()) {
        (Some(only), None) if only.eq_ignore_ascii_case(b"chunked") => Ok(Framing::Chunked),
        _ => {
            let all = || fields.get_all(Known::TransferEncoding).flat_map(list);
            let chunked = all().filter(|coding| coding.eq_ignore_ascii_case(b"chunked")).count();
            let last = all().last().is_some_and(|coding| coding.eq_ignore_ascii_case(b"chunked"));
            // If `chunked` is not the last coding, the end of the request is unknown. If it occurs
            // twice, other readers may decode it twice.
            if last && chunked == 1 {
                Err(HeadError::UnknownCoding)
            } else {
                Err(HeadError::Malformed("chunked is not the last transfer coding, or is repeated"))
            }
        }
    }
}

/// The framing of a reply's body. Removes a length next to `chunked`, and merges repeated ones.
pub(super) fn of_reply(
    reply: &mut Response,
    method: &Method,
    version: Version,
) -> Result<Framing, HeadError> {
    let status = reply.status;
    let bodiless = *method == Method::HEAD
        || status.is_informational()
        || status == StatusCode::NO_CONTENT
        || status == StatusCode::NOT_MODIFIED;
    let fields = &mut reply.fields;
    if !fields.present().meets(LENGTHS) {
        return Ok(if bodiless { Framing::Length(0) } else { Framing::UntilClose });
    }
    if fields.has(Known::TransferEncoding) {
        // Another coding besides `chunked` changes the content, which the client would not know.
        let mut codings = fields.get_all(Known::TransferEncoding).flat_map(list);
        let chunked = codings.next().is_some_and(|coding| coding.eq_ignore_ascii_case(b"chunked"));
        if !chunked || codings.next().is_some() || version == Version::HTTP_10 {
            return Err(HeadError::UnknownCoding);
        }
        drop(codings);
        fields.remove(Known::ContentLength);
        return Ok(if bodiless { Framing::Length(0) } else { Framing::Chunked });
    }
    let mut values = fields.get_all(Known::ContentLength);
    if let (Some(only), None) = (values.next(), values.next())
        && let Some(length) = number(only)
    {
        return Ok(Framing::Length(if bodiless { 0 } else { length }));
    }
    drop(values);
    let length = length_of(fields.get_all(Known::ContentLength).flat_map(list))
        .ok_or(HeadError::Malformed("Content-Length is not a number"))?;
    // `5, 5` is one length that an earlier proxy has joined (RFC 9110, 8.6).
    fields.set(Known::ContentLength, itoa::Buffer::new().format(length));
    Ok(Framing::Length(if bodiless { 0 } else { length }))
}

/// A request's length. Two equal fields count as one, but a list within a field is refused.
fn length(fields: &Fields) -> Option<u64> {
    length_of(fields.get_all(Known::ContentLength))
}

fn length_of<'a>(mut values: impl Iterator<Item = &'a [u8]>) -> Option<u64> {
    let first = number(values.next()?)?;
    values.all(|value| number(value) == Some(first)).then_some(first)
}

/// Accepts digits only. Numbers above 63 bits are refused too, since many peers use signed numbers.
fn number(text: &[u8]) -> Option<u64> {
    let mut digits = text.iter();
    let digit =
        |byte: &u8| Some(byte.wrapping_sub(b'0')).filter(|digit| *digit < 10).map(u64::from);
    let first = digit(digits.next()?)?;
    let number =
        digits.try_fold(first, |number, byte| number.checked_mul(10)?.checked_add(digit(byte)?))?;
    (number <= u64::MAX >> 1).then_some(number)
}

fn list(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii)
}
