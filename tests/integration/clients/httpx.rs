//! Python's httpx through Weir to hypercorn: what a program in Python would do to an API, one after another and all at once.

use super::MANY;
use crate::harness::python::{PythonServer, client};
use crate::harness::toml::Toml;
use crate::harness::weir::Weir;

const QUOTA: &str = "30";

fn house(url: &str) -> Toml {
    let few = format!("name = \"few\", algorithm = \"fixed_window\", quota = {QUOTA}, period = \"1d\"");
    Toml::new()
        .upstream("api", url, "")
        .policy("public", &[MANY])
        .policy("few", &[&few])
        .route("name = \"api\"\npath = \"/*\"\nupstream = \"api\"\npolicy = \"public\"")
        .route("name = \"few\"\npath = \"/few/*\"\nupstream = \"api\"\npolicy = \"few\"")
}

#[test]
fn httpx_over_http_1_1() {
    let server = PythonServer::start("asgi.py", &[]);
    let weir = Weir::start(&house(&server.url()).text());
    client("httpx_client.py", &[&format!("http://{}", weir.http), "--quota", QUOTA]);
}
