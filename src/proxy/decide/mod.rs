//! The third phase: whether a request may pass, and the settling of what was taken for it.
//!
//! `content` reads a body that the policy looks into, `facts` gathers what the policy reads, and
//! `admit` asks it (Wasm) and then the limits that it named (Lua). After it, the decision, its
//! outcome and the grant are known. At the request's end `settle` gives back or charges, with what
//! `usage` read from the reply; `cut` ends a reply that uses more than can be taken. Knows no
//! connection, and nothing of how a refusal reads to a client.

pub(super) mod admit;
pub(super) mod content;
pub(super) mod cut;
pub(super) mod facts;
pub(super) mod keys;
pub(super) mod settle;
pub(super) mod usage;
