//! References to files: links in Markdown, and paths in backticks in Markdown and in comments.
//! Everything they name must exist.

use super::{File, Finding};

/// Folders of the repository. A path in backticks that starts with one is taken for a reference.
const FOLDERS: &[&str] = &[
    "src", "docs", "lua", "scripts", "tests", "benches", "examples", "policies", "wasm-sdk",
    "fuzz", "build",
];
/// A path in backticks with one of these endings is taken for a reference as well.
const ENDINGS: &[&str] = &[".rs", ".lua", ".md", ".sh", ".py", ".wit"];

/// Checks the references in `files`; `exists` says whether there is a file or folder of this path.
pub fn check(files: &[File], exists: impl Fn(&str) -> bool) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in files {
        let mut find = |line: usize, rule: &'static str, why: String| {
            findings.push(Finding { file: file.path.clone(), line, rule, why });
        };
        let folder = file.path.rsplit_once('/').map_or("", |(folder, _)| folder);
        for (line, text) in prose(file) {
            for path in quoted_paths(text) {
                let path = path.trim_end_matches('/');
                if !bases(folder).any(|base| exists(&resolve(base, path))) {
                    find(line, "path", format!("there is no `{path}`"));
                }
            }
            if !file.path.ends_with(".md") {
                continue;
            }
            for target in link_targets(text) {
                let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
                let path = match path {
                    "" => file.path.clone(),
                    path => resolve(folder, path),
                };
                if !exists(&path) {
                    find(line, "link", format!("there is no `{path}`"));
                } else if let Some(page) = files.iter().find(|other| other.path == path)
                    && !anchor.is_empty()
                    && !anchors(&page.text).iter().any(|known| known == anchor)
                {
                    find(line, "link", format!("`{path}` has no heading `#{anchor}`"));
                }
            }
        }
    }
    findings
}

/// Checks that the index of `folder` names each of its files which has tests or helpers of its own,
/// and not those that only list modules.
pub fn index(folder: &str, index: &str, files: &[File]) -> Vec<Finding> {
    let missing = |file: &&File| {
        let path = file.path.strip_prefix(folder).unwrap_or(&file.path).trim_start_matches('/');
        let lists_only = path.ends_with("mod.rs") || path == "main.rs";
        !lists_only && !index.contains(&format!("`{path}`"))
    };
    let finding = |file: &File| Finding {
        file: format!("{folder}/README.md"),
        line: 1,
        rule: "index",
        why: format!("does not list {}", file.path),
    };
    files.iter().filter(missing).map(finding).collect()
}

/// The lines of a file that are read by people: Markdown without its code blocks, and comments.
fn prose(file: &File) -> Vec<(usize, &str)> {
    let lines = (1..).zip(file.text.lines());
    let marker = match file.path.rsplit_once('.').map(|(_, ending)| ending) {
        Some("md") => {
            let mut code = false;
            return lines
                .filter(|(_, line)| {
                    let fence = line.trim_start().starts_with("```");
                    code ^= fence;
                    !code && !fence
                })
                .collect();
        }
        Some("rs") => "//",
        Some("lua") => "--",
        _ => return Vec::new(),
    };
    lines.filter(|(_, line)| line.trim_start().starts_with(marker)).collect()
}

/// The texts in backticks that look like paths of files in the repository.
fn quoted_paths(line: &str) -> Vec<&str> {
    let is_path = |text: &&str| {
        let plain = text.chars().all(|letter| {
            letter.is_ascii_alphanumeric() || matches!(letter, '.' | '/' | '_' | '-')
        });
        // `lua/NAME.lua` is a pattern.
        let is_pattern =
            text.split(['/', '.']).any(|part| !part.is_empty() && part == part.to_uppercase())
                && !text.ends_with(".md");
        let in_folder = text
            .split_once('/')
            .is_some_and(|(first, rest)| FOLDERS.contains(&first) && !rest.is_empty());
        let is_file = text.contains('/') && ENDINGS.iter().any(|ending| text.ends_with(ending));
        plain && !is_pattern && (in_folder || is_file)
    };
    line.split('`').skip(1).step_by(2).filter(is_path).collect()
}

/// The targets of a line's links, except those to other sites.
fn link_targets(line: &str) -> Vec<&str> {
    let targets = line.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
    targets
        .map(|(target, _)| target)
        .filter(|target| !target.contains("://") && !target.contains(' '))
        .collect()
}

/// Where a path in backticks may start: at `folder`, at each folder above it, or where modules are.
fn bases(folder: &str) -> impl Iterator<Item = &str> {
    let above = folder.match_indices('/').map(|(at, _)| &folder[..at]);
    above.chain([
        folder,
        "",
        "src",
        "crates/limit/src",
        "crates/http/src",
        "crates/host/src",
        "crates/replay/src",
    ])
}

/// `path` as seen from `folder`, with `..` resolved.
fn resolve(folder: &str, path: &str) -> String {
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// The anchors of a page's headings, as GitHub makes them.
fn anchors(page: &str) -> Vec<String> {
    let headings = page.lines().filter(|line| line.starts_with('#'));
    let anchor = |heading: &str| {
        let text = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = text
            .chars()
            .filter(|letter| letter.is_alphanumeric() || matches!(letter, ' ' | '-' | '_'));
        kept.map(|letter| if letter == ' ' { '-' } else { letter }).collect()
    };
    headings.map(anchor).collect()
}
