//! Weir inside another Rust program: on a socket of its own making, configured by a string, ended
//! by the program.
//!
//!     cargo run --example embed
//!
//! The whole proxy is there: policies in Wasm, limits, metrics, reloads. What `proxy.toml` says to
//! `weir run` is said here by [`configuration`].

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

/// Starts an upstream and Weir before it, sends five requests through, and ends both. Answers the
/// status lines.
pub fn run() -> Result<Vec<String>, Box<dyn Error>> {
    // What the program serves; here the small server of `weir demo`.
    let upstream = DemoUpstream::start(SocketAddr::from(([127, 0, 0, 1], 0)))?;

    // The path is what mistakes are told with, and where relative paths in the text begin.
    let config = Config::parse(&configuration(upstream.address(), 3), Path::new("embedded.toml"))?;

    // A socket that the program has bound, perhaps with its own options, or inherited. Without any,
    // Weir binds what the configuration names.
    let socket = TcpListener::bind("127.0.0.1:0")?;
    let proxy = socket.local_addr()?;
    let app = App::start_on(config, vec![socket])?;

    let mut statuses = Vec::new();
    for _ in 0..4 {
        statuses.push(get(proxy, "/hello")?);
    }

    // A new configuration is applied while requests are served; counters stay as they are.
    app.reloader()
        .apply(Config::parse(&configuration(upstream.address(), 4), Path::new("embedded.toml"))?)?;
    statuses.push(get(proxy, "/hello")?);

    // Stops accepting and waits, at most `server.shutdown_grace`, for what is under way.
    if app.shutdown() {
        Ok(statuses)
    } else {
        Err("requests were cut at the end of the grace period".into())
    }
}

/// As in `proxy.toml`. Each client address may send `quota` requests a minute.
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

/// A request by hand, and its reply's first line: any HTTP client does.
fn get(server: SocketAddr, path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(server)?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {server}\r\nConnection: close\r\n\r\n")?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    Ok(line.trim_end().to_owned())
}
