//! Documents and code say the same: the pages of reference in docs/ have every name of the closed
//! sets in the code, ARCHITECTURE.md has the rules' table of modules, and the contents have every
//! page.

use std::collections::BTreeSet;

use weir::telemetry::{AccessField, AccessFields, DoubtKind, Label};

use super::{read, rules, tracked};

/// A page of the documentation.
fn page(name: &str) -> String {
    read(&format!("docs/{name}")).unwrap_or_else(|| panic!("docs/{name} is missing"))
}

/// The names in backticks in the first column of the table under this header, each with the second
/// column.
fn rows(page: &str, header: &str) -> Vec<(String, String)> {
    let table = page.split(header).nth(1).unwrap_or_else(|| panic!("there is no table {header:?}"));
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    let mut named = Vec::new();
    for row in rows {
        let mut columns = row.split('|').skip(1);
        let (names, second) = (columns.next().unwrap(), columns.next().unwrap());
        let names = names.split('`').skip(1).step_by(2);
        named.extend(names.map(|name| (name.to_owned(), second.trim().to_owned())));
    }
    named
}

fn names(rows: &[(String, String)]) -> BTreeSet<&str> {
    rows.iter().map(|(name, _)| name.as_str()).collect()
}

fn labels<L: Label>() -> BTreeSet<&'static str> {
    L::ALL.iter().map(|one| one.label()).collect()
}

#[test]
fn the_page_of_warnings_has_each_kind() {
    let page = page("warnings.md");
    assert_eq!(names(&rows(&page, "| warning |")), labels::<DoubtKind>());
}

#[test]
fn the_page_of_the_access_log_has_each_field_and_says_which_are_the_default() {
    let page = page("access-log.md");
    let rows = rows(&page, "| field |");
    // Header fields are an open set.
    let mut known = labels::<AccessField>();
    known.insert("header.NAME");
    assert_eq!(names(&rows), known);
    for field in AccessField::ALL {
        let (_, written) = rows.iter().find(|(name, _)| name == field.label()).unwrap();
        let expected = if AccessFields::default().has(*field) { "yes" } else { "" };
        assert_eq!(written, expected, "{}", field.label());
    }
}

#[test]
fn the_page_of_admin_pages_has_each() {
    let page = page("admin.md");
    let rows = rows(&page, "| page |");
    assert_eq!(names(&rows), weir::admin::page_paths().collect());
}

#[test]
fn the_page_of_facts_has_each() {
    let page = page("facts.md");
    let known = weir::proxy::fact_names();
    let documented = |header: &str| -> BTreeSet<String> {
        let part = page.split(header).nth(1).unwrap().split("\n## ").next().unwrap();
        part.split("| fact | value |")
            .skip(1)
            .flat_map(|table| {
                let rows = table.lines().skip(2).take_while(|row| row.starts_with("| `"));
                rows.map(|row| row.split('`').nth(1).unwrap())
            })
            .map(|name| name.trim_end_matches("NAME").trim_end_matches("POINTER").to_owned())
            .collect()
    };
    for (header, names) in
        [("## Of a request", known.request), ("## Of a response", known.response)]
    {
        let families = names.families.iter().map(|(family, _)| *family);
        let all: BTreeSet<String> =
            names.single.iter().copied().chain(families).map(str::to_owned).collect();
        assert_eq!(documented(header), all, "{header}");
    }
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
