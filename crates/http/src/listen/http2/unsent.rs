//! What h2 has of replies and tunnels that have ended, and may not have sent yet. Nobody else waits
//! for a client to read it. Knows nothing about requests.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

use bytes::{Buf, Bytes};
use h2::{Reason, SendStream};

/// What is given to h2.
pub(super) struct Piece {
    bytes: Bytes,
    /// Tells whether a piece of the stream is left.
    _pieces: Arc<Pieces>,
}

/// Shared by the pieces of one stream, and so by those that are not sent yet.
#[derive(Debug, Default)]
pub(super) struct Pieces(());

impl Piece {
    pub(super) fn new(bytes: Bytes, pieces: &Arc<Pieces>) -> Self {
        Self { bytes, _pieces: Arc::clone(pieces) }
    }
}

impl Buf for Piece {
    #[inline]
    fn remaining(&self) -> usize {
        self.bytes.len()
    }

    #[inline]
    fn chunk(&self) -> &[u8] {
        &self.bytes
    }

    #[inline]
    fn advance(&mut self, bytes: usize) {
        self.bytes.advance(bytes);
    }
}

/// See the module documentation. Shared by a connection, the tasks of its streams and its tunnels,
/// which run on one worker. In the order of their deadlines.
#[derive(Default)]
pub(super) struct Unsent(Mutex<VecDeque<EndedStream>>);

/// A stream of which h2 has everything. It is reset if that is not sent by then.
struct EndedStream {
    until: Instant,
    pieces: Weak<Pieces>,
    stream: SendStream<Piece>,
}

impl EndedStream {
    fn is_sent(&self) -> bool {
        self.pieces.strong_count() == 0
    }
}

impl Unsent {
    /// Has the rest of a stream sent by then. No deadline may be before an earlier stream's.
    pub(super) fn send_by(&self, until: Instant, pieces: &Arc<Pieces>, stream: SendStream<Piece>) {
        self.lock().push_back(EndedStream { until, pieces: Arc::downgrade(pieces), stream });
    }

    /// Forgets the streams that were sent. Returns the earliest deadline of those that are left.
    ///
    /// All are looked at, each time: h2 tells a client whose upload is not wanted only once nobody
    /// has a part of its stream.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let mut streams = self.lock();
        streams.retain(|stream| !stream.is_sent());
        streams.front().map(|stream| stream.until)
    }

    /// Resets the streams that should have been sent by now, and returns how many they are.
    pub(super) fn reset_late(&self, now: Instant) -> usize {
        let (mut streams, mut reset) = (self.lock(), 0);
        while let Some(mut late) = streams.pop_front_if(|stream| stream.until <= now) {
            if !late.is_sent() {
                late.stream.send_reset(Reason::CANCEL);
                reset += 1;
            }
        }
        reset
    }

    /// The connection has ended.
    pub(super) fn forget(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<EndedStream>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
