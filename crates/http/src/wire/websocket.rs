//! How both sides of a handshake prove that they know WebSockets (RFC 6455, section 4). Over HTTP/2
//! nothing needs to be proven (RFC 8441, section 5).

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// The protocol's name in `Upgrade` and `:protocol`.
pub const WEBSOCKET: &str = "websocket";
/// The field of a client's key.
pub const KEY: &str = "sec-websocket-key";
/// The field of the answer to it.
pub const ACCEPT: &str = "sec-websocket-accept";
/// The field of the protocol's version.
pub const VERSION: &str = "sec-websocket-version";
/// The version that RFC 6455 has. Those before it have other frames.
pub const VERSION_13: &[u8] = b"13";
const GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// A key for a handshake.
pub(crate) fn new_key() -> String {
    STANDARD.encode(fastrand::u128(..).to_be_bytes())
}

/// What a server that knows WebSockets answers to a key.
#[must_use]
pub fn accept_of(key: &[u8]) -> String {
    STANDARD.encode(digest(&SHA1_FOR_LEGACY_USE_ONLY, &[key, GUID].concat()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_to_a_key_is_that_of_the_rfc() {
        assert_eq!(accept_of(b"dGhlIHNhbXBsZSBub25jZQ=="), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }
}
