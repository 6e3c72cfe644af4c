//! The fifth phase: what the client gets.
//!
//! `head` adds what every reply shows, with `fields` for the limits and `cors` for browsers.
//! `refusal` has the reasons for which a request is refused and writes the answer, as a problem
//! document, as the operator's own page (`page`) or as gRPC's trailers (`grpc`). Knows no upstream.

pub(super) mod cors;
pub(super) mod fields;
pub(super) mod grpc;
pub(super) mod head;
pub(super) mod json;
pub(super) mod page;
pub(super) mod refusal;

pub(super) use head::{Interim, add_fields, complete};
