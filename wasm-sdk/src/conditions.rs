//! The requests to which something applies:
//! `bypass = ["10.0.0.0/8", { header.x-internal = "yes" }]`, `when = { method = ["POST", "PUT"] }`.

use std::fmt::Write as _;
use std::net::IpAddr;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use crate::client::CLIENT_IP;
use crate::config::join;
use crate::digest::{DIGEST_EXPECTED, DIGEST_START};
use crate::facts::{fact_of, is_text};
use crate::mistakes::Mistakes;
use crate::network::Network;
use crate::{Digest, Facts, Json};

/// Maximum number of conditions, and of values of one condition.
const MANY_MAX: usize = 1_000;
/// What messages say was expected.
const NETWORK: &str = "an address or a network, such as \"192.0.2.1\" or \"10.0.0.0/8\"";

/// A list of conditions on a request; one match is enough. Use it as the type of a setting.
///
/// Each condition is an address or a network (`"10.0.0.0/8"`), or a table of facts that must all
/// match: `{ header.x-internal = "yes", method = "GET" }`. A list of values for one fact matches if
/// one of them does. A value is the whole fact. `"*"` matches any value, `"sha256:HEX"` matches a
/// value that is not to be written in the file, and a `path` may end in `/*`, as in a route.
/// `client_ip` takes addresses and networks.
#[derive(Clone, Debug, Default)]
pub struct Conditions {
    any: Vec<Vec<Condition>>,
}

#[derive(Clone, Debug)]
struct Condition {
    fact: String,
    any: Vec<Matcher>,
}

#[derive(Clone, Debug)]
enum Matcher {
    Anything,
    Exactly(String),
    /// This path, and everything below it.
    Below(String),
    Hashed(Digest),
    Network(Network),
}

impl Conditions {
    /// The facts that the conditions read, for the manifest.
    pub fn facts(&self) -> impl Iterator<Item = &str> {
        self.any.iter().flatten().map(|condition| condition.fact.as_str())
    }

    /// Whether one condition certainly matches: for rules that loosen limits. A fact with several
    /// values matches nothing, since a client may have added one to what a gateway wrote.
    #[must_use]
    pub fn hold(&self, facts: &Facts) -> bool {
        let only = |condition: &Condition| {
            let mut values = facts.all(&condition.fact);
            values
                .next()
                .filter(|_| values.next().is_none())
                .is_some_and(|value| condition.allows(value))
        };
        self.any.iter().any(|all| all.iter().all(only))
    }

    /// Whether one condition may match: for rules that tighten limits. One matching value among
    /// several is enough, so that adding another does not escape. The spelling of a `path` does not
    /// matter either: case (of ASCII letters), escapes and a trailing slash are ignored, since many
    /// servers ignore them.
    #[must_use]
    pub fn may_hold(&self, facts: &Facts) -> bool {
        let some = |condition: &Condition| {
            facts.all(&condition.fact).any(|value| condition.may_allow(value))
        };
        self.any.iter().any(|all| all.iter().all(some))
    }

    pub(crate) fn read(value: &Json<'_>) -> Result<Self, Mistakes> {
        let mut mistakes = Mistakes::new();
        let (items, listed) = (value.one_or_several(), value.is_list());
        if items.len() > MANY_MAX {
            mistakes.add(
                "",
                format_args!("{} conditions", items.len()),
                format_args!("at most {MANY_MAX}"),
            );
            return Err(mistakes);
        }
        let mut any = Vec::with_capacity(items.len());
        for (index, item) in items.iter().enumerate() {
            let at = if listed { format!("[{index}]") } else { String::new() };
            let mut all = Vec::new();
            if let Some(text) = item.as_str() {
                match Network::parse(&text) {
                    Some(network) => all.push(Condition {
                        fact: CLIENT_IP.to_owned(),
                        any: vec![Matcher::Network(network)],
                    }),
                    None => mistakes.add(at, format_args!("{text:?}"), NETWORK),
                }
            } else if item.members().next().is_some() {
                tables(&at, "", item, &mut all, &mut mistakes);
            } else {
                let expected =
                    format_args!("{NETWORK}, or a table such as {{ header.x-internal = \"yes\" }}");
                mistakes.add(at, item.kind_text(), expected);
            }
            any.push(all);
        }
        mistakes.or(Self { any })
    }
}

