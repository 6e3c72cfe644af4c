//! Calls for decisions: what is to be decided, read from a call of Envoy's rate limit service
//! (`rls`, with its `messages`; `json` for the same as JSON), of its quota service (`quota`), of
//! the HTTP API (`api`), or of Envoy's external authorization (`check`). `frames` has the messages
//! of a stream, `health` and `reflection` what a client of gRPC asks about the services, and
//! `protos` how these are described. Knows no route, no policy and no limit.

pub(in crate::proxy) mod api;
pub(in crate::proxy) mod check;
pub(in crate::proxy) mod check_messages;
pub(in crate::proxy) mod frames;
pub(in crate::proxy) mod health;
pub(in crate::proxy) mod json;
pub(in crate::proxy) mod messages;
pub(in crate::proxy) mod noted;
mod protos;
pub(in crate::proxy) mod quota;
pub(in crate::proxy) mod quota_messages;
pub(in crate::proxy) mod reflection;
pub(in crate::proxy) mod rls;
pub(in crate::proxy) mod structure;

use std::future::poll_fn;

use crate::proxy::refusal::{Check, Refusal};
use crate::wire::{self, Body, Charge};

/// Maximum number of descriptors of a call. Each may have several limits, and all of them are taken
/// as one plan, which has its own maximum.
pub(in crate::proxy) const DESCRIPTORS_MAX: usize = 16;
/// Maximum number of entries of a descriptor.
const ENTRIES_MAX: usize = 64;
/// Maximum bytes of a domain: what is kept of a call may outlast it, and have a copy of it.
pub(in crate::proxy) const DOMAIN_BYTES_MAX: usize = 256;

/// What is to be decided: whether each descriptor's limits have room for its hits.
#[derive(Debug)]
pub(in crate::proxy) struct Call {
    pub(in crate::proxy) domain: String,
    pub(in crate::proxy) descriptors: Vec<Descriptor>,
    /// Whether the caller says when what is let through has ended.
    pub(in crate::proxy) is_held: bool,
    /// Whether what it asks for is handed out, so that each limit has to have leases for callers.
    pub(in crate::proxy) is_quota: bool,
    /// Whether what it asks for may have been used already, so that a limit with a debt owes it if
    /// it is refused.
    pub(in crate::proxy) is_spent: bool,
    /// What it takes of the bytes that the process may buffer.
    _charge: Charge,
}

/// Names what is counted.
#[derive(Debug)]
pub(in crate::proxy) struct Descriptor {
    /// Keys and values, in their order. A key may come more than once.
    pub(in crate::proxy) entries: Vec<(String, String)>,
    /// The same as a JSON array of pairs.
    pub(in crate::proxy) text: String,
    /// The limit that the caller wants instead of a configured one: `60/minute`.
    pub(in crate::proxy) limit: Option<String>,
    /// Limits of the caller's own, as a JSON array.
    pub(in crate::proxy) limits: Option<String>,
    /// Units to take; 0 only looks.
    pub(in crate::proxy) hits: u64,
    /// Units to give back before that.
    pub(in crate::proxy) gives_back: u64,
    /// What the caller says of the request that it asks about. `None` if the call itself is what
    /// facts are read from.
    pub(in crate::proxy) facts: Option<Vec<(String, String)>>,
}

/// A descriptor of a call.
#[derive(Clone, Copy, Debug)]
pub(in crate::proxy) struct DescriptorView<'a> {
    pub(in crate::proxy) domain: &'a str,
    pub(in crate::proxy) descriptor: &'a Descriptor,
}

impl Call {
    /// Whether its caller says what it is about, and the call itself has no facts of it.
    pub(in crate::proxy) fn is_about_facts(&self) -> bool {
        self.descriptors.iter().any(|descriptor| descriptor.facts.is_some())
    }

    /// Whether it takes nothing, and so refuses nobody.
    pub(in crate::proxy) fn is_look(&self) -> bool {
        self.descriptors.iter().all(|descriptor| descriptor.hits == 0)
    }

    /// Whether its caller gives units back.
    pub(in crate::proxy) fn gives_back(&self) -> bool {
        self.descriptors.iter().any(|descriptor| descriptor.gives_back > 0)
    }

    /// Whether its caller sends limits.
    pub(in crate::proxy) fn has_limits(&self) -> bool {
        self.descriptors.iter().any(|descriptor| descriptor.limits.is_some())
    }
}

/// Checks a domain.
///
/// # Errors
/// What was found.
fn check_domain(domain: &str) -> Result<(), &'static str> {
    const { assert!(DOMAIN_BYTES_MAX == 256) };
    match domain.len() {
        0 => Err("no domain"),
        1..=DOMAIN_BYTES_MAX => Ok(()),
        _ => Err("a domain of more than 256 bytes"),
    }
}

/// A call, or a message of a stream, that is none.
fn malformed(found: &'static str) -> Refusal {
    Refusal::BadRequest(Check::Call.wrong(found))
}

/// Reads a body of at most `bytes_max`.
async fn read_all(
    mut body: Body,
    bytes_max: usize,
    buffered_bytes_max: usize,
) -> Result<(Vec<u8>, Charge), Refusal> {
    let mut read = Vec::new();
    let mut charge = Charge::nothing();
    while poll_fn(|cx| body.poll_fill(cx)).await.transpose()?.is_some() {
        let data = body.data();
        if read.len() + data.len() > bytes_max {
            return Err(Refusal::BodyTooLarge { limit_bytes: bytes_max as u64 });
        }
        read.extend_from_slice(data);
        let bytes = data.len();
        body.consume(bytes);
        body.end_if_read();
        charge.set(read.capacity());
        if wire::buffered_bytes() > buffered_bytes_max {
            return Err(Refusal::TooMuchBuffered);
        }
    }
    Ok((read, charge))
}
