//! The small upstream of `weir demo`: it answers every request with what it received, so that a
//! newcomer sees what an upstream sees.

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;

use arc_swap::access::Constant;

use crate::listen::{ConnectionSettings, Drain, Handler, ListenConfig, Listener, Peer, Settings};
use crate::telemetry::Metrics;
use crate::wire::{self, Known, Request, Response};

/// A running demo upstream; ends when it is dropped.
#[derive(Debug)]
pub struct DemoUpstream {
    address: SocketAddr,
    drain: Drain,
    thread: Option<JoinHandle<()>>,
}

#[derive(Clone, Debug)]
struct Echo;

impl Handler for Echo {
    async fn call(&self, request: Request, _peer: &Arc<Peer>) -> Response {
        let seen = |name: &str| {
            request.fields.get(name).map(|value| String::from_utf8_lossy(value).into_owned())
        };
        let body = serde_json::json!({
            "hello": "from the demo upstream",
            "method": request.method.as_str(),
            "path": request.target().split('?').next(),
            "host": seen("host"),
            "x-forwarded-for": seen("x-forwarded-for"),
            "x-request-id": seen("x-request-id"),
        });
        let mut reply = Response::new(http::StatusCode::OK, wire::full(format!("{body}\n")));
        reply.fields.append(Known::ContentType, "application/json");
        reply
    }
}

impl DemoUpstream {
    /// Serves on `address`.
    ///
    /// # Errors
    /// The address is in use, or the thread can't be started.
    pub fn start(address: SocketAddr) -> std::io::Result<Self> {
        let mut sockets = Listener::bind(&Settings::plain(address), 1)?;
        let socket = sockets.pop().ok_or(std::io::ErrorKind::AddrNotAvailable)?;
        let (address, drain) = (socket.address(), Drain::new());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let settings = ConnectionSettings {
            connections_max: 1_000,
            connections_per_address_max: 1_000,
            header_bytes_max: 64 << 10,
            ..ConnectionSettings::default()
        };
        let serving = socket.serve(
            Echo,
            Arc::new(Constant(ListenConfig::from(settings))),
            drain.clone(),
            Metrics::new(1),
        );
        let thread = std::thread::Builder::new()
            .name("weir-demo".into())
            .spawn(move || runtime.block_on(serving))?;
        Ok(Self { address, drain, thread: Some(thread) })
    }

    /// Its address.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for DemoUpstream {
    fn drop(&mut self) {
        self.drain.start();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been printed already, and the demo ends anyway.
            let _ = thread.join();
        }
    }
}
