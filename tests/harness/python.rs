//! The Python programs in `tests/clients`: popular clients and upstreams. They run in an
//! environment that `make setup` creates under target/, from tests/clients/requirements.txt.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::process::{Service, run};

const WANTED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients/requirements.txt");
/// Next to the folder that cargo gives to tests, and so inside target/ wherever that is.
const ENVIRONMENT: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/../python");

/// A program of the tests' environment, which must exist and be up to date.
pub fn program(name: &str) -> PathBuf {
    environment().join("bin").join(name)
}

fn environment() -> &'static Path {
    let environment = Path::new(ENVIRONMENT);
    let wanted = std::fs::read(WANTED).expect("the list of packages");
    let there = std::fs::read(environment.join("requirements.txt")).unwrap_or_default();
    assert!(
        wanted == there,
        "the tests' Python packages in {ENVIRONMENT} are missing or old: `make setup` installs them"
    );
    environment
}

/// `python SCRIPT ARGUMENTS` in the tests' environment.
pub fn python(script: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(program("python"));
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/clients").join(script);
    // Unbuffered, so that its output can be read while it runs, and without byte code next to the
    // sources.
    command.args(["-u", "-B"]).arg(script).args(arguments);
    // A proxy configured on the machine would get between the client and Weir.
    for name in [
        "http_proxy",
        "https_proxy",
        "all_proxy",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "ALL_PROXY",
        "grpc_proxy",
    ] {
        command.env_remove(name);
    }
    command
}

/// Runs a client to its end. The client makes its own assertions, so it must succeed. Returns its
/// output.
pub fn client(script: &str, arguments: &[&str]) -> String {
    let finished = run(&mut python(script, arguments));
    assert_eq!(finished.code, 0, "{script} {arguments:?}\n{}\n{}", finished.out, finished.err);
    finished.out
}

/// An upstream written in Python.
pub struct PythonServer {
    pub address: SocketAddr,
    pub service: Service,
}

impl PythonServer {
    /// Starts it and waits until it listens.
    pub fn start(script: &str, arguments: &[&str]) -> Self {
        let mut service = Service::spawn(&mut python(script, arguments));
        let address = service.address();
        Self { address, service }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}
