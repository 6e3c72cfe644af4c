//! A table of path templates and methods, of which the most specific wins.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use super::{PathTemplate, Spelling, segments};
use crate::mistakes::message;

/// Maximum number of methods in one list.
const METHODS_MAX: usize = 32;

/// Methods, any unless they are written: `["GET", "POST"]`. `GET` includes `HEAD`. Use it as the
/// type of a setting.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Methods(Vec<String>);

impl Methods {
    /// These methods; any, if there are none.
    ///
    /// # Errors
    /// The message of a mistake: what was found and what was expected.
    pub fn new(names: Vec<String>) -> Result<Self, String> {
        let tchar = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        let fits = |name: &str| {
            !name.is_empty() && name.bytes().all(|byte| tchar(byte) && !byte.is_ascii_lowercase())
        };
        if let Some(name) = names.iter().find(|name| !fits(name)) {
            let expected = "methods in upper case, such as [\"GET\", \"POST\"]";
            return Err(message(&format_args!("{name:?}"), &expected));
        }
        if names.len() > METHODS_MAX {
            let found = format_args!("{} methods", names.len());
            return Err(message(&found, &format_args!("at most {METHODS_MAX}")));
        }
        Ok(Self(names))
    }

    /// Whether a request's method is one of these.
    #[must_use]
    pub fn include(&self, method: &str) -> bool {
        self.fit(method, Spelling::Exact).is_some()
    }

    /// How well a method fits; more is better.
    fn fit(&self, method: &str, spelling: Spelling) -> Option<u8> {
        let named = |name: &str| {
            self.0.iter().any(|known| match spelling {
                Spelling::Exact => known == name,
                Spelling::Any => known.eq_ignore_ascii_case(name),
            })
        };
        if self.0.is_empty() {
            Some(0)
        } else if named(method) {
            Some(2)
        } else {
            (method == "HEAD" && named("GET")).then_some(1)
        }
    }

    /// Whether neither of two lists is the more specific one for some method.
    fn overlap(&self, other: &Self) -> bool {
        if self.0.is_empty() || other.0.is_empty() {
            return self.0.is_empty() && other.0.is_empty();
        }
        self.0.iter().any(|name| other.0.contains(name))
    }
}

impl<'de> Deserialize<'de> for Methods {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::new(Vec::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

/// Path templates with methods, each with a value. The most specific template that matches a
/// request's path and method wins, whatever their order, as with routes.
///
/// ```
/// use weir_policy::{Methods, PathTable, PathTemplate, Spelling};
///
/// let row = |path, cost| (PathTemplate::parse(path).unwrap(), Methods::default(), cost);
/// let table = PathTable::new([row("/*", 1), row("/reports/{id}", 25)]).unwrap();
/// assert_eq!(table.find("/reports/7", "GET", Spelling::Exact), Some(&25));
/// assert_eq!(table.find("/status", "GET", Spelling::Exact), Some(&1));
///
/// let tie = PathTable::new([row("/reports/{id}", 1), row("/reports/{name}", 2)]).unwrap_err();
/// assert_eq!((tie[0].first, tie[0].second), (0, 1));
/// ```
#[derive(Clone, Debug)]
pub struct PathTable<T> {
    /// The most specific first.
    rows: Vec<Row<T>>,
}

#[derive(Clone, Debug)]
struct Row<T> {
    template: PathTemplate,
    methods: Methods,
    value: T,
    index: usize,
}

/// Two rows of a [`PathTable`] of which neither is more specific.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tie {
    /// The index of the first of them.
    pub first: usize,
    /// The index of the other.
    pub second: usize,
}

impl<T> PathTable<T> {
    /// A table of these rows.
    ///
    /// # Errors
    /// All rows that match the same paths, with a method in common.
    pub fn new(
        rows: impl IntoIterator<Item = (PathTemplate, Methods, T)>,
    ) -> Result<Self, Vec<Tie>> {
        let mut sorted: Vec<Row<T>> = Vec::new();
        for (index, (template, methods, value)) in rows.into_iter().enumerate() {
            // Rows with the same paths stay in their order. There are few, once, so that a general
            // sort, which is much code in a module, is not needed.
            let place = sorted.partition_point(|row| row.template.specificity(&template).is_le());
            sorted.insert(place, Row { template, methods, value, index });
        }
        let rows = sorted;
        let mut ties = Vec::new();
        for same in rows.chunk_by(|one, two| one.template.specificity(&two.template).is_eq()) {
            for (at, row) in same.iter().enumerate() {
                let mut before = same.iter().take(at);
                if let Some(other) = before.find(|other| other.methods.overlap(&row.methods)) {
                    ties.push(Tie { first: other.index, second: row.index });
                }
            }
        }
        if ties.is_empty() { Ok(Self { rows }) } else { Err(ties) }
    }

