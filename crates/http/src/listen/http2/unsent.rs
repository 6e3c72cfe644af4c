//! What h2 has of replies and tunnels that have ended, and may not have sent yet. Nobody else waits
//! for a client to read it. Knows nothing about requests.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

use bytes::{Buf, Bytes};
use h2::{Reason, SendStream};

/// How many streams may have ended before those that were sent are forgotten.
const FORGET_AFTER: usize = 64;

/// What is given to h2.
pub(super) struct Piece {
    bytes: Bytes,
    /// Alive as long as one piece of the stream is.
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

/// See the module documentation. Shared by a connection and the tasks of its streams, which run on
/// one worker.
#[derive(Default)]
pub(super) struct Unsent(Mutex<Ended>);

#[derive(Default)]
struct Ended {
    /// In the order of their deadlines.
    streams: VecDeque<EndedStream>,
    /// How many were left when those that were sent had last been forgotten.
    left: usize,
}

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
        let mut ended = self.lock();
        // One that is not read would keep all that come after it.
        if ended.streams.len() > FORGET_AFTER.max(2 * ended.left) {
            ended.streams.retain(|stream| !stream.is_sent());
            ended.left = ended.streams.len();
        }
        ended.streams.push_back(EndedStream { until, pieces: Arc::downgrade(pieces), stream });
    }

    /// The earliest deadline of a stream that is not sent yet.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let streams = &mut self.lock().streams;
        while streams.pop_front_if(|stream| stream.is_sent()).is_some() {}
        streams.front().map(|stream| stream.until)
    }

    /// Resets the streams that should have been sent by now.
    pub(super) fn reset_late(&self, now: Instant) {
        let streams = &mut self.lock().streams;
        while let Some(mut late) = streams.pop_front_if(|stream| stream.until <= now) {
            if !late.is_sent() {
                late.stream.send_reset(Reason::CANCEL);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Ended> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;

    #[tokio::test]
    async fn one_that_is_not_read_keeps_no_others() {
        const STREAMS: usize = 1_000;
        let (near, far) = tokio::io::duplex(64 << 10);
        let (mut client, driving) = h2::client::handshake(near).await.unwrap();
        tokio::spawn(driving);
        let serving = tokio::spawn(async move {
            let mut server = h2::server::Builder::new().handshake::<_, Piece>(far).await.unwrap();
            let unread = Arc::new(Pieces::default());
            let (unsent, until) = (Unsent::default(), clock::monotonic());
            for number in 0..STREAMS {
                let (_request, mut replier) = server.accept().await.unwrap().unwrap();
                let stream = replier.send_response(http::Response::new(()), false).unwrap();
                let sent = Arc::new(Pieces::default());
                unsent.send_by(until, if number == 0 { &unread } else { &sent }, stream);
            }
            let held = unsent.lock().streams.len();
            assert!(held <= FORGET_AFTER + 2, "{held}");
            assert_eq!(unsent.deadline(), Some(until));
            unsent.reset_late(until);
            assert_eq!(unsent.deadline(), None);
        });
        let mut replies = Vec::new();
        for _ in 0..STREAMS {
            client = client.ready().await.unwrap();
            let request = http::Request::get("http://h/").body(()).unwrap();
            replies.push(client.send_request(request, true).unwrap());
        }
        serving.await.unwrap();
    }
}
