//! Policies: those that ship, what they are shown of a request, and guests that misbehave.

mod ban;
mod bindings;
mod contents;
mod damaged;
mod declared;
pub mod examples;
mod guests;
pub mod jwt_claim;
mod login_guard;
mod mcp;
mod sandbox;
mod shipped;
