//! The first phase: what arrived, in the one form in which everything after it reads it.
//!
//! After it, a request has one authority and one path (`target`, `path`), its client is known
//! behind trusted proxies (`client`), it has an id (`id`), and the fields that belong to its
//! connection are gone (`hop`). Knows no route, no policy and no upstream.

pub(super) mod client;
pub(super) mod hop;
pub(super) mod id;
pub(super) mod path;
pub(super) mod target;
pub(super) mod text;
