//! TLS material that both ends use: certificates and keys from PEM, the cryptography provider, and
//! TLS to a server. Knows nothing of what is spoken on a connection.

mod client;
mod material;
mod pins;
#[cfg(test)]
mod pki;

pub use client::{ClientTls, ClientTlsError};
pub use material::{Identity, PEM_BYTES_MAX, Pem, provider};
pub use pins::Pin;

/// The README's example runs.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