/// A table's facts. TOML reads `header.x-internal` as a table within a table.
fn tables(
    at: &str,
    family: &str,
    table: &Json<'_>,
    all: &mut Vec<Condition>,
    mistakes: &mut Mistakes,
) {
    for (key, value) in table.members() {
        let (at, name) = (join(at, &key), join(family, &key));
        if value.is_table() {
            if value.members().next().is_none() {
                mistakes.add(at, "an empty table", "a fact's name and value in it");
            } else {
                tables(&at, &name, &value, all, mistakes);
            }
            continue;
        }
        let fact = match fact_of(&name) {
            Ok(fact) => fact,
            Err(expected) => {
                mistakes.add(
                    at,
                    format_args!("the key `{name}`"),
                    expected.replace(['{', '}'], ""),
                );
                continue;
            }
        };
        let (values, listed) = (value.one_or_several(), value.is_list());
        if values.is_empty() || values.len() > MANY_MAX {
            mistakes.add(
                &at,
                format_args!("{} values", values.len()),
                format_args!("1 to {MANY_MAX}"),
            );
        }
        let mut any = Vec::with_capacity(values.len());
        for (index, value) in values.iter().enumerate().take(MANY_MAX) {
            match matcher(&fact, value) {
                Ok(matcher) => any.push(matcher),
                Err(expected) => {
                    let at = if listed { format!("{at}[{index}]") } else { at.clone() };
                    let found = value
                        .as_str()
                        .map_or_else(|| value.kind_text().to_owned(), |text| format!("{text:?}"));
                    mistakes.add(at, found, expected);
                }
            }
        }
        all.push(Condition { fact, any });
    }
}

