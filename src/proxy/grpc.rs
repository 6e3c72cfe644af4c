//! Refusals as a gRPC client reads them: it looks at `grpc-status` and not at HTTP's. Knows no
//! limit.
//!
//! The answer is one that gRPC calls Trailers-Only: 200 and a head that is all. Statuses follow
//! gRPC's own mapping of HTTP's, with two that say more: 429 is `RESOURCE_EXHAUSTED` (which Envoy
//! says only when it is told to; `UNAVAILABLE`, its default, makes clients try again at once) and
//! 504 is `DEADLINE_EXCEEDED`.

use std::fmt::Write as _;

use http::{Method, StatusCode, Version};

use super::fields;
use crate::wire::{Body, Fields, Known, Request, Response};

const GRPC: &[u8] = b"application/grpc";

/// Whether who asks speaks gRPC, which is POST over HTTP/2 only; gRPC-Web is not gRPC.
pub(super) fn is_spoken(request: &Request) -> bool {
    request.version == Version::HTTP_2
        && request.method == Method::POST
        && request.fields.get(Known::ContentType).is_some_and(is_content_type)
}

fn is_content_type(value: &[u8]) -> bool {
    let Some((start, rest)) = value.split_at_checked(GRPC.len()) else { return false };
    start.eq_ignore_ascii_case(GRPC) && matches!(rest.first(), None | Some(b'+' | b';' | b' '))
}

/// When to come back, as far as a refusal says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pushback {
    /// It does not say.
    Unsaid,
    /// Waiting does not help.
    Never,
    /// After so many milliseconds.
    After(u64),
}

/// The whole answer in a head: `fields` are those that it has anyhow.
pub(super) fn trailers_only(
    status: StatusCode,
    message: &str,
    pushback: Pushback,
    mut fields: Fields,
) -> Response {
    fields.set(Known::ContentType, "application/grpc");
    fields::set_number(&mut fields, "grpc-status", code(status).into());
    fields.set("grpc-message", percent_encoded(message));
    match pushback {
        Pushback::Unsaid => {}
        Pushback::Never => fields.set("grpc-retry-pushback-ms", "-1"),
        Pushback::After(ms) => fields::set_number(&mut fields, "grpc-retry-pushback-ms", ms),
    }
    Response { fields, ..Response::new(StatusCode::OK, Body::empty()) }
}

fn code(status: StatusCode) -> u16 {
    match status.as_u16() {
        400 | 414 | 431 => 13,
        401 => 16,
        403 => 7,
        404 | 405 | 501 => 12,
        408 | 504 => 4,
        413 | 429 => 8,
        499 => 1,
        502 | 503 => 14,
        500 => 13,
        _ => 2,
    }
}

/// As gRPC writes a message: what is not visible ASCII, and `%`, as the escapes of its UTF-8.
fn percent_encoded(message: &str) -> String {
    let mut out = String::with_capacity(message.len() + 16);
    for byte in message.bytes() {
        match byte {
            b' '..=b'~' if byte != b'%' => out.push(char::from(byte)),
            // Writing to a String can't fail.
            byte => drop(write!(out, "%{byte:02X}")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grpc_is_told_by_its_content_type() {
        for (value, is) in [
            ("application/grpc", true),
            ("application/grpc+proto", true),
            ("Application/gRPC;x=1", true),
            ("application/grpc-web", false),
            ("application/grpc-web+proto", false),
            ("application/grp", false),
            ("application/json", false),
        ] {
            assert_eq!(is_content_type(value.as_bytes()), is, "{value}");
        }
    }

    #[test]
    fn each_status_has_its_code() {
        for (status, expected) in [
            (400, 13),
            (401, 16),
            (403, 7),
            (404, 12),
            (405, 12),
            (413, 8),
            (429, 8),
            (451, 2),
            (499, 1),
            (500, 13),
            (502, 14),
            (503, 14),
            (504, 4),
            (599, 2),
        ] {
            assert_eq!(code(StatusCode::from_u16(status).unwrap()), expected, "{status}");
        }
    }

    #[test]
    fn a_message_is_escaped() {
        assert_eq!(percent_encoded("100 % \u{e9}\n"), "100 %25 %C3%A9%0A");
    }
}
