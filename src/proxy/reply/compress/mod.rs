//! Compresses replies that the upstream sent plain, for clients that say that they can read that.
//! Knows no policy and no limit.
//!
//! `accept` reads what a client can decode, `media` which types are compressed, `head` what changes
//! in a reply's head, `encoder` is the compression itself, and `body` runs it over a body that
//! streams.

mod accept;
mod body;
mod encoder;
mod head;
mod media;

use http::StatusCode;

use self::encoder::Encoder;
use self::media::MediaPattern;
use crate::proxy::settings::{self, ContentCoding};
use crate::telemetry::SettingError;
use crate::wire::{Body, Fields, Known, Response};

/// A route's checked rules.
#[derive(Debug)]
pub(in crate::proxy) struct Compress {
    settings: settings::Compress,
    types: Vec<MediaPattern>,
}

/// What is kept of a request's head for the compression of its reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::proxy) struct Offer {
    /// The coding that the client and the route agree on.
    coding: Option<ContentCoding>,
    /// The client asks whether its copy is current, which has a weak validator.
    has_weak: bool,
}

/// The compression of one reply, whose head has been changed for it.
pub(in crate::proxy) struct Compression(Encoder);

impl Compress {
    /// Checks what is written under the setting `at`.
    pub(in crate::proxy) fn build(
        written: &settings::Compress,
        at: &str,
        errors: &mut Vec<SettingError>,
    ) -> Self {
        let types = written.types.iter().enumerate().filter_map(|(index, text)| {
            let pattern = MediaPattern::read(text);
            if pattern.is_none() {
                errors.push(SettingError::new(
                    format!("{at}.types[{index}]"),
                    format!("{:?}", text.chars().take(80).collect::<String>()),
                    "a media type without parameters: \"application/json\", \"text/*\" or \
                     \"application/*+json\"",
                ));
            }
            pattern
        });
        Self { types: types.collect(), settings: written.clone() }
    }

    /// What a request with these fields lets its reply be compressed with. Where memory is short,
    /// nothing: a compressor takes hundreds of kilobytes.
    pub(in crate::proxy) fn offer(&self, fields: &Fields, memory_is_short: bool) -> Offer {
        let coding = if memory_is_short { None } else { accept::choose(&self.settings, fields) };
        Offer { coding, has_weak: head::has_weak_validator(fields) }
    }

    /// Changes the head of a reply as far as the client's offer and the route ask for it. Returns
    /// the compression of its body, if it has one to compress. A reply to `HEAD` gets the head that
    /// `GET` would have got.
    pub(in crate::proxy) fn begin(
        &self,
        is_head: bool,
        offer: Offer,
        reply: &mut Response,
    ) -> Option<Compression> {
        if reply.status == StatusCode::NOT_MODIFIED {
            head::not_modified(&mut reply.fields, offer.has_weak);
            return None;
        }
        let length = if is_head { None } else { reply.body.length() };
        let length = length.or_else(|| head::declared_length(&reply.fields));
        let is_long = length.is_none_or(|bytes| bytes >= self.settings.min_bytes.max(1));
        if !is_long
            || !head::may_be_encoded(reply.status, &reply.fields)
            || !self.is_of_types(reply)
        {
            return None;
        }
        head::vary(&mut reply.fields);
        let coding = offer.coding?;
        let encoder = match is_head {
            true => None,
            false => Some(Encoder::new(coding, self.settings.level, length)?),
        };
        head::encode(&mut reply.fields, coding);
        encoder.map(Compression)
    }

    fn is_of_types(&self, reply: &Response) -> bool {
        let Some(of) = reply.fields.get(Known::ContentType) else { return false };
        let of = media::essence(of);
        // gRPC compresses its messages itself, and has its own fields for that.
        !of.starts_with(b"application/grpc") && self.types.iter().any(|known| known.matches(&of))
    }
}

impl Compression {
    /// The compressed body.
    pub(in crate::proxy) fn of(self, body: Body) -> Body {
        body::CompressedBody::of(body, self.0)
    }
}

#[cfg(test)]
mod tests;
