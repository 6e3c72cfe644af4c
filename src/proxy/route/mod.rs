//! The second phase: which route a request takes.
//!
//! After it, the route and the path's parameters are known. `tables` has the routes of each
//! listener, `routes` those of each host, and `trie` finds the most specific of them. Knows hosts,
//! paths and methods, and nothing of what a route does with its requests.

pub(super) mod routes;
pub(super) mod tables;
pub(super) mod trie;
