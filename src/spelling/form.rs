//! Names and values in queries and forms (`application/x-www-form-urlencoded`).
//!
//! Upstreams disagree about names. PHP cuts leading blanks, ends a name at a NUL, makes `_` of
//! blanks and dots, and reads `user[name]` as an entry of the array `user`. ASP.NET compares names
//! without case. Older versions of Perl's CGI, of Python and of Rack also split at `;`. A parameter
//! is found under each name that one of them may read.

use std::borrow::Cow;

use smallvec::SmallVec;

use super::escapes::{decode, decoded};

/// A name as it is compared: the variable, and the keys of the entry that is named in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FormName {
    base: SmallVec<[u8; 64]>,
    keys: SmallVec<[SmallVec<[u8; 64]>; 1]>,
    /// Its first byte, in lower case, if all spellings that have no escape begin with it.
    first: Option<u8>,
}

impl FormName {
    /// The name as written in a configuration.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self::read(name.as_bytes(), false)
    }

    /// A decoded name. A bracket that is not closed begins a key (qs, which Express uses), or is an
    /// underscore (PHP).
    fn read(name: &[u8], unclosed_is_key: bool) -> Self {
        let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
        let name = name.get(..end).unwrap_or_default();
        let start = name.iter().position(|byte| *byte != b' ').unwrap_or(name.len());
        let name = name.get(start..).unwrap_or_default();
        let (base, mut rest) = bracketed(name).unwrap_or_else(|| {
            let open = name.iter().skip(1).position(|byte| *byte == b'[').map(|place| place + 1);
            let closes = |open: &usize| name.get(*open..).is_some_and(|rest| rest.contains(&b']'));
            let open = open.filter(|open| unclosed_is_key || closes(open));
            name.split_at(open.unwrap_or(name.len()))
        });
        let mut keys = SmallVec::new();
        while let Some(inner) = rest.strip_prefix(b"[") {
            let close = inner.iter().position(|byte| *byte == b']').unwrap_or(inner.len());
            let (key, after) = inner.split_at(close);
            keys.push(folded(key.trim_ascii()));
            rest = after.get(1..).unwrap_or_default();
        }
        let base = folded(base);
        let first = base.first().copied().filter(|byte| *byte != b'_');
        Self { base, keys, first }
    }

    /// Whether an upstream may take the one for the other: the same variable, and the same entry of
    /// it or one that contains the other.
    fn meets(&self, other: &Self) -> bool {
        // `a[]` is any entry.
        let same = |(one, two): (&SmallVec<[u8; 64]>, &SmallVec<[u8; 64]>)| {
            one == two || one.is_empty() || two.is_empty()
        };
        self.base == other.base && self.keys.iter().zip(&other.keys).all(same)
    }

    /// Whether this may be a name in a query or form, still encoded, that is read as this one.
    #[must_use]
    pub fn is(&self, encoded: &str) -> bool {
        let begin = encoded.as_bytes().first().map(u8::to_ascii_lowercase);
        let may = match (self.first, begin) {
            (Some(first), Some(begin)) => {
                begin == first || matches!(begin, b'%' | b'+' | b' ' | b'[')
            }
            _ => true,
        };
        may && {
            let name = form_bytes(encoded);
            let reads = |unclosed_is_key| self.meets(&Self::read(&name, unclosed_is_key));
            reads(false) || (name.contains(&b'[') && reads(true))
        }
    }

    /// The values of the name in a query or a form's body, in order. A value with a `;` has two
    /// readings, and so is two values.
    pub fn values<'a>(&'a self, text: &'a str) -> impl Iterator<Item = Cow<'a, [u8]>> + 'a {
        text.split('&').filter(|pair| !pair.is_empty()).flat_map(|pair| {
            let mut found: SmallVec<[Cow<'a, [u8]>; 2]> = SmallVec::new();
            let mut add = |pair: &'a str| {
                let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
                if self.is(name) {
                    found.push(form_bytes(value));
                }
            };
            add(pair);
            if pair.contains(';') {
                pair.split(';').filter(|part| !part.is_empty()).for_each(add);
            }
            found
        })
    }
}

