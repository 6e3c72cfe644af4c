//! The fourth phase: an admitted request as the upstream gets it.
//!
//! `head` writes what the upstream is told of the client and what the policy adds, `extras` with
//! `rewrite` and `rules` makes the route's changes, `trailers` keeps them from arriving by another
//! way, `tunnel` asks for another protocol, and `exchange` sends. After it, the head of the reply
//! is known, or why there is none. Knows no limit.

pub(super) mod exchange;
pub(super) mod extras;
pub(super) mod head;
pub(super) mod rewrite;
pub(super) mod rules;
pub(super) mod trailers;
pub(super) mod tunnel;

pub(super) use head::{PolicyFields, policy_fields, prepare, set};
