//! How long a message's body is, said once and clearly on both sides. Knows nothing of connections.
//!
//! hyper frames a message by its fields and, where they say nothing, by the body. Two cases would go wrong silently: it sends no body with a `GET`
//! whose length is unknown, and it hands on a `Content-Length` that stood beside `Transfer-Encoding`, by which the client's reply would then be cut.

use http::header::{CONTENT_LENGTH, HeaderMap, HeaderValue, TRANSFER_ENCODING};

/// Says that a request's body comes in chunks, where its length is not known.
pub(super) fn announce(headers: &mut HeaderMap, body: &impl http_body::Body) {
    if !body.is_end_stream() && body.size_hint().exact().is_none() && !headers.contains_key(CONTENT_LENGTH) {
        headers.insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
    }
}

/// Whether a reply's fields say one length, in a way that we can undo; what they say twice is left once.
///
/// A coding beside `chunked` changes the bytes, and nobody would tell the client (RFC 9112, 6.1 and 6.3): such a reply can't be passed on.
pub(super) fn is_clear(headers: &mut HeaderMap) -> bool {
    if headers.contains_key(TRANSFER_ENCODING) {
        let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
        let chunked = codings.next().is_some_and(|coding| coding.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked"));
        let only = codings.next().is_none();
        headers.remove(CONTENT_LENGTH);
        return chunked && only;
    }
    let mut lengths = headers.get_all(CONTENT_LENGTH).iter();
    let Some(first) = lengths.next() else { return true };
    if lengths.next().is_none() && is_number(first.as_bytes()) {
        return true;
    }
    // `5, 5` is one length that a proxy before us has joined (RFC 9110, 8.6).
    let mut all =
        headers.get_all(CONTENT_LENGTH).iter().flat_map(|value| value.as_bytes().split(|byte| *byte == b',')).map(<[u8]>::trim_ascii);
    let Some(length) = all.next().filter(|length| is_number(length) && all.all(|other| other == *length)) else { return false };
    let Ok(length) = HeaderValue::from_bytes(length) else { return false };
    headers.insert(CONTENT_LENGTH, length);
    true
}

fn is_number(text: &[u8]) -> bool {
    !text.is_empty() && text.iter().all(u8::is_ascii_digit)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(fields: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(*name, HeaderValue::from_static(value));
        }
        headers
    }

    #[test]
    fn a_reply_says_one_length() {
        for (fields, left) in [
            (&[][..], &[][..]),
            (&[("content-length", "5")], &[("content-length", "5")]),
            (&[("content-length", "5, 5")], &[("content-length", "5")]),
            (&[("content-length", "5"), ("content-length", "5")], &[("content-length", "5")]),
            (&[("transfer-encoding", "Chunked"), ("content-length", "3")], &[("transfer-encoding", "Chunked")]),
        ] {
            let mut found = headers(fields);
            assert!(is_clear(&mut found), "{fields:?}");
            assert_eq!(found, headers(left), "{fields:?}");
        }
    }

    #[test]
    fn what_says_two_lengths_or_a_coding_that_stays_is_not_clear() {
        for fields in [
            &[("content-length", "5, 6")][..],
            &[("content-length", "5"), ("content-length", "6")],
            &[("content-length", "")],
            &[("content-length", "+5")],
            &[("transfer-encoding", "gzip, chunked")],
            &[("transfer-encoding", "gzip")],
            &[("transfer-encoding", "chunked"), ("transfer-encoding", "chunked")],
        ] {
            assert!(!is_clear(&mut headers(fields)), "{fields:?}");
        }
    }
}
