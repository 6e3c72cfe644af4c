//! The tables: which module may use which, and where a crate may be used. ARCHITECTURE.md has the
//! same tables: change both.

use super::{File, Finding};

/// Maximum number of lines of a file.
pub const LINES_MAX: usize = 640;
/// Written by a generator, and read by nobody: as long and as wide as it is.
pub const GENERATED: &[&str] = &["wasm-sdk/src/bindings.rs"];
/// Maximum width of a comment line: rustfmt's width, which rustfmt does not enforce for comments.
pub const COMMENT_CHARS_MAX: usize = 100;

/// Our crates: the folder of the source, and the module that it is. A crate without a module's name
/// consists of modules.
pub const OURS: &[(&str, &str)] = &[
    ("src/", ""),
    ("crates/limit/src/", ""),
    ("crates/http/src/", ""),
    ("crates/host/src/", ""),
    ("crates/replay/src/", ""),
    ("crates/plan/src/", "plan"),
    ("crates/lease/src/", "lease"),
    ("crates/clock/src/", "clock"),
    ("crates/telemetry/src/", "telemetry"),
    ("crates/tls/src/", "tls"),
    ("crates/acme/src/", "acme"),
];

/// The place of a file among the modules, wherever its crate is: `engine/redis/mod.rs`.
pub fn place(path: &str) -> String {
    let of = OURS.iter().find_map(|(folder, module)| Some((path.strip_prefix(folder)?, module)));
    match of {
        Some(("lib.rs", module)) if !module.is_empty() => format!("{module}/mod.rs"),
        Some((rest, module)) if !module.is_empty() => format!("{module}/{rest}"),
        Some((rest, _)) => rest.to_owned(),
        None => path.to_owned(),
    }
}

/// The module that the crate of this name is, as code names it; empty if it consists of modules.
pub fn module_of_crate(name: &str) -> Option<&'static str> {
    let name = name.strip_prefix("weir_")?;
    let folder = format!("crates/{name}/src/");
    OURS.iter().find(|(known, _)| *known == folder).map(|(_, module)| *module)
}

/// Each module and the modules that it may use.
pub const MAY_USE: &[(&str, &[&str])] = &[
    ("cli", &["app", "config", "replay", "proxy", "policy", "plan", "clock"]),
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
            "insight",
            "engine",
            "upstream",
            "otlp",
            "fetch",
            "acme",
            "admin",
            "chart",
            "replay",
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
            "insight",
            "engine",
            "upstream",
            "otlp",
            "fetch",
            "acme",
            "wire",
            "tls",
            "telemetry",
            "plan",
        ],
    ),
    ("reload", &["clock", "telemetry"]),
    ("listen", &["http1", "wire", "tls", "clock", "telemetry"]),
    (
        "proxy",
        &[
            "listen",
            "policy",
            "limit",
            "lease",
            "upstream",
            "inspect",
            "insight",
            "otlp",
            "plan",
            "spelling",
            "acme",
            "wire",
            "clock",
            "telemetry",
        ],
    ),
    ("policy", &["inspect", "plan", "clock", "telemetry"]),
    ("inspect", &[]),
    ("insight", &["telemetry"]),
    ("plan", &[]),
    ("lease", &[]),
    ("spelling", &[]),
    ("limit", &["engine", "plan", "lease", "clock", "telemetry"]),
    ("engine", &["tls", "clock", "telemetry"]),
    ("upstream", &["http1", "wire", "tls", "clock", "telemetry"]),
    ("otlp", &["upstream", "wire", "tls", "clock", "telemetry"]),
    ("fetch", &["upstream", "wire", "tls", "clock", "telemetry"]),
    ("http1", &["wire", "clock"]),
    ("admin", &["listen", "wire", "telemetry"]),
    ("wire", &["clock"]),
    ("clock", &[]),
    ("telemetry", &[]),
    ("tls", &[]),
    ("acme", &["tls", "clock"]),
    ("replay", &["chart", "plan"]),
    ("chart", &[]),
];

/// Modules that may use only a few items of another: user, used, items.
pub const NARROW: &[(&str, &str, &[&str])] = &[
    // It is given connections, it does not accept them. Trials read heads as connections do.
    ("proxy", "listen", &["Peer", "Serves", "Handler", "read_head"]),
    // It reports which files it read, it does not watch them.
    ("config", "reload", &["Watch"]),
    // It says what to fetch, and fetches nothing.
    ("config", "fetch", &["Settings"]),
    // It reads TLS material without judging it, and it configures how slow a client may be.
    ("config", "tls", &["Pem", "Identity", "ClientTls", "PEM_BYTES_MAX", "Pin"]),
    ("config", "wire", &["Rate"]),
    // It hands over what it has traced, and sends nothing.
    (
        "proxy",
        "otlp",
        &[
            "Kind",
            "Sampling",
            "Span",
            "SpanId",
            "Trace",
            "TraceId",
            "TraceParent",
            "Tracer",
            "Value",
        ],
    ),
];

