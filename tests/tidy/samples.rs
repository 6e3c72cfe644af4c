//! Shows for each rule that it finds a bad sample and accepts a good one.

use super::units::Units;
use super::{File, Finding, references, rules, source, words};

fn file(path: &str, text: &str) -> File {
    File { path: path.into(), text: text.into() }
}

fn found(path: &str, text: &str) -> Vec<(usize, &'static str)> {
    lines(&source::check(&[file(path, text)]))
}

fn lines(findings: &[Finding]) -> Vec<(usize, &'static str)> {
    findings.iter().map(|finding| (finding.line, finding.rule)).collect()
}

#[test]
fn a_forbidden_use_is_found_however_it_is_written() {
    for bad in [
        "use crate::proxy::Snapshot;",
        "use crate::{clock::Clock, proxy};",
        "use super::proxy as other;",
        "fn f() { crate::proxy::handle(); }",
        "fn f() -> Option<crate::proxy::Snapshot> { None }",
        "fn f() { println!(\"{}\", crate::proxy::NAME); }",
        "fn f() { vec![other(crate::proxy::NAME)]; }",
        "mod inner { use super::super::proxy::Snapshot; }",
        "pub use crate::proxy::*;",
        "#[cfg(not(test))] use crate::proxy::Snapshot;",
    ] {
        assert_eq!(found("src/limit/mod.rs", bad), [(1, "module")], "{bad}");
    }
    assert_eq!(found("src/limit/keys.rs", "\nuse super::super::proxy::Snapshot;"), [(2, "module")]);
}

#[test]
fn an_allowed_use_and_a_modules_own_parts_are_not() {
    for good in [
        "use crate::engine::Engine;",
        "use super::engine::Engine;",
        "use self::keys::Key; mod keys;",
        "mod inner { use super::Grant; }",
        "use crate::limit::Grant;",
        "fn f() { tracing::warn!(proxy = 1, \"crate::proxy::x\"); }",
    ] {
        assert_eq!(found("src/limit/mod.rs", good), [], "{good}");
    }
}

#[test]
fn a_phase_uses_those_before_it() {
    for (path, text) in [
        ("src/proxy/route/mod.rs", "use crate::proxy::decide::Decided;"),
        ("src/proxy/route/routes.rs", "use super::super::decide::Decided;"),
        ("src/proxy/receive/hop.rs", "use crate::proxy::{reply::json, refusal::Refusal};"),
        ("src/proxy/record/mod.rs", "use crate::proxy::context::RequestContext;"),
    ] {
        assert_eq!(found(path, text), [(1, "phase")], "{path}: {text}");
    }
    for (path, text) in [
        ("src/proxy/decide/mod.rs", "use crate::proxy::route::Routed;"),
        (
            "src/proxy/decide/mod.rs",
            "use crate::proxy::snapshot::Route; use self::admit::Question;",
        ),
        ("src/proxy/context.rs", "use crate::proxy::record::Record;"),
        ("src/proxy/mod.rs", "use crate::proxy::record::Record;"),
    ] {
        assert_eq!(found(path, text), [], "{path}: {text}");
    }
}

#[test]
fn a_circle_of_files_is_found() {
    let cycles = |texts: [&str; 3]| {
        let paths = ["src/proxy/mod.rs", "src/proxy/live.rs", "src/proxy/route/mod.rs"];
        let files: Vec<File> =
            paths.into_iter().zip(texts).map(|(path, text)| file(path, text)).collect();
        lines(&source::cycles(&files)).len()
    };
    let root = "mod live; mod route; pub use live::Live; use self::route::Routed;";
    assert_eq!(cycles([root, "use crate::proxy::route::Routed;", "struct Routed;"]), 0);
    assert_eq!(cycles([root, "use crate::proxy::Proxy;", "struct Routed;"]), 0, "its own root");
    assert_eq!(
        cycles([root, "use super::route::Routed;", "fn f() { crate::proxy::live::f() }"]),
        2
    );
}

