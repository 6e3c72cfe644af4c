//! Weir's HTTP/1.1 with its dependencies and the checks of its tests, for the targets in
//! `targets/`.

#![allow(dead_code, unused_imports, unreachable_pub, reason = "part of a larger crate")]

#[path = "../../crates/http/src/http1/mod.rs"]
mod http1;
mod wire;

#[path = "../../crates/http/src/http1/tests/check.rs"]
mod check;
#[path = "../../crates/http/src/http1/tests/drive.rs"]
mod drive;
#[path = "../../crates/http/src/http1/tests/naive.rs"]
mod naive;
#[path = "../../crates/http/src/http1/tests/reference.rs"]
mod reference;
#[path = "../../crates/http/src/http1/tests/send.rs"]
mod send;

use weir_clock as clock;

/// Reads a client's bytes with our reader, whole and in pieces, and with hyper.
pub fn requests(bytes: &[u8]) {
    check::requests(bytes);
}

/// Reads an upstream's bytes the same way, in response to a GET and to a HEAD.
pub fn replies(bytes: &[u8]) {
    check::reply(bytes, &http::Method::GET);
    check::reply(bytes, &http::Method::HEAD);
}

/// Reads a chunked body whole, in pieces, and naively.
pub fn chunks(bytes: &[u8]) {
    check::chunks(bytes);
}

/// Writes whatever is accepted, and reads it again.
pub fn round_trip(bytes: &[u8]) {
    send::round_trip(bytes);
}
