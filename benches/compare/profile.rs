//! Where the time goes: `perf` on the proxy under load, its samples sorted into kernel, libraries
//! and the proxy's own code.
//!
//! A sample belongs to the function that ran, including whatever the compiler inlined into it, so
//! the result is approximate.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use super::cases::Case;
use super::stage::Stage;

/// Samples a second; not a round number, so that it does not resonate with a timer.
const FREQUENCY: &str = "1997";
/// Functions that are listed individually for each case.
const FUNCTIONS_MAX: usize = 12;

/// The parts in the order of the table: a name, and prefixes of crates and functions.
const PARTS: &[(&str, &[&str])] = &[
    ("kernel", &[]),
    (
        "hyper, h2",
        &[
            "hyper",
            "hyper_util",
            "h2",
            "http",
            "http_body",
            "http_body_util",
            "httparse",
            "ngx_http_v2",
        ],
    ),
    ("TLS", &["rustls", "tokio_rustls", "aws_lc", "ngx_ssl", "ssl_"]),
    ("tokio", &["tokio", "mio", "tokio_util"]),
    ("Wasm host", &["wasmtime"]),
    ("Lua", &["mlua", "lj_", "lua_", "luaJIT", "ngx_http_lua", "lua"]),
    ("Redis client", &["redis", "combine"]),
    ("proxy", &["weir", "ngx_", "http_", "h1_", "htx_", "sock_", "stream_", "conn_", "task_"]),
    ("made at run time: Wasm, LuaJIT", &[]),
    ("libc: copies, allocator", &[]),
    ("rest", &[]),
];

/// Samples of one case.
struct Profile {
    name: String,
    cpu_us: f64,
    by_part: BTreeMap<&'static str, u64>,
    by_function: BTreeMap<String, u64>,
    samples: u64,
}

/// Runs each case once under `perf`, and reports in Markdown.
pub fn run(stage: &Stage, cases: &[Case], seconds: u32) -> Result<String, String> {
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let data = folder.path().join("perf.data");
    let mut profiles = Vec::new();
    for case in cases.iter().filter(|case| !case.again) {
        let figure = stage
            .run_and_watch(case, seconds, |pid| Recording::start(pid, &data))
            .map_err(|why| format!("{}: {why}", case.name()))?;
        let profile = read(&data, case.name(), figure.cpu_us())?;
        eprintln!("{}: {} samples", profile.name, profile.samples);
        profiles.push(profile);
    }
    Ok(report(&profiles))
}

/// A running `perf record`. When it is dropped, its file is complete.
struct Recording(Child);

impl Recording {
    fn start(pid: Pid, data: &Path) -> Result<Self, String> {
        let mut command = Command::new("perf");
        command
            .args([
                "record",
                "--quiet",
                "-F",
                FREQUENCY,
                "-p",
                &pid.as_raw_nonzero().to_string(),
                "-o",
            ])
            .arg(data);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().map(Self).map_err(|error| format!("perf: {error} (Debian: linux-perf)"))
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_child(&self.0), Signal::INT);
        let _ = self.0.wait();
    }
}

