//! `weir upgrade-check`: what an upgrade means for a configuration. Knows the changelog as a text
//! with the headings of Keep a Changelog.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;

use clap::Args;

use super::check::Check;
use super::{CONFIG_DEFAULT, wrong};
use crate::cli::print::{out, outln};

/// Kinds of changes that ask something of those who upgrade, in the changelog's words.
const ASKING: [&str; 4] = ["Removed", "Deprecated", "Changed", "Security"];

#[derive(Debug, Args)]
pub(super) struct UpgradeCheck {
    /// The version that runs now, as `weir --version` says it
    #[arg(long, value_name = "VERSION")]
    from: Version,
    /// The configuration file [default: proxy.toml, if there is one]
    file: Option<PathBuf>,
    /// The same, as other commands have it
    #[arg(long, value_name = "FILE", conflicts_with = "file")]
    config: Option<PathBuf>,
    /// Also say what was added and fixed
    #[arg(long)]
    all: bool,
}

/// A release's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Version([u64; 3]);

impl FromStr for Version {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // As `weir --version` prints it, or the number alone.
        let number = text.strip_prefix("weir ").unwrap_or(text);
        let parts: Option<Vec<u64>> = number.split('.').map(|part| part.parse().ok()).collect();
        let parts = parts.and_then(|parts| <[u64; 3]>::try_from(parts).ok());
        parts.map(Self).ok_or_else(|| "expected three numbers, such as 0.9.0".to_owned())
    }
}

/// A release in the changelog.
#[derive(Debug, PartialEq, Eq)]
struct Release<'a> {
    /// None for what has no number yet.
    version: Option<Version>,
    /// Its heading, without the signs for headings.
    title: &'a str,
    /// The kinds of changes, each with its text.
    changes: Vec<(&'a str, &'a str)>,
}

impl UpgradeCheck {
    pub(super) fn run(self, changelog: &str) -> ExitCode {
        let releases = releases(changelog);
        let known: Vec<Version> = releases.iter().filter_map(|release| release.version).collect();
        if !known.contains(&self.from) {
            let all: Vec<String> = known
                .iter()
                .map(|Version([major, minor, patch])| format!("{major}.{minor}.{patch}"))
                .collect();
            let found = format!(
                "found the version {:?}",
                self.from.0.map(|part| part.to_string()).join(".")
            );
            return wrong(&format!(
                "{found}, expected one that this program knows: {}",
                all.join(", ")
            ));
        }
        let text = changes(&releases, self.from, self.all);
        if text.is_empty() {
            outln!("Nothing has changed that asks something of you.");
        } else {
            out!("{text}");
        }
        outln!();
        let default = Path::new(CONFIG_DEFAULT);
        match self.config.or(self.file) {
            None if !default.exists() => {
                outln!("There is no {CONFIG_DEFAULT} in this folder, so none was checked.");
                ExitCode::SUCCESS
            }
            file => Check::of(file.as_deref().unwrap_or(default)).run(),
        }
    }
}

/// What changed in releases after this one, the newest first.
fn changes(releases: &[Release<'_>], from: Version, all: bool) -> String {
    let mut text = String::new();
    for release in releases.iter().filter(|release| release.version.is_none_or(|own| own > from)) {
        let wanted = |(kind, _): &&(&str, &str)| all || ASKING.contains(kind);
        for (kind, of) in release.changes.iter().filter(wanted) {
            text.push_str(&format!("{}: {}\n\n{}\n\n", release.title, kind, plain(of.trim())));
        }
    }
    text.truncate(text.trim_end().len());
    if !text.is_empty() {
        text.push('\n');
    }
    text
}

/// Markdown as plain text: without the signs for emphasis and code. Of a link, the text remains,
/// with the address if it leads to another site.
fn plain(markdown: &str) -> String {
    let mut text = String::with_capacity(markdown.len());
    let mut rest = markdown;
    while let Some(sign) = rest.find(['`', '[', '*']) {
        let (before, at) = rest.split_at(sign);
        text.push_str(before);
        let code = at.strip_prefix('`').and_then(|after| after.split_once('`'));
        let link = link(at);
        rest = if let Some((code, after)) = code {
            text.push_str(code);
            after
        } else if let Some((words, target, after)) = link {
            text.push_str(&plain(words));
            if target.contains("://") {
                text.push_str(&format!(" ({target})"));
            }
            after
        } else if let Some(after) = at.strip_prefix("**") {
            after
        } else {
            // One ASCII character.
            let (character, after) = at.split_at(1);
            text.push_str(character);
            after
        };
    }
    text.push_str(rest);
    text
}

/// The words and the target of a link at the beginning of a text, and what follows it.
fn link(text: &str) -> Option<(&str, &str, &str)> {
    let (mut depth, mut in_code) = (0_usize, false);
    let close = text.char_indices().find_map(|(at, c)| {
        match c {
            '`' => in_code = !in_code,
            '[' if !in_code => depth += 1,
            ']' if !in_code => depth = depth.saturating_sub(1),
            _ => {}
        }
        (depth == 0).then_some(at)
    })?;
    let (words, target) = (text.get(1..close)?, text.get(close + 1..)?.strip_prefix('(')?);
    let (target, after) = target.split_once(')')?;
    Some((words, target, after))
}

/// The releases of a changelog, the newest first.
fn releases(changelog: &str) -> Vec<Release<'_>> {
    let each = sections(changelog, "## ").into_iter().map(|(title, text)| {
        let number = title.split(['[', ']']).nth(1).unwrap_or_default();
        Release {
            version: number.parse().ok(),
            title: title.trim_start_matches('[').split(']').next().unwrap_or_default(),
            changes: sections(text, "### "),
        }
    });
    each.collect()
}