#[test]
fn tests_may_use_any_module() {
    for good in [
        "#[cfg(test)] mod tests { use crate::proxy::Snapshot; }",
        "#[cfg(test)] use crate::proxy::Snapshot;",
        "#[cfg(any(test, fuzzing))] fn f() { crate::proxy::f(); }",
        "struct S; impl S { #[cfg(test)] fn f() { std::time::Instant::now(); } }",
    ] {
        assert_eq!(found("src/limit/mod.rs", good), [], "{good}");
    }
    let files = [
        file("src/limit/mod.rs", "#[cfg(test)] mod tests;"),
        file("src/limit/tests.rs", "use crate::proxy::Snapshot;"),
    ];
    assert_eq!(source::check(&files), []);
    let files = [
        file("src/limit/mod.rs", "mod tests;"),
        file("src/limit/tests.rs", "use crate::proxy::Snapshot;"),
    ];
    assert_eq!(lines(&source::check(&files)), [(1, "module")]);
}

#[test]
fn a_crate_is_one_module_or_consists_of_modules() {
    assert_eq!(found("crates/tls/src/lib.rs", "use weir_clock::Clock;"), [(1, "module")]);
    assert_eq!(found("crates/tls/src/client.rs", "use crate::material::Pem;"), []);
    assert_eq!(found("crates/limit/src/engine/mod.rs", "use weir_tls::ClientTls;"), []);
    assert_eq!(found("crates/limit/src/plan/mod.rs", "use weir_tls::ClientTls;"), [(1, "module")]);
    assert_eq!(found("crates/limit/src/limit/mod.rs", "use crate::engine::Engine;"), []);
    assert_eq!(found("src/spelling/mod.rs", "use weir_limit::limit::Limiter;"), [(1, "module")]);
    assert_eq!(found("crates/limit/src/limit/mod.rs", "use redis::Cmd;"), [(1, "crate")]);
    assert_eq!(found("crates/limit/src/engine/redis/mod.rs", "use redis::Cmd;"), []);
}

#[test]
fn narrow_uses_reach_only_the_named_items_and_only_cli_uses_app() {
    assert_eq!(found("src/config/mod.rs", "use crate::reload::Watch;"), []);
    assert_eq!(found("src/config/mod.rs", "use crate::reload::Watcher;"), [(1, "module")]);
    assert_eq!(found("src/proxy/mod.rs", "use crate::listen::{Handler, Peer};"), []);
    assert_eq!(found("src/proxy/mod.rs", "use crate::listen::Listener;"), [(1, "module")]);
    assert_eq!(found("src/proxy/mod.rs", "use crate::listen;"), [(1, "module")]);
    assert_eq!(found("src/listen/mod.rs", "use crate::proxy::Proxy;"), [(1, "module")]);
    assert_eq!(found("src/cli/mod.rs", "use crate::App;"), []);
    assert_eq!(found("src/proxy/mod.rs", "use crate::App;"), [(1, "module")]);
    assert_eq!(found("src/proxy/mod.rs", "use crate::nowhere::Thing;"), [(1, "module")]);
}

#[test]
fn an_unused_permission_in_the_tables_is_found() {
    let unused = |files: &[File]| {
        source::unused(files).into_iter().map(|finding| finding.why).collect::<Vec<_>>()
    };
    let all = unused(&[]);
    let used = unused(&[
        file("src/limit/mod.rs", "use crate::engine::Engine;"),
        file("src/config/mod.rs", "use crate::reload::Watch; use toml::Value;"),
        file("src/wire/mod.rs", "#[cfg(test)] mod tests { use crate::clock::Clock; }"),
    ]);
    for needed in [
        "`limit` does not use `engine`",
        "`config` does not use `reload`",
        "`config` does not use `reload::Watch`",
        "no module uses the crate `toml`",
        "`config/` does not use `toml` or `annotate_snippets`",
    ] {
        assert!(all.iter().any(|why| why == needed), "{needed}: {all:?}");
        assert!(used.iter().all(|why| why != needed), "{needed}: {used:?}");
    }
    for unneeded in ["`wire` does not use `clock`", "no module uses the crate `annotate_snippets`"]
    {
        assert!(used.iter().any(|why| why == unneeded), "{unneeded}: {used:?}");
    }
}

