//! Rules for text: a file's first line and its length, the width of comments, where `unsafe` is,
//! the page of metrics, and no paths of a developer's machine.

use std::collections::BTreeSet;

use super::rules::{COMMENT_CHARS_MAX, GENERATED, LINES_MAX, UNSAFE, place};
use super::{File, Finding};

/// Where every metric is described.
pub const METRICS_PAGE: &str = "docs/metrics.md";

pub fn heads_and_lengths(files: &[File]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in files {
        if !file.text.starts_with("//!") {
            let why = "start with `//!`: what this file is, and what it must not know".into();
            findings.push(Finding { file: file.path.clone(), line: 1, rule: "head", why });
        }
        let lines = file.text.lines().count();
        if lines > LINES_MAX && !GENERATED.contains(&file.path.as_str()) {
            let why = format!("{lines} lines; at most {LINES_MAX}: split it by purpose");
            findings.push(Finding {
                file: file.path.clone(),
                line: LINES_MAX + 1,
                rule: "length",
                why,
            });
        }
    }
    findings
}

/// Comments may be as wide as code. Tables, links and code in comments are exempt, because they
/// can't be wrapped.
pub fn comments(files: &[File]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let written = files.iter().filter(|file| !GENERATED.contains(&file.path.as_str()));
    for file in written {
        let marker = if file.path.ends_with(".lua") { "--" } else { "//" };
        let mut code = false;
        for (number, line) in (1..).zip(file.text.lines()) {
            let Some(comment) = line.trim_start().strip_prefix(marker) else { continue };
            let text = comment.trim_start_matches(['/', '!', '-']).trim_start();
            code ^= text.starts_with("```");
            let kept = code || text.starts_with(['|', '#']) || !text.contains(' ');
            let chars = line.chars().count();
            if chars > COMMENT_CHARS_MAX && !kept {
                let why = format!("{chars} characters; at most {COMMENT_CHARS_MAX}");
                findings.push(Finding {
                    file: file.path.clone(),
                    line: number,
                    rule: "width",
                    why,
                });
            }
        }
    }
    findings
}

/// The page lists exactly the metrics in `names` (the text of `crates/telemetry/src/names.rs`).
pub fn metrics(names: &str, page: &str) -> Vec<Finding> {
    let known: BTreeSet<String> = names
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .flat_map(quoted_metrics)
        .collect();
    let mut shown = BTreeSet::new();
    let mut findings = Vec::new();
    for (line, text) in (1..).zip(page.lines()) {
        for word in metric_words(text) {
            let name = known
                .get(&word)
                .or_else(|| known.get(word.strip_suffix("_total").unwrap_or(&word)));
            match name {
                Some(name) => drop(shown.insert(name.clone())),
                None => findings.push(Finding {
                    file: METRICS_PAGE.into(),
                    line,
                    rule: "metrics",
                    why: format!("`{word}` is not a metric in crates/telemetry/src/names.rs"),
                }),
            }
        }
    }
    for name in known.difference(&shown) {
        let why = format!("`{name}` is missing from the table of metrics");
        findings.push(Finding { file: METRICS_PAGE.into(), line: 1, rule: "metrics", why });
    }
    findings
}

/// The page describes each metric as `/metrics` does.
pub fn metric_texts(names: &str, page: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (line, text) in (1..).zip(names.lines()) {
        let strings: Vec<&str> = text.split('"').skip(1).step_by(2).collect();
        let (Some(name), Some(help)) = (strings.first(), strings.last()) else { continue };
        if !is_metric(name) || strings.len() < 2 {
            continue;
        }
        let rows = [format!("| `{name}` |"), format!("| `{name}_total` |")];
        let mut table = page.lines().filter(|row| rows.iter().any(|start| row.starts_with(start)));
        if table.any(|row| !row.contains(&format!("| {help} |"))) {
            let why = format!("{METRICS_PAGE} describes `{name}` in other words");
            let file = "crates/telemetry/src/names.rs".into();
            findings.push(Finding { file, line, rule: "metrics", why });
        }
    }
    findings
}

/// `unsafe` code where the rules don't have it, and rules for files that have none.
pub fn unsafe_code(files: &[File]) -> Vec<Finding> {
    let is_unsafe = |line: &str| {
        let code = line.split('"').next().and_then(|code| code.split("//").next());
        let code = code.unwrap_or_default();
        ["unsafe {", "unsafe fn", "unsafe impl", "unsafe extern"]
            .iter()
            .any(|start| code.contains(start))
    };
    let finding = |file: &str, line: usize, why: &str| Finding {
        file: file.to_owned(),
        line,
        rule: "unsafe",
        why: why.to_owned(),
    };
    let mut findings = Vec::new();
    let mut seen = BTreeSet::new();
    for file in files {
        let allowed = UNSAFE.iter().find(|(path, _)| *path == place(&file.path));
        for (line, text) in (1..).zip(file.text.lines()) {
            match allowed {
                _ if !is_unsafe(text) => {}
                Some((path, _)) => drop(seen.insert(*path)),
                None => findings.push(finding(&file.path, line, "no `unsafe` is allowed here")),
            }
        }
    }
    let unused = UNSAFE.iter().filter(|(path, _)| !seen.contains(path));
    findings.extend(unused.map(|(path, _)| finding(path, 1, "it has no `unsafe` any more")));
    findings
}

fn quoted_metrics(line: &str) -> Vec<String> {
    let strings = line.split('"').skip(1).step_by(2);
    strings
        .filter(|text| {
            is_metric(text) && metric_words(text).first().is_some_and(|word| word == text)
        })
        .map(str::to_owned)
        .collect()
}

fn metric_words(text: &str) -> Vec<String> {
    let words = text.split(|letter: char| {
        !(letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '_')
    });
    words.filter(|word| is_metric(word)).map(str::to_owned).collect()
}

/// Whether a word is the name of one of Weir's metrics, or of what the system knows about its
/// process.
fn is_metric(word: &str) -> bool {
    word.starts_with("weir_") || word.starts_with("process_")
}

/// Finds folders that exist on one machine only. The names are assembled here, so that this file
/// does not contain them.
pub fn machine_paths(files: &[File]) -> Vec<Finding> {
    let folders = ["root", "home", "Users", "work"].map(|folder| format!("/{folder}/"));
    let mut findings = Vec::new();
    for file in files {
        for (at, line) in file.text.lines().enumerate() {
            for folder in &folders {
                // It is not a folder of a machine if it is part of a longer path or URL:
                // `https://example.com/home/x`, `target/home/`.
                let starts = line.match_indices(folder.as_str()).any(|(index, _)| {
                    let before = line[..index].chars().next_back();
                    !before
                        .is_some_and(|letter| letter.is_alphanumeric() || "._-*/}".contains(letter))
                });
                if starts {
                    let why = format!("`{folder}` is a folder on a developer's machine");
                    findings.push(Finding {
                        file: file.path.clone(),
                        line: at + 1,
                        rule: "machine",
                        why,
                    });
                }
            }
        }
    }
    findings
}
