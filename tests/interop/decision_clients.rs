//! The clients of the HTTP API in `examples/clients` and `crates/client`, and the middleware that
//! comes with each: what they do with a real Weir, and without one.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::harness::client::{Reply, get_blocking, get_blocking_with, raw, statuses};
use crate::harness::node::{NODE, node};
use crate::harness::process::{Service, run};
use crate::harness::weir::{Weir, binary};
use crate::harness::{TIMEOUT, eventually, free_address, python};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");
const GO_CACHE: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/go");

const CONFIG: &str = r#"
[[listeners]]
address = "127.0.0.1:0"
serves = "decisions"

[admin]
address = "127.0.0.1:0"

[policies.users]
use = "rls"

[policies.users.config]
overrides = true

[[policies.users.config.rules]]
descriptor = ["user"]
limits = [{ name = "user", algorithm = "fixed_window", quota = 3, period = "1d" }]

[policies.keys]
use = "keyed"

[policies.keys.config]
key = "{header.x-api-key}"
bypass = [{ path = "/ready" }]
limits = [{ name = "key", algorithm = "fixed_window", quota = 2, period = "1d" }]

[[routes]]
domain = "users"
policy = "users"

[[routes]]
domain = "api"
policy = "keys"
"#;

fn url(address: SocketAddr) -> String {
    format!("http://{address}")
}

/// A server that asks Weir about each request, as soon as it answers.
fn asking(command: &mut Command, address: Option<SocketAddr>) -> (Service, SocketAddr) {
    let mut service = Service::spawn(command);
    let address = address.unwrap_or_else(|| service.address());
    eventually("the server answers", || match get_blocking(address, "/ready") {
        Ok(reply) if reply.status == 200 => Ok(()),
        other => Err(format!("{other:?}\n{}", service.lines().join("\n"))),
    });
    (service, address)
}

/// What its clients see, while Weir is there and when it is gone.
fn limits_its_clients(address: SocketAddr, weir: Weir) {
    // The policy sets no plan, and a client's own does not pass for one.
    let ask = || -> Reply {
        get_blocking_with(address, "/some/path", &[("x-plan", "stolen")]).expect("an answer")
    };
    for left in [1, 0] {
        let reply = ask();
        assert_eq!((reply.status, reply.remaining("key")), (200, left), "{reply:?}");
        let text = reply.text();
        assert!(text.contains("hello") && !text.contains("stolen"), "{reply:?}");
    }
    let reply = ask();
    assert_eq!((reply.status, reply.remaining("key")), (429, 0), "{reply:?}");
    assert!(reply.header("retry-after").parse::<u64>().expect("seconds") > 80_000, "{reply:?}");
    assert_eq!(reply.header("content-type"), "application/problem+json");
    assert_eq!(reply.json()["violated-policies"], serde_json::json!(["key"]));
    // Keys that are no UTF-8 are as different as others.
    for key in [0xe8, 0xe8, 0xe9] {
        let mut request = b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\nx-api-key: ".to_vec();
        request.push(key);
        request.extend_from_slice(b"\r\n\r\n");
        let answer = raw(address, &request, TIMEOUT);
        assert_eq!(statuses(&answer), [200], "{key}: {answer}");
    }
    let reply = get_blocking(address, "/%00").expect("an answer");
    assert_eq!(reply.status, 400, "a mistake of the client's: {reply:?}");
    drop(weir);
    assert_eq!(ask().status, 503, "nobody decides");
}

#[test]
fn the_client_in_python() {
    let weir = Weir::start(CONFIG);
    let arguments = [url(weir.http), url(free_address())];
    let out = python::client("decision_client.py", &arguments.each_ref().map(String::as_str));
    assert_eq!(out.trim(), "done");
}

#[test]
fn the_client_in_javascript() {
    let weir = Weir::start(CONFIG);
    let mut command = node("decision_client.mjs");
    let finished = run(command.arg(url(weir.http)).arg(url(free_address())));
    assert_eq!((finished.code, finished.out.trim()), (0, "done"), "{}", finished.err);
}

#[test]
fn the_middleware_for_asgi() {
    let weir = Weir::start(CONFIG);
    let mut command = python::python("limited_asgi.py", &[&url(weir.http)]);
    let (_service, address) = asking(&mut command, None);
    limits_its_clients(address, weir);
}

#[test]
fn the_middleware_for_express() {
    let weir = Weir::start(CONFIG);
    let (_service, address) =
        asking(node("limited_express.mjs").args([NODE, &url(weir.http)]), None);
    limits_its_clients(address, weir);
}

#[test]
fn the_middleware_for_go() {
    let folder = Path::new(ROOT).join("examples/clients/go");
    let go = |arguments: &[&str]| {
        let mut command = Command::new("go");
        command.current_dir(&folder).env("GOCACHE", GO_CACHE).env("GOTOOLCHAIN", "local");
        command.env("GOFLAGS", "-mod=mod").args(arguments);
        command
    };
    let built = tempfile::tempdir().expect("a folder");
    let program: PathBuf = built.path().join("demo");
    let vetted = run(&mut go(&["vet", "./..."]));
    assert_eq!(vetted.code, 0, "{}", vetted.err);
    let tested = run(&mut go(&["test", "./..."]));
    assert_eq!(tested.code, 0, "{}{}", tested.out, tested.err);
    let text = program.to_str().expect("a path");
    let finished = run(&mut go(&["build", "-o", text, "./cmd/demo"]));
    assert_eq!(finished.code, 0, "{}", finished.err);
    let weir = Weir::start(CONFIG);
    let address = free_address();
    let mut command = Command::new(&program);
    command.env("WEIR_DEADLINE", "5s").env("WEIR_OWN_FIELDS", "x-plan");
    command.args([address.to_string(), url(weir.http)]);
    let (_service, address) = asking(&mut command, Some(address));
    limits_its_clients(address, weir);
}

#[test]
fn the_middleware_for_tower() {
    // Cargo builds examples with the tests, beside the binary.
    let example = Path::new(binary()).with_file_name("examples").join("tower");
    assert!(example.exists(), "{} is missing: build with `--workspace`", example.display());
    let weir = Weir::start(CONFIG);
    let address = free_address();
    let mut command = Command::new(example);
    command.env("WEIR_DEADLINE_MS", "5000").env("WEIR_OWN_FIELDS", "x-plan");
    command.args([address.to_string(), url(weir.http)]);
    let (_service, address) = asking(&mut command, Some(address));
    limits_its_clients(address, weir);
}