    /// The value of the most specific row for this path and method.
    #[must_use]
    pub fn find(&self, path: &str, method: &str, spelling: Spelling) -> Option<&T> {
        let path = segments(path, spelling);
        let mut best: Option<(u8, &Row<T>)> = None;
        for row in &self.rows {
            if best.is_some_and(|(_, best)| row.template.specificity(&best.template).is_ne()) {
                break;
            }
            if let Some(fit) = row.methods.fit(method, spelling)
                && best.is_none_or(|(known, _)| fit > known)
                && row.template.matches_segments(&path, spelling)
            {
                best = Some((fit, row));
            }
        }
        best.map(|(_, row)| &row.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(rows: &[(&str, &[&str])]) -> Result<PathTable<usize>, Vec<Tie>> {
        let row = |(index, (path, methods)): (usize, &(&str, &[&str]))| {
            let methods = methods.iter().map(|name| (*name).to_owned()).collect();
            (PathTemplate::parse(path).unwrap(), Methods(methods), index)
        };
        PathTable::new(rows.iter().enumerate().map(row))
    }

    #[test]
    fn the_most_specific_row_that_has_the_method_wins_in_any_order() {
        let mut rows: Vec<(&str, &[&str])> = vec![
            ("/*", &[]),
            ("/reports/*", &["POST", "GET"]),
            ("/reports/{id}", &["GET"]),
            ("/reports/{id}", &["HEAD"]),
            ("/reports/{id}", &[]),
            ("/reports/all", &["DELETE"]),
            ("/{kind}/all", &[]),
        ];
        for _ in 0..rows.len() {
            rows.rotate_left(1);
            let table = table(&rows).unwrap();
            for (method, path, expected) in [
                ("GET", "/reports/7", ("/reports/{id}", "GET")),
                ("HEAD", "/reports/7", ("/reports/{id}", "HEAD")),
                ("HEAD", "/reports/7/a", ("/reports/*", "POST")),
                ("PUT", "/reports/7", ("/reports/{id}", "")),
                ("DELETE", "/reports/all", ("/reports/all", "DELETE")),
                ("PUT", "/reports/all", ("/reports/{id}", "")),
                ("PUT", "/reports/7/a", ("/*", "")),
                ("GET", "/reports", ("/reports/*", "POST")),
                ("GET", "/users/all", ("/{kind}/all", "")),
                ("GET", "/users", ("/*", "")),
            ] {
                let found = table.find(path, method, Spelling::Exact).copied().unwrap();
                let first = rows[found].1.first().copied().unwrap_or_default();
                assert_eq!((rows[found].0, first), expected, "{method} {path}");
            }
        }
    }

    #[test]
    fn nothing_is_found_where_nothing_matches() {
        let table = table(&[("/a", &["GET"])]).unwrap();
        assert_eq!(table.find("/a", "GET", Spelling::Exact), Some(&0));
        assert_eq!(table.find("/a", "POST", Spelling::Any), None);
        assert_eq!(table.find("/b", "GET", Spelling::Any), None);
        assert_eq!(table.find("/A/", "get", Spelling::Exact), None);
        assert_eq!(table.find("/A/", "get", Spelling::Any), Some(&0));
    }

    #[test]
    fn rows_of_which_none_is_more_specific_are_ties() {
        let ties = |rows: &[(&str, &[&str])]| match table(rows) {
            Ok(_) => Vec::new(),
            Err(ties) => ties.iter().map(|tie| (tie.first, tie.second)).collect::<Vec<_>>(),
        };
        assert_eq!(ties(&[("/a/{x}", &[]), ("/b", &[]), ("/A/{y}", &[])]), [(0, 2)]);
        assert_eq!(ties(&[("/a", &["GET", "PUT"]), ("/a", &["POST", "GET"])]), [(0, 1)]);
        assert_eq!(ties(&[("/a", &["GET"]), ("/a", &["HEAD"]), ("/a", &[])]), []);
        assert_eq!(ties(&[("/a", &[]), ("/a", &[]), ("/a", &[])]), [(0, 1), (0, 2)]);
        assert_eq!(ties(&[("/a/{x}", &[]), ("/{x}/a", &[]), ("/a/*", &[])]), []);
    }

    #[test]
    fn methods_are_written_in_upper_case() {
        let read =
            |text: &str| serde_json::from_str::<Methods>(text).map_err(|error| error.to_string());
        assert!(read("[]").unwrap().include("ANY"));
        let methods = read(r#"["GET", "M-SEARCH"]"#).unwrap();
        assert!(methods.include("HEAD") && methods.include("M-SEARCH") && !methods.include("PUT"));
        for wrong in [r#"["post"]"#, r#"[""]"#, r#"["A B"]"#] {
            assert!(read(wrong).unwrap_err().contains("expected methods in upper case"), "{wrong}");
        }
        let many = format!("[{}]", vec!["\"GET\""; METHODS_MAX + 1].join(","));
        assert!(read(&many).unwrap_err().starts_with("found 33 methods, expected at most 32"));
    }
}
