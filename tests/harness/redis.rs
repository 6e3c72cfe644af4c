//! Real Redis servers, each in a folder of its own and killed when dropped, and the part of RESP
//! that tests need to inspect them.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::TIMEOUT;

/// The offset of a cluster bus's port from the server's port.
const BUS_OFFSET: u16 = 10_000;
/// Attempts with other ports, if a port was taken meanwhile.
const TRIES: usize = 10;

/// A running `redis-server`.
pub struct Redis {
    child: Child,
    folder: TempDir,
    pub address: SocketAddr,
    options: Vec<String>,
    environment: Vec<(&'static str, String)>,
}

impl Redis {
    /// A single server that keeps nothing on disk.
    pub fn start() -> Self {
        Self::with(&[])
    }

    /// Starts it with further options, as on the command line: `&["--maxmemory", "5mb"]`.
    pub fn with(options: &[&str]) -> Self {
        Self::within(options, &[])
    }

    /// The same, with environment variables.
    pub fn within(options: &[&str], environment: &[(&'static str, String)]) -> Self {
        let options: Vec<String> = options.iter().map(|option| (*option).to_owned()).collect();
        let folder = tempfile::tempdir().expect("a temporary folder");
        for _ in 0..TRIES {
            let address = free_pair();
            if let Some(child) = spawn(&folder, address, &options, environment) {
                return Self { child, folder, address, options, environment: environment.to_vec() };
            }
        }
        panic!("redis-server did not start on any of {TRIES} ports; its log:\n{}", log(&folder));
    }

    /// Kills it, like a crash.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Starts it again on the same address, empty.
    pub fn start_again(&mut self) {
        self.child = spawn(&self.folder, self.address, &self.options, &self.environment)
            .unwrap_or_else(|| panic!("no restart; its log:\n{}", log(&self.folder)));
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("a running process");
    }

    pub fn connect(&self) -> Connection {
        Connection::open(self.address).expect("a connection to Redis")
    }

    /// Names of keys without an expiry.
    pub fn keys_without_lifetime(&self) -> Vec<String> {
        let mut connection = self.connect();
        let keys = connection.ask(&["KEYS", "*"]);
        keys.list()
            .iter()
            .map(Value::text)
            .filter(|key| connection.ask(&["PTTL", key]) == Value::Integer(-1))
            .collect()
    }

    pub fn log(&self) -> String {
        log(&self.folder)
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Starts a server and waits until it answers; `None` if its port was taken meanwhile.
fn spawn(
    folder: &TempDir,
    address: SocketAddr,
    options: &[String],
    environment: &[(&'static str, String)],
) -> Option<Child> {
    let port = address.port().to_string();
    let log = folder.path().join("log");
    let mut command = Command::new("redis-server");
    command.args([
        "--port",
        &port,
        "--bind",
        "127.0.0.1",
        "--save",
        "",
        "--appendonly",
        "no",
        "--daemonize",
        "no",
    ]);
    command.arg("--dir").arg(folder.path()).arg("--logfile").arg(&log).args(options);
    command.envs(environment.iter().map(|(name, value)| (name, value)));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().expect("redis-server on the PATH: `make setup` installs it");
    let deadline = Instant::now() + TIMEOUT;
    while Instant::now() < deadline {
        if child.try_wait().expect("a child's status").is_some() {
            return None;
        }
        // Checks by its process id that it is ours, and not another server that took the port.
        let info = Connection::open(address)
            .and_then(|mut connection| connection.command(&["INFO", "server"]));
        if info.is_ok_and(|info| info.text().contains(&format!("process_id:{}\r", child.id()))) {
            return Some(child);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let _ = child.kill();
    let _ = child.wait();
    None
}

fn log(folder: &TempDir) -> String {
    std::fs::read_to_string(folder.path().join("log")).unwrap_or_default()
}

/// A port that was free a moment ago, together with the port of its cluster bus.
fn free_pair() -> SocketAddr {
    loop {
        let probe = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .and_then(|listener| listener.local_addr())
            .expect("a free port");
        let bus = probe.port().checked_add(BUS_OFFSET);
        if bus.is_some_and(|bus| TcpListener::bind((Ipv4Addr::LOCALHOST, bus)).is_ok()) {
            return probe;
        }
    }
}

/// An answer of Redis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    Nil,
    Integer(i64),
    Text(String),
    Error(String),
    List(Vec<Value>),
}

impl Value {
    pub fn text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Integer(number) => number.to_string(),
            other => panic!("Redis answered {other:?}"),
        }
    }

    /// An answer as a number, in whatever form it came; 0 if there is none.
    pub fn number(&self) -> i64 {
        match self {
            Self::Nil => 0,
            other => other
                .text()
                .parse()
                .unwrap_or_else(|_| panic!("Redis answered {other:?}, no number")),
        }
    }

    pub fn list(&self) -> &[Value] {
        match self {
            Self::List(list) => list,
            other => panic!("Redis answered {other:?}, no list"),
        }
    }
}

/// A plain connection that waits for each answer.
pub struct Connection(BufReader<TcpStream>);

impl Connection {
    pub fn open(address: SocketAddr) -> std::io::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, Duration::from_secs(5))?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_nodelay(true)?;
        Ok(Self(BufReader::new(stream)))
    }

    pub fn command(&mut self, words: &[&str]) -> std::io::Result<Value> {
        let mut text = format!("*{}\r\n", words.len());
        for word in words {
            text.push_str(&format!("${}\r\n{word}\r\n", word.len()));
        }
        self.0.get_mut().write_all(text.as_bytes())?;
        self.value()
    }

    /// A command that must succeed.
    pub fn ask(&mut self, words: &[&str]) -> Value {
        match self.command(words).unwrap_or_else(|error| panic!("{words:?}: {error}")) {
            Value::Error(error) => panic!("{words:?}: {error}"),
            value => value,
        }
    }

    /// How often a command was called, according to `INFO commandstats`.
    pub fn calls(&mut self, command: &str) -> u64 {
        let stats = self.ask(&["INFO", "commandstats"]).text();
        let prefix = format!("cmdstat_{command}:calls=");
        let line = stats.lines().find_map(|line| line.strip_prefix(&prefix));
        line.map_or(0, |rest| {
            rest.split(',').next().and_then(|count| count.parse().ok()).expect("a count")
        })
    }

    /// How often a command was sent, whether it was carried out or refused.
    pub fn attempts(&mut self, command: &str) -> u64 {
        let stats = self.ask(&["INFO", "commandstats"]).text();
        let prefix = format!("cmdstat_{command}:");
        let line = stats.lines().find_map(|line| line.strip_prefix(&prefix)).unwrap_or_default();
        let count = |name: &str| -> u64 {
            let field = line.split(',').find_map(|field| field.strip_prefix(name));
            field.map_or(0, |count| count.parse().expect("a count"))
        };
        count("calls=") + count("rejected_calls=")
    }

    fn value(&mut self) -> std::io::Result<Value> {
        let mut line = String::new();
        if self.0.read_line(&mut line)? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        let (kind, rest) =
            line.trim_end().split_at_checked(1).ok_or(std::io::ErrorKind::InvalidData)?;
        let number = || rest.parse::<i64>().map_err(std::io::Error::other);
        Ok(match kind {
            "+" => Value::Text(rest.into()),
            "-" => Value::Error(rest.into()),
            ":" => Value::Integer(number()?),
            "$" => match usize::try_from(number()?) {
                Err(_) => Value::Nil,
                Ok(length) => {
                    let mut bytes = vec![0; length + 2];
                    self.0.read_exact(&mut bytes)?;
                    Value::Text(String::from_utf8_lossy(&bytes[..length]).into_owned())
                }
            },
            "*" => match usize::try_from(number()?) {
                Err(_) => Value::Nil,
                Ok(length) => {
                    Value::List((0..length).map(|_| self.value()).collect::<Result<_, _>>()?)
                }
            },
            _ => return Err(std::io::ErrorKind::InvalidData.into()),
        })
    }
}