/// A name that begins with brackets, and what follows them: qs, which Express uses, reads `[user]`
/// as `user`. Brackets in brackets are none.
fn bracketed(name: &[u8]) -> Option<(&[u8], &[u8])> {
    let rest = name.strip_prefix(b"[")?;
    let end = rest.iter().position(|byte| matches!(byte, b'[' | b']'))?;
    let (base, rest) = rest.split_at(end);
    Some((base, rest.strip_prefix(b"]")?))
}

/// The bytes of an encoded name or value: `+` is a blank.
fn form_bytes(encoded: &str) -> Cow<'_, [u8]> {
    if encoded.contains('+') {
        return Cow::Owned(decode(encoded.replace('+', " ").as_bytes()).into_vec());
    }
    decoded(encoded.as_bytes())
}

fn folded(name: &[u8]) -> SmallVec<[u8; 64]> {
    let fold = |byte: &u8| match byte {
        b' ' | b'.' | b'[' => b'_',
        byte => byte.to_ascii_lowercase(),
    };
    name.iter().map(fold).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(name: &str, text: &str) -> Vec<String> {
        let name = FormName::new(name);
        let found: Vec<String> =
            name.values(text).map(|value| String::from_utf8_lossy(&value).into_owned()).collect();
        found
    }

    #[test]
    fn a_parameter_is_found_under_every_name_that_an_upstream_may_read() {
        for spelling in [
            "username",
            "%75sername",
            "+username",
            "%20username",
            "username%00x",
            "Username",
            "username[]",
            "username[0]",
            "username%5Bx%5D",
            "username[",
            "username[x",
            "[username]",
            "[username][x]",
            "%5busername%5D",
        ] {
            assert_eq!(values("username", &format!("a=1&{spelling}=v")), ["v"], "{spelling}");
        }
        for spelling in
            ["user.name", "user+name", "user_name", "user[name", "USER.NAME", "+user name"]
        {
            assert_eq!(values("user_name", &format!("{spelling}=v")), ["v"], "{spelling}");
            assert_eq!(values("user.name", &format!("{spelling}=v")), ["v"], "{spelling}");
        }
        for other in ["usernam", "username2", "user-name", "xusername", "username_"] {
            assert!(values("username", &format!("{other}=v")).is_empty(), "{other}");
        }
    }

    #[test]
    fn an_entry_of_an_array_is_distinguished_from_its_neighbours_and_not_from_the_whole() {
        assert_eq!(values("user[name]", "user[name]=a&user[mail]=b"), ["a"]);
        assert_eq!(values("user[name]", "user[name]=a&user=b"), ["a", "b"]);
        assert_eq!(
            values("user[name]", "user[name][x]=a&user[]=b&USER[Name]junk=c"),
            ["a", "b", "c"]
        );
        assert_eq!(values("user", "user[mail]=b"), ["b"]);
    }

    #[test]
    fn names_that_are_one_to_an_upstream_are_repeated() {
        assert_eq!(values("username", "username=victim&+username=me"), ["victim", "me"]);
        assert_eq!(values("query", "query={a}&Query={b}"), ["{a}", "{b}"]);
        assert_eq!(values("q", "q=a;b"), ["a;b", "a"], "some split at semicolons");
        assert_eq!(values("q", "x=a;q=b"), ["b"]);
        assert_eq!(values("q", "x=a%3Bq=b"), Vec::<String>::new());
    }

    #[test]
    fn brackets_in_brackets_take_no_longer_than_other_names() {
        for (open, close) in [("[", "]"), ("%5B", "%5d"), ("a[", "]")] {
            let name = format!("{}x{}", open.repeat(500_000), close.repeat(500_000));
            assert!(values("user", &format!("{name}=v")).is_empty());
        }
    }

    #[test]
    fn values_are_decoded() {
        assert_eq!(values("q", "q=a+b%26c&q&q=%zz"), ["a b&c", "", "%zz"]);
    }
}
