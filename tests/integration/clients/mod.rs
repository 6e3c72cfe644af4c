//! Clients and upstreams that people really use, on either side of Weir: curl, Python's httpx, websockets and grpcio, a listener of server-sent events;
//! nginx, hypercorn and grpcio's server. What we made ourselves could share our mistakes; these can't.

mod curl;
mod httpx;
mod sse;

use crate::harness::toml::{Toml, simple};

/// More than any test here asks for.
const MANY: &str = "name = \"day\", algorithm = \"fixed_window\", quota = 1000000, period = \"1d\"";

/// Everything goes to this upstream, and nothing is refused.
fn open_house(url: &str) -> Toml {
    simple(url, &[MANY])
}
