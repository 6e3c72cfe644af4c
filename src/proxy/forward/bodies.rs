//! What a decision changes in a request for the sake of bodies: the fields of one that was edited,
//! and a reply that can be read. Knows no reply.

use crate::proxy::decide::Decided;
use crate::proxy::decide::policy_fields;
use crate::spelling;
use crate::wire::{Body, Fields, Known};

/// The fields with a digest of the content, or of what it is a part of (RFC 9530, RFC 3230, RFC
/// 1864).
const DIGESTS: [&str; 4] = ["content-digest", "repr-digest", "digest", "content-md5"];

/// Whether an upstream may read this name as that of a field with a digest of the content.
pub(in crate::proxy) fn is_digest(name: &[u8]) -> bool {
    DIGESTS.iter().any(|digest| spelling::is_same(digest.as_bytes(), name))
}

/// Makes the fields fit an edited body. Digests of the content no longer hold, whoever set them.
/// `ambiguous`: fields may have names that an upstream reads as others.
pub(in crate::proxy) fn describe_edited(fields: &mut Fields, body: &Body, ambiguous: bool) {
    for name in DIGESTS {
        fields.remove(name);
    }
    if ambiguous {
        policy_fields::remove_spelled_otherwise(fields, is_digest);
    }
    if let Some(length) = body.length() {
        fields.set(Known::ContentLength, itoa::Buffer::new().format(length));
    }
}

/// Asks for a reply that can be read, if the decision has meters.
pub(in crate::proxy) fn ask_plain(decided: &Decided, fields: &mut Fields) {
    if decided.bodies().is_some_and(|bodies| !bodies.meters.list().is_empty()) {
        fields.set(Known::AcceptEncoding, "identity");
    }
}
