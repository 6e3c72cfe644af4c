//! Real upstreams that report which values they read of a request, by the usual means of their
//! framework: `tests/clients/reads.*`.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use crate::harness::nginx::Nginx;
use crate::harness::process::Service;
use crate::harness::python::PythonServer;
use crate::harness::{eventually, free_address};

/// What an upstream read, by the kind of value.
pub type Read = BTreeMap<String, String>;

/// Kinds of values that nginx reads, with its variables.
const OF_NGINX: [(&str, &str); 7] = [
    ("header", "$http_x_api_key"),
    ("bearer", "$http_authorization"),
    ("query", "$arg_username"),
    ("cookie", "$cookie_session"),
    ("internal", "$http_x_internal"),
    ("user", "$http_x_user"),
    ("plan", "$http_x_plan"),
];
const NODE: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/../node");
const CLIENTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients");

/// A running upstream.
pub struct Reader {
    pub name: &'static str,
    pub address: SocketAddr,
    _running: Running,
}

#[allow(dead_code, reason = "they run until they are dropped")]
enum Running {
    Service(Service),
    Lighttpd(Service, TempDir),
    Nginx(Nginx),
}

impl Reader {
    /// All of them.
    pub fn all() -> Vec<Self> {
        let python = |name| {
            let server = PythonServer::start("reads.py", &[name]);
            Self { name, address: server.address, _running: Running::Service(server.service) }
        };
        let mut all: Vec<Self> =
            ["uvicorn-httptools", "uvicorn-h11", "waitress", "gunicorn", "wsgiref"]
                .map(python)
                .into();
        all.extend(["http", "express"].map(node));
        all.extend([php(), lighttpd(), nginx()]);
        all
    }

    /// What the reply's body says that was read. `None` if it is no answer of the program's: it may
    /// have refused the request.
    pub fn read(&self, body: &str) -> Option<Read> {
        if self.name == "nginx" {
            let lines = body.lines().filter_map(|line| line.split_once('='));
            let read = lines.filter(|(_, value)| !value.is_empty());
            return body
                .contains("plan=")
                .then(|| read.map(|(name, value)| (name.into(), value.into())).collect());
        }
        let json: serde_json::Map<String, serde_json::Value> = serde_json::from_str(body).ok()?;
        let text = |value: serde_json::Value| match value {
            serde_json::Value::Null => None,
            serde_json::Value::String(text) => Some(text),
            other => Some(other.to_string()),
        };
        json.contains_key("plan").then(|| {
            json.into_iter().filter_map(|(name, value)| Some((name, text(value)?))).collect()
        })
    }
}

fn node(kind: &'static str) -> Reader {
    let mut command = Command::new(Path::new(NODE).join("node_modules/.bin/node"));
    command.arg(Path::new(CLIENTS).join("reads.mjs")).args([kind, NODE]);
    let mut service = Service::spawn(&mut command);
    let name = if kind == "http" { "node" } else { "express" };
    Reader { name, address: service.address(), _running: Running::Service(service) }
}

fn php() -> Reader {
    let (address, service) = on_a_free_port(|address| {
        let mut command = Command::new("php");
        command.args(["-q", "-S", &address.to_string()]).arg(Path::new(CLIENTS).join("reads.php"));
        command
    });
    Reader { name: "php", address, _running: Running::Service(service) }
}

fn lighttpd() -> Reader {
    let folder = tempfile::tempdir().expect("a folder");
    let program = Path::new("/usr/sbin/lighttpd");
    let program = if program.exists() { program } else { Path::new("lighttpd") };
    std::fs::copy(Path::new(CLIENTS).join("reads.pl"), folder.path().join("reads.pl"))
        .expect("a copied program");
    let (address, service) = on_a_free_port(|address| {
        let root = folder.path().display();
        let config = format!(
            "server.document-root = \"{root}\"\nserver.bind = \"{}\"\nserver.port = {}\n\
             server.modules = (\"mod_rewrite\", \"mod_cgi\")\n\
             server.errorlog = \"{root}/errors\"\n\
             url.rewrite-once = (\".*\" => \"/reads.pl\")\n\
             cgi.assign = (\".pl\" => \"/usr/bin/perl\")\n",
            address.ip(),
            address.port()
        );
        let path = folder.path().join("lighttpd.conf");
        std::fs::write(&path, config).expect("its configuration");
        let mut command = Command::new(program);
        command.arg("-D").arg("-f").arg(path);
        command
    });
    Reader { name: "lighttpd", address, _running: Running::Lighttpd(service, folder) }
}

fn nginx() -> Reader {
    let lines: String =
        OF_NGINX.iter().map(|(name, variable)| format!("{name}={variable}\n")).collect();
    let server = format!(
        "client_header_buffer_size 16k; ignore_invalid_headers off; underscores_in_headers on;\n\
         location / {{ return 200 \"{lines}\"; }}"
    );
    let nginx = Nginx::start(&server);
    Reader { name: "nginx", address: nginx.address, _running: Running::Nginx(nginx) }
}

/// Starts a program that is told its port, and waits until it listens.
fn on_a_free_port(command: impl Fn(SocketAddr) -> Command) -> (SocketAddr, Service) {
    let started = (0..10).find_map(|_| {
        let address = free_address();
        let mut service = Service::spawn(&mut command(address));
        let listens = eventually("it listens, or ends", || {
            let listens = TcpStream::connect(address).is_ok();
            if listens || !service.running() { Ok(listens) } else { Err(String::new()) }
        });
        (listens && service.running()).then_some((address, service))
    });
    started.expect("a program that found a port")
}
