//! What upstreams read as one value: the forms in which Weir compares what a client sent, and what
//! has no one meaning.
//!
//! A limit counts by a value, and the upstream acts on the value that it reads. If two spellings
//! are one value upstream and two keys here, whoever finds the second spelling has a second
//! allowance. So each kind of value has one form here that is the same for all its spellings. A
//! value with several readings is several values, like a field that was sent twice: policies refuse
//! it, or charge what is stricter. docs/spellings.md has the table, with the upstreams that read
//! each spelling so; `tests/interop/oracle` asks real upstreams.
//!
//! Paths have a module of their own, `proxy::path`, and the names in JSON documents are compared
//! in `inspect`. Knows no request, route or policy.

mod bearer;
mod cookie;
mod escapes;
mod field;
mod form;

pub use bearer::{Bearer, bearer};
pub use cookie::CookieName;
pub use escapes::decode;
pub use field::{is_ambiguous, is_same, trimmed};
pub use form::FormName;
