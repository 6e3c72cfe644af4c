//! The `weir` binary. See [`weir::cli`].

use std::process::ExitCode;

use weir::cli::{Page, Texts};

/// musl's own allocator has one lock for all threads. glibc's is as fast as this one and holds less
/// at rest.
#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Pages of the documentation, by their topics.
macro_rules! pages {
    ($($topic:literal,)*) => {
        &[$(Page { topic: $topic, text: include_str!(concat!("../docs/", $topic, ".md")) }),*]
    };
}

/// What `weir help TOPIC` prints. Not those about other proxies, measurements and files of the
/// repository, which one reads before there is a Weir to ask. Here and not in the library, so that
/// a changed page means building little.
const PAGES: &[Page] = pages![
    "access-log",
    "admin",
    "algorithms",
    "budgets",
    "built-in-policies",
    "children",
    "counters",
    "decision-api",
    "documents",
    "facts",
    "forward-auth",
    "install",
    "leases",
    "limits",
    "metrics",
    "operations",
    "policies",
    "quotas",
    "rate-limit-service",
    "redis",
    "reloads",
    "replay",
    "responses",
    "routes",
    "scripts",
    "spellings",
    "start",
    "tls",
    "tracing",
    "upgrades",
    "upstreams",
    "versions",
    "warnings",
];

fn main() -> ExitCode {
    weir::cli::main(Texts { pages: PAGES, changelog: include_str!("../CHANGELOG.md") })
}
