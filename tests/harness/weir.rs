//! A `weir` process, with its configuration in a folder of its own, a thread that reads its log,
//! and its addresses taken from that log.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsRawFd as _, RawFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use super::pki::IssuedCertificate;
use super::{TIMEOUT, client, eventually};

/// Maximum number of lines of a process's output kept for error messages.
const LINES_MAX: usize = 20_000;

/// The program under test.
pub fn binary() -> &'static str {
    env!("CARGO_BIN_EXE_weir")
}

/// A running proxy. Killed when dropped.
pub struct Weir {
    child: Child,
    folder: TempDir,
    start: Start,
    output: Output,
    pub http: SocketAddr,
    pub admin: Option<SocketAddr>,
}

/// How to start one.
pub struct Builder {
    folder: TempDir,
    start: Start,
}

/// A command line.
#[derive(Clone)]
struct Start {
    program: PathBuf,
    arguments: Vec<OsString>,
    environment: Vec<(String, String)>,
    /// An argument for `ulimit`.
    files: Option<String>,
    /// A listening socket to start it with.
    activated: Option<RawFd>,
}

impl Start {
    fn new(arguments: Vec<OsString>) -> Self {
        let program = binary().into();
        Self { program, arguments, environment: Vec::new(), files: None, activated: None }
    }
}

/// The output of a process so far, stdout and stderr.
#[derive(Clone, Default)]
pub struct Output(Arc<Mutex<Vec<String>>>);

impl Weir {
    /// `weir run` with this configuration, ready to serve.
    pub fn start(config: &str) -> Self {
        Self::build(config).start()
    }

    pub fn build(config: &str) -> Builder {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("proxy.toml");
        std::fs::write(&path, config).expect("a configuration file");
        let arguments = vec!["run".into(), "--config".into(), path.into()];
        Builder { folder, start: Start::new(arguments) }
    }

    /// `weir ARGUMENTS`, without a configuration file.
    pub fn with_arguments(arguments: &[&str]) -> Builder {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let arguments = arguments.iter().map(OsString::from).collect();
        Builder { folder, start: Start::new(arguments) }
    }

    /// `weir check` of a configuration built for [`Builder::start`]: exit code, stdout, stderr.
    pub fn check(mut builder: Builder) -> (i32, String, String) {
        builder.start.arguments[0] = "check".into();
        builder.run()
    }

    /// `weir demo` instead of `weir run`.
    pub fn demo(mut builder: Builder) -> Builder {
        builder.start.arguments[0] = "demo".into();
        builder
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Replaces the configuration as an editor does: with a new file, renamed over the old one.
    pub fn rewrite(&self, config: &str) {
        replace(&self.folder().join("proxy.toml"), config.as_bytes());
    }

    /// Renews a certificate as `certbot` does: one file after the other.
    pub(crate) fn renew(&self, name: &str, issued: &IssuedCertificate) {
        replace(&self.folder().join(format!("{name}.pem")), issued.certificate.as_bytes());
        replace(&self.folder().join(format!("{name}.key")), issued.key.as_bytes());
    }

    /// Rewrites the configuration, and waits until the reload has ended with `result`: `applied` or
    /// `refused`.
    pub fn reload(&self, config: &str, result: &str) {
        let before = self.reloads(result);
        self.rewrite(config);
        self.await_reloads(result, before + 1);
    }

    pub fn reloads(&self, result: &str) -> u64 {
        self.metric(&format!("weir_reloads_total{{result=\"{result}\"}}"))
    }

    /// Waits until at least `count` reloads have ended with `result`.
    pub fn await_reloads(&self, result: &str, count: u64) {
        eventually(&format!("reload {count} {result}"), || {
            let now = self.reloads(result);
            if now >= count {
                Ok(())
            } else {
                Err(format!("{now} so far\n{}", self.output.tail(30)))
            }
        });
    }

    /// Ends it with `signal`, and starts it again in the same folder.
    pub fn restart(mut self, signal: Signal) -> Self {
        self.signal(signal);
        self.exit();
        let nothing = tempfile::tempdir().expect("a temporary folder");
        let folder = std::mem::replace(&mut self.folder, nothing);
        Builder { folder, start: self.start.clone() }.start()
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("a running process");
    }

    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    pub fn running(&mut self) -> bool {
        self.child.try_wait().expect("a child's status").is_none()
    }

    /// Waits until the process has ended by itself.
    pub fn exit(&mut self) -> ExitStatus {
        let (child, output) = (&mut self.child, &self.output);
        eventually("the process ends", || {
            child.try_wait().map_err(|error| error.to_string())?.ok_or_else(|| output.tail(30))
        })
    }

    /// The addresses on which it listens for clients, in the configuration's order.
    pub fn listeners(&self) -> Vec<SocketAddr> {
        let events = self.output.events();
        let listening = events
            .iter()
            .filter(|event| event["message"] == "listening" && event["listener"] == "http");
        listening.filter_map(|event| event["address"].as_str()?.parse().ok()).collect()
    }

    /// The most memory that the process has used (`VmHWM`).
    #[cfg(target_os = "linux")]
    pub fn peak_memory_kib(&self) -> u64 {
        self.status_kib("VmHWM:")
    }

    /// The memory that it uses now.
    pub fn memory_kib(&self) -> u64 {
        self.status_kib("VmRSS:")
    }

    fn status_kib(&self, name: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))
            .expect("a running process");
        let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("its memory");
        line.trim().trim_end_matches(" kB").parse().expect("a number")
    }

    pub fn output(&self) -> &Output {
        &self.output
    }

    /// The text of an admin page, whatever its status.
    pub fn admin_page(&self, path: &str) -> client::Reply {
        let address = self.admin.expect("an admin listener");
        eventually("the admin answers", || {
            client::get_blocking(address, path).map_err(|error| error.to_string())
        })
    }

    /// A metric's value, 0 if its series does not exist yet.
    pub fn metric(&self, series: &str) -> u64 {
        let page = self.admin_page("/metrics").text();
        let line = page.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        line.map_or(0, |value| value.trim().parse::<f64>().expect("a number") as u64)
    }
}

