//! Facts about a request: names and values as the proxy shows them, and the names that operators
//! write for them.

use crate::mistakes::nearest;
use crate::named;
use crate::repeated;

/// What an operator writes, and the fact that it names.
const FACTS: [(&str, &str); 16] = [
    ("client_ip", "client-ip"),
    ("method", "method"),
    ("scheme", "scheme"),
    ("authority", "authority"),
    ("host", "host"),
    ("path", "path"),
    ("query", "query"),
    ("route", "route"),
    ("bearer", "bearer"),
    ("request_length", "request.length"),
    ("body.type", "body.type"),
    ("body.bytes", "body.bytes"),
    ("http_version", "http.version"),
    ("upgrade", "upgrade"),
    ("tls.sni", "tls.sni"),
    ("tls.client.subject", "tls.client.subject"),
];
const FAMILIES: [&str; 7] = ["header.", "cookie.", "query.", "path.", "form.", "body:", "rls."];

/// What the proxy shows of a request: the facts that the manifest named, if the request has them.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    shown: &'a [(String, String)],
    over: Option<(&'a str, &'a str)>,
}

impl<'a> Facts<'a> {
    /// Facts from names and values.
    #[must_use]
    pub fn new(shown: &'a [(String, String)]) -> Self {
        Self { shown, over: None }
    }

    /// The same facts with this value for one of them, whether it was shown or not: for example an
    /// address masked to its network.
    #[must_use]
    pub fn with<'b>(&self, name: &'b str, value: &'b str) -> Facts<'b>
    where
        'a: 'b,
    {
        Facts { shown: self.shown, over: Some((name, value)) }
    }

    /// The value of a fact; `None` if it wasn't shown.
    ///
    /// If it was shown several times, the request is denied with 400, whatever the policy then
    /// decides: only the upstream knows which of two values it believes. [`only`](Self::only) is
    /// for policies that treat such a request differently, [`all`](Self::all) for those that read
    /// all values.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&'a str> {
        let mut values = self.values(name);
        let first = values.next();
        if first.is_none() {
            named::check(name);
        } else if values.next().is_some() {
            repeated::note(name);
            return None;
        }
        first
    }

    /// The first value of a fact, even if there are others; `None` if it wasn't shown. Never tell
    /// clients apart by it: the upstream may believe another one.
    #[must_use]
    pub fn first(&self, name: &str) -> Option<&'a str> {
        self.all(name).next()
    }

    /// The value of a fact that has exactly one, which is not empty. `None` if it is absent, empty
    /// or repeated: only the upstream knows which of two values it believes, so a repeated fact
    /// can't identify anybody.
    #[must_use]
    pub fn only(&self, name: &str) -> Option<&'a str> {
        let mut values = self.values(name);
        let Some(first) = values.next() else {
            named::check(name);
            return None;
        };
        (values.next().is_none() && !first.is_empty()).then_some(first)
    }

    /// All values of a fact, in order: a repeated header field is a repeated fact.
    pub fn all(&self, name: &str) -> impl Iterator<Item = &'a str> {
        if self.values(name).next().is_none() {
            named::check(name);
        }
        self.values(name)
    }

    fn values(&self, name: &str) -> impl Iterator<Item = &'a str> {
        let over = self.over.filter(|(over, _)| *over == name);
        let shown = if over.is_some() { &[] } else { self.shown };
        over.map(|(_, value)| value).into_iter().chain(
            shown.iter().filter(move |(shown, _)| shown == name).map(|(_, value)| value.as_str()),
        )
    }
}

/// The fact that an operator means by `name`. An error says what is expected instead.
pub(crate) fn fact_of(name: &str) -> Result<String, String> {
    if let Some((_, fact)) = FACTS.iter().find(|(known, _)| *known == name) {
        return Ok((*fact).to_owned());
    }
    if let Some(pointer) = name.strip_prefix("body:")
        && (!pointer.starts_with('/') || pointer.split('/').any(|part| part == "*"))
    {
        return Err(
            "a JSON pointer to one value after `body:`, such as `{body:/user/name}`".to_owned()
        );
    }
    if let Some(field) = name.strip_prefix("header.")
        && !field.is_empty()
    {
        let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        return match field.bytes().all(token) {
            // As the proxy shows it, in whatever case it is written here.
            true => Ok(name.to_ascii_lowercase()),
            false => Err("the name of a header field after `header.`".to_owned()),
        };
    }
    let of_family =
        FAMILIES.iter().any(|family| name.strip_prefix(family).is_some_and(|own| !own.is_empty()));
    if of_family {
        return Ok(name.to_owned());
    }
    let known = FACTS.iter().map(|(known, _)| *known);
    // `headers.x-api-key` means a fact of the family `header.`.
    let hint = match name.split_once('.') {
        Some((family, own)) if !own.is_empty() => {
            let families = FAMILIES.iter().filter_map(|family| family.strip_suffix('.'));
            nearest(family, families).map(|family| format!("{family}.{own}"))
        }
        _ => nearest(name, known).map(str::to_owned),
    };
    let hint = hint.map(|near| format!("; `{{{near}}}` is near")).unwrap_or_default();
    let all = FACTS.iter().map(|(known, _)| format!("{{{known}}} ")).collect::<String>();
    Err(format!(
        "one of {all}{{header.NAME}} {{cookie.NAME}} {{query.NAME}} {{path.NAME}} {{form.NAME}} {{body:/POINTER}}{hint}"
    ))
}

/// Whether values of a fact are texts. Those of all others are bytes, shown as Latin-1.
pub(crate) fn is_text(fact: &str) -> bool {
    ["body:", "body.json:", "rls."].iter().any(|family| fact.starts_with(family))
        || fact == "tls.client.subject"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_field_is_named_in_any_case_and_other_names_are_checked() {
        assert_eq!(fact_of("header.X-Api-Key").unwrap(), "header.x-api-key");
        assert_eq!(fact_of("cookie.SID").unwrap(), "cookie.SID");
        for wrong in ["header.x y", "header.x\u{e9}", "body:/a/*", "body:a", "header."] {
            assert!(fact_of(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_fact_that_is_laid_over_hides_all_values_that_were_shown() {
        let shown = [("header.a", "1"), ("header.a", "2"), ("path", "/")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()));
        let facts = Facts::new(&shown);
        assert_eq!(facts.all("header.a").collect::<Vec<_>>(), ["1", "2"]);
        let over = facts.with("header.a", "3");
        assert_eq!(over.all("header.a").collect::<Vec<_>>(), ["3"]);
        assert_eq!((over.get("path"), over.get("query")), (Some("/"), None));
        assert_eq!(
            (facts.only("header.a"), facts.only("path"), facts.only("query")),
            (None, Some("/"), None)
        );
        assert_eq!((facts.get("header.a"), facts.first("header.a")), (None, Some("1")));
        assert_eq!(facts.with("path", "").only("path"), None);
    }
}