fn matcher(fact: &str, value: &Json<'_>) -> Result<Matcher, &'static str> {
    let text = &*value.as_str().ok_or("a text, or a list of texts")?;
    if text == "*" {
        return Ok(Matcher::Anything);
    }
    if fact == CLIENT_IP {
        return Network::parse(text).map(Matcher::Network).ok_or(NETWORK);
    }
    if text.starts_with(DIGEST_START) {
        return Digest::parse(text).map(Matcher::Hashed).ok_or(DIGEST_EXPECTED);
    }
    let shown = match fact {
        "path" => escaped(text),
        _ if is_text(fact) => text.to_owned(),
        // Such facts show bytes as Latin-1.
        _ => text.bytes().map(char::from).collect(),
    };
    match shown.strip_suffix("/*").filter(|_| fact == "path") {
        Some(above) => Ok(Matcher::Below(above.to_owned())),
        None => Ok(Matcher::Exactly(shown)),
    }
}

/// A path as the proxy shows it, where bytes that stand in none are escaped.
fn escaped(path: &str) -> String {
    let mut escaped = String::with_capacity(path.len());
    for byte in path.bytes() {
        match byte.is_ascii_graphic() {
            true => escaped.push(char::from(byte)),
            false => {
                // Writing to a String can't fail.
                let _ = write!(escaped, "%{byte:02X}");
            }
        }
    }
    escaped
}

impl Condition {
    fn may_allow(&self, value: &str) -> bool {
        self.allows(value)
            || (self.fact == "path" && self.any.iter().any(|matcher| matcher.is_like(value)))
    }

    fn allows(&self, value: &str) -> bool {
        let allows = |matcher: &Matcher| match matcher {
            Matcher::Anything => true,
            Matcher::Exactly(text) => text == value,
            Matcher::Below(above) => value
                .strip_prefix(above.as_str())
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/')),
            Matcher::Hashed(digest) => *digest == Digest::of_value(&self.fact, value),
            Matcher::Network(network) => value
                .parse::<IpAddr>()
                .is_ok_and(|address| network.contains(address.to_canonical())),
        };
        self.any.iter().any(allows)
    }
}

impl Matcher {
    /// Whether this value matches a path that is spelt differently.
    fn is_like(&self, path: &str) -> bool {
        match self {
            Self::Exactly(text) => {
                let bare = |path| {
                    let mut path = folded(path);
                    path.pop_if(|last| *last == b'/');
                    path
                };
                bare(text) == bare(path)
            }
            Self::Below(above) => folded(path)
                .strip_prefix(folded(above).as_slice())
                .is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/")),
            Self::Anything | Self::Hashed(_) | Self::Network(_) => false,
        }
    }
}

/// A path as routes are compared: in lower case, with escapes decoded except those of slashes.
fn folded(path: &str) -> Vec<u8> {
    let (mut folded, mut rest) = (Vec::with_capacity(path.len()), path.as_bytes());
    while let Some((&first, after)) = rest.split_first() {
        let digits = after.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        let decoded = digits
            // A sign is read as a part of a number, and is none of an escape.
            .filter(|digits| first == b'%' && !digits.starts_with('+'))
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match decoded.filter(|byte| !matches!(byte, b'/' | b'\\')) {
            Some(byte) => {
                folded.push(byte.to_ascii_lowercase());
                rest = after.get(2..).unwrap_or_default();
            }
            None => {
                folded.push(first.to_ascii_lowercase());
                rest = after;
            }
        }
    }
    folded
}

impl<'de> Deserialize<'de> for Conditions {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Json::deserialize(deserializer)?;
        if value.as_str().is_some_and(|text| Mistakes::stand_in(&text)) {
            return Ok(Self::default());
        }
        Self::read(&value).map_err(|mistakes| D::Error::custom(mistakes.packed()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Conditions {
        serde_json::from_str(text).unwrap()
    }

    #[track_caller]
    fn is(conditions: &str, facts: &[(&str, &str)], hold: bool, may_hold: bool) {
        let facts: Vec<_> =
            facts.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let (read, facts) = (read(conditions), Facts::new(&facts));
        assert_eq!(
            (read.hold(&facts), read.may_hold(&facts)),
            (hold, may_hold),
            "{conditions} {facts:?}"
        );
    }

    #[test]
    fn networks_and_addresses() {
        let list = r#"["10.0.0.0/8", "192.0.2.7", {"client_ip": ["2001:db8::/32", "::ffff:198.51.100.0/120"]}]"#;
        for (address, inside) in [
            ("10.1.2.3", true),
            ("11.0.0.1", false),
            ("192.0.2.7", true),
            ("192.0.2.8", false),
            ("2001:db8::1", true),
            ("::ffff:10.0.0.1", true),
            ("198.51.100.9", true),
            ("198.51.101.9", false),
        ] {
            is(list, &[("client-ip", address)], inside, inside);
        }
        is(list, &[], false, false);
    }

    #[test]
    fn all_facts_of_a_table_must_be_as_it_says_and_one_table_is_enough() {
        let text = r#"[{"header": {"x-internal": "yes"}, "method": ["GET", "HEAD"]}, {"header.x-probe": "*"}]"#;
        assert_eq!(
            read(text).facts().collect::<Vec<_>>(),
            ["header.x-internal", "method", "header.x-probe"]
        );
        is(text, &[("header.x-internal", "yes"), ("method", "HEAD")], true, true);
        is(text, &[("header.x-internal", "yes"), ("method", "POST")], false, false);
        is(text, &[("header.x-internal", "no"), ("method", "GET")], false, false);
        is(text, &[("method", "GET")], false, false);
        is(text, &[("header.x-probe", "")], true, true);
        is(r#"{"method": "POST"}"#, &[("method", "POST")], true, true);
        is("[]", &[("method", "POST")], false, false);
    }

    #[test]
    fn a_fact_with_several_values_loosens_nothing_and_tightens_all() {
        is(r#"{"header.x": "yes"}"#, &[("header.x", "yes"), ("header.x", "no")], false, true);
        is(r#"{"header.x": "yes"}"#, &[("header.x", "yes"), ("header.x", "yes")], false, true);
    }

    #[test]
    fn a_path_may_stand_for_all_below_it() {
        for (path, below) in
            [("/v1", true), ("/v1/", true), ("/v1/a/b", true), ("/v10", false), ("/", false)]
        {
            is(r#"{"path": "/v1/*"}"#, &[("path", path)], below, below);
        }
        is(r#"{"path": "/*"}"#, &[("path", "/any")], true, true);
        is(r#"{"header.x": "/v1/*"}"#, &[("header.x", "/v1/a")], false, false);
    }

    #[test]
    fn another_spelling_of_a_path_tightens_and_loosens_nothing() {
        for path in ["/Login", "/login/", "/LOGIN/"] {
            is(r#"{"path": "/login"}"#, &[("path", path)], false, true);
        }
        is(r#"{"path": "/Login/"}"#, &[("path", "/login")], false, true);
        is(r#"{"path": "/v1/*"}"#, &[("path", "/V1/a")], false, true);
        for (written, path) in [
            ("/@me", "/%40me"),
            ("/v1/items:batch", "/v1/items%3abatch"),
            ("/%40me", "/@ME"),
            ("/%zz", "/%ZZ"),
        ] {
            is(&format!(r#"{{"path": "{written}"}}"#), &[("path", path)], false, true);
        }
        is(r#"{"path": "/a/b"}"#, &[("path", "/a%2Fb")], false, false);
        is(r#"{"path": "/"}"#, &[("path", "/a")], false, false);
        is(r#"{"path": "/login"}"#, &[("path", "/login//")], false, false);
        is(r#"{"header.x": "a"}"#, &[("header.x", "A")], false, false);
    }

    #[test]
    fn a_value_may_stay_unknown() {
        let hashed = format!(r#"{{"header.x": "{}"}}"#, Digest::of_fact("secret"));
        is(&hashed, &[("header.x", "secret")], true, true);
        is(&hashed, &[("header.x", "other")], false, false);
        is("{\"header.x\": \"\u{e9}\"}", &[("header.x", "\u{c3}\u{a9}")], true, true);
    }

    #[test]
    fn a_fact_of_a_body_is_text_and_a_path_is_escaped() {
        let (word, other) = ("mod\u{e8}le \u{65e5}", "mod\u{e8}le \u{672c}");
        for fact in ["body:/model", "rls.entry.model"] {
            let digest = Digest::of(word.as_bytes()).to_string();
            for written in [word, &digest] {
                let text = format!(r#"{{"{fact}": "{written}"}}"#);
                is(&text, &[(fact, word)], true, true);
                is(&text, &[(fact, other)], false, false);
            }
        }
        is(r#"{"header.X-Kind": "a"}"#, &[("header.x-kind", "a")], true, true);
        is("{\"path\": \"/caf\u{e9}\"}", &[("path", "/caf%C3%A9")], true, true);
        is("{\"path\": \"/caf\u{e9}/*\"}", &[("path", "/caf%C3%A9/a b")], true, true);
        is(r#"{"path": "/%+4"}"#, &[("path", "/\u{4}")], false, false);
    }

    #[test]
    fn errors_are_reported_where_they_stand() {
        #[derive(Debug, Deserialize)]
        #[serde(deny_unknown_fields)]
        #[allow(dead_code, reason = "only mistakes matter")]
        struct Config {
            bypass: Conditions,
        }
        for (text, expected) in [
            ("3", "bypass: found a number, expected an address or a network"),
            (
                "[\"10.0.0.0/33\"]",
                "bypass[0]: found \"10.0.0.0/33\", expected an address or a network",
            ),
            ("[{}]", "bypass[0]: found a table, expected an address"),
            (r#"[{"client_ip": "x"}]"#, "bypass[0].client_ip: found \"x\", expected an address"),
            (
                r#"[{"header": {"x": ["a", 1]}}]"#,
                "bypass[0].header.x[1]: found a number, expected a text",
            ),
            (r#"[{"header": {}}]"#, "bypass[0].header: found an empty table"),
            (r#"[{"header.x": []}]"#, "bypass[0].header.x: found 0 values, expected 1 to 1000"),
            (
                r#"{"metod": "GET"}"#,
                "bypass.metod: found the key `metod`, expected one of client_ip",
            ),
            (r#"{"metod": "GET"}"#, "`method` is near"),
            (
                r#"{"header.x": "sha256:12"}"#,
                "bypass.header.x: found \"sha256:12\", expected `sha256:` and 64",
            ),
        ] {
            let (_, mistakes) = crate::config::read::<Config>(&format!(r#"{{"bypass": {text}}}"#));
            let told: Vec<String> = mistakes
                .iter()
                .map(|mistake| format!("{}: {}", mistake.path, mistake.message))
                .collect();
            assert!(told.len() == 1 && told[0].contains(expected), "{text}: {told:#?}");
        }
    }
}
