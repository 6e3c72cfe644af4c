//! The table as a page: docs/settings.md.

use std::fmt::Write as _;

use super::{Row, SECTIONS, Section};

const HEAD: &str = "\
# Settings

Every setting of `proxy.toml`. The file [proxy.toml](../proxy.toml) shows them in use.

- A reload applies a change, unless the last column says `restart`: then a running process keeps the
  old value.
- Paths are relative to the file. Durations are a whole number of `ms`, `s`, `m`, `h` or `d`, such
  as `\"10s\"`; sizes of `B`, `KiB`, `MiB`, `GiB` or `TiB`, such as `\"16KiB\"`.
- `NAME` stands for a name that you choose.

This page is generated from the table that Weir reads the file with (`src/config/settings`):
`WEIR_BLESS=1 cargo test --lib config::tests::settings` rewrites it.
";

/// The reference of all settings of `proxy.toml`, in Markdown.
#[must_use]
pub fn reference() -> String {
    let mut page = HEAD.to_owned();
    for section in SECTIONS {
        // Writing to a text never fails.
        let _ = write_section(&mut page, section);
    }
    page
}

fn write_section(page: &mut String, section: &Section) -> std::fmt::Result {
    let heading: Vec<_> = section.paths.iter().map(|path| format!("`{path}`")).collect();
    write!(page, "\n## {}\n\n{}\n\n", heading.join(", "), section.about)?;
    writeln!(
        page,
        "| setting | values | default | what it is | a change |\n|---|---|---|---|---|"
    )?;
    section.rows.iter().try_for_each(|row| write_row(page, *row))
}

fn write_row(page: &mut String, row: &dyn Row) -> std::fmt::Result {
    let applied = if row.needs_restart() { "restart" } else { "reload" };
    let default = row.default();
    let is_literal = default.starts_with(|c: char| "\"[{".contains(c) || c.is_ascii_digit());
    let is_flag = ["true", "false"].contains(&&*default);
    let default = if is_literal || is_flag { format!("`{default}`") } else { default };
    writeln!(
        page,
        "| `{}` | {} | {default} | {} | {applied} |",
        row.key(),
        row.form().replace('|', "\\|"),
        row.about(),
    )
}
