//! Whether a client speaks gRPC. Knows nothing else of the protocol.

use http::{Method, Version};

use crate::wire::{Known, Request};

/// The content type of gRPC; what follows `+` names the encoding of messages.
const CONTENT_TYPE: &[u8] = b"application/grpc";

/// Whether the client speaks gRPC, which is always POST over HTTP/2. gRPC-Web is not gRPC.
pub(in crate::proxy) fn is_request(request: &Request) -> bool {
    request.version == Version::HTTP_2
        && request.method == Method::POST
        && request.fields.get(Known::ContentType).is_some_and(is_content_type)
}

fn is_content_type(value: &[u8]) -> bool {
    let Some((start, rest)) = value.split_at_checked(CONTENT_TYPE.len()) else { return false };
    start.eq_ignore_ascii_case(CONTENT_TYPE)
        && matches!(rest.first(), None | Some(b'+' | b';' | b' '))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grpc_is_recognized_by_its_content_type() {
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
}
