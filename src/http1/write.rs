//! Heads into a buffer, in one pass. Knows no connection.

use http::{StatusCode, Version};

use super::date;
use super::send::Encoding;
use crate::wire::{Fields, Known, Request};

/// A request's head. `encoding` says how its body is sent; what its fields say of that is made to
/// agree.
pub(crate) fn request_head(out: &mut Vec<u8>, request: &mut Request, encoding: Encoding) {
    frame(&mut request.fields, encoding);
    out.extend_from_slice(request.method.as_str().as_bytes());
    out.push(b' ');
    out.extend_from_slice(request.target_bytes());
    out.extend_from_slice(b" HTTP/1.1\r\n");
    request.fields.write(out);
    out.extend_from_slice(b"\r\n");
}

/// A reply's head to a client of `version`. `closes`: the connection ends with this reply.
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
        // What stands in `Connection` of a 101 concerns the protocol that follows. A length is
        // forbidden (RFC 9110, 8.6).
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

/// Makes the fields say what `encoding` does.
fn frame(fields: &mut Fields, encoding: Encoding) {
    match encoding {
        Encoding::Length(length) => {
            fields.remove(Known::TransferEncoding);
            let mut digits = itoa::Buffer::new();
            let digits = digits.format(length);
            let mut said = fields.get_all(Known::ContentLength);
            // One that is right stays as it came. Two that agree pass as one: whoever reads them
            // next may not take two.
            let agrees = said.next() == Some(digits.as_bytes()) && said.next().is_none();
            drop(said);
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
