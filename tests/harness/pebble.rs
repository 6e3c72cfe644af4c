//! Pebble, Let's Encrypt's small authority for tests, with a name server for which every name is on
//! this machine.

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use serde_json::json;
use tempfile::TempDir;

use super::eventually;
use super::pki::Pki;
use super::process::{Service, run};

/// A running authority; killed when dropped.
pub struct Pebble {
    folder: TempDir,
    directory: SocketAddr,
    management: SocketAddr,
    /// Where it looks for answers over HTTP.
    pub http: SocketAddr,
    /// Where it looks for answers in handshakes.
    pub tls: SocketAddr,
    service: Service,
    names: Service,
}

/// A free port that the system gives to nobody who asks for any.
fn reserved() -> SocketAddr {
    loop {
        let address = SocketAddr::from(([127, 0, 0, 1], fastrand::u16(10_000..30_000)));
        if TcpListener::bind(address).is_ok() {
            return address;
        }
    }
}

/// The account that [`Pebble::binding`] asks for: its key's id, and the key.
pub const EXTERNAL: (&str, &str) =
    ("kid-1", "zWNDZM6eQGHWpSRTPal5eIUYFTu7EajVIoguysqZ9wG44nMEtx3MUAsUDkMTQ12W");

impl Pebble {
    /// Issues certificates that are valid for this long.
    pub fn start(life: Duration) -> Self {
        Self::with(life, false)
    }

    /// The same, for those with an account of theirs.
    pub fn binding(life: Duration) -> Self {
        Self::with(life, true)
    }

    fn with(life: Duration, binds: bool) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let pki = Pki::new();
        let identity = pki.server(&["localhost"]);
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).expect("a file");
            path.display().to_string()
        };
        file("ca.pem", &pki.ca);
        let [directory, management, http, tls, names, unused] = std::array::from_fn(|_| reserved());
        let config = json!({ "pebble": {
            "listenAddress": directory.to_string(),
            "managementListenAddress": management.to_string(),
            "certificate": file("tls.pem", &identity.certificate),
            "privateKey": file("tls.key", &identity.key),
            "httpPort": http.port(),
            "tlsPort": tls.port(),
            "ocspResponderURL": "",
            "externalAccountBindingRequired": binds,
            "externalAccountMACKeys": { EXTERNAL.0: EXTERNAL.1 },
            "certificateValidityPeriod": life.as_secs(),
        } });
        let config = file("pebble.json", &config.to_string());
        let mut command = Command::new("pebble-challtestsrv");
        command.args(["-defaultIPv4", "127.0.0.1", "-defaultIPv6", ""]);
        command.args(["-dns01", &names.to_string(), "-management", &unused.to_string()]);
        command.args(["-http01", "", "-https01", "", "-tlsalpn01", ""]);
        let name_server = Service::spawn(&mut command);
        let mut command = Command::new("pebble");
        command.args(["-config", &config, "-strict", "-dnsserver", &names.to_string()]);
        // Nonces are refused now and then, as by default.
        command.env("PEBBLE_VA_NOSLEEP", "1").env("PEBBLE_AUTHZREUSE", "0");
        let service = Service::spawn(&mut command);
        let mut pebble =
            Self { folder, directory, management, http, tls, service, names: name_server };
        eventually("the authority answers", || {
            pebble.ask("roots/0").ok_or_else(|| pebble.service.lines().join("\n"))
        });
        assert!(pebble.names.running(), "{}", pebble.names.lines().join("\n"));
        pebble
    }

    /// `[acme]` for it: the settings that each test has.
    pub fn settings(&self, folder: &str, more: &str) -> String {
        format!(
            "[acme]\ndirectory = \"https://localhost:{}/dir\"\naccept_terms_of_service = true\nfolder = \"{folder}\"\ntls = {{ ca = \"{}\" }}\n{more}\n",
            self.directory.port(),
            self.ca().display(),
        )
    }

    /// A file with the authority of its own server's certificate.
    pub fn ca(&self) -> PathBuf {
        self.folder.path().join("ca.pem")
    }

    /// Where its directory is.
    pub fn directory(&self) -> SocketAddr {
        self.directory
    }

    /// What its directory says to those who know it as `host`.
    pub fn listed(&self, host: &str) -> serde_json::Value {
        let url = format!("https://localhost:{}/dir", self.directory.port());
        let text = self.fetch(&["--header", &format!("host: {host}"), &url]).expect("a directory");
        serde_json::from_str(&text).expect("JSON")
    }

    /// A file with the authority that issues its certificates.
    pub fn root(&self) -> PathBuf {
        let path = self.folder.path().join("root.pem");
        std::fs::write(&path, self.ask("roots/0").expect("its root")).expect("a file");
        path
    }

    /// Ends it. Its files stay.
    pub fn stop(&mut self) {
        self.service.kill();
    }

    /// How many certificates it has issued.
    pub fn issued(&self) -> usize {
        let lines = self.service.lines();
        lines.iter().filter(|line| line.contains("Issued certificate serial")).count()
    }

    fn ask(&self, path: &str) -> Option<String> {
        self.fetch(&[&format!("https://localhost:{}/{path}", self.management.port())])
    }

    fn fetch(&self, arguments: &[&str]) -> Option<String> {
        let ca = self.ca().display().to_string();
        let mut command = Command::new("curl");
        command.args(["--silent", "--show-error", "--fail", "--noproxy", "*", "--cacert", &ca]);
        command.args(arguments);
        let done = run(&mut command);
        (done.code == 0).then_some(done.out)
    }
}
