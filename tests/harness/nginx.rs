//! nginx as an upstream: a single process, so that killing it ends it completely.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use super::process::Service;
use super::{eventually, free_address};

/// Attempts with another port, if a port was taken meanwhile.
const TRIES: usize = 10;

/// A running nginx; killed when dropped.
pub struct Nginx {
    pub address: SocketAddr,
    folder: TempDir,
    service: Service,
    http: String,
}

/// Stands for the address and the folder in a configuration.
const ADDRESS: &str = "ADDRESS";
const FOLDER: &str = "FOLDER";

impl Nginx {
    /// Serves with these lines of a `server { }`. Its files are in [`Nginx::folder`]`/www`.
    pub fn start(server: &str) -> Self {
        Self::with("", server)
    }

    /// Like [`Nginx::start`]. `listen` is appended to the server's `listen`, for example `ssl
    /// http2`.
    pub fn with(listen: &str, server: &str) -> Self {
        let root = format!("root {FOLDER}/www;");
        Self::configured(&format!("server {{ listen {ADDRESS} {listen}; {root}\n{server}\n}}"))
    }

    /// Serves with these lines of an `http { }`, of which a server listens on `ADDRESS`.
    pub fn configured(http: &str) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        std::fs::create_dir_all(folder.path().join("www")).expect("a folder for its files");
        for _ in 0..TRIES {
            let address = free_address();
            if let Some(service) = spawn(folder.path(), address, http) {
                return Self { address, folder, service, http: http.into() };
            }
        }
        panic!("nginx did not start on any of {TRIES} ports; its log:\n{}", log(folder.path()));
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The file that it was started with.
    pub fn configuration(&self) -> PathBuf {
        self.folder.path().join("nginx.conf")
    }

    /// Writes a file below `/`.
    pub fn file(&self, name: &str, bytes: &[u8]) {
        std::fs::write(self.folder.path().join("www").join(name), bytes).expect("a file");
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        self.service.kill();
    }

    /// Starts it again on the same address.
    pub fn start_again(&mut self) {
        self.service = spawn(self.folder.path(), self.address, &self.http)
            .unwrap_or_else(|| panic!("no restart; its log:\n{}", log(self.folder.path())));
    }
}

/// The path of nginx: Debian installs it in a folder that is only on root's PATH.
fn program() -> &'static str {
    if Path::new("/usr/sbin/nginx").exists() { "/usr/sbin/nginx" } else { "nginx" }
}

fn log(folder: &Path) -> String {
    std::fs::read_to_string(folder.join("error")).unwrap_or_default()
}

/// Starts it and waits until it listens; `None` if its port was taken meanwhile.
fn spawn(folder: &Path, address: SocketAddr, http: &str) -> Option<Service> {
    let here = folder.display();
    let temp: Vec<String> = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|name| format!("{name}_temp_path {here}/{name};"))
        .into();
    let config = format!(
        "daemon off; master_process off; pid {here}/pid; error_log {here}/error warn;\n\
         events {{ worker_connections 4096; }}\n\
         http {{ access_log off; {} keepalive_requests 1000000; types {{ text/plain txt; }} default_type application/octet-stream;\n\
         {} }}\n",
        temp.join(" "),
        http.replace(ADDRESS, &address.to_string()).replace(FOLDER, &here.to_string())
    );
    let path = folder.join("nginx.conf");
    std::fs::write(&path, config).expect("a configuration file");
    let mut command = Command::new(program());
    command.arg("-e").arg(folder.join("error")).arg("-p").arg(folder).arg("-c").arg(&path);
    let mut service = Service::spawn(&mut command);
    // It writes its process id once it has its port, which it tries to get for some seconds.
    let pid = folder.join("pid");
    let listens = eventually("nginx listens, or ends", || {
        let listens =
            std::fs::read_to_string(&pid).unwrap_or_default().trim() == service.id().to_string();
        if listens || !service.running() { Ok(listens) } else { Err(log(folder)) }
    });
    listens.then_some(service)
}
