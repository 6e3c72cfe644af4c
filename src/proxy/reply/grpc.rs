//! Refusals for gRPC clients, which look at `grpc-status` and not at the HTTP status. Knows no
//! limit.
//!
//! The response is what gRPC calls Trailers-Only: a 200 that consists of a head. Statuses follow
//! gRPC's own mapping from HTTP, with two that are more specific. 429 is `RESOURCE_EXHAUSTED`.
//! Envoy uses that only if configured; with its default, `UNAVAILABLE`, clients retry at once. 504
//! is `DEADLINE_EXCEEDED`.

use std::fmt::Write as _;

use http::StatusCode;

use super::fields;
use crate::wire::{Body, Fields, Known, Response};

/// The content type of gRPC.
pub(in crate::proxy) const CONTENT_TYPE: &str = "application/grpc";

/// The status of a call that went well.
pub(in crate::proxy) const OK: &str = "0";
/// The status of a call that may be repeated elsewhere.
pub(in crate::proxy) const UNAVAILABLE: &str = "14";
/// The status of a call that its caller may not make.
pub(in crate::proxy) const PERMISSION_DENIED: &str = "7";
/// The status of a call that is wrong in itself, for which gRPC's mapping from HTTP has no word.
pub(in crate::proxy) const INVALID_ARGUMENT: &str = "3";
/// The status of a call about something that is not there, likewise.
pub(in crate::proxy) const NOT_FOUND: &str = "5";

/// What a refusal says about when to retry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::proxy) enum Pushback {
    /// Nothing.
    Unsaid,
    /// Retrying does not help.
    Never,
    /// After this many milliseconds.
    After(u64),
}

/// The whole response in a head. `fields` are added to.
pub(in crate::proxy) fn trailers_only(
    status: StatusCode,
    message: &str,
    pushback: Pushback,
    mut fields: Fields,
) -> Response {
    fields.set(Known::ContentType, CONTENT_TYPE);
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

/// Escapes a message as gRPC does: `%` and everything but visible ASCII, as the escapes of its
/// UTF-8.
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
