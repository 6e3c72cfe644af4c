//! One real redis-server on a free port, stopped by Drop. It has a plain connection of its own, for
//! commands that bypass the limiter.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;

use super::TEST_TIMEOUT;
use crate::clock::monotonic;

pub(super) struct Server {
    child: Child,
    pub(super) port: u16,
    control: BufReader<TcpStream>,
    _folder: TempDir,
}

impl Server {
    pub(super) fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let port = free_port();
        let child = Command::new("redis-server")
            .args([
                "--port",
                &port.to_string(),
                "--bind",
                "127.0.0.1",
                "--save",
                "",
                "--appendonly",
                "no",
                "--dir",
            ])
            .arg(folder.path())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let began = monotonic();
        let control = loop {
            match TcpStream::connect(("127.0.0.1", port)) {
                Ok(stream) => break BufReader::new(stream),
                Err(error) => {
                    assert!(began.elapsed() < TEST_TIMEOUT, "redis-server does not answer: {error}")
                }
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        control.get_ref().set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
        Self { child, port, control, _folder: folder }
    }

    /// Sends a command and returns its reply (a status, a number or a text) without the type
    /// character.
    pub(super) fn command(&mut self, words: &[&str]) -> String {
        let mut request = format!("*{}\r\n", words.len());
        for word in words {
            request.push_str(&format!("${}\r\n{word}\r\n", word.len()));
        }
        self.control.get_mut().write_all(request.as_bytes()).unwrap();
        let mut line = String::new();
        self.control.read_line(&mut line).unwrap();
        let line = line.trim_end();
        assert!(!line.starts_with('-'), "{words:?}: {line}");
        let Some(length) = line.strip_prefix('$') else { return line[1..].to_owned() };
        let mut text = vec![0; length.parse::<usize>().unwrap() + 2];
        self.control.read_exact(&mut text).unwrap();
        String::from_utf8(text).unwrap().trim_end().to_owned()
    }

    /// Makes every command that may write wait.
    pub(super) fn hold(&mut self) {
        self.command(&["CLIENT", "PAUSE", "600000", "WRITE"]);
    }

    /// How many connections wait because of [`Server::hold`].
    pub(super) fn held(&mut self) -> usize {
        self.command(&["CLIENT", "LIST"])
            .lines()
            .filter(|client| client.contains(" flags=b "))
            .count()
    }

    pub(super) fn release(&mut self) {
        self.command(&["CLIENT", "UNPAUSE"]);
    }

    /// Every key's name.
    pub(super) fn keys(&mut self) -> Vec<String> {
        let text =
            self.command(&["EVAL", "return table.concat(redis.call('KEYS', '*'), '\\n')", "0"]);
        text.lines().map(str::to_owned).collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Killed, because its data is not needed. Waited for, because its folder is deleted next.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A port on which nothing listens now.
pub(super) fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}
