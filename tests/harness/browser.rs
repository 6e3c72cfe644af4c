//! A real browser: Debian's chromium without a window, told what to do over a pipe (the DevTools
//! protocol, as JSON). It records each request and everything that is logged or goes wrong.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::{TIMEOUT, eventually};

/// Where Debian, Ubuntu and Homebrew put it.
const PROGRAMS: [&str; 5] = [
    "/usr/lib/chromium/chromium",
    "/usr/bin/chromium",
    "/usr/bin/chromium-browser",
    "/usr/bin/google-chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
];

/// Set to 1, it leaves out what needs a browser.
const NONE_WANTED: &str = "WEIR_NO_BROWSER";

/// A browser with one tab. Killed when dropped.
pub struct Browser {
    child: Child,
    commands: ChildStdin,
    replies: Receiver<Value>,
    last: u64,
    session: String,
    /// What the tab asked for, in order.
    requests: Vec<String>,
    /// What its console shows, and what went wrong.
    problems: Vec<String>,
    _profile: TempDir,
}

/// The browser's program, if there is one.
fn program() -> Option<PathBuf> {
    PROGRAMS.iter().map(PathBuf::from).find(|path| path.exists())
}

impl Browser {
    /// Starts one. `None` where [`NONE_WANTED`] says that none is wanted.
    pub fn start() -> Option<Self> {
        if std::env::var_os(NONE_WANTED).is_some_and(|value| value == "1") {
            eprintln!("{NONE_WANTED}=1: the live page is not tested in a browser.");
            return None;
        }
        let program = program().unwrap_or_else(|| {
            panic!(
                "no browser in any of {PROGRAMS:?}: `scripts/setup.sh interop` installs chromium, and \
                 {NONE_WANTED}=1 leaves out what needs one"
            )
        });
        let profile = tempfile::tempdir().expect("a temporary folder");
        // It reads commands from its file 3, and writes to its file 4.
        let mut child = Command::new("bash")
            .args(["-c", "exec \"$0\" \"$@\" 3<&0 4>&1 0</dev/null 1>/dev/null"])
            .arg(program)
            .args([
                "--headless=new",
                // Also for root, in a container.
                "--no-sandbox",
                "--disable-dev-shm-usage",
                "--disable-gpu",
                "--disable-background-networking",
                "--disable-component-update",
                "--disable-default-apps",
                "--disable-sync",
                "--no-first-run",
                "--hide-scrollbars",
                "--remote-debugging-pipe",
                // No name leads anywhere.
                "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
            ])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .arg("about:blank")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("a browser");
        let commands = child.stdin.take().expect("a pipe");
        let replies = follow(child.stdout.take().expect("a pipe"));
        let mut browser = Self {
            child,
            commands,
            replies,
            last: 0,
            session: String::new(),
            requests: Vec::new(),
            problems: Vec::new(),
            _profile: profile,
        };
        browser.open_tab();
        Some(browser)
    }

    fn open_tab(&mut self) {
        let tab = self.call("Target.createTarget", json!({ "url": "about:blank" }));
        let attached = self
            .call("Target.attachToTarget", json!({ "targetId": tab["targetId"], "flatten": true }));
        self.session = attached["sessionId"].as_str().expect("a session").to_owned();
        for domain in ["Page", "Runtime", "Network", "Log"] {
            self.call(&format!("{domain}.enable"), json!({}));
        }
    }

    /// Runs a command of the protocol, and returns its result.
    fn call(&mut self, method: &str, parameters: Value) -> Value {
        self.last += 1;
        let mut message = json!({ "id": self.last, "method": method, "params": parameters });
        if !self.session.is_empty() {
            message["sessionId"] = json!(self.session);
        }
        let mut bytes = message.to_string().into_bytes();
        bytes.push(0);
        self.commands.write_all(&bytes).expect("a browser that listens");
        loop {
            let reply = self
                .replies
                .recv_timeout(TIMEOUT)
                .unwrap_or_else(|error| panic!("{method}: no answer: {error}"));
            if reply["id"] == json!(self.last) {
                assert!(reply["error"].is_null(), "{method}: {}", reply["error"]);
                return reply["result"].clone();
            }
            self.note(&reply);
        }
    }