impl Drop for Weir {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("---- weir's output, its last lines ----\n{}", self.output.tail(60));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Builder {
    /// Another build of the program, such as a release.
    pub fn program(mut self, path: &Path) -> Self {
        self.start.program = path.to_owned();
        self
    }

    /// Writes a file next to the configuration, or in a folder there.
    pub fn file(self, name: &str, bytes: &[u8]) -> Self {
        let path = self.folder.path().join(name);
        std::fs::create_dir_all(path.parent().expect("a folder"))
            .expect("a folder beside the configuration");
        std::fs::write(path, bytes).expect("a file beside the configuration");
        self
    }

    /// Writes a certificate and its key next to the configuration: `NAME.pem`, `NAME.key`.
    pub(crate) fn identity(self, name: &str, issued: &IssuedCertificate) -> Self {
        self.file(&format!("{name}.pem"), issued.certificate.as_bytes())
            .file(&format!("{name}.key"), issued.key.as_bytes())
    }

    /// One more argument.
    pub fn argument(mut self, argument: &str) -> Self {
        self.start.arguments.push(argument.into());
        self
    }

    pub fn environment(mut self, name: &str, value: &str) -> Self {
        self.start.environment.push((name.into(), value.into()));
        self
    }

    /// Limits its open files to `max`, as `ulimit -n` does.
    pub fn files(mut self, max: u64) -> Self {
        self.start.files = Some(format!("-n {max}"));
        self
    }

    /// Passes it a listening socket, as systemd does with socket activation.
    pub fn activated(mut self, socket: &TcpListener) -> Self {
        rustix::io::fcntl_setfd(socket, rustix::io::FdFlags::empty()).expect("an open socket");
        self.start.activated = Some(socket.as_raw_fd());
        self
    }

    /// Starts it with this soft limit of open files, which it may raise.
    pub fn soft_files(mut self, max: u64) -> Self {
        self.start.files = Some(format!("-Sn {max}"));
        self
    }

    pub fn folder(&self) -> PathBuf {
        self.folder.path().to_owned()
    }

    /// Starts it, and does not wait for anything.
    pub fn spawn(self) -> Weir {
        let mut child = self.command().spawn().expect("the weir binary");
        let output = Output::default();
        output.follow(child.stdout.take().expect("a pipe"));
        output.follow(child.stderr.take().expect("a pipe"));
        let nowhere: SocketAddr = ([0, 0, 0, 0], 0).into();
        Weir { child, folder: self.folder, start: self.start, output, http: nowhere, admin: None }
    }

