//! A worker's requests to an upstream that are under way: their number, in total and of busy
//! clients, and the permit that each of them holds. Knows nothing of connections.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Context;
use std::time::Instant;

use http::StatusCode;

use super::concurrency::Place;
use super::host::{Host, InFlight};
use super::phase::Phase;
use super::{Cause, Inner};
use crate::wire::Network;

/// One worker's requests to one upstream. Shared with their permits only, which stay on the
/// worker's thread, so the counts are not contended.
#[derive(Default)]
pub(super) struct Requests {
    outstanding: AtomicUsize,
    /// The part of `outstanding` that is counted by client: requests that came while the worker was
    /// busy.
    by_client: Mutex<HashMap<Network, usize>>,
}

/// The permit for one request at a host. Returned on drop.
pub(super) struct RequestPermit {
    requests: Arc<Requests>,
    /// The index of the host's slot, at least a moment ago.
    slot: usize,
    /// `None` if there is only one host.
    in_flight: Option<InFlight>,
    /// The client, if its requests are counted.
    client: Option<Network>,
    /// Its place at an upstream with `concurrency`.
    place: Option<Box<Place>>,
}

impl Requests {
    /// The number of requests under way.
    pub(super) fn outstanding(&self) -> usize {
        self.outstanding.load(Ordering::Relaxed)
    }

    /// The number of the client's requests under way that are counted.
    pub(super) fn of(&self, client: Network) -> usize {
        let by_client = self.by_client.lock().unwrap_or_else(PoisonError::into_inner);
        by_client.get(&client).copied().unwrap_or(0)
    }

    /// Counts one more request, of `client` if its requests are counted.
    pub(super) fn begin(
        self: &Arc<Self>,
        slot: usize,
        in_flight: Option<InFlight>,
        client: Option<Network>,
    ) -> RequestPermit {
        self.outstanding.fetch_add(1, Ordering::Relaxed);
        if let Some(client) = client {
            let mut by_client = self.by_client.lock().unwrap_or_else(PoisonError::into_inner);
            *by_client.entry(client).or_insert(0) += 1;
        }
        RequestPermit { requests: Arc::clone(self), slot, in_flight, client, place: None }
    }

    fn end(&self, client: Option<Network>) {
        self.outstanding.fetch_sub(1, Ordering::Relaxed);
        let Some(client) = client else { return };
        let mut by_client = self.by_client.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = by_client.get_mut(&client) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                by_client.remove(&client);
            }
        }
    }
}

impl RequestPermit {
    /// The index of the host's slot, at least a moment ago.
    pub(super) fn slot(&self) -> usize {
        self.slot
    }

    /// The request goes to the host of this slot instead.
    pub(super) fn move_to(&mut self, slot: usize, in_flight: InFlight) {
        self.slot = slot;
        self.in_flight = Some(in_flight);
    }

    pub(super) fn host(&self) -> Option<&Arc<Host>> {
        self.in_flight.as_ref().map(|in_flight| &in_flight.host)
    }

    /// The request is begun at its host.
    pub(super) fn begin(&mut self, now: Instant) {
        if let Some(in_flight) = &mut self.in_flight {
            in_flight.began = Some(now);
        }
        if let Some(place) = &mut self.place {
            place.begin();
        }
    }

    /// What is awaited for the request, which is being sent, may have changed.
    pub(super) fn note(&mut self, phase: Phase, cx: &mut Context<'_>) {
        if let Some(place) = &mut self.place {
            place.note(phase, cx);
        }
    }

    /// Holds this place as well.
    pub(super) fn hold(&mut self, place: Box<Place>) {
        self.place = Some(place);
    }

    /// The host has answered with `status`. The request was complete at `sent`, if that is known.
    pub(super) fn succeeded(
        &mut self,
        upstream: &Inner,
        status: StatusCode,
        sent: impl FnOnce() -> Option<Instant>,
    ) {
        if let Some(place) = &mut self.place {
            place.answered(status, sent());
            if !place.outlives_head() {
                self.place = None;
            }
        }
        if let Some(in_flight) = &self.in_flight {
            in_flight.host.succeeded(upstream);
        }
    }

    /// The host has failed the request, which it may have got.
    pub(super) fn lost(&mut self, upstream: &Inner, cause: Cause) {
        self.failed(upstream, cause);
        if cause == Cause::Timeout
            && let Some(place) = &mut self.place
        {
            place.timed_out();
        }
    }

    /// The host has failed the request.
    pub(super) fn failed(&self, upstream: &Inner, cause: Cause) {
        if let Some(in_flight) = &self.in_flight {
            in_flight.host.failed(upstream, cause, in_flight.began);
        }
    }
}

impl Drop for RequestPermit {
    fn drop(&mut self) {
        self.requests.end(self.client);
    }
}
