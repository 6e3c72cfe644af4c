//! What is told of an upstream to whoever asks: its addresses, what it has under way, where a
//! request went. Knows nothing of how that comes about.

use std::time::{Duration, Instant};

use super::endpoint::HostAddress;

/// One address of an endpoint and its current state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointStatus {
    /// The endpoint as configured.
    pub endpoint: String,
    /// The endpoint's own address, or one that its name resolved to.
    pub address: HostAddress,
    /// It has failed and gets no requests for a while.
    pub ejected: bool,
    /// Whether it passes its health checks. `None` if there are none.
    pub healthy: Option<bool>,
    /// Why its last health check failed, if it did.
    pub check_failed: Option<String>,
}

/// What an upstream with `concurrency` has under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConcurrencyStatus {
    /// The requests that it may have at the moment.
    pub limit: usize,
    /// Those that it has.
    pub in_flight: usize,
    /// Those that wait for it.
    pub waiting: usize,
    /// The time that it takes without a queue, as far as it is known. `None` if the limit is fixed.
    pub base: Option<Duration>,
}

/// Where a request was sent, and how long that took: for callers that ask for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SendRecord {
    /// The address that it was sent to last. `None` if it was sent nowhere.
    pub address: Option<HostAddress>,
    /// When it was handed over.
    pub began: Option<Instant>,
    /// The time from then to the head of its reply, or to its failure.
    pub took: Option<Duration>,
}
