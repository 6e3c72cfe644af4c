//! What the pieces of a soak saw, as lines of JSON in a file.

use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write as _};
use std::path::Path;

use serde_json::{Value, json};

/// What a piece saw.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Piece {
    /// Its run: each has processes of its own.
    pub run: usize,
    /// The commit that its program is built from; empty if it was not given.
    pub commit: String,
    pub fault: String,
    pub seconds: f64,
    pub requests: u64,
    pub refused: u64,
    /// Requests that Redis did not decide, and those of them away from the fault.
    pub undecided: u64,
    pub undecided_calm: u64,
    pub p50_us: u64,
    /// Of the requests before the fault.
    pub p99_us: u64,
    /// Of all proxies together, at the end.
    pub memory_kib: u64,
    pub descriptors: u64,
    /// On Redis.
    pub keys: u64,
    /// Units charged beyond what clients were told, and units missing.
    pub more: u64,
    pub less: u64,
    /// Takes whose outcome nobody knows.
    pub unknown: u64,
    /// Requests that arrived upstream without having been admitted, or the other way round.
    pub upstream_astray: u64,
    /// The most units by which a leased limit was exceeded.
    pub leased_over: u64,
    /// It was not seen to its end: something did not serve again, or a proxy ended.
    pub has_failed: bool,
}

impl Piece {
    /// One that was not seen to its end.
    pub fn failed(run: usize, fault: &str) -> Self {
        Self { run, fault: fault.to_owned(), has_failed: true, ..Self::default() }
    }

    /// Whether a master was lost with what it had not passed on.
    fn loses(&self) -> bool {
        self.fault.starts_with("a master")
    }

    /// What was not as promised.
    pub fn wrong(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        let mut check = |met: bool, text: String| {
            if !met {
                wrong.push(format!("run {}, {}: {text}", self.run, self.fault));
            }
        };
        check(!self.has_failed, "it did not come to its end".to_owned());
        check(
            self.undecided_calm == 0,
            format!("{} requests undecided away from the fault", self.undecided_calm),
        );
        check(
            self.more <= self.unknown,
            format!("{} units charged too much, {} takes unknown", self.more, self.unknown),
        );
        check(self.less == 0 || self.loses(), format!("{} units missing", self.less));
        check(
            self.upstream_astray == 0,
            format!("{} requests astray upstream", self.upstream_astray),
        );
        check(
            self.leased_over == 0 || self.loses(),
            format!("a leased limit exceeded by {}", self.leased_over),
        );
        wrong
    }

    /// For a terminal.
    pub fn text(&self) -> String {
        let Self {
            fault, requests, undecided, p99_us, memory_kib, descriptors, more, less, ..
        } = self;
        format!(
            "{fault}: {requests} requests, {undecided} undecided, p99 {:.1} ms, {} MiB, \
             {descriptors} descriptors, {more} units more and {less} less",
            *p99_us as f64 / 1e3,
            memory_kib / 1024
        )
    }

    fn write(&self) -> Value {
        json!({
            "run": self.run,
            "commit": self.commit,
            "fault": self.fault,
            "seconds": self.seconds,
            "requests": self.requests,
            "refused": self.refused,
            "undecided": self.undecided,
            "undecided_calm": self.undecided_calm,
            "p50_us": self.p50_us,
            "p99_us": self.p99_us,
            "memory_kib": self.memory_kib,
            "descriptors": self.descriptors,
            "keys": self.keys,
            "more": self.more,
            "less": self.less,
            "unknown": self.unknown,
            "upstream_astray": self.upstream_astray,
            "leased_over": self.leased_over,
            "has_failed": self.has_failed,
        })
    }

    fn read(line: &Value) -> Option<Self> {
        let number = |name: &str| line[name].as_u64();
        Some(Self {
            run: usize::try_from(number("run")?).ok()?,
            commit: line["commit"].as_str().unwrap_or_default().to_owned(),
            fault: line["fault"].as_str()?.to_owned(),
            seconds: line["seconds"].as_f64()?,
            requests: number("requests")?,
            refused: number("refused")?,
            undecided: number("undecided")?,
            undecided_calm: number("undecided_calm")?,
            p50_us: number("p50_us")?,
            p99_us: number("p99_us")?,
            memory_kib: number("memory_kib")?,
            descriptors: number("descriptors")?,
            keys: number("keys")?,
            more: number("more")?,
            less: number("less")?,
            unknown: number("unknown")?,
            upstream_astray: number("upstream_astray")?,
            leased_over: number("leased_over")?,
            has_failed: line["has_failed"].as_bool().unwrap_or(false),
        })
    }
}

/// The pieces so far. A file that is not there has none.
pub fn read(path: &Path) -> Vec<Piece> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Vec::new(),
        Err(error) => panic!("{}: {error}", path.display()),
    };
    let each = text.lines().enumerate().map(|(at, line)| {
        let value: Option<Value> = serde_json::from_str(line).ok();
        let piece = value.as_ref().and_then(Piece::read);
        piece.unwrap_or_else(|| panic!("{}:{}: no piece: {line}", path.display(), at + 1))
    });
    each.collect()
}

/// Adds a piece.
pub fn append(path: &Path, piece: &Piece) {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).expect("the folder of the state");
    }
    let mut file = OpenOptions::new().create(true).append(true).open(path).expect("the state");
    writeln!(file, "{}", piece.write()).expect("a line of the state");
}
