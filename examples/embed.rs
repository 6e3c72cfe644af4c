//! Weir inside another Rust program, which opens the socket, passes the configuration as a string,
//! and shuts Weir down.
//!
//!     cargo run --example embed
//!
//! This is the whole proxy: policies in Wasm, limits, metrics, reloads. [`configuration`] returns
//! what `weir run` would read from `proxy.toml`.

use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;

use weir::App;
use weir::app::DemoUpstream;
use weir::config::Config;

fn main() -> Result<(), Box<dyn Error>> {
    for status in run()? {
        println!("{status}");
    }
    Ok(())
}

/// Starts an upstream and Weir in front of it, sends five requests, and ends both. Returns the
/// status lines.
pub fn run() -> Result<Vec<String>, Box<dyn Error>> {
    // What the program serves; here the small server of `weir demo`.
    let upstream = DemoUpstream::start(SocketAddr::from(([127, 0, 0, 1], 0)))?;

    // Errors are reported with this path, and relative paths in the text start at it.
    let config = Config::parse(&configuration(upstream.address(), 3), Path::new("embedded.toml"))?;

    // A socket that the program has bound, perhaps with its own options, or inherited. Without one,
    // Weir binds the addresses in the configuration.
    let socket = TcpListener::bind("127.0.0.1:0")?;
    let proxy = socket.local_addr()?;
    let app = App::start_on(config, vec![socket])?;

    let mut statuses = Vec::new();
    for _ in 0..4 {
        statuses.push(get(proxy, "/hello")?);
    }

    // Applies a new configuration while requests are served. Counters stay as they are.
    app.reloader()
        .apply(Config::parse(&configuration(upstream.address(), 4), Path::new("embedded.toml"))?)?;
    statuses.push(get(proxy, "/hello")?);

    // Stops accepting, and waits for requests in flight for at most `server.shutdown_grace`.
    if app.shutdown() {
        Ok(statuses)
    } else {
        Err("requests were cut at the end of the grace period".into())
    }
}

/// A configuration as in `proxy.toml`. Each client address may send `quota` requests a minute.
fn configuration(upstream: SocketAddr, quota: u32) -> String {
    format!(
        r#"
        [server]
        workers = 1
        shutdown_grace = "5s"

        [admin]
        address = "off"             # the program can show `app.metrics().encode()` itself

        [upstreams.api]
        endpoints = ["http://{upstream}"]

        [policies.public]
        use = "client-ip"
        config.limits = [{{ name = "per-minute", algorithm = "fixed_window", quota = {quota}, period = "1m" }}]

        [[routes]]
        path = "/*"
        upstream = "api"
        policy = "public"
        "#
    )
}

/// Sends a request and returns the first line of the response. Any HTTP client would do.
fn get(server: SocketAddr, path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(server)?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {server}\r\nConnection: close\r\n\r\n")?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    Ok(line.trim_end().to_owned())
}
