//! Enforces the project's rules: which module may use which, which may read the time, how long a
//! file may be. Each finding names file, line, rule and reason.
//!
//! `rules` has the tables, which are also in ARCHITECTURE.md. `source` walks Rust with `syn`,
//! `words` checks text, `references` checks links and paths, `pages` the pages of
//! reference, `units` what cargo would compile. `samples` shows that each rule finds a bad sample,
//! so that no findings means that the rules are kept.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    unreachable_pub,
    reason = "a test's helpers may fail the test"
)]

mod pages;
mod references;
mod rules;
mod samples;
mod source;
mod units;
mod words;

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

/// A violation of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Finding {
    file: String,
    line: usize,
    rule: &'static str,
    why: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}:{}: {}: {}", self.file, self.line, self.rule, self.why)
    }
}

/// A file of the repository: its path from the root, with `/`, and its text.
struct File {
    path: String,
    text: String,
}

/// Files and folders with our Rust code.
const SOURCES: &[&str] = &[
    "src", "crates", "lua", "tests", "policies", "wasm-sdk", "examples", "benches", "build",
    "build.rs",
];

/// `make run`, the instruction counts and the interop tests each build a part of the workspace.
/// Which features a dependency has depends on the part, unless `Cargo.toml` names them all.
#[test]
fn what_make_run_builds_is_not_built_again_for_the_tests() {
    let all = units::Units::of(&["test", "--workspace"]);
    for part in [
        &["build", "--workspace", "--bin", "weir"] as &[_],
        &["build", "--workspace", "--bin", "weir", "--example", "limiter"],
        &["test", "--workspace", "--test", "interop", "--test", "chaos"],
    ] {
        let differing = units::Units::of(part).differing_from(&all);
        assert!(
            differing.is_empty(),
            "`cargo {}` compiles these otherwise than `cargo test --workspace`; name the features \
             that one of them lacks in Cargo.toml, under \"Used by none of our code\": {differing:#?}",
            part.join(" ")
        );
    }
}

#[test]
fn no_library_is_compiled_twice() {
    let all = units::Units::of(&["test", "--workspace"]);
    let wrong = all.twice(&units::TWICE);
    assert!(
        wrong.is_empty(),
        "what is compiled with two sets of features is listed in tests/tidy/units.rs, if naming \
         those of both in Cargo.toml, under the build dependencies, does not help: {wrong:#?}"
    );
}

#[test]
fn modules_use_only_what_the_table_allows() {
    let files = product();
    assert!(files.len() > 10, "too few files in src/: is this the repository?");
    assert_none(&source::check(&files));
}

#[test]
fn the_tables_allow_nothing_that_is_not_used() {
    assert_none(&source::unused(&product()));
}

#[test]
fn the_files_of_a_module_use_each_other_in_one_direction() {
    assert_none(&source::cycles(&product()));
}

#[test]
fn each_module_is_a_folder_with_a_mod_rs() {
    assert_none(&rules::modules(&product()));
}

#[test]
fn unsafe_code_is_where_the_rules_have_it() {
    assert_none(&words::unsafe_code(&product()));
}

#[test]
fn each_file_says_first_what_it_is_and_stays_short() {
    assert_none(&words::heads_and_lengths(&rust_under(SOURCES)));
}

#[test]
fn comments_are_no_wider_than_code() {
    let mut files = rust_under(SOURCES);
    files.extend(tracked().into_iter().filter(|file| file.path.ends_with(".lua")));
    assert_none(&words::comments(&files));
}

#[test]
fn the_page_of_metrics_lists_every_metric() {
    let names = read("crates/telemetry/src/names.rs").expect("crates/telemetry/src/names.rs");
    let page = read(words::METRICS_PAGE).expect("the page of metrics");
    assert_none(&words::metrics(&names, &page));
    assert_none(&words::metric_texts(&names, &page));
}

#[test]
fn links_and_paths_lead_to_files() {
    assert_none(&references::check(&tracked(), |path| top().join(path).exists()));
}

#[test]
fn each_test_file_is_in_its_index() {
    for folder in ["tests/integration", "tests/interop"] {
        let index = read(&format!("{folder}/README.md")).expect("a README.md");
        assert_none(&references::index(folder, &index, &rust_under(&[folder])));
    }
}

#[test]
fn no_file_names_a_machine() {
    assert_none(&words::machine_paths(&tracked()));
}

fn assert_none(findings: &[Finding]) {
    let lines: Vec<String> = findings.iter().map(ToString::to_string).collect();
    assert!(
        findings.is_empty(),
        "\n\n{}\n\n{} finding(s); the rules and their reasons are in ARCHITECTURE.md\n",
        lines.join("\n"),
        lines.len()
    );
}

fn top() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// The files of all modules.
fn product() -> Vec<File> {
    let folders: Vec<&str> = rules::OURS.iter().map(|(folder, _)| *folder).collect();
    rust_under(&folders)
}

fn read(path: &str) -> Option<String> {
    fs::read_to_string(top().join(path)).ok()
}

/// Every Rust file under `folders` (or the file itself), sorted.
fn rust_under(folders: &[&str]) -> Vec<File> {
    let mut paths = Vec::new();
    for folder in folders {
        walk(&top().join(folder), &mut paths);
    }
    let rust = paths
        .into_iter()
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs"));
    rust.map(|path| load(&path).expect("a Rust file is UTF-8")).collect()
}

/// The text files that git tracks, or all text files if there is no git.
fn tracked() -> Vec<File> {
    let listed =
        std::process::Command::new("git").args(["ls-files", "-z"]).current_dir(top()).output();
    let paths: Vec<PathBuf> = match listed {
        Ok(output) if output.status.success() => String::from_utf8_lossy(&output.stdout)
            .split('\0')
            .filter(|path| !path.is_empty())
            .map(|path| top().join(path))
            .collect(),
        _ => {
            let mut all = Vec::new();
            walk(top(), &mut all);
            all
        }
    };
    paths.iter().filter_map(|path| load(path)).collect()
}

fn load(path: &Path) -> Option<File> {
    let text = fs::read_to_string(path).ok()?;
    let path = path.strip_prefix(top()).unwrap_or(path).to_string_lossy().replace('\\', "/");
    Some(File { path, text })
}

fn walk(path: &Path, found: &mut Vec<PathBuf>) {
    if path.is_file() {
        found.push(path.to_owned());
        return;
    }
    let Ok(entries) = fs::read_dir(path) else { return };
    let mut entries: Vec<PathBuf> =
        entries.map(|entry| entry.expect("a readable folder").path()).collect();
    entries.sort();
    for entry in entries {
        let name = entry.file_name().unwrap_or_default().to_string_lossy();
        if name != "target" && !name.starts_with('.') {
            walk(&entry, found);
        }
    }
}