    /// Starts it, and waits until it reports that it is ready.
    pub fn start(self) -> Weir {
        let mut weir = self.spawn();
        let deadline = Instant::now() + TIMEOUT;
        while !weir.output.says("ready") {
            assert!(weir.running(), "weir ended before it was ready:\n{}", weir.output.tail(60));
            assert!(
                Instant::now() < deadline,
                "weir was not ready within {TIMEOUT:?}:\n{}",
                weir.output.tail(60)
            );
            std::thread::sleep(Duration::from_millis(5));
        }
        weir.http = weir.output.listening("http").expect("a line about the http listener");
        weir.admin = weir.output.listening("admin");
        weir
    }

    /// Runs it to its end, for commands that don't serve: exit code, stdout, stderr.
    pub fn run(self) -> (i32, String, String) {
        let mut child = self.command().spawn().expect("the weir binary");
        let (out, err) = (
            drain(child.stdout.take().expect("a pipe")),
            drain(child.stderr.take().expect("a pipe")),
        );
        let status = eventually("the command ends", || {
            child
                .try_wait()
                .map_err(|error| error.to_string())?
                .ok_or_else(|| "still running".into())
        });
        (
            status.code().unwrap_or(-1),
            out.join().expect("its output"),
            err.join().expect("its output"),
        )
    }

    fn command(&self) -> Command {
        let mut command = match (&self.start.files, self.start.activated) {
            (None, None) => Command::new(&self.start.program),
            (None, Some(socket)) => {
                // For the process with the id of this shell, which it keeps.
                let exec = format!("LISTEN_PID=$$ LISTEN_FDS=1 exec \"$0\" \"$@\" 3<&{socket}");
                let mut shell = Command::new("bash");
                shell.arg("-c").arg(exec).arg(&self.start.program);
                shell
            }
            (Some(files), _) => {
                // The shell is replaced by the program, so that its process id is the program's.
                let mut shell = Command::new("sh");
                shell
                    .arg("-c")
                    .arg(format!("ulimit {files} && exec \"$0\" \"$@\""))
                    .arg(&self.start.program);
                shell
            }
        };
        command
            .args(&self.start.arguments)
            .envs(self.start.environment.iter().cloned())
            .current_dir(self.folder.path());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }
}

impl Output {
    fn follow(&self, pipe: impl Read + Send + 'static) {
        let lines = Arc::clone(&self.0);
        std::thread::spawn(move || {
            for line in BufReader::new(pipe).lines().map_while(Result::ok) {
                let mut lines = lines.lock().expect("no panic while it is held");
                if lines.len() < LINES_MAX {
                    lines.push(line);
                }
            }
        });
    }

    pub fn lines(&self) -> Vec<String> {
        self.0.lock().expect("no panic while it is held").clone()
    }

    pub fn tail(&self, count: usize) -> String {
        let lines = self.lines();
        lines[lines.len().saturating_sub(count)..].join("\n")
    }

    /// The log's events.
    pub fn events(&self) -> Vec<Value> {
        self.lines().iter().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// Waits until the log has `count` events or more with this message, and returns them. What a
    /// client was answered, or a metric shows, may be read some time before its line is.
    pub fn await_events(&self, message: &str, count: usize) -> Vec<Value> {
        eventually(message, || {
            let events = self.events().into_iter();
            let found: Vec<Value> = events.filter(|event| event["message"] == message).collect();
            if found.len() >= count { Ok(found) } else { Err(self.tail(30)) }
        })
    }

    /// Waits until the log has this text.
    pub fn await_text(&self, text: &str) {
        eventually(text, || {
            let said = self.lines().iter().any(|line| line.contains(text));
            said.then_some(()).ok_or_else(|| self.tail(30))
        });
    }

    /// Whether the log has an event with exactly this message.
    pub fn says(&self, message: &str) -> bool {
        self.events().iter().any(|event| event["message"] == message)
    }

    fn listening(&self, listener: &str) -> Option<SocketAddr> {
        let events = self.events();
        let event = events
            .iter()
            .find(|event| event["message"] == "listening" && event["listener"] == listener)?;
        event["address"].as_str()?.parse().ok()
    }
}

/// Replaces `path` by `bytes` atomically: a reader sees the old file or the new one, never half of
/// it.
pub fn replace(path: &Path, bytes: &[u8]) {
    let folder = path.parent().expect("a file in a folder");
    let mut file = tempfile::NamedTempFile::new_in(folder).expect("a new file");
    file.write_all(bytes).expect("a written file");
    file.persist(path).expect("a renamed file");
}

fn drain(mut pipe: impl Read + Send + 'static) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut text = String::new();
        let _ = pipe.read_to_string(&mut text);
        text
    })
}
