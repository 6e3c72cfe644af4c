//! Documents and the repository say the same: ARCHITECTURE.md has the rules' table of modules, and
//! the contents have every page. `tests/integration/documents/pages.rs` compares pages with code.

use std::collections::BTreeSet;

use super::{read, rules, tracked};

/// A page of the documentation.
fn page(name: &str) -> String {
    read(&format!("docs/{name}")).unwrap_or_else(|| panic!("docs/{name} is missing"))
}

#[test]
fn the_architecture_has_the_rules_table_of_modules() {
    let page = read("ARCHITECTURE.md").unwrap();
    let table = page.split("| module | responsibility | may use |").nth(1).unwrap();
    let rows = table.lines().skip(2).take_while(|row| row.starts_with('|'));
    let written: BTreeSet<(String, BTreeSet<String>)> = rows
        .map(|row| {
            let columns: Vec<&str> = row.split('|').map(str::trim).collect();
            let used = columns[3].split(", ").filter(|module| *module != "nothing");
            (columns[1].trim_matches('`').to_owned(), used.map(str::to_owned).collect())
        })
        .collect();
    let ruled = rules::MAY_USE.iter().map(|(module, used)| {
        ((*module).to_owned(), used.iter().map(|&used| used.to_owned()).collect())
    });
    assert_eq!(written, ruled.collect());
}

#[test]
fn each_dependency_has_its_reason() {
    let page = page("design/dependencies.md");
    let manifests = tracked();
    let manifests = manifests.iter().filter(|file| {
        file.path == "Cargo.toml"
            || file.path.starts_with("crates/") && file.path.ends_with("/Cargo.toml")
            || matches!(file.path.as_str(), "lua/Cargo.toml" | "wasm-sdk/Cargo.toml")
    });
    let mut missing = BTreeSet::new();
    for manifest in manifests {
        let mut in_dependencies = false;
        for line in manifest.text.lines() {
            if let Some(section) = line.strip_prefix('[') {
                in_dependencies = section.ends_with("dependencies]");
            } else if let Some((name, _)) = line.split_once([' ', '.']).filter(|_| in_dependencies)
            {
                let is_name = name.starts_with(|first: char| first.is_ascii_lowercase());
                // Our own crates are in ARCHITECTURE.md.
                if is_name && !name.starts_with("weir-") && !page.contains(name) {
                    missing.insert(name.to_owned());
                }
            }
        }
    }
    assert_eq!(missing, BTreeSet::new(), "docs/design/dependencies.md lacks them");
}

#[test]
fn a_decision_has_a_date_its_context_and_what_was_decided() {
    let mut seen = 0;
    for file in tracked() {
        let Some(name) = file.path.strip_prefix("docs/design/") else { continue };
        if name == "README.md" {
            continue;
        }
        for part in ["\nDate: 20", "\n## Context\n", "\n## Decision\n"] {
            assert!(file.text.contains(part), "{name} has no {part:?}");
        }
        let index = page("design/README.md");
        assert!(index.contains(&format!("]({name})")), "docs/design/README.md lacks {name}");
        seen += 1;
    }
    assert!(seen > 20, "{seen}");
}

#[test]
fn the_contents_and_the_index_have_every_page() {
    let is_page = |path: &str| {
        path.strip_prefix("docs/").filter(|rest| rest.ends_with(".md")).map(str::to_owned)
    };
    let all: BTreeSet<String> = tracked().iter().filter_map(|file| is_page(&file.path)).collect();
    let linked = |name: &str| -> BTreeSet<String> {
        let text = page(name);
        let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        targets.filter(|target| all.contains(*target)).map(str::to_owned).collect()
    };
    // Neither lists itself or the other.
    let pages: BTreeSet<String> = all
        .iter()
        .filter(|page| !matches!(page.as_str(), "SUMMARY.md" | "README.md"))
        .cloned()
        .collect();
    let (contents, index) = (linked("SUMMARY.md"), linked("README.md"));
    assert_eq!(pages.difference(&contents).collect::<Vec<_>>(), [] as [&String; 0], "SUMMARY.md");
    // Decisions have an index of their own.
    let expected =
        pages.iter().filter(|page| !page.starts_with("design/") || *page == "design/README.md");
    assert_eq!(
        expected.filter(|page| !index.contains(*page)).collect::<Vec<_>>(),
        [] as [&String; 0]
    );
}
