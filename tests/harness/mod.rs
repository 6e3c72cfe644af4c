//! Helpers of the integration tests: real processes, real sockets, stopped by `Drop`. Nothing here
//! sleeps for a fixed time: `eventually` polls until a condition holds, and at a deadline that is
//! generous enough for a busy machine fails with the last state.

pub mod api;
pub mod bindings;
pub mod browser;
pub mod client;
pub mod cluster;
pub mod contents;
pub mod counting;
pub mod curl;
pub mod cut;
pub mod damage;
pub mod dashboards;
pub mod flood;
pub mod guest;
#[cfg(target_os = "linux")]
pub mod held;
pub mod languages;
pub mod model;
pub mod mount;
pub mod nginx;
pub mod node;
pub mod nodes;
pub mod otlp;
pub mod pebble;
#[path = "../../crates/tls/src/pki.rs"]
pub mod pki;
pub mod process;
pub mod python;
pub mod quotas;
pub mod redis;
pub mod rls;
pub mod server;
#[cfg(target_os = "linux")]
pub mod terminal;
pub mod test_proxy;
pub mod tls;
pub mod toml;
pub mod transfer;
pub mod upstream;
pub mod weir;

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::time::{Duration, Instant};

/// How long a test waits for something that should happen at once.
pub const TIMEOUT: Duration = Duration::from_secs(30);
/// Between two polls of a condition.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// Polls until `look` succeeds, for at most [`TIMEOUT`]; then fails with the last reason.
pub fn eventually<T>(what: &str, mut look: impl FnMut() -> Result<T, String>) -> T {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        match look() {
            Ok(value) => return value,
            Err(why) if Instant::now() > deadline => {
                panic!("not within {TIMEOUT:?}: {what}: {why}")
            }
            Err(_) => std::thread::sleep(LOOK_AGAIN),
        }
    }
}

/// The same inside a runtime.
pub async fn eventually_async<T>(
    what: &str,
    mut look: impl AsyncFnMut() -> Result<T, String>,
) -> T {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        match look().await {
            Ok(value) => return value,
            Err(why) if Instant::now() > deadline => {
                panic!("not within {TIMEOUT:?}: {what}: {why}")
            }
            Err(_) => tokio::time::sleep(LOOK_AGAIN).await,
        }
    }
}

/// A loopback address that was free a moment ago, for servers that can't use port 0. It may be
/// taken before the server starts, so callers must be prepared to retry.
pub fn free_address() -> SocketAddr {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .and_then(|listener| listener.local_addr())
        .expect("a free port on loopback")
}