#[test]
fn main_only_calls_cli() {
    assert_eq!(found("src/main.rs", "fn main() { weir::cli::main() }"), []);
    assert_eq!(found("src/main.rs", "fn main() { weir::app::serve() }"), [(1, "module")]);
}

#[test]
fn a_crate_outside_its_module_is_found() {
    assert_eq!(found("src/limit/mod.rs", "use redis::Cmd;"), [(1, "crate")]);
    assert_eq!(found("src/engine/mod.rs", "fn f(_: redis::Cmd) {}"), [(1, "crate")]);
    assert_eq!(found("src/engine/redis/mod.rs", "use redis::Cmd;"), []);
    assert_eq!(found("src/engine/redis.rs", "use redis::Cmd;"), []);
    assert_eq!(found("src/engine/redis/mod.rs", "use mlua::Lua;"), [(1, "crate")]);
    assert_eq!(found("src/engine/lua.rs", "use mlua::Lua;"), []);
    assert_eq!(found("src/proxy/mod.rs", "use wasmtime::Engine;"), [(1, "crate")]);
    assert_eq!(found("src/policy/mod.rs", "use ::http::Uri;"), [(1, "crate")]);
    assert_eq!(found("src/policy/mod.rs", "wasmtime::component::bindgen!({});"), []);
    assert_eq!(
        found("src/policy/mod.rs", "fn f() { assert!(http::Uri::default()); }"),
        [(1, "crate")]
    );
    assert_eq!(found("src/telemetry/mod.rs", "use hyper::Request;"), [(1, "crate")]);
    assert_eq!(found("src/app/mod.rs", "use toml::Value;"), [(1, "crate")]);
    assert_eq!(found("src/listen/mod.rs", "use rustls::ServerConfig;"), []);
    assert_eq!(found("src/proxy/mod.rs", "use rustls::ServerConfig;"), [(1, "crate")]);
    // A module of that name is not the crate.
    assert_eq!(found("src/engine/mod.rs", "mod redis; pub use redis::Redis;"), []);
}

#[test]
fn only_clock_reads_the_time() {
    for bad in [
        "fn f() { std::time::Instant::now(); }",
        "use std::time::Instant; fn f() { Instant::now(); }",
        "use std::time::SystemTime; fn f() { vec![SystemTime::now()]; }",
        "use std::time::SystemTime as Wall;",
        "use std::time::Instant; fn f() { let g = Instant::now; }",
    ] {
        assert_eq!(found("src/proxy/mod.rs", bad), [(1, "time")], "{bad}");
        assert_eq!(found("src/clock/mod.rs", bad), [], "{bad}");
    }
    for good in [
        "fn f() { tokio::time::Instant::now(); }",
        "use tokio::time::Instant; fn f() { Instant::now(); }",
        "use tokio::time::Instant as Timer; fn f() { Timer::now(); }",
        "use std::time::Instant; fn f(at: Instant) {}",
    ] {
        assert_eq!(found("src/proxy/mod.rs", good), [], "{good}");
    }
}

#[test]
fn a_file_that_does_not_parse_is_found() {
    assert_eq!(found("src/proxy/mod.rs", "\nfn {"), [(2, "parse")]);
}

#[test]
fn a_module_without_a_mod_rs_and_an_unknown_one_are_found() {
    let mut files: Vec<File> =
        rules::MAY_USE.iter().map(|(name, _)| file(&format!("src/{name}/mod.rs"), "")).collect();
    files.push(file("src/lib.rs", ""));
    assert_eq!(rules::modules(&files), []);
    files.push(file("src/helpers.rs", ""));
    files.push(file("src/misc/mod.rs", ""));
    assert_eq!(rules::modules(&files).len(), 2);
    files.retain(|file| file.path != "src/limit/mod.rs");
    assert_eq!(rules::modules(&files).len(), 3);
}

