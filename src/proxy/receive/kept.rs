//! What an access line shows of a request's head, kept until the request's end. There is one only
//! where the operator has chosen such a field, or one of its sending, so that other requests hold a
//! pointer's place for it.

use std::borrow::Cow;
use std::io::Write as _;

use http::Version;
use smallvec::SmallVec;

use super::call::noted::NotedCall;
use super::target;
use super::text::latin1;
use crate::limit::Limiter;
use crate::listen::Peer;
use crate::telemetry::{AccessField, AccessFields, AccessHeaders};
use crate::wire::{Fields, Known, Request};

/// Maximum bytes that are kept of one value. A replay of the log takes a header field that is as
/// long as this for one that was cut.
const VALUE_BYTES_MAX: usize = 1_024;
/// Maximum values that are kept of one chosen header field. A replay takes a field with as many for
/// one of which values are missing.
const HEADER_VALUES_MAX: usize = 3;
/// Maximum bytes that are kept of all chosen header fields together.
const HEADERS_BYTES_MAX: usize = 4 << 10;

/// What was kept.
#[derive(Debug)]
pub(in crate::proxy) struct KeptHead {
    /// The values of the head, one after another.
    texts: Vec<u8>,
    /// Whose they are, and where each of them ends.
    ends: SmallVec<[(AccessField, usize); 4]>,
    /// The same for the chosen header fields: the index of the field, and where the value ends.
    header_ends: SmallVec<[(usize, usize); 2]>,
    /// Which of the chosen header fields are known, a bit for each.
    header_known: u16,
    pub(in crate::proxy) protocol: Option<&'static str>,
    pub(in crate::proxy) tls_version: Option<&'static str>,
    /// If it is a call for a decision.
    pub(in crate::proxy) call: Option<Box<NotedCall>>,
}

impl KeptHead {
    /// What lines with these fields need. `None` if they need nothing.
    pub(in crate::proxy) fn of(
        fields: AccessFields,
        request: &Request,
        peer: &Peer,
    ) -> Option<Box<Self>> {
        if !fields.meets(AccessFields::OF_HEAD) && !fields.meets(AccessFields::OF_SENDING) {
            return None;
        }
        let protocol = match request.version {
            Version::HTTP_10 => "HTTP/1.0",
            Version::HTTP_11 => "HTTP/1.1",
            _ => "HTTP/2",
        };
        let mut kept = Box::new(Self {
            texts: Vec::new(),
            ends: SmallVec::new(),
            header_ends: SmallVec::new(),
            header_known: 0,
            protocol: fields.has(AccessField::Protocol).then_some(protocol),
            tls_version: peer.tls_version.filter(|_| fields.has(AccessField::TlsVersion)),
            call: None,
        });
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

    /// What a line shows of a call, of whose head it shows nothing.
    pub(in crate::proxy) fn of_call() -> Box<Self> {
        Box::new(Self {
            texts: Vec::new(),
            ends: SmallVec::new(),
            header_ends: SmallVec::new(),
            header_known: 0,
            protocol: None,
            tls_version: None,
            call: None,
        })
    }

    /// Keeps the chosen header fields, from a head as the policy sees it: fields that `Connection`
    /// names, for one, are gone. A digest is that of the whole value, so that it is the key's where
    /// the value is the key. `config` refuses digests that anybody can compute. An empty value
    /// stays empty: to a policy it is one that was not sent.
    #[inline(never)]
    pub(in crate::proxy) fn keep_headers(
        &mut self,
        headers: &AccessHeaders,
        request: &Fields,
        limiter: &Limiter,
    ) {
        let all = self.texts.len();
        for (index, name) in headers.names().enumerate() {
            let (bytes, values) = (self.texts.len(), self.header_ends.len());
            for value in request.get_all(name).take(HEADER_VALUES_MAX) {
                if headers.as_text || value.is_empty() {
                    self.texts.extend(value.iter().take(VALUE_BYTES_MAX));
                } else {
                    let digest = limiter.digest(&latin1(value), None);
                    // Writing to a `Vec` can't fail.
                    let _ = write!(self.texts, "digest:{digest}");
                }
                self.header_ends.push((index, self.texts.len()));
            }
            if self.texts.len() - all > HEADERS_BYTES_MAX {
                self.texts.truncate(bytes);
                self.header_ends.truncate(values);
            } else {
                self.header_known |= 1 << index;
            }
        }
    }

    /// The values of the chosen header field at `index`: none if it was not sent. `None` if it is
    /// not known.
    pub(in crate::proxy) fn header(&self, index: usize) -> Option<SmallVec<[Cow<'_, str>; 1]>> {
        if self.header_known & (1 << index) == 0 {
            return None;
        }
        let mut begin = self.ends.last().map_or(0, |(_, end)| *end);
        let mut values = SmallVec::new();
        for (of, end) in &self.header_ends {
            if *of == index {
                values.extend(self.texts.get(begin..*end).map(String::from_utf8_lossy));
            }
            begin = *end;
        }
        Some(values)
    }

    /// The value of a field of the head. It may be any bytes, and may have been cut within a
    /// character.
    pub(in crate::proxy) fn text(&self, wanted: AccessField) -> Option<Cow<'_, str>> {
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
