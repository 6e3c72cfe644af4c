//! What compression changes in a reply's head, and which heads allow it.

use http::StatusCode;

use crate::proxy::receive::hop;
use crate::proxy::settings::ContentCoding;
use crate::wire::{Fields, Known};

/// What is said of the bytes as they were. RFC 9530 computes `Repr-Digest` over the representation
/// with its coding (appendix A), and `Content-Digest` over what is sent: after a change of the
/// coding, both are wrong, like their predecessors.
pub(super) const DIGESTS: [&str; 4] = ["content-digest", "repr-digest", "digest", "content-md5"];

const WEAK: &[u8] = b"W/";

/// Whether a reply with this head may get a coding: a complete success with content, of which
/// nobody says that its bytes must stay.
pub(super) fn may_be_encoded(status: StatusCode, fields: &Fields) -> bool {
    // 226 applies to what the client has already.
    const OTHER_CONTENT: [StatusCode; 4] = [
        StatusCode::NO_CONTENT,
        StatusCode::RESET_CONTENT,
        StatusCode::PARTIAL_CONTENT,
        StatusCode::IM_USED,
    ];
    let must_stay = || {
        let mut directives = fields.get_all(Known::CacheControl).flat_map(hop::tokens);
        directives.any(|directive| directive.eq_ignore_ascii_case(b"no-transform"))
    };
    status.is_success()
        && !OTHER_CONTENT.contains(&status)
        && !fields.has("content-encoding")
        && !fields.has("content-range")
        && !must_stay()
}

/// The length that the head declares.
pub(super) fn declared_length(fields: &Fields) -> Option<u64> {
    std::str::from_utf8(fields.get(Known::ContentLength)?).ok()?.parse().ok()
}

/// Tells caches that the reply depends on what the client can decode.
pub(super) fn vary(fields: &mut Fields) {
    let names = |name: &[u8]| name == b"*" || name.eq_ignore_ascii_case(b"accept-encoding");
    if fields.get_all(Known::Vary).flat_map(hop::tokens).any(names) {
        return;
    }
    let mut merged = fields.get_all(Known::Vary).fold(Vec::new(), |mut merged, value| {
        merged.extend_from_slice(value);
        merged.extend_from_slice(b", ");
        merged
    });
    merged.extend_from_slice(b"Accept-Encoding");
    fields.set(Known::Vary, merged);
}

/// Changes the head to that of the compressed reply.
pub(super) fn encode(fields: &mut Fields, coding: ContentCoding) {
    fields.remove(Known::ContentLength);
    // A range would be one of the plain bytes.
    fields.remove("accept-ranges");
    for name in DIGESTS {
        fields.remove(name);
    }
    weaken(fields);
    fields.append("content-encoding", coding.name());
}

/// A 304 must have the validator of the reply that the client has. If that was compressed here, it
/// is weak.
pub(super) fn not_modified(fields: &mut Fields, has_weak: bool) {
    if has_weak && weaken(fields) {
        vary(fields);
    }
}

/// Whether a request asks for a reply unless it is one with a weak validator.
pub(super) fn has_weak_validator(fields: &Fields) -> bool {
    fields.get_all("if-none-match").flat_map(hop::tokens).any(|tag| tag.starts_with(WEAK))
}

/// Makes a strong validator weak: the bytes are others than those that the upstream meant (RFC
/// 9110, 8.8.1). Returns whether there was one.
fn weaken(fields: &mut Fields) -> bool {
    let Some(tag) = fields.get(Known::Etag).filter(|tag| tag.starts_with(b"\"")) else {
        return false;
    };
    let weak = [WEAK, tag].concat();
    fields.set(Known::Etag, weak);
    true
}
