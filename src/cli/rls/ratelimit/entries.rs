//! The entries of a descriptor: their patterns, which of several is followed, and which entries a
//! counter is of.

use crate::cli::written::string;

/// Maximum length of a key's template: the policy's.
const KEY_BYTES_MAX: usize = 1024;

/// An entry, as it is written.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) key: String,
    /// None: any.
    pub(super) value: Option<String>,
    /// All values of the pattern have one counter.
    pub(super) is_shared: bool,
}

impl Entry {
    /// As a rule of the policy names it.
    pub(super) fn written(&self) -> String {
        match &self.value {
            Some(value) => format!("{}={value}", self.key),
            None => self.key.clone(),
        }
    }

    pub(super) fn is_pattern(&self) -> bool {
        self.value.as_ref().is_some_and(|value| value.contains('*'))
    }
}

/// The settings of a limit that counts by the entries that are not shared; nothing if none is, so
/// that it counts by the whole descriptor.
///
/// # Errors
/// Why there is no such key.
pub(super) fn shared_key(entries: &[Entry]) -> Result<String, String> {
    if !entries.iter().any(|entry| entry.is_shared) {
        return Ok(String::new());
    }
    let mut parts = Vec::new();
    for Entry { key, value, is_shared } in entries {
        let is_exact = value.as_ref().is_some_and(|value| !value.contains('*'));
        if *is_shared || is_exact {
            continue;
        }
        if entries.iter().filter(|other| other.key == *key).count() > 1 {
            return Err(format!(
                "found several entries with the key {key:?}, of which one is not shared: \
                 a counter for each of its values can't be named"
            ));
        }
        if key.contains(['{', '}']) {
            return Err(format!("found the key {key:?}, expected one without braces"));
        }
        parts.push(format!("{{rls.entry.{key}}}"));
    }
    let key = parts.join("/");
    if key.len() > KEY_BYTES_MAX {
        return Err(format!("found keys of more than {KEY_BYTES_MAX} bytes"));
    }
    Ok(match key.as_str() {
        "" => ", key = \"all\"".to_owned(),
        // The entries are there, but may be empty.
        key => format!(", key = {}, missing = \"shared\"", string(key)),
    })
}

/// The values of entries with one key after the same entries.
#[derive(Clone, Debug, Default)]
pub(super) struct Siblings {
    /// With patterns, in their order.
    values: Vec<String>,
    has_any: bool,
}

impl Siblings {
    /// Adds a value, or any. Whether it is new, and which is never reached with it: that of
    /// patterns the first one is followed, and the key alone after all of them.
    pub(super) fn add(&mut self, value: Option<&str>) -> (bool, Option<String>) {
        let patterns = || self.values.iter().filter(|value| value.contains('*'));
        let Some(value) = value else {
            let all = patterns().find(|pattern| covers(pattern, "*")).cloned();
            let is_new = !std::mem::replace(&mut self.has_any, true);
            return (is_new, all.map(|pattern| unreached("the key without a value", &pattern)));
        };
        let is_new = self.values.iter().all(|known| known != value);
        let mut found = None;
        if is_new && value.contains('*') {
            let earlier = patterns().find(|pattern| covers(pattern, value));
            found = earlier.map(|pattern| unreached(&format!("{value:?}"), pattern));
            if found.is_none() && self.has_any && covers(value, "*") {
                found = Some(unreached("the key without a value", value));
            }
        }
        self.values.push(value.to_owned());
        (is_new, found)
    }
}

fn unreached(which: &str, by: &str) -> String {
    format!("{which} is never reached, since {by:?} goes before it and has all of its values")
}

/// Whether all values of a pattern are of the first one, too. A `*` of the second stands for any
/// text, so only a `*` of the first can have it.
fn covers(pattern: &str, other: &str) -> bool {
    let mut parts = pattern.split('*');
    let start = parts.next().unwrap_or_default();
    let mut middle: Vec<&str> = parts.collect();
    let end = middle.pop().unwrap_or_default();
    let rest = other.strip_prefix(start).and_then(|rest| rest.strip_suffix(end));
    let Some(mut rest) = rest else { return false };
    for part in middle {
        let Some((_, after)) = rest.split_once(part) else { return false };
        rest = after;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_covers_those_with_no_other_values() {
        for (pattern, other, expected) in [
            ("/v1/*", "/v1/users/*", true),
            ("/v1/users/*", "/v1/*", false),
            ("*", "*", true),
            ("*", "a*b", true),
            ("**", "*", true),
            ("a*", "*", false),
            ("*/users/*", "/v1/users/*/photos", true),
            ("*/users/*", "/v1/use*rs/", false),
            ("a*a", "a", false),
            ("a*b", "a*c*b", true),
            ("a*c*b", "a*b", false),
        ] {
            assert_eq!(covers(pattern, other), expected, "{pattern} {other}");
        }
    }

    #[test]
    fn a_shared_entry_is_in_no_key() {
        let entry = |(key, value, is_shared): (&str, &str, bool)| {
            let value = Some(value.to_owned()).filter(|value| !value.is_empty());
            Entry { key: key.to_owned(), value, is_shared }
        };
        let key = |all: &[(&str, &str, bool)]| {
            shared_key(&all.iter().copied().map(entry).collect::<Vec<_>>())
        };
        let (user, path) = (("user", "", false), ("path", "/f*", true));
        assert_eq!(key(&[user, ("path", "/f*", false)]), Ok(String::new()));
        assert_eq!(key(&[path, ("method", "GET", false)]).unwrap(), ", key = \"all\"");
        let expected = ", key = \"{rls.entry.user}/{rls.entry.kind}\", missing = \"shared\"";
        assert_eq!(key(&[user, path, ("kind", "a*", false)]).unwrap(), expected);
        assert!(key(&[path, ("path", "", false)]).unwrap_err().contains("several entries"));
        assert_eq!(key(&[path, ("path", "x", false)]).unwrap(), ", key = \"all\"");
        assert!(key(&[path, ("a}", "", false)]).unwrap_err().contains("without braces"));
    }
}
