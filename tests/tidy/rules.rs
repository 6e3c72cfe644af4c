//! The tables: which room may use which, which crate belongs where. A change here is a change of
//! the architecture: change ARCHITECTURE.md with it.

use super::{File, Finding};

/// Lines of a file, at most.
pub const LINES_MAX: usize = 640;
/// Characters of a line that is a comment, at most: rustfmt's width, which it does not hold
/// comments to.
pub const COMMENT_CHARS_MAX: usize = 100;

/// Each room and the rooms that it may use.
pub const ARROWS: &[(&str, &[&str])] = &[
    ("cli", &["app", "config", "policy", "limit", "plan", "clock"]),
    (
        "app",
        &[
            "config",
            "reload",
            "listen",
            "proxy",
            "policy",
            "plan",
            "limit",
            "engine",
            "upstream",
            "admin",
            "wire",
            "clock",
            "telemetry",
        ],
    ),
    (
        "config",
        &[
            "reload",
            "listen",
            "proxy",
            "admin",
            "policy",
            "limit",
            "engine",
            "upstream",
            "wire",
            "telemetry",
            "plan",
        ],
    ),
    ("reload", &["clock", "telemetry"]),
    ("listen", &["http1", "wire", "clock", "telemetry"]),
    ("proxy", &["listen", "policy", "limit", "upstream", "plan", "wire", "clock", "telemetry"]),
    ("policy", &["plan", "clock", "telemetry"]),
    ("plan", &[]),
    ("limit", &["engine", "plan", "clock", "telemetry"]),
    ("engine", &["clock", "telemetry"]),
    ("upstream", &["http1", "wire", "clock", "telemetry"]),
    ("http1", &["wire", "clock"]),
    ("admin", &["listen", "wire", "telemetry"]),
    ("wire", &["clock", "telemetry"]),
    ("clock", &[]),
    ("telemetry", &[]),
];

/// Arrows that reach a few items only: who, whom, what.
pub const NARROW: &[(&str, &str, &[&str])] = &[
    // It is handed connections, it does not make them.
    ("proxy", "listen", &["Peer", "Handler"]),
    // It says which files it read, it does not watch them.
    ("config", "reload", &["Watch"]),
    // It reads TLS material, it does not judge it; and it says how slow a client may be.
    ("config", "wire", &["Pem", "Identity", "PEM_BYTES_MAX", "Rate"]),
];

/// A crate that belongs to some rooms only: its names, path prefixes under `src/`, and why.
pub struct Belongs {
    pub crates: &'static [&'static str],
    pub to: &'static [&'static str],
    pub why: &'static str,
}

/// Crates that are not named here may be used anywhere.
pub const CRATES: &[Belongs] = &[
    Belongs {
        crates: &["redis"],
        to: &["engine/redis"],
        why: "only the engine's Redis half speaks to Redis",
    },
    Belongs {
        crates: &["mlua"],
        to: &["engine/embedded", "engine/lua"],
        why: "only the embedded engine runs Lua in this process",
    },
    Belongs {
        crates: &["wasmtime", "wit_component", "wit_parser", "wasmparser", "wasm_encoder"],
        to: &["policy/"],
        why: "only policy knows how guests are run",
    },
    Belongs {
        crates: &["toml", "annotate_snippets"],
        to: &["config/"],
        why: "only config knows the file's format and where a setting stands",
    },
    Belongs {
        crates: &["rustls", "tokio_rustls", "rustls_native_certs", "x509_parser"],
        to: &["wire/", "listen/", "upstream/"],
        why: "TLS is a matter of the two ends, and of what they share",
    },
    Belongs {
        crates: &["httparse", "httpdate"],
        to: &["http1/"],
        why: "only http1 knows the syntax of HTTP/1.1",
    },
    Belongs { crates: &["notify"], to: &["reload/"], why: "only reload watches files" },
    Belongs { crates: &["clap"], to: &["cli/"], why: "only cli knows the command line" },
    Belongs {
        crates: &["prometheus_client"],
        to: &["telemetry/"],
        why: "only telemetry knows how metrics are exposed",
    },
    Belongs {
        crates: &["http", "http_body", "http_body_util", "hyper", "hyper_util", "h2"],
        to: &["listen/", "proxy/", "upstream/", "http1/", "admin/", "wire/", "app/", "config/"],
        why: "deciding (limit, engine, plan, policy) and its tools (clock, telemetry) know no HTTP",
    },
];

/// What may stand at the top of `src/` beside the rooms.
const TOP_FILES: &[&str] = &["src/main.rs", "src/lib.rs"];

pub fn may_use(room: &str, other: &str) -> bool {
    room == other || ARROWS.iter().any(|(name, allowed)| *name == room && allowed.contains(&other))
}

pub fn is_room(name: &str) -> bool {
    ARROWS.iter().any(|(room, _)| *room == name)
}

/// Every folder under `src/` is a room of the table and has a `mod.rs`; nothing else stands there.
pub fn doors(files: &[File]) -> Vec<Finding> {
    let finding =
        |file: &str, why: String| Finding { file: file.to_owned(), line: 1, rule: "door", why };
    let mut findings = Vec::new();
    for file in files {
        let Some((room, _)) = file.path.strip_prefix("src/").and_then(|path| path.split_once('/'))
        else {
            if !TOP_FILES.contains(&file.path.as_str()) {
                findings.push(finding(
                    &file.path,
                    "only main.rs and lib.rs stand at the top of src/: give it a room".into(),
                ));
            }
            continue;
        };
        if !is_room(room) {
            findings.push(finding(
                &file.path,
                format!(
                    "`{room}` is no room of the table: give it its arrows in tests/tidy/rules.rs"
                ),
            ));
        }
    }
    for (room, _) in ARROWS {
        let door = format!("src/{room}/mod.rs");
        if !files.iter().any(|file| file.path == door) {
            findings.push(finding(&door, format!("the room `{room}` has no door")));
        }
    }
    findings
}
