//! Certificates from an authority that speaks ACME (RFC 8555): ordered, kept in a folder, renewed
//! in time. Knows no listener and no configuration.
//!
//! [`keep`] is the loop for one certificate: `due` says when it is time, `journal` when not yet,
//! `order` goes through one order, with the account that `account` keeps, over the connections of
//! `client`, and `wait`s for the authority. What that asks for meanwhile is in the folder
//! (`folder`), where [`Challenges`] finds it for whoever answers, in this process or in another one
//! that shares the folder.

mod account;
mod authority;
mod challenge;
mod client;
mod due;
mod error;
mod folder;
mod journal;
mod keep;
mod order;
mod wait;

pub use authority::{Authority, ChallengeKind, ExternalAccount};
pub use challenge::{Challenges, HTTP_PREFIX};
pub use error::OrderError;
pub use keep::{Event, Keeper, State};

/// The directory of Let's Encrypt.
pub const LETS_ENCRYPT: &str = "https://acme-v02.api.letsencrypt.org/directory";

/// The README's example runs.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
