//! Reads the rest of an HTTP/2 stream that was dropped, within bounds, so that a peer that is still
//! sending sees the reply and not a reset: curl takes a reset after a reply for a failure.

use std::future::poll_fn;
use std::time::Duration;

use bytes::Bytes;

use super::stream::StreamBody;

/// Maximum bytes that are read.
const LINGER_BYTES_MAX: usize = 256 << 10;
/// How long to read.
const LINGER_TIME: Duration = Duration::from_secs(5);

/// Reads and discards `stream` in a task of its own.
pub(super) fn discard(mut stream: StreamBody) {
    stream.unwanted();
    let reading = async move {
        let mut bytes = 0;
        while let Some(Ok(frame)) = poll_fn(|cx| stream.poll_frame(cx)).await {
            bytes += frame.data_ref().map_or(0, Bytes::len);
            if bytes > LINGER_BYTES_MAX {
                return;
            }
        }
    };
    tokio::spawn(tokio::time::timeout(LINGER_TIME, reading));
}
