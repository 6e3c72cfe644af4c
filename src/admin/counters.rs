//! Parses the queries of pages, such as that of `/counters`. Knows nothing of counters.

/// Maximum size of one parameter, in bytes: the bound of a key.
const PART_BYTES_MAX: usize = 4096;

/// The number of keys of each limit that are shown by default, and at most.
const TOP_DEFAULT: usize = 20;
const TOP_MAX: usize = 1_000;

/// Which counters, as an operator names them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CounterQuery {
    /// The policy's name in the configuration.
    pub policy: String,
    /// The limit's name.
    pub limit: String,
    /// The key.
    pub of: KeySelector,
    /// The route, where counters belong to routes.
    pub route: Option<String>,
}

/// How an operator names a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeySelector {
    /// The key's text.
    Key {
        /// The key as the policy returns it.
        key: String,
        /// The tag, where the policy returns one.
        tag: Option<String>,
    },
    /// The key's digest, as `/explain`, `/top` and the access log show it.
    Digest(String),
}

impl CounterQuery {
    /// Reads `policy=..&limit=..&key=..[&tag=..][&route=..]`, percent-encoded; or `digest` in place
    /// of `key` and `tag`.
    pub(super) fn parse(query: &str) -> Result<Self, String> {
        const NAMES: [&str; 6] = ["policy", "limit", "key", "tag", "digest", "route"];
        let [policy, limit, key, tag, digest, route] = parameters(query, NAMES)?;
        let needed = |part: Option<String>, name| {
            part.ok_or_else(|| format!("found no {name}, expected policy, limit and key"))
        };
        let (policy, limit) = (needed(policy, "policy")?, needed(limit, "limit")?);
        let of = match (key, tag, digest) {
            (None, None, Some(digest)) => KeySelector::Digest(digest),
            (_, _, Some(_)) => {
                return Err("found a key or a tag as well as a digest, expected only one of them"
                    .to_owned());
            }
            (key, tag, None) => KeySelector::Key { key: needed(key, "key")?, tag },
        };
        Ok(Self { policy, limit, of, route })
    }
}

/// What an operator wants to see of the keys that use most.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopQuery {
    /// Only limits with this name. None for all.
    pub limit: Option<String>,
    /// Maximum number of keys of each limit.
    pub count: usize,
}

impl TopQuery {
    /// Reads `limit=..&n=..`; both may be missing.
    pub(super) fn parse(query: &str) -> Result<Self, String> {
        let [limit, count] = parameters(query, ["limit", "n"])?;
        let read = |text: String| {
            let number = text.parse().ok().filter(|count| (1..=TOP_MAX).contains(count));
            number.ok_or_else(|| {
                format!("n: found {text:?}, expected a whole number from 1 to {TOP_MAX}")
            })
        };
        Ok(Self { limit, count: count.map_or(Ok(TOP_DEFAULT), read)? })
    }
}

/// The values of `names` in a query, percent-decoded, each at most once.
pub(super) fn parameters<const N: usize>(
    query: &str,
    names: [&str; N],
) -> Result<[Option<String>; N], String> {
    let mut parts = [const { None }; N];
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let index = names.iter().position(|known| *known == name);
        let slot = index.and_then(|index| parts.get_mut(index));
        let Some(slot) = slot else {
            return Err(format!("found {name:?}, expected {}", names.join(", ")));
        };
        let value = decoded(value)
            .ok_or_else(|| format!("{name}: found {value:?}, expected percent-encoded UTF-8"))?;
        if value.len() > PART_BYTES_MAX {
            return Err(format!(
                "{name}: found {} bytes, expected at most {PART_BYTES_MAX}",
                value.len()
            ));
        }
        if slot.replace(value).is_some() {
            return Err(format!("found {name} a second time"));
        }
    }
    Ok(parts)
}

/// Percent-decoding. A plus stays a plus, since keys may contain them.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        if *first != b'%' {
            bytes.push(*first);
            rest = after;
            continue;
        }
        let (digits, after) = after.split_at_checked(2)?;
        let digits = std::str::from_utf8(digits)
            .ok()
            .filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()))?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        rest = after;
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_read_or_says_what_is_wrong_with_it() {
        let query =
            CounterQuery::parse("policy=public&limit=a&key=%7Bx%7D+%E2%82%AC%26&tag=&route=r")
                .unwrap();
        let of = KeySelector::Key { key: "{x}+\u{20ac}&".into(), tag: Some(String::new()) };
        assert_eq!((query.of, query.route.as_deref()), (of, Some("r")));
        let query = CounterQuery::parse("policy=public&limit=a&digest=ab").unwrap();
        assert_eq!(query.of, KeySelector::Digest("ab".into()));
        let long = format!("policy=p&limit=l&key={}", "k".repeat(4097));
        for (wrong, says) in [
            ("", "no policy"),
            ("policy=p&limit=l", "no key"),
            ("policy=p&limit=l&key=%", "percent-encoded"),
            ("policy=p&limit=l&key=%+1", "percent-encoded"),
            ("policy=p&limit=l&key=%ff", "UTF-8"),
            ("policy=p&limit=l&key=k&key=k", "second time"),
            ("policy=p&limit=l&digest=d&tag=t", "as well as a digest"),
            ("policy=p&limit=l&kye=k", "\"kye\""),
            (long.as_str(), "4097 bytes"),
        ] {
            assert!(CounterQuery::parse(wrong).unwrap_err().contains(says), "{wrong}");
        }
    }
}
