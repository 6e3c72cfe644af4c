//! Other people's programs, as clients and upstreams: run to their end, or kept running while a
//! test needs them and killed afterwards.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::eventually;

/// The time limit for everything that a client does: several times `TIMEOUT`, since one run makes
/// many requests.
const RUN: Duration = Duration::from_secs(120);
/// Maximum number of lines of a service's output kept for error messages.
const LINES_MAX: usize = 2_000;

/// How a program ended, and what it wrote.
#[derive(Clone, Debug)]
pub struct Finished {
    /// Its exit code; -1 if a signal ended it.
    pub code: i32,
    pub out: String,
    pub err: String,
}

/// Runs a program to its end. Fails if it does not end in time.
pub fn run(command: &mut Command) -> Finished {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let (out, err) =
        (drain(child.stdout.take().expect("a pipe")), drain(child.stderr.take().expect("a pipe")));
    let deadline = Instant::now() + RUN;
    let ended = loop {
        match child.try_wait().expect("a child's status") {
            Some(status) => break Some(status),
            None if Instant::now() > deadline => break None,
            None => std::thread::sleep(Duration::from_millis(2)),
        }
    };
    if ended.is_none() {
        let _ = child.kill();
        let _ = child.wait();
    }
    let (out, err) = (out.join().expect("its output"), err.join().expect("its output"));
    let status = ended.unwrap_or_else(|| {
        panic!("{command:?} did not end within {RUN:?}; it wrote:\n{out}\n{err}")
    });
    Finished { code: status.code().unwrap_or(-1), out, err }
}

fn drain(mut pipe: impl Read + Send + 'static) -> JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = pipe.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// A program that runs until it is dropped.
pub struct Service {
    child: Child,
    lines: Arc<Mutex<Vec<String>>>,
    what: String,
}

impl Service {
    pub fn spawn(command: &mut Command) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let lines = Arc::new(Mutex::new(Vec::new()));
        follow(child.stdout.take().expect("a pipe"), &lines);
        follow(child.stderr.take().expect("a pipe"), &lines);
        Self { child, lines, what: format!("{command:?}") }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Its output so far.
    pub fn lines(&self) -> Vec<String> {
        self.lines.lock().expect("no panic while it is held").clone()
    }

    /// Waits for its line `listening ADDRESS`, and returns the address.
    pub fn address(&mut self) -> SocketAddr {
        eventually(&format!("{} listens", self.what), || {
            let lines = self.lines();
            let address =
                lines.iter().find_map(|line| line.strip_prefix("listening ")?.parse().ok());
            address.ok_or_else(|| lines.join("\n"))
        })
    }

    /// Waits until it has written a line with this prefix, and returns that line.
    pub fn await_line(&self, prefix: &str) -> String {
        eventually(&format!("{} writes {prefix:?}", self.what), || {
            let lines = self.lines();
            lines
                .iter()
                .find(|line| line.starts_with(prefix))
                .cloned()
                .ok_or_else(|| lines.join("\n"))
        })
    }

    pub fn running(&mut self) -> bool {
        self.child.try_wait().expect("a child's status").is_none()
    }

    /// Kills it with SIGKILL, like a crash.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            let lines = self.lines();
            eprintln!(
                "---- {}, its last lines ----\n{}",
                self.what,
                lines[lines.len().saturating_sub(40)..].join("\n")
            );
        }
    }
}

fn follow(pipe: impl Read + Send + 'static, lines: &Arc<Mutex<Vec<String>>>) {
    let lines = Arc::clone(lines);
    std::thread::spawn(move || {
        for line in BufReader::new(pipe).lines().map_while(Result::ok) {
            let mut lines = lines.lock().expect("no panic while it is held");
            if lines.len() < LINES_MAX {
                lines.push(line);
            }
        }
    });
}
