//! A route's own changes to header fields: take off, set, add. Knows neither requests nor replies.

use http::{HeaderName, HeaderValue};

use super::settings::HeaderRules;
use crate::plan::is_reserved_field;
use crate::telemetry::Mistake;
use crate::wire::Fields;

/// Bytes of a value, at most.
const VALUE_BYTES_MAX: usize = 4 << 10;

/// Changes, checked: in the order in which they are done.
#[derive(Debug, Default)]
pub(super) struct Rules {
    remove: Vec<HeaderName>,
    set: Vec<(HeaderName, HeaderValue)>,
    add: Vec<(HeaderName, HeaderValue)>,
}

impl Rules {
    /// Checks what is written under the setting `at`; `None` where nothing is.
    ///
    /// # Errors
    /// All of them: names that are none, or that belong to a connection or to a message's framing, and values that are none.
    pub(super) fn build(written: &HeaderRules, at: &str) -> Result<Option<Self>, Vec<Mistake>> {
        let mut mistakes = Vec::new();
        let rules = Self {
            remove: written
                .remove
                .iter()
                .enumerate()
                .filter_map(|(place, name)| {
                    self::name(name).map_err(|why| mistakes.push(mistake(&format!("{at}.remove[{place}]"), name, why))).ok()
                })
                .collect(),
            set: fields(&written.set, &format!("{at}.set"), true, &mut mistakes),
            add: fields(&written.add, &format!("{at}.add"), false, &mut mistakes),
        };
        if !mistakes.is_empty() {
            return Err(mistakes);
        }
        Ok(Some(rules).filter(|_| *written != HeaderRules::default()))
    }

    /// Does them.
    pub(super) fn apply(&self, fields: &mut Fields) {
        for name in &self.remove {
            fields.remove(name);
        }
        for (name, value) in &self.set {
            fields.set(name, value);
        }
        for (name, value) in &self.add {
            fields.append(name, value);
        }
    }
}

/// Checks names and values under the setting `at`; `once` where a name may stand but once.
pub(super) fn fields(written: &[(String, String)], at: &str, once: bool, mistakes: &mut Vec<Mistake>) -> Vec<(HeaderName, HeaderValue)> {
    let mut fields: Vec<(HeaderName, HeaderValue)> = Vec::with_capacity(written.len());
    for (name, value) in written {
        let setting = format!("{at}.{name}");
        let name = match self::name(name) {
            Ok(header) if once && fields.iter().any(|(known, _)| *known == header) => {
                Err((name, "each name once: case does not tell them apart"))
            }
            Ok(header) => Ok(header),
            Err(why) => Err((name, why)),
        };
        let value = HeaderValue::from_bytes(value.as_bytes())
            .ok()
            .filter(|_| value.len() <= VALUE_BYTES_MAX && value.trim() == value)
            .ok_or((value, "a field's value: at most 4096 visible characters and blanks between them"));
        match (name, value) {
            (Ok(name), Ok(value)) => fields.push((name, value)),
            (Err((found, why)), _) | (Ok(_), Err((found, why))) => mistakes.push(mistake(&setting, found, why)),
        }
    }
    fields
}

/// Checks the setting `at`.content_type.
pub(super) fn content_type(written: &str, at: &str, mistakes: &mut Vec<Mistake>) -> Option<HeaderValue> {
    let main = written.split(';').next().unwrap_or_default().trim();
    let token = |text: &str| HeaderName::from_bytes(text.as_bytes()).is_ok();
    let fits = main.split_once('/').is_some_and(|(kind, sub)| token(kind) && token(sub));
    let value = HeaderValue::from_str(written).ok().filter(|_| fits);
    if value.is_none() {
        mistakes.push(mistake(
            &format!("{at}.content_type"),
            written,
            "a media type such as \"application/json\" or \"text/html; charset=utf-8\"",
        ));
    }
    value
}

fn name(name: &str) -> Result<HeaderName, &'static str> {
    let header = HeaderName::from_bytes(name.as_bytes()).map_err(|_| "a field's name")?;
    match header.as_str() {
        "host" => Err("another field: what the upstream gets as Host is said by `upstream_host`"),
        name if is_reserved_field(name) => Err("a field that is forwarded: this one belongs to a connection, or says where a message ends"),
        _ => Ok(header),
    }
}

fn mistake(setting: &str, found: &str, expected: &str) -> Mistake {
    Mistake::new(setting, format!("{:?}", found.chars().take(80).collect::<String>()), expected)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn they_are_done_in_their_order() {
        let written = HeaderRules {
            set: pairs(&[("X-Set", "new"), ("x-both", "1")]),
            add: pairs(&[("x-both", "2"), ("x-both", "3")]),
            remove: vec!["X-Gone".into(), "x-both".into()],
        };
        let mut fields = Fields::new();
        for (name, value) in [("X-Set", "old"), ("x-set", "older"), ("x-gone", "1"), ("x-kept", "1"), ("x-both", "0")] {
            fields.append(name, value);
        }
        Rules::build(&written, "r").unwrap().unwrap().apply(&mut fields);
        let all = |name: &str| fields.get_all(name).map(|value| String::from_utf8(value.to_vec()).unwrap()).collect::<Vec<_>>();
        assert_eq!((all("x-set"), all("x-kept")), (vec!["new".to_owned()], vec!["1".to_owned()]));
        assert_eq!(all("x-both"), ["1", "2", "3"]);
        assert!(!fields.has("x-gone"));
        assert!(Rules::build(&HeaderRules::default(), "r").unwrap().is_none());
    }

    #[test]
    fn what_can_not_stand_is_told_with_its_place() {
        let written = HeaderRules {
            set: pairs(&[
                ("Host", "a"),
                ("content-length", "1"),
                ("x-a", "a\nb"),
                ("x-b", " a"),
                ("x-c", "1"),
                ("X-C", "2"),
                ("x-d", "\u{20ac}"),
            ]),
            add: pairs(&[("connection", "close"), ("a b", "1")]),
            remove: vec!["x-fine".into(), "transfer-encoding".into()],
        };
        let mistakes = Rules::build(&written, "routes[0].request_headers").unwrap_err();
        let settings: Vec<&str> =
            mistakes.iter().filter_map(|mistake| mistake.setting.strip_prefix("routes[0].request_headers.")).collect();
        let expected = ["remove[1]", "set.Host", "set.content-length", "set.x-a", "set.x-b", "set.X-C", "add.connection", "add.a b"];
        // A value beyond ASCII goes as its UTF-8.
        assert_eq!(settings, expected);
        assert!(mistakes[1].expected.contains("upstream_host"), "{}", mistakes[1]);
    }
}
