//! The pages of reference in docs/ have every name of the closed sets in the code. What needs no
//! code of Weir's is in `tests/tidy/pages.rs`.

use std::collections::BTreeSet;
use std::path::Path;

use weir::proxy::account::{Cause, Verdict};
use weir::telemetry::{AccessField, AccessFields, Label, LintKind};

/// A page of the documentation.
fn page(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
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
    assert_eq!(names(&rows(&page, "| warning |")), labels::<LintKind>());
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
fn the_page_of_the_access_log_has_each_verdict_and_each_cause() {
    let page = page("access-log.md");
    assert_eq!(names(&rows(&page, "| decision |")), labels::<Verdict>());
    assert_eq!(names(&rows(&page, "| cause |")), labels::<Cause>());
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