fn read(data: &Path, name: String, cpu_us: f64) -> Result<Profile, String> {
    let output = Command::new("perf")
        .args(["script", "-F", "ip,sym,dso", "-i"])
        .arg(data)
        .output()
        .map_err(|error| format!("perf: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let mut profile = Profile {
        name,
        cpu_us,
        by_part: BTreeMap::new(),
        by_function: BTreeMap::new(),
        samples: 0,
    };
    for line in text.lines() {
        let Some((function, object)) = sample(line) else { continue };
        *profile.by_part.entry(part(function, object)).or_default() += 1;
        if !object.contains("kernel") {
            *profile.by_function.entry(short(function, object)).or_default() += 1;
        }
        profile.samples += 1;
    }
    if profile.samples == 0 {
        return Err(format!(
            "perf saw nothing (is kernel.perf_event_paranoid above 2?): {}",
            String::from_utf8_lossy(&output.stderr)
        ));
    }
    Ok(profile)
}

/// `  55d0c1 hyper::proto::h1::role::parse (/somewhere/weir)`: the function and the object.
fn sample(line: &str) -> Option<(&str, &str)> {
    let (_, rest) = line.trim().split_once(' ')?;
    let (function, object) = rest.rsplit_once(" (")?;
    Some((function.trim(), object.strip_suffix(')')?))
}

fn part(function: &str, object: &str) -> &'static str {
    let file = object.rsplit('/').next().unwrap_or(object);
    if object.contains("kernel") || object.contains("[vdso]") {
        return "kernel";
    }
    if file.starts_with("libssl") || file.starts_with("libcrypto") {
        return "TLS";
    }
    if file.starts_with("libluajit") || file.starts_with("ngx_http_lua") {
        return "Lua";
    }
    if file.starts_with("libc.") || file.starts_with("libc-") || file.starts_with("ld-linux") {
        return "libc: copies, allocator";
    }
    if object.contains("anon")
        || object.contains("[JIT]")
        || object.contains("jitted")
        || object == "[unknown]"
        || file.ends_with(".map")
    {
        return "made at run time: Wasm, LuaJIT";
    }
    // The first crate named in the function's path, whatever generic of the standard library is
    // around it.
    let words = function
        .split(|letter: char| !(letter.is_alphanumeric() || letter == '_'))
        .filter(|word| !word.is_empty());
    let is = |word: &str, start: &str| {
        word == start
            || (start.ends_with('_') && word.starts_with(start))
            || (start == "aws_lc" && word.starts_with(start))
    };
    let named = words
        .filter_map(|word| {
            PARTS.iter().find(|(_, starts)| starts.iter().any(|start| is(word, start)))
        })
        .map(|(name, _)| *name)
        .next();
    named.unwrap_or(if file == "nginx" || file == "haproxy" { "proxy" } else { "rest" })
}

/// A function's name without the hash at its end, and at most a line long.
fn short(function: &str, object: &str) -> String {
    let name = function
        .rsplit_once("::h")
        .filter(|(_, hash)| hash.len() == 16)
        .map_or(function, |(name, _)| name);
    let name: String = name.chars().take(110).collect();
    if name == "[unknown]" {
        format!("{name} in {}", object.rsplit('/').next().unwrap_or(object))
    } else {
        name
    }
}

fn report(profiles: &[Profile]) -> String {
    let names: Vec<&str> = profiles.iter().map(|profile| profile.name.as_str()).collect();
    let mut text =
        format!("| us a request | {} |\n|---|{}\n", names.join(" | "), "---|".repeat(names.len()));
    for (name, _) in PARTS {
        let count = |profile: &Profile| {
            profile.by_part.get(name).copied().unwrap_or(0) as f64 / profile.samples as f64
        };
        if profiles.iter().all(|profile| count(profile) < 0.001) {
            continue;
        }
        let cells = profiles.iter().map(|profile| {
            format!("{:.2} ({:.0} %)", count(profile) * profile.cpu_us, count(profile) * 100.0)
        });
        let _ = writeln!(text, "| {name} | {} |", cells.collect::<Vec<_>>().join(" | "));
    }
    let totals =
        profiles.iter().map(|profile| format!("{:.2}", profile.cpu_us)).collect::<Vec<_>>();
    let _ = writeln!(text, "| together | {} |", totals.join(" | "));
    for profile in profiles {
        let mut functions: Vec<(&String, &u64)> = profile.by_function.iter().collect();
        functions.sort_by(|a, b| b.1.cmp(a.1));
        let _ = writeln!(text, "\n{}, outside the kernel:\n", profile.name);
        for (function, count) in functions.into_iter().take(FUNCTIONS_MAX) {
            let _ = writeln!(
                text,
                "- {:.1} % `{function}`",
                *count as f64 * 100.0 / profile.samples as f64
            );
        }
    }
    text
}