/// The parts of a text below its headings with this sign.
fn sections<'a>(text: &'a str, sign: &str) -> Vec<(&'a str, &'a str)> {
    let mut parts = Vec::new();
    let mut rest = text;
    let begins = |text: &'a str| -> Option<usize> {
        if text.starts_with(sign) {
            return Some(0);
        }
        text.find(&format!("\n{sign}")).map(|at| at + 1)
    };
    while let Some(at) = begins(rest) {
        let Some(after) = rest.get(at + sign.len()..) else { break };
        let (title, body) = after.split_once('\n').unwrap_or((after, ""));
        let end = begins(body).unwrap_or(body.len());
        parts.push((title.trim(), body.get(..end).unwrap_or_default()));
        rest = body.get(end..).unwrap_or_default();
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHANGELOG: &str = "\
# Changelog

## [Unreleased]

### Added

- An addition.

### Removed

- A setting.

## [0.10.0] - 2027-01-02

### Changed

- A default.

### Fixed

- An error.

## [0.9.0] - 2026-11-27

### Changed

- Something old.
";

    #[test]
    fn releases_and_their_changes_are_found() {
        let releases = releases(CHANGELOG);
        let titles: Vec<_> = releases.iter().map(|release| release.title).collect();
        assert_eq!(titles, ["Unreleased", "0.10.0", "0.9.0"]);
        assert_eq!(releases[1].version, Some(Version([0, 10, 0])));
        let kinds: Vec<_> = releases[1].changes.iter().map(|(kind, _)| *kind).collect();
        assert_eq!(kinds, ["Changed", "Fixed"]);
    }

    #[test]
    fn markdown_becomes_plain_text() {
        for (markdown, expected) in [
            (
                "- **`weir key`** reads ([docs/key.md](docs/key.md#a)), see [the\n  `[admin]` table](x).",
                "- weir key reads (docs/key.md), see the\n  [admin] table.",
            ),
            ("`[[routes]](x) /**` and [a] (b) * ` [", "[[routes]](x) /** and [a] (b) * ` ["),
            ("[Keep](https://a.example/b)!", "Keep (https://a.example/b)!"),
            ("[`a]`](x) \u{e4}*", "a] \u{e4}*"),
        ] {
            assert_eq!(plain(markdown), expected);
        }
        let own = plain(include_str!("../../CHANGELOG.md"));
        assert!(!own.contains("](") && !own.contains("**`"), "{own}");
    }

    #[test]
    fn what_asks_something_of_those_who_upgrade_is_said() {
        let releases = releases(CHANGELOG);
        let of = |from: &str, all| changes(&releases, from.parse().unwrap(), all);
        let expected = "Unreleased: Removed\n\n- A setting.\n\n0.10.0: Changed\n\n- A default.\n";
        assert_eq!(of("0.9.0", false), expected);
        assert_eq!(of("0.10.0", false), "Unreleased: Removed\n\n- A setting.\n");
        let all = of("0.9.0", true);
        assert!(all.contains("An addition") && all.contains("An error"), "{all}");
        assert!(!all.contains("Something old"), "{all}");
        assert_eq!(of("weir 0.9.0", false), expected);
        for wrong in
            ["0.9", "0.9.x", "weir", "weir ", "weir0.9.0", "weir weir 0.9.0", "other 0.9.0"]
        {
            assert!(wrong.parse::<Version>().is_err(), "{wrong}");
        }
    }
}