#[test]
fn the_table_names_only_its_own_modules_and_has_no_cycle() {
    // Remove modules that use none of the remaining ones, until nothing is left.
    let mut left: Vec<_> = rules::MAY_USE.to_vec();
    while !left.is_empty() {
        let names: Vec<&str> = left.iter().map(|(name, _)| *name).collect();
        let before = left.len();
        left.retain(|(_, uses)| uses.iter().any(|used| names.contains(used)));
        assert!(left.len() < before, "a cycle among {names:?}");
    }
    assert!(
        rules::MAY_USE.iter().flat_map(|(_, uses)| uses.iter()).all(|used| rules::is_module(used))
    );
}

#[test]
fn a_file_without_a_head_and_one_that_is_too_long_are_found() {
    let long = format!("//! Long.\n{}", "// x\n".repeat(rules::LINES_MAX));
    let files = [
        file("src/a.rs", "use std::fmt;\n"),
        file("src/b.rs", &long),
        file("src/c.rs", "//! Good.\n"),
    ];
    assert_eq!(
        lines(&words::heads_and_lengths(&files)),
        [(1, "head"), (rules::LINES_MAX + 1, "length")]
    );
}

#[test]
fn a_metric_that_the_page_describes_in_other_words_is_found() {
    let names =
        "Counter A \"weir_a\" [\"b\"] \"What a is\";\nGauge B \"weir_b\" [] \"What b is\";\n";
    let page = "| `weir_a_total` | `b` | What a is |\n| `weir_b` |  | What it is |\n";
    assert_eq!(lines(&words::metric_texts(names, page)), [(2, "metrics")]);
}

#[test]
fn a_wide_comment_is_found_and_wide_code_in_one_is_not() {
    let wide = "word ".repeat(25);
    let rust = format!(
        "//! {wide}\n    // {wide}\nlet x = \"{wide}\";\n/// ```\n/// {wide}\n/// ```\n/// | {wide}\n"
    );
    let lua = format!("-- {wide}\nlocal x = 1\n");
    assert_eq!(lines(&words::comments(&[file("a.rs", &rust)])), [(1, "width"), (2, "width")]);
    assert_eq!(lines(&words::comments(&[file("a.lua", &lua)])), [(1, "width")]);
}

#[test]
fn a_metric_missing_from_the_page_and_one_made_up_are_found() {
    let names =
        "A \"weir_requests\" [\"route\"] \"Requests\";\n// \"weir_old\"\nname: \"weir_open\",\n";
    let good = "# Metrics\n\n| `weir_requests_total` | x |\n| `weir_open` | x |\n";
    assert_eq!(words::metrics(names, good), []);
    assert_eq!(lines(&words::metrics(names, "# Metrics\n`weir_open`\n")), [(1, "metrics")]);
    assert_eq!(
        lines(&words::metrics(names, "# Metrics\nweir_open weir_requests\nweir_wrong\n")),
        [(3, "metrics")]
    );
}

#[test]
fn unsafe_code_elsewhere_is_found() {
    let allowed = |path: &str| file(&format!("src/{path}"), "//! A.\nlet x = unsafe { y() };\n");
    let mut files: Vec<File> = rules::UNSAFE.iter().map(|(path, _)| allowed(path)).collect();
    assert_eq!(words::unsafe_code(&files), []);
    files.push(file("src/limit/a.rs", "//! No `unsafe {`.\n// unsafe {\nunsafe fn x() {}\n"));
    assert_eq!(lines(&words::unsafe_code(&files)), [(3, "unsafe")]);
    files.remove(0);
    assert_eq!(lines(&words::unsafe_code(&files)), [(3, "unsafe"), (1, "unsafe")]);
}

#[test]
fn a_machines_folder_is_found() {
    let bad = |folder: &str| {
        lines(&words::machine_paths(&[file("a.md", &format!("see\n\"/{folder}/me/x\"\n"))]))
    };
    for folder in ["root", "home", "Users", "work"] {
        assert_eq!(bad(folder), [(2, "machine")], "{folder}");
    }
    assert_eq!(
        words::machine_paths(&[file(
            "a.md",
            "https://example.com/home/x target/Users/y $HOME/x\n"
        )]),
        []
    );
}

