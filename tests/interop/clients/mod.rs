//! Popular clients and upstreams on either side of Weir: curl, Python's httpx, websockets and
//! grpcio, the libraries of OpenAI and Anthropic, the SDK of the Model Context Protocol, a reader
//! of server-sent events; nginx, hypercorn and grpcio's server. Clients that we wrote ourselves
//! could share our mistakes.

mod curl;
mod grpc;
mod httpx;
mod llm;
mod mcp;
mod nginx;
mod sse;
mod websockets;

use crate::harness::pki::Pki;
use crate::harness::python::{PythonServer, client};
use crate::harness::test_proxy::{IdentityFiles, TestProxy};
use crate::harness::toml::Toml;

/// More than any test here uses.
const MANY: &str = "name = \"day\", algorithm = \"fixed_window\", quota = 1000000, period = \"1d\"";

/// Forwards everything to this upstream, and refuses nothing. `more` are further lines of the
/// upstream.
fn config(url: &str, more: &str) -> Toml {
    Toml::new()
        .upstream("api", url, more)
        .policy("public", &[MANY])
        .route("name = \"api\"\npath = \"/*\"\nupstream = \"api\"\npolicy = \"public\"")
}

/// The same, except for this path: `quota` requests pass there.
fn limited_config(url: &str, more: &str, path: &str, quota: &str) -> Toml {
    let few =
        format!("name = \"few\", algorithm = \"fixed_window\", quota = {quota}, period = \"1d\"");
    config(url, more)
        .policy("few", &[&few])
        .route(&format!("name = \"few\"\npath = \"{path}\"\nupstream = \"api\"\npolicy = \"few\""))
}

/// Runs a Python client against a Python server, with Weir between them and TLS on both sides.
fn with_tls(
    server: &str,
    h2: bool,
    config: impl Fn(&str, &str) -> Toml,
    script: &str,
    arguments: &[&str],
) -> PythonServer {
    let pki = Pki::new();
    let files = IdentityFiles::of(&pki);
    let server = PythonServer::start(server, &files.arguments());
    let more = if h2 { "protocol = \"h2\"\n" } else { "" }.to_owned() + "tls = { ca = \"ca.pem\" }";
    let proxy = TestProxy::with(&config(&format!("https://{}", server.address), &more), &pki);
    let (url, ca) = (proxy.secure_url(), proxy.ca());
    client(script, &[&[url.as_str(), "--ca", &ca], arguments].concat());
    server
}
