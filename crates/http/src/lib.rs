//! HTTP for a proxy, on both of its sides.
//!
//! 1. [`listen`] accepts connections, and hands each request to a [`listen::Handler`].
//! 2. [`wire`] has what both sides share: the heads of requests and replies, and bodies that
//!    stream.
//! 3. [`upstream`] chooses a host, sends a request on, and returns the reply.
//!
//! HTTP/1.1 is our own (`http1`), for both sides; HTTP/2 is h2's, to upstreams within hyper. Knows
//! no route, no policy and no limit.

mod http1;
pub mod listen;
pub mod upstream;
pub mod wire;

#[cfg(test)]
#[path = "../../tls/src/pki.rs"]
mod pki;

use weir_clock as clock;
use weir_telemetry as telemetry;

/// The README's example runs.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
