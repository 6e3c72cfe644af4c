//! Parses the query of `/counters`. Knows nothing of counters.

/// Bytes of one parameter, at most: the bound of a key.
const PART_BYTES_MAX: usize = 4096;

/// Which counters, as an operator names them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CounterQuery {
    /// The policy's name in the configuration.
    pub policy: String,
    /// The limit's name.
    pub limit: String,
    /// The key, as the policy returns it.
    pub key: String,
    /// The tag, where the policy returns one.
    pub tag: Option<String>,
    /// The route, where counters belong to routes.
    pub route: Option<String>,
}

impl CounterQuery {
    /// Reads `policy=..&limit=..&key=..[&tag=..][&route=..]`, percent-encoded.
    pub(super) fn parse(query: &str) -> Result<Self, String> {
        let mut parts = [const { None }; 5];
        const NAMES: [&str; 5] = ["policy", "limit", "key", "tag", "route"];
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let index = NAMES.iter().position(|known| *known == name);
            let slot = index.and_then(|index| parts.get_mut(index));
            let Some(slot) = slot else {
                return Err(format!("found {name:?}, expected {}", NAMES.join(", ")));
            };
            let value = decoded(value).ok_or_else(|| {
                format!("{name}: found {value:?}, expected percent-encoded UTF-8")
            })?;
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
        let [policy, limit, key, tag, route] = parts;
        let needed = |part: Option<String>, name| {
            part.ok_or_else(|| format!("found no {name}, expected policy, limit and key"))
        };
        Ok(Self {
            policy: needed(policy, "policy")?,
            limit: needed(limit, "limit")?,
            key: needed(key, "key")?,
            tag,
            route,
        })
    }
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
        assert_eq!(
            (query.key.as_str(), query.tag.as_deref(), query.route.as_deref()),
            ("{x}+\u{20ac}&", Some(""), Some("r"))
        );
        let long = format!("policy=p&limit=l&key={}", "k".repeat(4097));
        for (wrong, says) in [
            ("", "no policy"),
            ("policy=p&limit=l", "no key"),
            ("policy=p&limit=l&key=%", "percent-encoded"),
            ("policy=p&limit=l&key=%+1", "percent-encoded"),
            ("policy=p&limit=l&key=%ff", "UTF-8"),
            ("policy=p&limit=l&key=k&key=k", "second time"),
            ("policy=p&limit=l&kye=k", "\"kye\""),
            (long.as_str(), "4097 bytes"),
        ] {
            assert!(CounterQuery::parse(wrong).unwrap_err().contains(says), "{wrong}");
        }
    }
}
