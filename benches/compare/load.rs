//! Puts load on a proxy: wrk for HTTP/1, h2load for HTTP/2 and for fixed rates, curl for the one
//! request whose response is checked. All of them have a time limit.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::cases::{Callers, Case, Limit, Work};
use super::reading::{self, Load};

/// Bytes of the large bodies.
pub const MEBIBYTE: usize = 1 << 20;
/// The small response, for wrk's scripts and for the upstream's file.
const HELLO: &str = "hello from the upstream\n";
/// Time that a generator gets beyond what was requested.
const GRACE: Duration = Duration::from_secs(20);

/// Set by a signal: all waits end, so that everything is stopped and cleaned up.
pub static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Where requests go, and how.
pub struct Target<'a> {
    pub case: &'a Case,
    pub address: SocketAddr,
    /// The folder for scripts, bodies and reports.
    pub folder: &'a Path,
}

/// Writes the files that the generators read, once for all runs.
pub fn prepare(folder: &Path) -> Result<(), String> {
    let write = |name: &str, bytes: &[u8]| {
        fs::write(folder.join(name), bytes).map_err(|error| format!("{name}: {error}"))
    };
    write("clients.lua", include_bytes!("conf/clients.lua"))?;
    write("keys.lua", include_bytes!("conf/keys.lua"))?;
    write("upload.lua", include_bytes!("conf/upload.lua"))?;
    write("mebibyte", &vec![b'x'; MEBIBYTE])
}

