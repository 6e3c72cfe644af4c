//! Cookies (RFC 6265).
//!
//! By the RFC a value is opaque. PHP and Node decode its escapes; Python and Node take off the
//! quotes around it, and Python reads `\141` in them as `a`. PHP reads names as it reads those of
//! forms, of which only the first of a kind counts.

use std::borrow::Cow;

use smallvec::SmallVec;

use super::escapes::decode_counting;
use super::form::FormName;

/// A value as it is compared.
type Value<'a> = Cow<'a, [u8]>;

/// A cookie's name as it is compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CookieName(FormName);

impl CookieName {
    /// The name as written in a configuration.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self(FormName::new(name))
    }

    /// The values of this cookie in one `Cookie` field, in order: without quotes and escapes. One
    /// that upstreams read in different ways is two values.
    pub fn values<'a>(&'a self, field: &'a [u8]) -> impl Iterator<Item = Value<'a>> + 'a {
        field.split(|byte| *byte == b';').flat_map(move |pair| {
            let mut halves = pair.splitn(2, |byte| *byte == b'=');
            let name = halves.next().unwrap_or_default().trim_ascii();
            let named = std::str::from_utf8(name).is_ok_and(|name| self.0.is(name));
            halves.next().filter(|_| named).map(readings).unwrap_or_default()
        })
    }
}

/// What upstreams may read.
fn readings(value: &[u8]) -> SmallVec<[Value<'_>; 2]> {
    let value = value.trim_ascii();
    let bare = value.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\""));
    let inner = bare.unwrap_or(value);
    let quoted_pair = bare.is_some() && inner.contains(&b'\\');
    let mut clear = !quoted_pair && !inner.contains(&b'"');
    let read = if inner.contains(&b'%') {
        let (decoded, broken) = decode_counting(inner);
        // Node leaves a value as it is where one of its escapes is broken, or is not UTF-8.
        clear &= !broken && std::str::from_utf8(&decoded).is_ok();
        Cow::Owned(decoded.into_vec())
    } else {
        Cow::Borrowed(inner)
    };
    let mut readings = SmallVec::new();
    if !clear {
        readings.push(Cow::Borrowed(value));
    }
    readings.push(read);
    readings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(name: &str, field: &str) -> Vec<String> {
        let name = CookieName::new(name);
        let found = name.values(field.as_bytes());
        found.map(|value| String::from_utf8_lossy(&value).into_owned()).collect()
    }

    #[test]
    fn quotes_and_escapes_make_no_other_value() {
        for value in ["abc", "%61bc", "\"abc\"", "%61%62%63", "\"a%62c\"", " abc "] {
            assert_eq!(
                values("session", &format!("a=1; session={value}; b=2")),
                ["abc"],
                "{value}"
            );
        }
        assert_eq!(values("session", "session=s%3Aabc.d%2Be+f"), ["s:abc.d+e+f"]);
        assert_eq!(values("session", "session=caf%C3%A9"), ["caf\u{e9}"]);
        assert_eq!(values("session", "session="), [""]);
    }

    #[test]
    fn values_that_upstreams_read_in_two_ways_are_two_values() {
        for value in ["%zz", "%FF", "\"\\141bc\"", "a\"b", "\"abc", "50%"] {
            assert_eq!(values("session", &format!("session={value}")).len(), 2, "{value}");
        }
    }

    #[test]
    fn a_cookie_is_found_under_each_name_that_an_upstream_may_read() {
        for name in ["my.cookie", "my_cookie", "my%5Fcookie", "my_cookie[x]"] {
            assert_eq!(values("my_cookie", &format!("{name}=1")), ["1"], "{name}");
        }
        assert_eq!(values("session", "session=a; session=b; sessions=c"), ["a", "b"]);
        assert!(values("session", "session; xsession=1").is_empty());
    }
}
