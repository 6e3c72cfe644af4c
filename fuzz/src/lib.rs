//! Weir's HTTP/1.1 with what it needs, and the checks that its tests make, for the targets in
//! `targets/`.

#![allow(dead_code, unused_imports, unreachable_pub, reason = "it is a part of a larger crate")]

#[path = "../../src/clock/mod.rs"]
mod clock;
#[path = "../../src/http1/mod.rs"]
mod http1;
mod wire;

#[path = "../../src/http1/tests/check.rs"]
mod check;
#[path = "../../src/http1/tests/drive.rs"]
mod drive;
#[path = "../../src/http1/tests/naive.rs"]
mod naive;
#[path = "../../src/http1/tests/reference.rs"]
mod reference;
#[path = "../../src/http1/tests/send.rs"]
mod send;

/// A client's bytes, through our loop, whole and cut, and through hyper.
pub fn requests(bytes: &[u8]) {
    check::requests(bytes);
}

/// An upstream's bytes, the same way: to a GET, and to a HEAD.
pub fn replies(bytes: &[u8]) {
    check::reply(bytes, &http::Method::GET);
    check::reply(bytes, &http::Method::HEAD);
}

/// A chunked body, whole and cut, and read naively.
pub fn chunks(bytes: &[u8]) {
    check::chunks(bytes);
}

/// Whatever is accepted, as it is written and read again.
pub fn round_trip(bytes: &[u8]) {
    send::round_trip(bytes);
}
