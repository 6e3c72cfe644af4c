//! The templates in `lua/driver/`: finds their sections and fills them in for a cell. The
//! placeholders are documented at the top of `lua/driver/frame.lua`.

use crate::engine::counters::PURGE_EVERY;
use crate::engine::{Kind, OUTSIDE, Program, UNCHARGED, script_texts};

const FRAME: &str = include_str!("../../../../../lua/driver/frame.lua");
const NUMBERS: &str = include_str!("../../../../../lua/driver/numbers.lua");
const LOG: &str = include_str!("../../../../../lua/driver/log.lua");
const BUCKETS: &str = include_str!("../../../../../lua/driver/buckets.lua");
const LEASES: &str = include_str!("../../../../../lua/driver/leases.lua");

/// Starts a section.
const SECTION: &str = "--@ ";
/// Inserts a section.
const INSERT: &str = "--+ ";
/// The placeholder that asks a program for a take.
const TAKE: &str = "TAKE(";

/// One cell of a call, with what its sections need.
pub(super) struct Template<'s> {
    /// Counted from 1.
    pub(super) index: usize,
    pub(super) program: &'static Program,
    /// The expression for its string.
    pub(super) stored: &'s str,
}

/// A section that is the same for all cells.
pub(super) fn shared(name: &str) -> String {
    plain(section(FRAME, name).unwrap_or_default())
}

/// The helper functions for cells of a kind.
pub(super) fn functions(kind: Kind) -> String {
    plain(section(of_kind(kind), "functions").unwrap_or_default())
}

/// Removes comments and indentation. The section must contain no placeholders.
fn plain(section: &str) -> String {
    let mut text = String::new();
    for code in section.lines().map(str::trim).filter(|line| is_code(line)) {
        text.push_str(code);
        text.push('\n');
    }
    text
}

fn is_code(line: &str) -> bool {
    !line.is_empty() && !line.starts_with("--")
}

fn of_kind(kind: Kind) -> &'static str {
    match kind {
        Kind::Numbers => NUMBERS,
        Kind::Log => LOG,
        Kind::Buckets => BUCKETS,
        Kind::Leases => LEASES,
    }
}

/// The text from the line after the section's name to the next section.
fn section<'f>(file: &'f str, name: &str) -> Option<&'f str> {
    let mut sections = file.split(SECTION).skip(1);
    sections
        .find_map(|section| section.split_once('\n').filter(|(named, _)| *named == name))
        .map(|(_, text)| text)
}

impl Template<'_> {
    /// Writes the frame's section `name`, with the kind's own sections inserted.
    pub(super) fn write(&self, text: &mut String, name: &str) {
        self.fill(text, section(FRAME, name).unwrap_or_default());
    }

    fn fill(&self, text: &mut String, template: &str) {
        for line in template.lines().map(str::trim) {
            if let Some(name) = line.strip_prefix(INSERT) {
                let own = section(of_kind(self.program.kind), name);
                self.fill(text, own.or_else(|| section(FRAME, name)).unwrap_or_default());
            } else if is_code(line) {
                text.push_str(&self.filled(line));
                text.push('\n');
                // All lines that ask for a take end their statement.
                if script_texts::is_operator_script(self.program) && line.contains(TAKE) {
                    text.push_str(&shared("sound_or_ends"));
                }
            }
        }
    }

    fn filled(&self, line: &str) -> String {
        let numbers: String = (1..=self.program.numbers).map(|n| format!(", n{n}")).collect();
        let format = format!("'<{}'", "d".repeat(3 + self.program.numbers));
        let state = self.program.state;
        let names = |all: [&str; 3]| all.into_iter().take(state).collect::<Vec<_>>().join(", ");
        let doubles = format!("'<{}'", "d".repeat(state));
        let load = format!("{} = unpack({doubles}, STORED)", names(["s1", "s2", "s3"]));
        let packed = format!("pack({doubles}, {})", names(["x_I", "y_I", "z_I"]));
        let mut filled = line
            .replace("LOAD_STATE()", &load)
            .replace("PACKED", &packed)
            .replace(", NUMBERS", &numbers)
            .replace("FORMAT", &format)
            .replace("STORED", self.stored)
            .replace("OUTSIDE", &OUTSIDE.to_string())
            .replace("UNCHARGED", &UNCHARGED.to_string())
            .replace("PURGE_EVERY", &PURGE_EVERY.to_string());
        let calls = [("GIVE_BACK(", "give_back"), (TAKE, "take"), ("CHARGE(", "charge")];
        for (placeholder, function) in calls {
            if filled.contains(placeholder) {
                let name = self.program.name;
                // An operator's script may fail, and has its answer checked first.
                let (before, after) = if script_texts::is_operator_script(self.program) {
                    let known = script_texts::name(self.program);
                    (format!("sound_{function}('{known}', pcall({name}, "), ")")
                } else {
                    (format!("{name}("), "")
                };
                filled = filled.replace(placeholder, &before) + after;
            }
        }
        // A parent's program has no checks of its own: no operator's script can owe.
        let filled = filled
            .replace("OWE(", &format!("{}_charge(", self.program.name))
            .replace("fits_BEFORE", &format!("fits_{}", self.index.saturating_sub(1)));
        numbered(&filled, self.index)
    }
}

/// Replaces the placeholder `I` at the end of names and in brackets.
fn numbered(line: &str, index: usize) -> String {
    let index = index.to_string();
    let mut text = String::with_capacity(line.len() + 8);
    let mut rest = line;
    while let Some(at) = rest.find("_I") {
        let (before, after) = rest.split_at(at + 1);
        text.push_str(before);
        let after = after.get(1..).unwrap_or_default();
        let is_name = after.starts_with(|next: char| next.is_ascii_alphanumeric() || next == '_');
        text.push_str(if is_name { "I" } else { &index });
        rest = after;
    }
    text.push_str(rest);
    text.replace("[I]", &format!("[{index}]"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_section_that_is_inserted_is_there() {
        for (kind, file) in [
            (Kind::Numbers, NUMBERS),
            (Kind::Log, LOG),
            (Kind::Buckets, BUCKETS),
            (Kind::Leases, LEASES),
        ] {
            for line in file.lines().chain(FRAME.lines()).map(str::trim) {
                let Some(name) = line.strip_prefix(INSERT) else { continue };
                // Only leases are renewed.
                let needed = name != "renew" || kind == Kind::Leases;
                let there = section(file, name).or_else(|| section(FRAME, name));
                assert!(!needed || there.is_some(), "{kind:?}: {name}");
            }
        }
    }

    #[test]
    fn names_and_brackets_are_numbered() {
        assert_eq!(numbered("x_I = KEYS[I] .. y_I.z_IJ", 12), "x_12 = KEYS[12] .. y_12.z_IJ");
    }
}
