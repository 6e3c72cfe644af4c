//! The header fields that neither a policy nor a route may set. Knows no HTTP: they are names here.
//! The list stands in the SDK, which refuses them when a policy is configured.

const LIST: &str = include_str!("../../wasm-sdk/reserved-fields.txt");

/// Whether `name`, in any case, frames a message, routes it, belongs to one connection or is what
/// the proxy says of itself.
#[must_use]
pub fn is_reserved_field(name: &str) -> bool {
    reserved_fields().any(|reserved| reserved.eq_ignore_ascii_case(name))
}

/// All of them, in lower case.
pub fn reserved_fields() -> impl Iterator<Item = &'static str> {
    LIST.lines().filter(|line| !line.is_empty() && !line.starts_with('#'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_found_in_any_case() {
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
