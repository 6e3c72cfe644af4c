//! What an access line shows of a request's head and of its sending, kept until the request's end.
//! There is one only where the operator has chosen such a field, or where the request is traced, so
//! that other requests hold a pointer's place for it.

use std::borrow::Cow;

use http::Version;
use smallvec::SmallVec;

use super::target;
use crate::listen::Peer;
use crate::telemetry::{AccessField, AccessFields};
use crate::upstream::Reached;
use crate::wire::{Known, Request};

/// Maximum bytes that are kept of one value.
const VALUE_BYTES_MAX: usize = 1_024;

/// What was kept.
#[derive(Debug)]
pub(super) struct Kept {
    /// The values of the head, one behind another.
    texts: Vec<u8>,
    /// Whose they are, and where each of them ends.
    ends: SmallVec<[(AccessField, usize); 4]>,
    pub(super) protocol: Option<&'static str>,
    pub(super) tls_version: Option<&'static str>,
    /// Where the request was sent.
    pub(super) reached: Reached,
}

impl Kept {
    /// What `fields` need. `None` if they need nothing.
    pub(super) fn of(fields: AccessFields, request: &Request, peer: &Peer) -> Option<Box<Self>> {
        if !fields.meets(AccessFields::OF_HEAD) && !fields.meets(AccessFields::OF_SENDING) {
            return None;
        }
        let protocol = match request.version {
            Version::HTTP_10 => "HTTP/1.0",
            Version::HTTP_11 => "HTTP/1.1",
            _ => "HTTP/2",
        };
        let mut kept = Self::nothing();
        kept.protocol = fields.has(AccessField::Protocol).then_some(protocol);
        kept.tls_version = peer.tls_version.filter(|_| fields.has(AccessField::TlsVersion));
        let field = |known: Known| request.fields.get(known);
        let authority = request.authority().map(str::as_bytes);
        let query = target::split(request.target()).1.map(str::as_bytes);
        let values = [
            (AccessField::Host, authority.or_else(|| field(Known::Host))),
            (AccessField::Query, query),
            (AccessField::Referer, request.fields.get("referer")),
            (AccessField::UserAgent, field(Known::UserAgent)),
        ];
        for (field, value) in values {
            if let Some(value) = value.filter(|_| fields.has(field)) {
                kept.texts.extend(value.iter().take(VALUE_BYTES_MAX));
                let end = kept.texts.len();
                kept.ends.push((field, end));
            }
        }
        Some(kept)
    }

    /// Where the request is sent, and nothing of its head.
    pub(super) fn nothing() -> Box<Self> {
        Box::new(Self {
            texts: Vec::new(),
            ends: SmallVec::new(),
            protocol: None,
            tls_version: None,
            reached: Reached::default(),
        })
    }

    /// The value of a field of the head. It may be any bytes, and may have been cut within a
    /// character.
    pub(super) fn text(&self, wanted: AccessField) -> Option<Cow<'_, str>> {
        let mut begin = 0;
        for (field, end) in &self.ends {
            if *field == wanted {
                return self.texts.get(begin..*end).map(String::from_utf8_lossy);
            }
            begin = *end;
        }
        None
    }
}
