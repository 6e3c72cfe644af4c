//! What the connection passes to the version of HTTP that it speaks, for all of its requests.

use std::sync::Arc;

use super::Peer;
use super::error::ErrorCounters;
use super::state::ConnectionState;

/// What all requests of a connection share. It is behind one `Arc` per connection, because the
/// counts of an `Arc` shared between workers would be contended.
pub(super) struct ConnectionContext<H> {
    pub(super) handler: H,
    pub(super) peer: Arc<Peer>,
    pub(super) state: Arc<ConnectionState>,
    pub(super) errors: Arc<ErrorCounters>,
}