#[test]
fn links_and_paths_that_lead_nowhere_are_found() {
    let exists =
        |path: &str| ["a.md", "docs/b.md", "src/limit", "src/limit/keys.rs"].contains(&path);
    let check = |path: &str, text: &str| {
        let files = [file(path, text), file("docs/b.md", "# B\n## What `it` does\n")];
        references::check(&files, exists)
    };
    let good = "[b](docs/b.md) [b](docs/b.md#what-it-does) [x](https://x.example/y) [](#top)\n# Top\n\
                `src/limit/` `limit/keys.rs` `lua/NAME.lua` `/v1/users` `src/*/mod.rs` `a.rs`\n\
                ```\n[c](docs/c.md) `src/c.rs`\n```\n";
    assert_eq!(check("a.md", good), []);
    assert_eq!(check("docs/a.md", "[b](b.md) [a](../a.md) `b.md`\n"), []);
    for (bad, rule) in [
        ("[c](docs/c.md)", "link"),
        ("[b](docs/b.md#what-it-did)", "link"),
        ("[here](#nowhere)", "link"),
        ("`src/limit/locks.rs`", "path"),
        ("`limit/locks.rs`", "path"),
        ("`docs/c`", "path"),
    ] {
        assert_eq!(lines(&check("a.md", &format!("\n{bad}\n"))), [(2, rule)], "{bad}");
    }
    let rust = "//! See `limit/keys.rs`, not `limit/locks.rs`.\nlet x = \"`limit/locks.rs`\";\n";
    assert_eq!(lines(&check("src/limit/mod.rs", rust)), [(1, "path")]);
    assert_eq!(lines(&check("lua/gcra.lua", "-- See `docs/c.md`\nlocal x = 1\n")), [(1, "path")]);
}

#[test]
fn a_test_file_that_its_index_lacks_is_found() {
    let files = ["tests/a/main.rs", "tests/a/b/mod.rs", "tests/a/b/c.rs", "tests/a/d.rs"]
        .map(|path| file(path, ""));
    assert_eq!(references::index("tests/a", "| `b/c.rs` | x |\n| `d.rs` | y |\n", &files), []);
    let found = references::index("tests/a", "| `d.rs` | y |\n", &files);
    assert_eq!(lines(&found), [(1, "index")]);
}

/// A unit as `--unit-graph` lists it.
fn unit(name: &str, features: &[&str], uses: &[usize]) -> serde_json::Value {
    let uses: Vec<_> = uses.iter().map(|index| serde_json::json!({ "index": index })).collect();
    serde_json::json!({
        "pkg_id": format!("registry+x#{name}@1.0.0"),
        "target": { "kind": ["lib"] },
        "profile": { "name": format!("{}", features.len()), "opt_level": "1" },
        "mode": "build",
        "features": features,
        "dependencies": uses,
    })
}

#[test]
fn a_library_with_other_features_is_found_where_the_difference_begins() {
    let units = |units: &[serde_json::Value]| Units::read(&serde_json::json!({ "units": units }));
    // Each uses the one before it.
    let chain = |features: &[&str]| {
        units(&[unit("a", &[], &[]), unit("b", features, &[0]), unit("c", &[], &[1])])
    };
    assert_eq!(chain(&["x"]).differing_from(&chain(&["x"])), [""; 0]);
    let found = chain(&["x"]).differing_from(&chain(&[]));
    assert!(
        found.len() == 1 && found[0].contains("#b@1.0.0: [\"lib\"] \"build\" [\"x\"]"),
        "{found:?}"
    );
    // The order of units means nothing, and neither does what only the other one has.
    let turned = units(&[unit("b", &[], &[1]), unit("a", &[], &[]), unit("d", &[], &[])]);
    assert_eq!(
        units(&[unit("a", &[], &[]), unit("b", &[], &[0])]).differing_from(&turned),
        [""; 0]
    );

    assert_eq!(chain(&[]).twice(&[]), [""; 0]);
    let both = units(&[
        unit("a", &[], &[]),
        unit("a", &["x"], &[]),
        unit("libc", &[], &[]),
        unit("libc", &["x"], &[]),
    ]);
    assert_eq!(
        both.twice(&["libc", "b"]),
        ["registry+x#a@1.0.0 is compiled more than once", "b is compiled once"]
    );
}
