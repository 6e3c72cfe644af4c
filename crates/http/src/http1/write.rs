//! Writes heads into a buffer, in one pass. Knows nothing about connections.

use http::{StatusCode, Version};

use super::date;
use super::send::Encoding;
use crate::wire::{Fields, Known, Request};

/// Writes a request's head. Its framing fields are changed to agree with `encoding`.
pub(crate) fn request_head(out: &mut Vec<u8>, request: &mut Request, encoding: Encoding) {
    frame(&mut request.fields, encoding);
    out.extend_from_slice(request.method.as_str().as_bytes());
    out.push(b' ');
    out.extend_from_slice(request.target_bytes());
    out.extend_from_slice(b" HTTP/1.1\r\n");
    request.fields.write(out);
    out.extend_from_slice(b"\r\n");
}

/// Writes a reply's head for a client of `version`. `closes`: the connection closes after this
/// reply.
pub(crate) fn reply_head(
    out: &mut Vec<u8>,
    (status, reason): (StatusCode, Option<&[u8]>),
    fields: &mut Fields,
    encoding: Encoding,
    (version, closes): (Version, bool),
) {
    out.extend_from_slice(if version == Version::HTTP_10 { b"HTTP/1.0 " } else { b"HTTP/1.1 " });
    out.extend_from_slice(status.as_str().as_bytes());
    out.push(b' ');
    out.extend_from_slice(
        reason.or(status.canonical_reason().map(str::as_bytes)).unwrap_or_default(),
    );
    out.extend_from_slice(b"\r\n");
    frame(fields, encoding);
    if status.is_informational() {
        // The `Connection` field of a 101 belongs to the new protocol. A length is forbidden (RFC
        // 9110, 8.6).
        fields.remove(Known::ContentLength);
    } else if closes {
        fields.set(Known::Connection, "close");
    } else if version == Version::HTTP_10 {
        fields.set(Known::Connection, "keep-alive");
    }
    fields.write(out);
    if !status.is_informational() && !fields.has(Known::Date) {
        out.extend_from_slice(b"date: ");
        out.extend_from_slice(&date::now());
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(b"\r\n");
}

/// Makes the framing fields agree with `encoding`.
fn frame(fields: &mut Fields, encoding: Encoding) {
    match encoding {
        Encoding::Length(length) => {
            fields.remove(Known::TransferEncoding);
            let mut digits = itoa::Buffer::new();
            let digits = digits.format(length);
            let mut values = fields.get_all(Known::ContentLength);
            // A correct length stays as it arrived. Two equal ones are written as one, since the
            // next reader may not accept two.
            let agrees = values.next() == Some(digits.as_bytes()) && values.next().is_none();
            drop(values);
            if !agrees {
                fields.set(Known::ContentLength, digits);
            }
        }
        Encoding::NoBody => {
            fields.remove(Known::TransferEncoding);
        }
        Encoding::Chunked => {
            fields.remove(Known::ContentLength);
            fields.set(Known::TransferEncoding, "chunked");
        }
        Encoding::Close => {
            fields.remove(Known::ContentLength);
            fields.remove(Known::TransferEncoding);
        }
    }
}
