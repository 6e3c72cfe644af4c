//! A real redis-server with a plain connection of the test's own, for commands that bypass the
//! limiter.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use super::TEST_TIMEOUT;
use crate::engine::testing;

pub(super) struct Server {
    pub(super) port: u16,
    control: BufReader<TcpStream>,
    _server: testing::Server,
}

impl Server {
    pub(super) fn start() -> Self {
        let server = testing::Server::start(&[]);
        let control = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
        control.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
        Self { port: server.port, control: BufReader::new(control), _server: server }
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