/// The folders of `proxy`, in the order in which a request meets them. A phase may use those before
/// it, and neither those after it nor what holds them together.
pub const PHASES: &[&str] =
    &["receive", "route", "decide", "forward", "reply", "settle", "record", "context", "trial"];

/// Crates that only some modules may use: their names, path prefixes in the source folder, and why.
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
        why: "only the engine's Redis half talks to Redis",
    },
    Belongs {
        crates: &["mlua"],
        to: &["engine/lua"],
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
        why: "only config knows the file's format and the position of a setting",
    },
    Belongs {
        crates: &["rustls", "tokio_rustls", "rustls_native_certs", "x509_parser"],
        to: &["tls/", "listen/", "upstream/", "engine/redis", "acme/"],
        why: "TLS belongs to the two sides, and to what they share",
    },
    Belongs {
        crates: &["flate2", "brotli_decompressor", "zstd"],
        to: &["inspect/", "replay/", "cli/policy/new", "policy/build", "proxy/reply/compress/"],
        why: "inspect looks into compressed bodies, replay into compressed logs, and replies are \
              compressed; the SDK and the policies in the binary are, too",
    },
    Belongs {
        crates: &["brotli"],
        to: &["proxy/reply/compress/"],
        why: "only replies are compressed with it",
    },
    Belongs {
        crates: &["httparse", "httpdate"],
        to: &["http1/"],
        why: "only http1 knows the syntax of HTTP/1.1",
    },
    Belongs {
        crates: &["prost", "prost_types"],
        to: &["otlp/", "proxy/receive/call/"],
        why: "only otlp and calls of Envoy's rate limit service are protobuf",
    },
    Belongs { crates: &["yaml_rust2"], to: &["cli/rls"], why: "only it reads YAML" },
    Belongs { crates: &["notify"], to: &["reload/"], why: "only reload watches files" },
    Belongs { crates: &["clap"], to: &["cli/"], why: "only cli knows the command line" },
    Belongs { crates: &["ratatui"], to: &["cli/top/screen"], why: "only it draws on a terminal" },
    Belongs {
        crates: &["prometheus_client"],
        to: &["telemetry/"],
        why: "only telemetry knows how metrics are exposed",
    },
    Belongs {
        crates: &["http", "http_body", "hyper", "hyper_util", "h2"],
        to: &[
            "listen/",
            "proxy/",
            "upstream/",
            "otlp/",
            "fetch/",
            "http1/",
            "admin/",
            "wire/",
            "acme/",
            "app/",
        ],
        why: "deciding (limit, engine, plan, policy) and its tools (clock, telemetry) know no HTTP",
    },
];

/// The files with `unsafe` code of our own, and what for. ARCHITECTURE.md names them, too.
pub const UNSAFE: &[(&str, &str)] = &[
    ("app/memory.rs", "returns memory to the system: `malloc_trim` has no safe wrapper"),
    ("app/sockets.rs", "takes over the sockets that the process is started with, by number"),
    ("policy/cache.rs", "loads compiled code, whose digest was checked"),
];

/// The files that may be next to the modules.
const TOP_FILES: &[&str] = &["main.rs", "lib.rs"];

pub fn may_use(module: &str, other: &str) -> bool {
    module == other
        || MAY_USE.iter().any(|(name, allowed)| *name == module && allowed.contains(&other))
}

pub fn is_module(name: &str) -> bool {
    MAY_USE.iter().any(|(module, _)| *module == name)
}

/// Checks that every source folder is a module of the table and has a `mod.rs`, and that there is
/// nothing else.
pub fn modules(files: &[File]) -> Vec<Finding> {
    let finding =
        |file: &str, why: String| Finding { file: file.to_owned(), line: 1, rule: "module", why };
    let mut findings = Vec::new();
    for file in files {
        let place = place(&file.path);
        let Some((module, _)) = place.split_once('/') else {
            if !TOP_FILES.contains(&place.as_str()) {
                findings.push(finding(
                    &file.path,
                    "only main.rs and lib.rs belong directly into a crate of modules: move it into one"
                        .into(),
                ));
            }
            continue;
        };
        if !is_module(module) {
            findings.push(finding(
                &file.path,
                format!("`{module}` is not in the table of modules: add it to tests/tidy/rules.rs"),
            ));
        }
    }
    for (module, _) in MAY_USE {
        let path = format!("{module}/mod.rs");
        if !files.iter().any(|file| place(&file.path) == path) {
            findings.push(finding(&path, format!("the module `{module}` has no mod.rs")));
        }
    }
    findings
}