impl Target<'_> {
    fn url(&self) -> String {
        let scheme = if self.case.situation.wire.is_tls() { "https" } else { "http" };
        let path = match self.case.situation.work {
            Work::Small => "/",
            Work::Download => "/mebibyte",
            Work::Upload => "/upload",
        };
        format!("{scheme}://{}{path}", self.address)
    }

    fn generator(&self, seconds: u32) -> Command {
        let situation = self.case.situation;
        let connections = situation.connections.to_string();
        if situation.needs_h2load() {
            let mut command = Command::new("h2load");
            if !situation.wire.is_h2() {
                command.arg("--h1");
            }
            if let Some(pace) = situation.pace {
                command.arg(format!("--rps={pace}"));
            }
            command.args([
                "-t",
                "1",
                "-c",
                &connections,
                "-m",
                &situation.streams.to_string(),
                "-D",
                &seconds.to_string(),
            ]);
            command.arg(format!("--log-file={}", self.requests_log().display())).arg(self.url());
            return command;
        }
        let mut command = Command::new("wrk");
        command.args([
            "--latency",
            "-t",
            "1",
            "-c",
            &connections,
            "-d",
            &format!("{seconds}s"),
            "--timeout",
            "10s",
        ]);
        let script = match (situation.callers, situation.work) {
            (Callers::Addresses, _) => Some("clients.lua"),
            (Callers::Keys, _) => Some("keys.lua"),
            (Callers::One, Work::Upload) => Some("upload.lua"),
            (Callers::One, Work::Small | Work::Download) => None,
        };
        if let Some(script) = script {
            command.arg("-s").arg(self.folder.join(script));
        }
        command.arg(self.url());
        command
    }

    fn requests_log(&self) -> PathBuf {
        self.folder.join("requests.log")
    }

    /// Puts load on the proxy that is not measured.
    pub fn warm_up(&self, time: Duration) -> Result<(), String> {
        let report = self.folder.join("warm-up");
        let mut running = Running::start(self.generator(60), &report)?;
        match running.wait(time)? {
            None => Ok(()),
            Some(success) => {
                Err(format!("the load generator ended by itself ({success}):\n{}", text(&report)))
            }
        }
    }

    /// Puts load on the proxy for `seconds`. Fails if the result is not what this case is about.
    pub fn measure(&self, seconds: u32) -> Result<Load, String> {
        let report = self.folder.join("report");
        let mut running = Running::start(self.generator(seconds), &report)?;
        match running.wait(Duration::from_secs(seconds.into()) + GRACE)? {
            None => return Err(format!("the load generator does not end:\n{}", text(&report))),
            Some(false) => return Err(format!("the load generator failed:\n{}", text(&report))),
            Some(true) => {}
        }
        let load = match self.case.situation.needs_h2load() {
            true => reading::h2load(&text(&report), &text(&self.requests_log())),
            false => reading::wrk(&text(&report)),
        };
        let load = load.map_err(|why| format!("{why}\n{}", text(&report)))?;
        let refused_expected = if self.case.limit == Limit::Refused { load.requests } else { 0 };
        if load.refused != refused_expected || load.requests == 0 {
            return Err(format!(
                "{} of {} requests were refused, and {refused_expected} should have been",
                load.refused, load.requests
            ));
        }
        Ok(load)
    }

    /// Sends one request with curl. Status and length must be those of this case, and the protocol
    /// that of its situation.
    pub fn probe(&self) -> Result<(), String> {
        let (work, wire) = (self.case.situation.work, self.case.situation.wire);
        let mut command = Command::new("curl");
        command
            .args(["--silent", "--show-error", "--insecure", "--max-time", "10", "--output"])
            .arg(self.folder.join("reply"));
        command.args(["--write-out", "%{http_version} %{response_code} %{size_download}"]);
        command.arg(match (wire.is_h2(), wire.is_tls()) {
            (false, _) => "--http1.1",
            (true, true) => "--http2",
            (true, false) => "--http2-prior-knowledge",
        });
        // The last one in the script: when its allowance is used up, all are.
        match self.case.situation.callers {
            Callers::Addresses => drop(command.args(["--header", "X-Forwarded-For: 10.1.4.1"])),
            Callers::Keys => drop(command.args(["--header", "X-Api-Key: key-1000"])),
            Callers::One => {}
        }
        if work == Work::Upload {
            command
                .args(["--header", "Expect:", "--data-binary"])
                .arg(format!("@{}", self.folder.join("mebibyte").display()));
        }
        let output = command.arg(self.url()).output().map_err(|error| format!("curl: {error}"))?;
        let found = String::from_utf8_lossy(&output.stdout).into_owned();
        let version = if wire.is_h2() { "2" } else { "1.1" };
        let length = if work == Work::Download { MEBIBYTE } else { HELLO.len() };
        let as_expected = match self.case.limit {
            Limit::Refused => found.starts_with(&format!("{version} 429 ")),
            Limit::Plain | Limit::Admitted => found == format!("{version} 200 {length}"),
        };
        let problem = String::from_utf8_lossy(&output.stderr);
        if as_expected {
            Ok(())
        } else {
            Err(format!("curl found \"{found}\" (version, status, length) {problem}"))
        }
    }
}

fn text(path: &Path) -> String {
    fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

/// A running load generator; killed when dropped.
struct Running(Child);

impl Running {
    fn start(mut command: Command, report: &Path) -> Result<Self, String> {
        let output =
            File::create(report).map_err(|error| format!("{}: {error}", report.display()))?;
        let name = command.get_program().to_string_lossy().into_owned();
        command
            .stdin(Stdio::null())
            .stderr(output.try_clone().map_err(|error| error.to_string())?)
            .stdout(output);
        command.spawn().map(Self).map_err(|error| {
            format!("{name}: {error} (`scripts/setup.sh bench` installs what is needed)")
        })
    }

    /// Whether it succeeded; `None` if it still runs after `time`.
    fn wait(&mut self, time: Duration) -> Result<Option<bool>, String> {
        let deadline = Instant::now() + time;
        loop {
            if let Some(status) = self.0.try_wait().map_err(|error| error.to_string())? {
                return Ok(Some(status.success()));
            }
            if INTERRUPTED.load(Ordering::Relaxed) {
                return Err("interrupted".into());
            }
            if Instant::now() > deadline {
                return Ok(None);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
