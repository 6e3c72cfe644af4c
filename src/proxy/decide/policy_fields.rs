//! The fields that a policy sets on a request or on a reply: checked once, when it has decided.
//! Knows no policy.

use http::header::{HeaderName, HeaderValue, SET_COOKIE, VARY};

use crate::plan::is_reserved_field;
use crate::spelling;
use crate::wire::{Fields, Known};

/// Checked fields that a policy sets.
pub(in crate::proxy) type PolicyFields = Vec<(HeaderName, HeaderValue)>;

/// Checks the fields that a policy sets: Latin-1 as in facts, no hop-by-hop field, no framing, no
/// Host.
///
/// # Errors
/// The name of the first field that can't be set.
pub(in crate::proxy) fn parse(wanted: &[(String, String)]) -> Result<PolicyFields, &str> {
    let mut fields = PolicyFields::new();
    for (name, value) in wanted {
        let header = HeaderName::from_bytes(name.as_bytes())
            .ok()
            .filter(|header| !is_reserved_field(header.as_str()));
        let bytes: Option<Vec<u8>> =
            value.chars().map(|point| u8::try_from(u32::from(point)).ok()).collect();
        match (
            header,
            bytes.and_then(|bytes| HeaderValue::from_maybe_shared(bytes::Bytes::from(bytes)).ok()),
        ) {
            (Some(header), Some(value)) => fields.push((header, value)),
            _ => return Err(name),
        }
    }
    Ok(fields)
}

/// Sets a policy's fields. The first of a name replaces what was there, and further ones are added
/// to it. Cookies and `Vary` are only ever added to. `ambiguous`: `fields` may have names that an
/// upstream reads as others.
pub(in crate::proxy) fn set(
    fields: &mut Fields,
    wanted: &[(HeaderName, HeaderValue)],
    ambiguous: bool,
) {
    if ambiguous && !wanted.is_empty() {
        remove_spelled_otherwise(fields, |name| {
            wanted.iter().any(|(own, _)| spelling::is_same(own.as_str().as_bytes(), name))
        });
    }
    for (index, (name, value)) in wanted.iter().enumerate() {
        let grows = *name == SET_COOKIE
            || *name == VARY
            || wanted.iter().take(index).any(|(earlier, _)| earlier == name);
        if grows {
            fields.append(name, value);
        } else {
            fields.set(name, value);
        }
    }
}

/// Removes the fields with ambiguous names for which `is_same` says that an upstream may read them
/// as one that is removed or set.
pub(in crate::proxy) fn remove_spelled_otherwise(
    fields: &mut Fields,
    is_same: impl Fn(&[u8]) -> bool,
) {
    if fields.present().has(Known::Other) {
        fields.retain(|known, name, _| {
            known != Known::Other || !spelling::is_ambiguous(name) || !is_same(name)
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_sets_no_framing_and_nothing_that_is_no_field() {
        for (name, value) in [
            ("host", "a"),
            ("Content-Length", "1"),
            ("connection", "x"),
            ("Expect", "x"),
            ("weir-degraded", "x"),
            ("a b", "x"),
            ("x", "a\r\nb"),
            ("x", "\u{20ac}"),
        ] {
            assert_eq!(parse(&[(name.into(), value.into())]).map(|_| ()), Err(name));
        }
    }

    #[test]
    fn cookies_only_grow() {
        let mut fields = Fields::new();
        fields.append(Known::SetCookie, "a=1");
        set(&mut fields, &parse(&[("set-cookie".into(), "b=2".into())]).unwrap(), false);
        assert_eq!(fields.get_all(Known::SetCookie).count(), 2);
    }
}
