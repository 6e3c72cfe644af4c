//! docs/side-by-side.md: Weir's configurations have no errors or warnings, and have as many lines
//! as the page says.

use crate::harness::pki::Pki;
use crate::harness::weir::Weir;

const PAGE: &str = include_str!("../../../docs/side-by-side.md");

/// A proxy's section: its name, and its blocks, each with its language.
struct Section {
    name: &'static str,
    blocks: Vec<(&'static str, &'static str)>,
}

impl Section {
    /// How many lines of its blocks say something, in TOML or in all other languages.
    fn lines(&self, toml: bool) -> usize {
        let blocks = self.blocks.iter().filter(|(language, _)| (*language == "toml") == toml);
        let lines = blocks.flat_map(|(_, block)| block.lines()).map(str::trim);
        lines.filter(|line| !line.is_empty() && !line.starts_with('#')).count()
    }
}

/// The sections with a configuration of Weir's.
fn sections() -> Vec<Section> {
    let all = PAGE.split("\n## ").skip(1).map(|text| {
        let (name, rest) = text.split_once('\n').unwrap();
        let blocks = rest.split("```").skip(1).step_by(2);
        Section { name, blocks: blocks.map(|block| block.split_once('\n').unwrap()).collect() }
    });
    all.filter(|section| section.lines(true) > 0).collect()
}

#[test]
fn the_configurations_beside_others_have_no_errors_and_no_warnings() {
    let identity = Pki::new().server(&["api.example.com"]);
    let sections = sections();
    assert_eq!(sections.len(), 5);
    for section in sections {
        let ours: Vec<&str> = section
            .blocks
            .iter()
            .filter(|(language, _)| *language == "toml")
            .map(|(_, block)| *block)
            .collect();
        assert_eq!(ours.len(), 1, "{}", section.name);
        // The certificate is one for tests.
        let builder = Weir::build(ours[0]).identity("api", &identity);
        let builder = builder.argument("--strict").argument("--allow").argument("certificate");
        let (code, out, err) = Weir::check(builder);
        assert_eq!(code, 0, "{}\n{out}{err}", section.name);
    }
}

#[test]
fn the_lines_are_as_many_as_the_page_says_and_weirs_are_no_more() {
    for section in sections() {
        let (theirs, ours) = (section.lines(false), section.lines(true));
        let row =
            format!("[{}](#{}) | {theirs} | {ours} |", section.name, section.name.to_lowercase());
        assert!(PAGE.contains(&row), "the page has no row: | {row}");
        assert!(ours <= theirs, "{row}");
    }
}
