//! The fifth phase: what the client gets.
//!
//! `head` adds what every reply shows, with `fields` for the limits, after the route's own changes
//! (`extras`). `compress` compresses what the upstream sent plain. `problem` writes the answer to a
//! request that is refused: a problem document, the operator's own page (`page`) or gRPC's trailers
//! (`grpc`). `decision` is what somebody else's client is told, and `rls`, `quota`, `api` and
//! `check` write it down for those who call for decisions.

pub(super) mod answer;
pub(super) mod api;
pub(super) mod check;
pub(super) mod compress;
pub(super) mod decision;
pub(super) mod extras;
pub(super) mod fields;
pub(super) mod grpc;
pub(super) mod head;
pub(super) mod json;
mod metadata;
pub(super) mod page;
pub(super) mod problem;
pub(super) mod quota;
pub(super) mod rls;

pub(super) use answer::{Answer, CLIENT_GONE, ReplyTo, SHUTDOWN, client_gone};
pub(super) use head::{add_fields, admit, complete, redirect, respond};
