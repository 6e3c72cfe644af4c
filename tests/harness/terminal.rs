//! A program on a terminal: `script` (of util-linux) gives it one, and what it writes is put on a
//! screen as a terminal would, as far as a program goes that moves the cursor and writes.

use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};

use tempfile::TempDir;

use super::eventually;

/// What a program writes to show another screen than the shell's, and to come back from there.
const OTHER_SCREEN: &str = "\x1b[?1049h";
const SHELLS_SCREEN: &str = "\x1b[?1049l";
const SHOW_CURSOR: &str = "\x1b[?25h";

/// A program on a terminal of its own. Killed when dropped.
pub struct Terminal {
    child: Child,
    stdin: ChildStdin,
    folder: TempDir,
    written: Arc<Mutex<Vec<u8>>>,
}

/// How a program on a terminal ended.
#[derive(Debug)]
pub struct Left {
    pub code: i32,
    pub written: String,
    /// The terminal's settings afterwards, as `stty -a` prints them.
    settings: String,
}

impl Terminal {
    /// Starts `program` with arguments that need no quotes, on a terminal of this size.
    pub fn start(program: &str, arguments: &[&str], (columns, rows): (u16, u16)) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let inner = format!("echo $$ > pid; exec {program} {}", arguments.join(" "));
        let outer = format!(
            "tty > tty; stty rows {rows} cols {columns}; sh -c '{inner}'; code=$?; stty -a > after; exit $code"
        );
        let mut child = Command::new("script")
            .args(["-qefc", &outer, "/dev/null"])
            .current_dir(folder.path())
            .env("SHELL", "/bin/sh")
            .env("TERM", "xterm-256color")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("script, of util-linux");
        let written = Arc::new(Mutex::new(Vec::new()));
        let (mut out, all) = (child.stdout.take().expect("a pipe"), Arc::clone(&written));
        std::thread::spawn(move || {
            let mut part = [0; 4_096];
            while let Ok(count @ 1..) = out.read(&mut part) {
                all.lock().expect("no panic while it is held").extend(&part[..count]);
            }
        });
        let stdin = child.stdin.take().expect("a pipe");
        Self { child, stdin, folder, written }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn written(&self) -> String {
        String::from_utf8_lossy(&self.written.lock().expect("no panic while it is held")).into()
    }

    /// What the screen shows, line by line.
    pub fn screen(&self) -> Vec<String> {
        screen(&self.written())
    }

    /// Waits until some line of the screen contains this.
    #[track_caller]
    pub fn await_text(&self, text: &str) {
        eventually(&format!("{text:?} on the screen"), || {
            let screen = self.screen();
            let found = screen.iter().any(|line| line.contains(text));
            if found { Ok(()) } else { Err(screen.join("\n")) }
        });
    }

    /// Waits until no line of the screen is wider than this, as a terminal would wrap it.
    #[track_caller]
    pub fn await_width(&self, columns: usize) {
        eventually(&format!("no line wider than {columns}"), || {
            let screen = self.screen();
            let fits = screen.iter().all(|line| line.chars().count() <= columns);
            if fits { Ok(()) } else { Err(screen.join("\n")) }
        });
    }

    /// Types on its keyboard.
    pub fn type_keys(&mut self, keys: &str) {
        self.stdin.write_all(keys.as_bytes()).expect("a terminal");
        self.stdin.flush().expect("a terminal");
    }

    /// Gives the terminal another size, as a window does.
    pub fn resize(&self, (columns, rows): (u16, u16)) {
        let tty = std::fs::read_to_string(self.file("tty")).expect("the terminal's name");
        let (columns, rows) = (columns.to_string(), rows.to_string());
        let size = ["-F", tty.trim(), "rows", &rows, "cols", &columns];
        let status = Command::new("stty").args(size).status().expect("stty");
        assert!(status.success(), "{size:?}");
    }

    /// The program's process.
    pub fn pid(&self) -> rustix::process::Pid {
        let number = eventually("its process", || {
            let text = std::fs::read_to_string(self.file("pid")).unwrap_or_default();
            text.trim().parse().map_err(|_| text)
        });
        rustix::process::Pid::from_raw(number).expect("a process")
    }

    /// Waits for its end.
    pub fn end(mut self) -> Left {
        let child = &mut self.child;
        let status = eventually("the program ends", || {
            child.try_wait().expect("a child's status").ok_or_else(|| "it runs".to_owned())
        });
        let read = |path: &Path| std::fs::read_to_string(path).unwrap_or_default();
        let settings = read(&self.file("after"));
        Left { code: status.code().unwrap_or(-1), written: self.written(), settings }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Left {
    /// The terminal is as it was: a shell's screen with a cursor, lines that are edited and echoed.
    #[track_caller]
    pub fn is_restored(&self) {
        let settings: Vec<&str> = self.settings.split([' ', ';', '\n']).collect();
        for on in ["icanon", "echo", "isig", "icrnl", "opost"] {
            assert!(settings.contains(&on), "{on}: {}", self.settings);
        }
        let last = |text: &str| self.written.rfind(text);
        assert!(last(OTHER_SCREEN) <= last(SHELLS_SCREEN), "{:?}", self.written);
        if last(OTHER_SCREEN).is_some() {
            assert!(last(SHOW_CURSOR) > last(OTHER_SCREEN), "{:?}", self.written);
        }
    }
}

/// What the screen shows after this was written.
fn screen(written: &str) -> Vec<String> {
    let mut lines: Vec<Vec<char>> = Vec::new();
    let (mut row, mut column) = (0_usize, 0_usize);
    let mut letters = written.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '\x1b' => {
                if letters.next() != Some('[') {
                    continue;
                }
                let mut sequence = String::new();
                let end = loop {
                    match letters.next() {
                        Some(end @ '@'..='~') => break end,
                        Some(part) => sequence.push(part),
                        None => break ' ',
                    }
                };
                let mut numbers = sequence.split(';').map(|number| number.parse().unwrap_or(1));
                match end {
                    'H' => {
                        row = numbers.next().unwrap_or(1) - 1;
                        column = numbers.next().unwrap_or(1) - 1;
                    }
                    'J' => lines.clear(),
                    _ if format!("\x1b[{sequence}{end}") == OTHER_SCREEN => lines.clear(),
                    _ => {}
                }
            }
            '\r' => column = 0,
            '\n' => row += 1,
            _ => {
                lines.resize(lines.len().max(row + 1), Vec::new());
                let line = &mut lines[row];
                line.resize(line.len().max(column + 1), ' ');
                line[column] = letter;
                column += 1;
            }
        }
    }
    lines.into_iter().map(|line| line.into_iter().collect::<String>()).collect()
}
