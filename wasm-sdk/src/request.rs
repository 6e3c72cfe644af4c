//! Parts of a request by name: header fields, cookies, parameters of its query and its path, fields
//! of a form.

use crate::Facts;

impl<'a> Facts<'a> {
    /// The value of a header field, whose name may be written in any case. The manifest names the
    /// fact in lower case, as `header.x-api-key`.
    ///
    /// Like the other functions for parts of a request, this is `None` if the part is absent or
    /// empty, and if it occurs twice: see [`Facts::only`]. [`Facts::all`] has all values.
    ///
    /// ```
    /// use weir_policy::Facts;
    ///
    /// let shown = [("header.x-api-key", "abc"), ("cookie.session", "7"), ("query.page", "2")];
    /// let shown = shown.map(|(name, value)| (name.to_owned(), value.to_owned()));
    /// let facts = Facts::new(&shown);
    /// assert_eq!(facts.header("X-Api-Key"), Some("abc"));
    /// assert_eq!((facts.cookie("session"), facts.query("page")), (Some("7"), Some("2")));
    /// assert_eq!(facts.cookie("other"), None);
    /// ```
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&'a str> {
        self.only(&format!("header.{}", name.to_ascii_lowercase()))
    }

    /// The value of a cookie: the fact `cookie.NAME`.
    #[must_use]
    pub fn cookie(&self, name: &str) -> Option<&'a str> {
        self.only(&format!("cookie.{name}"))
    }

    /// The value of a parameter in the query, decoded: the fact `query.NAME`.
    #[must_use]
    pub fn query(&self, name: &str) -> Option<&'a str> {
        self.only(&format!("query.{name}"))
    }

    /// What the parameter `{NAME}` of the route's path matched: the fact `path.NAME`.
    #[must_use]
    pub fn path_parameter(&self, name: &str) -> Option<&'a str> {
        self.only(&format!("path.{name}"))
    }

    /// The value of a field in an HTML form: the fact `form.NAME`. A policy that names one has the
    /// body read before it decides.
    #[must_use]
    pub fn form(&self, name: &str) -> Option<&'a str> {
        self.only(&format!("form.{name}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_found_by_its_name_alone_and_never_if_it_is_there_twice() {
        let shown = [
            ("header.x-a", "1"),
            ("header.x-b", "2"),
            ("header.x-b", "2"),
            ("header.x-c", ""),
            ("cookie.A", "3"),
            ("query.a", "4"),
            ("path.a", "5"),
            ("form.a", "6"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()));
        let facts = Facts::new(&shown);
        assert_eq!(
            ["X-A", "x-a", "x-b", "x-c", "x-d"].map(|name| facts.header(name)),
            [Some("1"), Some("1"), None, None, None]
        );
        assert_eq!((facts.cookie("A"), facts.cookie("a")), (Some("3"), None));
        assert_eq!(
            [facts.query("a"), facts.path_parameter("a"), facts.form("a"), facts.form("b")],
            [Some("4"), Some("5"), Some("6"), None]
        );
    }
}
