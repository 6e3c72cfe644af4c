//! A request on one line: `GET /search x-api-key: abc from 203.0.113.7`.

use std::net::{IpAddr, Ipv4Addr};

use crate::proxy::trial::TrialRequest;

/// The client of a request that names none, from a block that is reserved for examples (RFC 5737).
const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::new(203, 0, 113, 1));
/// What a request looks like.
const EXPECTED: &str = "a method, a path, header fields and an address, such as \
     'GET /search x-api-key: abc from 203.0.113.7'";

/// Reads method and target, then header fields (`name: value`, a value reaches to the next name)
/// and `from ADDRESS`, in any order.
pub(super) fn parse(line: &str) -> Result<TrialRequest, String> {
    let wrong = |what: &str| format!("found {what} in {line:?}, expected {EXPECTED}");
    let mut words = line.split_whitespace().peekable();
    let method = words.next().ok_or_else(|| wrong("nothing"))?.to_owned();
    // Anything else that may be there is answered, if only with 400.
    let is_target = |target: &&str| {
        target.starts_with('/') || *target == "*" || target.contains("://") || method == "CONNECT"
    };
    if method.starts_with('/') {
        return Err(wrong("no method before the path"));
    }
    let target = words.next().filter(is_target);
    let target = target.ok_or_else(|| wrong("no path that begins with `/`"))?.to_owned();
    let mut request = TrialRequest {
        method,
        target,
        from: CLIENT,
        headers: Vec::new(),
        body: Vec::new(),
        listener: None,
    };
    while let Some(word) = words.next() {
        if word == "from" {
            let address = words.next().unwrap_or_default();
            request.from =
                address.parse().map_err(|_| wrong(&format!("the address {address:?}")))?;
        } else if let Some(name) = word.strip_suffix(':') {
            request.headers.push((name.to_owned(), String::new()));
        } else if let Some((_, value)) = request.headers.last_mut() {
            if !value.is_empty() {
                value.push(' ');
            }
            value.push_str(word);
        } else {
            return Err(wrong(&format!("{word:?}")));
        }
    }
    Ok(request)
}

/// Reads `NAME: VALUE`, as `curl --header` takes it.
pub(super) fn header(line: &str) -> Result<(String, String), String> {
    let field = line.split_once(':').filter(|(name, _)| !name.is_empty());
    let (name, value) = field.ok_or("expected a name, a colon and a value")?;
    Ok((name.to_owned(), value.trim().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_request() {
        let read =
            parse("GET /a?b=1 x-api-key: abc authorization: Bearer x:y a: b from ::1").unwrap();
        let headers: Vec<_> =
            read.headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        assert_eq!(headers, [("x-api-key", "abc"), ("authorization", "Bearer x:y"), ("a", "b")]);
        assert_eq!((&*read.method, &*read.target), ("GET", "/a?b=1"));
        assert_eq!(read.from, "::1".parse::<IpAddr>().unwrap());
        for wrong in ["", "GET", "GET a", "GET / abc", "GET / from", "GET / from nowhere"] {
            assert!(parse(wrong).unwrap_err().contains("expected"), "{wrong}");
        }
    }

    #[test]
    fn a_field_of_its_own_may_have_any_value() {
        let field = |name: &str, value: &str| Ok((name.to_owned(), value.to_owned()));
        assert_eq!(header("x-note:  to: me, at: once "), field("x-note", "to: me, at: once"));
        assert_eq!(header("x-empty:"), field("x-empty", ""));
        for wrong in ["", "x-api-key", ": value"] {
            assert!(header(wrong).is_err(), "{wrong}");
        }
    }
}
