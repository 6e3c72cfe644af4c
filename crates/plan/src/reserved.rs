//! Names of header fields: which are valid, and which neither a policy nor a route may set. Knows
//! no HTTP, only names. The list is in the SDK, which refuses these fields when a policy is
//! configured.

const LIST: &str = include_str!("../../../wasm-sdk/reserved-fields.txt");

/// Whether `text` is a token (RFC 9110, section 5.6.2): what a field's name, or a cookie's, may be.
#[must_use]
pub fn is_token(text: &str) -> bool {
    let tchar = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !text.is_empty() && text.bytes().all(tchar)
}

/// Whether the field `name`, in any letter case, is reserved: it frames or routes a message,
/// belongs to one connection, or is set by the proxy.
#[must_use]
pub fn is_reserved_field(name: &str) -> bool {
    reserved_fields().any(|reserved| reserved.eq_ignore_ascii_case(name))
}

/// All reserved names, in lower case.
pub fn reserved_fields() -> impl Iterator<Item = &'static str> {
    LIST.lines().filter(|line| !line.is_empty() && !line.starts_with('#'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_fields_match_in_any_case() {
        for name in ["Host", "expect", "PROXY-AUTHORIZATION", "weir-degraded", "transfer-encoding"]
        {
            assert!(is_reserved_field(name), "{name}");
        }
        for name in ["", "#", "x-plan", "hosts", "content-type"] {
            assert!(!is_reserved_field(name), "{name}");
        }
        assert!(reserved_fields().all(|name| {
            name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-' || byte == b'2')
        }));
    }
}
