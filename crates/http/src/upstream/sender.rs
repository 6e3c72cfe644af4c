//! What a request brings with it for its upstream, beside its head and body: whose it is, how much
//! it matters, where it belongs, and what its route asks of the upstream. Knows no connection.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::settings::{Retry, Settings};
use crate::wire::Network;

/// The highest priority of a request. The lowest is 0.
pub const PRIORITY_MAX: u8 = 7;
/// The priority of a request that has none of its own.
pub const PRIORITY_DEFAULT: u8 = 4;

/// Whose request it is, and how much it matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sender<'a> {
    /// The client. While a worker is busy, each gets a share of its requests.
    pub client: Option<Network>,
    /// 0 to [`PRIORITY_MAX`]. Of those that wait for an upstream with `concurrency`, whoever has
    /// more goes first.
    pub priority: u8,
    /// Requests with the same number are one sender's, which shares that upstream with others.
    pub fair_key: u64,
    /// The host that it goes to, if that can take it.
    pub affinity: Option<Affinity>,
    /// The two ends of the client's connection: its own first.
    pub ends: Option<&'a (SocketAddr, SocketAddr)>,
    /// What its route asks of the upstream instead of the upstream's own settings.
    pub overrides: Option<&'a Arc<Overrides>>,
}

/// Which host a request belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Affinity {
    /// Requests with the same number go to the same host, as far as that is not too busy.
    Hash(u64),
    /// The host with this [`tag`](super::HostAddress::tag), however busy it is.
    Host(u64),
}

/// Settings of an upstream that hold for the requests of one route.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overrides {
    /// Instead of [`Settings::retry`].
    pub retry: Option<Retry>,
    /// Instead of [`Settings::response_header`].
    pub response_header: Option<Duration>,
    /// Instead of [`Settings::idle`], for the bodies of requests and replies.
    pub idle: Option<Duration>,
}

impl Default for Sender<'_> {
    fn default() -> Self {
        Self {
            client: None,
            priority: PRIORITY_DEFAULT,
            fair_key: 0,
            affinity: None,
            ends: None,
            overrides: None,
        }
    }
}

impl Overrides {
    /// Whether nothing is asked.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Which requests are sent again.
pub(super) fn retry(settings: &Settings, overrides: Option<&Arc<Overrides>>) -> Retry {
    overrides.and_then(|it| it.retry).unwrap_or(settings.retry)
}

/// How long a reply's head may take.
pub(super) fn response_header(settings: &Settings, overrides: Option<&Arc<Overrides>>) -> Duration {
    overrides.and_then(|it| it.response_header).unwrap_or(settings.response_header)
}

/// Whether the route allows less time than the upstream's own settings do.
pub(super) fn is_hurried(settings: &Settings, overrides: Option<&Arc<Overrides>>) -> bool {
    response_header(settings, overrides) < settings.response_header
        || idle(settings, overrides) < settings.idle
}

/// How long a body may pause.
pub(super) fn idle(settings: &Settings, overrides: Option<&Arc<Overrides>>) -> Duration {
    overrides.and_then(|it| it.idle).unwrap_or(settings.idle)
}
