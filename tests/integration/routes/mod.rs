//! Which route a request gets, what the route does with it, and what clients are told.

pub(crate) mod actions;
mod compression;
mod refusals;
mod replies;
mod spellings;
mod upstreams;
mod values;
mod variants;
