//! Request ids: one on every request that is forwarded, every reply and every log line. Knows nothing else of a request.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};

/// `X-Request-Id`.
pub(super) static REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Bytes of an id that is taken over, at most.
const ID_BYTES_MAX: usize = 128;

/// The id that a trusted proxy gave, where it is visible ASCII and not long; else a new one of 128 random bits. They tell requests
/// apart and are no secret: a fast generator will do.
pub(super) fn of(headers: &HeaderMap, trusted: bool) -> HeaderValue {
    let given = if trusted { headers.get(&REQUEST_ID) } else { None };
    given.filter(|id| is_sane(id.as_bytes())).cloned().unwrap_or_else(fresh)
}

fn is_sane(id: &[u8]) -> bool {
    (1..=ID_BYTES_MAX).contains(&id.len()) && id.iter().all(u8::is_ascii_graphic)
}

fn fresh() -> HeaderValue {
    let random = (u128::from(fastrand::u64(..)) << 64) | u128::from(fastrand::u64(..));
    let mut text = [0; 32];
    for (digits, byte) in text.chunks_exact_mut(2).zip(random.to_le_bytes()) {
        digits.copy_from_slice(&[digit(byte >> 4), digit(byte & 15)]);
    }
    // An owner carries its count with it: clones into fields cost no allocation.
    HeaderValue::from_maybe_shared(Bytes::from_owner(text)).unwrap_or_else(|_| HeaderValue::from_static("unknown"))
}

fn digit(value: u8) -> u8 {
    if value < 10 { b'0' + value } else { b'a' + value - 10 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(id: &str, trusted: bool) -> HeaderValue {
        let mut headers = HeaderMap::new();
        headers.insert(&REQUEST_ID, id.parse().unwrap());
        of(&headers, trusted)
    }

    #[test]
    fn a_trusted_sane_id_is_kept_and_any_other_is_made_new() {
        assert_eq!(given("abc-123", true), "abc-123");
        for (id, trusted) in [("abc-123", false), ("a b", true), ("", true), ("\u{e9}", true), (&*"x".repeat(129), true)] {
            let id = given(id, trusted);
            assert!(id.len() == 32 && id.as_bytes().iter().all(u8::is_ascii_hexdigit), "{id:?}");
        }
        assert_ne!(fresh(), fresh());
    }
}