    /// Records what happened.
    fn note(&mut self, event: &Value) {
        let of = &event["params"];
        match event["method"].as_str().unwrap_or_default() {
            "Network.requestWillBeSent" => {
                let url = of["request"]["url"].as_str().unwrap_or_default();
                self.requests.push(url.to_owned());
            }
            "Log.entryAdded" => self.problems.push(of["entry"].to_string()),
            "Runtime.consoleAPICalled" => self.problems.push(of["args"].to_string()),
            "Runtime.exceptionThrown" => self.problems.push(of["exceptionDetails"].to_string()),
            "Page.javascriptDialogOpening" => self.problems.push(format!("a dialog: {of}")),
            _ => {}
        }
    }

    /// Opens an address.
    pub fn open(&mut self, url: &str) {
        let opened = self.call("Page.navigate", json!({ "url": url }));
        assert!(opened["errorText"].is_null(), "{url}: {opened}");
        self.until("the page is loaded", "document.readyState === 'complete'");
    }

    /// The value of an expression in the page.
    pub fn value(&mut self, expression: &str) -> Value {
        let found = self.call(
            "Runtime.evaluate",
            json!({ "expression": expression, "returnByValue": true, "awaitPromise": true }),
        );
        assert!(found["exceptionDetails"].is_null(), "{expression}: {found}");
        found["result"]["value"].clone()
    }

    /// Waits until an expression is true.
    pub fn until(&mut self, what: &str, expression: &str) {
        eventually(what, || {
            if self.value(expression) == json!(true) {
                return Ok(());
            }
            let shown = self.value("document.body?.innerText ?? ''");
            Err(format!(
                "{expression}\n{}\n{:?}",
                shown.as_str().unwrap_or_default(),
                self.problems
            ))
        });
    }

    /// Types into what has the focus.
    pub fn type_text(&mut self, text: &str) {
        self.call("Input.insertText", json!({ "text": text }));
    }

    /// Presses a key: `Tab`, `Enter`.
    pub fn press(&mut self, key: &str) {
        let (code, text) = if key == "Enter" { (13, "\r") } else { (9, "") };
        let mut event =
            json!({ "type": "keyDown", "key": key, "code": key, "windowsVirtualKeyCode": code });
        if !text.is_empty() {
            event["text"] = json!(text);
        }
        self.call("Input.dispatchKeyEvent", event);
        self.call(
            "Input.dispatchKeyEvent",
            json!({ "type": "keyUp", "key": key, "code": key, "windowsVirtualKeyCode": code }),
        );
    }

    /// Gives the window a size, as a phone or not.
    pub fn size(&mut self, width: u32, height: u32, is_phone: bool) {
        self.call(
            "Emulation.setDeviceMetricsOverride",
            json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": is_phone }),
        );
    }

    /// What the system prefers: dark or light.
    pub fn prefer(&mut self, scheme: &str) {
        let features = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        self.call("Emulation.setEmulatedMedia", json!({ "features": features }));
    }

    /// What is shown, as a PNG.
    pub fn screenshot(&mut self, to: &Path) {
        let taken = self.call("Page.captureScreenshot", json!({ "format": "png" }));
        let bytes = base64(taken["data"].as_str().expect("a picture"));
        std::fs::write(to, bytes).unwrap_or_else(|error| panic!("{to:?}: {error}"));
    }

    /// How often each address was asked for.
    pub fn requests(&mut self) -> BTreeMap<String, usize> {
        self.catch_up();
        let mut counted = BTreeMap::new();
        for url in &self.requests {
            *counted.entry(url.clone()).or_default() += 1;
        }
        counted
    }

    /// All that the console shows, and that went wrong, since this was last called.
    pub fn problems(&mut self) -> Vec<String> {
        self.catch_up();
        std::mem::take(&mut self.problems)
    }

    /// Records what has happened until now.
    fn catch_up(&mut self) {
        self.value("1");
        while let Ok(event) = self.replies.recv_timeout(Duration::ZERO) {
            self.note(&event);
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Its other processes end with it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Messages end with a zero byte.
fn follow(pipe: ChildStdout) -> Receiver<Value> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for message in BufReader::new(pipe).split(0).map_while(Result::ok) {
            let Ok(message) = serde_json::from_slice(&message) else { continue };
            if sender.send(message).is_err() {
                return;
            }
        }
    });
    receiver
}

/// Decodes base64 (RFC 4648, 4).
fn base64(text: &str) -> Vec<u8> {
    let value = |byte: u8| match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'+' => 62,
        _ => 63,
    };
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    let (mut bits, mut held) = (0_u32, 0);
    for byte in text.bytes().take_while(|byte| *byte != b'=') {
        bits = bits << 6 | u32::from(value(byte));
        held += 6;
        if held >= 8 {
            held -= 8;
            bytes.push((bits >> held & 0xff) as u8);
        }
    }
    bytes
}
